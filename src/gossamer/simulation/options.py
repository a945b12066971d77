"""The options of a run: they change its speed and what is kept, and never the numbers."""

from pathlib import Path
from typing import Literal, TypedDict, get_args

from gossamer.engines import Products, StepMode
from gossamer.errors import ExperimentError

OnDivergence = Literal["stop", "continue"]


class Options(TypedDict, total=False):
    """How an experiment is run.

    Left out or None: as many workers as cores if a round is long enough, and the rest by a short measurement.
    """

    #: Processes that share the clients out among them.
    workers: int | None
    #: Clients that a worker runs at once.
    chunk: int | None
    #: How a local step is run: "eager", "traced", "compiled" or "lanes".
    step: StepMode | None
    #: Images with their channels last.
    channels_last: bool | None
    #: The library for matrix products in traced and compiled steps: "auto", "mkl", "onednn" or "own".
    products: Products | None
    #: A folder for a state that is larger than the memory.
    spill: Path | str | None
    #: The folder of the data sets.
    data_dir: Path | None
    #: "stop" or "continue" when a loss is not finite any more.
    on_divergence: OnDivergence
    #: False: the clients' vectors are not gathered at the end, which takes the memory of one state.
    keep_vectors: bool
    #: Bytes of state up to which the state before a round is kept as well, so that an interrupted round can be undone.
    small_state: int


def check_options(options: Options) -> None:
    """Validate the options."""
    if unknown := options.keys() - Options.__annotations__.keys():
        raise TypeError(f"unknown option {', '.join(sorted(unknown))}; known: {', '.join(Options.__annotations__)}")
    for name in ("workers", "chunk"):
        number = options.get(name)
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
            raise ExperimentError(f"{name}: should be a whole number, at least 1 (got {number!r})")
    if options.get("spill") == "":
        raise ExperimentError("spill: names no folder")
    words_of = {"on_divergence": OnDivergence, "step": StepMode, "products": Products}
    for name, words in ((name, get_args(kind)) for name, kind in words_of.items()):
        word = options.get(name)
        if word is not None and word not in words:
            raise ExperimentError(f"{name}: should be {' or '.join(map(repr, words))} (got {word!r})")
