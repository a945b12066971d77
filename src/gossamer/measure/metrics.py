"""What is measured of a round: how good the models are, how far they are apart."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from gossamer.data import Dataset, Samples
from gossamer.models import Loss, VectorModel, sample_losses
from gossamer.workers import ALONE, Group

#: Samples evaluated at once: large enough for long matrix products, small enough for images in float32.
EVALUATION_BATCH = 1000


class Quality(NamedTuple):
    """Mean loss and accuracy of each model on the same samples; accuracy is NaN where targets are not classes."""

    loss: Tensor
    accuracy: Tensor


class Evaluator:
    """Loss and accuracy of model vectors on the data set's own samples."""

    def __init__(self, model: VectorModel, loss: Loss, dataset: Dataset, chunk: int, group: Group = ALONE) -> None:
        self._model = model
        self._loss = loss
        self._dataset = dataset
        self._chunk = chunk
        self._group = group

    def test(self, vectors: Tensor, together: bool = False) -> Quality | None:
        """Quality of each row on the test samples; None if there are none.

        Each worker asks about rows of its own, or, `together`, all ask about the same and share out the samples.
        """
        return self._quality(vectors, self._dataset.test, self._group if together else ALONE)

    def training(self, vectors: Tensor, together: bool = False) -> Quality | None:
        """Quality of each row on all clients' training samples together."""
        return self._quality(vectors, self._dataset.train, self._group if together else ALONE)

    def _quality(self, vectors: Tensor, samples: Samples, group: Group) -> Quality | None:
        if not len(samples):
            return None
        self._model.template.eval()
        starts = range(0, len(samples), EVALUATION_BATCH)
        # Each batch has its place, and they are added up at the end: in the same order whoever computed them.
        sums = torch.zeros(len(starts), 2, len(vectors), dtype=torch.float64, device=vectors.device)
        with torch.no_grad():
            for number in range(group.rank, len(starts), group.size):
                batch = slice(starts[number], starts[number] + EVALUATION_BATCH)
                inputs = self._dataset.scaling.apply(samples.inputs[batch], vectors.dtype)
                targets = samples.targets[batch]
                for first in range(0, len(vectors), self._chunk):
                    rows = slice(first, first + self._chunk)
                    sums[number, :, rows] = self._sums(vectors[rows], inputs, targets)
        return Quality(*(group.sum(sums).sum(0) / len(samples)))

    def _sums(self, vectors: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Summed loss and number of hits of each row: [2, rows]."""

        def one(x: Tensor) -> Tensor:
            outputs = self._model(x, inputs)
            loss = sample_losses(self._loss, outputs, targets).sum()
            if targets.is_floating_point():
                return torch.stack([loss, torch.full_like(loss, torch.nan)])
            return torch.stack([loss, (outputs.argmax(1) == targets).sum().to(loss.dtype)])

        if len(vectors) == 1:
            return one(vectors[0])[:, None].double()
        rows: Tensor = vmap(one, out_dims=1)(vectors)
        return rows.double()


def consensus_distance(blocks: Callable[[], Iterable[Tensor]], own: range, clients: int, group: Group = ALONE) -> float:
    """How far the clients are apart: (1/n) Σ_i ‖x_i − x̄‖². Each worker gives its own clients' rows, in blocks, twice.

    >>> consensus_distance(lambda: [torch.tensor([[0.0, 1.0], [2.0, 1.0]])], range(2), clients=2)
    1.0
    """
    # In double precision, so that the order of the sum, and with it the number of workers, makes no difference.
    total: Tensor = sum(rows.sum(0, dtype=torch.float64) for rows in blocks())  # type: ignore[assignment]
    mean = group.sum(total) / clients
    apart = [(row - mean.to(row.dtype)).square_().sum(dtype=torch.float64) for rows in blocks() for row in rows]
    return float(group.collect(torch.stack(apart), own, clients).sum()) / clients
