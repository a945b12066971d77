"""`gossamer theory`."""

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from gossamer.commands.options import DataDir, Json, Settings, overrides
from gossamer.errors import ExperimentError
from gossamer.experiment import load_experiment
from gossamer.runs.folder import EXPERIMENT, RunFolder, read_lines
from gossamer.terminal import console


def theory(
    file: Annotated[
        Path | None, typer.Argument(help="A TOML file, or a run folder: its measures stand beside the bounds.")
    ] = None,
    settings: Settings = [],  # noqa: B006  # typer copies it
    smoothness: Annotated[
        float | None, typer.Option(metavar="L", help="The smoothness constant; default: estimated at the start.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(metavar="E", help="Also the rounds until the squared gradient norm is at most this.")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Print the papers' bounds with their terms: graph, heterogeneity, noise, each measured on your data."""
    from gossamer.terminal.theory_view import theory_view
    from gossamer.theory import analyse

    metrics = None
    if file is not None and file.is_dir():
        if settings:
            raise ExperimentError("theory: a run has its settings already; --set is for a file")
        folder = RunFolder.open(file)
        file, metrics = folder.path / EXPERIMENT, read_lines(folder.metrics)
    result = analyse(load_experiment(file, overrides(settings)), data_dir, smoothness, metrics)
    rounds = None if epsilon is None else result.rounds_to(epsilon)  # refuses an ε that makes no sense
    if as_json:
        more = {} if rounds is None else {"epsilon": epsilon, "rounds_to_epsilon": finite_values(rounds)}
        print(json.dumps({**result.to_dict(), **more}, indent=2))
    else:
        console.out.print(theory_view(result, epsilon))


def finite_values(values: dict[str, float]) -> dict[str, float | None]:
    """None for infinity and NaN, which JSON does not have."""
    return {key: value if math.isfinite(value) else None for key, value in values.items()}
