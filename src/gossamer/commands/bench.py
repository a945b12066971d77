"""`gossamer bench`."""

import json
from typing import Annotated

import typer

from gossamer.commands.options import Chunk, DataDir, File, Json, Settings, StepOption, Workers, overrides
from gossamer.experiment import load_experiment
from gossamer.terminal import console


def bench(
    file: File = None,
    settings: Settings = [],  # noqa: B006  # typer copies it
    workers: Workers = None,
    chunk: Chunk = None,
    step: StepOption = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="How long to measure, about.")] = 10.0,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Measure how fast an experiment runs on this machine, against a plain loop and the processor's limit."""
    from gossamer.bench import benchmark
    from gossamer.terminal.bench_view import bench_view

    experiment = load_experiment(file, overrides(settings))
    with console.err.status("starting") as status:
        report = benchmark(
            experiment, workers=workers, data_dir=data_dir, seconds=seconds, chunk=chunk, step=step, say=status.update
        )
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        console.out.print(bench_view(report))
