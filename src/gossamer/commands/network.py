"""`gossamer network`: make the kits of a network of real peers, check and watch them; and a demo of it all."""

# The imports of these commands take long, and no other command needs them: each command imports its own.

import asyncio
import json
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gossamer.terminal import console

network = typer.Typer(help="Real peers: see a demo, make kits, check and watch a network.", no_args_is_help=True)

Kits = Annotated[Path, typer.Argument(metavar="KITS", help="The folder that 'network create' wrote.")]
Days = Annotated[int, typer.Option(help="Days that the certificates are valid.")]


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
    from gossamer.terminal.network_view import Screen, demo_title, ended_table

    values: dict[str, Any] = {"rounds": rounds}
    values |= dict(parse_setting(f"{key}={text}") for key, text in (("method", method), ("graph", graph)) if text)
    values |= dict(map(parse_setting, settings))
    if "clients" in values:
        raise ExperimentError(f"clients={values['clients']}: the number of clients is set by --peers")
    experiment = load_experiment(None, values | {"clients": peers})
    if out is not None:
        check_free(out)
    roster = demo_roster(experiment, late)
    rehearse(experiment)
    faults = ",".join(f"{key}={n}" for key, n in (("lose", lose), ("double", double), ("delay", delay)) if n)
    folder = out or Path(tempfile.mkdtemp(prefix="gossamer-demo-"))
    title = demo_title(experiment, lose, double, delay)
    running = Demo(folder, roster, faults, kill)
    try:
        with Screen(title, console.err, notes=running.notes) as screen:
            ends = asyncio.run(running.run(screen.show, screen.say))
    except (KeyboardInterrupt, PeerDied):
        console.note_where(folder)
        raise
    console.out.print(ended_table(ends, title))
    console.say_where(folder)
    show = f"gossamer show {shlex.quote(str(running.runs))}"
    console.say_next(*([show] if kill else [show, "gossamer network demo --kill"]))


@network.command()
def watch(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The kit to ask with; its own peer need not run.")],
    once: Annotated[bool, typer.Option("--once", help="One look, as where there is no terminal.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One look, as JSON, for programs.")] = False,
) -> None:
    """Watch a whole network: every peer's round, loss, accuracy, neighbours and traffic. Ctrl-C leaves."""
    from gossamer.peers.identity.kit import open_kit
    from gossamer.peers.tools.watch import follow, snapshot
    from gossamer.terminal.network_view import WIDE, Screen, network_table, watch_title

    asking = open_kit(kit)
    if as_json:
        print(json.dumps([seen.to_dict() for seen in asyncio.run(snapshot(asking))], indent=2))
        return
    title = watch_title(asking)
    if once or not console.out.is_terminal:
        seen = asyncio.run(snapshot(asking))
        console.out.print(network_table(seen, title, console.out.width >= WIDE))
        return
    try:
        with Screen(title, console.out, stays=True) as screen:
            asyncio.run(follow(asking, screen.show))
    except KeyboardInterrupt:  # the way to leave, so nothing is printed
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
    from gossamer.terminal.kit_view import say_created

    roster = load_roster(file)
    rehearse(roster.experiment)
    write_kits(roster, out, days)
    say_created(roster, out, days)


@network.command()
def check(
    folder: Annotated[Path, typer.Argument(metavar="KIT", help="A kit, or the folder of all kits.")],
) -> None:
    """Check kits, certificates, and whether every peer is there and runs the same experiment.

    Exit code 2: a kit cannot be used. 1: all can, but a peer cannot be reached or is not the expected one.
    """
    from gossamer.peers.tools.check import check_network
    from gossamer.terminal.kit_view import say_check

    with console.err.status("asking every peer"):
        lines = check_network(folder)
    say_check(lines, folder)
    if any(line.kit_problem for line in lines):
        raise typer.Exit(2)
    if any(line.network_problem for line in lines):
        raise typer.Exit(1)


@network.command()
def revoke(
    kits: Kits,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The peer whose certificates are no longer good.")],
) -> None:
    """Revoke every certificate that a peer has been given so far, and write the new list into every kit here.

    For a key that may have been stolen. The peer itself takes part again with a new key: see 'network renew'.
    """
    from gossamer.peers.identity import kit
    from gossamer.terminal.kit_view import say_revoked

    say_revoked(name, kits, len(kit.revoke(kits, name)))


@network.command()
def renew(
    kits: Kits,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="The peers; default: all of them.")
    ] = None,
    days: Days = 365,
) -> None:
    """Give peers a new key and certificate, in their kits, from the authority's folder.

    A running peer uses them from its next connection on. The old certificates stay valid until
    they expire: to end one that was stolen, 'network revoke' it first.
    """
    from gossamer.peers.identity import kit
    from gossamer.terminal.kit_view import say_renewed

    say_renewed(kit.renew(kits, names or (), days))


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
    """Repeat the peers' training in the simulator, by their traces, and check that both end with the same models.

    Needs one kit, the finished runs of all peers, and data that comes with the experiment. Exit code 1: other models.
    """
    from gossamer.peers.replay import replay_kits
    from gossamer.terminal.peer_view import say_replay

    with console.err.status("replaying"):
        found = replay_kits(kits, runs, data_dir)
    say_replay(found)
    if found.others:
        raise typer.Exit(1)
