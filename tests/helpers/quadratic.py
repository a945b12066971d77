"""Quadratic clients: f_i(x) = ½‖x − m_i‖², one sample each, so that everything can be worked out on paper."""

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


def minima_of(clients: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(clients, 2)))


def quadratic_engine(method: Any, graph: Any, minima: Any, steps: int | None, lr: float, **more: Any) -> Stacked:
    data = per_client([([list(map(float, m))], [[0.0] * len(m)]) for m in minima])
    work = {} if steps is None else {"local_steps": steps}
    return engine(method, graph, data, model=Point, loss="squared-error", lr=lr, **work, **more)
