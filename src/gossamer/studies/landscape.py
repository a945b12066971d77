"""The loss landscape of saved runs, in files of the run folder that grow point by point.

`landscape-train-2d.csv` has one row for each grid point, in the order of the grid; `landscape-train-2d.json` says of
what. An interrupted landscape goes on after its last row, if everything in the JSON file is as before.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossamer.errors import DivergenceError, ExperimentError
from gossamer.experiment import Experiment
from gossamer.measure.landscape import Grid, check_same_shape, filter_directions, landscape_losses
from gossamer.measure.objective import FLATNESS_SAMPLES, training_objective
from gossamer.runs.files import append_line, write_text
from gossamer.runs.saved import SavedModel, SavedRun, Which, measuring_workers
from gossamer.studies.sharpness import Progress
from gossamer.system.threads import on_threads
from gossamer.workers import Group, as_group


@dataclass(frozen=True)
class LandscapeSettings:
    """Where the loss is evaluated, and on what."""

    grid: Grid = field(default_factory=Grid)
    #: The averaged model at the end, or of the best round.
    saved: Which = "final"
    #: The loss on "train" or "test" samples, and how many of them at most.
    on: str = "train"
    samples: int = FLATNESS_SAMPLES
    #: Whether the weight decay of training counts as part of the loss.
    weight_decay: bool = False
    #: Of the random directions.
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ExperimentError(f"samples must be 1 or more (got {self.samples})")

    @property
    def stem(self) -> str:
        """The name of the files, without their ending."""
        return f"landscape-{self.on}-{self.grid.dimensions}d"


@dataclass(frozen=True, eq=False)
class Landscape:
    """The loss of one run on a grid around its averaged model."""

    label: str
    settings: LandscapeSettings
    #: One value for each point: [points], or [points, points] with the first direction along the rows.
    losses: NDArray[np.float64]
    file: Path

    @property
    def centre(self) -> float:
        """The loss of the model itself."""
        return float(self.losses.flat[self.settings.grid.centre])


def measure_landscapes(
    folders: list[Path],
    settings: LandscapeSettings | None = None,
    *,
    data_dir: Path | None = None,
    workers: int | None = None,
    progress: Progress = lambda share, doing: None,
    experiment: Experiment | None = None,
) -> list[Landscape]:
    """The landscapes of one or more saved runs along the same random draws, each scaled to the filters of its model.

    `experiment` is needed only if it holds objects that no file can express.
    """
    settings = settings or LandscapeSettings()
    runs = [SavedRun.open(path, data_dir, experiment) for path in folders]
    for other in runs[1:]:
        check_same_shape(runs[0].training.model, other.training.model)
        data = [run.prepared.experiment.describe().get("dataset") for run in (runs[0], other)]
        if data[0] != data[1]:
            raise ExperimentError(
                f"landscapes on one scale need one data set: {folders[0]} has {data[0]}, {other.folder.path} {data[1]}"
            )
    models = [run.average(settings.saved) for run in runs]  # all are there before the first is computed
    labels = [path.resolve().name for path in folders]
    found = []
    for number, (run, model, label) in enumerate(zip(runs, models, labels, strict=True)):

        def advance(share: float, doing: str, number: int = number, label: str = label) -> None:
            progress((number + share) / len(runs), f"{label}: {doing}" if len(runs) > 1 else doing)

        found.append(_landscape(run, model, label, settings, workers, advance))
    return found


def _landscape(
    run: SavedRun, model: SavedModel, label: str, settings: LandscapeSettings, workers: int | None, advance: Progress
) -> Landscape:
    training, grid = run.training, settings.grid
    table, about = (run.folder.path / f"{settings.stem}.{ending}" for ending in ("csv", "json"))
    said = json.dumps(asdict(settings) | {"digest": model.digest, "round": model.round}, indent=2) + "\n"
    known = _losses_in(table, grid) if _read(about) == said else []
    if len(known) < len(grid):
        # What goes on is written whole first: the last row may be half a row.
        write_text(table, "\n".join([_heads(grid), *(_row(grid, i, loss) for i, loss in enumerate(known))]) + "\n")
        write_text(about, said)

        def work(group: Group) -> None:
            decay = training.weight_decay if settings.weight_decay else 0.0
            loss = training_objective(
                training, group, weight_decay=decay, most=settings.samples, test=settings.on == "test"
            )
            with on_threads(1):
                if not known:
                    loss.finite_value(model.x)
                along = filter_directions(training.model, model.x, grid.dimensions, settings.seed)
                indices = range(len(known), len(grid))
                for index, value in landscape_losses(loss.value, model.x, along, grid, indices):
                    if group.first:
                        append_line(table, _row(grid, index, value))
                        advance((index + 1) / len(grid), f"point {index + 1:,} of {len(grid):,}")

        try:
            as_group(measuring_workers(workers, training), training.model.initial.device, work)
        except (ExperimentError, DivergenceError) as error:
            raise type(error)(f"{run.folder.path}: {error}") from error
        known = _losses_in(table, grid)
    shape = (grid.points,) * grid.dimensions
    return Landscape(label, settings, np.array(known).reshape(shape), table)


def _heads(grid: Grid) -> str:
    return "x,loss" if grid.dimensions == 1 else "x,y,loss"


def _row(grid: Grid, index: int, loss: float) -> str:
    return ",".join(map(repr, (*grid.coordinates(index), loss)))


def _losses_in(table: Path, grid: Grid) -> list[float]:
    """The losses of the first points, as far as the rows are whole and those of this grid."""
    losses: list[float] = []
    *lines, _ = (_read(table) or "").split("\n")  # behind the last end of a line there is nothing, or half a row
    if not lines or lines[0] != _heads(grid):
        return losses
    for index, line in enumerate(lines[1:]):
        try:
            loss = float(line.rpartition(",")[2])
        except ValueError:
            break
        if index >= len(grid) or line != _row(grid, index, loss):
            break
        losses.append(loss)
    return losses


def _read(path: Path) -> Any:
    return path.read_text(encoding="utf-8") if path.is_file() else None
