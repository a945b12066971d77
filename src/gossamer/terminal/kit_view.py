"""Kits and certificates: what `gossamer network create`, `check`, `revoke` and `renew` print."""

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from gossamer.peers.identity.certificates import CERTIFICATE, CRL, KEY, moment
from gossamer.peers.identity.roster import Roster
from gossamer.peers.tools.check import PeerCheck
from gossamer.terminal import console
from gossamer.terminal.console import ruled_table, say, say_next, say_where

#: Days before its end from which a certificate is warned of.
SOON = 30


def say_created(roster: Roster, folder: Path, days: int) -> None:
    """Print where the kits are and what to do with them."""
    say(f"{len(roster.names)} kits for experiment [bold]{roster.digest}[/], valid for {days} days")
    say_where(folder)
    say(
        f"[dim]Give each peer its own folder and nothing else. {escape(str(folder))}/authority stays with you: "
        "its owner can make peers.[/]"
    )
    peer = f"gossamer peer {shlex.quote(str(folder / roster.names[0]))}"
    say_next(f"{peer}   # each peer on its machine", f"gossamer network check {shlex.quote(str(folder))}")


def say_revoked(name: str, kits: Path, informed: int) -> None:
    """Print how many kits have the new list, and what to do about the others."""
    say(f"certificates of [bold]{escape(name)}[/] revoked; the list is in {informed} kits")
    say(
        f"[dim]Peers whose kit is elsewhere need the new list: copy {escape(str(kits / 'authority' / CRL))} into each "
        "kit. A running peer notices it.[/]"
    )


def say_renewed(until: Mapping[str, datetime]) -> None:
    """Print how long the new certificates are valid, and what to do with them."""
    for name, end in until.items():
        say(f"[bold]{escape(name)}[/]: valid until {moment(end)}")
    say(
        f"[dim]Where a kit is on another machine, copy {KEY}, {CERTIFICATE} and {CRL} there. A running "
        "peer uses them from its next connection on. The old certificate stays valid until it expires or is revoked.[/]"
    )


def say_check(lines: Sequence[PeerCheck], folder: Path) -> None:
    """Print one row per peer; below the table, where a command to copy stays whole, what must be done."""
    console.out.print(check_table(lines))
    for line in lines:
        if line.kit_problem:
            say(f"[red]{escape(line.name)}[/]: {escape(line.kit_problem)}")
    for name, words in certificate_notes(lines, folder):
        say(f"[yellow]{escape(name)}[/]: {escape(words)}")


def certificate_notes(lines: Sequence[PeerCheck], folder: Path) -> list[tuple[str, str]]:
    """Peers whose certificate must be renewed or taken up soon, with the command or the step."""
    notes = []
    if soon := [line.name for line in lines if (days := _days_left(line)) is not None and days < SOON]:
        here = (folder / "authority").is_dir()
        who = "New ones" if here else "New ones, from the owner of the authority's folder"
        command = " ".join(("gossamer network renew", shlex.quote(str(folder)) if here else "KITS", *soon))
        notes.append((", ".join(soon), f"less than {SOON} days left of the certificate. {who}:  {command}"))
    for line in lines:
        if line.outdated:
            words = f"presents an older certificate than its kit's ({line.shown_days_left} days left): copy it there"
            notes.append((line.name, words))
    return notes


def _days_left(line: PeerCheck) -> int | None:
    """Of a peer's certificate: the one in its kit or, where that is elsewhere, the one that it answers with."""
    if line.kit_problem:
        return None
    return line.shown_days_left if line.days_left is None else line.days_left


def check_table(lines: Sequence[PeerCheck]) -> Table:
    """One row per peer: its kit, its certificate, itself."""
    shown = ruled_table()
    shown.add_column("peer", no_wrap=True)
    shown.add_column("address", no_wrap=True)
    for name in ("kit", "certificate"):
        shown.add_column(name, no_wrap=True)
    shown.add_column("network", overflow="fold")
    for line in lines:
        there = line.days_left is not None or line.kit_problem
        kit = "[red]not fit[/]" if line.kit_problem else "[green]good[/]" if there else "not here"
        certificate = "–"
        if (days := _days_left(line)) is not None:
            certificate = f"[{'yellow' if days < SOON else 'green'}]{days} days left[/]"
        shown.add_row(escape(line.name), escape(line.address or "–"), kit, certificate, _network_cell(line))
    return shown


def _network_cell(line: PeerCheck) -> str:
    if line.network_problem:
        return f"[red]{escape(line.network_problem)}[/]"
    if not line.address:
        return "–"
    return "[green]there, same experiment[/]" if line.hello else "[green]there[/]"
