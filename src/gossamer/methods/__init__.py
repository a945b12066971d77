"""The methods, one page per family."""

from gossamer.methods.contract import (
    Local,
    LocalWork,
    Message,
    Method,
    Operator,
    Round,
    State,
    gossip_steps,
    local_work,
)
from gossamer.methods.dfedavg import DPSGD, DFedAvg, DFedAvgM
from gossamer.methods.dfedsam import DFedSAM, DFedSAMMGS
from gossamer.methods.fedavg import FedAvg
from gossamer.methods.local import Gradient, heavy_ball, sam_gradient
from gossamer.parts import Catalog

METHODS = Catalog(
    "method",
    {
        "fedavg": FedAvg,
        "d-psgd": DPSGD,
        "dfedavg": DFedAvg,
        "dfedavgm": DFedAvgM,
        "dfedsam": DFedSAM,
        "dfedsam-mgs": DFedSAMMGS,
    },
    role="step",
)

__all__ = [
    "DPSGD",
    "METHODS",
    "DFedAvg",
    "DFedAvgM",
    "DFedSAM",
    "DFedSAMMGS",
    "FedAvg",
    "Gradient",
    "Local",
    "LocalWork",
    "Message",
    "Method",
    "Operator",
    "Round",
    "State",
    "gossip_steps",
    "heavy_ball",
    "local_work",
    "sam_gradient",
]
