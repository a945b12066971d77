"""The `gossamer` command: all commands, and one way to end when one of them fails."""

import platform
from difflib import get_close_matches
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gossamer.commands.bench import bench
from gossamer.commands.compare import compare
from gossamer.commands.figure import figure
from gossamer.commands.graph import graph
from gossamer.commands.landscape import landscape
from gossamer.commands.listings import datasets, graphs, methods, models
from gossamer.commands.live import live
from gossamer.commands.network import network
from gossamer.commands.partition import partition
from gossamer.commands.peer import peer
from gossamer.commands.report import report
from gossamer.commands.reproduce import reproduce
from gossamer.commands.run import resume, run
from gossamer.commands.sharpness import sharpness
from gossamer.commands.show import show
from gossamer.commands.theory import theory
from gossamer.errors import GossamerError
from gossamer.experiment import Experiment, meant_key
from gossamer.simulation import Interrupted
from gossamer.terminal.endings import say_error, say_interrupted, say_stopped
from gossamer.terminal.run_view import say_run


class Commands(TyperGroup):
    """The commands. A user's mistake ends any of them with one message, an exit code and no traceback."""

    def invoke(self, ctx: Any) -> Any:
        # Here and not around `app()`: typer itself would take Ctrl-C first, and print nothing.
        try:
            return super().invoke(ctx)
        except GossamerError as error:
            say_error(error)
            raise typer.Exit(error.exit_code) from error
        except Interrupted as stop:
            if stop.run is not None and stop.folder is not None:  # the interrupt came in the last round
                say_run(stop.run, stop.folder)
                return None
            if stop.folder is None:
                say_stopped()
            else:
                say_interrupted(stop)
            raise typer.Exit(130) from stop
        except KeyboardInterrupt as stop:
            say_stopped()
            raise typer.Exit(130) from stop
        except typer.TyperException as error:
            if hint := key_hint(error):
                error.message += hint
                error.possibilities = None  # type: ignore[attr-defined]  # names that only look alike
            raise


def key_hint(error: Any) -> str:
    """How to set a key of the experiment that was given as an option, as in `gossamer run --rounds 3`."""
    word = getattr(error, "option_name", None)
    taken = error.ctx.command.params if word and error.ctx else ()
    if "settings" not in {option.name for option in taken}:
        return ""
    key = str(word).lstrip("-").replace("-", "_")
    if key.partition(".")[0] in Experiment.model_fields:
        return f"\nIt is a key of the experiment: --set {key}=VALUE sets it."
    options = [name.lstrip("-") for option in taken for name in option.opts]
    if get_close_matches(key.replace("_", "-"), options, n=1, cutoff=0.75) or not (meant := meant_key(key, {})):
        return ""
    return f"\nKeys of the experiment are set by --set KEY=VALUE: {meant}"


def print_version(wanted: bool) -> None:
    """Print the versions of Gossamer and of what computes its numbers."""
    if wanted:
        print(f"gossamer {version('gossamer')} (torch {version('torch')}, Python {platform.python_version()})")
        raise typer.Exit


app = typer.Typer(
    cls=Commands,
    help="Federated learning with no server: run, compare and look at decentralized methods.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    run, resume, compare, reproduce, show, figure, report, live, sharpness, landscape, graph, partition, theory, bench,
    methods, graphs, datasets, models, peer,
):  # fmt: skip
    app.command()(command)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options without a command."""


app.add_typer(network, name="network")
