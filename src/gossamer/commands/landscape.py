"""`gossamer landscape`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from gossamer.commands.options import DataDir, Quiet, Workers


def landscape(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN [RUN]", help="One run folder, or two on the same axes.")],
    dimensions: Annotated[int, typer.Option("--dimensions", "-d", help="Random directions: 1 or 2.")] = 2,
    points: Annotated[int, typer.Option(help="Grid points along each direction; odd.")] = 51,
    radius: Annotated[
        float, typer.Option(help="From -radius to radius; 1 is the length of the model's filters.")
    ] = 1.0,
    on: Annotated[Literal["train", "test"], typer.Option(help="The samples of the loss.")] = "train",
    samples: Annotated[int, typer.Option(help="At most so many of them, at even distances.")] = 10_000,
    model: Annotated[
        Literal["final", "best"], typer.Option(help="The model at the end, or of the best round.")
    ] = "final",
    weight_decay: Annotated[bool, typer.Option("--weight-decay", help="Add the weight decay to the loss.")] = False,
    seed: Annotated[int, typer.Option(help="Of the random directions.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The figure: a .png, .svg or .pdf file.")] = None,
    data_dir: DataDir = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Draw the loss around the averaged models of one or two saved runs, along filter-normalised random directions.

    The values are kept in the run folders as CSV, point by point: an interrupted landscape goes on where it was.
    """
    from gossamer.errors import ExperimentError
    from gossamer.measure.landscape import Grid
    from gossamer.pages.figures import checked_path
    from gossamer.pages.landscapes import plot_landscapes
    from gossamer.studies import LandscapeSettings, measure_landscapes
    from gossamer.terminal import console
    from gossamer.terminal.flatness_view import Bar, landscape_view

    if len(runs) > 2:
        raise ExperimentError(f"landscape: takes one run or two (got {len(runs)})")
    settings = LandscapeSettings(Grid(dimensions, points, radius), model, on, samples, weight_decay, seed)
    path = checked_path(out or runs[0] / f"{settings.stem}{'-two' if len(runs) > 1 else ''}.png")
    with Bar(quiet) as bar:
        found = measure_landscapes(runs, settings, data_dir=data_dir, workers=workers, progress=bar.part(0, 1, ""))
    figure = plot_landscapes(found).save(path)
    console.out.print(landscape_view(found))
    console.say_where(figure, *(each.file for each in found))
