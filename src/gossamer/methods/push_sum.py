"""SGP, OSGP, DFedSGPM, DFedSGPSM and AsyNG: push-sum on directed graphs.

A client holds a biased x_i and a scalar weight w_i (1 at the start); its model is z_i = x_i / w_i. It sends each
out-neighbour the same share of both, so the totals of both are conserved for any out-degrees.

    K times:  z = x/w;   g = (SAM) gradient at z;   v ← α v + g;   x ← x − η v           then  x ← P x,  w ← P w

α = 0, ρ = 0 is OSGP as in the comparisons of the DFedSGPSM paper; one step of that is SGP. AsyNG takes all K gradients
at the z of the round's start.
"""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from gossamer.methods.contract import Local, Message, Operator, Round, State
from gossamer.methods.dfedavg import StepOrEpoch, Work
from gossamer.methods.local import Gradient, combine, heavy_ball, sam_gradient
from gossamer.parts import part

Momentum = Annotated[float, Field(ge=0, lt=1, description="α, how much of the velocity a step keeps")]
Rho = Annotated[float, Field(ge=0, description="ρ, radius of the perturbation of z")]


class PushesMass:
    """Push-sum: x and its weight are sent together, and the model is their ratio."""

    family: ClassVar = "push-sum"
    sends: ClassVar[dict[str, Operator]] = {"x": "push", "weight": "push"}

    def init(self, x0: Tensor) -> State:
        return {"x": x0, "weight": x0.new_ones(())}

    def begin(self, state: State, round: Round) -> Local:
        return {"x": state["x"]}

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        return state, {"x": local["x"], "weight": state["weight"]}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        return {"x": mixed["x"], "weight": mixed["weight"]}

    def model(self, state: State) -> Tensor:
        return state["x"] / state["weight"]

    def weight(self, state: State) -> Tensor:
        return state["weight"]


@part
class OSGP(PushesMass):
    """Several local SGD steps at the de-biased model, then push-sum."""

    paper: ClassVar = "Assran et al. 2019, as compared with in the DFedSGPSM paper"
    may_miss_messages: ClassVar = True

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        x = local["x"]
        return {"x": combine((1, x), (-round.lr, gradient(x / state["weight"])))}


@part
class SGP(StepOrEpoch, OSGP):
    """One local SGD step (or one epoch), then push-sum."""

    work: Work = "step"

    paper: ClassVar = "Assran et al. 2019, arXiv 1811.10792"
    may_miss_messages: ClassVar = True


class PushesWithMomentum(PushesMass):
    """Algorithm 1: local steps with heavy-ball momentum, against the SAM gradient if ρ > 0."""

    momentum: float
    rho: float = 0.0

    def begin(self, state: State, round: Round) -> Local:
        return {**super().begin(state, round), "velocity": torch.zeros_like(state["x"])}

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        x = local["x"]
        direction = sam_gradient(gradient, x / state["weight"], self.rho)
        velocity = heavy_ball(local["velocity"], direction, self.momentum)
        return {"x": combine((1, x), (-round.lr, velocity)), "velocity": velocity}


@part
class DFedSGPM(PushesWithMomentum):
    """OSGP with heavy-ball momentum in the local steps."""

    momentum: Momentum = 0.9

    paper: ClassVar = "the DFedSGPSM paper"
    may_miss_messages: ClassVar = True


@part
class DFedSGPSM(PushesWithMomentum):
    """DFedSGPM with sharpness-aware (SAM) local steps."""

    momentum: Momentum = 0.9
    rho: Rho = 0.1

    paper: ClassVar = "the DFedSGPSM paper, Algorithm 1"
    may_miss_messages: ClassVar = True


@part
class DFedSGPSMS(DFedSGPSM):
    """DFedSGPSM where clients send to those whose training loss differs most from theirs."""

    paper: ClassVar = "the DFedSGPSM paper, equation 2"
    may_miss_messages: ClassVar = True
    shares_loss: ClassVar = True
    default_graph: ClassVar = "directed-by-loss"


@part
class AsyNG(PushesMass):
    """Push-sum with all of a round's gradients taken at the model it started from."""

    neighbours: Annotated[
        Literal["uniform", "by loss"],
        Field(description="out-neighbours as the graph has them, or by loss"),
    ] = "uniform"

    paper: ClassVar = "Chen et al. 2023, ICDE, as described in the DFedSGPSM paper"
    may_miss_messages: ClassVar = True

    @property
    def shares_loss(self) -> bool:
        return self.neighbours == "by loss"

    @property
    def default_graph(self) -> str:
        return "directed-by-loss" if self.shares_loss else "directed-random"

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        return {"x": combine((1, local["x"]), (-round.lr, gradient(self.model(state))))}
