"""Problems small enough for paper: three clients, two parameters, two rounds, η = ½.

Client i minimises ½‖x − m_i‖², so its gradient is x − m_i and a plain step goes half of the way, x ← ½(x + m_i); two
of them x ← ¼x + ¾m_i. All start at 0. The two parameters never meet, except in the norm of a SAM step and in the scale
of a quantizer, so a round is worked out for one parameter and three clients at a time: `a` is the first parameter of
clients 0, 1 and 2, `b` the second.

Undirected methods sit on the path 0 – 1 – 2 with Metropolis-Hastings weights W. Push-sum sits on a directed graph with
column-stochastic P: client 0 sends to 1 and 2, client 1 to 2, client 2 to 0, each in equal shares.

        ⎡ 2/3 1/3  0  ⎤             ⎡ 1/3  0  1/2 ⎤
    W = ⎢ 1/3 1/3 1/3 ⎥         P = ⎢ 1/3 1/2  0  ⎥
        ⎣  0  1/3 2/3 ⎦             ⎣ 1/3 1/2 1/2 ⎦
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quadratic import quadratic_engine

Numbers = Sequence[float | Fraction]

PATH = {"name": "edges", "edges": [(0, 1), (1, 2)]}
PUSH = {"name": "matrix", "matrix": [[1 / 3, 0, 1 / 2], [1 / 3, 1 / 2, 0], [1 / 3, 1 / 2, 1 / 2]]}


class After(NamedTuple):
    """The clients after a round."""

    models: Tensor
    state: dict[str, Tensor]


def two_rounds(method: Any, a: Numbers, b: Numbers, steps: int = 1, graph: Any = PATH, **more: Any) -> list[After]:
    """The clients after the first and after the second round, with minima m_i = (a_i, b_i)."""
    run = quadratic_engine(method, graph, list(zip(a, b, strict=True)), steps=steps, lr=0.5, **more)
    after = []
    for t in range(2):
        run.round(t)
        after.append(After(run.models(), run.state))
    return after


def check(found: Tensor, a: Numbers, b: Numbers) -> None:
    """Hold the clients' vectors to what paper says, parameter by parameter."""
    expected = torch.tensor([[float(v) for v in row] for row in zip(a, b, strict=True)], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


def check_along(found: Tensor, scalars: Numbers) -> None:
    """Hold the clients' vectors to multiples of (3, 4): where all points lie on that line, ‖s·(3,4)‖ = 5|s|."""
    check(found, [3 * s for s in scalars], [4 * s for s in scalars])


def along(*scalars: float) -> tuple[Numbers, Numbers]:
    """Minima s_i·(3, 4), as their two parameters."""
    return [3 * s for s in scalars], [4 * s for s in scalars]
