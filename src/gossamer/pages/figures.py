"""Figures of runs, comparisons and partitions, in the width of a paper's column or page, as PNG, SVG or PDF."""

import io
import math
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from gossamer.data import PartitionSummary
from gossamer.errors import ExperimentError, GossamerError, RunFolderError, did_you_mean
from gossamer.graphs import GRAPHS, as_graph, summarise
from gossamer.measure import METRICS
from gossamer.runs.files import make_folder, replace_file
from gossamer.runs.record import RunRecord
from gossamer.studies import Comparison, VariantResult
from gossamer.system.words import counted, size

#: The look of all figures.
STYLE: Any = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 8,
    "axes.labelsize": 8, "axes.titlesize": 8, "axes.titlelocation": "left", "xtick.labelsize": 7, "ytick.labelsize": 7,
    "legend.fontsize": 7, "legend.frameon": False, "legend.handlelength": 3.2, "figure.titlesize": 9,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6, "axes.axisbelow": True,
    "axes.grid": True, "grid.color": "#e4e4e4", "grid.linewidth": 0.6, "axes.formatter.useoffset": False,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "text.usetex": False, "savefig.dpi": 200,
    "pdf.fonttype": 42,  # fonts that publishers accept
    "svg.hashsalt": "gossamer",  # the same figure is the same file
}  # fmt: skip
#: Colours that colour-blind readers can tell apart (Okabe and Ito, without the yellow, which white paper swallows).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#333333")
#: Colours, dashes and markers have cycles of different lengths: no two of 28 lines look the same, also in grey.
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.6, 1.2, 1.6)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
#: Widths in inches: a column and a page of a two-column paper.
WIDTHS = {"column": 3.3, "page": 6.9}
SUFFIXES = (".png", ".svg", ".pdf")

Band = Literal["deviation", "range"]
BANDS = {"deviation": "± one standard deviation", "range": "minimum to maximum"}

#: What a metric can be drawn against in the course of a run: the metric that counts it, and its words on an axis.
PROGRESS = {
    "round": ("round", "round"),
    "bytes": ("bytes_total", "sent by all, both ways"),
    "messages": ("messages_total", "messages sent by all"),
    "gradients": ("gradients_total", "mini-batch gradients of all clients"),
    "seconds": ("", "seconds"),
}
#: The clients' spread: the mean of their own models, with a band from the worst to the best.
SPREADS = {
    name: tuple(f"{name}_{which}" for which in ("mean", "worst", "best")) for name in ("client_accuracy", "client_loss")
}
WORDS = {
    "consensus": "consensus distance",
    "local_loss": "training loss in local steps",
    "client_accuracy_mean": "accuracy of clients, mean",
    "client_accuracy_worst": "accuracy of the worst client",
    "client_accuracy_best": "accuracy of the best client",
    "client_loss_mean": "test loss of clients, mean",
    "client_loss_worst": "test loss of the worst client",
    "client_loss_best": "test loss of the best client",
    "client_accuracy": "accuracy of clients",
    "client_loss": "test loss of clients",
}


class Plot(Figure):
    """A figure that a notebook shows, and that is saved whole or not at all."""

    def save(self, path: Path | str) -> Path:
        """Write the figure to a .png, .svg or .pdf file."""
        path = checked_path(path)
        content = self.render(path.suffix.lower()[1:])
        make_folder(path.parent)
        replace_file(path, lambda aside: _write(aside, content))
        return path

    def render(self, kind: str) -> bytes:
        """The file's content: "png", "svg" or "pdf"."""
        file = io.BytesIO()
        undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
        with matplotlib.rc_context(STYLE), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # of a label in another script
            self.savefig(file, format=kind, metadata=undated)
        return file.getvalue()

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        width, height = (round(96 * inches) for inches in self.get_size_inches())
        return self.render("png"), {"width": width, "height": height}


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def checked_path(path: Path | str) -> Path:
    """The path of a figure; another suffix is refused."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise RunFolderError(f"{path}: a figure is written as {', '.join(SUFFIXES)}; '{path.suffix}' is none of them.")
    return path


class Look(NamedTuple):
    """How the lines of one label look."""

    colour: str
    dash: Any
    marker: str
    width: float

    @classmethod
    def of(cls, number: int) -> "Look":
        """Of lines with the same dashes the later is thinner, so that one on top of the other leaves both to see."""
        thinner = max(0.7, 1.7 - 0.4 * (number // len(DASHES)))
        return cls(
            COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)], MARKERS[number % len(MARKERS)], thinner
        )


class Curve(NamedTuple):
    """A metric of a variant: its mean over the seeds with a band, where every seed has it."""

    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    banded: bool

    @classmethod
    def of(cls, records: Sequence[RunRecord], metric: str, against: str = "round", band: Band = "deviation") -> "Curve":
        """Every point is a round: the mean of its values over the mean of what had been done by then."""
        middle, *ends = SPREADS.get(metric, (metric,))
        joined = pd.concat([_history(record, [middle, *ends], against) for record in records], axis=1, keys=records)
        joined = joined.dropna()
        scale = 100.0 if "accuracy" in metric or metric == "generalisation_gap" else 1.0

        def seeds(name: str) -> pd.DataFrame:
            return pd.DataFrame(joined.xs(name, axis=1, level=1))

        values = seeds(middle)
        if ends:
            low, high = sorted((seeds(end).mean(axis=1) for end in ends), key=lambda column: column.sum())
        elif band == "range":
            low, high = values.min(axis=1), values.max(axis=1)
        else:
            spread = values.std(axis=1, ddof=1).fillna(0)
            low, high = values.mean(axis=1) - spread, values.mean(axis=1) + spread
        x, mean = seeds("x").mean(axis=1), values.mean(axis=1)
        # To percent after the mean, as in tables: 61.25 % is rounded to one digit in both alike.
        mean, low, high = scale * mean, scale * low, scale * high
        return cls(x.to_list(), mean.to_list(), low.to_list(), high.to_list(), bool(ends) or len(records) > 1)


def _history(record: RunRecord, metrics: Sequence[str], against: str) -> pd.DataFrame:
    """Metrics by round, with what had been done by then as "x"."""
    if not set(metrics) <= set(record.metrics):
        return pd.DataFrame(columns=[*metrics, "x"], dtype=float)
    table = record.metrics.set_index("round")
    if against == "seconds":
        done = pd.Series([record.seconds_until(int(round)) for round in table.index], index=table.index)
    elif against == "round":
        done = pd.Series(table.index, index=table.index)
    else:
        done = table.get(PROGRESS[against][0], pd.Series(math.nan, index=table.index))
    return table[list(metrics)].assign(x=done).astype(float)


class Panel(NamedTuple):
    """One pair of axes: a metric, and what it is drawn against."""

    metric: str
    against: str


def plot(
    comparison: Comparison,
    metric: str | Sequence[str] | None = None,
    against: str | Sequence[str] = "round",
    *,
    band: Band = "deviation",
    width: str | float = "page",
    title: str = "",
    log: bool | None = None,
) -> Plot:
    """A figure of a comparison, one panel for each metric and each thing that it is drawn against.

    `metric` is any metric of the runs, or `client_accuracy` or `client_loss` for the clients' spread; default: the
    metric by which the runs are judged. `against` is "round", "bytes", "messages", "gradients" or "seconds"; or a swept
    key, over which the last values are a line if it is a number, else bars; or two of them with a comma between, for a
    heat map. `band` is "deviation" (one standard deviation) or "range" (minimum to maximum) over the seeds. `width` is
    "column", "page" or a number of inches. `log` says whether the metrics' axes are logarithmic; default: of losses and
    distances that span more than a decade.
    """
    metrics = [metric] if isinstance(metric, str) else list(metric or [comparison.score.key])
    things = [against] if isinstance(against, str) else list(against)
    panels = [Panel(metric, thing) for metric in metrics for thing in things]
    for panel in panels:
        check_panel(comparison, panel)
    if band not in get_args(Band):
        raise ExperimentError(f"band: {did_you_mean(band, get_args(Band))}")
    return _drawn(comparison, panels, band, _inches(width), title, log)


def overview(comparison: Comparison, title: str = "") -> Plot:
    """The score against rounds and bytes, the worst client, consensus and training loss: what was measured of these."""
    score = comparison.score
    keys = [score.key, *([score.worst] if score.worst else []), "consensus", "local_loss"]
    panels = [Panel(key, "round") for key in dict.fromkeys(keys) if measured(comparison, key)]
    if not panels:
        raise RunFolderError("no round has been measured yet: there is nothing to draw")
    panels.insert(1, Panel(score.key, "bytes"))
    return _drawn(comparison, panels, "deviation", WIDTHS["page"], title, None)


def sweep_figure(comparison: Comparison, title: str = "") -> Plot | None:
    """The score over what was swept: two numbers as a heat map, one as lines, graphs as bars; None if there are none of
    these."""
    numbers = [key for key in comparison.keys if _is_number(comparison, key)]
    against = ",".join(numbers[:2]) or ("graph" if "graph" in comparison.keys else "")
    if not against or not measured(comparison, comparison.score.key):
        return None
    return plot(comparison, against=against, title=title)


def measured(comparison: Comparison, metric: str) -> bool:
    """Whether any run has numbers for a metric."""
    key = SPREADS.get(metric, (metric,))[0]
    return any(not math.isnan(record.last(key)) for record in comparison.records)


def check_panel(comparison: Comparison, panel: Panel) -> None:
    """Refuse a metric that no run has, and things that nothing can be drawn against."""
    if not any(len(record.metrics) for record in comparison.records):
        raise RunFolderError("no round has been measured yet: there is nothing to draw")
    if not measured(comparison, panel.metric):
        known = [key for key in (*METRICS, *SPREADS) if key != "round" and measured(comparison, key)]
        raise ExperimentError(f"metric: no run has '{panel.metric}': {did_you_mean(panel.metric, known)}")
    keys = panel.against.split(",")
    if panel.against in PROGRESS or (set(keys) <= set(comparison.keys) and len(keys) == len(set(keys)) <= 2):
        return
    known = [*PROGRESS, *comparison.keys]
    unknown = next((key for key in keys if key not in known), None)
    if unknown is None:
        raise ExperimentError(f"against: '{panel.against}': should be one of {', '.join(known)}, or two swept keys")
    raise ExperimentError(f"against: unknown '{unknown}': {did_you_mean(unknown, known)}")


def _inches(width: str | float) -> float:
    try:
        inches = WIDTHS[width] if isinstance(width, str) and width in WIDTHS else float(width)
    except ValueError:
        inches = math.nan
    if not 2 <= inches <= 30:
        raise ExperimentError(f"width: should be column, page or a number of inches between 2 and 30 (got {width})")
    return inches


def _drawn(comparison: Comparison, panels: list[Panel], band: Band, width: float, title: str, log: bool | None) -> Plot:
    """The panels in rows, with one legend below them all."""
    cells = [cell for panel in panels for cell in _cells(comparison, panel)]
    across = 1 if width < 5 else min(2, len(cells))
    down = -(-len(cells) // across)
    labels = list(dict.fromkeys(label for _, group in cells for label in group))
    looks = {label: Look.of(number) for number, label in enumerate(labels)}
    with matplotlib.rc_context(STYLE):
        heading = fitted(title, width - 0.15, STYLE["figure.titlesize"])
        bars = any(_kind(comparison, panel) == "bars" for panel, _ in cells)
        handles = [_handle(comparison, label, looks[label], bars) for label in labels]
        note = _band_words(comparison, cells, band)
        legend = len(labels) > 1 or (labels != [""] and not title)
        panel_height = max(_height(comparison, panel, group, width / across) for panel, group in cells)
        # The legend has the place of a panel where one is free.
        spare = len(cells) < across * down and 0.17 * (len(labels) + 2) < panel_height
        room = width / across if spare else width
        names = [fitted(str(handle.get_label()), room - 0.75, STYLE["legend.fontsize"]) for handle in handles]
        columns = _legend_columns(names, room)
        rows = sum(1 + name.count("\n") for name in names) / columns if legend and not spare else 0
        height = down * panel_height + 0.145 * rows + 0.25 + 0.16 * (heading.count("\n") + 1 if heading else 0)
        figure = Plot(figsize=(width, height), layout="constrained")
        if heading:
            figure.suptitle(heading, x=0.01, ha="left")
        for number, (panel, group) in enumerate(cells, start=1):
            axes = figure.add_subplot(down, across, number)
            draw = {"progress": draw_progress, "line": draw_line, "bars": draw_bars, "heat": draw_heat}
            draw[_kind(comparison, panel)](axes, Scene(comparison, panel, group, looks, band, log))
        if legend:
            place: Any = figure.add_subplot(down, across, across * down) if spare else figure
            if spare:
                place.set_axis_off()
            place.legend(
                handles, names, loc="upper left" if spare else "outside lower left", ncols=columns, title=note or None,
                alignment="left", title_fontsize=STYLE["legend.fontsize"], columnspacing=1.2, labelspacing=0.35,
            )  # fmt: skip
        elif note:
            figure.supxlabel(note, fontsize=STYLE["legend.fontsize"], x=0.01, ha="left")
    return figure


#: What a panel draws: the variants of each line's or bar's label.
Group = dict[str, list[VariantResult]]


class Scene(NamedTuple):
    """Everything that a panel is drawn from."""

    comparison: Comparison
    panel: Panel
    group: Group
    looks: dict[str, Look]
    band: Band
    log: bool | None


def _kind(comparison: Comparison, panel: Panel) -> Literal["progress", "line", "bars", "heat"]:
    if panel.against in PROGRESS:
        return "progress"
    if "," in panel.against:
        return "heat"
    return "line" if _is_number(comparison, panel.against) else "bars"


def _is_number(comparison: Comparison, key: str) -> bool:
    return all(isinstance(variant.values.get(key), int | float) for variant in comparison.variants.values())


def _cells(comparison: Comparison, panel: Panel) -> list[tuple[Panel, Group]]:
    """A panel with what it draws; a heat map for each combination of the other keys."""
    if panel.against in PROGRESS:
        return [(panel, {label: [variant] for label, variant in comparison.variants.items()})]
    keys = panel.against.split(",")
    group: Group = {}
    for variant in comparison.variants.values():
        # A number alone does not say what it is.
        others = (
            value if isinstance(value, str) else f"{key}={value}"
            for key, value in variant.values.items()
            if key not in keys
        )
        group.setdefault(", ".join(others), []).append(variant)
    return [(panel, group)] if len(keys) == 1 else [(panel, {label: some}) for label, some in group.items()]


def _height(comparison: Comparison, panel: Panel, group: Group, width: float) -> float:
    """The height of a panel: bars need room for each of them."""
    if _kind(comparison, panel) != "bars":
        return 0.68 * min(width, 5)
    return 0.5 + max(1.0, sum(0.13 * len(some) for some in group.values()) + 0.12 * max(map(len, group.values())))


def _handle(comparison: Comparison, label: str, look: Look, bars: bool) -> Any:
    """The legend's line of a label, which says if runs diverged."""
    variant = comparison.variants.get(label)
    name = _named(label, list(variant.runs.values()) if variant else [])
    if bars:
        return Patch(color=look.colour, label=name)
    return Line2D(
        [], [], color=look.colour, linestyle=look.dash, linewidth=look.width, marker=look.marker, markersize=3.5,
        label=name,
    )  # fmt: skip


def _named(label: str, records: Sequence[RunRecord]) -> str:
    lost = sum(record.diverged for record in records)
    if not lost:
        return label
    return f"{label} (diverged)" if lost == len(records) else f"{label} ({lost} of {len(records)} seeds diverged)"


def _band_words(comparison: Comparison, cells: Sequence[tuple[Panel, Group]], band: Band) -> str:
    """What the bands are, if there are any."""
    counts = {len(variant.runs) for variant in comparison.variants.values()}
    over = f"{counts.pop()} seeds" if len(counts) == 1 else "the seeds"
    kinds = {_kind(comparison, panel) for panel, _ in cells}
    several = any(len(variant.runs) > 1 for variant in comparison.variants.values())
    words = [f"mean over {over}"] if several else []
    if several and any(panel.metric not in SPREADS for panel, _ in cells) and kinds != {"heat"}:
        words.append(f"{'bands' if 'progress' in kinds else 'error bars'}: {BANDS[band]}")
    if any(panel.metric in SPREADS for panel, _ in cells) and kinds != {"heat"}:
        words.append("bands of clients: worst to best")
    return "; ".join(words)


def draw_progress(axes: Axes, scene: Scene) -> None:
    """Curves in the course of the runs. A cross ends the curve of a variant that diverged."""
    comparison, panel, group, looks, band, log = scene
    records = {label: list(some[0].runs.values()) for label, some in group.items()}
    curves = {label: Curve.of(runs, panel.metric, panel.against, band) for label, runs in records.items()}
    lost = {label for label, runs in records.items() if any(run.diverged for run in runs)}
    bottom = _metric_axis(axes, comparison, panel.metric, curves, lost, log)
    for number, (label, curve) in enumerate(curves.items()):
        look = looks[label]
        low, mean, high = (
            [max(value, bottom) for value in each] if bottom is not None else each
            for each in (curve.low, curve.mean, curve.high)
        )
        # A few markers, at other places on every line.
        step = max(1, len(mean) // 6)
        axes.plot(
            curve.x, mean, color=look.colour, linestyle=look.dash, linewidth=look.width,
            marker=look.marker if len(curves) > 1 or len(mean) < 2 else None, markersize=3, markeredgewidth=0,
            markevery=(number * step // max(1, len(curves)), step), clip_on=True,
        )  # fmt: skip
        if curve.banded and len(mean) == 1:  # a band of no width is not to be seen
            axes.vlines(curve.x, low, high, color=look.colour, alpha=0.4, linewidth=3)
        elif curve.banded:
            axes.fill_between(curve.x, low, high, color=look.colour, alpha=0.13, linewidth=0)
        if label in lost and mean:
            axes.plot(curve.x[-1], mean[-1], "x", color=look.colour, markersize=6, markeredgewidth=1.6, zorder=5)
    axes.set_xlabel(PROGRESS[panel.against][1])
    furthest = max((curve.x[-1] for curve in curves.values() if curve.x), default=1.0)
    axes.set_xlim(0, 1.03 * max(furthest, 1e-9))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=panel.against not in ("seconds", "bytes")))
    if panel.against == "bytes":
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size(value)))
    elif panel.against in ("messages", "gradients"):
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size(value).removesuffix("B").strip()))


def draw_line(axes: Axes, scene: Scene) -> None:
    """The last values against a swept number, as in a study of sensitivity. A cross stands for runs that diverged."""
    comparison, panel, group, looks, band, log = scene
    key = panel.against
    curves = {}
    for label, some in group.items():
        ordered = sorted(some, key=lambda variant: float(variant.values[key]))
        mean, low, high = map(list, zip(*(_last(variant, panel.metric, band) for variant in ordered), strict=True))
        curves[label] = Curve([float(v.values[key]) for v in ordered], mean, low, high, banded=True)
    bottom = _metric_axis(axes, comparison, panel.metric, curves, set(), log)
    values = sorted({x for curve in curves.values() for x in curve.x})
    if values[0] > 0 and values[-1] >= 20 * values[0]:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    for label, curve in curves.items():
        look = looks[label]
        whole = [index for index, mean in enumerate(curve.mean) if not math.isnan(mean)]
        x, mean, low, high = ([each[index] for index in whole] for each in curve[:4])
        if bottom is not None:
            mean, low = ([max(value, bottom) for value in each] for each in (mean, low))
        ends = np.maximum(0, [np.subtract(mean, low), np.subtract(high, mean)])
        axes.errorbar(
            x, mean, ends, color=look.colour, linestyle=look.dash, linewidth=look.width, marker=look.marker,
            markersize=3.5, capsize=2, elinewidth=0.8,
        )  # fmt: skip
        gone = [x for x, mean in zip(curve.x, curve.mean, strict=True) if math.isnan(mean)]
        if not gone:
            continue
        axes.plot(
            gone, [0.04] * len(gone), "x", color=look.colour, markersize=5, markeredgewidth=1.4,
            transform=axes.get_xaxis_transform(), clip_on=False,
        )  # fmt: skip
    if any(math.isnan(mean) for curve in curves.values() for mean in curve.mean):
        axes.annotate("×: diverged", (1, 1), xycoords="axes fraction", ha="right", va="bottom", fontsize=7)
    axes.set_xlabel(_escaped(key))
    axes.set_ylabel(f"last {axes.get_ylabel()}")
    axes.set_xticks(values if len(values) <= 8 else values[:: -(-len(values) // 8)])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def draw_bars(axes: Axes, scene: Scene) -> None:
    """The last values for each value of a key that is no number; of graphs, with their λ."""
    comparison, panel, group, looks, band, log = scene
    key = panel.against
    values = list(dict.fromkeys(variant.values[key] for some in group.values() for variant in some))
    names, thick = [], 0.8 / len(group)
    for place, value in enumerate(values):
        first = next(v for some in group.values() for v in some if v.values[key] == value)
        names.append(_escaped(f"{value}{_lambda(first) if key == 'graph' else ''}"))
        for row, (label, some) in enumerate(group.items()):
            for variant in (each for each in some if each.values[key] == value):
                mean, low, high = _last(variant, panel.metric, band)
                where = place - 0.4 + (row + 0.5) * thick
                if math.isnan(mean):
                    axes.text(0, where, " × diverged", va="center", fontsize=6, color=looks[label].colour)
                    continue
                axes.barh(where, mean, 0.9 * thick, color=looks[label].colour)
                if len(variant.runs) > 1:
                    ends = [[max(0, mean - low)], [max(0, high - mean)]]
                    axes.errorbar(mean, where, xerr=ends, color="#222222", elinewidth=0.8, capsize=1.5)
                axes.text(high, where, f"  {_value(panel.metric, mean)}", va="center", ha="left", fontsize=6)
    axes.set_yticks(range(len(values)), names)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"last {_words(comparison, panel.metric)}")
    if log:
        axes.set_xscale("log")
    axes.margins(x=0.12)


def draw_heat(axes: Axes, scene: Scene) -> None:
    """The last values over two swept keys; a cell without a number is grey."""
    comparison, panel, group, _, band, log = scene
    ((label, some),) = group.items()
    down, along = panel.against.split(",")
    rows, columns = (_ordered(variant.values[key] for variant in some) for key in (down, along))
    cells = np.full((len(rows), len(columns)), math.nan)
    for variant in some:
        cells[rows.index(variant.values[down]), columns.index(variant.values[along])] = _last(
            variant, panel.metric, band
        )[0]
    axes.set_facecolor("#dddddd")
    positive = cells[cells > 0]
    scale = "log" if log and positive.size else "linear"
    image = axes.imshow(np.ma.masked_invalid(cells), aspect="auto", cmap="viridis", origin="lower", norm=scale)
    axes.grid(visible=False)
    axes.set_xticks(range(len(columns)), [_escaped(f"{value}") for value in columns])
    axes.set_yticks(range(len(rows)), [_escaped(f"{value}") for value in rows])
    if max(len(str(value)) for value in columns) * len(columns) > 40:
        axes.tick_params(axis="x", labelrotation=30)
    axes.set_xlabel(_escaped(along))
    axes.set_ylabel(_escaped(down))
    shade: Any = image.norm
    if cells.size <= 80:
        for (row, column), value in zip(np.ndindex(cells.shape), map(float, cells.flat), strict=True):
            dark = not math.isnan(value) and shade(value) < 0.6
            text = "×" if math.isnan(value) else _value(panel.metric, value)
            axes.text(column, row, text, ha="center", va="center", fontsize=6, color="white" if dark else "#111111")
    axes.set_title(_escaped(fitted(label, 2.6, 8)))
    bar = axes.figure.colorbar(image, ax=axes, pad=0.02, fraction=0.06)
    bar.set_label(f"last {_words(comparison, panel.metric)}")
    bar.outline.set_visible(False)


def _ordered(values: Iterable[str | int | float]) -> list[str | int | float]:
    """Numbers by size, names as they come."""
    each = list(dict.fromkeys(values))
    return sorted(each) if all(isinstance(value, int | float) for value in each) else each


def _last(variant: VariantResult, metric: str, band: Band) -> tuple[float, float, float]:
    """The last values of a variant: their mean and the ends of its error bar; not a number if a seed diverged."""
    records = list(variant.runs.values())
    curve = Curve.of(records, metric, "round", band)
    if not curve.x or any(record.diverged for record in records):
        return math.nan, math.nan, math.nan
    return curve.mean[-1], curve.low[-1], curve.high[-1]


def _metric_axis(
    axes: Axes, comparison: Comparison, metric: str, curves: dict[str, Curve], lost: set[str], log: bool | None
) -> float | None:
    """Set up the axis of a metric; gives the bottom of a logarithmic one, where smaller values are drawn.

    The axis spans the variants that did not diverge, if there are any.
    """
    axes.set_ylabel(_words(comparison, metric))
    kept = [curve for label, curve in curves.items() if label not in lost and curve.x] or list(curves.values())
    means = [value for curve in kept for value in curve.mean if math.isfinite(value)]
    positive = [value for value in means if value > 0]
    falls = METRICS[metric].direction == "down" if metric in METRICS else metric == "client_loss"
    if log is None:
        log = falls and bool(positive) and max(positive) > 10 * min(positive)
    if log and positive:
        bottom, top = min(positive) / 1.5, max(positive) * 1.5
        axes.set_yscale("log")
        if top < 200 * bottom:
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        if min(means) > 0:
            axes.set_ylim(bottom, top)
            return bottom
        bottom /= 3  # where 0 is drawn
        axes.set_ylim(bottom / (top / bottom) ** 0.04, top)
        axes.set_yticks([tick for tick in axes.get_yticks() if min(positive) / 1.5 < tick <= top])
        axes.annotate(
            "0", (0, bottom), (-5, 0), xycoords=("axes fraction", "data"), textcoords="offset points", ha="right",
            va="center", fontsize=STYLE["ytick.labelsize"],
        )  # fmt: skip
        return bottom
    values = [v for curve in kept for each in (curve.low, curve.high) for v in each if math.isfinite(v)]
    if values:
        low, high = min(values), max(values)
        room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
        axes.set_ylim(low - room, high + room)
    return None


def _value(metric: str, value: float) -> str:
    """A value inside a panel."""
    return f"{value:.1f}" if "accuracy" in metric else f"{value:.3g}"


def _words(comparison: Comparison, metric: str) -> str:
    """A metric on an axis."""
    own = comparison.score
    words = WORDS.get(metric) or (own.words if metric == own.key else metric.replace("_", " "))
    words = words if words != "accuracy" else "test accuracy"
    return _escaped(f"{words} (%)" if "accuracy" in metric else f"{words} (points)" if "gap" in metric else words)


def _lambda(variant: VariantResult) -> str:
    """The λ of a variant's graph in its first run, where it has one."""
    record = next(iter(variant.runs.values()))
    try:
        graph = as_graph(GRAPHS.build(record.experiment["graph"]))
        found = summarise(graph.bind(record.experiment["clients"], record.experiment["seed"]))
    except GossamerError:  # for example an object that no file can express
        return ""
    if found.period != 1 and found.exact_after is not None:
        return f"\nexact after {counted(found.exact_after, 'step')}"
    value = found.lambda_ if found.period == 1 else found.contraction
    return "" if value is None else f"\nλ = {value:.3g}{'' if found.period == 1 else ' per step'}"


def _legend_columns(names: Sequence[str], width: float) -> int:
    """As many columns as fit."""
    widest = max(text_width(line, STYLE["legend.fontsize"]) for name in names for line in name.split("\n"))
    return max(1, min(len(names), 4, int((width - 0.1) / (widest + 0.6))))


def text_width(text: str, points: float) -> float:
    """The width of a line of text in inches."""
    return float(TextPath((0, 0), _escaped(text) or " ", size=points).get_extents().width) / 72 if text.strip() else 0.0


def fitted(text: str, width: float, points: float) -> str:
    """Text in lines that are no wider than so many inches, broken at spaces, else anywhere."""
    lines: list[str] = []
    for word in text.split(" "):
        if lines and text_width(f"{lines[-1]} {word}", points) <= width:
            lines[-1] += f" {word}"
            continue
        while len(word) > 1 and text_width(word, points) > width:
            cut = next(n for n in range(len(word) - 1, 0, -1) if n == 1 or text_width(word[:n], points) <= width)
            lines.append(word[:cut])
            word = word[cut:]
        lines.append(word)
    return _escaped("\n".join(lines))


def _escaped(text: str) -> str:
    """Text that is no formula, and that a legend does not leave out for its underscore."""
    text = text.replace(r"\$", "$").replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def plot_partition(summary: PartitionSummary) -> Plot:
    """A heat map of labels by client."""
    clients, classes = summary.labels.shape
    # Near-square cells while that gives a figure of a sane size.
    width, height = np.clip(1.7 + 0.12 * clients, 3.3, 10), np.clip(1.2 + 0.19 * classes, 2.0, 7)
    with matplotlib.rc_context(STYLE):
        figure = Plot(figsize=(float(width), float(height)), layout="constrained")
        axes = figure.add_subplot()
        # No sample at all is grey, so that one sample can be told from none.
        axes.set_facecolor("#eeeeee")
        axes.grid(visible=False)
        shown = np.ma.masked_equal(summary.labels.T, 0)
        image = axes.imshow(shown, aspect="auto", cmap="YlGnBu", interpolation="nearest", origin="lower", vmin=0)
        axes.set_xlabel("client")
        axes.set_ylabel("label")
        title = f"{summary.sizes.sum():,} samples, {clients:,} clients, heterogeneity {summary.heterogeneity:.2f}"
        figure.suptitle(fitted(title, float(width) - 0.15, STYLE["figure.titlesize"]), x=0.01, ha="left")
        for axis, length in ((axes.xaxis, clients), (axes.yaxis, classes)):
            axis.set_major_locator(MaxNLocator(nbins=min(length, 20), integer=True))
        # Thin white lines between cells read as a table; with very many cells they would be all there is to see.
        if clients * classes <= 5_000:
            axes.set_xticks(np.arange(clients + 1) - 0.5, minor=True)
            axes.set_yticks(np.arange(classes + 1) - 0.5, minor=True)
            axes.grid(which="minor", color="white", linewidth=0.8)
            axes.tick_params(which="minor", length=0)
        axes.spines[:].set_visible(False)
        bar = figure.colorbar(image, ax=axes, pad=0.02, fraction=0.05)
        bar.set_label("samples")
        bar.outline.set_visible(False)
        bar.locator = MaxNLocator(nbins=6, integer=True)
    return figure
