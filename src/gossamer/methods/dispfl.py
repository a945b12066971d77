"""DisPFL: every client trains and sends a sparse model, and adapts its mask in every round.

    a = Σ_{j∈N_i∪i} w_j / Σ_{j∈N_i∪i} s_j, coordinate by coordinate;  u = a ⊙ m_i          average over the holders
    E epochs from u, masked by m_i after every step, give w_i;   s_i = m_i
    per tensor: drop the r_t share of active weights of smallest |w|, r_t = ½·drop·(1 + cos(π t/T)), and grow as many
    inactive ones, where the gradient is largest or at random

Densities follow ERK: a tensor's share of weights is proportional to (Σ of its sides) / (Π of its sides). Biases and
norms stay dense. New masks act from the next average on.
"""

import math
from collections.abc import Callable
from dataclasses import field, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from gossamer.methods.averaging import KeepsModel
from gossamer.methods.contract import FullGradient, Local, Message, Operator, Round, Setting, State
from gossamer.methods.local import Gradient, combine
from gossamer.methods.quantized import pack_bits, unpack_bits
from gossamer.parts import part


@part
class DisPFL(KeepsModel):
    """Personal sparse models: clients average where they overlap, prune and regrow their masks."""

    density: Annotated[float, Field(gt=0, le=1, description="c, share of weights that are active")] = 0.5
    drop: Annotated[float, Field(ge=0, le=1, description="share of active weights replaced in the first round")] = 0.5
    regrow: Annotated[Literal["random", "gradient"], Field(description="which inactive weights grow")] = "random"
    shapes: tuple[tuple[int, ...], ...] = field(default=(), repr=False)

    family: ClassVar = "sparse"
    paper: ClassVar = "Dai et al. 2022, arXiv 2206.00187"
    sends: ClassVar[dict[str, Operator]] = {"x": "sum", "held": "sum"}
    draws: ClassVar = True
    open_mixings: ClassVar = 0
    default_graph: ClassVar = "random-pull"

    def specialise(self, setting: Setting) -> "DisPFL":
        return replace(self, shapes=setting.shapes)

    def init(self, x0: Tensor) -> State:
        return {**super().init(x0), "mask": torch.ones_like(x0), "held": torch.ones_like(x0)}

    def open(self, state: State, full_gradient: FullGradient, round: Round) -> tuple[State, Message]:
        assert round.noise is not None
        mask = self._per_tensor(lambda size, count, noise: best(noise, count), round.noise)
        return {"x": state["x"] * mask, "mask": mask, "held": mask}, {}

    def opened(self, state: State, mixed: Message, round: Round) -> State:
        return state

    def begin(self, state: State, round: Round) -> Local:
        return {**super().begin(state, round), "gradient": torch.zeros_like(state["x"])}

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        dense = gradient(local["y"])
        return {"y": combine((1, local["y"]), (-round.lr, dense)) * state["mask"], "gradient": dense}

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        assert round.noise is not None
        rate = 0.5 * self.drop * (1 + math.cos(math.pi * round.number / round.rounds))
        wish = round.noise if self.regrow == "random" else local["gradient"].abs()

        def prune_and_regrow(size: int, count: int, mask: Tensor, weights: Tensor, wish: Tensor) -> Tensor:
            # Less a rounding error: 1/8 of 8, computed as 1.0000000000000004, is 1.
            moved = math.ceil(rate * count * (1 - 1e-12)) if count < size else 0
            kept = mask - best(torch.where(mask > 0, -weights.abs(), -torch.inf), moved)
            return kept + best(torch.where(kept > 0, -torch.inf, wish), moved)

        mask = self._per_tensor(prune_and_regrow, state["mask"], local["y"], wish)
        after = {"x": local["y"], "mask": mask, "held": state["mask"]}
        return after, {"x": local["y"], "held": state["mask"]}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        holders = state["held"] + mixed["held"]
        average = (state["x"] + mixed["x"]) / torch.clamp(holders, min=1)
        return {**state, "x": average * state["mask"]}

    def encode(self, message: Message) -> Message:
        held = message["held"] > 0
        return {"values": message["x"][held], "mask": pack_bits(held.long(), 1)}

    def decode(self, wire: Message) -> Message:
        held = unpack_bits(wire["mask"], 1)[: sum(math.prod(shape) for shape in self.shapes)] > 0
        x = wire["values"].new_zeros(held.shape)
        x[held] = wire["values"]
        return {"x": x, "held": held.to(x.dtype)}

    def _per_tensor(self, function: Callable[..., Tensor], *vectors: Tensor) -> Tensor:
        """Apply a function to each tensor inside flat vectors, with its size and its number of active weights."""
        sizes = [math.prod(shape) for shape in self.shapes]
        pieces = zip(
            sizes, active_counts(self.shapes, self.density), *(torch.split(v, sizes) for v in vectors), strict=True
        )
        return torch.cat([function(*piece) for piece in pieces])


def best(scores: Tensor, count: int) -> Tensor:
    """1 at the `count` highest scores, 0 elsewhere."""
    marked = torch.zeros_like(scores)
    return marked.scatter(0, torch.topk(scores, count).indices, torch.ones_like(scores))


def active_counts(shapes: tuple[tuple[int, ...], ...], density: float) -> list[int]:
    """The number of active weights of each tensor under ERK; what exceeds a tensor's size goes to the other tensors."""
    sizes = [math.prod(shape) for shape in shapes]
    dense = {i for i, shape in enumerate(shapes) if len(shape) < 2}
    raw = {i: sum(shape) / math.prod(shape) for i, shape in enumerate(shapes) if i not in dense}
    budget = density * sum(sizes[i] for i in raw)
    while True:
        open_ = [i for i in raw if i not in dense]
        spent = sum(sizes[i] for i in raw if i in dense)
        scale = (budget - spent) / max(sum(raw[i] * sizes[i] for i in open_), 1e-12)
        full = {i for i in open_ if scale * raw[i] >= 1}
        if not full:
            return [size if i in dense else round(scale * raw[i] * size) for i, size in enumerate(sizes)]
        dense |= full
