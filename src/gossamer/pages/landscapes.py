"""Figures of loss landscapes: one run, or two on the same axes and scale."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.errors import ExperimentError
from gossamer.runs.files import replace_file
from gossamer.studies.landscape import Landscape

SUFFIXES = (".png", ".svg", ".pdf")
COLOURS = ("#0072B2", "#D55E00")


def check_suffix(path: Path) -> None:
    """Refuse a figure of an unknown kind, before anything is computed."""
    if path.suffix.lower() not in SUFFIXES:
        raise ExperimentError(f"{path}: a figure is written as {', '.join(SUFFIXES)}; '{path.suffix}' is none of them.")


def draw_landscapes(landscapes: Sequence[Landscape], path: Path) -> None:
    """Curves of one direction in one panel; of two directions, surfaces above and contours below, on one scale."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    flat = landscapes[0].losses.ndim == 1
    width = 5.4 if flat else 4.4 * len(landscapes) + 0.9
    figure = Figure(figsize=(width, 3.8 if flat else 7.4), layout="constrained")
    FigureCanvasAgg(figure)
    (_draw_lines if flat else _draw_surfaces)(figure, landscapes)
    replace_file(path, lambda aside: figure.savefig(aside, dpi=150, format=path.suffix.lower()[1:]))


def loss_words(landscape: Landscape) -> str:
    """What is drawn."""
    kind = "training" if landscape.settings.on == "train" else "test"
    return f"{kind} loss" + (" with weight decay" if landscape.settings.weight_decay else "")


def _draw_lines(figure: Any, landscapes: Sequence[Landscape]) -> None:
    axes = figure.add_subplot()
    for number, each in enumerate(landscapes):
        label = f"{each.label}: {each.centre:.3g} at the model"
        axes.plot(each.settings.grid.axis, each.losses, ("-", "--")[number], color=COLOURS[number], label=label)
    _scale(axes, landscapes)
    axes.set_xlabel("along a random direction (1 = length of the filters)")
    axes.set_ylabel(loss_words(landscapes[0]))
    axes.grid(True, color="#e6e6e6", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)


def _scale(axes: Any, landscapes: Sequence[Landscape]) -> None:
    """A logarithmic axis where losses span more than a factor of 20."""
    known = np.concatenate([each.losses[np.isfinite(each.losses)] for each in landscapes])
    if known.min() > 0 and known.max() > 20 * known.min():
        axes.set_yscale("log")


def _draw_surfaces(figure: Any, landscapes: Sequence[Landscape]) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

    known = np.concatenate([each.losses[np.isfinite(each.losses)] for each in landscapes])
    low, high = float(known.min()), float(known.max())
    logarithmic = low > 0 and high > 20 * low
    high = high if high > low else low + 1e-12
    norm = LogNorm(low, high) if logarithmic else Normalize(low, high)
    levels = np.geomspace(low, high, 18) if logarithmic else np.linspace(low, high, 18)
    heights = np.log10 if logarithmic else np.asarray
    count = len(landscapes)
    for number, each in enumerate(landscapes):
        axis = np.array(each.settings.grid.axis)
        y, x = np.meshgrid(axis, axis)
        losses = np.where(np.isfinite(each.losses), each.losses, high)
        surface = figure.add_subplot(2, count, number + 1, projection="3d")
        stride = max(1, len(axis) // 50)
        surface.plot_surface(
            x, y, heights(losses), facecolors=ScalarMappable(norm, "viridis").to_rgba(losses), rstride=stride,
            cstride=stride, linewidth=0, antialiased=True, shade=False,
        )  # fmt: skip
        surface.set_zlim(heights(low), heights(high))
        if logarithmic:
            surface.zaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
            surface.zaxis.set_major_formatter(FuncFormatter(lambda value, _: f"$10^{{{value:.0f}}}$"))
        surface.set_title(each.label, fontsize=11)
        surface.tick_params(labelsize=7)
        for across in (surface.xaxis, surface.yaxis):
            across.set_major_locator(MaxNLocator(nbins=3))
        surface.view_init(elev=28, azim=-58)
        contours = figure.add_subplot(2, count, count + number + 1)
        contours.contourf(x, y, losses, levels=levels, norm=norm, cmap="viridis", extend="neither")
        contours.contour(x, y, losses, levels=levels, norm=norm, colors="white", linewidths=0.4)
        contours.plot(0, 0, "+", color="white", markersize=9)
        contours.set_title(f"{each.centre:.3g} at the model (+)", fontsize=9)
        contours.set_aspect("equal")
        contours.set_xlabel("first direction")
        contours.set_ylabel("second direction")
    bar = figure.colorbar(ScalarMappable(norm, "viridis"), ax=list(figure.axes), shrink=0.6, pad=0.02)
    bar.set_label(loss_words(landscapes[0]))
    if logarithmic:
        bar.locator = LogLocator(numticks=8)
        bar.update_ticks()
    bar.outline.set_visible(False)
