"""What `gossamer network watch` and `gossamer network demo` show: one row per peer."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gossamer.experiment import Experiment
from gossamer.peers.identity.kit import Kit
from gossamer.peers.tools.demo import KILLED, RESTARTING, STARTING, PeerOutcome
from gossamer.peers.tools.watch import PeerView
from gossamer.studies import part_label
from gossamer.system.words import percent, size
from gossamer.terminal.console import known, ruled_table

BAR = 12
#: Narrower terminals get no bars.
WIDE = 90
#: The ordinary activities of a peer, which are not highlighted.
BUSY = ("training", "sending", "waiting", "mixing", "measuring")
#: The styles of a demo's notes about a peer.
NOTE_STYLES = {STARTING: "dim", KILLED: "not dim bold red", RESTARTING: "not dim yellow"}


def demo_title(experiment: Experiment, lose: float, double: float, delay: float) -> str:
    """The settings of a demo, in one line."""
    words = [f"{experiment.clients} peers", "mutual TLS"]
    words += [part_label(experiment, key) for key in ("method", "graph", "dataset")]
    words += [f"{100 * lose:g} % lost"] if lose else []
    words += [f"{100 * double:g} % doubled"] if double else []
    words += [f"up to {delay:g} s late"] if delay else []
    return " · ".join(words)


def watch_title(kit: Kit) -> str:
    """The network and the peer whose kit asks, in one line."""
    return f"{len(kit.roster.members)} peers · experiment {kit.roster.digest} · asked as {kit.name}"


class Screen:
    """A network as it runs: a live table on a terminal, plain lines elsewhere."""

    def __init__(
        self, title: str, console: Console, notes: Mapping[str, str] | None = None, stays: bool = False
    ) -> None:
        self._title, self._console, self._notes = title, console, notes
        self._live = Live(console=console, auto_refresh=False, transient=not stays) if console.is_terminal else None
        self._done = 0
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        else:
            self._console.print(self._title, soft_wrap=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, peers: list[PeerView]) -> None:
        """The network as it is now."""
        if self._live:
            wide, rows = self._console.width >= WIDE, max(3, self._console.height - 7)
            self._live.update(network_table(peers, self._title, wide, self._notes, rows), refresh=True)
        else:
            done, line = progress_line(peers)
            if done > self._done:  # a line for a round, of the slowest
                self._console.print(line, soft_wrap=True)
            self._done = max(done, self._done)

    def say(self, text: str) -> None:
        """Print an event, which stays on the screen."""
        clock = f"{time.monotonic() - self._began:5.1f} s"
        self._console.print(f"[dim]{clock}[/]  {escape(text)}", soft_wrap=True)


def network_table(
    peers: Sequence[PeerView], title: str, wide: bool, notes: Mapping[str, str] | None = None, rows: int | None = None
) -> RenderableType:
    """All peers as they are now. `notes` are those of a demo; at most `rows` are shown."""
    shown = ruled_table()
    shown.add_column("peer", no_wrap=True)
    if wide:
        shown.add_column("", width=BAR)
    shown.add_column("round", justify="right", no_wrap=True)
    rated = _rated(peer.status for peer in peers)
    for name in ("loss", rated.replace("_", "\n"), "neighbours\nreached", "sent", "refused"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("doing", overflow="fold", min_width=12)
    kept = peers if rows is None or len(peers) <= rows else peers[: rows - 1]
    for peer in kept:
        away = peer.problem is not None and not peer.finished
        bar = [_bar(peer)] if wide else []
        note = (notes or {}).get(peer.name)
        doing = f"[{NOTE_STYLES[note]}]{note}[/]" if note is not None else _doing(peer)
        shown.add_row(escape(peer.name), *bar, *_numbers(peer, rated), doing, style="dim" if away else None)
    if len(kept) < len(peers):
        shown.add_row(f"[dim]and {len(peers) - len(kept)} more[/]")
    return _below(title, shown)


def _bar(peer: PeerView) -> RenderableType:
    total, done = peer.status.get("rounds"), peer.status.get("round", 0)
    if not total:
        return ""
    return ProgressBar(
        total=total,
        completed=total if peer.finished else done,
        width=BAR,
        complete_style="cyan",
        finished_style="green",
    )


def _rated(told: Iterable[Mapping[str, Any]]) -> str:
    """What peers are judged by: their accuracy, or their test loss where accuracy has no meaning."""
    told = [status for status in told if status]
    has_loss = any(known(status.get("test_loss")) for status in told)
    return "test_loss" if has_loss and not any(known(status.get("accuracy")) for status in told) else "accuracy"


def _numbers(peer: PeerView, rated: str) -> list[str]:
    """A peer's latest status; dashes if there is none yet."""
    status = peer.status
    if not status:
        return ["–"] * 6
    talks_to = len(peer.neighbours)
    reached = talks_to - len(peer.away)
    few = f"[yellow]{reached}/{talks_to}[/]" if reached < talks_to else f"{reached}/{talks_to}"
    refused = sum(status["refused"].values())
    return [
        f"{status['rounds'] if peer.finished else status['round']}/{status['rounds']}",
        _loss(status["loss"]),
        percent(status["accuracy"]) if rated == "accuracy" else _loss(status["test_loss"]),
        few if talks_to else "–",
        size(status["sent_bytes"]),
        f"[yellow]{refused}[/]" if refused else "0",
    ]


def _loss(value: float | None) -> str:
    """A loss to the same place for all peers, as they stand below each other."""
    return "–" if value is None or value != value else f"{value:.3f}" if abs(value) < 1000 else f"{value:.2e}"


def _doing(peer: PeerView) -> str:
    if peer.finished:
        return "[green]finished[/]"
    if peer.problem is not None:
        return f"[not dim red]{escape(peer.problem)}[/]"
    doing = escape(str(peer.status["doing"]))
    if away := peer.away:
        return f"{doing}, [yellow]{escape(', '.join(away))} away[/]"
    return doing if doing in BUSY else f"[cyan]{doing}[/]"


def ended_table(ends: Sequence[PeerOutcome], title: str) -> RenderableType:
    """How the peers of a demo ended, the mean and how far they lie apart."""
    shown = ruled_table()
    shown.add_column("peer", no_wrap=True)
    rated = "accuracy" if any(known(end.accuracy) for end in ends) else "test loss"
    for name in ("rounds", "loss", rated, "sent", "refused"):
        shown.add_column(name, justify="right", no_wrap=True)
    restarted = any(end.starts > 1 for end in ends)
    if restarted:
        shown.add_column("started", justify="right", no_wrap=True)
    for end in ends:
        often = [f"{end.starts} times" if end.starts > 1 else "once"] if restarted else []
        rating = percent(end.accuracy) if rated == "accuracy" else _loss(end.test_loss)
        cells = [str(end.rounds), _loss(end.loss), rating, size(end.sent), str(end.refused)]
        shown.add_row(escape(end.name), *cells, *often)
    ratings = [end.accuracy if rated == "accuracy" else end.test_loss for end in ends]
    if values := [value for value in ratings if value is not None and value == value]:
        mean, apart = sum(values) / len(values), max(values) - min(values)
        words = (percent(mean), f"{100 * apart:.1f} points") if rated == "accuracy" else (_loss(mean), _loss(apart))
        shown.add_section()
        shown.add_row("mean", "", "", f"[bold green]{words[0]}[/]", "", "")
        shown.add_row("best to worst", "", "", words[1], "", "")
    return _below(title, shown)


def progress_line(peers: Sequence[PeerView]) -> tuple[int, str]:
    """The whole network in one line, for logs and pipes, and the rounds that all peers have done."""
    told = [seen.status for seen in peers if seen.status]
    done = min(status["round"] for status in told) if len(told) == len(peers) else 0
    words = [f"round {done}/{max((status['rounds'] for status in told), default=0)}"]
    rated = _rated(told)
    text: Callable[[float], str] = percent if rated == "accuracy" else _loss
    if values := [status[rated] for status in told if known(status.get(rated))]:
        mean, name = sum(values) / len(values), rated.replace("_", " ")
        words.append(f"{name} {text(mean)}, from {text(min(values))} to {text(max(values))}")
    words.append(f"sent {size(sum(status['sent_bytes'] for status in told))}")
    return done, "  ".join(words)


def _below(title: str, shown: Table) -> RenderableType:
    """A title as wide as the terminal, not as narrow as its table."""
    return Group(Text(title, style="bold"), shown)
