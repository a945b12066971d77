"""A user's model and loss, tried on some samples before a run: what fails, or would mislead, is named here.

A model and a loss are functions of their arguments too: what they remember between calls, what they draw in evaluation,
and what a sample gives only beside other samples would depend on how clients are run.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gossamer.data import Dataset, Inputs, Shape, input_tensors, map_inputs
from gossamer.errors import ExperimentError, GossamerError
from gossamer.models import CrossEntropy, Loss, SquaredError, check_loss
from gossamer.system.streams import STREAMS, drawn_since, stream_states
from gossamer.system.torch_private import tree_leaves
from gossamer.training.training import Training
from gossamer.training.watch import (
    InPlaceError,
    Watch,
    at_line,
    equal_results,
    refuse_failure,
    torch_draws_only,
)

#: Samples on which the loss of a batch is compared with the losses of its samples.
LOSS_SAMPLES = 32


def check_model_and_loss(training: Training, client: int) -> None:
    """Refuse a model that fails on samples or whose outputs are not its own, and a loss that is no mean over them."""
    model, data = training.model, training.dataset
    name = f"model {type(model.template).__name__}"
    rows = torch.as_tensor(_different_samples(training, client), device=model.initial.device)
    some = data.train[rows]
    inputs, targets = data.scaling.apply(some.inputs, model.initial.dtype), some.targets
    try:
        with torch.no_grad():
            outputs, drew = _check_model(training, name, inputs)
    except InPlaceError as error:
        _refuse_in_place(name, error)
    except GossamerError:
        raise
    except Exception as error:
        what = f"the model fails on samples of shape {shape_words(data.shape)}"
        refuse_failure(what, error, _input_hint(data, error))
    _refuse_few_scores(training, name, outputs, targets)
    try:
        with torch.no_grad():
            drew |= _check_loss(training.loss, outputs, targets)
    except GossamerError:
        raise
    except Exception as error:
        what = f"the loss fails on outputs of {_described(outputs)} and targets of {_described(targets)}"
        refuse_failure(what, error, _hint(training.loss, outputs, targets))
    model.draws_randomness |= drew


def _check_model(training: Training, name: str, inputs: Inputs) -> tuple[Any, bool]:
    """The outputs of a model on some samples, and whether it draws random numbers while it trains."""
    model = training.model
    watched = {"its inputs": inputs} if isinstance(inputs, Tensor) else {f"input '{k}'": v for k, v in inputs.items()}
    model.template.train()
    torch.manual_seed(0)
    before = stream_states()
    with Watch({**watched, "its parameters": model.initial}):
        outputs = model(model.initial, inputs)
    drew = "torch" in torch_draws_only("the model", before)
    counted = _numbers_held(model.template)
    torch.manual_seed(0)
    again = model(model.initial, inputs)
    changed = [place for place, value in _numbers_held(model.template).items() if value != counted.get(place)]
    if changed or not equal_results(outputs, again):
        what = f"changes {changed[0]} in every call" if changed else "gives other outputs when it is called again"
        raise ExperimentError(
            f"{name} {what}: one module serves all clients of a worker, so the result would depend on how clients are "
            "run. A model keeps nothing between two calls but its parameters."
        )
    model.template.eval()
    torch.manual_seed(0)
    before = stream_states()
    with Watch({**watched, "its parameters": model.initial}):
        evaluated = model(model.initial, inputs)
    if drawn := drawn_since(before):
        raise ExperimentError(
            f"{name} draws random numbers from {STREAMS[drawn[0]]} when it is evaluated, too, so its accuracy would "
            "depend on how it is measured. Draw them only in training: functional.dropout(x, p, self.training), or "
            "`if self.training:`"
        )
    if not drew:
        model.template.train()
    _refuse_beside_others(training, name, inputs, evaluated if drew else outputs)
    model.template.train()
    return outputs, drew


def _numbers_held(module: nn.Module) -> dict[str, Any]:
    """The Python numbers that a module and its parts hold."""
    return {
        f"self.{f'{place}.' if place else ''}{key}": value
        for place, part in module.named_modules()
        for key, value in vars(part).items()
        if isinstance(value, int | float) and key != "training"
    }


def _refuse_beside_others(training: Training, name: str, inputs: Inputs, outputs: Any) -> None:
    """Refuse a model whose output for a sample is another one beside other samples."""
    samples = len(input_tensors(inputs)[0])
    some = slice(max(1, samples // 4), samples - samples // 4)  # without what stands before them and behind
    if samples < 2:
        return
    alone = training.model(training.model.initial, map_inputs(lambda values: values[some], inputs))
    for one, other in zip(tree_leaves(alone), tree_leaves(outputs), strict=False):
        if not (isinstance(one, Tensor) and isinstance(other, Tensor) and one.is_floating_point()):
            continue
        if other.dim() == 0 or len(other) != samples or one.shape != other[some].shape:
            continue
        if (one - other[some]).abs().max() > 1e-3 * other.abs().max():
            raise ExperimentError(
                f"{name} gives another output for a sample beside other samples. Batches of different clients are "
                "padded to one size, so a sample's output must depend on its own input alone: no statistics of a "
                "batch, samples in the first dimension (batch_first=True)"
            )


def _refuse_in_place(name: str, error: InPlaceError) -> None:
    if error.place == "its parameters":
        raise ExperimentError(
            f"{name} changes its parameters in place{at_line(error)} when it is called: they are the client's state, "
            "which only a method changes. An nn.Embedding does so with max_norm"
        ) from error
    raise ExperimentError(
        f"{name} changes {error.place} in place{at_line(error)}: the samples themselves "
        "would change. Make a new tensor: `x = x - 1`, not `x -= 1`; inplace=False"
    ) from error


def _check_loss(loss: Loss, outputs: Any, targets: Tensor) -> bool:
    """Refuse a loss that is no mean over samples or not the same twice; whether it draws random numbers."""
    torch.manual_seed(0)
    before = stream_states()
    given = {f"its outputs {place}".strip(): leaf for place, leaf in _leaves(outputs)}
    try:
        with Watch({**given, "its targets": targets}):
            losses = loss(outputs, targets)
    except InPlaceError as error:
        raise ExperimentError(
            f"loss: it changes {error.place} in place{at_line(error)}, which are used after it. Make a new tensor: "
            f"`y = y - 1`, not `y -= 1`"
        ) from error
    drew = "torch" in torch_draws_only("the loss", before)
    torch.manual_seed(0)
    if not equal_results(losses, loss(outputs, targets)):
        raise ExperimentError(
            "loss: it gives other numbers when it is called again with the same arguments. One function serves all "
            "clients of a worker, so the result would depend on how clients are run: it may not remember anything"
        )
    if not drew:
        check_loss(loss, outputs, targets)
    return drew


def _leaves(outputs: Any) -> list[tuple[str, Tensor]]:
    leaves = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
    return [("" if len(leaves) == 1 else f"[{i}]", leaf) for i, leaf in enumerate(leaves)]


def _different_samples(training: Training, client: int) -> np.ndarray:
    """Some samples of a client with as many different targets as it has: one of each class first."""
    held = training.batches.client_rows[client]
    targets = training.dataset.train.targets
    if targets.dim() == 1:
        own = targets[torch.as_tensor(held, device=targets.device)].cpu().numpy()
        _, first = np.unique(own, return_index=True)
        held = np.concatenate([held[first], np.delete(held, first)])
    return held[:LOSS_SAMPLES]


def shape_words(shape: Shape) -> str:
    """The shape of a sample in words.

    >>> shape_words((1, 8, 8)), shape_words({"ids": (12,), "age": ()})
    ('1x8x8', 'ids 12, age 1')
    """
    if isinstance(shape, dict):
        return ", ".join(f"{name} {shape_words(each)}" for name, each in shape.items())
    return "x".join(map(str, shape)) or "1"


def _input_hint(data: Dataset, error: Exception) -> str:
    """What may be wrong with the inputs, if a layer does not take their type or their numbers."""
    given = input_tensors(data.train.inputs)
    if isinstance(error, IndexError) and (whole := [v for v in given if v.dtype in (torch.int32, torch.int64)]):
        least, largest = min(int(v.min()) for v in whole), max(int(v.max()) for v in whole)
        return f". The integers of the inputs reach from {least} to {largest}: an nn.Embedding takes 0 to its size - 1"
    if "dtype" not in str(error) and "scalar type" not in str(error):
        return ""
    kinds = {values.dtype for values in given}
    if torch.uint8 in kinds:
        return ". Bytes are pixels, which are scaled to floats; give tokens as int64"
    if any(not kind.is_floating_point for kind in kinds):
        return ". Integers are given to the model as they are, for an embedding; give measurements as floats"
    return ". Floats stay floats; give tokens as integers"


def _refuse_few_scores(training: Training, name: str, outputs: Any, targets: Tensor) -> None:
    """Refuse a model that has no score for some class: the samples at hand may lack that class."""
    scores = isinstance(outputs, Tensor) and not targets.is_floating_point() and outputs.dim() == targets.dim() + 1
    if not scores or not isinstance(training.loss, CrossEntropy) or outputs.shape[:-1] != targets.shape:
        return
    if outputs.shape[-1] < training.dataset.classes:
        raise ExperimentError(
            f"{name} gives {outputs.shape[-1]} scores for each target, but there are {training.dataset.classes} "
            "classes. A model is a function of (input shape, number of classes): its last layer has as many outputs"
        )


def _hint(loss: Loss, outputs: Any, targets: Tensor) -> str:
    """What may be wrong with the outputs or the targets of a loss that fails."""
    if outputs is None:
        return ". The model returns nothing: is a `return` missing in its `forward`?"
    if not isinstance(outputs, Tensor):
        return ". For outputs that are no tensor, set `loss` to a function of your own: one number for each sample"
    if targets.dim() == 2 and bool(((targets == 0) | (targets == 1)).all()) and bool((targets.sum(1) == 1).all()):
        return ". If these are one-hot labels, give the number of each class: targets.argmax(1)"
    if isinstance(loss, SquaredError):
        return (
            f". The model gives {outputs[0].numel()} numbers for each sample, the targets have {targets[0].numel()}; "
            "for classes take 'cross-entropy'"
        )
    if targets.is_floating_point():
        return ". If these are classes, give them as whole numbers: targets.long(); for numbers take 'squared-error'"
    return ""


def _described(value: Any) -> str:
    """The shape and type of a tensor; the type of anything else."""
    if not isinstance(value, Tensor):
        return f"type {type(value).__name__}"
    return f"shape {tuple(value.shape)} ({str(value.dtype).removeprefix('torch.')})"
