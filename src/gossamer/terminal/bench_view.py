"""What `gossamer bench` prints."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gossamer.bench import BenchReport
from gossamer.bench.processor import machine
from gossamer.system.machine import usable_cores
from gossamer.system.words import counted, size
from gossamer.terminal.console import ruled_table


def bench_view(report: BenchReport) -> RenderableType:
    """The speeds, where the time goes, the memory, and what limits the run."""
    return Group(
        *_about(report),
        _speeds(report),
        *_how(report),
        *_time(report),
        *_memory(report),
        *_disturbed(report),
        "",
        Text(f"→ {report.verdict}", style="bold"),
    )


def _about(report: BenchReport) -> Iterator[RenderableType]:
    here = machine()
    rate = f"{report.matrix_rate / 1e9:.3g} GFLOP/s in products on one core ({report.fastest})"
    yield Text(f"{here['processor']}, {counted(usable_cores(), 'core')}, torch {here['torch']}: {rate}", style="dim")
    batch = f"{report.batch:.3g}" + ("" if report.batch.is_integer() else " on average")
    shape = f"{report.clients:,} clients, {report.parameters:,} parameters, mini-batches of {batch}"
    yield Text(f"{shape}, {report.steps_per_round:,.0f} local steps in a round", style="dim")
    if report.gradients_per_step > 1:
        yield Text(f"A step takes {report.gradients_per_step} gradients, so the loop is counted per gradient.")
    if report.shortened:
        steps = counted(report.shortened, "local step")
        yield Text(f"A whole round would take long: measured with {steps} of each client, so mixing weighs too much.")


def _speeds(report: BenchReport) -> Table:
    shown = ruled_table()
    shown.add_column("", no_wrap=True)
    shown.add_column("client-steps\nper second", justify="right", no_wrap=True)
    for loop in report.loops:
        shown.add_column(f"against loop,\n{counted(loop.threads, 'thread')}", justify="right", no_wrap=True)
    shown.add_column("share of\nthe limit", justify="right", no_wrap=True)
    for loop in report.loops:
        ratios = [f"{loop.gradients_per_second / other.gradients_per_second:.2f}" for other in report.loops]
        steps = f"{report.loop_steps(loop):,.0f}"
        shown.add_row(f"plain loop, {counted(loop.threads, 'thread')}", steps, *ratios, "")
    for engine in report.engines:
        ratios = [f"{report.against(engine, loop):.2f}" for loop in report.loops]
        share = f"{100 * report.share_of_limit(engine):.0f} %"
        speed = f"{engine.client_steps_per_second:,.0f}"
        shown.add_row(f"Gossamer, {counted(engine.workers, 'worker')}", speed, *ratios, share)
    return shown


def _how(report: BenchReport) -> Iterator[RenderableType]:
    for engine in report.engines:
        yield Text(f"{counted(engine.workers, 'worker')}: {engine.how}", style="dim")


def _time(report: BenchReport) -> Iterator[RenderableType]:
    split = report.best.seconds
    parts = {"local work": split.local, "mixing": split.mixing, "evaluation": split.evaluation}
    if report.best.workers > 1:
        parts["waiting"] = split.waiting
    shares = ", ".join(f"{name} {100 * part / split.total:.0f} %" for name, part in parts.items())
    without = " The speeds above are without evaluation." if split.evaluation > 0.05 * split.total else ""
    yield Text(f"A round takes {split.total:.3g} s: {shares}.{without} Starting took {report.best.start_up:.1f} s.")


def _memory(report: BenchReport) -> Iterator[RenderableType]:
    needed = f"state {size(report.state_bytes)} + data {size(report.data_bytes)}"
    peaks = [
        f"{size(engine.peak_bytes)} with {counted(engine.workers, 'worker')}"
        for engine in report.engines
        if engine.peak_bytes is not None
    ]
    yield Text(f"Memory: {needed}; at most in use: {', '.join(peaks) if peaks else 'not known on this system'}.")


def _disturbed(report: BenchReport) -> Iterator[RenderableType]:
    if report.disturbed:
        words = f"Other processes used {100 * (report.others or 0):.0f} % of the cores meanwhile."
        yield Text(f"{words} Do not trust these figures; measure again when the machine is quiet.", style="yellow")
