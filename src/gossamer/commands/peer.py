"""`gossamer peer`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

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
    metrics_port: Annotated[
        str | None,
        typer.Option(metavar="[HOST:]PORT", help="Serve numbers for Prometheus there; host: 127.0.0.1 unless given."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only errors.")] = False,
) -> None:
    """Run one peer of a network, here, on its own samples. Started again, it goes on where it was."""
    from gossamer.peers.tools.metrics import as_address
    from gossamer.peers.tools.process import Stopped, leave, run_peer
    from gossamer.peers.wire.faults import parse_faults
    from gossamer.terminal.peer_view import peer_line

    metrics = as_address(metrics_port) if metrics_port is not None else None

    def watch(line: dict[str, Any]) -> None:
        if not quiet:
            console.note(peer_line(line))

    try:
        ended = run_peer(
            kit, data=data, data_dir=data_dir, out=out, faults=parse_faults(faults), watch=watch, metrics=metrics
        )
    except Stopped as stop:
        options = {
            "--data": data, "--out": out, "--data-dir": data_dir, "--faults": faults, "--metrics-port": metrics_port,
        }  # fmt: skip
        given = [word for option, value in options.items() if value is not None for word in (option, str(value))]
        console.say_go_on(stop.round, shlex.join(["gossamer", "peer", str(kit), *given]))
        sys.stderr.flush()
        leave(130)
    console.say_where(ended.folder)
