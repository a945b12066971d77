"""One client's first step, tried before a run: a mistake in a user's model, loss or method is named here.

A method is plain functions: what they return depends on their arguments alone, and nothing else is changed. Otherwise
the numbers would depend on how clients are run (many at once, in several workers, as peers that restart), without a
word. In-place changes, global random numbers and hidden state are therefore refused, with what to write instead.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from gossamer.data import Batch, ChunkBatches, Dataset, Shape, input_tensors
from gossamer.errors import ExperimentError, GossamerError
from gossamer.methods import Local, Message, State, mixes
from gossamer.models import Loss, SquaredError, check_loss
from gossamer.parts import describe_error, is_out_of_memory, user_line
from gossamer.training.rounds import client_round
from gossamer.training.steps import (
    GradientAndLoss,
    Objective,
    full_gradient,
    take_step,
    with_tape,
)
from gossamer.training.training import Training
from gossamer.training.watch import (
    STREAMS,
    InPlaceError,
    Watch,
    drawn_since,
    hidden_state,
    keep_streams,
    stream_states,
    torch_draws_only,
)

#: Samples on which the loss of a batch is compared with the losses of its samples.
LOSS_SAMPLES = 32


def check_first_step(training: Training) -> None:
    """Refuse a model, a loss or a method that fails in the first round, or whose numbers would not be its own.

    Nothing is kept of it, but that the model draws random numbers, if it does.
    """
    model, working = training.model, np.flatnonzero(training.batches.steps)
    client, batch = (int(working[0]) if len(working) else 0), None
    buffers = {name: value.clone() for name, value in model.template.named_buffers()}
    with keep_streams(model.initial.device):
        model.template.train()
        if len(working):
            own = ChunkBatches(training.batches, training.dataset, [client], 0, model.initial.dtype)
            batch = own.take(0).at(0)
            _check_model_and_loss(training, client)
        _MethodTrial(training, client, batch).run()
    for name, value in model.template.named_buffers():
        if not torch.equal(value, buffers[name]):
            raise ExperimentError(
                f"model {type(model.template).__name__} changes its buffer '{name}' while it trains, which no client "
                "sends: clients would not agree on it. Make it a parameter, or leave it as it is."
            )


def _check_model_and_loss(training: Training, client: int) -> None:
    """Refuse a model that fails on samples, and a loss that fails or is no mean over them."""
    model, data = training.model, training.dataset
    rows = torch.as_tensor(_different_samples(training, client), device=model.initial.device)
    some = data.train[rows]
    inputs, targets = data.scaling.apply(some.inputs, model.initial.dtype), some.targets
    watch = Watch({"its inputs": inputs})
    before = stream_states()
    try:
        with torch.no_grad(), watch:
            outputs = model(model.initial, inputs)
    except InPlaceError as error:
        raise ExperimentError(
            f"model {type(model.template).__name__} changes its inputs in place{_at(error)}: the samples themselves "
            "would change. Make a new tensor: `x = x - 1`, not `x -= 1`; inplace=False"
        ) from error
    except Exception as error:
        _refuse(f"the model fails on samples of shape {_shape_words(data.shape)}", error, _input_hint(data, error))
    drew = torch_draws_only("the model", before)
    before = stream_states()
    try:
        with torch.no_grad():
            training.loss(outputs, targets)
            drew |= (draws := torch_draws_only("the loss", before))
            if not draws:
                check_loss(training.loss, outputs, targets)
    except GossamerError:
        raise
    except Exception as error:
        what = f"the loss fails on outputs of {_described(outputs)} and targets of {_described(targets)}"
        _refuse(what, error, _hint(training.loss, outputs, targets))
    model.draws_randomness |= "torch" in drew


def _different_samples(training: Training, client: int) -> np.ndarray:
    """Some samples of a client with as many different targets as it has: one of each class first."""
    held = training.batches.client_rows[client]
    targets = training.dataset.train.targets
    if targets.dim() == 1:
        own = targets[torch.as_tensor(held, device=targets.device)].cpu().numpy()
        _, first = np.unique(own, return_index=True)
        held = np.concatenate([held[first], np.delete(held, first)])
    return held[:LOSS_SAMPLES]


def _shape_words(shape: Shape) -> str:
    """The shape of a sample in words.

    >>> _shape_words((1, 8, 8)), _shape_words({"ids": (12,), "age": ()})
    ('1x8x8', 'ids 12, age 1')
    """
    if isinstance(shape, dict):
        return ", ".join(f"{name} {_shape_words(each)}" for name, each in shape.items())
    return "x".join(map(str, shape)) or "1"


def _input_hint(data: Dataset, error: Exception) -> str:
    """What may be wrong with the inputs, if a layer does not take their type."""
    if "dtype" not in str(error) and "scalar type" not in str(error):
        return ""
    kinds = {values.dtype for values in input_tensors(data.train.inputs)}
    if torch.uint8 in kinds:
        return ". Bytes are pixels, which are scaled to floats; give tokens as int64"
    if any(not kind.is_floating_point for kind in kinds):
        return ". Integers are given to the model as they are, for an embedding; give measurements as floats"
    return ". Floats stay floats; give tokens as integers"


def _hint(loss: Loss, outputs: Any, targets: Tensor) -> str:
    """What may be wrong with the outputs or the targets of a loss that fails."""
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


class _MethodTrial:
    """The functions of a method, called in order for one client and watched."""

    def __init__(self, training: Training, client: int, batch: Batch | None) -> None:
        self.work, self.client, self.batch = training, client, batch
        self.method, self.traits = training.method, training.traits
        self.name = f"method '{type(training.method).__name__}'"
        #: Gossamer's own methods are tested for what costs time and memory to find here.
        self.users = type(training.method).__module__.partition(".")[0] != "gossamer"
        self.gradients: list[tuple[Tensor, Tensor]] = []
        self.hidden = hidden_state(self.method)

    def run(self) -> None:
        """Try the first round, up to what is received and evaluated."""
        self._refuse_trained_modules()
        x0 = self.work.model.initial
        state = self._state("init", self.method.init, {"x0": x0})
        self.usual = _shapes(state)
        if self.traits.opening:
            state = self._opening(state)
        local = self._local("begin", self.method.begin, {"state": state, "round": self._round()})
        if self.batch is not None:
            usual = _shapes(local)
            local = self._local("step", self._step, {"state": state, "local": local, "round": self._round()})
            self._same("step", "local", usual, "`begin`", local)
        state, message = self._pair(
            "finish", self.method.finish, {"state": state, "local": local, "round": self._round()}
        )
        self._same("finish", "state", self.usual, "`init`", state)
        mixed = self._mixed(message)
        state = self._state("receive", self.method.receive, {"state": state, "mixed": mixed, "round": self._round()})
        self._same("receive", "state", self.usual, "`init`", state)
        vector = self._call("model", self.method.model, {"state": state})
        if not isinstance(vector, Tensor) or vector.shape != x0.shape:
            self._wrong("model", vector, f"the vector to evaluate, of shape {tuple(x0.shape)}")
        if self.traits.weight is not None:
            weight = self._call("weight", self.traits.weight, {"state": state})
            if not isinstance(weight, Tensor) or weight.shape != ():
                self._wrong("weight", weight, "a tensor with one number")

    def _opening(self, state: State) -> State:
        """The exchange before the first round; the client hears itself."""
        assert self.traits.opening is not None
        gradient = self._watched(lambda: (full_gradient(self.work, self.client, x), torch.zeros(())))
        x = self._call("model", self.method.model, {"state": state})
        state, message = self._pair(
            "open",
            lambda state, round: self.traits.opening.open(state, lambda: gradient()[0], round),  # type: ignore[union-attr]
            {"state": state, "round": self._round(opening=True)},
        )
        self._same("open", "state", self.usual, "`init`", state)
        state = self._state(
            "opened", self.traits.opening.opened, {"state": state, "mixed": message, "round": self._round()}
        )
        self._same("opened", "state", self.usual, "`init`", state)
        return state

    def _step(self, state: State, local: Local, round: Any) -> Local:
        def differentiate(objective: Objective, model: Any) -> GradientAndLoss:
            return self._watched(with_tape(objective, model))

        assert self.batch is not None
        return take_step(self.work, differentiate, state, local, self.batch, round)[0]

    def _watched(self, gradient: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
        """A gradient that is not the method's own doing: what the model draws is not drawn by the method. A function
        that is called again is given the same gradients again."""
        replayed = iter(list(self.gradients))

        def taken(*x: Tensor) -> tuple[Tensor, Tensor]:
            if (known := next(replayed, None)) is not None:
                return known[0].clone(), known[1].clone()
            before = stream_states()
            try:
                with keep_streams(self.work.model.initial.device):
                    found = gradient(*x)
                    drew = torch_draws_only("the model or the loss", before)
            except Exception as error:
                if isinstance(error, GossamerError):
                    raise
                shape = _shape_words(self.work.dataset.shape)
                _refuse(f"the gradient of the model or the loss fails on samples of shape {shape}", error)
            self.work.model.draws_randomness |= "torch" in drew
            if self.users:
                self.gradients.append((found[0].clone(), found[1].clone()))
            return found

        return taken

    def _round(self, opening: bool = False) -> Any:
        return client_round(self.work, self.client, 0, opening)

    def _mixed(self, message: Message) -> Message:
        """What a client would receive if it heard itself; refused where the message and `sends` differ."""
        found = mixes(self.method.sends, message)
        for key, (name, _) in found.items():
            if name not in message:
                raise ExperimentError(
                    f"{self.name}: `sends` has '{key}', but the message that `finish` returns has {_keys(message)}. "
                    "Give both the same keys."
                )
        extra = set(message) - {name for name, _ in found.values()}
        if extra and not self.traits.codec:  # `decode` may need more than is mixed
            raise ExperimentError(
                f"{self.name}: the message that `finish` returns has '{min(extra)}', which `sends` does not: nothing "
                f"says how to mix it. `sends` has {_keys(self.method.sends)}."
            )
        if self.traits.codec:
            codec, what = self.traits.codec, "the tensors that travel"
            wire = self._tensors("encode", what, self._call("encode", codec.encode, {"message": message}))
            message = self._tensors("decode", "the message", self._call("decode", codec.decode, {"wire": wire}))
        return {key: message[name] for key, (name, _) in found.items()}

    # One function

    def _call(self, name: str, function: Callable[..., Any], given: dict[str, Any]) -> Any:
        """Call one function of the method and refuse what it must not do."""
        self.gradients = []
        result = self._once(name, function, given)
        self._refuse_hidden(name)
        if self.users and not _equal(result, self._once(name, function, given)):
            raise ExperimentError(
                f"{self.name}: `{name}` gives other numbers when it is called again with the same arguments. "
                "Random numbers come from `round.noise` (with `draws = True`); what it remembers belongs in the state."
            )
        return result

    def _once(self, name: str, function: Callable[..., Any], given: dict[str, Any]) -> Any:
        tensors = {place: value for key, value in given.items() for place, value in _places(key, value)}
        arguments = {key: _Given(key, value) if isinstance(value, dict) else value for key, value in given.items()}
        before, copies = stream_states(), {place: t.clone() for place, t in tensors.items()} if self.users else {}
        try:
            with Watch(tensors):
                result = function(*arguments.values())
        except InPlaceError as error:
            raise ExperimentError(f"{self.name}: `{name}` changes {error.place} in place{_at(error)}, which other "
                f"calls still use. Make a new tensor: `{error.remedy()}`") from error  # fmt: skip
        except _MissingKeyError as error:
            sends = f". `sends` has {_keys(self.method.sends)}" if error.where == "mixed" else ""
            raise ExperimentError(f"{self.name}: `{name}` {error.args[0]}{_at(error)}{sends}") from error
        except GossamerError:
            raise
        except Exception as error:
            missing = not self.traits.draws and "NoneType" in str(error)
            hint = ". If it uses `round.noise`: that is there only with `draws = True` in the class" if missing else ""
            _refuse(f"{self.name}: `{name}` fails with", error, hint, join=" ")
        for place, copy in copies.items():  # past torch's own functions: numpy, .data
            if not _same_numbers(tensors[place], copy):
                raise ExperimentError(
                    f"{self.name}: `{name}` changes {place} in place (through numpy or .data), which other calls still "
                    "use. Copy it first: .clone()"
                )
        if drawn := drawn_since(before):
            raise ExperimentError(
                f"{self.name}: `{name}` draws random numbers from {STREAMS[drawn[0]]}, which all clients of a worker "
                "share: the result would depend on how clients are run. Set `draws = True` in the class and use "
                "`round.noise`: uniform in [0, 1), one for each parameter."
            )
        self._refuse_lost_entry(name, given, arguments)
        return result

    def _refuse_lost_entry(self, name: str, given: dict[str, Any], arguments: dict[str, Any]) -> None:
        """Refuse an entry that is set in a dictionary that the function does not return."""
        if name in ("begin", "step", "model", "weight"):
            for key in {**given["state"], **arguments["state"]}:
                if given["state"].get(key) is not arguments["state"].get(key):
                    raise ExperimentError(
                        f"{self.name}: `{name}` sets state[{key!r}], which is lost, because `{name}` does not return "
                        "the state. Return it from `finish` or `receive`; a value of this round is a local value."
                    )

    # What a function returns

    def _state(self, name: str, function: Callable[..., Any], given: dict[str, Any]) -> State:
        return self._tensors(name, "the state", self._call(name, function, given))

    def _local(self, name: str, function: Callable[..., Any], given: dict[str, Any]) -> Local:
        return self._tensors(name, "the local values", self._call(name, function, given))

    def _pair(self, name: str, function: Callable[..., Any], given: dict[str, Any]) -> tuple[State, Message]:
        result = self._call(name, function, given)
        if not isinstance(result, tuple) or len(result) != 2:
            self._wrong(name, result, "two dictionaries of tensors, the state and the message: `return state, message`")
        return self._tensors(name, "the state", result[0]), self._tensors(name, "the message", result[1])

    def _tensors(self, name: str, what: str, result: Any) -> dict[str, Tensor]:
        if not isinstance(result, dict):
            self._wrong(name, result, f"{what}, a dictionary of tensors")
        for key, value in result.items():
            if not isinstance(value, Tensor):
                raise ExperimentError(
                    f"{self.name}: `{name}` returns {what} with a {type(value).__name__} under {key!r}, where a tensor "
                    "is needed: torch.as_tensor(value)"
                )
        return dict(result)

    def _wrong(self, name: str, result: Any, wanted: str) -> NoReturn:
        got = "None (is a `return` missing?)" if result is None else f"a {_described_briefly(result)}"
        raise ExperimentError(f"{self.name}: `{name}` returns {got}, but should return {wanted}")

    def _same(
        self, name: str, what: str, usual: dict[str, tuple[Any, ...]], first: str, found: dict[str, Tensor]
    ) -> None:
        """Refuse other names, shapes or types than before."""
        shapes = _shapes(found)
        for key in {**usual, **shapes}:
            if key not in shapes:
                raise ExperimentError(
                    f"{self.name}: the {what} that `{name}` returns lacks {key!r}, which {first} gave: it has "
                    f"{_keys(found)}. Return {{**{what}, ...}} to keep the rest."
                )
            if key not in usual:
                raise ExperimentError(
                    f"{self.name}: `{name}` returns {what}[{key!r}], which {first} did not give ({_keys(usual)}). "
                    f"Give it a first value in {first}."
                )
            if shapes[key] != usual[key]:
                (shape, dtype), (right, kind) = shapes[key], usual[key]
                got, want = (shape, right) if shape != right else (dtype, kind)
                raise ExperimentError(
                    f"{self.name}: `{name}` returns {what}[{key!r}] as {got}, where {first} gave {want}"
                )

    # What a method keeps beside the state

    def _refuse_trained_modules(self) -> None:
        for key, value in getattr(self.method, "__dict__", {}).items():
            if isinstance(value, nn.Module) and any(p.requires_grad for p in value.parameters()):
                raise ExperimentError(
                    f"{self.name} holds a module with trainable parameters ('{key}'): they are in no client's state, "
                    "so they are neither sent nor saved, and differ between workers and peers. Keep vectors in the "
                    "state; a fixed module is frozen with requires_grad_(False), its weights from a file or a seed."
                )

    def _refuse_hidden(self, name: str) -> None:
        after = hidden_state(self.method)
        for key in {**self.hidden, **after}:
            if self.hidden.get(key) != after.get(key):
                raise ExperimentError(
                    f"{self.name}: `{name}` changes {key}: one object serves all clients of a worker, and nothing of "
                    "it is saved. Keep it in the state, as a tensor; the number of the round is `round.number`."
                )


class _Given(dict[str, Tensor]):
    """A dictionary that is given to a function of a method; a copy, which the function may change."""

    def __init__(self, name: str, content: Mapping[str, Tensor]) -> None:
        super().__init__(content)
        self.name = name

    def __missing__(self, key: object) -> NoReturn:
        raise _MissingKeyError(f"asks for {self.name}[{key!r}], but {self.name} has {_keys(self)}", self.name)


class _MissingKeyError(KeyError):
    def __init__(self, text: str, where: str) -> None:
        super().__init__(text)
        self.where = where


def _places(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of one argument, each with the way to write it."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, dict):
        yield from ((f'{name}["{key}"]', inner) for key, inner in value.items())
    elif hasattr(value, "_asdict"):
        yield from ((f"{name}.{key}", inner) for key, inner in value._asdict().items() if isinstance(inner, Tensor))


def _shapes(found: dict[str, Tensor]) -> dict[str, tuple[Any, ...]]:
    return {key: (tuple(value.shape), value.dtype) for key, value in found.items()}


def _keys(found: Mapping[str, Any]) -> str:
    return ", ".join(f"'{key}'" for key in found) or "nothing"


def _described_briefly(value: Any) -> str:
    if isinstance(value, dict):
        return f"dictionary with {_keys(value)}"
    return f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _at(error: BaseException) -> str:
    line = user_line(error)
    return f" ({line})" if line else ""


def _refuse(what: str, error: Exception, hint: str = "", join: str = ": ") -> NoReturn:
    if is_out_of_memory(error):
        raise error
    raise ExperimentError(f"{what}{join}{describe_error(error)}{hint}") from error


def _same_numbers(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other) or (one.shape == other.shape and bool(((one == other) | (one != one)).all()))


def _equal(one: Any, other: Any) -> bool:
    """Whether two results hold the same numbers."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and _same_numbers(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(_equal, one, other))
    return type(one) is type(other)  # refused elsewhere
