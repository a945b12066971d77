"""A chunk of clients through its round, up to the message: one client alone, or several at once under `vmap`.

The functions of the method and the batches are the same either way: how a chunk is run changes the speed, and not the
numbers. There are four ways to run a step:

eager      as written, operation by operation
traced     the operations of a step are recorded once and replayed: no tape, no `vmap` machinery, no Python of the model
compiled   the recorded operations are fused by torch's compiler, where there is one
lanes      small models: all of a round as recorded, in C++ with a client in each lane of a vector
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from gossamer.data import Batch, ChunkBatches
from gossamer.data.inputs import input_tensors
from gossamer.engines.steps.compiled import can_use_forks, compile_in_fork
from gossamer.engines.steps.inputs import Step, StepInputs, TracedRound, same_result
from gossamer.engines.steps.lane_code import NotInLanes, RoundGraphs
from gossamer.engines.steps.lanes import LaneBatches, LaneRound, check_lanes, lanes_in_fork
from gossamer.engines.steps.products import Products
from gossamer.engines.steps.traced import step_graph, trace_in_fork
from gossamer.methods import Local, Message, Round, State
from gossamer.randomness import Purpose, torch_seed
from gossamer.system.cpp import CannotCompile
from gossamer.training import Training, call
from gossamer.training.rounds import first_of, over_clients, stacked_round, tensors_of_round, with_tensors
from gossamer.training.steps import steps_without_samples, take_step, with_functions, with_tape
from gossamer.workers import ForkFailed

StepMode = Literal["eager", "traced", "compiled", "lanes"]

#: A shape is traced, and compiled if the plan says so, at its third step: shapes seen once or twice do not pay.
TRACE_AT = 3
#: The most shapes that are traced, and compiled. The last batches of an epoch have many shapes, most steps one or two.
MOST_TRACED, MOST_COMPILED = 16, 4
#: The most steps of a round that is traced as one piece, of models with so many parameters at most (in larger ones the
#: time between steps does not show), if the samples of all steps take so many bytes at most, which fit a cache.
MOST_STEPS_AT_ONCE, MOST_PARAMETERS_AT_ONCE, MOST_BYTES_AT_ONCE = 8, 500_000, 8 << 20


#: The most samples of mini-batches that are kept to be used again: each takes some 20 bytes.
MOST_KEPT = 1 << 21
#: What the names of tensors start with, where those of the state, or of the local state, are among others.
STATE, LOCAL = "state ", "local "
#: Who multiplies matrices, in words.
PRODUCERS: dict[Products, str] = {
    "auto": "the fastest library", "mkl": "MKL", "onednn": "oneDNN", "own": "Gossamer's kernel",
}  # fmt: skip


class ExecutionPlan(NamedTuple):
    """How a worker runs its clients."""

    #: Clients that run at once.
    chunk: int = 1
    step: StepMode = "eager"
    #: Images with their channels last, for which convolutions on a CPU are faster.
    channels_last: bool = False
    #: The library that multiplies matrices in traced and compiled steps, and in evaluation beside them.
    products: Products = "auto"
    reason: str = ""

    def to_json(self) -> str:
        """The plan as text."""
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> "ExecutionPlan":
        """The plan that `to_json` wrote."""
        fields = json.loads(text)
        for name, words in (("step", get_args(StepMode)), ("products", get_args(Products))):
            if fields[name] not in words:
                raise ValueError(f"{name} should be one of {', '.join(words)} (got {fields[name]!r})")
        layout, reason = bool(fields["channels_last"]), str(fields["reason"])
        return cls(int(fields["chunk"]), fields["step"], layout, fields["products"], reason)

    def __str__(self) -> str:
        layout = ", channels last" if self.channels_last else ""
        reason = f" ({self.reason})" if self.reason else ""
        library = "" if self.step in ("eager", "lanes") else f", products by {PRODUCERS[self.products]}"
        return f"{self.chunk} at a time, {self.step} steps{layout}{library}{reason}"


class ChunkInputs(NamedTuple):
    """The inputs of some clients for one round."""

    clients: np.ndarray
    batches: ChunkBatches
    #: Stacked: its tensors have a row for each client.
    round: Round
    #: The learning rate as a tensor.
    lr: Tensor

    def split_clients(self) -> Iterator["ChunkInputs"]:
        """The inputs of each client alone."""
        rows = zip(*(torch.split(tensor, 1) for tensor in tensors_of_round(self.round)), strict=True)
        for place, (batches, tensors) in enumerate(zip(self.batches.split_clients(), rows, strict=True)):
            yield ChunkInputs(self.clients[place : place + 1], batches, with_tensors(self.round, tensors), self.lr)


class ChunkOutcome(NamedTuple):
    """Rows of state and of messages after the local steps, and the mean training loss of each client."""

    state: State
    message: Message
    losses: Tensor


class ChunkRunner:
    """Runs chunks of clients as a plan says. With `save_memory`, steps are traced in forks: see `trace_in_fork`."""

    def __init__(self, training: Training, plan: ExecutionPlan, save_memory: bool = False) -> None:
        self.training = training
        self.plan = plan
        #: Why steps are not run as the plan says, if they are not.
        self.trouble: str | None = None
        #: The plan, with the mode in which steps are really run.
        self.in_effect = plan
        self._model = training.model
        self._forks = can_use_forks(training.model.initial.device)
        self._save_memory = save_memory and self._forks
        self._seen: Counter[tuple[Any, ...]] = Counter()
        self._ready: dict[tuple[Any, ...], Step] = {}
        self._compiled = 0
        #: Whether a method's `begin` and `finish` can be recorded, as far as is known.
        self._whole_rounds = True
        #: The inputs of some clients in an earlier round, and how many samples more are kept.
        self._inputs: dict[bytes, ChunkInputs] = {}
        self._may_keep = MOST_KEPT
        self._lanes: LaneRound | None = None
        #: Whether only steps are run in lanes, because what is around them cannot be.
        self._lanes_of_steps = False

    def prepare(self, clients: np.ndarray, index: int) -> ChunkInputs:
        """The inputs of these clients for a round."""
        work, initial, key = self.training, self._model.initial, clients.tobytes()
        if before := self._inputs.get(key):
            round = stacked_round(work, clients, index, before=before.round)
            lr = before.lr if round.lr == before.round.lr else initial.new_tensor(round.lr)
            return before._replace(batches=before.batches.at(index), round=round, lr=lr)
        layout = torch.channels_last if self.plan.channels_last else torch.contiguous_format
        batches = ChunkBatches(work.batches, work.dataset, clients.tolist(), index, initial.dtype, memory_format=layout)
        round = stacked_round(work, clients, index)
        inputs = ChunkInputs(clients, batches, round, initial.new_tensor(round.lr))
        self._may_keep -= batches.numbers
        if self._may_keep >= 0 and not work.network.has_server:  # the next round has the same chunks
            self._inputs[key] = inputs
        return inputs

    def at_once(self, steps: int) -> bool:
        """Whether a round of so many steps is traced as one piece."""
        if self._in_lanes:
            return True
        small = 1 < steps <= MOST_STEPS_AT_ONCE and self._model.size <= MOST_PARAMETERS_AT_ONCE
        return self._traces and self._whole_rounds and small

    @property
    def _traces(self) -> bool:
        return self.in_effect.step in ("traced", "compiled") and not self._model.draws_randomness

    @property
    def _in_lanes(self) -> bool:
        return self.in_effect.step == "lanes" and not self._model.draws_randomness

    def run(self, state: State, inputs: ChunkInputs, most: int | None = None) -> ChunkOutcome:
        """The round of these clients up to their messages; `most` limits the steps, for a trial.

        Clients without samples come in chunks of their own.
        """
        if most is None and (lanes := self._lanes_for(inputs)):
            return self._run_in_lanes(lanes, state, inputs)
        alone, round = len(inputs.clients) == 1, inputs.round
        losses: Tensor | None
        if alone:
            state, round = _first(state), first_of(round)
        steps = inputs.batches.steps
        batch = inputs.batches.whole(MOST_BYTES_AT_ONCE) if most is None and self.at_once(steps) else None
        if batch is not None:
            batch = batch.at((slice(None), 0)) if alone else batch
            together, losses = self._step(alone, StepInputs(state, {}, batch, round, inputs.lr), steps)
            finished: Any = _apart(together)
        else:
            local = self._call(alone, "begin", round, state)
            local, losses = self._all_steps(alone, state, local, inputs, round, most)
            finished = self._call(alone, "finish", round, state, local)
        after, message = map(_as_row, finished) if alone else finished
        return ChunkOutcome(after, message, _mean_losses(losses, inputs))

    def _call(self, alone: bool, name: str, round: Round, *given: dict[str, Tensor]) -> Any:
        """What the method's `begin` or `finish` gives."""
        return call(name, round.number, _mapped(alone, getattr(self.training.method, name), round), *given)

    def run_in_place(
        self, inputs: ChunkInputs, state: State, places: Tensor, after: State, messages: Message
    ) -> tuple[Tensor, Tensor] | None:
        """The same for the clients at these places of `state`, written to the same places of `after` and `messages`,
        without those that are not there; None, and nothing is done, where steps are run in another way.

        The mean training loss of each client, and the sum of the numbers of its message.
        """
        lanes = self._lanes_for(inputs)
        if not lanes or self._lanes_of_steps:
            return None
        batches = self._lane_batches(inputs.batches, lanes.width)
        losses, sums = lanes(state, places, inputs.round, inputs.lr, batches, after, messages)
        return _mean_losses(losses, inputs), sums

    def _run_in_lanes(self, lanes: LaneRound, state: State, inputs: ChunkInputs) -> ChunkOutcome:
        method, round, places = self.training.method, inputs.round, torch.arange(len(inputs.clients))
        batches = self._lane_batches(inputs.batches, lanes.width)
        after, message = lanes.empty(len(places), inputs.lr)
        if not self._lanes_of_steps:
            losses, _ = lanes(state, places, round, inputs.lr, batches, after, message)
            return ChunkOutcome(after, message, _mean_losses(losses, inputs))
        local = call("begin", round.number, over_clients(vmap, method.begin, round), state)
        losses, _ = lanes(state | _as_state(local), places, round, inputs.lr, batches, {}, message)
        finish = over_clients(vmap, method.finish, round)
        after, message = call("finish", round.number, finish, state, message)
        return ChunkOutcome(after, message, _mean_losses(losses, inputs))

    def _all_steps(
        self, alone: bool, state: State, local: Local, inputs: ChunkInputs, round: Round, most: int | None
    ) -> tuple[Local, Tensor | None]:
        """All local steps, one after the other.

        Also the loss before each step, [steps, clients], if there is a step.
        """
        clients, batches, _, lr = inputs
        if not self.training.batches.sizes[clients].any():
            steps = int(self.training.batches.local_steps[clients[0]])

            def idle(state: State, local: Local, round: Round) -> Local:
                return steps_without_samples(self.training.method, state, local, steps, round)

            return _mapped(alone, idle, round)(state, local), None
        losses = []
        for k in range(batches.steps if most is None else min(most, batches.steps)):
            if self._model.draws_randomness:  # such a model runs one client at a time
                torch.manual_seed(torch_seed(self.training.seed, Purpose.DROPOUT, int(clients[0]), round.number, k))
            batch = batches.take(k)
            if alone:
                batch = batch.at(0)
            after, loss = self._step(alone, StepInputs(state, local, batch, round, lr))
            if not batches.all_active[k]:  # a client without further steps keeps its local state
                active = batches.active[k]
                after = {name: torch.where(_like(active, new), new, local[name]) for name, new in after.items()}
                loss = torch.where(active, loss, 0.0)
            local = after
            losses.append(loss)
        return local, torch.stack(losses) if losses else None

    def _step(self, alone: bool, inputs: StepInputs, steps: int | None = None) -> tuple[Local, Tensor]:
        """One local step, or a round of so many `steps`, by the fastest way that is ready for their shape."""
        shape = (alone, steps, inputs.batch.weights.shape, *inputs.local)
        if shape in self._ready:
            return self._ready[shape](inputs)
        if self._traces:
            self._seen[shape] += 1
            most = MOST_COMPILED if self._save_memory else MOST_TRACED
            if self._seen[shape] == TRACE_AT and len(self._ready) < most:
                self._make_ready(shape, alone, steps, inputs)
        return (self._ready.get(shape) or self._eager(alone, steps))(inputs)

    def _eager(self, alone: bool, steps: int | None) -> Step:
        """Steps as written. One client is differentiated by the ordinary tape, which costs less than `torch.func`."""
        differentiate = with_tape if alone else with_functions

        def one(state: State, local: Local, batch: Batch, round: Round) -> tuple[Local, Tensor]:
            return take_step(self.training, differentiate, state, local, batch, round)

        def step(inputs: StepInputs) -> tuple[Local, Tensor]:
            state, local, batch, round, _ = inputs
            taken: tuple[Local, Tensor] = call("step", round.number, _mapped(alone, one, round), state, local, batch)
            return taken

        return step if steps is None else _round_of(step, partial(self._call, alone), steps)

    def _traceable(self, alone: bool, steps: int | None) -> Step:
        """Steps as functions of tensors alone."""

        def recorded(function: Callable[..., Any], round: Round) -> Callable[..., Any]:
            return _mapped(alone, lambda *given: function(*given[:-1], TracedRound(*given[-1])), round)

        def one(state: State, local: Local, batch: Batch, round: Round) -> tuple[Local, Tensor]:
            return take_step(self.training, with_functions, state, local, batch, round)

        def step(inputs: StepInputs) -> tuple[Local, Tensor]:
            state, local, batch, round, _ = inputs
            taken: tuple[Local, Tensor] = recorded(one, round)(state, local, batch)
            return taken

        def end(name: str, round: Round, *given: dict[str, Tensor]) -> Any:
            return recorded(getattr(self.training.method, name), round)(*map(dict, given))  # it may set their entries

        whole = step if steps is None else _round_of(step, end, steps)
        return lambda inputs: whole(inputs._replace(round=inputs.round._replace(lr=inputs.lr)))  # type: ignore[arg-type]

    def _make_ready(self, shape: tuple[Any, ...], alone: bool, steps: int | None, inputs: StepInputs) -> None:
        """Trace a step, and compile it if the plan says so: in a fork, or in this process where that fails."""
        compiles = self.in_effect.step == "compiled" and self._compiled < MOST_COMPILED
        self._compiled += compiles
        eager, traceable = self._eager(alone, steps), self._traceable(alone, steps)
        if compiles and self._forks:
            with suppress(ForkFailed):
                made_of = self._made_of(alone, steps)
                self._ready[shape] = compile_in_fork(
                    lambda: step_graph(traceable, inputs, self.plan.products), inputs, eager, made_of
                )
                return
        try:
            if self._save_memory and not compiles:
                self._ready[shape] = trace_in_fork(
                    lambda: step_graph(traceable, inputs, self.plan.products), inputs, eager
                )
                return
            graph = step_graph(traceable, inputs, self.plan.products)
        except Exception as error:  # a user's own model or method may raise anything
            if steps is not None:
                self._whole_rounds = False  # steps alone can be recorded, perhaps
                return
            self._fall_back("eager", f"a step cannot be recorded, and is taken as written: {one_line(error)}")
            return
        self._ready[shape] = graph.traced()
        if compiles:
            try:
                self._ready[shape] = graph.compiled(inputs)
            except Exception as error:  # no compiler, or one that does not know some operation
                self._fall_back("traced", f"a step cannot be compiled, and is replayed as recorded: {one_line(error)}")

    def _lanes_for(self, inputs: ChunkInputs) -> LaneRound | None:
        """The round of these clients in the lanes of vectors, if they are to be run so, and train."""
        if self._in_lanes and inputs.batches.steps and self._lanes is None:
            self._lanes = self._make_lanes(inputs)
        return self._lanes if inputs.batches.steps else None

    def _make_lanes(self, inputs: ChunkInputs) -> LaneRound | None:
        """All of a round in the lanes of vectors; its steps, where only these are possible; None, if not even they."""
        try:
            if self.training.dataset.augmentation is not None:
                raise NotInLanes("samples are augmented")
            check_lanes(self._model.size, self._model.initial)
            with suppress(NotInLanes, CannotCompile, ForkFailed):
                return self._lanes_like(inputs)
            self._lanes_of_steps = True
            return self._lanes_like(inputs)
        except (NotInLanes, CannotCompile, ForkFailed) as error:
            reason = str(error).removeprefix("NotInLanes: ")
            self._fall_back("traced", f"steps cannot be run in lanes, and are replayed as recorded: {reason}")
            return None

    def _lanes_like(self, inputs: ChunkInputs) -> LaneRound:
        """The round of clients like the last of these, which takes the most steps; tried on its first step."""
        work, (*_, one) = self.training, inputs.split_clients()
        width = int(min(work.batches.batch_size, work.batches.sizes.max()))
        batches = self._lane_batches(one.batches, width)
        *tensors, targets = (values[batches.rows[0, 0]] for values in batches.samples)
        named = work.dataset.train.inputs
        some = tensors[0] if isinstance(named, Tensor) else dict(zip(named, tensors, strict=True))
        state, round = work.method.init(self._model.initial), first_of(one.round)
        method: Any = _StepsOnly(tuple(state)) if self._lanes_of_steps else work.method
        if self._lanes_of_steps:
            state = state | _as_state(work.method.begin(dict(state), round))
        local = method.begin(dict(state), round)
        first = StepInputs(state, local, Batch(some, targets, batches.weights[0, 0]), round, inputs.lr)
        trained, loss = self._eager(True, None)(first)
        expected = method.finish(dict(state), dict(trained), round)

        def graphs() -> RoundGraphs:
            def begin(given: Any) -> tuple[Local]:
                state, round, lr = given
                return (method.begin(state, TracedRound(*round._replace(lr=lr))),)

            def finish(given: Any) -> tuple[dict[str, Tensor]]:
                state, local, round, lr = given
                return (_together(*method.finish(state, local, TracedRound(*round._replace(lr=lr)))),)

            recorded = step_graph(finish, (state, local, round, inputs.lr))
            return RoundGraphs(
                begin=step_graph(begin, (state, round, inputs.lr)),
                step=step_graph(self._traceable(True, None), first),
                finish=recorded,
                state=tuple(state),
                samples=len(batches.samples),
                kept=[name.removeprefix(STATE) for name in recorded.returns if name.startswith(STATE)],
            )

        lanes = lanes_in_fork(graphs, expected, width, [*self._made_of(True, None), self._lanes_of_steps])
        after, message = lanes.empty(1, inputs.lr)
        first_step = LaneBatches(batches.samples, *(steps[:1] for steps in batches[1:]))
        place = torch.zeros(1, dtype=torch.int64)
        losses, _ = lanes(_as_row(state), place, one.round, inputs.lr, first_step, after, message)
        if not same_result((_together(_first(after), _first(message)), losses[0, 0]), (_together(*expected), loss)):
            raise NotInLanes("it gives other numbers")
        return lanes

    def _lane_batches(self, batches: ChunkBatches, width: int) -> LaneBatches:
        train = self.training.dataset.train
        return LaneBatches([*input_tensors(train.inputs), train.targets], *batches.padded(width), batches.active)

    def run_one_by_one(self, error: Exception) -> None:
        """Run clients one at a time from now on, since `vmap` cannot run them."""
        step: StepMode = "traced" if self.in_effect.step == "lanes" else self.in_effect.step
        self.in_effect = self.in_effect._replace(chunk=1, step=step)
        self.trouble = f"clients run one at a time from here on, since vmap cannot run them: {one_line(error)}"

    def _fall_back(self, step: StepMode, trouble: str) -> None:
        self.trouble, self.in_effect = trouble, self.in_effect._replace(step=step)

    def _made_of(self, alone: bool, steps: int | None) -> list[Any]:
        """All that a traced step depends on, besides its tensors."""
        work = self.training
        settings = [work.dataset.scaling, work.weight_decay, work.clip, work.rounds, alone, steps, self.plan.products]
        return [work.method, work.model.template, work.loss, *settings]


class _StepsOnly:
    """A method whose rounds are its steps: the local state comes as a part of the state, and is sent."""

    def __init__(self, state: Sequence[str]) -> None:
        self._state = state

    def begin(self, state: State, round: Round) -> Local:
        return {name.removeprefix(LOCAL): value for name, value in state.items() if name not in self._state}

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        return {}, local


def _mean_losses(losses: Tensor | None, inputs: ChunkInputs) -> Tensor:
    """The training loss of each client, from those of its steps, if it takes any."""
    clients = len(inputs.clients)
    if losses is None:
        return inputs.lr.new_full((clients,), torch.nan)
    weights = inputs.batches.loss_weights[: len(losses)]
    mean: Tensor = torch.linalg.vecdot(losses.view(-1, clients), weights, dim=0)
    return mean


def _as_state(local: Local) -> State:
    return {LOCAL + name: value for name, value in local.items()}


def _together(state: State, message: Message) -> dict[str, Tensor]:
    return {STATE + name: value for name, value in state.items()} | message


def _apart(together: dict[str, Tensor]) -> tuple[State, Message]:
    state = {name.removeprefix(STATE): value for name, value in together.items() if name.startswith(STATE)}
    return state, {name: value for name, value in together.items() if not name.startswith(STATE)}


def _mapped(alone: bool, function: Callable[..., Any], round: Round) -> Callable[..., Any]:
    """A function of one client whose last argument is the round, or the same for the rows of several."""
    return (lambda *given: function(*given, round)) if alone else over_clients(vmap, function, round)


def _round_of(step: Step, end: Callable[..., Any], steps: int) -> Step:
    """A round as one step: `begin`, so many steps on batches with a leading dimension of steps, and `finish`. `end`
    gives what the first and the last of these give. State and message are returned together."""

    def whole(inputs: StepInputs) -> tuple[dict[str, Tensor], Tensor]:
        local, losses = end("begin", inputs.round, inputs.state), []
        for k in range(steps):
            local, loss = step(inputs._replace(local=local, batch=inputs.batch.at(k)))
            losses.append(loss)
        return _together(*end("finish", inputs.round, inputs.state, local)), torch.stack(losses)

    return whole


def _first(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value[0] for name, value in rows.items()}


def _as_row(values: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.unsqueeze(0) for name, value in values.items()}


def _like(active: Tensor, value: Tensor) -> Tensor:
    return active.view(-1, *[1] * (value.dim() - 1))


def one_line(error: Exception) -> str:
    """An error in one line."""
    if "data-dependent control flow" in str(error):  # torch's message is about its tracer
        return "it branches on the value of a tensor"
    line = str(error).strip().partition("\n")[0]
    return line if isinstance(error, ForkFailed) else f"{type(error).__name__}: {line}"
