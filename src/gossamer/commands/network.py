"""`gossamer network`: make the kits of a network of real peers, check them, watch them; and a demo of it all."""

import asyncio
import json
import shlex
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from gossamer import terminal

# What these commands need takes its time to import, and no other command needs it: each imports it itself.
if TYPE_CHECKING:
    from gossamer.peers.tools.check import Line

#: Days before its end from which a certificate is warned of.
SOON = 30

network = typer.Typer(help="Real peers: see a demo, make kits, check and watch a network.", no_args_is_help=True)

Kits = Annotated[Path, typer.Argument(metavar="KITS", help="The folder that 'network create' wrote.")]
Days = Annotated[int, typer.Option(help="Days that the certificates are valid.")]


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
    weather: Annotated[
        str | None,
        typer.Option(metavar="KEY=N,...", help="Rehearse on a bad network, e.g. lose=0.2,double=0.05,delay=0.5."),
    ] = None,
    metrics_port: Annotated[
        str | None,
        typer.Option(metavar="[HOST:]PORT", help="Serve numbers for Prometheus there; host: 127.0.0.1 unless given."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only errors.")] = False,
) -> None:
    """Run one peer of a network, here, on its own samples. Started again, it goes on where it was."""
    import sys

    from gossamer.peers.process import Stopped, leave, run_peer
    from gossamer.peers.tools.metrics import as_address
    from gossamer.peers.wire.weather import as_weather

    metrics = as_address(metrics_port) if metrics_port is not None else None

    def watch(line: dict[str, Any]) -> None:
        if not quiet:
            terminal.err.print(peer_line(line), soft_wrap=True, highlight=False)

    try:
        ended = run_peer(
            kit, data=data, data_dir=data_dir, out=out, weather=as_weather(weather), watch=watch, metrics=metrics
        )
    except Stopped as stop:
        options = {
            "--data": data, "--out": out, "--data-dir": data_dir, "--weather": weather, "--metrics-port": metrics_port,
        }  # fmt: skip
        given = [word for option, value in options.items() if value is not None for word in (option, str(value))]
        again = shlex.join(["gossamer", "peer", str(kit), *given])
        terminal.err.print(f"stopped after round {stop.round}. Go on with:  {escape(again)}", soft_wrap=True)
        sys.stderr.flush()
        leave(130)
    terminal.say_where(ended.folder)


def peer_line(line: dict[str, Any]) -> str:
    """A line of a peer's log for people to read."""
    clock = datetime.fromtimestamp(line["time"]).strftime("%H:%M:%S")
    about = {key: value for key, value in line.items() if key not in ("time", "peer", "event") and value is not None}
    if line["event"] == "round":
        accuracy = about.get("test_accuracy")
        said = f"round {about['round']}  loss {about['local_loss']:.4f}"
        said += "" if accuracy is None else f"  accuracy {100 * accuracy:.1f} %"
    else:
        numbers = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in about.items()}
        said = line["event"] + "".join(f"  {key} {value}" for key, value in numbers.items())
    return f"[dim]{clock}[/] [bold]{escape(line['peer'])}[/] {escape(said)}"


@network.command()
def demo(
    peers: Annotated[int, typer.Option("--peers", "-n", min=2, max=64, help="How many processes.")] = 5,
    method: Annotated[str, typer.Option("--method", "-m", help="A method: see 'gossamer methods'.")] = "dfedavg",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds.")] = 20,
    graph: Annotated[str | None, typer.Option(help="A graph: see 'gossamer graphs'.")] = None,
    settings: Annotated[
        list[str], typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set a key of the experiment, e.g. lr=0.05.")
    ] = [],  # noqa: B006  # typer copies it
    lose: Annotated[float, typer.Option(min=0, max=0.99, help="Share of the messages that get lost.")] = 0.0,
    double: Annotated[float, typer.Option(min=0, max=1, help="Share of the messages that arrive twice.")] = 0.0,
    delay: Annotated[float, typer.Option(min=0, help="Longest delay of a message, in seconds.")] = 0.0,
    late: Annotated[
        Literal["wait", "reweigh"], typer.Option(help="Whether peers wait for a neighbour that is away, or go on.")
    ] = "wait",
    kill: Annotated[bool, typer.Option("--kill", help="Kill a peer halfway (SIGKILL), and start it again.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A new folder for kits and runs; default: a temporary one.")
    ] = None,
) -> None:
    """See it: real processes on this machine, with their own keys and mutual TLS, learning from each other."""
    import tempfile

    from gossamer.errors import ExperimentError
    from gossamer.experiment import load_experiment, parse_setting
    from gossamer.peers.data import rehearse
    from gossamer.peers.tools.demo import Demo, PeerDied, check_free, demo_roster
    from gossamer.terminal.network_table import Screen, ended_table

    values: dict[str, Any] = {"rounds": rounds}
    values |= dict(parse_setting(f"{key}={text}") for key, text in (("method", method), ("graph", graph)) if text)
    values |= dict(map(parse_setting, settings))
    if "clients" in values:
        raise ExperimentError(f"clients={values['clients']}: how many there are is said by --peers")
    experiment = load_experiment(None, values | {"clients": peers})
    if out is not None:
        check_free(out)
    roster = demo_roster(experiment, late)
    rehearse(experiment)
    weather = ",".join(f"{key}={n}" for key, n in (("lose", lose), ("double", double), ("delay", delay)) if n)
    folder = out or Path(tempfile.mkdtemp(prefix="gossamer-demo-"))
    title = demo_title(experiment, lose, double, delay)
    running = Demo(folder, roster, weather, kill)
    try:
        with Screen(title, terminal.err, notes=running.notes) as screen:
            ends = asyncio.run(running.run(screen.show, screen.say))
    except (KeyboardInterrupt, PeerDied):
        terminal.err.print(f"what there is of it: [cyan]{escape(str(folder))}[/]", soft_wrap=True)
        raise
    terminal.out.print(ended_table(ends, title))
    terminal.say_where(folder)
    where = escape(shlex.quote(str(running.runs)))
    terminal.out.print(f"\nTry next:  [bold cyan]gossamer show {where}[/]", soft_wrap=True)
    if not kill:
        terminal.out.print("           [bold cyan]gossamer network demo --kill[/]", soft_wrap=True)


def demo_title(experiment: Any, lose: float, double: float, delay: float) -> str:
    """What the demo shows, in one line."""
    from gossamer.studies.study import show_value

    parts = experiment.resolved()
    words = [f"{experiment.clients} peers", "mutual TLS"]
    words += [show_value(parts[key]) if isinstance(parts[key], str | dict) else type(parts[key]).__name__
              for key in ("method", "graph", "dataset")]  # fmt: skip
    words += [f"{100 * lose:g} % lost"] if lose else []
    words += [f"{100 * double:g} % doubled"] if double else []
    words += [f"up to {delay:g} s late"] if delay else []
    return " · ".join(words)


@network.command()
def watch(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The kit to ask with; its own peer need not run.")],
    once: Annotated[bool, typer.Option("--once", help="One look, as where there is no terminal.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One look, as JSON, for programs.")] = False,
) -> None:
    """Watch a whole network: every peer's round, loss, accuracy, neighbours and traffic. Ctrl-C leaves."""
    from gossamer.peers.identity.kit import open_kit
    from gossamer.peers.tools.watch import follow, snapshot
    from gossamer.terminal.network_table import WIDE, Screen, network_table

    asking = open_kit(kit)
    if as_json:
        print(json.dumps([seen.to_dict() for seen in asyncio.run(snapshot(asking))], indent=2))
        return
    title = f"{len(asking.roster.members)} peers · experiment {asking.roster.digest} · asked as {asking.name}"
    if once or not terminal.out.is_terminal:
        seen = asyncio.run(snapshot(asking))
        terminal.out.print(network_table(seen, title, terminal.out.width >= WIDE))
        return
    try:
        with Screen(title, terminal.out, stays=True) as screen:
            asyncio.run(follow(asking, screen.show))
    except KeyboardInterrupt:  # the way to leave, so nothing to be told
        raise typer.Exit(130) from None


@network.command()
def create(
    file: Annotated[Path, typer.Argument(metavar="NETWORK", help="A TOML file: the experiment and its peers.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The new folder to write the kits to.")] = Path("kits"),
    days: Days = 365,
) -> None:
    """Write one kit for every peer: its key, its certificate, and the network file."""
    from gossamer.peers.data import rehearse
    from gossamer.peers.identity.kit import write_kits
    from gossamer.peers.identity.roster import load_roster

    roster = load_roster(file)
    rehearse(roster.experiment)
    write_kits(roster, out, days)
    names, where = roster.names, shlex.quote(str(out))
    terminal.out.print(
        f"{len(names)} kits for experiment [bold]{roster.digest}[/], valid for {days} days", soft_wrap=True
    )
    terminal.say_where(out)
    terminal.out.print(
        f"[dim]Give each peer its own folder and nothing else. {escape(str(out))}/authority stays with you: whoever "
        "has it can make peers.[/]",
        soft_wrap=True,
    )
    kit = shlex.quote(str(out / names[0]))
    terminal.out.print(
        f"\nTry next:  [bold cyan]gossamer peer {escape(kit)}[/]   (each peer on its machine)", soft_wrap=True
    )
    terminal.out.print(f"           [bold cyan]gossamer network check {escape(where)}[/]", soft_wrap=True)


@network.command()
def check(
    folder: Annotated[Path, typer.Argument(metavar="KIT", help="A kit, or the folder of all kits.")],
) -> None:
    """Check kits, certificates, and whether every peer is there and runs the same experiment.

    Exit code 2: a kit is not fit. 1: all are, but a peer cannot be reached or is not what it should be.
    """
    from gossamer.peers.tools.check import check_network

    with terminal.err.status("asking every peer"):
        lines = check_network(folder)
    terminal.out.print(check_table(lines))
    for line in lines:  # below the table, where a command to copy stays whole
        if line.kit_problem:
            terminal.out.print(f"[red]{escape(line.name)}[/]: {escape(line.kit_problem)}", soft_wrap=True)
    for name, words in certificate_notes(lines, folder):
        terminal.out.print(f"[yellow]{escape(name)}[/]: {escape(words)}", soft_wrap=True)
    if any(line.kit_problem for line in lines):
        raise typer.Exit(2)
    if any(line.network_problem for line in lines):
        raise typer.Exit(1)


@network.command()
def revoke(
    kits: Kits,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The peer whose certificates are no longer good.")],
) -> None:
    """Take back every certificate that a peer has been given so far, and tell every kit that is there.

    For a key that somebody else may have. The peer itself takes part again with a new one: see 'network renew'.
    """
    from gossamer.peers.identity.certificates import CRL
    from gossamer.peers.identity.kit import revoke as take_back

    told = take_back(kits, name)
    terminal.out.print(
        f"certificates of [bold]{escape(name)}[/] revoked; the list is in {len(told)} kits", soft_wrap=True
    )
    terminal.out.print(
        f"[dim]Peers whose kit is elsewhere need the new list: copy {escape(str(kits / 'authority' / CRL))} into each "
        "kit. A running peer notices it.[/]",
        soft_wrap=True,
    )


@network.command()
def renew(
    kits: Kits,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="The peers; default: all of them.")
    ] = None,
    days: Days = 365,
) -> None:
    """Give peers a new key and certificate, in their kits, from the authority's folder.

    A running peer uses them once it is restarted; its neighbours need not be. The old certificates stay valid until
    they expire: to end one that is in wrong hands, 'network revoke' it first.
    """
    from gossamer.peers.identity.certificates import CERTIFICATE, CRL, KEY, moment
    from gossamer.peers.identity.kit import renew as give_new

    for name, until in give_new(kits, names or (), days).items():
        terminal.out.print(f"[bold]{escape(name)}[/]: valid until {moment(until)}", soft_wrap=True)
    terminal.out.print(
        f"[dim]Where a kit is on another machine, copy {KEY}, {CERTIFICATE} and {CRL} there. Then restart the peer: a "
        "running one keeps its old certificate, which stays valid until it expires unless it was revoked before.[/]",
        soft_wrap=True,
    )


def certificate_notes(lines: list["Line"], folder: Path) -> list[tuple[str, str]]:
    """Whose certificates need something done to them soon, and what."""
    notes = []
    if soon := [line.name for line in lines if (days := _days_left(line)) is not None and days < SOON]:
        here = (folder / "authority").is_dir()
        who = "New ones" if here else "New ones, from whoever has the authority's folder"
        command = " ".join(("gossamer network renew", shlex.quote(str(folder)) if here else "KITS", *soon))
        notes.append((", ".join(soon), f"less than {SOON} days left of the certificate. {who}:  {command}"))
    for line in lines:
        if line.outdated:
            words = f"runs with an older certificate than its kit's ({line.shown_days_left} days left): restart it"
            notes.append((line.name, words))
    return notes


def _days_left(line: "Line") -> int | None:
    """Of a peer's certificate: the one in its kit or, where that is elsewhere, the one that it answers with."""
    if line.kit_problem:
        return None
    return line.shown_days_left if line.days_left is None else line.days_left


def check_table(lines: list["Line"]) -> Table:
    """One row per peer: its kit, its certificate, itself."""
    shown = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
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


def _network_cell(line: "Line") -> str:
    if line.network_problem:
        return f"[red]{escape(line.network_problem)}[/]"
    if not line.address:
        return "–"
    return "[green]there, same experiment[/]" if line.hello else "[green]there[/]"


@network.command()
def replay(
    kits: Kits,
    runs: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where the runs are, each as FOLDER/NAME; default: KITS/NAME/run."),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", envvar="GOSSAMER_DATA", help="Where data sets are.")
    ] = None,
) -> None:
    """Do again in the simulator what the peers did, by their traces, and say whether both end with the same models.

    Needs one kit, the finished runs of all peers, and data that comes with the experiment. Exit code 1: other models.
    """
    from gossamer.peers.replay import replay_kits

    with terminal.err.status("replaying"):
        found = replay_kits(kits, runs, data_dir)
    if found.others:
        apart = ", ".join(f"{name} (by {found.differences[name]:.1e})" for name in found.others)
        words = f"[red]other models[/] than {escape(apart)}; up to {found.allowed:.0e} would be the same"
    else:
        words = f"the same models (largest difference {max(found.differences.values()):.1e})"
    terminal.out.print(
        f"{len(found.differences)} peers, {found.rounds} rounds: the replay ends with {words}", soft_wrap=True
    )
    terminal.out.print(
        f"letters not waited for: {found.missing}, shares of mass held back: {found.held}, "
        f"rounds missed: {found.skipped}, drift of the mean: {found.worst_drift:.1e} in the worst step, "
        f"{found.total_drift:.1e} in all",
        soft_wrap=True,
    )
    if found.others:
        raise typer.Exit(1)
