"""What a user's function does beside returning a result: in-place changes, global random numbers, hidden state."""

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gossamer.errors import ExperimentError
from gossamer.parts import describe_error, is_out_of_memory, user_line
from gossamer.system.streams import STREAMS, drawn_since, stream_states

T = TypeVar("T")

#: The operator of each in-place one, for the line that is right.
OPERATORS = {"add": "+", "iadd": "+", "sub": "-", "isub": "-", "mul": "*", "imul": "*", "div": "/", "itruediv": "/"}
#: What is wrong with a method that changes its own object.
HIDDEN = (
    "one object serves all clients of a worker, and nothing of it is saved. Keep it in the state, as a tensor; the "
    "number of the round is `round.number`."
)


class InPlaceError(Exception):
    """A function of torch has changed a watched tensor."""

    def __init__(self, place: str, function: str) -> None:
        super().__init__(place)
        self.place, self.function = place, function

    def remedy(self) -> str:
        """The line that is right."""
        symbol = OPERATORS.get(self.function.strip("_"))
        if symbol is None:
            return f"y = {self.place}.clone()` and change y, or `torch.where"
        target = self.place if "[" in self.place else self.place.replace(".", "_")
        return f"{target} = {self.place} {symbol} ..."


class Watch(TorchFunctionMode):
    """Raises at the line that changes one of some tensors in place. A view has the version of what it is a view of."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        super().__init__()
        self._watched = [(place, t, t._version) for place, t in tensors.items() if has_version(t)]

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if changed := [(place, t) for place, t, version in self._watched if t._version != version]:
            # Whatever shares memory with the tensor has changed too: `local` may hold what `state` holds.
            named = [place for place, t in changed if any(t is each for each in args)] or [changed[-1][0]]
            raise InPlaceError(named[-1], getattr(function, "__name__", ""))
        return result


def at_line(error: BaseException) -> str:
    """Where in a user's code an error was raised, in brackets."""
    line = user_line(error)
    return f" ({line})" if line else ""


def refuse_failure(what: str, error: BaseException, hint: str = "", join: str = ": ") -> NoReturn:
    """Refuse a part whose code raised an error."""
    if is_out_of_memory(error):
        raise error
    told = describe_error(error)
    raise ExperimentError(f"{what}{join}{told.removesuffix('.') if hint else told}{hint}") from error


def same_numbers(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers; NaN is NaN."""
    return torch.equal(one, other) or (one.shape == other.shape and bool(((one == other) | (one != one)).all()))


def equal_results(one: Any, other: Any) -> bool:
    """Whether two results of a function hold the same numbers."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and same_numbers(one, other)
    if isinstance(one, dict):
        if not isinstance(other, dict) or one.keys() != other.keys():
            return False
        return all(equal_results(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal_results, one, other))
    return type(one) is type(other)  # refused elsewhere


def call(name: str, index: int, function: Callable[..., T], *given: Any) -> T:
    """Call a function of a method, for one client or for rows of several; refused if it changes a tensor in place.

    The function gets copies of the dictionaries, so that it may set their entries.
    """
    before = [t._version for values in given if type(values) is dict for t in values.values()]
    result = function(*(dict(values) if type(values) is dict else values for values in given))
    if before != [t._version for values in given if type(values) is dict for t in values.values()]:
        _refuse_changed(name, index, before, given)
    return result


def _refuse_changed(name: str, index: int, before: list[int], given: tuple[Any, ...]) -> NoReturn:
    kinds = ("state", "local" if name in ("step", "finish") else "mixed")
    dictionaries = [values for values in given if type(values) is dict]
    places = [(kind, key, t) for kind, values in zip(kinds, dictionaries, strict=False) for key, t in values.items()]
    changed = [(kind, key) for (kind, key, t), version in zip(places, before, strict=True) if t._version != version]
    kind, key = changed[-1]
    raise ExperimentError(
        f'round {index + 1}: the method\'s `{name}` changes {kind}["{key}"] in place, which other calls still use. '
        f'Make a new tensor: {kind}["{key}"] = {kind}["{key}"] + ..., not +=, .add_() or .copy_().'
    )


def has_version(value: Any) -> bool:
    """Whether torch counts the changes of a value."""
    return isinstance(value, Tensor) and not value.is_inference()


def torch_draws_only(who: str, before: dict[str, Any]) -> set[str]:
    """What a model draws: from torch's stream it is keyed by client and step, from others it would not be."""
    drawn = set(drawn_since(before))
    if others := sorted(drawn - {"torch"}):
        raise ExperimentError(
            f"{who} draws random numbers from {STREAMS[others[0]]}, which all clients of a worker share: the result "
            "would depend on how clients are run. Draw them with torch (torch.rand, torch.randn, ...)."
        )
    return drawn


@contextmanager
def watched_round(method: Any, index: int, model_draws: bool) -> Iterator[None]:
    """Around a method's functions in a round: refused if they, the model or the loss do what was not seen in the first
    step, draw from a global stream or change what the method's object holds.

    A model that draws (dropout) has torch's stream seeded for it.
    """
    before, held = stream_states(), hidden_state(method) if is_users(method) else {}
    yield
    drawn = [name for name in drawn_since(before) if not (name == "torch" and model_draws)]
    if "python" in drawn and threading.active_count() > 1:  # another thread's, such as a tracker's
        drawn.remove("python")
    who = f"method '{type(method).__name__}'"
    if drawn:
        raise ExperimentError(
            f"round {index + 1}: {who}, the model or the loss draws random numbers from {STREAMS[drawn[0]]}, which all "
            "clients of a worker share: the result would depend on how clients are run. A method sets `draws = True` "
            "and uses `round.noise`; a model that draws does so in its first batch, too."
        )
    if held:
        after = hidden_state(method)
        for key in {**held, **after}:
            if held.get(key) != after.get(key):
                raise ExperimentError(f"round {index + 1}: {who} changes {key}: {HIDDEN}")


def is_users(method: Any) -> bool:
    """Whether a method is a user's own."""
    return type(method).__module__.partition(".")[0] != "gossamer"


def hidden_state(method: Any) -> dict[str, Any]:
    """What a method's object and class hold, as values that can be compared later."""
    classes, held = type(method).__mro__, getattr(method, "__dict__", {})
    cached = {name for cls in classes for name, value in vars(cls).items() if isinstance(value, cached_property)}
    own = {f"self.{key}": _snapshot(value) for key, value in held.items() if key not in cached}
    shared = {
        f"{cls.__name__}.{key}": _snapshot(value)
        for cls in classes
        if cls.__module__.partition(".")[0] not in ("gossamer", "builtins", "typing")
        for key, value in vars(cls).items()
        if not key.startswith("__") and isinstance(value, int | float | str | Tensor | list | dict | set)
    }
    return {**shared, **own}


def _snapshot(value: Any, depth: int = 3) -> Any:
    """A value that is equal later if nothing was changed in it."""
    if isinstance(value, Tensor):
        return id(value), value._version if has_version(value) else None
    if isinstance(value, nn.Module):
        return {name: _snapshot(t) for name, t in value.state_dict(keep_vars=True).items()}
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, random.Random):
        return value.getstate()
    if depth and isinstance(value, dict):
        return [(repr(key), _snapshot(inner, depth - 1)) for key, inner in value.items()]
    if depth and isinstance(value, list | tuple | set):
        return [_snapshot(inner, depth - 1) for inner in value]
    if isinstance(value, int | float | complex | str | bytes | type(None)):
        return repr(value)
    return id(value)
