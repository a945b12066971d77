"""The pages that are generated from the code, so that they always agree with it.

`python -m gossamer.pages.manual docs` writes them.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gossamer.experiment import CATALOGS, Evaluate, Experiment, StopAt, plain
from gossamer.measure import METRICS
from gossamer.methods import METHODS, Traits, costs, families, graph_needed, model_sizes, traits_of
from gossamer.pages.api import api_reference
from gossamer.parts import Catalog, parameters_of, summary_of

HEADINGS = {
    "method": "Methods",
    "graph": "Graphs",
    "dataset": "Data sets",
    "partition": "Partitions",
    "model": "Models",
    "loss": "Losses",
    "metric": "Named metrics",
}

#: The keys of an experiment that are tables.
TABLES: dict[str, type[BaseModel]] = {"evaluate": Evaluate, "stop_at": StopAt}

#: How a bound of pydantic's is written in a formula.
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}

OPENING = """\
# The experiment, key by key

<!-- Written by `make docs` from the schema in src/gossamer/experiment/schema.py. Change the schema, not this page. -->

An experiment is a TOML file, or an `Experiment(...)` in Python. Both are checked by the same schema and take the same
keys. Every key has a default, so an empty file is a valid experiment. An unknown key, an unknown name or a value out of
range is refused before anything runs, with the nearest valid name.

On the command line, `--set key=value` (short: `-s`) overrides a key; `--set method.rho=0.1` reaches into a part.
"""

METHOD_LIST = """\
# The methods

<!-- Written by `make docs` from the methods themselves. Change the code, not this page. -->

What every method needs and what it costs, as `gossamer methods` prints it. Costs are in model sizes and counted from
the tensors that one client really makes: what it keeps between rounds, and what it sends over each link in a round.
[The methods in formulas](methods.md) has the mathematics, [Which method should I use?](which-method.md) the
measurements.
"""

METRIC_LIST = """\
### Metrics

What `metrics.jsonl` of a run folder and `run.metrics` hold of each round, how often it is measured, and from which side
`stop_at` takes a value.
"""

PARTS = """\
## How a part is given

`method`, `graph`, `dataset`, `partition`, `model` and `loss` are parts. A part is given in one of four ways:

- by its name: `method = "dfedsam"`;
- by a table of its name and parameters: `method = {name = "dfedsam", rho = 0.05}`, or a `[method]` section;
- by the dotted path of your own: `method = "mylab:MyMethod"`. The module is looked up in the current directory as well;
- in Python, as the object itself.

[Bring your own](start.md#bring-your-own) has an example of each.
"""

COMPARISON = """\
## Comparisons

A file for `gossamer compare` is an experiment with more keys:

| key | default | meaning |
|---|---|---|
| `[[variant]]` | none | a `label` and any keys of the experiment, which this variant sets: method, graph, lr, ... |
| `[sweep]` | none | keys of the experiment with lists of values |
| `seeds` | `1` | how many seeds, from the experiment's `seed` on, or a list of them |
| `targets` | none | values to reach, of the metric by which runs are judged, or a table of values for each metric |
| `baseline` | none | what the others are compared with: the label of a variant, or one value of a key |

Every variant is run with every combination of the swept values and with every seed. A dotted key, `"method.rho"`, sets
one parameter. With a value as the `baseline`, each variant is compared with the one that has this value and is equal
otherwise. A file with neither `[[variant]]` nor `[sweep]` compares d-psgd, dfedavg, dfedavgm, dfedsam-mgs and
local-g-ecl.

```toml
rounds = 50
seeds = 3
targets = [0.9, 0.95]
baseline = "DFedAvg"

[[variant]]
label = "FedAvg"
method = "fedavg"
graph = "server"

[[variant]]
label = "DFedAvg"
method = "dfedavg"

[[variant]]
label = "DFedSAM"
method = {name = "dfedsam", rho = 0.05}
lr = 0.05

[sweep]
"partition.alpha" = [0.1, 1.0]
```

Targets of other metrics: `targets = {test_accuracy = [0.9], test_loss = [0.5]}`.
"""


#: The lines around the generated table of `docs/methods.md`.
MEMBERS_BEGIN = "<!-- Written by `make docs` from `Traits` in src/gossamer/methods/contract.py. -->"
MEMBERS_END = "<!-- End of what `make docs` writes. -->"


class Row(NamedTuple):
    """One line of a table of keys or parameters."""

    name: str
    kind: str
    default: str
    meaning: str


def experiment_reference() -> str:
    """The Markdown of `docs/experiment.md`."""
    sections = [
        OPENING,
        "## Keys\n\n" + _table("key", map(_key, Experiment.model_fields.items())),
        *(
            f"### `[{name}]`\n\n{summary_of(table)}\n\n" + _table("key", map(_parameter, table.model_fields.items()))
            for name, table in TABLES.items()
        ),
        _metrics(),
        "## The default experiment\n\nEvery default, spelled out:\n\n" + f"```toml\n{Experiment().to_toml()}```\n",
        COMPARISON,
        PARTS,
        *(_catalog(key, CATALOGS[key]) for key in HEADINGS),
    ]
    return "\n".join(sections)


def method_list() -> str:
    """The Markdown of `docs/method-list.md`: what every method is, needs and costs."""
    lines = [METHOD_LIST]
    for family, names in families().items():
        lines += [f"## {family[0].upper()}{family[1:]}\n"]
        lines += [
            "| method | what it does | graph | keeps | sends | parameters | from |",
            "|---|---|---|---|---|---|---|",
        ]
        for name in names:
            maker, method = METHODS[name], METHODS.build(name)
            cost = costs(method)
            parameters = ", ".join(f"`{key}={value}`" for key, value in parameters_of(maker).items()) or "none"
            cells = [
                f"[`{name}`](experiment.md#{name})",
                summary_of(maker),
                graph_needed(method),
                model_sizes(cost.keeps),
            ]
            cells += [model_sizes(cost.sends), parameters, traits_of(method).paper]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def member_table() -> str:
    """The optional members of a method, as the table of `docs/methods.md`."""
    lines = ["| member | default | meaning | used by |", "|---|---|---|---|"]
    for name, field in _fields(Traits):
        default = "" if field.default is None else f"`{field.default!r}`"
        users = {method for method, maker in METHODS.items() if name in dir(maker)}
        lines.append(f"| `{name}` | {default} | {_parameter((name, field)).meaning} | {_methods(users)} |")
    return "\n".join(lines) + "\n"


def _methods(names: set[str]) -> str:
    """Some methods in few words: whole families by their name."""
    if names == set(METHODS):
        return "all"
    words = []
    for family, members in families().items():
        whole = len(members) > 1 and names >= set(members)
        words += [family] if whole else [f"`{name}`" for name in members if name in names]
    return ", ".join(words)


def generated(docs: Path) -> dict[str, str]:
    """The text of every page in a folder of docs that is generated, or has a generated table, by its name."""
    methods = (docs / "methods.md").read_text(encoding="utf-8")
    before, rest = methods.split(MEMBERS_BEGIN)
    page = f"{before}{MEMBERS_BEGIN}\n\n{member_table()}\n{MEMBERS_END}{rest.split(MEMBERS_END)[1]}"
    return {
        "experiment.md": experiment_reference(),
        "method-list.md": method_list(),
        "methods.md": page,
        "python.md": api_reference(),
    }


def _metrics() -> str:
    """The metrics of a round, and which of them a run can stop at."""
    lines = ["| metric | meaning | measured | `stop_at` |", "|---|---|---|---|"]
    for name, metric in METRICS.items():
        measured = f"`evaluate.{metric.cadence}`" if metric.cadence else "every round"
        stops = {"up": "at least", "down": "at most", None: ""}[metric.direction]
        lines.append(f"| `{name}` | {metric.meaning} | {measured} | {stops} |")
    return METRIC_LIST + "\n" + "\n".join(lines) + "\n"


def _catalog(key: str, catalog: Catalog) -> str:
    papers = {name: traits_of(METHODS.build(name)).paper for name in METHODS} if catalog is METHODS else {}
    parts = "\n".join(_part(name, maker, papers.get(name)) for name, maker in catalog.items())
    return f"## {HEADINGS[key]}\n\n{parts}"


def _part(name: str, maker: Callable[..., Any], paper: str | None) -> str:
    lines = [f"### `{name}`\n", inspect.cleandoc(maker.__doc__ or "") + "\n"]
    if paper:
        lines.append(f"From {paper}.\n")
    if rows := parameter_rows(maker):
        lines.append(_table("parameter", rows))
    return "\n".join(lines)


def parameter_rows(maker: Callable[..., Any]) -> list[Row]:
    """The parameters of a part, with their types, ranges, defaults and meanings."""
    return [_parameter(field) for field in _fields(maker)]


def _fields(maker: Callable[..., Any]) -> Iterator[tuple[str, FieldInfo]]:
    """A part's parameters, as pydantic knows them."""
    fields: Mapping[str, FieldInfo] = getattr(maker, "__pydantic_fields__", {})
    return ((name, field) for name, field in fields.items() if field.init is not False and field.repr)


def _key(item: tuple[str, FieldInfo]) -> Row:
    """A key of the experiment; a part is described in its own section."""
    name, field = item
    if name in CATALOGS:
        anchor = HEADINGS[name].lower().replace(" ", "-")
        return Row(name, f"[a {CATALOGS[name].kind}](#{anchor})", _default(field), field.description or "")
    if name in TABLES:
        return Row(
            name, f"[a table](#{name})", "unset" if field.default is None else "see below", field.description or ""
        )
    return _parameter(item)


def _parameter(item: tuple[str, FieldInfo]) -> Row:
    name, field = item
    metadata = [*field.metadata, *_inner(field.annotation)]
    descriptions = [field.description, *(m.description for m in metadata if isinstance(m, FieldInfo))]
    kind = ", ".join([_type(field.annotation), *_range(metadata)])
    return Row(name, kind, _default(field), next((text for text in descriptions if text), ""))


def _inner(annotation: Any) -> Iterator[Any]:
    """What an `Annotated` inside of a union says about a value."""
    for choice in get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ():
        if get_origin(choice) is Annotated:
            for note in get_args(choice)[1:]:
                yield note
                yield from getattr(note, "metadata", ())


def _type(annotation: Any) -> str:
    """A type as a reader of TOML or Python understands it; `None` is not listed, it is what "unset" means."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin in (Union, UnionType):
        return " or ".join(_type(choice) for choice in arguments if choice is not NoneType)
    if origin is Literal:
        return " or ".join(f"`{_toml(word)}`" for word in arguments)
    if origin is None:
        return f"`{getattr(annotation, '__name__', '...')}`"
    return f"`{origin.__name__}[{', '.join(_type(each).strip('`') for each in arguments)}]`"


def _range(metadata: Iterable[Any]) -> Iterator[str]:
    for note in metadata:
        for bound, sign in BOUNDS.items():
            if (limit := getattr(note, bound, None)) is not None:
                yield f"{sign} {'2⁶³' if limit == 2**63 else limit}"
        if (least := getattr(note, "min_length", None)) is not None:
            yield f"at least {least} of them"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return "unset" if field.default is None else f"`{_toml(field.default)}`"


def _toml(value: Any) -> str:
    """A value as it is written in a file."""
    value = plain(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + "}"
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, list) else str(value)


def _table(first: str, rows: Iterable[Row]) -> str:
    lines = [f"| {first} | type | default | meaning |", "|---|---|---|---|"]
    lines += [f"| `{row.name}` | {row.kind} | {row.default} | {row.meaning} |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the generated pages into the folder given."""
    docs = Path(sys.argv[1])
    for name, text in generated(docs).items():
        (docs / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
