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

from gossamer.data import Batch, ChunkBatches
from gossamer.errors import ExperimentError, GossamerError
from gossamer.methods import Local, Message, State, mixes
from gossamer.system.streams import STREAMS, drawn_since, keep_streams, stream_states
from gossamer.training.model_trial import check_model_and_loss, shape_words
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
    HIDDEN,
    InPlaceError,
    Watch,
    at_line,
    equal_results,
    hidden_state,
    is_users,
    refuse_failure,
    same_numbers,
    torch_draws_only,
)

#: The types of tensors that can be mixed.
MIXED = (torch.float32, torch.float64)


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
            check_model_and_loss(training, client)
        _MethodTrial(training, client, batch).run()
    for name, value in model.template.named_buffers():
        if not torch.equal(value, buffers[name]):
            raise ExperimentError(
                f"model {type(model.template).__name__} changes its buffer '{name}' while it trains, which no client "
                "sends: clients would not agree on it. Make it a parameter, or leave it as it is."
            )


class _MethodTrial:
    """The functions of a method, called in order for one client and watched."""

    def __init__(self, training: Training, client: int, batch: Batch | None) -> None:
        self.work, self.client, self.batch = training, client, batch
        self.method, self.traits = training.method, training.traits
        self.name = f"method '{type(training.method).__name__}'"
        #: Gossamer's own methods are tested for what costs time and memory to find here.
        self.users = is_users(training.method)
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
        mixed = self._as_mixed("open", message)
        state = self._state(
            "opened", self.traits.opening.opened, {"state": state, "mixed": mixed, "round": self._round()}
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
            self._refuse_gradient_at(*x)
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
                shape = shape_words(self.work.dataset.shape)
                recorded = "does not require grad" not in str(error)
                hint = (
                    ""
                    if recorded
                    else (
                        ". Torch has not recorded how the loss follows from the parameters: a .detach(), .item(), "
                        ".numpy(), .data or torch.no_grad() on the way from them to the loss cuts it off"
                    )
                )
                refuse_failure(f"the gradient of the model or the loss fails on samples of shape {shape}", error, hint)
            self.work.model.draws_randomness |= "torch" in drew
            if self.users:
                self.gradients.append((found[0].clone(), found[1].clone()))
            return found

        return taken

    def _refuse_gradient_at(self, *x: Any) -> None:
        """Refuse to take the gradient at anything but a model vector, or where torch records nothing."""
        if torch.is_inference_mode_enabled():
            raise ExperimentError(
                f"{self.name} asks for a gradient inside torch.inference_mode(), where torch takes none. Leave it out: "
                "a step is not recorded anyway"
            )
        right = self.work.model.initial
        for given in x:
            if not isinstance(given, Tensor) or given.shape != right.shape or given.dtype != right.dtype:
                got = _described_briefly(given) + (f" ({given.dtype})" if isinstance(given, Tensor) else "")
                raise ExperimentError(
                    f"{self.name} asks for the gradient at a {got}; it is taken at a model vector, a tensor of shape "
                    f'{tuple(right.shape)} ({right.dtype}), such as local["y"]'
                )

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
        return self._as_mixed("finish", {key: message[name] for key, (name, _) in found.items()})

    def _as_mixed(self, function: str, message: Message) -> Message:
        """A message after mixing: new tensors. A type that cannot be mixed is refused."""
        for key, value in message.items():
            if value.dtype not in MIXED:
                raise ExperimentError(
                    f"{self.name}: `{function}` sends '{key}' as {value.dtype}, but mixing needs torch.float32 or "
                    "torch.float64: others would round the sum. To send fewer bytes, give `encode` and `decode`."
                )
        return {key: value.clone() for key, value in message.items()}

    # One function

    def _call(self, name: str, function: Callable[..., Any], given: dict[str, Any]) -> Any:
        """Call one function of the method and refuse what it must not do."""
        self.gradients = []
        result = self._once(name, function, given)
        self._refuse_hidden(name)
        if self.users and not equal_results(result, self._once(name, function, given)):
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
            raise ExperimentError(f"{self.name}: `{name}` changes {error.place} in place{at_line(error)}, which other "
                f"calls still use. Make a new tensor: `{error.remedy()}`") from error  # fmt: skip
        except _MissingKeyError as error:
            sends = f". `sends` has {_keys(self.method.sends)}" if error.where == "mixed" else ""
            raise ExperimentError(f"{self.name}: `{name}` {error.args[0]}{at_line(error)}{sends}") from error
        except GossamerError:
            raise
        except (Exception, SystemExit) as error:
            missing = not self.traits.draws and "NoneType" in str(error)
            hint = ". If it uses `round.noise`: that is there only with `draws = True` in the class" if missing else ""
            refuse_failure(f"{self.name}: `{name}` fails with", error, hint, join=" ")
        for place, copy in copies.items():  # past torch's own functions: numpy, .data
            if not same_numbers(tensors[place], copy):
                raise ExperimentError(
                    f"{self.name}: `{name}` changes {place} in place (through numpy or .data), which other calls still "
                    "use. Copy it first: .clone()"
                )
        for place, tensor in tensors.items():
            if tensor.requires_grad:
                raise ExperimentError(
                    f"{self.name}: `{name}` lets torch record {place} (requires_grad), which other calls still use. "
                    f"Take a tensor of your own: y = {place}.detach().clone().requires_grad_()"
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
            if value.requires_grad:
                raise ExperimentError(
                    f"{self.name}: `{name}` returns {what} with a tensor under {key!r} that still requires a gradient, "
                    "as an nn.Parameter does: return value.detach()"
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
                raise ExperimentError(f"{self.name}: `{name}` changes {key}: {HIDDEN}")


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
