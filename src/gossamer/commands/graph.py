"""`gossamer graph`."""

import json
from typing import Annotated

import typer

from gossamer.commands.options import Json, Picture, overrides
from gossamer.data import DATASETS
from gossamer.errors import ExperimentError
from gossamer.graphs import GRAPHS, draw, make_network, summarise
from gossamer.models import MODELS, VectorModel, make_module
from gossamer.runs.files import make_folder
from gossamer.terminal import console
from gossamer.terminal.graph_view import graph_table


def graph(
    name: Annotated[str, typer.Argument(help="A graph: see 'gossamer graphs'.")] = "ring",
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 16,
    settings: Annotated[
        list[str], typer.Option("--set", "-s", metavar="KEY=VALUE", help="A parameter of the graph, e.g. k=4.")
    ] = [],  # noqa: B006  # typer copies it
    model: Annotated[str, typer.Option(help="The model whose messages are counted.")] = "mnist-2nn",
    dataset: Annotated[str, typer.Option(help="The data set the model is for.")] = "mnist",
    seed: Annotated[int, typer.Option(min=0, help="Key of random graphs.")] = 0,
    out: Picture = None,
    as_json: Json = False,
) -> None:
    """Print how well a graph mixes and what it costs, and draw it."""
    network = make_network(GRAPHS.build({"name": name, **overrides(settings)}), clients, seed)
    summary = summarise(network)
    message = 4 * model_size(model, dataset)
    if as_json:
        about = {**summary.to_dict(), "lambda": summary.lambda_, "bytes_per_round": summary.links_per_step * message}
        about.pop("lambda_")
        print(json.dumps(about, indent=2))
    else:
        console.out.print(graph_table(summary, message, f"{model} on {dataset}"))
    if out:
        make_folder(out.parent)
        draw(network, out)
        if not as_json:
            console.say_where(out)


def model_size(model: str, dataset: str) -> int:
    """Parameters of a model on a data set's samples."""
    about = DATASETS.find(dataset)
    shape, classes = getattr(about, "shape", None), getattr(about, "classes", None)
    if shape is None or classes is None:
        raise ExperimentError(f"data set '{dataset}' does not say its shape and classes; name a built-in one")
    return VectorModel(make_module(MODELS.build(model), shape, classes)).size
