"""From the description of an experiment to the objects of a run, checked against each other.

Used by the simulation, by peers and by the theory's measurements.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from gossamer.data import (
    Batches,
    ClientRows,
    Dataset,
    PartitionSummary,
    as_dataset,
    data_directory,
    split,
    summarise,
)
from gossamer.errors import ExperimentError
from gossamer.experiment.compatibility import check_compatibility, check_in_turn, unmet_assumptions
from gossamer.experiment.schema import Experiment
from gossamer.graphs import make_network
from gossamer.methods import Setting, bind, traits_of
from gossamer.models import build_model, make_module
from gossamer.parts import made_by_user
from gossamer.randomness import Purpose, torch_seed
from gossamer.system.words import counted
from gossamer.training import Training
from gossamer.workers import launched_from_outside


class PreparedExperiment(NamedTuple):
    """An experiment with its training and its partition, checked."""

    experiment: Experiment
    training: Training
    partition: PartitionSummary
    #: What the user should know before the first round.
    notes: tuple[str, ...]


def prepare(experiment: Experiment, data_dir: Path | None = None) -> PreparedExperiment:
    """Build and check everything that a run needs; incompatible settings are refused here, before a run starts."""
    device, dtype = as_device(experiment.device), getattr(torch, experiment.dtype)
    network = make_network(experiment.graph_or_default, experiment.clients, experiment.seed)
    check_compatibility(experiment.method, network)
    found = made_by_user("dataset", lambda: as_dataset(experiment.dataset, data_directory(data_dir)))
    dataset = on_device(found, device)
    _refuse_stop_without_measurement(experiment, dataset)
    if dataset.clients is not None:
        if len(dataset.clients) != experiment.clients:
            raise ExperimentError(
                f"clients: the data set '{dataset.name}' comes with {len(dataset.clients)} clients, "
                f"but the experiment says {experiment.clients}"
            )
        client_rows = ClientRows.of(dataset.clients)
    else:
        labels = dataset.train.targets.cpu().numpy()
        client_rows = made_by_user(
            "partition", lambda: split(experiment.partition, labels, experiment.clients, experiment.seed)
        )
    model = made_by_user(
        "model",
        lambda: build_model(
            lambda: make_module(experiment.model, dataset.shape, dataset.classes),
            torch_seed(experiment.seed, Purpose.MODEL),
            dtype,
            device,
        ),
    )
    work = experiment.local_work
    batches = Batches(client_rows, experiment.batch_size, work.epochs, work.steps, experiment.seed)
    least, most = int(batches.local_steps.min()), int(batches.local_steps.max())
    setting = Setting(network.has_server, tuple(tuple(s) for s in model.shapes), equal_steps=least == most)
    method = bind(experiment.method, setting)
    traits = traits_of(method)
    if experiment.order == "in-turn":
        check_in_turn(method)
    if traits.refuse is not None and (reason := traits.refuse(experiment.lr, int(network.hears(0).max()))):
        raise ExperimentError(f"lr: {reason}")
    if traits.needs_equal_steps and least < most:
        raise ExperimentError(
            f"method: with these parameters every client must take the same number of local steps, but here they take "
            f"{least} to {most}. Set local_steps in place of epochs."
        )
    training = Training(
        method=method,
        model=model,
        loss=experiment.loss,
        dataset=dataset,
        batches=batches,
        network=network,
        rounds=experiment.rounds,
        lr=experiment.lr,
        lr_decay=experiment.lr_decay,
        weight_decay=experiment.weight_decay if traits.weight_decay == "experiment" else traits.weight_decay,
        clip=experiment.clip,
        seed=experiment.seed,
        metric=experiment.metric,
        in_turn=experiment.order == "in-turn",
    )
    summary = summarise(client_rows, dataset.train.targets.cpu().numpy(), dataset.classes)
    notes = [
        f"the theory of {type(method).__name__} asks for {assumption}, which '{network.name}' is not: its bounds say "
        "nothing of this run"
        for assumption in unmet_assumptions(method, network)
    ]
    notes += data_notes(experiment, dataset, summary)
    return PreparedExperiment(experiment, training, summary, tuple(notes))


def _refuse_stop_without_measurement(experiment: Experiment, dataset: Dataset) -> None:
    """Refuse to stop at a metric that this data set does not have: the run would never stop at it."""
    metric = experiment.stop_at.metric if experiment.stop_at else ""
    reason = None
    if metric.startswith(("test_", "client_accuracy", "client_loss", "generalisation")) and not len(dataset.test):
        reason = f"the data set '{dataset.name}' has no test samples"
    elif "accuracy" in metric and dataset.train.targets.is_floating_point():
        reason = f"the targets of '{dataset.name}' are no classes"
    if reason:
        raise ExperimentError(f"stop_at: {metric} is never measured here: {reason}")


def data_notes(experiment: Experiment, dataset: Dataset, summary: PartitionSummary) -> Iterator[str]:
    """Facts about the data that a user may not expect."""
    if dataset.clients is not None and experiment.partition != Experiment().partition:
        yield f"the data set '{dataset.name}' comes with its own clients: the partition of the experiment is not used"
    if empty := int((summary.sizes == 0).sum()):
        held = f"{len(dataset.train):,} training samples are shared among {len(summary.sizes):,} clients"
        yield f"{held}: {counted(empty, 'client')} of them {'has' if empty == 1 else 'have'} no sample"
    if not dataset.test.targets.is_floating_point():
        known = np.unique(dataset.train.targets.cpu().numpy())
        unseen = np.setdiff1d(dataset.test.targets.cpu().numpy(), known).tolist()
        if unseen:
            some = ", ".join(map(str, unseen[:5])) + (", ..." if len(unseen) > 5 else "")
            yield f"the test samples have {counted(len(unseen), 'label')} that no training sample has: {some}"


def as_device(name: str) -> torch.device:
    """The torch device called `name`, if this machine has it."""
    if name == "cuda" and launched_from_outside():
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"  # one device for each process of a machine
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()  # and back: the "meta" device holds no values
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0].split(". ")[0].removesuffix(".")
        raise ExperimentError(f"device: '{name}' cannot be used here: {reason}. 'cpu' always can.") from None
    return device


def on_device(dataset: Dataset, device: torch.device) -> Dataset:
    """The data set with all samples on the device of the models: no batch is copied there during training."""
    return replace(dataset, train=dataset.train.to(device), test=dataset.test.to(device))
