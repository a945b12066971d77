"""A short name for what a step computes, where that can be told without recording it.

The code of torch and of Gossamer is known by their versions and files. Of what a step is made of, anything else that
has code of its own (a user's module, method or function, a hook) may compute whatever it likes: then there is no name.
A class or function of theirs that somebody has changed keeps its name, so whoever finds a step by it must try it.
"""

import hashlib
import sys
from collections import OrderedDict
from functools import reduce
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = (type(None), bool, int, float, str, bytes, torch.dtype, torch.device, torch.Size, torch.memory_format)
COLLECTIONS = (list, tuple, dict, OrderedDict, set, frozenset)
KNOWN = ("torch", "gossamer")


class Unknown(Exception):
    """Something may compute anything."""


def fingerprint(*things: Any) -> str | None:
    """The same text for things that compute the same; None if that cannot be known.

    >>> fingerprint(nn.Linear(2, 3)) == fingerprint(nn.Linear(2, 3)) != fingerprint(nn.Linear(2, 4))
    True
    >>> fingerprint(lambda x: x) is None
    True
    """
    try:
        told = _told(things, {})
    except Exception:  # things may do whatever they like when they are looked at
        return None
    about = [torch.__version__, GOSSAMER_CODE, torch.get_default_dtype(), torch.is_autocast_enabled("cpu"), told]
    return hashlib.blake2b(repr(about).encode(), digest_size=16).hexdigest()


def _told(thing: Any, seen: dict[int, tuple[int, Any]]) -> str:
    """All that may matter of a thing, as text. What was seen before is told by its number: two layers may be one."""
    kind = type(thing)
    if kind in PLAIN:
        return repr(thing)
    if id(thing) in seen:
        return f"#{seen[id(thing)][0]}"
    seen[id(thing)] = len(seen), thing  # which it holds: an address is used again
    if kind is nn.Parameter and thing.requires_grad:  # its numbers are given to a step, and not a part of it
        return f"{kind} {thing.shape} {thing.dtype}"
    if isinstance(thing, Tensor):
        numbers = thing.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return f"{kind} {thing.shape} {thing.dtype} {hashlib.blake2b(numbers).hexdigest()}"
    if isinstance(thing, FunctionType | BuiltinFunctionType | type):
        return _name(thing)
    name = kind.__name__ if kind in COLLECTIONS else _name(kind)
    if isinstance(thing, dict):
        parts = [f"{_told(key, seen)}: {_told(value, seen)}" for key, value in thing.items()]
    elif isinstance(thing, set | frozenset):
        parts = sorted(_told(value, {}) for value in thing)
    elif isinstance(thing, list | tuple):
        parts = [_told(value, seen) for value in thing]
    elif hasattr(thing, "__dict__"):
        parts = []
    else:
        raise Unknown
    if hasattr(thing, "__dict__"):
        parts += [f".{key} = {_told(value, seen)}" for key, value in sorted(vars(thing).items())]
    return f"{name}({', '.join(parts)})"


def _name(code: Any) -> str:
    """The name of a class or function whose code is known: one that is found in its place under that name."""
    where, name = str(code.__module__), str(code.__qualname__)
    known = where.partition(".")[0] in KNOWN and not where.startswith(("torch._C", "torch.jit"))
    if not known or reduce(getattr, name.split("."), sys.modules[where]) is not code:
        raise Unknown
    return f"{where}.{name}"


def _gossamer_code() -> str:
    """Gossamer's own files: a development version changes without its number."""
    folder, digest = Path(__file__).parents[2], hashlib.blake2b(digest_size=16)
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)} {path.stat().st_size} ".encode() + path.read_bytes())
    return digest.hexdigest()


#: As it was when it was imported.
GOSSAMER_CODE = _gossamer_code()
