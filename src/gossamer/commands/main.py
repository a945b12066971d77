"""The command line: every command calls the function that a notebook would call."""

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from gossamer import terminal
from gossamer.commands.network import network, peer
from gossamer.data import DATASETS, PARTITIONS
from gossamer.engines import StepMode
from gossamer.errors import ExperimentError, GossamerError
from gossamer.experiment import Experiment, load_experiment, parse_setting, parse_value
from gossamer.experiment.preparation import prepare
from gossamer.graphs import GRAPHS
from gossamer.models import LOSSES, MODELS
from gossamer.runs.files import make_folder, write_text
from gossamer.runs.folder import EXPERIMENT, FINAL
from gossamer.runs.record import RunRecord
from gossamer.simulation import Diverged, Interrupted, OnDivergence, Options, Run, simulate
from gossamer.simulation import resume as resume_run
from gossamer.studies.study import (
    COMPARISON,
    DEFAULT_SWEEP,
    Comparison,
    Plan,
    load_plan,
    show_value,
    slug,
    variants,
)
from gossamer.studies.study import (
    compare as run_comparison,
)
from gossamer.system.words import size
from gossamer.workers import WorkerLost, launched_from_outside, restarted


class Commands(TyperGroup):
    """The commands, with one way to fail: a user's mistake gives one clear message and no traceback."""

    def invoke(self, ctx: Any) -> Any:
        # Here and not around `app()`: typer itself would take Ctrl-C first, and say nothing.
        try:
            return super().invoke(ctx)
        except GossamerError as error:
            if isinstance(error, WorkerLost):  # not every process may have lost it in the same way, so each says it
                print(f"error: {error}", file=sys.stderr)
                raise typer.Exit(error.exit_code) from error
            terminal.err.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
            if isinstance(error, Diverged) and error.run.folder:
                kept = f"The rounds before it are kept: 'gossamer show {error.run.folder}'. "
                kept = kept if error.run.last else ""
                terminal.err.print(f"{escape(kept)}'--on-divergence continue' goes on regardless.", soft_wrap=True)
            raise typer.Exit(error.exit_code) from error
        except Interrupted as stop:
            if stop.run is not None and stop.folder is not None:  # it came in the last round
                report_run(stop.run, stop.folder)
                return None
            folder = shlex.quote(str(stop.folder))
            kept = f"after round {stop.round}, checkpoint written" if stop.round else "before the first checkpoint"
            words = f"{kept}. Go on with:  gossamer resume {folder}"
            terminal.err.print(f"\n[yellow]stopped[/] {escape(words)}", soft_wrap=True)
            raise typer.Exit(130) from stop
        except KeyboardInterrupt as stop:
            terminal.err.print("\n[yellow]stopped[/]; nothing that was written is lost.", soft_wrap=True)
            raise typer.Exit(130) from stop


app = typer.Typer(
    cls=Commands,
    help="Federated learning with no server: run, compare and look at decentralized methods.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(network, name="network")
app.command()(peer)

File = Annotated[Path | None, typer.Argument(help="A TOML file; without one, the built-in default.")]
Settings = Annotated[
    list[str], typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set a key, e.g. lr=0.05 or method.rho=0.1.")
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="The folder to write to.")]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", envvar="GOSSAMER_DATA", help="Where data sets are, or are downloaded to.")
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        "-w",
        envvar="GOSSAMER_WORKERS",
        help="Worker processes; default: one a core, fewer for short rounds.",
    ),
]
Chunk = Annotated[int | None, typer.Option(help="Clients that a worker runs at once; default: measured.")]
StepWay = Annotated[
    StepMode | None, typer.Option("--step", help="How a local step is run; default: what pays for this run.")
]
ChannelsLast = Annotated[
    bool | None, typer.Option("--channels-last/--channels-first", help="Memory format of images; default: measured.")
]
Spill = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Keep the clients' state in a file there, not in memory.")
]
Diverging = Annotated[OnDivergence, typer.Option("--on-divergence", help="What to do when a loss is not finite.")]
QuietFlag = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say how the engine runs.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@app.command()
def run(
    file: File = None,
    settings: Settings = [],  # noqa: B006  # typer copies it
    out: Out = None,
    data_dir: DataDir = None,
    workers: Workers = None,
    chunk: Chunk = None,
    step: StepWay = None,
    channels_last: ChannelsLast = None,
    spill: Spill = None,
    on_divergence: Diverging = "stop",
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")] = False,
    quiet: QuietFlag = False,
    verbose: Verbose = False,
) -> None:
    """Run one experiment and keep it in a run folder."""
    experiment = load_experiment(file, overrides(settings))
    name = method_name(experiment)
    folder = out or unfinished(experiment) or fresh_folder(f"{name}-{part_name(experiment, 'dataset')}")
    observer = terminal.make_observer(name, quiet, verbose)
    observers = [observer, terminal.tensorboard_observer(folder)] if tensorboard else [observer]
    options = Options(
        workers=workers, chunk=chunk, step=step, channels_last=channels_last, spill=spill, data_dir=data_dir,
        on_divergence=on_divergence, keep_vectors=False,
    )  # fmt: skip
    with terminal.watching(observers) as watching:
        finished = simulate(experiment, out=folder, observer=watching, **options)
    report_run(finished, folder)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run or a comparison.")],
    data_dir: DataDir = None,
    workers: Workers = None,
    chunk: Chunk = None,
    step: StepWay = None,
    channels_last: ChannelsLast = None,
    spill: Spill = None,
    on_divergence: Diverging = "stop",
    quiet: QuietFlag = False,
    verbose: Verbose = False,
) -> None:
    """Go on with an interrupted run or comparison, to the very numbers of an uninterrupted one."""
    options = Options(
        workers=workers, chunk=chunk, step=step, channels_last=channels_last, spill=spill, data_dir=data_dir,
        on_divergence=on_divergence, keep_vectors=False,
    )  # fmt: skip
    if (folder / COMPARISON).exists():
        go_compare(load_plan(folder / COMPARISON), folder, quiet, verbose, options)
        return
    with terminal.watching([terminal.make_observer(folder.name, quiet, verbose)]) as watching:
        finished = resume_run(folder, observer=watching, **options)
    report_run(finished, folder)


@app.command()
def compare(
    file: File = None,
    sweep: Annotated[
        list[str], typer.Option("--sweep", metavar="KEY=A,B,...", help="What to compare, e.g. method=dfedavg,dfedsam.")
    ] = [],  # noqa: B006  # typer copies it
    seeds: Annotated[int | None, typer.Option(help="Runs of each variant, with one seed each.")] = None,
    settings: Settings = [],  # noqa: B006  # typer copies it
    out: Out = None,
    data_dir: DataDir = None,
    workers: Workers = None,
    chunk: Chunk = None,
    step: StepWay = None,
    channels_last: ChannelsLast = None,
    spill: Spill = None,
    on_divergence: Diverging = "stop",
    quiet: QuietFlag = False,
    verbose: Verbose = False,
) -> None:
    """Run several variants on identical data, initial weights and batches, and print one table."""
    if launched_from_outside():
        raise ExperimentError("compare: runs on one machine; start its variants one by one with 'gossamer run'")
    plan = load_plan(file, overrides(settings))
    if sweep:
        asked: dict[str, list[Any]] = {}
        for key, values in map(parse_sweep, sweep):
            asked[key] = asked.get(key, []) + values
        plan = plan._replace(sweep=asked)
    if seeds is not None:
        plan = plan._replace(seeds=seeds)
    folder = out or fresh_folder(f"compare-{'-'.join(slug(key) for key in plan.sweep)}")
    options = Options(
        workers=workers, chunk=chunk, step=step, channels_last=channels_last, spill=spill, data_dir=data_dir,
        on_divergence=on_divergence, keep_vectors=False,
    )  # fmt: skip
    go_compare(plan, folder, quiet, verbose, options)


@app.command()
def show(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs or comparisons.")],
    out: Out = None,
) -> None:
    """Print runs side by side and draw their curves (PNG and HTML)."""
    from gossamer.runs.record import read_runs

    records = read_runs(runs)
    terminal.out.print(terminal.run_table(records, wide=terminal.out.width >= 120))
    say_stopped(records)
    folder = out or (runs[0] if len(runs) == 1 else Path("."))
    make_folder(folder)
    # The runs of one variant differ in their seed alone, and are one curve.
    variants_of: dict[str, list[RunRecord]] = {}
    for record in records:
        variants_of.setdefault(re.sub(r"-seed\d+$", "", record.label), []).append(record)
    draw_and_say(variants_of, folder, ", ".join(path.name for path in runs))


@app.command()
def graph(
    name: Annotated[str, typer.Argument(help="A graph: see 'gossamer graphs'.")] = "ring",
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 16,
    settings: Annotated[
        list[str], typer.Option("--set", "-s", metavar="KEY=VALUE", help="A parameter of the graph, e.g. k=4.")
    ] = [],  # noqa: B006  # typer copies it
    model: Annotated[str, typer.Option(help="The model whose messages are counted.")] = "mnist-2nn",
    dataset: Annotated[str, typer.Option(help="The data set the model is for.")] = "mnist",
    seed: Annotated[int, typer.Option(min=0, help="Key of random graphs.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Draw it: a .png, .svg or .pdf file.")] = None,
    as_json: Json = False,
) -> None:
    """Say how well a graph mixes and what it costs, and draw it."""
    from gossamer.graphs import as_graph, check, draw, summarise

    network = as_graph(GRAPHS.build({"name": name, **overrides(settings)})).bind(clients, seed)
    check(network)
    summary = summarise(network)
    message = 4 * model_size(model, dataset)
    if as_json:
        about = {**summary.to_dict(), "lambda": summary.lambda_, "bytes_per_round": summary.links_per_step * message}
        about.pop("lambda_")
        print(json.dumps(about, indent=2))
    else:
        terminal.out.print(terminal.graph_table(summary, message, f"{model} on {dataset}"))
    if out:
        make_folder(out.parent)
        draw(network, out)
        if not as_json:
            terminal.say_where(out)


@app.command()
def partition(
    file: File = None,
    settings: Settings = [],  # noqa: B006  # typer copies it
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Draw it: a .png, .svg or .pdf file.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Say which client holds what: sizes and labels, as a table and a picture."""
    from gossamer.data import draw, table

    summary = prepare(load_experiment(file, overrides(settings)), data_dir).partition
    if as_json:
        print(json.dumps(summary.to_dict()))
    else:
        terminal.out.print(table(summary))
    if out:
        draw(summary, out)
        if not as_json:
            terminal.say_where(out)


@app.command()
def theory(
    file: File = None,
    settings: Settings = [],  # noqa: B006  # typer copies it
    smoothness: Annotated[
        float | None, typer.Option(metavar="L", help="The smoothness constant; default: estimated at the start.")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Say what the papers' bounds are made of: graph, heterogeneity, noise, each measured on your data."""
    from gossamer.terminal.theory_table import theory_view
    from gossamer.theory import analyse

    said = analyse(load_experiment(file, overrides(settings)), data_dir, smoothness)
    if as_json:
        print(json.dumps(said.to_dict(), indent=2))
    else:
        terminal.out.print(theory_view(said))


@app.command()
def bench(
    file: File = None,
    settings: Settings = [],  # noqa: B006  # typer copies it
    workers: Workers = None,
    chunk: Chunk = None,
    step: StepWay = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="How long to measure, about.")] = 10.0,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Measure how fast an experiment runs on this machine, against a plain loop and the processor's limit."""
    from gossamer.bench import measure
    from gossamer.terminal.bench_table import bench_view

    experiment = load_experiment(file, overrides(settings))
    with terminal.err.status("starting") as status:
        report = measure(
            experiment, workers=workers, data_dir=data_dir, seconds=seconds, chunk=chunk, step=step, say=status.update
        )
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        terminal.out.print(bench_view(report))


@app.command()
def methods() -> None:
    """List the methods."""
    terminal.out.print(terminal.method_list())


@app.command()
def graphs() -> None:
    """List the graphs."""
    terminal.out.print(terminal.catalog_list(GRAPHS))


@app.command()
def datasets() -> None:
    """List the data sets, and how they can be split among clients."""
    terminal.out.print(terminal.catalog_list(DATASETS))
    terminal.out.print("\n[bold]Partitions[/]")
    terminal.out.print(terminal.catalog_list(PARTITIONS))


@app.command()
def models() -> None:
    """List the models and the losses."""
    terminal.out.print(terminal.catalog_list(MODELS))
    terminal.out.print("\n[bold]Losses[/]")
    terminal.out.print(terminal.catalog_list(LOSSES))


def go_compare(plan: Plan, folder: Path, quiet: bool, verbose: bool, options: Options) -> None:
    """Run a comparison, then show its table, its curves and what to try next."""
    with terminal.Watching(quiet, verbose) as watcher:
        result = run_comparison(plan.experiment, plan.sweep, seeds=plan.seeds, out=folder, watcher=watcher, **options)
    swept, wide = ", ".join(plan.sweep), terminal.out.width >= 100
    terminal.out.print(terminal.results_table(result.table, comparison_title(plan), swept, plan.seeds, wide))
    say_stopped(result.records)
    write_text(folder / "table.csv", result.table.to_csv(index_label="variant"))
    write_text(folder / "table.md", terminal.results_markdown(result.table, swept, plan.seeds))
    draw_and_say(result.runs, folder, comparison_title(plan), folder / "table.csv")
    terminal.out.print(f"\nTry next:  [bold cyan]{escape(next_command(plan, result))}[/]", soft_wrap=True)


def say_stopped(records: list[RunRecord]) -> None:
    """Why runs ended before their last round."""
    for record in records:
        if record.stopped:
            terminal.out.print(f"[yellow]{escape(record.label)}[/]: {escape(record.stopped)}", soft_wrap=True)


def draw_and_say(runs: Mapping[str, Sequence[RunRecord]], folder: Path, title: str, *also: Path) -> None:
    """Draw the curves, if any round was finished, and say where they are."""
    from gossamer.pages.curves import draw_curves, drawn_panels

    if drawn_panels(runs):
        also = (*draw_curves(runs, folder, title), *also)
    if also:
        terminal.say_where(*also)


def report_run(run: Run, folder: Path) -> None:
    """The end of a run: what it reached and where everything is."""
    best, last = run.best, run.last
    words = [f"sent per client {size(run.sent_per_client)}"]
    if (accuracy := best.get("test_accuracy")) is not None and accuracy == accuracy:
        words = [
            f"best accuracy [bold]{terminal.percent(accuracy)}[/] in round {best['round']:.0f}",
            f"last {terminal.percent(last.get('test_accuracy'))}",
            f"worst client {terminal.percent(last.get('client_accuracy_worst'))}",
            *words,
        ]
    elif best:  # values to regress have a loss and no accuracy
        lowest, final = terminal.number(best["test_loss"]), terminal.number(last.get("test_loss"))
        words = [f"best test loss [bold]{lowest}[/] in round {best['round']:.0f}", f"last {final}", *words]
    else:
        words = [f"training loss {terminal.number(last.get('local_loss'))}", *words]
    terminal.out.print(", ".join(words), soft_wrap=True)
    terminal.say_where(folder)
    terminal.out.print(f"\nTry next:  [bold cyan]gossamer show {escape(shlex.quote(str(folder)))}[/]", soft_wrap=True)


def comparison_title(plan: Plan) -> str:
    """What all variants have in common, in one line."""

    def words(experiment: Experiment) -> list[str]:
        parts = [part_text(experiment, key) for key in ("dataset", "partition", "graph", "model")]
        return [f"{experiment.clients} clients", f"{experiment.rounds} rounds", *parts]

    said = zip(*(words(variant.experiment) for variant in variants(plan.experiment, plan.sweep)), strict=True)
    seeds = f", {plan.seeds} seeds: mean ± standard deviation" if plan.seeds > 1 else ""
    return " · ".join(each[0] for each in said if len(set(each)) == 1) + seeds


def next_command(plan: Plan, result: Comparison) -> str:
    """A command that shows one more thing: the same comparison where the graph matters less, or with more seeds."""
    if plan.seeds == 1:
        base = f"gossamer compare {result.folder / COMPARISON if result.folder else ''}".rstrip()
        other_graph = plan.experiment.graph is None and plan.sweep == DEFAULT_SWEEP
        return f"{base} --set graph=exponential" if other_graph else f"{base} --seeds 3"
    return f"gossamer show {result.folder}"


def parse_sweep(text: str) -> tuple[str, list[Any]]:
    """`key=a,b,c`, or a TOML list; a comma inside a table, a list or quotes belongs to the value.

    >>> parse_sweep('graph=ring,{name="k-regular", k=4}')
    ('graph', ['ring', {'name': 'k-regular', 'k': 4}])
    """
    key, values = parse_setting(text)
    if isinstance(values, list):
        return key, values
    pieces = re.findall(r'(?:\{[^}]*\}|\[[^]]*\]|"[^"]*"|[^,])+', text.partition("=")[2])
    return key, [parse_value(piece.strip()) for piece in pieces if piece.strip()]


def overrides(settings: list[str]) -> dict[str, Any]:
    """All `--set` options as keys and values."""
    return dict(parse_setting(setting) for setting in settings)


def model_size(model: str, dataset: str) -> int:
    """Parameters of a model on a data set's samples."""
    from gossamer.models import VectorModel, make_module

    about = DATASETS.find(dataset)
    shape, classes = getattr(about, "shape", None), getattr(about, "classes", None)
    if shape is None or classes is None:
        raise ExperimentError(f"data set '{dataset}' does not say its shape and classes; name a built-in one")
    return VectorModel(make_module(MODELS.build(model), shape, classes)).size


def part_name(experiment: Experiment, key: str) -> str:
    """The bare name of a part of an experiment, usable in a file name."""
    return slug(part_text(experiment, key).split("(")[0])


def part_text(experiment: Experiment, key: str) -> str:
    """A part of an experiment in a few words."""
    value = experiment.resolved().get(key, "")
    return show_value(value) if isinstance(value, str | dict) else type(value).__name__


def method_name(experiment: Experiment) -> str:
    """The method's name."""
    return part_name(experiment, "method")


def unfinished(experiment: Experiment) -> Path | None:
    """After a launcher's restart: the newest unfinished run of the same experiment, to go on with."""
    if not restarted():
        return None
    text = experiment.to_toml()
    same = [
        file.parent
        for file in Path("runs").glob(f"*/{EXPERIMENT}")
        if not (file.parent / FINAL).exists() and file.read_text(encoding="utf-8") == text
    ]
    return max(same, default=None, key=lambda folder: folder.name)


def fresh_folder(name: str) -> Path:
    """A folder under `runs/` that nobody uses yet, named by the time and what runs."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    path = Path("runs") / f"{stamp}-{name}"
    number = 1
    while path.exists():
        number += 1
        path = Path("runs") / f"{stamp}-{name}-{number}"
    return path


def main() -> None:
    """The `gossamer` command."""
    app()
