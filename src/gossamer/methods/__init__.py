"""The methods, one page per family."""

from gossamer.methods.contract import (
    Local,
    LocalWork,
    Message,
    Method,
    Need,
    Opening,
    Operator,
    Round,
    Setting,
    State,
    Traits,
    bind,
    mixes,
    traits_of,
)
from gossamer.methods.costs import Costs, costs, graph_needed, model_sizes
from gossamer.methods.dfedadmm import DFedADMM, DFedADMMSAM, FedPD
from gossamer.methods.dfedavg import DPSGD, DFedAvg, DFedAvgM, Gossip
from gossamer.methods.dfedsam import DFedSAM, DFedSAMMGS
from gossamer.methods.dispfl import DisPFL
from gossamer.methods.ecl import ECL, ECLISVR, PDMM
from gossamer.methods.fedavg import FedAvg, FedSAM
from gossamer.methods.g_ecl import GECL, LocalGECL
from gossamer.methods.local import Gradient, combine, heavy_ball, sam_gradient
from gossamer.methods.overlap import OverlapSGP
from gossamer.methods.probe import Probe, probe
from gossamer.methods.push_sum import OSGP, SGP, AsyNG, DFedSGPM, DFedSGPSM, DFedSGPSMS
from gossamer.methods.quantized import QDFedAvgM
from gossamer.methods.relatives import KGT, OledFL, QGDSGDm
from gossamer.methods.scaffold import DScaffold, Scaffold
from gossamer.parts import Catalog

METHODS = Catalog(
    "method",
    {
        "fedavg": FedAvg,
        "fedsam": FedSAM,
        "scaffold": Scaffold,
        "fedpd": FedPD,
        "d-psgd": DPSGD,
        "gossip": Gossip,
        "dfedavg": DFedAvg,
        "dfedavgm": DFedAvgM,
        "q-dfedavgm": QDFedAvgM,
        "dfedsam": DFedSAM,
        "dfedsam-mgs": DFedSAMMGS,
        "dfedadmm": DFedADMM,
        "dfedadmm-sam": DFedADMMSAM,
        "dispfl": DisPFL,
        "d-scaffold": DScaffold,
        "g-ecl": GECL,
        "local-g-ecl": LocalGECL,
        "k-gt": KGT,
        "ecl": ECL,
        "pdmm": PDMM,
        "ecl-isvr": ECLISVR,
        "sgp": SGP,
        "osgp": OSGP,
        "overlap-sgp": OverlapSGP,
        "dfedsgpm": DFedSGPM,
        "dfedsgpsm": DFedSGPSM,
        "dfedsgpsm-s": DFedSGPSMS,
        "asyng": AsyNG,
        "qg-dsgdm": QGDSGDm,
        "oledfl": OledFL,
    },
    role="step",
)


def families() -> dict[str, list[str]]:
    """The names of the methods, by family, in the order of the catalog."""
    found: dict[str, list[str]] = {}
    for name in METHODS:
        found.setdefault(traits_of(METHODS.build(name)).family, []).append(name)
    return found


__all__ = [
    "DPSGD",
    "ECL",
    "ECLISVR",
    "GECL",
    "KGT",
    "METHODS",
    "OSGP",
    "PDMM",
    "SGP",
    "AsyNG",
    "Costs",
    "DFedADMM",
    "DFedADMMSAM",
    "DFedAvg",
    "DFedAvgM",
    "DFedSAM",
    "DFedSAMMGS",
    "DFedSGPM",
    "DFedSGPSM",
    "DFedSGPSMS",
    "DScaffold",
    "DisPFL",
    "FedAvg",
    "FedPD",
    "FedSAM",
    "Gossip",
    "Gradient",
    "Local",
    "LocalGECL",
    "LocalWork",
    "Message",
    "Method",
    "Need",
    "OledFL",
    "Opening",
    "Operator",
    "OverlapSGP",
    "Probe",
    "QDFedAvgM",
    "QGDSGDm",
    "Round",
    "Scaffold",
    "Setting",
    "State",
    "Traits",
    "bind",
    "combine",
    "costs",
    "families",
    "graph_needed",
    "heavy_ball",
    "mixes",
    "model_sizes",
    "probe",
    "sam_gradient",
    "traits_of",
]
