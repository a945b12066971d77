"""Quadratic clients: f_i(x) = ½‖x − m_i‖², so that everything can be worked out on paper."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gossamer import per_client
from gossamer.engines import Stacked
from problems import engine


class Point(nn.Module):
    """The model is the point itself; its output is how far it is from each input."""

    def __init__(self, dimensions: int = 2) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(dimensions))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.place - inputs


class Bowl(nn.Module):
    """A point in a bowl: an input is the bottom of the bowl, then the root of its curvature."""

    def __init__(self, start: Sequence[float] = (0.0, 0.0)) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs[:, 2:] * (self.place - inputs[:, :2])


def minima_of(clients: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(clients, 2)))


def quadratic_engine(
    method: Any,
    graph: Any,
    minima: Any,
    steps: int | None = None,
    lr: float = 0.1,
    sizes: list[int] | None = None,
    **more: Any,
) -> Stacked:
    """Every client's sample is its minimum, `sizes` times: every mini-batch has the gradient of them all."""
    counts = sizes or [1] * len(minima)
    rows = [(np.tile(np.asarray(m, dtype=float), (n, 1)), n) for m, n in zip(minima, counts, strict=True)]
    data = per_client([(inputs, np.zeros((n, inputs.shape[1]))) for inputs, n in rows])
    work = {} if steps is None else {"local_steps": steps}
    return engine(method, graph, data, model=Point, loss="squared-error", lr=lr, **work, **more)
