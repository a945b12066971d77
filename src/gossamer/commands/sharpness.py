"""`gossamer sharpness`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from gossamer.commands.options import DataDir, Json, Quiet, Workers


def sharpness(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs or comparisons.")],
    clients: Annotated[int, typer.Option(help="Also so many clients' own models, spread evenly.")] = 0,
    on: Annotated[Literal["train", "test"], typer.Option(help="The samples of the loss.")] = "train",
    samples: Annotated[int, typer.Option(help="At most so many of them, at even distances.")] = 10_000,
    model: Annotated[
        Literal["final", "best"], typer.Option(help="The model at the end, or of the best round.")
    ] = "final",
    eigenvalues: Annotated[int, typer.Option(help="How many of the largest Hessian eigenvalues.")] = 1,
    probes: Annotated[int, typer.Option(help="Random vectors for the trace.")] = 30,
    rho: Annotated[float, typer.Option(help="Radius of SAM-sharpness.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Of the random vectors.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write all measurements to a CSV file.")] = None,
    data_dir: DataDir = None,
    workers: Workers = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure how flat the loss is at the models of saved runs: Hessian eigenvalues and trace, SAM-sharpness.

    The numbers are kept in sharpness.jsonl of each run folder; what is there already is not measured again.
    """
    import json

    from gossamer.errors import ExperimentError
    from gossamer.runs.files import write_text
    from gossamer.studies import SharpnessSettings, measure_sharpness
    from gossamer.studies.sharpness import run_folders
    from gossamer.terminal import console
    from gossamer.terminal.flatness_view import Bar, sharpness_rows, sharpness_view

    if clients < 0:
        raise ExperimentError(f"clients must be 0 or more (got {clients})")
    if out is not None and out.suffix != ".csv":
        raise ExperimentError(f"{out}: the measurements are written as .csv; '{out.suffix}' is none")
    settings = SharpnessSettings(model, on, samples, eigenvalues, probes=probes, rho=rho, seed=seed)
    folders = run_folders(runs)
    found = []
    with Bar(quiet) as bar:
        for number, folder in enumerate(folders):
            lines = measure_sharpness(
                folder, settings, clients=clients, data_dir=data_dir, workers=workers,
                progress=bar.part(number, len(folders), folder.resolve().name),
            )  # fmt: skip
            found += [(folder, line) for line in lines]
    if as_json:
        print(json.dumps([{"run": str(folder), **line} for folder, line in found], indent=2))
    else:
        console.out.print(sharpness_view(found))
    if out is not None:
        import pandas as pd

        write_text(out, pd.DataFrame(sharpness_rows(found)).to_csv(index=False))
        console.say_where(out)
