"""FedAvg and FedSAM, the baselines with a server: the local steps of DFedAvg and DFedSAM, averaged by a server.

y_i = K local steps from x, for the sampled clients S;   x ← x + η_g (mean_{i∈S} y_i − x)
"""

from typing import ClassVar

from gossamer.methods.averaging import AveragedByServer
from gossamer.methods.dfedavg import LocalSGD
from gossamer.methods.dfedsam import LocalSAM, Rho
from gossamer.parts import part


@part
class FedAvg(LocalSGD, AveragedByServer):
    """Local SGD on the sampled clients, averaged by a server."""

    family: ClassVar = "server"
    paper: ClassVar = "McMahan et al. 2017, arXiv 1602.05629"


@part
class FedSAM(LocalSAM, AveragedByServer):
    """FedAvg with sharpness-aware (SAM) local steps."""

    rho: Rho = 0.1

    family: ClassVar = "server"
    paper: ClassVar = "Qu et al. 2022, arXiv 2206.02618"
