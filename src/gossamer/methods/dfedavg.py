"""D-PSGD, DFedAvg and DFedAvgM: local (momentum) SGD, then one average with the neighbours.

    y_0 = x_i;   v_{k+1} = θ v_k + g_i(y_k);   y_{k+1} = y_k − η v_{k+1};   x_i ← Σ_j W_ij y_K(j)

θ = 0 is DFedAvg; one step of it is D-PSGD. The velocity starts at zero in every round.
"""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from gossamer.methods.averaging import AveragesModels, KeepsModel
from gossamer.methods.contract import Local, LocalWork, Message, Operator, Round, State
from gossamer.methods.local import Gradient, combine, heavy_ball
from gossamer.parts import part

Momentum = Annotated[float, Field(ge=0, lt=1, description="θ, how much of the velocity a step keeps")]
Work = Annotated[Literal["step", "epoch"], Field(description="local work of a round")]


class LocalSGD:
    """Local steps of plain SGD: y ← y − η g(y)."""

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        y = local["y"]
        return {"y": combine((1, y), (-round.lr, gradient(y)))}


class LocalMomentumSGD(KeepsModel):
    """Local steps of SGD with heavy-ball momentum: v ← θ v + g(y), y ← y − η v."""

    momentum: float

    def begin(self, state: State, round: Round) -> Local:
        return {**super().begin(state, round), "velocity": torch.zeros_like(state["x"])}

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        y = local["y"]
        velocity = heavy_ball(local["velocity"], gradient(y), self.momentum)
        return {"y": combine((1, y), (-round.lr, velocity)), "velocity": velocity}


class StepOrEpoch:
    """Local work of one step or one epoch, whatever the experiment says."""

    work: Literal["step", "epoch"]

    @property
    def local_work(self) -> LocalWork:
        return LocalWork(steps=1) if self.work == "step" else LocalWork(epochs=1)


@part
class DFedAvg(LocalSGD, AveragesModels):
    """Several local SGD steps, then one average with the neighbours."""

    family: ClassVar = "averaging"
    paper: ClassVar = "Sun et al. 2022, arXiv 2104.11375"
    may_miss_messages: ClassVar = True


@part
class Gossip(DFedAvg):
    """Local decentralized SGD: DFedAvg's rule under its older name."""

    paper: ClassVar = "Koloskova et al. 2020, arXiv 2003.10422"
    may_miss_messages: ClassVar = True


@part
class DFedAvgM(LocalMomentumSGD, AveragesModels):
    """DFedAvg with heavy-ball momentum in the local steps."""

    momentum: Momentum = 0.9

    family: ClassVar = "averaging"
    paper: ClassVar = "Sun et al. 2022, arXiv 2104.11375"
    may_miss_messages: ClassVar = True


@part
class DPSGD(StepOrEpoch, LocalSGD, KeepsModel):
    """One local SGD step (or one epoch), then one average with the neighbours."""

    order: Annotated[
        Literal["adapt-then-combine", "combine-then-adapt"],
        Field(description="average the stepped models, or average first and add the step taken at the old model"),
    ] = "adapt-then-combine"
    work: Work = "step"

    family: ClassVar = "averaging"
    paper: ClassVar = "Lian et al. 2017, arXiv 1705.09056"
    may_miss_messages: ClassVar = True
    sends: ClassVar[dict[str, Operator]] = {"x": "average"}

    def init(self, x0: Tensor) -> State:
        state = super().init(x0)
        return state if self.order == "adapt-then-combine" else {**state, "update": torch.zeros_like(x0)}

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        if self.order == "adapt-then-combine":
            return state, {"x": local["y"]}
        return {"x": state["x"], "update": local["y"] - state["x"]}, {"x": state["x"]}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        if self.order == "adapt-then-combine":
            return {"x": mixed["x"]}
        return {"x": mixed["x"] + state["update"], "update": state["update"]}
