"""`gossamer run` and `gossamer resume`."""

from pathlib import Path
from typing import Annotated

import typer

from gossamer import simulation, studies, terminal
from gossamer.commands.compare import run_study
from gossamer.commands.folders import fresh_folder, unfinished_run
from gossamer.commands.options import (
    Budget,
    ChannelsLast,
    Chunk,
    DataDir,
    Diverging,
    File,
    MLflow,
    Out,
    ProductsOption,
    Quiet,
    Settings,
    Spill,
    StepOption,
    TensorBoard,
    Verbose,
    Workers,
    overrides,
    trackers,
)
from gossamer.experiment import Experiment, load_experiment
from gossamer.runs.folder import RunFolder
from gossamer.terminal.run_view import say_run


def run(
    file: File = None,
    settings: Settings = [],  # noqa: B006  # typer copies it
    out: Out = None,
    data_dir: DataDir = None,
    workers: Workers = None,
    chunk: Chunk = None,
    step: StepOption = None,
    channels_last: ChannelsLast = None,
    products: ProductsOption = None,
    spill: Spill = None,
    on_divergence: Diverging = "stop",
    tensorboard: TensorBoard = False,
    mlflow: MLflow = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run one experiment and keep it in a run folder."""
    experiment = load_experiment(file, overrides(settings))
    method = part_name(experiment, "method")
    folder = out or unfinished_run(experiment) or fresh_folder(f"{method}-{part_name(experiment, 'dataset')}")
    display = terminal.make_observer(method, quiet, verbose)
    observers = [display, *(tracker() for tracker in trackers(tensorboard, mlflow))]
    options = simulation.Options(
        workers=workers, chunk=chunk, step=step, channels_last=channels_last, products=products, spill=spill,
        data_dir=data_dir,
        on_divergence=on_divergence, keep_vectors=False,
    )  # fmt: skip
    say_run(simulation.simulate(experiment, out=folder, observers=observers, **options), folder)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run or a comparison.")],
    data_dir: DataDir = None,
    workers: Workers = None,
    chunk: Chunk = None,
    step: StepOption = None,
    channels_last: ChannelsLast = None,
    products: ProductsOption = None,
    spill: Spill = None,
    on_divergence: Diverging = "stop",
    budget: Budget = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Continue an interrupted run or comparison, to the same numbers as an uninterrupted one."""
    options = simulation.Options(
        workers=workers, chunk=chunk, step=step, channels_last=channels_last, products=products, spill=spill,
        data_dir=data_dir,
        on_divergence=on_divergence, keep_vectors=False,
    )  # fmt: skip
    if (folder / studies.COMPARISON).exists():
        study = studies.load_study(folder / studies.COMPARISON)
        run_study(study, folder, terminal.StudyDisplay(quiet, verbose), options, budget)
        return
    display = terminal.make_observer(folder.name, quiet, verbose)
    words = "read from" if RunFolder(folder).finished else "written to"
    say_run(simulation.resume(folder, observers=[display], **options), folder, words)


def part_name(experiment: Experiment, key: str) -> str:
    """The bare name of a part of an experiment, usable in a folder name."""
    return studies.slug(studies.part_label(experiment, key).split("(")[0])
