"""The schema of an experiment, the same from TOML and from Python.

An `Experiment` decides what is computed, not how: two runs of equal experiments give equal numbers, with any chunk
size, number of workers or interruption.
"""

import hashlib
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from gossamer.data import DATASETS, PARTITIONS
from gossamer.errors import ExperimentError, did_you_mean
from gossamer.graphs import GRAPHS
from gossamer.measure import METRICS, OWN_METRICS
from gossamer.methods import METHODS, LocalWork, Traits, traits_of
from gossamer.models import LOSSES, MODELS
from gossamer.parts import PYTHON_ONLY, Catalog, explain, parameters_of

CATALOGS: dict[str, Catalog] = {
    "method": METHODS,
    "graph": GRAPHS,
    "dataset": DATASETS,
    "partition": PARTITIONS,
    "model": MODELS,
    "loss": LOSSES,
    "metric": OWN_METRICS,
}


#: The keys of a file for `gossamer compare` that are not of its experiment.
STUDY_KEYS = ("sweep", "variant", "seeds", "targets", "baseline")
#: Two keys for the same quantity: setting one unsets the other.
ALTERNATIVES = {"local_epochs": "local_steps", "local_steps": "local_epochs"}


def _off_is_none(value: Any) -> Any:
    return None if value in ("off", "none") else value


Off = BeforeValidator(_off_is_none)


class Checked(BaseModel):
    """A table of an experiment: frozen, without unknown keys, with true and false only for switches."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: Any, info: ValidationInfo) -> Any:
        switch = cls.model_fields[str(info.field_name)].annotation is bool
        if isinstance(value, bool) and not switch:  # Python would take true as 1
            raise ValueError(f"should not be {str(value).lower()}: it is not a switch")
        return value


class Evaluate(Checked):
    """Rounds between measurements; 0 is never. In the last round, `every`, `clients` and `training` are always due, and
    the others unless they are 0."""

    every: int = Field(1, ge=0, description="the averaged model on the test samples, and the consensus distance")
    clients: int = Field(5, ge=0, description="every client's own model on the test samples")
    training: int = Field(5, ge=0, description="the averaged model on all training samples")
    gradient: int = Field(
        0, ge=0, description="the squared gradient norm of the averaged model, on all training samples"
    )
    sharpness: int = Field(0, ge=0, description="the flatness of the training loss at the averaged model")
    personal: int = Field(
        0, ge=0, description="accuracy on test samples in the proportions of each client's own labels"
    )
    start: bool = Field(False, description="also measure the models before the first round, as round 0")


class StopAt(Checked):
    """Ends a run on purpose after the round in which a metric reaches a value."""

    metric: str = Field(description="a metric of the record; accuracies and totals rise to the value, losses fall")
    value: float = Field(allow_inf_nan=False, description="the value at which the run stops")

    @field_validator("metric")
    @classmethod
    def _is_known(cls, metric: str) -> str:
        known = [name for name, about in METRICS.items() if about.direction is not None]
        if metric not in known:
            raise ValueError(f"unknown metric '{metric}': {did_you_mean(metric, known)}")
        return metric


class Experiment(Checked):
    """All settings that determine the numbers of a run.

    A part (method, graph, data set, partition, model, loss) is given by its name, by a table of its name and
    parameters, by the dotted path of a user-defined one (`package.module:name`), or, in Python, as the object itself.

    >>> experiment = Experiment(method={"name": "dfedsam", "rho": 0.05}, rounds=3)
    >>> experiment.method
    DFedSAM(rho=0.05)
    >>> Experiment(rouns=3)
    Traceback (most recent call last):
    gossamer.errors.ExperimentError: unknown key 'rouns': did you mean 'rounds'?
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, validate_default=True)

    method: Annotated[Any, PlainValidator(METHODS.build)] = Field("dfedavg", description="how clients train and talk")
    graph: Annotated[Any, PlainValidator(lambda spec: None if spec is None else GRAPHS.build(spec))] = Field(
        None, description="who talks to whom; default: the plainest graph that the method runs on"
    )
    clients: int = Field(16, ge=1, le=10_000_000, description="number of clients")
    rounds: int = Field(30, ge=1, description="communication rounds")
    dataset: Annotated[Any, PlainValidator(DATASETS.build)] = Field("digits", description="where samples come from")
    partition: Annotated[Any, PlainValidator(PARTITIONS.build)] = Field(
        {"name": "dirichlet", "alpha": 0.3}, description="which client holds which sample"
    )
    model: Annotated[Any, PlainValidator(MODELS.build)] = Field("mnist-2nn", description="the network")
    loss: Annotated[Any, PlainValidator(LOSSES.build)] = Field("cross-entropy", description="what training minimises")
    metric: Annotated[Any, PlainValidator(lambda spec: None if spec is None else OWN_METRICS.build(spec))] = Field(
        None, description="what else is measured of the averaged model's outputs on the test samples"
    )
    batch_size: int = Field(32, ge=1, description="samples in a mini-batch; a smaller last one is kept")
    local_epochs: int | None = Field(None, ge=0, le=10**9, description="local epochs in a round (5 if neither is set)")
    local_steps: int | None = Field(None, ge=0, le=10**9, description="local steps in a round, in place of epochs")
    lr: float = Field(0.1, gt=0, allow_inf_nan=False, description="learning rate of the first round")
    lr_decay: float = Field(0.998, gt=0, le=1, description="factor on the learning rate after every round")
    weight_decay: float = Field(5e-4, ge=0, allow_inf_nan=False, description="L2 coefficient, added to the gradient")
    clip: Annotated[float | None, Off] = Field(None, gt=0, description="largest norm of a gradient; off by default")
    order: Literal["together", "in-turn"] = Field(
        "together",
        description="all clients train, then mix; or each in turn mixes what the others have by then, and trains",
    )
    seed: int = Field(0, ge=0, lt=2**63, description="key of every random draw")
    dtype: Literal["float32", "float64"] = Field("float32", description="numbers that models are made of")
    device: str = Field("cpu", description="where tensors live: cpu, cuda, cuda:1, ...")
    evaluate: Evaluate = Field(Evaluate(), description="how often what is measured")
    stop_at: Annotated[StopAt | None, Off] = Field(None, description="stop when a metric reaches a value")
    checkpoint_every: int = Field(10, ge=0, description="rounds between checkpoints; 0: only at the end")

    #: The user's spec of parts that cannot be described from the object alone, such as an imported instance.
    _given: dict[str, Any] = PrivateAttr(default_factory=dict)

    def __init__(self, /, **values: Any) -> None:
        refuse_unknown_keys(values)
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ExperimentError(explain(error, "experiment")) from None
        for key in CATALOGS.keys() & values.keys():
            if is_spec(values[key]) and not is_spec(CATALOGS[key].describe(getattr(self, key))):
                self._given[key] = values[key]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.local_epochs is not None and self.local_steps is not None:
            raise ValueError("local_epochs and local_steps exclude each other: set one of them")
        traits_of(self.method)  # what is no method, or has a wrong member, is refused
        if self.stop_at and (key := METRICS[self.stop_at.metric].cadence) and not getattr(self.evaluate, key):
            raise ValueError(f"stop_at: {self.stop_at.metric} is not measured round by round: set evaluate.{key}")
        if not callable(self.loss):
            raise ValueError(f"loss: expected a name or a function of (outputs, targets) (got {self.loss!r})")
        if self.metric is not None and not callable(self.metric):
            raise ValueError(f"metric: expected a name or a function of (outputs, targets) (got {self.metric!r})")
        return self

    @property
    def traits(self) -> Traits:
        """The method's optional members, before it is bound to a network and a model."""
        return traits_of(self.method)

    @property
    def local_work(self) -> LocalWork:
        """Epochs or steps of a round: fixed by the method, or else set by the experiment."""
        if own := self.traits.local_work:
            return own
        if self.local_steps is not None:
            return LocalWork(steps=self.local_steps)
        return LocalWork(epochs=5 if self.local_epochs is None else self.local_epochs)

    @property
    def graph_or_default(self) -> Any:
        """The graph, or the default graph of the method."""
        if self.graph is not None:
            return self.graph
        operators = set(self.method.sends.values())
        ring = "ring" if self.clients > 2 else "full"  # a ring of two would be one link
        plainest = "server" if "server" in operators else "directed-random" if "push" in operators else ring
        name = self.traits.default_graph or plainest
        if "neighbours" in parameters_of(GRAPHS[name]):  # ten, as in the papers, or all others of a small network
            return GRAPHS.build({"name": name, "neighbours": max(1, min(10, self.clients - 1))})
        return GRAPHS.build(name)

    def describe(self) -> dict[str, Any]:
        """The experiment as plain values; a part that no file can express stays an object."""
        values: dict[str, Any] = {}
        for key in type(self).model_fields:
            value = getattr(self, key)
            if key in CATALOGS:
                value = self._given.get(key) or (None if value is None else CATALOGS[key].describe(value))
            elif isinstance(value, BaseModel):
                value = value.model_dump()
            if value is not None:
                values[key] = value
        return values

    def but(self, changes: Mapping[str, Any] | None = None, **more: Any) -> "Experiment":
        """The same experiment with some keys changed; a dotted key such as `method.rho` sets a parameter of a part.

        >>> Experiment(method="dfedsam").but({"method.rho": 0.2, "rounds": 5}).method
        DFedSAM(rho=0.2)
        """
        values = self.describe()
        for key, value in {**(changes or {}), **more}.items():
            set_key(values, key, value)
        return Experiment(**values)

    def resolved(self) -> dict[str, Any]:
        """The description, with the defaults that depend on other keys filled in."""
        values = {"graph": GRAPHS.describe(self.graph_or_default)} | self.describe()
        if self.traits.local_work is None:
            values |= {f"local_{unit}": n for unit, n in self.local_work._asdict().items() if n is not None}
        return {key: values[key] for key in type(self).model_fields if key in values}  # one order, so one digest

    def to_toml(self, *, resolved: bool = True) -> str:
        """The experiment as a TOML file; a part that no file can express is replaced by a note of its type."""
        values = self.resolved() if resolved else self.describe()
        for key in CATALOGS:
            if key in values and not is_spec(values[key]):
                values[key] = f"{PYTHON_ONLY}{type(values[key]).__name__}"
        flat = {key: plain(value) for key, value in values.items() if not isinstance(value, dict)}
        tables = {key: plain(value) for key, value in values.items() if isinstance(value, dict)}
        return tomli_w.dumps({**flat, **tables})

    @property
    def digest(self) -> str:
        """A short fingerprint: equal for equal experiments."""
        return hashlib.sha256(self.to_toml().encode()).hexdigest()[:16]


def read_toml(path: Path) -> dict[str, Any]:
    """The values of a TOML file; a syntax error is reported with its line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(f"{path}: not valid TOML: {error}") from None
    except UnicodeDecodeError as error:
        raise ExperimentError(f"{path}: not valid TOML: not UTF-8 text ({error.reason})") from None
    except OSError as error:
        folder = f"; 'gossamer resume {path}' goes on with a run or a comparison" if any(path.glob("*.toml")) else ""
        raise ExperimentError(f"{path}: cannot be read: {error.strerror}{folder}") from None


def load_experiment(path: Path | None, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment of a TOML file (or the default one), with some keys overridden."""
    values = read_toml(path) if path else {}
    if found := next((key for key in STUDY_KEYS if key in values), None):
        what = {"sweep": "a [sweep]", "variant": "a [[variant]]"}.get(found, f"the key '{found}'")
        raise ExperimentError(f"{path}: has {what}, so it is a comparison: run it with 'gossamer compare {path}'")
    return experiment_from(values, overrides, path)


def experiment_from(values: dict[str, Any], overrides: Mapping[str, Any] | None, path: Path | None) -> Experiment:
    """An experiment from a file's values; its errors name the file."""
    # A part before its parameters, whichever was given first: `method=dfedsam` must not undo `method.rho=0.3`.
    for key, value in sorted((overrides or {}).items(), key=lambda setting: "." in setting[0]):
        set_key(values, key, value)
    try:
        return Experiment(**values)
    except ExperimentError as error:
        raise ExperimentError(f"{path}: {error}" if path else str(error)) from None


def parse_setting(setting: str) -> tuple[str, Any]:
    """`key=value` from the command line; a value that is not valid TOML is taken as a string.

    >>> parse_setting("lr=0.05"), parse_setting("method.name=dfedsam"), parse_setting("evaluate={every=2}")
    (('lr', 0.05), ('method.name', 'dfedsam'), ('evaluate', {'every': 2}))
    """
    key, sign, text = setting.partition("=")
    if not sign or not key.strip():
        raise ExperimentError(f"'{setting}' is not a setting: write key=value, for example lr=0.05 or method.rho=0.1")
    return key.strip(), parse_value(text.strip())


def parse_value(text: str) -> Any:
    """A TOML value, or the text itself if it is not valid TOML."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def set_key(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a key, which may be dotted; a part given by its name becomes a table that holds the parameter."""
    first, _, rest = key.partition(".")
    if first in ALTERNATIVES:  # the last one set counts
        values.pop(ALTERNATIVES[first], None)
    if not rest:
        values[first] = value
        return
    inner = values.get(first)
    if isinstance(inner, str):
        inner = {"name": inner}
    if inner is None:
        default = Experiment.model_fields[first].default if first in Experiment.model_fields else None
        inner = {"name": default} if isinstance(default, str) else dict(default) if isinstance(default, dict) else {}
    if not isinstance(inner, Mapping):
        raise ExperimentError(f"'{key}' cannot be set: {first} is {inner!r}, not a name or a table")
    values[first] = {**inner, rest: value}


def refuse_unknown_keys(values: Mapping[str, Any]) -> None:
    """Refuse an unknown key and name the nearest valid one."""
    for key in values:
        if key not in Experiment.model_fields:
            hint = meant_key(key, values) or did_you_mean("", Experiment.model_fields)
            raise ExperimentError(f"unknown key '{key}': {hint}")
    for table, schema in (("evaluate", Evaluate), ("stop_at", StopAt)):
        given = values.get(table)
        for key in given if isinstance(given, Mapping) else ():
            if key not in schema.model_fields:
                raise ExperimentError(f"unknown key '{table}.{key}': {did_you_mean(key, schema.model_fields)}")


def meant_key(word: str, values: Mapping[str, Any]) -> str:
    """The nearest key to a word: one of the experiment, or a parameter of its parts, or of others; '' if none is near.

    >>> meant_key("rouns", {}), meant_key("neighbors", {"graph": "directed-random"})
    ("did you mean 'rounds'?", "did you mean 'graph.neighbours'?")
    >>> meant_key("gosip_steps", {})
    "did you mean 'method.gossip_steps' (of dfedsam-mgs)?"
    """
    own = {key: f"'{key}'" for key in Experiment.model_fields}
    others: dict[str, list[str]] = {}
    for kind, catalog in CATALOGS.items():
        spec = values.get(kind, Experiment.model_fields[kind].default)
        chosen = spec.get("name") if isinstance(spec, Mapping) else spec
        takers: dict[str, list[str]] = {}
        for name, maker in catalog.items():
            for key in parameters_of(maker):
                if name == chosen:
                    own.setdefault(key, f"'{kind}.{key}'")
                takers.setdefault(key, []).append(name)
        for key, names in takers.items():
            some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            others.setdefault(key, []).append(f"'{kind}.{key}' (of {some})")
    own |= {key: f"'evaluate.{key}'" for key in Evaluate.model_fields if key not in own}
    places = {key: " or ".join(each) for key, each in others.items()} | own
    near = get_close_matches(word, places, n=1)
    return f"did you mean {places[near[0]]}?" if near else ""


def is_spec(value: Any) -> bool:
    """Whether a value is a name or a table, which a file can hold."""
    return isinstance(value, str | Mapping)


def plain(value: Any) -> Any:
    """A value in the types that TOML has."""
    if isinstance(value, Mapping):
        return {key: plain(v) for key, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, str | int | float | bool):
        return value
    return str(value)
