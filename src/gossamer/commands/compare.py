"""`gossamer compare`."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from gossamer import simulation, studies, terminal
from gossamer.commands.folders import fresh_folder
from gossamer.commands.options import (
    Baseline,
    Budget,
    ChannelsLast,
    Chunk,
    DataDir,
    Diverging,
    File,
    MLflow,
    Out,
    ProductsOption,
    Quiet,
    Settings,
    Spill,
    StepOption,
    Target,
    TensorBoard,
    Verbose,
    Workers,
    overrides,
    parse_targets,
    trackers,
)
from gossamer.errors import ExperimentError
from gossamer.experiment import parse_setting, parse_value
from gossamer.pages.tables import write_tables
from gossamer.terminal.comparison_view import comparison_title, next_command, say_left, say_tables
from gossamer.terminal.console import say_where
from gossamer.terminal.run_view import say_figures, say_remarks
from gossamer.workers import launched_from_outside


def compare(
    file: File = None,
    sweep: Annotated[
        list[str], typer.Option("--sweep", metavar="KEY=A,B,...", help="What to compare, e.g. method=dfedavg,dfedsam.")
    ] = [],  # noqa: B006  # typer copies it
    seeds: Annotated[int | None, typer.Option(help="Runs of each variant, with one seed each.")] = None,
    target: Target = [],  # noqa: B006  # typer copies it
    baseline: Baseline = None,
    budget: Budget = None,
    settings: Settings = [],  # noqa: B006  # typer copies it
    out: Out = None,
    data_dir: DataDir = None,
    workers: Workers = None,
    chunk: Chunk = None,
    step: StepOption = None,
    channels_last: ChannelsLast = None,
    products: ProductsOption = None,
    spill: Spill = None,
    on_divergence: Diverging = "stop",
    tensorboard: TensorBoard = False,
    mlflow: MLflow = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run several variants on identical data, initial weights and batches, and print one table."""
    if launched_from_outside():
        raise ExperimentError("compare: runs on one machine; start its variants one by one with 'gossamer run'")
    study = studies.load_study(file, overrides(settings))
    if sweep:
        study = replace(study, sweep=parse_sweeps(sweep), seeds=study.seeds if file else 1)
    if seeds is not None:
        study = replace(study, seeds=seeds)
    if target:
        study = replace(study, targets=parse_targets(target))
    if baseline is not None:
        study = replace(study, baseline=baseline)
    folder = out or fresh_folder(f"compare-{'-'.join(map(studies.slug, study.cells[0].values))}")
    options = simulation.Options(
        workers=workers, chunk=chunk, step=step, channels_last=channels_last, products=products, spill=spill,
        data_dir=data_dir,
        on_divergence=on_divergence, keep_vectors=False,
    )  # fmt: skip
    run_study(study, folder, terminal.StudyDisplay(quiet, verbose, trackers(tensorboard, mlflow)), options, budget)


def run_study(
    study: studies.Study,
    folder: Path,
    display: terminal.StudyDisplay,
    options: simulation.Options,
    budget: float | None = None,
) -> None:
    """Run a study into a folder, then print its table, the places of its files and what to try next."""
    try:
        with display:
            result = studies.compare(
                study,
                out=folder,
                observe=display.observers,
                budget=budget,
                side_by_side=display.takes_several,
                **options,
            )
        if result.left:
            say_left(result, budget)
            return
        title = comparison_title(study, result)
        say_tables(result, title, "they are in its files")
        say_remarks(result)
        from gossamer.pages.report import REPORT, write_report  # not before the first round: it imports pandas

        tables = write_tables(result, folder, title)
        say_figures(result, folder, title, *tables)
        say_where(write_report(result, folder / REPORT, title, data_dir=options.get("data_dir")))
    except KeyboardInterrupt as stop:
        if isinstance(stop, simulation.Interrupted) or not (folder / studies.COMPARISON).exists():
            raise
        raise simulation.Interrupted(0, folder) from None  # between two runs, or while the curves were drawn
    terminal.say_next(next_command(study, folder))


def parse_sweeps(texts: list[str]) -> dict[str, list[Any]]:
    """All `--sweep` options as keys and values; those of one key are joined."""
    sweep: dict[str, list[Any]] = {}
    for key, values in map(parse_sweep, texts):
        sweep[key] = sweep.get(key, []) + values
    return sweep


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
