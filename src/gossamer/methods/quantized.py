"""Quantized DFedAvgM: clients send their round's displacement in b bits a number.

    z_i as in DFedAvgM;   q_i = Q(z_i − x_i);   x_i ← x_i + Σ_j W_ij q_j

Q rounds to multiples of a step s: up or down at random, so that it is unbiased, or always down. s is one float per
message, the largest entry over the largest code. This is X + W Q(Z − X), not W Z: even with a lossless Q it equals
DFedAvgM only if all clients agree.
"""

import math
from dataclasses import field, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from gossamer.methods.contract import Local, Message, Operator, Round, Setting, State
from gossamer.methods.dfedavg import LocalMomentumSGD, Momentum
from gossamer.parts import part


@part
class QDFedAvgM(LocalMomentumSGD):
    """DFedAvgM with quantized messages."""

    momentum: Momentum = 0.9
    bits: Annotated[int, Field(ge=1, le=16, description="b, bits for each number sent")] = 8
    rounding: Annotated[Literal["stochastic", "down"], Field(description="to which multiple of the step")] = (
        "stochastic"
    )
    size: int = field(default=0, repr=False)

    family: ClassVar = "averaging"
    paper: ClassVar = "Sun et al. 2022, arXiv 2104.11375"
    may_miss_messages: ClassVar = True
    sends: ClassVar[dict[str, Operator]] = {"change": "average"}
    draws: ClassVar = True

    def specialise(self, setting: Setting) -> "QDFedAvgM":
        return replace(self, size=sum(math.prod(shape) for shape in setting.shapes))

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        change = local["y"] - state["x"]
        step = quantizer_step(change, self.bits)
        noise = round.noise if self.rounding == "stochastic" else None
        return state, {"change": quantize(change, step, self.bits, noise), "step": step}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        return {"x": state["x"] + mixed["change"]}

    def encode(self, message: Message) -> Message:
        levels = torch.round(in_steps(message["change"], message["step"])).long()
        codes = (levels + 1) // 2 if self.bits == 1 else levels + 2 ** (self.bits - 1)
        return {"codes": pack_bits(codes, self.bits), "step": message["step"]}

    def decode(self, wire: Message) -> Message:
        codes = unpack_bits(wire["codes"], self.bits)[: self.size]
        levels = 2 * codes - 1 if self.bits == 1 else codes - 2 ** (self.bits - 1)
        return {"change": levels * wire["step"], "step": wire["step"]}


def quantizer_step(values: Tensor, bits: int) -> Tensor:
    """s = max|a| / (2^(b−1) − 1), one float per message; 0 if all values are zero."""
    step: Tensor = values.abs().amax() / max(2 ** (bits - 1) - 1, 1)
    return step


def quantize(values: Tensor, step: Tensor, bits: int, noise: Tensor | None) -> Tensor:
    """The multiple of `step` below each value; with `noise`, the one above with the remainder as its probability."""
    places = in_steps(values, step)
    if bits == 1:  # the two levels are ±1; {−1, 0} would lose every positive value
        odds = torch.full_like(values, 0.5) if noise is None else noise
        return torch.where(odds < (places + 1) / 2, step, -step)
    # Step and quotient are rounded, so a value on the grid, as the largest is, may come out just below its level.
    level = torch.floor(places + 2 * torch.finfo(places.dtype).eps * places.abs())
    if noise is not None:
        level = level + (noise < places - level)
    return step * level.clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def in_steps(values: Tensor, step: Tensor) -> Tensor:
    """The values in multiples of the step; 0 where there is nothing but zeros to send."""
    return values / torch.where(step > 0, step, 1.0)


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Codes below 2^bits, packed without gaps into bytes."""
    digits = (codes[:, None] >> torch.arange(bits, device=codes.device)) & 1
    flat = torch.nn.functional.pad(digits.flatten(), (0, -codes.numel() * bits % 8))
    return (flat.view(-1, 8) << torch.arange(8, device=codes.device)).sum(1).to(torch.uint8)


def unpack_bits(packed: Tensor, bits: int) -> Tensor:
    """The codes that `pack_bits` packed, followed by zeros for its padding."""
    digits = (packed.long()[:, None] >> torch.arange(8, device=packed.device)) & 1
    count = packed.numel() * 8 // bits
    return (digits.flatten()[: count * bits].view(count, bits) << torch.arange(bits, device=packed.device)).sum(1)
