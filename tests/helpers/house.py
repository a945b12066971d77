"""The rooms of the package, in their order."""

from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "gossamer"

#: Rooms and loose modules, in the order in which data flows. Each may use those before it.
ROOMS = [
    "errors", "randomness", "system", "parts", "data", "models", "graphs", "methods", "training", "workers", "mixing",
    "engines", "measure", "experiment", "runs", "simulation", "studies", "theory", "peers", "pages", "bench",
    "terminal", "commands",
]  # fmt: skip
