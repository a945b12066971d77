"""Figures of loss landscapes: one run, or two on the same axes and scale."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from gossamer.pages.figures import STYLE, WIDTHS, Look, Plot
from gossamer.studies.landscape import Landscape


def plot_landscapes(landscapes: Sequence[Landscape]) -> Plot:
    """Curves of one direction in one panel; of two directions, surfaces above and contours below, on one scale."""
    flat = landscapes[0].losses.ndim == 1
    width, height = (WIDTHS["column"], 4.6) if len(landscapes) == 1 else (WIDTHS["page"], 5.4)
    if flat:
        width, height = WIDTHS["column"], 2.4
    with matplotlib.rc_context(STYLE):
        figure = Plot(figsize=(width, height), layout="constrained")
        (_draw_lines if flat else _draw_surfaces)(figure, landscapes)
    return figure


def loss_words(landscape: Landscape) -> str:
    """What is drawn."""
    kind = "training" if landscape.settings.on == "train" else "test"
    return f"{kind} loss" + (" with weight decay" if landscape.settings.weight_decay else "")


def _losses(landscapes: Sequence[Landscape]) -> tuple[float, float, bool]:
    """The least and the highest finite loss, and whether they span more than a factor of 20, as for a log scale."""
    known = np.concatenate([each.losses[np.isfinite(each.losses)] for each in landscapes])
    low, high = float(known.min()), float(known.max())
    return low, high if high > low else low + 1e-12, low > 0 and high > 20 * low


def _draw_lines(figure: Plot, landscapes: Sequence[Landscape]) -> None:
    axes = figure.add_subplot()
    for number, each in enumerate(landscapes):
        look, label = Look.of(number), f"{each.label}: {each.centre:.3g} at the model"
        axes.plot(each.settings.grid.axis, each.losses, linestyle=look.dash, color=look.colour, label=label)
    if _losses(landscapes)[2]:
        axes.set_yscale("log")
    axes.set_xlabel("along a random direction (1 = filters)")
    axes.set_ylabel(loss_words(landscapes[0]))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    figure.legend(loc="outside lower left", ncols=1)


def _draw_surfaces(figure: Plot, landscapes: Sequence[Landscape]) -> None:
    low, high, logarithmic = _losses(landscapes)
    norm = LogNorm(low, high) if logarithmic else Normalize(low, high)
    levels = np.geomspace(low, high, 18) if logarithmic else np.linspace(low, high, 18)
    heights = np.log10 if logarithmic else np.asarray
    count = len(landscapes)
    for number, each in enumerate(landscapes):
        axis = np.array(each.settings.grid.axis)
        y, x = np.meshgrid(axis, axis)
        losses = np.where(np.isfinite(each.losses), each.losses, high)
        surface: Any = figure.add_subplot(2, count, number + 1, projection="3d")
        stride = max(1, len(axis) // 50)
        surface.plot_surface(
            x, y, heights(losses), facecolors=ScalarMappable(norm, "viridis").to_rgba(losses), rstride=stride,
            cstride=stride, linewidth=0, antialiased=True, shade=False,
        )  # fmt: skip
        surface.set_zlim(heights(low), heights(high))
        if logarithmic:
            surface.zaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
            surface.zaxis.set_major_formatter(FuncFormatter(lambda value, _: f"$10^{{{value:.0f}}}$"))
        surface.set_title(each.label, loc="center")
        surface.tick_params(labelsize=6, pad=0)
        for across in (surface.xaxis, surface.yaxis):
            across.set_major_locator(MaxNLocator(nbins=3))
        surface.view_init(elev=28, azim=-58)
        contours = figure.add_subplot(2, count, count + number + 1)
        contours.contourf(x, y, losses, levels=levels, norm=norm, cmap="viridis", extend="neither")
        contours.contour(x, y, losses, levels=levels, norm=norm, colors="white", linewidths=0.4)
        contours.plot(0, 0, "+", color="white", markersize=8)
        contours.set_title(f"{each.centre:.3g} at the model (+)", loc="center")
        contours.set_aspect("equal")
        contours.grid(visible=False)
        contours.set_xlabel("first direction")
        contours.set_ylabel("second direction" if number == 0 else "")
    bar = figure.colorbar(ScalarMappable(norm, "viridis"), ax=list(figure.axes), shrink=0.6, pad=0.02)
    bar.set_label(loss_words(landscapes[0]))
    if logarithmic:
        bar.locator = LogLocator(numticks=8)
        bar.update_ticks()
    bar.outline.set_visible(False)
