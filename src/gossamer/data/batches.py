"""The mini-batches of each client's local steps, and their tensors for many clients at once.

Every epoch is a fresh shuffle of the client's samples, cut into batches; the last, smaller one is kept. The shuffle is
keyed by (seed, client, round, epoch), so it does not depend on which other clients are trained, or when. Samples that
fit into one batch are not shuffled, since the order within a batch has no effect.
"""

import copy
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from gossamer.data.client_rows import ClientRows, Indices
from gossamer.data.inputs import Inputs, input_tensors, map_inputs
from gossamer.data.samples import Dataset
from gossamer.randomness import Draws, Purpose


class Batch(NamedTuple):
    """One local step's samples for a chunk of clients: [clients, samples, ...]. Padding has weight zero."""

    #: As stored (mostly bytes); the step scales them, while they are in the processor's cache.
    inputs: Inputs
    targets: Tensor
    #: 1 / (number of the client's real samples) on real samples, 0 on padding: a weighted sum is the batch mean.
    weights: Tensor

    def at(self, place: Any) -> "Batch":
        """The batch with every tensor indexed by `place`."""
        return Batch(map_inputs(lambda values: values[place], self.inputs), self.targets[place], self.weights[place])


class Cut(NamedTuple):
    """The local steps of some clients in one round: the place of each step's batch in one array of samples."""

    #: The samples in training order, client after client. Sample 0 comes first: padding points there.
    samples: Indices
    #: [steps, clients]: the start of the batch in `samples` and its length; both are 0 for a step not taken.
    starts: Indices
    counts: Indices


class Batches:
    """The local steps of every client in every round."""

    def __init__(
        self,
        client_rows: ClientRows | Sequence[Any],
        batch_size: int,
        epochs: int | None,
        steps: int | None,
        seed: int,
    ) -> None:
        if (epochs is None) == (steps is None):
            raise ValueError("local work is a number of epochs or a number of steps, one of the two")
        self.client_rows = ClientRows.of(client_rows)
        self.batch_size = batch_size
        self.epochs, self.asked_steps = epochs, steps
        self.seed = seed
        self.sizes = self.client_rows.sizes
        self.per_epoch = -(-self.sizes // batch_size)
        #: The mini-batches of each client in a round, one for each local step; without samples there are none.
        self.steps = np.where(self.sizes > 0, (epochs or 0) * self.per_epoch if steps is None else steps, 0)
        #: The local steps of each client. One without samples takes as many as are asked for, or one an epoch, with a
        #: zero gradient: so the dual or the correction that it keeps takes effect on its model as on the others'.
        self.local_steps = np.where(self.sizes > 0, self.steps, (epochs or 0) if steps is None else steps)

    def work(self) -> Indices:
        """The number of samples that each client processes in one round: the relative cost of its local steps.

        >>> Batches([np.arange(5), np.arange(2), np.arange(0)], 2, None, 4, seed=0).work()
        array([7, 8, 0])
        """
        # Only the last batch of an epoch can be smaller, so all batches of an unfinished epoch are full.
        whole, rest = np.divmod(self.steps, np.maximum(self.per_epoch, 1))
        work: Indices = whole * self.sizes + rest * self.batch_size
        return work

    def cut(self, clients: Sequence[int], round: int) -> Cut:
        """The local steps of these clients in one round.

        Only the shuffles are made one by one, because each has its own key.
        """
        chosen = np.asarray(clients, dtype=np.int64)
        sizes, steps = self.sizes[chosen], self.steps[chosen]
        per_epoch = np.maximum(self.per_epoch[chosen], 1)
        epochs = -(-steps // per_epoch)
        step = np.arange(steps.max(initial=0))[:, None]
        taken = step < steps
        epoch, place = np.divmod(step, per_epoch)
        place *= self.batch_size
        counts = np.where(taken, np.minimum(sizes - place, self.batch_size), 0)
        ends = 1 + np.cumsum(epochs * sizes)
        starts = np.where(taken, ends + (epoch - epochs) * sizes + place, 0)
        return Cut(self.shuffled(chosen, round), starts, counts)

    def shuffles(self, clients: Sequence[int]) -> bool:
        """Whether any of these clients has other mini-batches in every round."""
        return bool((self.sizes[np.asarray(clients, dtype=np.int64)] > self.batch_size).any())

    def shuffled(self, clients: Indices, round: int) -> Indices:
        """Sample 0, then each client's samples once for each of its epochs, shuffled anew in each."""
        epochs = -(-self.steps[clients] // np.maximum(self.per_epoch[clients], 1))
        samples = np.concatenate([np.zeros(1, dtype=np.int64), self.client_rows.gather(np.repeat(clients, epochs))])
        draws, end = Draws(self.seed, Purpose.BATCHES), 1
        for client, size, times in zip(clients.tolist(), self.sizes[clients].tolist(), epochs.tolist(), strict=True):
            if size > self.batch_size:
                for epoch in range(times):
                    start = end + epoch * size
                    draws.at(client, round, epoch).shuffle(samples[start : start + size])
            end += times * size
        return samples

    def indices(self, client: int, round: int) -> list[np.ndarray]:
        """The samples of each local step of one client."""
        samples, starts, counts = self.cut([client], round)
        places = zip(starts[:, 0].tolist(), counts[:, 0].tolist(), strict=True)
        return [samples[start : start + count] for start, count in places]


class ChunkBatches:
    """All local steps of a chunk of clients in one round, ready to be taken one after the other.

    With the memory format `torch.channels_last`, each client's images [samples, C, H, W] lie in memory that way.
    """

    def __init__(
        self,
        batches: Batches,
        dataset: Dataset,
        clients: Sequence[int],
        round: int,
        dtype: torch.dtype,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self._batches = batches
        self._dataset = dataset
        self._clients = clients
        self._round = round
        self._dtype = dtype
        self._channels_last = memory_format == torch.channels_last
        self._seed = batches.seed
        samples, starts, counts = batches.cut(clients, round)
        self.steps = len(counts)
        self._counts = counts
        self._widths: list[int] = counts.max(axis=1, initial=1).tolist()
        column = np.arange(max(self._widths, default=1))
        real = column < counts[:, :, None]
        places = starts[:, :, None] + column * real  # padding repeats the first of the batch, or sample 0
        device = dataset.train.device
        self._rows = torch.from_numpy(samples.take(places)).to(device)
        #: Where they are in an array of samples that is shuffled anew in every round.
        self._places = places if batches.shuffles(clients) else None
        self._weights = torch.from_numpy(real / np.maximum(counts, 1)[:, :, None]).to(device=device, dtype=dtype)
        active = counts > 0
        #: [steps, clients]: whether the client takes the step; [steps]: whether all do.
        self.active = torch.from_numpy(active).to(device)
        self.all_active: list[bool] = np.all(active, axis=1).tolist()
        #: [steps, clients]: the weight of a step in the client's training loss, the mean over its last local epoch.
        chosen = np.asarray(clients, dtype=np.int64)
        before_last = batches.steps[chosen] - batches.per_epoch[chosen]
        seen = np.where(np.arange(self.steps)[:, None] >= before_last, counts, 0)
        with np.errstate(invalid="ignore"):  # who takes no step has no loss, not even zero
            self.loss_weights = torch.from_numpy(seen / seen.sum(axis=0)).to(device=device, dtype=dtype)

    def at(self, round: int) -> "ChunkBatches":
        """The steps of the same clients in another round: only the samples differ, and only where they are shuffled."""
        other = copy.copy(self)
        other._round = round
        if self._places is not None:
            samples = self._batches.shuffled(np.asarray(self._clients, dtype=np.int64), round)
            other._rows = torch.from_numpy(samples.take(self._places)).to(self._rows.device)
        return other

    @property
    def numbers(self) -> int:
        """How many samples all steps take, padding included."""
        return self._rows.numel()

    def split_clients(self) -> Iterator["ChunkBatches"]:
        """Each client's steps alone. Cheaper than gathering them so, which is mostly fixed cost."""
        columns = (torch.split(values, 1, 1) for values in (self._rows, self._weights, self.active, self.loss_weights))
        lengths = (self._counts > 0).sum(axis=0).tolist()
        for client, counts, steps, *tensors in zip(self._clients, self._counts.T, lengths, *columns, strict=True):
            one = ChunkBatches.__new__(ChunkBatches)
            vars(one).update(vars(self))  # as `copy.copy`, in a tenth of the time
            one.steps, one._clients = steps, [client]
            one._counts = counts[:steps, None]
            one._widths = counts[:steps].tolist()
            if steps < self.steps:
                tensors = [values[:steps] for values in tensors]
            one._rows, one._weights, one.active, one.loss_weights = tensors
            one.all_active = [True] * steps
            yield one

    def whole(self, most_bytes: int) -> Batch | None:
        """All steps at once, [steps, clients, samples, ...], where all are alike and take little memory; else None."""
        alike = len(set(self._widths)) == 1 and all(self.all_active) and self._dataset.augmentation is None
        sample_bytes = sum(values[0].nbytes for values in input_tensors(self._dataset.train.inputs))
        if not alike or self._rows.numel() * sample_bytes > most_bytes:
            return None
        rows = self._rows[:, :, : self._widths[0]]
        return self._batch(rows, self._weights[:, :, : self._widths[0]])

    def padded(self, width: int) -> tuple[Tensor, Tensor]:
        """All steps as rows of the data set, and the weights of these samples: [steps, clients, width]."""
        more = (0, width - self._rows.shape[2])
        return (self._rows, self._weights) if more == (0, 0) else (pad(self._rows, more), pad(self._weights, more))

    def take(self, step: int) -> Batch:
        """The tensors of one step, augmented."""
        width = self._widths[step]
        return self._batch(self._rows[step, :, :width], self._weights[step, :, :width], step)

    def _batch(self, rows: Tensor, weights: Tensor, step: int = 0) -> Batch:
        """The samples in these rows, [clients, samples] or [steps, clients, samples]."""
        # One selection of whole rows copies them as blocks; indexing by [clients, samples] goes number by number.
        train, places = self._dataset.train, rows.reshape(-1)
        targets = train.targets.index_select(0, places)
        inputs = map_inputs(lambda values: values.index_select(0, places), train.inputs)
        if self._dataset.augmentation is not None:
            assert isinstance(inputs, Tensor)
            inputs = self._augment(inputs, step)

        def arranged(values: Tensor) -> Tensor:
            if self._channels_last and values.ndim == 4:
                values = values.contiguous(memory_format=torch.channels_last)
            return values.view(*rows.shape, *values.shape[1:])

        return Batch(map_inputs(arranged, inputs), targets.view(*rows.shape, *targets.shape[1:]), weights.contiguous())

    @cached_property
    def _draws(self) -> Draws:
        return Draws(self._seed, Purpose.AUGMENTATION)

    def _augment(self, inputs: Tensor, step: int) -> Tensor:
        augmentation = self._dataset.augmentation
        assert augmentation is not None
        flips = np.zeros((len(self._clients), self._widths[step]), dtype=np.bool_)
        offsets = np.zeros((2, *flips.shape), dtype=np.int64)
        # Drawn for the real samples only, so that a draw does not depend on the other clients. Padding stays at zero.
        for j, (client, count) in enumerate(zip(self._clients, self._counts[step].tolist(), strict=True)):
            draw = augmentation.draw(self._draws.at(client, self._round, step), count)
            flips[j, :count], offsets[0, j, :count], offsets[1, j, :count] = draw.flips, draw.rows, draw.columns
        rows, columns = torch.from_numpy(offsets).to(inputs.device).flatten(1)
        return augmentation.apply(inputs, torch.from_numpy(flips).to(inputs.device).flatten(), rows, columns)
