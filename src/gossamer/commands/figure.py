"""`gossamer figure`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from gossamer.studies import read_comparison
from gossamer.terminal import console


def figure(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs or comparisons.")],
    metric: Annotated[
        list[str], typer.Option("--metric", "-m", help="Any metric, or client_accuracy; default: the runs' score.")
    ] = [],  # noqa: B006  # typer copies it
    against: Annotated[
        list[str],
        typer.Option(help="round, bytes, messages, gradients, seconds, a swept key, or two of them: lr,graph."),
    ] = ["round"],  # noqa: B006  # typer copies it
    band: Annotated[
        Literal["deviation", "range"], typer.Option(help="Over the seeds: standard deviation, or minimum to maximum.")
    ] = "deviation",
    width: Annotated[str, typer.Option(help="column or page of a paper, or a number of inches.")] = "column",
    log: Annotated[bool | None, typer.Option("--log/--linear", help="The axis of the metric.")] = None,
    title: Annotated[str, typer.Option(help="A title; default: none, since papers have captions.")] = "",
    out: Annotated[
        list[Path], typer.Option("--out", "-o", help="A .pdf, .svg or .png file; several for several formats.")
    ] = [Path("figure.pdf")],  # noqa: B006  # typer copies it
) -> None:
    """Draw a figure for a paper: metrics of runs and comparisons against rounds, bytes, time or what was swept."""
    from gossamer.pages.figures import checked_path, plot  # takes half a second, which no other command waits for

    paths = [checked_path(path) for path in out]
    drawn = plot(read_comparison(runs), metric, against, band=band, width=width, title=title, log=log)
    console.say_where(*[drawn.save(path) for path in paths])
