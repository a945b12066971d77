"""`gossamer reproduce`."""

from pathlib import Path
from typing import Annotated

import typer

from gossamer import simulation, terminal
from gossamer.commands.options import Budget, DataDir, Out, Quiet, Verbose, Workers
from gossamer.errors import ExperimentError
from gossamer.studies import reproduction
from gossamer.terminal.reproduction_view import say_papers, say_reproduction
from gossamer.workers import launched_from_outside


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A table or figure; without one, all are listed.")
    ] = None,
    cells: Annotated[
        list[str], typer.Option("--cells", metavar="TEXT", help="Only cells with this in their label; may be repeated.")
    ] = [],  # noqa: B006  # typer copies it
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds of each cell; default: as in the file.")] = None,
    budget: Budget = None,
    quick: Annotated[bool, typer.Option("--quick", help="Two rounds on digits, to see that everything runs.")] = False,
    out: Out = None,
    results: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also keep the metrics of every run there, without models.")
    ] = None,
    data_dir: DataDir = None,
    workers: Workers = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run a table or figure of a paper, in any number of sittings, and print the paper's numbers beside ours."""
    if name is None:
        if cells:
            raise ExperimentError("reproduce: --cells chooses from a table or figure, and none is named")
        say_papers()
        return
    if launched_from_outside():
        raise ExperimentError("reproduce: runs on one machine; start its cells one by one with 'gossamer run'")
    if budget is not None and not budget > 0:
        raise ExperimentError(f"budget: should be minutes, more than 0 (got {budget})")
    if results is not None and results.exists() and not results.is_dir():
        raise ExperimentError(f"{results}: should be a folder for the results, and is a file")
    paper = reproduction.load_paper(name)
    study = paper.chosen(cells, seeds, quick)
    folder = out or Path("runs") / f"reproduce-{name}{'-quick' if quick else ''}"
    options = simulation.Options(workers=workers, data_dir=data_dir)
    with terminal.StudyDisplay(quiet, verbose) as display:
        left = reproduction.reproduce(
            study,
            folder,
            then=lambda: paper.finals(study, reproduction.read_folders(paper, folder), seeds, quick),
            budget=budget,
            observe=display.observers,
            **options,
        )
    found = reproduction.read_folders(paper, folder)
    if results is not None:
        reproduction.store_all(paper, folder, results)
    say_reproduction(paper, found, left)
