"""Overlap-SGP: push-sum with messages in transit during the next local steps.

    x ← x + arrived x,  w ← w + arrived w;   send the shares of (x, w), keep the own share p:  x ← p x,  w ← p w
    K times:  x ← x − η g(x/w);   the shares arrive at the next round

The totals of x and w are conserved if messages in transit are counted.
"""

from typing import ClassVar

from torch import Tensor

from gossamer.methods.contract import Local, Message, Operator, Round, State
from gossamer.methods.local import Gradient, combine
from gossamer.parts import part


@part
class OverlapSGP:
    """Push-sum whose messages travel during the local steps and arrive one round later."""

    family: ClassVar = "push-sum"
    paper: ClassVar = "Assran et al. 2019, arXiv 1811.10792"
    may_miss_messages: ClassVar = True
    sends: ClassVar[dict[str, Operator]] = {"x": "deliver", "weight": "deliver"}
    #: A client that keeps the share p of its mass moves z by η g / (p w): few out-neighbours keep that step moderate.
    default_graph: ClassVar = "one-peer-exponential"

    def init(self, x0: Tensor) -> State:
        one = x0.new_ones(())
        return {"x": x0, "weight": one, "arriving": x0 * 0, "arriving_weight": one * 0}

    def begin(self, state: State, round: Round) -> Local:
        x, weight = state["x"] + state["arriving"], state["weight"] + state["arriving_weight"]
        return {"x": round.own_weight * x, "weight": round.own_weight * weight, "sent": x, "sent_weight": weight}

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        return {**local, "x": combine((1, local["x"]), (-round.lr, gradient(local["x"] / local["weight"])))}

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        message = {"x": local["sent"], "weight": local["sent_weight"]}
        return {**state, "x": local["x"], "weight": local["weight"]}, message

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        return {**state, "arriving": mixed["x"], "arriving_weight": mixed["weight"]}

    def model(self, state: State) -> Tensor:
        return (state["x"] + state["arriving"]) / self.weight(state)

    def weight(self, state: State) -> Tensor:
        return state["weight"] + state["arriving_weight"]
