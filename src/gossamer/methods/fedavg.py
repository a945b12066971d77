"""FedAvg and FedSAM: the server's mean of the sampled clients' local results. The baselines with a server.

y_i = K local steps from x, for the sampled clients S;   x ← x + η_g (mean_{i∈S} y_i − x)
"""

from typing import Annotated, ClassVar

from pydantic import Field

from gossamer.methods.averaging import AveragedByServer
from gossamer.methods.contract import Local, Round, State
from gossamer.methods.local import Gradient, combine, sam_gradient
from gossamer.parts import part


@part
class FedAvg(AveragedByServer):
    """Local SGD on the sampled clients, averaged by a server."""

    family: ClassVar = "server"
    paper: ClassVar = "McMahan et al. 2017, arXiv 1602.05629"
    laws: ClassVar[tuple[str, ...]] = ("I13", "I20", "I21", "I22")

    def begin(self, state: State, round: Round) -> Local:
        return {"y": state["x"]}

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        y = local["y"]
        return {"y": combine((1, y), (-round.lr, gradient(y)))}


@part
class FedSAM(AveragedByServer):
    """FedAvg with sharpness-aware (SAM) local steps."""

    rho: Annotated[float, Field(ge=0, description="ρ, radius of the perturbation")] = 0.1

    family: ClassVar = "server"
    paper: ClassVar = "Qu et al. 2022, arXiv 2206.02618"
    laws: ClassVar[tuple[str, ...]] = ("I9", "I20", "I21", "I22")

    def begin(self, state: State, round: Round) -> Local:
        return {"y": state["x"]}

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        y = local["y"]
        return {"y": combine((1, y), (-round.lr, sam_gradient(gradient, y, self.rho)))}
