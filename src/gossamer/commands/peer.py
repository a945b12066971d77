"""`gossamer peer`."""

import os
import shlex
import socket
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from gossamer.terminal import console


def peer(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The folder that 'network create' wrote for this peer.")],
    data: Annotated[
        str | None, typer.Option(help="This peer's samples: a folder, an .npz, module:function, or 'experiment'.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where its run is kept; default: run/ in the kit.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", envvar="GOSSAMER_DATA", help="Where data sets are.")
    ] = None,
    faults: Annotated[
        str | None,
        typer.Option(metavar="KEY=N,...", help="Inject faults, e.g. lose=0.2,double=0.05,delay=0.5."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT", help="Listen there, if others reach it by another address; host: all unless given."
        ),
    ] = None,
    metrics_port: Annotated[
        str | None,
        typer.Option(metavar="[HOST:]PORT", help="Serve numbers for Prometheus there; host: 127.0.0.1 unless given."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only errors.")] = False,
) -> None:
    """Run one peer of a network, here, on its own samples. Started again, it goes on where it was."""
    options = {
        "--data": data, "--out": out, "--data-dir": data_dir, "--faults": faults, "--listen": listen,
        "--metrics-port": metrics_port,
    }  # fmt: skip
    given = [word for option, value in options.items() if value is not None for word in (option, str(value))]
    again = shlex.join(["gossamer", "peer", str(kit), *given])
    try:
        _run(kit, data, data_dir, out, faults, listen, metrics_port, quiet)
    except KeyboardInterrupt as stop:
        round = getattr(stop, "round", None)
        if round is None:
            console.note(f"stopped before it had started. Start again with:  {escape(again)}")
        else:
            console.say_go_on(round, again)
        sys.stderr.flush()
        os._exit(130)  # without waiting for a training step, which is repeated at the next start


def _run(
    kit: Path,
    data: str | None,
    data_dir: Path | None,
    out: Path | None,
    faults: str | None,
    listen: str | None,
    metrics_port: str | None,
    quiet: bool,
) -> None:
    from gossamer.peers.tools.metrics import as_address
    from gossamer.peers.tools.process import run_peer
    from gossamer.peers.wire.faults import parse_faults
    from gossamer.terminal.peer_view import peer_line

    metrics = as_address(metrics_port) if metrics_port is not None else None

    own = (
        as_address(listen, "--listen", host="::" if socket.has_dualstack_ipv6() else "0.0.0.0")
        if listen is not None
        else None
    )

    def watch(line: dict[str, Any]) -> None:
        if not quiet:
            console.note(peer_line(line))

    ended = run_peer(
        kit,
        data=data,
        data_dir=data_dir,
        out=out,
        faults=parse_faults(faults),
        watch=watch,
        metrics=metrics,
        listen=own,
    )
    console.say_where(ended.folder)
