"""What is measured."""

from gossamer.measure.flatness import (
    Trace,
    eigenvalue_estimates,
    hessian_trace,
    sam_sharpness,
    top_eigenvalues,
    trace_estimates,
    trace_of,
)
from gossamer.measure.lanczos import Eigenvalues
from gossamer.measure.landscape import Grid, check_same_shape, filter_directions, landscape_losses
from gossamer.measure.metrics import Evaluator, Quality, consensus_distance
from gossamer.measure.objective import Objective

__all__ = [
    "Eigenvalues",
    "Evaluator",
    "Grid",
    "Objective",
    "Quality",
    "Trace",
    "check_same_shape",
    "consensus_distance",
    "eigenvalue_estimates",
    "filter_directions",
    "hessian_trace",
    "landscape_losses",
    "sam_sharpness",
    "top_eigenvalues",
    "trace_estimates",
    "trace_of",
]
