"""Quality of models, and how far the models of the clients are apart."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional

from gossamer.data import IGNORED, Dataset, Inputs, Samples
from gossamer.engines import FastProducts, Products
from gossamer.measure.own_metrics import OwnMetric, metric_key, total_metric
from gossamer.measure.widths import widest
from gossamer.models import Loss, VectorModel, sample_losses
from gossamer.parts import describe_error
from gossamer.system.sums import sum_rows
from gossamer.workers import ALONE, Group

#: The most samples evaluated at once: enough for long matrix products.
EVALUATION_BATCH = 1000
#: The most bytes that the widest layer of one model may take: wide models are evaluated on fewer samples at once.
WIDTH = 64 << 20
#: The widest layers of all models that are evaluated together may take this many times `WIDTH`.
MODELS = 4
#: Samples on which the width is found.
PROBE = 4


class Quality(NamedTuple):
    """Mean loss and accuracy of each model on the same samples, and the experiment's own metric."""

    loss: Tensor
    #: The share of right labels, of samples or of tokens that count; NaN where outputs are not scores of classes.
    accuracy: Tensor
    #: NaN without a metric.
    metric: Tensor
    #: Accuracy on the samples of each class, [models, classes], if it was asked for; NaN of a class without samples.
    by_class: Tensor | None = None

    def of_one(self, samples: str, metric: OwnMetric | None = None) -> dict[str, float]:
        """The metrics of one model on the "test" or "train" samples; accuracy only where it has a meaning."""
        found = {f"{samples}_loss": float(self.loss), f"{samples}_accuracy": float(self.accuracy)}
        if self.accuracy.isnan():
            del found[f"{samples}_accuracy"]
        if metric is not None:
            found[metric_key(metric)] = float(self.metric)
        return found


class Evaluator:
    """Loss and accuracy of model vectors on the data set's own samples."""

    def __init__(
        self,
        model: VectorModel,
        loss: Loss,
        dataset: Dataset,
        chunk: int,
        group: Group = ALONE,
        note: Callable[[str], None] = lambda message: None,
        metric: OwnMetric | None = None,
        products: Products = "mkl",
    ) -> None:
        self._model = model
        self._loss = loss
        self._dataset = dataset
        self._chunk = chunk
        self._group = group
        #: The experiment's own metric, measured of a model that is evaluated alone: the averaged one.
        self._metric = metric
        #: Linear layers of a model that is evaluated alone are multiplied by the library of this plan.
        self._products = FastProducts(products) if products != "mkl" else nullcontext()
        #: Called with what the user should know.
        self._note = note
        #: False as soon as `vmap` turns out not to have a rule for something in the model, the loss or the metric.
        self._vectorises = True

    @cached_property
    def _batch(self) -> int:
        """Samples evaluated at once. They do not depend on the number of workers or models, so neither do the sums."""
        return max(1, min(EVALUATION_BATCH, WIDTH // self._sample_bytes))

    @cached_property
    def _models(self) -> int:
        """Models evaluated at once."""
        return max(1, min(self._chunk, MODELS * WIDTH // (self._batch * self._sample_bytes)))

    @cached_property
    def _sample_bytes(self) -> int:
        """Bytes of the widest layer of one model for one sample."""
        samples = max(self._dataset.test, self._dataset.train, key=len)
        initial, some = self._model.initial, samples[:PROBE]
        if len(some) < PROBE:
            return 1
        return widest(self._model, self._dataset.scaling.apply(some.inputs, initial.dtype)) * initial.element_size()

    def test(self, vectors: Tensor, together: bool = False, by_class: bool = False) -> Quality | None:
        """Quality of each row on the test samples; None if there are none.

        Each worker passes rows of its own. With `together`, all pass the same rows and each evaluates some samples.
        """
        return self._quality(vectors, self._dataset.test, self._group if together else ALONE, by_class)

    def training(self, vectors: Tensor, together: bool = False) -> Quality | None:
        """Quality of each row on all clients' training samples together."""
        return self._quality(vectors, self._dataset.train, self._group if together else ALONE)

    def _quality(self, vectors: Tensor, samples: Samples, group: Group, by_class: bool = False) -> Quality | None:
        if not len(samples):
            return None
        self._model.template.eval()
        classes = self._dataset.classes if by_class else 0
        starts = range(0, len(samples), self._batch)
        # One place for each batch, summed at the end: in the same order for any number of workers.
        sums = torch.zeros(len(starts), 3 + classes, len(vectors), dtype=torch.float64, device=vectors.device)
        with torch.no_grad():
            for number in range(group.rank, len(starts), group.size):
                batch = slice(starts[number], starts[number] + self._batch)
                some = samples[batch]
                inputs, targets = self._dataset.scaling.apply(some.inputs, vectors.dtype), some.targets
                for first in range(0, len(vectors), self._models):
                    rows = slice(first, first + self._models)
                    sums[number, :, rows] = self._sums(vectors[rows], inputs, targets, classes)
        loss, hits, metric, *in_class = group.all_sum(sums).sum(0)
        labels = len(samples) if samples.targets.dim() == 1 else (samples.targets != IGNORED).sum()
        found = Quality(loss / len(samples), hits / labels, metric / len(samples))
        if not classes:
            return found
        return found._replace(by_class=torch.stack(in_class, 1) / torch.bincount(samples.targets, minlength=classes))

    def _sums(self, vectors: Tensor, inputs: Inputs, targets: Tensor, classes: int = 0) -> Tensor:
        """Summed loss, right labels, summed metric and right labels in each class, of each row: [3 + C, rows]."""
        members = functional.one_hot(targets, classes).to(vectors.dtype) if classes else None

        def one(x: Tensor) -> Tensor:
            outputs = self._model(x, inputs)
            loss = sample_losses(self._loss, outputs, targets).sum()
            found = predicted(outputs, targets)
            right = None if found is None else (found == targets).to(loss.dtype)
            hits = torch.full_like(loss, torch.nan) if right is None else right.sum()
            metric = torch.full_like(loss, torch.nan)
            if self._metric is not None and len(vectors) == 1:
                metric = total_metric(self._metric, outputs, targets)
            sums = torch.stack([loss, hits, metric.to(loss)])
            if members is None:
                return sums
            return torch.cat([sums, hits.expand(classes) if right is None else right @ members])

        if len(vectors) == 1 or not self._vectorises:
            with self._products:
                return torch.stack([one(x) for x in vectors], dim=1).double()
        try:
            rows: Tensor = vmap(one, out_dims=1)(vectors)
        except Exception as error:  # of a user's model, loss or metric
            self._vectorises = False
            rows = self._sums(vectors, inputs, targets, classes)  # raises again what is not the fault of `vmap`
            self._note(f"models are evaluated one at a time, since vmap cannot run them: {describe_error(error)}")
        return rows.double()


def predicted(outputs: Any, targets: Tensor) -> Tensor | None:
    """The class with the largest score, for each target; None where outputs are not scores of classes.

    Classes are the last dimension, [N, C] or [N, T, C], or the second as torch's cross-entropy has it, [N, C, T].
    """
    if targets.is_floating_point() or not isinstance(outputs, Tensor) or outputs.dim() != targets.dim() + 1:
        return None
    if outputs.shape[:-1] == targets.shape:
        return outputs.argmax(-1)
    return outputs.argmax(1) if outputs.shape[:1] + outputs.shape[2:] == targets.shape else None


def squared_distances(blocks: Callable[[], Iterable[Tensor]], own: range, clients: int, group: Group = ALONE) -> Tensor:
    """‖x_i − x̄‖² of every client; their mean is the consensus distance. `blocks` gives the rows of a worker's own
    clients; called twice.

    >>> squared_distances(lambda: [torch.tensor([[0.0, 1.0], [2.0, 1.0]])], range(2), clients=2).tolist()
    [1.0, 1.0]
    """
    total: Tensor | None = None
    for rows in blocks():
        total = sum_rows(rows, onto=total)
    assert total is not None, "no worker is without clients"
    mean = group.all_sum(total).div_(clients).to(rows.dtype)
    apart = [torch.stack([(row - mean).square_().sum(dtype=torch.float64) for row in rows]) for rows in blocks()]
    return group.gather_clients(torch.cat(apart), own, clients)
