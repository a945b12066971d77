"""Neural networks as functions of one flat vector, and losses."""

from gossamer.models.losses import LOSSES, CrossEntropy, Loss, SquaredError, check_loss, sample_losses
from gossamer.models.vector import Parameters, VectorModel, build_model, call_module
from gossamer.models.zoo import MODELS, make_module

__all__ = [
    "LOSSES",
    "MODELS",
    "CrossEntropy",
    "Loss",
    "Parameters",
    "SquaredError",
    "VectorModel",
    "build_model",
    "call_module",
    "check_loss",
    "make_module",
    "sample_losses",
]
