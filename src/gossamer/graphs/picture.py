"""Pictures of graphs: one panel for a static graph, a few side by side for one that changes."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.spatial import KDTree

from gossamer.errors import GraphError
from gossamer.graphs.layout import Array, circle, is_on_circle, layout
from gossamer.graphs.network import Network, links
from gossamer.graphs.spectrum import GraphSummary, summarise
from gossamer.system.words import counted

SUFFIXES = (".png", ".svg", ".pdf")
PANELS = 4
#: The largest number of clients whose nodes are numbered.
LABELLED = 200
#: The number of links beyond which they are drawn straight, to save memory.
MANY = 20_000

INK, NODE, IDLE, SERVER, PAPER = "#1d2433", "#20405f", "#c3ccd6", "#d1495b", "#ffffff"
SPAN = LinearSegmentedColormap.from_list("span", ["#2a9d8f", "#3d6fb6", "#8e5bb5"])  # short links to long ones


def draw(network: Network, path: str | Path) -> Path:
    """Draw `network` to a png, svg or pdf file; a changing graph shows its first steps side by side."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise GraphError(f"cannot draw to {path}: the name must end in {', '.join(SUFFIXES)} (got '{path.suffix}')")
    steps = range(min(network.period or PANELS, PANELS))
    side = 6.4 if len(steps) == 1 else 4.2
    figure = Figure(figsize=(side * len(steps), side + 0.8), facecolor=PAPER)
    figure.set_layout_engine("constrained", h_pad=0.12, w_pad=0.08)
    title, note = _title(network, summarise(network), len(steps))
    figure.suptitle(title, fontsize=17, fontweight="bold", color=INK)
    figure.supxlabel(note, fontsize=11, color=INK, alpha=0.75)
    places = layout(network)
    for step in steps:
        axes = figure.add_subplot(1, len(steps), step + 1)
        axes.set_aspect("equal")
        axes.set_axis_off()
        if len(steps) > 1:
            axes.set_title(f"step {step}", fontsize=11, color=INK)
        if network.has_server:
            _draw_server(axes, network, places, step, side)
        else:
            _draw_links(axes, network, places, step, side)
        axes.margins(0.06)
        axes.autoscale_view()
    try:
        figure.savefig(path, dpi=160, format=path.suffix.lower()[1:])
    except OSError as error:
        raise GraphError(f"cannot draw to {path}: {error.strerror or error}") from None
    return path


def _title(network: Network, summary: GraphSummary, panels: int) -> tuple[str, str]:
    facts = []
    if network.period not in (1, panels):
        facts.append(f"first {panels} of {network.period} steps" if network.period else "drawn anew at every step")
    if network.period == 1 and summary.lambda_ is not None:
        facts.append(f"λ = {summary.lambda_:.6f}".rstrip("0").rstrip("."))
    elif summary.contraction:
        facts.append(f"effective λ = {summary.contraction:.3f} per step")
    if summary.exact_after is not None:
        facts.append(f"exact mean after {counted(summary.exact_after, 'step')}")
    elif summary.rounds_to_tenth is not None:
        facts.append(f"a tenth of the disagreement after {counted(summary.rounds_to_tenth, 'step')}")
    return f"{network.name} · {counted(network.clients, 'client')}", " · ".join(facts)


def _draw_links(axes: Axes, network: Network, places: Array, step: int, side: float) -> None:
    receiver, sender = links(network.matrix(step)).tocoo().coords
    busy = np.isin(np.arange(network.clients), np.concatenate([receiver, sender]))
    directed = not network.claims.undirected
    if not directed:
        once = receiver < sender
        receiver, sender = receiver[once], sender[once]
    start, end, wrapped = _wrap(network, places[sender], places[receiver])
    span = np.linalg.norm(end - start, axis=1) / max(np.ptp(places, axis=0).max(), 1e-9)
    # The more links, the finer they are drawn, so that a dense graph stays readable.
    fine = _fineness(len(start))
    colours = SPAN(np.minimum(1, span))
    colours[:, 3] = np.where(wrapped, 0.45, 0.25 + 0.65 * fine)
    # On a circle, links bend inwards, except between adjacent clients, so that they do not overlap along the rim.
    middle, curved = (start + end) / 2, is_on_circle(network) and len(start) <= MANY
    if curved:
        apart = np.abs(receiver - sender)
        middle[np.minimum(apart, network.clients - apart) > 1] *= 0.65
    curves = _curves(start, middle, end) if curved else np.stack([start, end], axis=1)
    axes.add_collection(LineCollection(list(curves), colors=colours, linewidths=0.4 + 1.6 * fine, zorder=1))
    radius = _radius(places)
    if directed:
        towards = middle + (end - start) * 1e-6  # the middle alone gives no direction if it is the centre
        heads = _heads(towards, end, radius, size=radius * (0.25 + 0.35 * fine))
        colours[:, 3] = 0.5 + 0.5 * fine
        axes.add_collection(PolyCollection(list(heads), facecolors=colours, edgecolors="none", zorder=2))
    _draw_clients(axes, places, radius, busy, side)


def _fineness(count: int) -> float:
    """One for a handful of links, falling towards a tenth for thousands."""
    return float(np.clip(7 / np.sqrt(max(count, 1)), 0.1, 1))


def _wrap(network: Network, start: Array, end: Array) -> tuple[Array, Array, NDArray[np.bool_]]:
    """On a torus, a link around the border is drawn as two stubs, one on each side."""
    away = end - start
    wrapped = (np.abs(away) > 1.5).any(axis=1) & (len(network.shape) == 2)
    stub = -0.55 * np.sign(away[wrapped])
    starts = np.concatenate([start[~wrapped], start[wrapped], end[wrapped]])
    ends = np.concatenate([end[~wrapped], start[wrapped] + stub, end[wrapped] - stub])
    return starts, ends, np.arange(len(starts)) >= (~wrapped).sum()


def _draw_server(axes: Axes, network: Network, places: Array, step: int, side: float) -> None:
    called = np.flatnonzero(network.sends(step))
    fine = _fineness(len(called))
    rays = [np.stack([np.zeros(2), places[client]]) for client in called]
    axes.add_collection(LineCollection(rays, colors=SPAN(0.0), alpha=0.35 + 0.5 * fine, linewidths=0.5 + 1.5 * fine))
    _draw_clients(axes, places, _radius(places), np.isin(np.arange(network.clients), called), side)
    axes.scatter([0], [0], s=900, marker="s", color=SERVER, edgecolors=PAPER, linewidths=2, zorder=4)
    axes.annotate("server", (0, 0), color=PAPER, ha="center", va="center", fontsize=7, fontweight="bold", zorder=5)


def _draw_clients(axes: Axes, places: Array, radius: float, busy: NDArray[np.bool_], side: float) -> None:
    """A disc for each client, pale for those that neither send nor receive."""
    discs = places[:, None, :] + radius * circle(40)[None, :, :]
    colours = np.where(busy, NODE, IDLE)
    axes.add_collection(PolyCollection(list(discs), facecolors=colours, edgecolors=PAPER, linewidths=0.8, zorder=3))
    if len(places) > LABELLED:
        return
    extent = np.ptp(places, axis=0).max() + 2 * radius
    size = min(11.0, 72 * side * 0.9 * radius / extent)  # points: the height of a digit fits its disc
    for client, (x, y) in enumerate(places):
        ink = PAPER if busy[client] else INK
        axes.annotate(str(client), (x, y), color=ink, ha="center", va="center", fontsize=size, zorder=5)


def _curves(start: Array, middle: Array, end: Array) -> Array:
    """Quadratic curves from start to end, drawn towards the middle."""
    t = np.linspace(0, 1, 25)[None, :, None]
    return (1 - t) ** 2 * start[:, None] + 2 * t * (1 - t) * middle[:, None] + t**2 * end[:, None]


def _heads(middle: Array, end: Array, radius: float, size: float) -> Array:
    """A small triangle at the end of each link, its tip on the rim of the receiver."""
    along = (end - middle) / np.linalg.norm(end - middle, axis=1, keepdims=True)
    across = np.stack([-along[:, 1], along[:, 0]], axis=1)
    tip = end - radius * along
    return np.stack([tip, tip - size * (2 * along + 0.7 * across), tip - size * (2 * along - 0.7 * across)], axis=1)


def _radius(places: Array) -> float:
    """The radius of a disc: a third of the distance to a near neighbour, within limits."""
    if len(places) == 1:
        return 0.1
    nearest = KDTree(places).query(places, k=2)[0][:, 1]
    extent = np.ptp(places, axis=0).max()
    return float(np.clip(0.36 * np.quantile(nearest, 0.2), 0.004 * extent, 0.05 * extent))
