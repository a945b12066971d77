"""The numbers behind a report, as plain lists for its scripts: curves, clients, graphs, each within a size."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from gossamer.errors import GossamerError
from gossamer.graphs import GRAPHS, Network, as_graph
from gossamer.graphs.layout import layout
from gossamer.parts import user_code
from gossamer.runs.folder import read_lines
from gossamer.runs.record import RunRecord
from gossamer.studies import Comparison, VariantResult, value_label
from gossamer.system.words import counted

#: The most rounds of which curves are drawn; of more, evenly spaced ones are taken.
POINTS = 400
#: The most links of a graph that are drawn.
LINKS = 6_000
#: The file of a run folder with the values of every client.
CLIENTS = "clients.jsonl"
#: The most clients whose places are computed from their links, which takes seconds; more of them fill a disc.
LAID_OUT = 500
#: Steps of a graph that repeats, of which the links are drawn together.
STEPS = 64


class Panel(NamedTuple):
    """A metric with its chart."""

    key: str
    title: str
    #: How its values are written: "percent" or "number".
    kind: str = "number"
    log: bool = False


PANELS = (
    Panel("test_score", "Score of the averaged model"),
    Panel("test_error", "Error of the averaged model"),
    Panel("test_accuracy", "Test accuracy of the averaged model", "percent"),
    Panel("client_accuracy_worst", "Test accuracy of the worst client", "percent"),
    Panel("test_loss", "Test loss of the averaged model", log=True),
    Panel("local_loss", "Training loss during local steps", log=True),
    Panel("consensus", "Consensus distance (1/n) Σ ‖xᵢ − x̄‖²", log=True),
    Panel("gradient_norm_squared", "Squared gradient norm ‖∇f(x̄)‖² of the averaged model", log=True),
    Panel("personal_accuracy_mean", "Accuracy of clients on their own labels", "percent"),
    Panel("generalisation_gap", "Training accuracy minus test accuracy", "percent"),
)


class Axis(NamedTuple):
    """What curves are drawn against."""

    key: str
    title: str
    kind: str


AXES = (
    Axis("round", "round", "number"),
    Axis("bytes", "bytes sent", "bytes"),
    Axis("gradients", "gradients", "count"),
    Axis("seconds", "seconds", "seconds"),
)


def curves(comparison: Comparison) -> dict[str, Any]:
    """The metrics of every run on common rounds, and notes on what was left out."""
    records = comparison.records
    rounds, whole = chosen_rounds(records, comparison.score.key)
    panels = [panel for panel in PANELS if any(has_numbers(record, panel.key) for record in records)]
    variants: list[dict[str, Any]] = [
        {"label": variant.label, "runs": [run_columns(seed, run, rounds, panels) for seed, run in variant.runs.items()]}
        for variant in comparison.variants.values()
    ]
    notes = []
    if len(rounds) < whole:
        notes.append(f"{len(rounds)} of {whole:,} rounds are drawn, evenly spaced; the run folders hold all of them.")
    runs = [run for variant in variants for run in variant["runs"]]
    used = [axis for axis in AXES if axis.key == "round" or any(any(known(run["x"][axis.key])) for run in runs)]
    return {
        "rounds": rounds,
        "metrics": [panel._asdict() for panel in panels],
        "axes": [axis._asdict() for axis in used],
        "variants": variants,
        "notes": notes,
    }


def known(values: Iterable[float | None]) -> Iterator[bool]:
    """Which of the values are there."""
    return (value is not None for value in values)


def has_numbers(record: RunRecord, key: str) -> bool:
    """Whether a metric was measured in any round."""
    return key in record.metrics and bool(record.metrics[key].notna().any())


def chosen_rounds(records: Sequence[RunRecord], score: str) -> tuple[list[int], int]:
    """The rounds that are drawn, and how many there are: evaluated ones first, then others that fit between them."""
    every: set[int] = set()
    scored: set[int] = set()
    for record in records:
        if len(record.metrics):
            every.update(record.metrics["round"].tolist())
            if score in record.metrics:
                scored.update(record.metrics.loc[record.metrics[score].notna(), "round"].tolist())
    kept = set(spaced(sorted(scored), POINTS))
    if len(kept) < POINTS:
        kept |= set(spaced(sorted(every), POINTS - len(kept) if len(every) > POINTS else POINTS))
    return sorted(kept), len(every)


def spaced(values: Sequence[int], most: int) -> list[int]:
    """At most `most` values, evenly spaced, with the first and the last.

    >>> spaced(list(range(10)), 4)
    [0, 3, 6, 9]
    """
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)] if most > 1 else list(values[-1:])


def run_columns(seed: int, run: RunRecord, rounds: list[int], panels: Iterable[Panel]) -> dict[str, Any]:
    """A run's metrics and axes on these rounds."""
    if not len(run.metrics):
        empty: list[None] = [None] * len(rounds)
        return {"seed": seed, "x": {axis.key: empty for axis in AXES[1:]}, "y": {}}
    metrics = run.metrics.drop_duplicates("round").set_index("round")
    parts = [column for column in run.timings.columns if column.startswith("seconds_")]
    seconds = pd.Series(dtype=float)
    if parts:
        seconds = run.timings.drop_duplicates("round").set_index("round")[parts].sum(axis=1).cumsum()

    def column(values: Any) -> list[float | None]:
        return [short(value) for value in values.reindex(rounds).tolist()]

    x = {axis: column(metrics[f"{axis}_total"]) if f"{axis}_total" in metrics else [None] * len(rounds)
         for axis in ("bytes", "gradients")}  # fmt: skip
    y = {panel.key: column(metrics[panel.key]) for panel in panels if panel.key in metrics}
    return {"seed": seed, "x": {**x, "seconds": column(seconds)}, "y": y}


def short(value: Any) -> float | None:
    """A number to six digits; None for one that is not finite, which JSON does not have."""
    if value is None or not math.isfinite(value):
        return None
    number = float(f"{value:.6g}")
    return int(number) if number.is_integer() and abs(number) < 1e15 else number


def clients(comparison: Comparison) -> dict[str, Any]:
    """For each variant the partition and the graph of its first seed; equal ones are there once."""
    partitions: list[list[list[int]]] = []
    graphs: list[dict[str, Any]] = []
    places: dict[str, int] = {}
    variants = []
    for variant in comparison.variants.values():
        seed, run = next(iter(variant.runs.items()))
        partition = labels_of(run)
        if partition is not None and partition not in partitions:
            partitions.append(partition)
        spec = json.dumps([run.experiment.get(key) for key in ("graph", "clients", "seed")], default=str)
        if spec not in places:
            graphs.append(graph_of(run.experiment))
            places[spec] = len(graphs) - 1
        drawn = graphs[places[spec]]
        variants.append({
            "label": variant.label, "seed": seed,
            "partition": None if partition is None else partitions.index(partition),
            "graph": places[spec] if drawn["places"] else None,
            "values": client_values(run, CLIENT_NUMBERS // len(CLIENT_VALUES) // len(comparison.variants)),
        })  # fmt: skip
    notes = list(dict.fromkeys(graph["problem"] for graph in graphs if graph["problem"]))
    return {"partitions": partitions, "graphs": graphs, "variants": variants, "notes": notes}


def labels_of(run: RunRecord) -> list[list[int]] | None:
    """How many samples of each label every client held; None if the run folder does not say."""
    if run.folder is None:
        return None
    try:
        labels = json.loads((run.folder / "partition.json").read_text(encoding="utf-8"))["labels"]
        array = np.array(labels)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return labels if array.ndim == 2 and array.size and array.dtype.kind in "iu" else None


class ClientValue(NamedTuple):
    """A value of every client over the rounds."""

    key: str
    title: str
    #: Its name on a switch.
    short: str
    kind: str = "number"
    #: Whether a low value is good.
    reversed: bool = False
    #: Whether each client has a small curve of it.
    multiples: bool = False


CLIENT_VALUES = (
    ClientValue("client_accuracy", "Test accuracy of each client's own model", "accuracy", "percent", multiples=True),
    ClientValue("client_loss", "Test loss of each client's own model", "loss", reversed=True),
    ClientValue(
        "client_distance", "Squared distance of each client's model from the average", "disagreement", reversed=True
    ),
    ClientValue("client_weight", "Push-sum weight of each client", "push-sum weight", multiples=True),
)
#: The most numbers of clients that a page holds: of more, evenly spaced rounds of every variant are taken.
CLIENT_NUMBERS = 2_000_000


def client_values(run: RunRecord, most: int) -> list[dict[str, Any]]:
    """The values of every client that a run has kept, each on so many rounds that it has at most `most` numbers."""
    lines = read_lines(run.folder / CLIENTS) if run.folder is not None else []
    count = run.experiment.get("clients")
    found = []
    for value in CLIENT_VALUES:
        rows = {line["round"]: line[value.key] for line in lines
                if isinstance(line.get(value.key), list) and len(line[value.key]) == count}  # fmt: skip
        finite = [x for row in rows.values() for x in row if isinstance(x, int | float) and math.isfinite(x)]
        if not finite or not isinstance(count, int):
            continue
        rounds = spaced(sorted(rows), max(2, most // count))
        kept = [[short(x) if isinstance(x, int | float) else None for x in rows[number]] for number in rounds]
        found.append(
            {
                **value._asdict(),
                "range": [short(min(finite)), short(max(finite))],
                "of": len(rows),
                "rounds": rounds,
                "rows": kept,
            }
        )
    # A loss stands in for an accuracy where that has no meaning.
    if found and not any(each["multiples"] for each in found):
        found[0]["multiples"] = True
    return found


def graph_of(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Places and links of an experiment's graph; without places where it cannot be built here."""
    about: dict[str, Any] = {"title": "", "note": "", "problem": "", "places": [], "links": [], "server": False}
    graph, count = experiment.get("graph"), experiment.get("clients")
    title = value_label(graph)
    if not isinstance(count, int) or graph is None:
        return about
    try:
        with user_code("graph"):
            network = as_graph(GRAPHS.build(graph)).bind(count, int(experiment.get("seed", 0)))
            pairs, note = links_of(network)
            places = layout(network) if count <= LAID_OUT or network.shape else disc(count)
    except (GossamerError, ImportError, MemoryError) as error:
        return {**about, "problem": f"The graph {title} is not drawn: {error}"}
    whole = len(pairs)
    if whole > LINKS:
        pairs = pairs[spaced(range(whole), LINKS)]
        note = f"{LINKS:,} of {whole:,} links are drawn. {note}"
    return {
        **about,
        "title": f"{title}, {counted(count, 'client')}",
        "note": note.strip(),
        "places": np.round(places, 4).tolist(),
        "links": pairs.tolist(),
        "server": network.has_server,
    }


def disc(count: int) -> Any:
    """Places that fill a disc evenly, from its middle outwards."""
    number = np.arange(count)
    angle, radius = number * np.pi * (3 - np.sqrt(5)), np.sqrt((number + 0.5) / count)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def links_of(network: Network) -> tuple[Any, str]:
    """Pairs of clients that talk to each other, and what they are; −1 is the server."""
    if network.has_server:
        called = np.flatnonzero(network.sends(0))
        some = "" if len(called) == network.clients else "The clients that the server called first."
        return np.stack([called, np.full(len(called), -1)], axis=1), some
    steps = range(min(network.period or 1, STEPS))
    note = {1: ""}.get(network.period or 0, f"Links of {counted(len(steps), 'step')}, after which they repeat.")
    if network.period is None:
        note = "Links of the first step; they are drawn anew at every step."
    found = []
    for step in steps:
        matrix = network.matrix(step).tocoo()
        receiver, sender = matrix.coords
        apart = receiver != sender
        low, high = np.minimum(receiver, sender)[apart], np.maximum(receiver, sender)[apart]
        found.append(np.stack([low, high], axis=1))
    return np.unique(np.concatenate(found), axis=0), note


def differing(comparison: Comparison) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """The keys of the experiment that all variants share, with their values, and those that tell each apart."""
    facts = {label: described(variant) for label, variant in comparison.variants.items()}
    keys = list(dict.fromkeys(key for each in facts.values() for key in each))
    same = {key for key in keys if len({each.get(key) for each in facts.values()}) == 1}
    first = next(iter(facts.values()), {})
    return (
        {key: first[key] for key in keys if key in same},
        {label: {key: each[key] for key in keys if key in each and key not in same} for label, each in facts.items()},
    )


def described(variant: VariantResult) -> dict[str, str]:
    """The experiment of a variant as words, without its seed."""
    experiment = next(iter(variant.runs.values())).experiment
    return {key: words(value) for key, value in experiment.items() if key != "seed"}


def words(value: Any) -> str:
    """A value of an experiment as words.

    >>> words({"every": 1, "start": True}), words({"name": "ring"})
    ('every = 1, start = true', 'ring')
    """
    if isinstance(value, dict) and "name" not in value:
        plain = {key: str(inner).lower() if isinstance(inner, bool) else inner for key, inner in value.items()}
        return ", ".join(f"{key} = {inner}" for key, inner in plain.items())
    return value_label(value)
