"""Metrics that an experiment may name beside loss and accuracy: a score, or an error."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from gossamer.errors import ExperimentError
from gossamer.parts import Catalog, part

#: Of outputs and targets: one number for each sample, or their mean.
OwnMetric = Callable[[Any, Tensor], Any]


@part
class AbsoluteError:
    """Mean absolute difference between outputs and targets."""

    lower_is_better: ClassVar[bool] = True

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets.to(outputs.dtype).view_as(outputs)).abs().reshape(len(targets), -1).mean(1)


@part
class TopK:
    """Whether the right class is among the k with the largest scores."""

    k: Annotated[int, Field(ge=1)] = 5

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        best = outputs.topk(min(self.k, outputs.shape[-1]), dim=-1).indices
        return (best == targets.unsqueeze(-1)).any(-1).to(outputs.dtype).reshape(len(targets), -1).mean(1)


OWN_METRICS = Catalog("metric", {"absolute-error": AbsoluteError, "top-k": TopK}, role="__call__")


def metric_key(metric: OwnMetric) -> str:
    """The metric of the record under which a score is written: "test_error" if it says `lower_is_better`."""
    function = metric.func if isinstance(metric, partial) else metric
    return "test_error" if getattr(function, "lower_is_better", False) else "test_score"


def total_metric(metric: OwnMetric, outputs: Any, targets: Tensor) -> Tensor:
    """The sum over samples of a metric that gives one number for each, or their mean.

    >>> total_metric(TopK(k=1), torch.eye(3), torch.tensor([0, 1, 0])), total_metric(lambda o, t: 0.5, 0, torch.ones(4))
    (tensor(2.), tensor(2., dtype=torch.float64))
    """
    scores = metric(outputs, targets)
    if not isinstance(scores, Tensor):
        try:
            scores = torch.as_tensor(scores, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            got = "None (is a `return` missing?)" if scores is None else f"a {type(scores).__name__}"
            raise ExperimentError(
                f"metric: it should give one number for each of {len(targets)} samples, or their mean (got {got})"
            ) from None
    if scores.dim() == 0:
        return scores * len(targets)
    if scores.shape != targets.shape[:1]:
        raise ExperimentError(
            f"metric: it should give one number for each of {len(targets)} samples, or their mean "
            f"(got shape {tuple(scores.shape)})"
        )
    return scores.sum()
