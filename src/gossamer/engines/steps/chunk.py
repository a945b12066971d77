"""A chunk of clients through its round, up to the message: one client alone, or several at once under `vmap`.

The functions of the method and the batches are the same either way: how a chunk is run changes the speed, and not the
numbers. There are four ways to run a step:

eager      as written, operation by operation
traced     the operations of a step are recorded once and replayed: no tape, no `vmap` machinery, no Python of the model
compiled   the recorded operations are fused by torch's compiler, where there is one
lanes      small models: the recorded operations as C++ with a client in each lane of a vector, all steps in one call
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from gossamer.data import Batch, ChunkBatches
from gossamer.data.inputs import input_tensors
from gossamer.engines.steps.compiled import can_use_forks, compile_in_fork
from gossamer.engines.steps.inputs import Step, StepInputs
from gossamer.engines.steps.lane_code import NotInLanes
from gossamer.engines.steps.lanes import LaneBatches, LaneStep, check_lanes, lanes_in_fork
from gossamer.engines.steps.products import Products
from gossamer.engines.steps.traced import step_graph, trace_in_fork
from gossamer.methods import Local, Message, Round, State
from gossamer.randomness import Purpose, torch_seed
from gossamer.training import Training, call
from gossamer.training.rounds import first_of, over_clients, stacked_round, tensors_of_round, with_tensors
from gossamer.training.steps import steps_without_samples, take_step, with_functions, with_tape
from gossamer.workers import ForkFailed

StepMode = Literal["eager", "traced", "compiled", "lanes"]

#: A shape is traced, and compiled if the plan says so, at its third step: shapes seen once or twice do not pay.
TRACE_AT = 3
#: The most shapes that are traced, and compiled. The last batches of an epoch have many shapes, most steps one or two.
MOST_TRACED, MOST_COMPILED = 16, 4
#: The most steps that are traced as one piece, of models with so many parameters at most (in larger ones the time
#: between steps does not show), if the samples of all steps take so many bytes at most, which fit a cache.
MOST_STEPS_AT_ONCE, MOST_PARAMETERS_AT_ONCE, MOST_BYTES_AT_ONCE = 8, 500_000, 8 << 20


#: Who multiplies matrices, in words.
PRODUCERS: dict[Products, str] = {"auto": "the faster library", "mkl": "MKL", "onednn": "oneDNN"}


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


class TracedRound(Round):
    """A round as a step sees it that is traced once for all rounds. A value that differs from round to round would be
    fixed in the trace, so it cannot be read. The learning rate can: it is a tensor here."""

    @property
    def number(self) -> int:
        raise ValueError("it depends on the number of the round")

    @property
    def participation(self) -> float:
        raise ValueError("it depends on how many clients take part in the round")

    def __getitem__(self, place: Any) -> Any:
        raise ValueError("it looks at all of the round")

    def __iter__(self) -> Any:
        raise ValueError("it looks at all of the round")


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
        self._lanes: LaneStep | None = None

    def prepare(self, clients: np.ndarray, index: int) -> ChunkInputs:
        """The inputs of these clients for a round."""
        work, dtype = self.training, self._model.initial.dtype
        layout = torch.channels_last if self.plan.channels_last else torch.contiguous_format
        batches = ChunkBatches(work.batches, work.dataset, clients.tolist(), index, dtype, memory_format=layout)
        round = stacked_round(work, clients, index)
        return ChunkInputs(clients, batches, round, self._model.initial.new_tensor(round.lr))

    def at_once(self, steps: int) -> bool:
        """Whether so many steps are traced as one piece."""
        if self._in_lanes:
            return True
        return self._traces and 1 < steps <= MOST_STEPS_AT_ONCE and self._model.size <= MOST_PARAMETERS_AT_ONCE

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
        method, clients, round = self.training.method, len(inputs.clients), inputs.round
        alone = clients == 1 and not self._in_lanes
        if alone:
            state, round = _first(state), first_of(round)
            local = call("begin", round.number, method.begin, state, round)
        else:
            local = call("begin", round.number, over_clients(vmap, method.begin, round), state)
        local, losses = self._all_steps(alone, state, local, inputs, round, most)
        if alone:
            finished = call("finish", round.number, method.finish, state, local, round)
            after, message = (_as_row(values) for values in finished)
        else:
            finish = over_clients(vmap, method.finish, round)
            after, message = call("finish", round.number, finish, state, local)
        if losses is None:
            trained = inputs.lr.new_full((clients,), torch.nan)
        else:
            trained = torch.linalg.vecdot(losses.view(-1, clients), inputs.batches.loss_weights[: len(losses)], dim=0)
        return ChunkOutcome(after, message, trained)

    def _all_steps(
        self, alone: bool, state: State, local: Local, inputs: ChunkInputs, round: Round, most: int | None
    ) -> tuple[Local, Tensor | None]:
        """All local steps: as one piece where they are few and alike and will be traced, else one after the other.

        Also the loss before each step, [steps, clients], if there is a step.
        """
        clients, batches, _, lr = inputs
        if not self.training.batches.sizes[clients].any():
            steps = int(self.training.batches.local_steps[clients[0]])

            def idle(state: State, local: Local, round: Round) -> Local:
                return steps_without_samples(self.training.method, state, local, steps, round)

            return (idle(state, local, round) if alone else over_clients(vmap, idle, round)(state, local)), None
        if most is None and self._in_lanes and batches.steps:
            self._lanes = self._lanes or self._make_lanes(state, local, inputs)
            if self._lanes:
                return self._lanes(state, local, round, lr, self._lane_batches(batches, self._lanes.width))
        if most is None and self.at_once(batches.steps):
            batch = batches.whole(MOST_BYTES_AT_ONCE)
            if batch is not None:
                if alone:
                    batch = batch.at((slice(None), 0))
                return self._step(alone, StepInputs(state, local, batch, round, lr), batches.steps)
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
        """One local step, or `steps` in a row, by the fastest way that is ready for their shape."""
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
            if alone:
                return call("step", round.number, one, state, local, batch, round)
            mapped: Callable[..., tuple[Local, Tensor]] = over_clients(vmap, one, round)
            return call("step", round.number, mapped, state, local, batch)

        return _repeated(step, steps)

    def _traceable(self, alone: bool, steps: int | None) -> Step:
        """Steps as functions of tensors alone."""

        def one(state: State, local: Local, batch: Batch, round: Round) -> tuple[Local, Tensor]:
            return take_step(self.training, with_functions, state, local, batch, TracedRound(*round))

        def step(inputs: StepInputs) -> tuple[Local, Tensor]:
            state, local, batch, round, lr = inputs
            round = round._replace(lr=lr)  # type: ignore[arg-type]
            if alone:
                return one(state, local, batch, round)
            stacked: tuple[Local, Tensor] = over_clients(vmap, one, round)(state, local, batch)
            return stacked

        return _repeated(step, steps)

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
            self._fall_back("eager", f"a step cannot be recorded, and is taken as written: {one_line(error)}")
            return
        self._ready[shape] = graph.traced()
        if compiles:
            try:
                self._ready[shape] = graph.compiled(inputs)
            except Exception as error:  # no compiler, or one that does not know some operation
                self._fall_back("traced", f"a step cannot be compiled, and is replayed as recorded: {one_line(error)}")

    def _make_lanes(self, state: State, local: Local, inputs: ChunkInputs) -> LaneStep | None:
        """The steps of all clients in the lanes of vectors, where that is possible."""
        work = self.training
        try:
            if work.dataset.augmentation is not None:
                raise NotInLanes("samples are augmented")
            check_lanes(self._model.size, self._model.initial)
            width = int(min(work.batches.batch_size, work.batches.sizes.max()))
            samples, rows, weights, _ = self._lane_batches(inputs.batches, width)
            *tensors, targets = (values[rows[0, 0]] for values in samples)
            named = work.dataset.train.inputs
            some = tensors[0] if isinstance(named, Tensor) else dict(zip(named, tensors, strict=True))
            batch = Batch(some, targets, weights[0, 0])
            first = StepInputs(_first(state), _first(local), batch, first_of(inputs.round), inputs.lr)
            traceable = self._traceable(True, None)
            return lanes_in_fork(
                lambda: step_graph(traceable, first), first, self._eager(True, None), self._made_of(True, None)
            )
        except (NotInLanes, ForkFailed) as error:
            reason = str(error).removeprefix("NotInLanes: ")
            self._fall_back("traced", f"steps cannot be run in lanes, and are replayed as recorded: {reason}")
            return None

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


def _repeated(step: Step, steps: int | None) -> Step:
    """So many steps as one, on batches with a leading dimension of steps; without a number, the step itself."""
    if steps is None:
        return step

    def all_steps(inputs: StepInputs) -> tuple[Local, Tensor]:
        losses = []
        for k in range(steps):
            local, loss = step(inputs._replace(batch=inputs.batch.at(k)))
            inputs = inputs._replace(local=local)
            losses.append(loss)
        return local, torch.stack(losses)

    return all_steps


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
