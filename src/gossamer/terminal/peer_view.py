"""Peers: a line of a peer's log, and the outcome of a replay."""

from collections.abc import Mapping
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
    said = _round(about) if "local_loss" in about else _event(line["event"], about)
    if line["event"] == "finished":
        said = f"finished  {said}"
    return f"[dim]{clock}[/] [bold]{escape(line['peer'])}[/] {escape(said)}"


def _round(about: Mapping[str, Any]) -> str:
    accuracy, loss = about.get("test_accuracy"), about.get("test_loss")
    said = f"round {about['round']}  loss {about['local_loss']:.4f}"
    if known(accuracy):
        return f"{said}  accuracy {percent(accuracy)}"
    return f"{said}  test loss {loss:.4f}" if known(loss) else said


def _event(event: str, about: dict[str, Any]) -> str:
    """What happened, with whom and why; then the rest of what is known, and what can be done.

    >>> _event("not there yet", {"neighbour": "bob", "reason": "nobody listens there"})
    'not there yet: bob (nobody listens there)'
    >>> _event("waiting for", {"step": 4, "seconds": 10.0, "for_peers": {"bob": "not there yet"}, "hint": "start it"})
    'waiting for: bob (not there yet)  step 4  seconds 10. To do: start it'
    """
    others = next((about.pop(key) for key in ("neighbour", "sender", "for_peers") if key in about), ())
    reason, hint = about.pop("reason", None), about.pop("hint", None)
    whys = others if isinstance(others, Mapping) else dict.fromkeys([others] if isinstance(others, str) else others)
    who = ", ".join(name if why is None else f"{name} ({why})" for name, why in whys.items())
    said = f"{event}: {who}" if who else event
    if reason is not None:
        said += f" ({reason})" if who else f": {reason}"
    for key, value in about.items():
        said += f"  {key.replace('_', ' ')} {f'{value:.4g}' if isinstance(value, float) else value}"
    return f"{said}. To do: {hint}" if hint else said


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
