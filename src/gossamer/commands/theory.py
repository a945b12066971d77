"""`gossamer theory`."""

import json
from typing import Annotated

import typer

from gossamer.commands.options import DataDir, File, Json, Settings, overrides
from gossamer.experiment import load_experiment
from gossamer.terminal import console


def theory(
    file: File = None,
    settings: Settings = [],  # noqa: B006  # typer copies it
    smoothness: Annotated[
        float | None, typer.Option(metavar="L", help="The smoothness constant; default: estimated at the start.")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Print the papers' bounds with their terms: graph, heterogeneity, noise, each measured on your data."""
    from gossamer.terminal.theory_view import theory_view
    from gossamer.theory import analyse

    result = analyse(load_experiment(file, overrides(settings)), data_dir, smoothness)
    if as_json:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        console.out.print(theory_view(result))
