"""The curves of one or more runs, side by side, as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from gossamer.errors import RunFolderError
from gossamer.runs.files import replace_file
from gossamer.runs.record import RunRecord, score_of

#: A palette that colour-blind readers and grey print can tell apart (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
#: Line styles: the next one is used when all colours have been.
DASHES = ("-", "--", ":", "-.")


class Panel(NamedTuple):
    """One metric over the rounds."""

    key: str
    title: str
    logarithmic: bool = False
    percent: bool = False


ACCURACY = (
    Panel("test_accuracy", "Test accuracy of the averaged model", percent=True),
    Panel("client_accuracy_worst", "Test accuracy of the worst client", percent=True),
)
#: In place of accuracies where they have no meaning.
LOSS = (
    Panel("test_loss", "Test loss of the averaged model", logarithmic=True),
    Panel("client_loss_worst", "Test loss of the worst client", logarithmic=True),
)
PANELS = (
    Panel("consensus", "Consensus distance  (1/n) Σ ‖xᵢ − x̄‖²", logarithmic=True),
    Panel("local_loss", "Training loss during local steps", logarithmic=True),
)


class Curve(NamedTuple):
    """Mean of a metric over a variant's runs, and the mean minus and plus their standard deviation."""

    rounds: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def curve(records: Sequence[RunRecord], key: str, scale: float = 1.0) -> Curve | None:
    """A metric over the rounds, over all runs of a variant; None if none measured it."""
    columns = [r.metrics.set_index("round")[key].dropna() for r in records if key in r.metrics]
    if not columns or not any(len(column) for column in columns):
        return None
    joined = pd.concat(columns, axis=1).dropna() * scale
    mean, spread = joined.mean(axis=1), joined.std(axis=1, ddof=1)
    return Curve(joined.index.to_list(), mean.to_list(), (mean - spread).to_list(), (mean + spread).to_list())


class Drawing(NamedTuple):
    """A panel with the curve of every variant that has numbers for it."""

    panel: Panel
    curves: dict[str, Curve]
    #: The bottom of a logarithmic axis; None for a linear one, also where no value is positive.
    bottom: float | None

    @classmethod
    def of(cls, panel: Panel, runs: Mapping[str, Sequence[RunRecord]]) -> "Drawing":
        scale = 100.0 if panel.percent else 1.0
        found = {label: line for label, records in runs.items() if (line := curve(records, panel.key, scale))}
        positive = [value for line in found.values() for value in line.mean if value > 0]
        if not panel.logarithmic or not positive:
            return cls(panel, found, None)
        # A band may reach below zero, where a logarithmic axis ends: it is cut at the bottom.
        bottom = min(positive) / 2
        clipped = {label: line._replace(low=[max(low, bottom) for low in line.low]) for label, line in found.items()}
        return cls(panel, clipped, bottom)


def drawings(runs: Mapping[str, Sequence[RunRecord]]) -> list[Drawing]:
    """The panels that any of the runs has numbers for: accuracies, or losses where accuracies have no meaning."""
    scores = ACCURACY if score_of(r for records in runs.values() for r in records).key == "test_accuracy" else LOSS
    found = (Drawing.of(panel, runs) for panel in (*scores, *PANELS))
    return [drawing for drawing in found if drawing.curves]


def band_words(runs: Mapping[str, Sequence[RunRecord]]) -> str:
    """What the bands are, if there are any."""
    return "bands: ± one standard deviation over the seeds" if any(len(each) > 1 for each in runs.values()) else ""


class Layout(NamedTuple):
    """The panels of a figure, its columns and rows, and the last round on its axes."""

    drawings: list[Drawing]
    across: int
    down: int
    last: int


def layout(runs: Mapping[str, Sequence[RunRecord]]) -> Layout:
    """At most two panels in a row."""
    drawn = drawings(runs)
    across = min(2, len(drawn))
    last = max(record.rounds for records in runs.values() for record in records)
    return Layout(drawn, across, -(-len(drawn) // across), last)


def draw_png(runs: Mapping[str, Sequence[RunRecord]], path: Path, title: str) -> None:
    """The curves as a picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    drawn, across, down, last = layout(runs)
    figure = Figure(figsize=(6.2 * across, 3.9 * down + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=13, fontweight="bold", x=0.01, ha="left")
    if words := band_words(runs):
        figure.supxlabel(words, fontsize=9, color="#555555", x=0.99, ha="right")
    for axes, (panel, curves, bottom) in zip(figure.subplots(down, across, squeeze=False).flat, drawn, strict=False):
        for number, (label, records) in enumerate(runs.items()):
            if (line := curves.get(label)) is None:
                continue
            colour = COLOURS[number % len(COLOURS)]
            marker = "o" if len(line.rounds) == 1 else None
            dash = DASHES[number // len(COLOURS) % len(DASHES)]
            axes.plot(line.rounds, line.mean, dash, color=colour, linewidth=1.8, label=label, marker=marker)
            if len(records) > 1:
                axes.fill_between(line.rounds, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
        axes.set_title(panel.title, fontsize=10.5, loc="left")
        axes.set_xlabel("round")
        axes.set_xlim(0, last * 1.02)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if bottom is not None:
            axes.set_yscale("log")
            axes.set_ylim(bottom=bottom)
        if panel.percent:
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
        axes.grid(True, color="#e6e6e6", linewidth=0.8)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    for unused in list(figure.axes)[len(drawn) :]:
        unused.remove()
    if figure.axes and len(runs) <= 20:
        figure.axes[0].legend(frameon=False, fontsize=9)
    replace_file(path, lambda aside: figure.savefig(aside, dpi=130, format="png"))


def draw_curves(runs: Mapping[str, Sequence[RunRecord]], folder: Path, title: str) -> Path:
    """The picture, as `curves.png` in a folder."""
    if not drawings(runs):
        raise RunFolderError("no round has been measured yet: there is nothing to draw")
    png = folder / "curves.png"
    draw_png(runs, png, title)
    return png
