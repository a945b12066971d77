"""SCAFFOLD (option II) and its decentralized form: steps corrected by control variates.

    y_0 = x;   y_{k+1} = y_k − η (g_i(y_k) − c_i + c);      c_i⁺ = c_i − c + (x − y_K)/(K η)
    with a server     x ← x + η_g (mean y_K − x),    c ← c + |S|/n · mean (c_i⁺ − c_i)      over the sampled clients S
    without           x_i ← Σ_j W_ij y_K(j),         c_i's own estimate of the mean c is mixed too:
        tracked           c̃_i ← Σ_j W_ij (c̃_j + c_j⁺ − c_j)
        neighbourhood     c̃_i ← Σ_j W_ij c_j⁺

c_i⁺ is the mean of the raw local gradients. The decentralized form is that of a master's thesis which was not
read here; in the reading "tracked" it equals Local G-ECL started at the aggregated model.
"""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from gossamer.methods.averaging import KeepsModel
from gossamer.methods.contract import Local, Message, Need, Operator, Round, State, per_step
from gossamer.methods.local import Gradient, combine
from gossamer.parts import part


class ControlsDrift(KeepsModel):
    """What both share: the control variates and the corrected step."""

    def init(self, x0: Tensor) -> State:
        return {**super().init(x0), "control": x0 * 0, "mean_control": x0 * 0}

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        y = local["y"]
        return {"y": combine((1, y), (-round.lr, gradient(y) - state["control"] + state["mean_control"]))}


def new_control(state: State, y: Tensor, round: Round) -> Tensor:
    """c_i⁺, the mean local gradient of the round; without local steps the old variate."""
    after = state["control"] - state["mean_control"] + per_step(state["x"] - y, round)
    return torch.where(round.steps > 0, after, state["control"])


@part
class Scaffold(ControlsDrift):
    """FedAvg with control variates against client drift."""

    server_lr: Annotated[float, Field(gt=0, description="η_g, how far the server moves to the clients' mean")] = 1.0

    family: ClassVar = "server"
    paper: ClassVar = "Karimireddy et al. 2020, arXiv 1910.06378"
    sends: ClassVar[dict[str, Operator]] = {"x": "server", "change": "server"}

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        control = new_control(state, local["y"], round)
        return {**state, "control": control}, {"x": local["y"], "change": control - state["control"]}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        return {
            "x": state["x"] + self.server_lr * (mixed["x"] - state["x"]),
            "control": state["control"],
            "mean_control": state["mean_control"] + round.participation * mixed["change"],
        }


@part
class DScaffold(ControlsDrift):
    """SCAFFOLD with the neighbours in place of the server."""

    reading: Annotated[
        Literal["tracked", "neighbourhood"], Field(description="how a client estimates the mean control variate")
    ] = "tracked"

    family: ClassVar = "gradient tracking"
    paper: ClassVar = "as compared with in the Local G-ECL paper, reference 14"
    sends: ClassVar[dict[str, Operator]] = {"x": "average", "control": "average"}
    needs: ClassVar[tuple[Need, ...]] = ("undirected", "doubly stochastic")

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        control = new_control(state, local["y"], round)
        sent = state["mean_control"] + control - state["control"] if self.reading == "tracked" else control
        return {**state, "control": control}, {"x": local["y"], "control": sent}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        return {"x": mixed["x"], "control": state["control"], "mean_control": mixed["control"]}
