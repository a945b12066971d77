"""Which samples a client sees at each local step, and the tensors of a step for many clients at once.

Every epoch is a fresh shuffle of the client's own samples, cut into batches; the last, smaller one is kept. The shuffle
is keyed by (seed, client, round, epoch), so it does not depend on who else is trained, or when.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossamer.data.samples import Dataset
from gossamer.randomness import Purpose, generator


class Batch(NamedTuple):
    """One local step's samples for a chunk of clients: [clients, samples, ...]. Padding has weight zero."""

    inputs: Tensor
    targets: Tensor
    #: 1 / (number of the client's real samples) on real samples, 0 on padding: a weighted sum is the batch mean.
    weights: Tensor


class Batches:
    """The local steps of every client in every round."""

    def __init__(
        self,
        parts: Sequence[np.ndarray],
        batch_size: int,
        epochs: int | None,
        steps: int | None,
        seed: int,
    ) -> None:
        if (epochs is None) == (steps is None):
            raise ValueError("local work is a number of epochs or a number of steps, one of the two")
        self.parts = parts
        self.batch_size = batch_size
        self.epochs, self.asked_steps = epochs, steps
        self.seed = seed
        sizes = np.array([len(part) for part in parts], dtype=np.int64)
        self.per_epoch = -(-sizes // batch_size)
        if steps is None:
            self.steps = (epochs or 0) * self.per_epoch
        else:
            # Without samples there is no gradient, so there is no step either.
            self.steps = np.where(sizes > 0, steps, 0).astype(np.int64)

    def indices(self, client: int, round: int) -> list[np.ndarray]:
        """The samples of each local step of one client."""
        part, needed = self.parts[client], int(self.steps[client])
        cut: list[np.ndarray] = []
        epoch = 0
        while len(cut) < needed:
            order = generator(self.seed, Purpose.BATCHES, client, round, epoch).permutation(len(part))
            cut += [part[order[i : i + self.batch_size]] for i in range(0, len(part), self.batch_size)]
            epoch += 1
        return cut[:needed]


class Gathered:
    """All local steps of a chunk of clients in one round, ready to be taken one after the other."""

    def __init__(
        self, batches: Batches, dataset: Dataset, clients: Sequence[int], round: int, dtype: torch.dtype
    ) -> None:
        self._dataset = dataset
        self._clients = clients
        self._round = round
        self._seed = batches.seed
        self._dtype = dtype
        cut = [batches.indices(client, round) for client in clients]
        self.steps = max((len(c) for c in cut), default=0)
        counts = np.array([[len(c[k]) if k < len(c) else 0 for c in cut] for k in range(self.steps)], dtype=np.int64)
        counts = counts.reshape(self.steps, len(clients))
        self._widths = counts.max(axis=1, initial=1).tolist() if self.steps else []
        rows = np.zeros((self.steps, len(clients), max(self._widths, default=1)), dtype=np.int64)
        for j, c in enumerate(cut):
            for k, chosen in enumerate(c):
                rows[k, j] = chosen[0]  # padding repeats a sample of the client's own, with weight zero
                rows[k, j, : len(chosen)] = chosen
        real = np.arange(rows.shape[2]) < counts[:, :, None]
        device = dataset.train.inputs.device
        self._counts = counts
        self._rows = torch.from_numpy(rows).to(device)
        self._weights = torch.from_numpy(real / np.maximum(counts, 1)[:, :, None]).to(device=device, dtype=dtype)
        #: [steps, clients]: whether the client takes the step; [steps]: whether all do.
        self.active = torch.from_numpy(counts > 0).to(device)
        self.everyone: list[bool] = [bool(row.all()) for row in counts > 0]
        #: [steps, clients]: the weight of a step in the client's training loss, the mean over its last local epoch.
        before_last = np.array([batches.steps[client] - batches.per_epoch[client] for client in clients])
        seen = np.where(np.arange(self.steps)[:, None] >= before_last, counts, 0)
        self.shares = torch.from_numpy(seen / np.maximum(seen.sum(axis=0), 1)).to(device=device, dtype=dtype)

    def take(self, step: int) -> Batch:
        """The tensors of one step, augmented and scaled."""
        width = self._widths[step]
        rows = self._rows[step, :, :width]
        train = self._dataset.train
        inputs = train.inputs[rows]
        if self._dataset.augmentation is not None:
            inputs = self._augment(inputs, step)
        return Batch(
            self._dataset.scaling.apply(inputs, self._dtype), train.targets[rows], self._weights[step, :, :width]
        )

    def _augment(self, inputs: Tensor, step: int) -> Tensor:
        augmentation = self._dataset.augmentation
        assert augmentation is not None
        # Drawn for the real samples only and padded after, so that a draw does not depend on the other clients.
        draws = [
            augmentation.draw(generator(self._seed, Purpose.AUGMENTATION, client, self._round, step), int(count))
            for client, count in zip(self._clients, self._counts[step], strict=True)
        ]
        width = inputs.shape[1]
        flips, rows, columns = (
            torch.from_numpy(np.stack([np.pad(getattr(d, name), (0, width - len(d.flips))) for d in draws]))
            for name in ("flips", "rows", "columns")
        )
        device = inputs.device
        return augmentation.apply(inputs, flips.to(device), rows.to(device), columns.to(device))
