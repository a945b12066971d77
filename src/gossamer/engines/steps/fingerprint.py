"""A text that identifies what a step computes, where that is known without tracing it.

The code of torch and of Gossamer is known by their versions and files. Anything else that has code of its own (a user's
module, method or function, a hook) may compute anything: then there is no fingerprint. A class or function of torch or
Gossamer that was patched at run time keeps its fingerprint, so a step that is found by it must be tried before use.
"""

import sys
from collections import OrderedDict
from functools import reduce
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.system.cache import digest

PLAIN = (type(None), bool, int, float, str, bytes, torch.dtype, torch.device, torch.Size, torch.memory_format)
COLLECTIONS = (list, tuple, dict, OrderedDict, set, frozenset)
KNOWN_PACKAGES = ("torch", "gossamer")


class UnknownCode(Exception):
    """An object may compute anything."""


def fingerprint(*things: Any) -> str | None:
    """The same text for things that compute the same; None if that cannot be known.

    >>> fingerprint(nn.Linear(2, 3)) == fingerprint(nn.Linear(2, 3)) != fingerprint(nn.Linear(2, 4))
    True
    >>> fingerprint(lambda x: x) is None
    True
    """
    try:
        text = _describe(things, {})
    except Exception:  # an object may raise anything when its attributes are read
        return None
    return f"{torch.get_default_dtype()} {torch.is_autocast_enabled('cpu')} {text}"


def _describe(thing: Any, seen: dict[int, tuple[int, Any]]) -> str:
    """All of an object that may matter, as text. An object seen before is its number: two layers may be one."""
    kind = type(thing)
    if kind in PLAIN:
        return repr(thing)
    if id(thing) in seen:
        return f"#{seen[id(thing)][0]}"
    seen[id(thing)] = len(seen), thing  # keeps the object alive: an id is used again
    if kind is nn.Parameter and thing.requires_grad:  # its values are inputs of a step, and not a part of it
        return f"{kind} {thing.shape} {thing.dtype}"
    if isinstance(thing, Tensor):
        values = thing.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return f"{kind} {thing.shape} {thing.dtype} {digest(values)}"
    if isinstance(thing, FunctionType | BuiltinFunctionType | type):
        return _name(thing)
    name = kind.__name__ if kind in COLLECTIONS else _name(kind)
    if isinstance(thing, dict):
        parts = [f"{_describe(key, seen)}: {_describe(value, seen)}" for key, value in thing.items()]
    elif isinstance(thing, set | frozenset):
        parts = sorted(_describe(value, {}) for value in thing)
    elif isinstance(thing, list | tuple):
        parts = [_describe(value, seen) for value in thing]
    elif hasattr(thing, "__dict__"):
        parts = []
    else:
        raise UnknownCode
    if hasattr(thing, "__dict__"):
        parts += [f".{key} = {_describe(value, seen)}" for key, value in sorted(vars(thing).items())]
    return f"{name}({', '.join(parts)})"


def _name(code: Any) -> str:
    """The name of a class or function whose code is known: one that is found in its module under that name."""
    module, name = str(code.__module__), str(code.__qualname__)
    known = module.partition(".")[0] in KNOWN_PACKAGES and not module.startswith(("torch._C", "torch.jit"))
    if not known or reduce(getattr, name.split("."), sys.modules[module]) is not code:
        raise UnknownCode
    return f"{module}.{name}"
