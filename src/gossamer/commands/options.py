"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from gossamer import simulation
from gossamer.engines import Products, StepMode
from gossamer.errors import ExperimentError
from gossamer.experiment import parse_setting, parse_value
from gossamer.simulation import Observer, OnDivergence
from gossamer.studies.targets import Targets

File = Annotated[Path | None, typer.Argument(help="A TOML file; without one, the built-in default.")]
Settings = Annotated[
    list[str], typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set a key, e.g. lr=0.05 or method.rho=0.1.")
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="The folder to write to.")]
Picture = Annotated[Path | None, typer.Option("--out", "-o", help="Draw it: a .png, .svg or .pdf file.")]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", envvar="GOSSAMER_DATA", help="Where data sets are, or are downloaded to.")
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        "-w",
        envvar="GOSSAMER_WORKERS",
        help="Worker processes; default: one a core, fewer for short rounds.",
    ),
]
Chunk = Annotated[int | None, typer.Option(help="Clients that a worker runs at once; default: measured.")]
StepOption = Annotated[
    StepMode | None, typer.Option("--step", help="How a local step is run; default: the fastest for this run.")
]
ChannelsLast = Annotated[
    bool | None, typer.Option("--channels-last/--channels-first", help="Memory format of images; default: measured.")
]
ProductsOption = Annotated[
    Products | None, typer.Option("--products", help="The library for matrix products; default: the fastest.")
]
Spill = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Keep the clients' state in a file there, not in memory.")
]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")]
MLflow = Annotated[bool, typer.Option("--mlflow", help="Also log to MLflow.")]
Diverging = Annotated[OnDivergence, typer.Option("--on-divergence", help="What to do when a loss is not finite.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say how the engine runs.")]
Target = Annotated[
    list[str], typer.Option("--target", metavar="VALUE", help="What it took to reach it, e.g. 0.9 or test_loss=0.5.")
]
Baseline = Annotated[str | None, typer.Option(metavar="LABEL", help="The variant that the others are compared with.")]
Budget = Annotated[
    float | None, typer.Option(metavar="MINUTES", help="Start no run of a comparison after so many minutes.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def parse_targets(texts: list[str]) -> Targets:
    """All `--target` options: values of the metric by which runs are judged, or `metric=value`.

    >>> parse_targets(["0.9", "0.95"]), parse_targets(["test_loss=0.5"])
    ([0.9, 0.95], {'test_loss': [0.5]})
    """
    named = [parse_setting(text) for text in texts if "=" in text]
    if not named:
        return [parse_value(text) for text in texts]
    if len(named) < len(texts):
        raise ExperimentError("--target: name the metric of each, as in test_accuracy=0.9, or of none")
    targets: dict[str, list[float]] = {}
    for metric, value in named:
        targets.setdefault(metric, []).append(value)
    return targets


def trackers(tensorboard: bool, mlflow: bool) -> list[Callable[[], Observer]]:
    """What makes the observers of a run for the trackers that are asked for."""
    return [*([simulation.TensorBoard] if tensorboard else []), *([simulation.MLflow] if mlflow else [])]


def overrides(settings: list[str]) -> dict[str, Any]:
    """All `--set` options as keys and values."""
    return dict(map(parse_setting, settings))
