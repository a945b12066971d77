"""The workloads. Where images are needed they are random: how fast a step is does not depend on its pixels."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from benchmarks.loops import LOOPS, Draw, Loop, Work
from gossamer import Experiment
from gossamer.data import Dataset, Samples, Scaling
from gossamer.training import Training

#: More rounds than are ever reached, so that the last one, which is always evaluated, never comes.
NEVER = 1_000_000
OFF = {"every": 0, "clients": 0, "training": 0}
#: Without weight decay and decay of the learning rate, which would only add the same to both sides.
PLAIN: dict[str, Any] = {"lr_decay": 1.0, "weight_decay": 0.0, "evaluate": OFF, "partition": "iid", "rounds": NEVER}


@dataclass(frozen=True)
class Workload:
    """One line of the table: an experiment and the loop that does the same work."""

    name: str
    title: str
    settings: dict[str, Any]
    #: Shape and number of random images; None where the experiment names a data set.
    images: tuple[tuple[int, ...], int] | None = None
    method: str = "dfedavg"
    #: Whether the loop, too, keeps images with their channels last.
    channels_last: bool = False
    #: The shortest stretch of seconds that is timed at once; at least one round is.
    seconds: float = 1.0
    #: Rounds before the first that is timed.
    warm_up: int = 2
    #: Repeats, if fewer than asked for will do.
    repeats: int | None = None

    def experiment(self, **changes: Any) -> Experiment:
        """The experiment; `changes` make it smaller for a test."""
        settings = {**PLAIN, "method": self.method, **self.settings, **changes}
        if self.images and "dataset" not in settings:
            settings["dataset"] = random_images(*self.images)
        return Experiment(**settings)


def small_net() -> nn.Module:
    """64-32-10, as an ordinary module."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


W1: dict[str, Any] = {
    "clients": 100, "graph": "ring", "model": "mnist-2nn", "batch_size": 128, "local_steps": 5, "lr": 0.1,
}  # fmt: skip
W2 = W1 | {"dataset": "digits", "model": small_net, "batch_size": 32}
W3 = W1 | {"clients": 8, "model": "cifar-cnn", "batch_size": 32, "lr": 0.01}
W4 = W1 | {"clients": 10_000, "graph": {"name": "k-regular", "k": 10}, "model": "softmax", "batch_size": 32}

#: 640 samples a client: five full batches of 128. 6 a client: one batch of 6.
MNIST, CIFAR, MANY = ((1, 28, 28), 64_000), ((3, 32, 32), 50_000), ((1, 28, 28), 60_000)

WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", "100 clients, 784-200-200-10, batch 128, ring", W1, MNIST),
        Workload("W1-SAM", "W1 with DFedSAM", W1, MNIST, method="dfedsam"),
        Workload("W1-ADMM", "W1 with DFedADMM", W1, MNIST, method="dfedadmm"),
        Workload("W2", "digits, 100 clients, 64-32-10, ring", W2),
        Workload("W3", "CIFAR CNN, 8 clients, batch 32, ring", W3, CIFAR),
        Workload("W3-CL", "W3 with channels last in the loop, too", W3, CIFAR, channels_last=True),
        Workload("W4", "10,000 clients, softmax 784-10, 10 neighbours", W4, MANY, repeats=3, warm_up=1),
    )
}


def find(name: str) -> Workload:
    """A workload by its name.

    `N300` is W4 with 300 clients, who hold 6 samples each as well; in `N300E4` each has 4 neighbours.
    """
    if not name.startswith("N"):
        return WORKLOADS[name]
    clients, _, neighbours = name[1:].partition("E")
    settings = W4 | {"clients": int(clients)}
    if neighbours:
        settings["graph"] = {"name": "k-regular", "k": int(neighbours)}
    return replace(WORKLOADS["W4"], name=name, settings=settings, images=(MANY[0], 6 * int(clients)), warm_up=10)


def random_images(shape: tuple[int, ...], samples: int) -> Dataset:
    """Random bytes and random labels of ten classes, the same ones every time; no test samples."""
    stream = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (samples, *shape), dtype=torch.uint8, generator=stream)
    labels = torch.randint(10, (samples,), generator=stream)
    nothing = Samples(pixels[:0], labels[:0])
    return Dataset("random", Samples(pixels, labels), nothing, classes=10, shape=shape, scaling=Scaling())


def loop_of(
    method: str,
    training: Training,
    channels_last: bool = False,
    draw: Draw | None = None,
    fastest_products: bool = False,
) -> Loop:
    """The clean loop of an experiment: same samples, same starting point, same graph."""
    weights, batches, scaling = training.network.matrix(0), training.batches, training.dataset.scaling
    rows = [
        list(zip(weights.indices[a:b].tolist(), weights.data[a:b].tolist(), strict=True))
        for a, b in zip(weights.indptr[:-1], weights.indptr[1:], strict=True)
    ]
    assert batches.asked_steps is not None, "the loops count in steps"
    work = Work(
        make=lambda: training.model.module(training.model.initial).train(),
        inputs=training.dataset.train.inputs,
        targets=training.dataset.train.targets,
        factor=1 / scaling.scale,
        client_rows=[torch.as_tensor(rows) for rows in batches.client_rows],
        weights=rows,
        batch_size=batches.batch_size,
        steps=batches.asked_steps,
        lr=training.lr,
        weight_decay=training.weight_decay,
        dtype=training.model.initial.dtype,
        channels_last=channels_last,
        fastest_products=fastest_products,
    )
    return LOOPS[method](work, draw)
