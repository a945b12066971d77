"""A method's functions, written for one client, on the rows of many."""

from collections.abc import Callable
from typing import Any

import torch
from torch.func import vmap

from gossamer.system.torch_private import tree_leaves, tree_map


class Rows:
    """Makes a function of one client a function of stacked rows: by `vmap`, or row by row where that cannot run it.

    >>> Rows()(lambda x: {"y": x["a"] if x["a"] > 1 else -x["a"]})({"a": torch.tensor([1.0, 2.0])})
    {'y': tensor([-1.,  2.])}
    """

    def __init__(self, vectorises: bool = True) -> None:
        self._vectorises = vectorises

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def on_rows(*stacked: Any) -> Any:
            if self._vectorises:
                try:
                    return vmap(function)(*stacked)
                except Exception:  # of a user's method; what is not the fault of `vmap` is raised again below
                    self._vectorises = False
            clients = len(tree_leaves(stacked)[0])
            each = [function(*tree_map(lambda rows, i=i: rows[i], stacked)) for i in range(clients)]
            return tree_map(lambda *values: torch.stack(values), *each)

        return on_rows
