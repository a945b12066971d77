"""DFedSAM and DFedSAM-MGS: local steps against the sharpness-aware gradient, then one or several averages.

    y_0 = x_i;   y_{k+1} = y_k − η ∇f_i(y_k + ρ g/‖g‖),  g = ∇f_i(y_k) on the same mini-batch;   X ← W^Q Y_K

ρ = 0 is DFedAvg. The paper's listing resets y inside the step loop and averages once more before the Q gossip steps;
its text has one start per round and Q averages in all, and so has this page.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from gossamer.methods.averaging import AveragesModels
from gossamer.methods.contract import Local, Round, State
from gossamer.methods.local import Gradient, combine, sam_gradient
from gossamer.parts import part

Rho = Annotated[float, Field(ge=0, description="ρ, radius of the perturbation")]


class LocalSAM:
    """Local steps against the sharpness-aware gradient: y ← y − η g(y + ρ g(y)/‖g(y)‖)."""

    rho: float

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        y = local["y"]
        return {"y": combine((1, y), (-round.lr, sam_gradient(gradient, y, self.rho)))}


@part
class DFedSAM(LocalSAM, AveragesModels):
    """DFedAvg with sharpness-aware (SAM) local steps."""

    rho: Rho = 0.01

    family: ClassVar = "averaging"
    paper: ClassVar = "Shi et al. 2023, ICML (PMLR 202)"
    may_miss_messages: ClassVar = True


@part
class DFedSAMMGS(DFedSAM):
    """DFedSAM with several gossip steps in every round."""

    gossip_steps: Annotated[int, Field(ge=1, description="Q, averages in a round")] = 4

    may_miss_messages: ClassVar = True
