"""Peers: a line of a peer's log, and the outcome of a replay."""

from datetime import datetime
from typing import Any

from rich.markup import escape

from gossamer.peers.replay import Agreement
from gossamer.system.words import percent
from gossamer.terminal.console import known, say


def peer_line(line: dict[str, Any]) -> str:
    """A line of a peer's log for people to read."""
    clock = datetime.fromtimestamp(line["time"]).strftime("%H:%M:%S")
    about = {key: value for key, value in line.items() if key not in ("time", "peer", "event") and value is not None}
    if line["event"] == "round":
        accuracy = about.get("test_accuracy")
        said = f"round {about['round']}  loss {about['local_loss']:.4f}"
        if known(accuracy):
            said += f"  accuracy {percent(accuracy)}"
        elif known(about.get("test_loss")):
            said += f"  test loss {about['test_loss']:.4f}"
    else:
        numbers = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in about.items()}
        said = line["event"] + "".join(f"  {key} {value}" for key, value in numbers.items())
    return f"[dim]{clock}[/] [bold]{escape(line['peer'])}[/] {escape(said)}"


def say_replay(found: Agreement) -> None:
    """Print whether the replay ended with the peers' models, and what was missing on the way."""
    if found.others:
        differ = ", ".join(f"{name} (by {found.differences[name]:.1e})" for name in found.others)
        words = f"[red]other models[/] than {escape(differ)}; up to {found.allowed:.0e} would be the same"
    else:
        words = f"the same models (largest difference {max(found.differences.values()):.1e})"
    say(f"{len(found.differences)} peers, {found.rounds} rounds: the replay ends with {words}")
    say(
        f"letters not waited for: {found.missing}, shares of mass held back: {found.held}, "
        f"rounds missed: {found.skipped}, drift of the mean: {found.worst_drift:.1e} in the worst step, "
        f"{found.total_drift:.1e} in all"
    )
