"""A chunk of clients through its round, up to the message: one client alone, or many at once under `vmap`.

Either way it is the same functions of the same method on the same batches, so how a chunk is run changes the speed and
nothing else. There are three ways to take a step:

eager      as written, operation by operation
traced     the operations of a step are recorded once and replayed: no tape, no `vmap` machinery, no Python of the model
compiled   the recorded operations are fused by torch's compiler, where there is one
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from gossamer.data import Batch, ChunkBatches
from gossamer.engines.steps.compiled import Step, StepInputs, build, can_build
from gossamer.engines.steps.replayed import record_apart
from gossamer.methods import Local, Message, Round, State
from gossamer.randomness import Purpose, torch_seed
from gossamer.training import Training
from gossamer.training.steps import (
    About,
    Differentiate,
    about_clients,
    take_step,
    this_round,
    with_functions,
    with_tape,
)
from gossamer.workers import ForkFailed

if TYPE_CHECKING:
    from gossamer.engines.steps.traced import TracedStep

StepMode = Literal["eager", "traced", "compiled"]

#: A step of one shape is recorded, and compiled if the plan says so, when it comes for this time.
RECORD_AT = 3
#: Shapes that are recorded, and compiled. Batches at the end of an epoch come in many, most steps in one or two.
MOST_RECORDED, MOST_COMPILED = 16, 4
#: Steps that are recorded as one piece, of models with no more than so many numbers (what lies between the steps of
#: larger ones does not show), if the samples of all of them take no more than so many bytes.
MOST_AT_ONCE, MOST_NUMBERS, CACHED = 8, 500_000, 8 << 20


class ExecutionPlan(NamedTuple):
    """How a worker runs its clients."""

    #: Clients that run at once.
    chunk: int = 1
    step: StepMode = "eager"
    #: Images with their channels last, which convolutions on a CPU like better.
    channels_last: bool = False
    reason: str = ""

    def to_json(self) -> str:
        """The plan as text."""
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> "ExecutionPlan":
        """The plan that `to_json` wrote."""
        said = json.loads(text)
        if said["step"] not in get_args(StepMode):
            raise ValueError(f"no way to take a step: {said['step']!r}")
        return cls(int(said["chunk"]), said["step"], bool(said["channels_last"]), str(said["reason"]))

    def __str__(self) -> str:
        layout = ", channels last" if self.channels_last else ""
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.chunk} at a time, {self.step} steps{layout}{reason}"


class ChunkInputs(NamedTuple):
    """What some clients need for a round."""

    clients: np.ndarray
    batches: ChunkBatches
    about: About
    lr: Tensor

    def split_clients(self) -> Iterator["ChunkInputs"]:
        """The same for each of them alone."""
        facts = zip(*(torch.split(rows, 1) for rows in self.about.values()), strict=True)
        for place, (batches, own) in enumerate(zip(self.batches.split_clients(), facts, strict=True)):
            about = dict(zip(self.about, own, strict=True))
            yield ChunkInputs(self.clients[place : place + 1], batches, about, self.lr)


class AnyRound(Round):
    """A round as a step sees it that is recorded, once for all of them: what a step asks of it that may be another
    number in another round would be recorded for good. The learning rate may be asked: it is a tensor here."""

    @property
    def number(self) -> int:
        raise ValueError("it depends on the number of the round")

    @property
    def share(self) -> float:
        raise ValueError("it depends on how many clients take part in the round")

    def __getitem__(self, place: Any) -> Any:
        raise ValueError("it looks at all of the round")

    def __iter__(self) -> Any:
        raise ValueError("it looks at all of the round")


class Outcome(NamedTuple):
    """What a chunk of clients gives: rows of state, of messages, and their mean training losses."""

    state: State
    message: Message
    losses: Tensor


class ChunkRunner:
    """Runs chunks of clients as a plan says.

    A `frugal` one does without the memory that torch's tracer takes: it records steps in other processes, which takes
    longer.
    """

    def __init__(self, training: Training, plan: ExecutionPlan, frugal: bool = False) -> None:
        self.training = training
        self.plan = plan
        self._frugal = frugal and can_build(training.model.initial.device)
        self.trouble: str | None = None
        """Why steps are not run as the plan says, if they are not."""
        self.in_effect = plan
        """The plan, with the way in which steps are really taken."""
        self._model = training.model
        self._seen: Counter[tuple[Any, ...]] = Counter()
        self._ready: dict[tuple[Any, ...], Step] = {}
        self._compiled = 0

    def prepare(self, clients: np.ndarray, index: int) -> ChunkInputs:
        """The mini-batches of these clients in a round, and what they know of it."""
        work, dtype = self.training, self._model.initial.dtype
        layout = torch.channels_last if self.plan.channels_last else torch.contiguous_format
        batches = ChunkBatches(work.batches, work.dataset, clients.tolist(), index, dtype, memory_format=layout)
        lr = self._model.initial.new_tensor(work.lr_at(index))
        return ChunkInputs(clients, batches, about_clients(work, clients, index), lr)

    def at_once(self, steps: int) -> bool:
        """Whether so many steps are recorded as one piece."""
        return self._records and 1 < steps <= MOST_AT_ONCE and self._model.size <= MOST_NUMBERS

    @property
    def _records(self) -> bool:
        return self.plan.step != "eager" and not self.trouble and not self._model.draws_randomness

    def run(self, state: State, prepared: ChunkInputs, index: int, most: int | None = None) -> Outcome:
        """These clients' round up to their messages; `most` cuts it short after so many steps, for a trial."""
        work, method = self.training, self.training.method
        clients, gathered, about, lr = prepared
        alone = len(clients) == 1
        each = _alone if alone else vmap
        if alone:
            state, about = _only(state), _only(about)
        local = each(lambda s, a: method.begin(s, this_round(work, index, a)))(state, about)
        local, losses = self._all_steps(index, state, local, prepared, about, most)
        after, message = each(lambda s, y, a: method.finish(s, y, this_round(work, index, a)))(state, local, about)
        if alone:
            after, message = _one_row(after), _one_row(message)
        if losses is None:
            trained = torch.full((len(clients),), torch.nan, dtype=lr.dtype, device=lr.device)
        else:
            trained = torch.linalg.vecdot(losses.view(-1, len(clients)), gathered.shares[: len(losses)], dim=0)
        return Outcome(after, message, trained)

    def _all_steps(
        self, index: int, state: State, local: Local, prepared: ChunkInputs, about: About, most: int | None
    ) -> tuple[Local, Tensor | None]:
        """All local steps: in one piece where they are few and alike and will be recorded, else one after the other.

        Also the loss of each step before it, [steps, clients], if there is a step.
        """
        clients, gathered, _, lr = prepared
        alone = len(clients) == 1
        if most is None and self.at_once(gathered.steps):
            batch = gathered.whole(CACHED)
            if batch is not None:
                if alone:
                    batch = Batch(*(values[:, 0] for values in batch))
                return self._step(index, alone, state, local, batch, about, lr, gathered.steps)
        losses = []
        for k in range(gathered.steps if most is None else min(most, gathered.steps)):
            if self._model.draws_randomness:  # such a model runs one client at a time
                torch.manual_seed(torch_seed(self.training.seed, Purpose.DROPOUT, int(clients[0]), index, k))
            batch = gathered.take(k)
            if alone:
                batch = Batch(*(values[0] for values in batch))
            taken, loss = self._step(index, alone, state, local, batch, about, lr)
            if not gathered.everyone[k]:  # a client that has done its steps keeps what it has
                active = gathered.active[k]
                taken = {name: torch.where(_like(active, new), new, local[name]) for name, new in taken.items()}
                loss = torch.where(active, loss, 0.0)
            local = taken
            losses.append(loss)
        return local, torch.stack(losses) if losses else None

    def _step(
        self,
        index: int,
        alone: bool,
        state: State,
        local: Local,
        batch: Batch,
        about: About,
        lr: Tensor,
        steps: int | None = None,
    ) -> tuple[Local, Tensor]:
        """One local step, or `steps` in a row, by the fastest way that is ready for their shape."""
        shape = (alone, steps, batch.inputs.shape, *local)
        if shape in self._ready:
            return self._ready[shape](state, local, batch, about, lr)
        if not self._records:
            return self._eagerly(index, alone, steps)(state, local, batch, about, lr)
        self._seen[shape] += 1
        if self._seen[shape] == RECORD_AT and len(self._ready) < (MOST_COMPILED if self._frugal else MOST_RECORDED):
            self._get_ready(shape, index, alone, steps, (state, local, batch, about, lr))
        step = self._ready.get(shape) or self._eagerly(index, alone, steps)
        return step(state, local, batch, about, lr)

    def _eagerly(self, index: int, alone: bool, steps: int | None) -> Step:
        """Steps as written: by the ordinary tape for one client, which costs less where nothing is vectorised."""
        return _in_a_row(self._as_step(index, alone, with_tape if alone else with_functions, plain_rate=True), steps)

    def _as_step(
        self, index: int, alone: bool, differentiate: Differentiate = with_functions, plain_rate: bool = False
    ) -> Step:
        def one(state: State, local: Local, batch: Batch, about: About, lr: Tensor) -> tuple[Local, Tensor]:
            round = this_round(self.training, index, about)
            if not plain_rate:
                round = AnyRound(*round._replace(lr=lr))  # type: ignore[arg-type]
            return take_step(self.training, differentiate, state, local, batch, round)

        return one if alone else vmap(one, in_dims=(0, 0, 0, 0, None))

    def _get_ready(self, shape: tuple[Any, ...], index: int, alone: bool, steps: int | None, given: StepInputs) -> None:
        """Record a step, and compile it if the plan says so: in another process, or in this one where that fails."""
        record = partial(self._record, index, alone, steps)
        compiles = self.plan.step == "compiled" and self._compiled < MOST_COMPILED
        self._compiled += compiles
        as_written = self._eagerly(index, alone, steps)
        if compiles and can_build(self._model.initial.device):
            with suppress(ForkFailed):
                self._ready[shape] = build(record, given, as_written, self._made_of(alone, steps))
                return
        try:
            if self._frugal and not compiles:
                self._ready[shape] = record_apart(record, given, as_written)
                return
            recorded = record(given)
        except Exception as error:  # whatever a user's own model or method may raise
            self._fall_back("eager", f"a step cannot be recorded, and is taken as written: {gist(error)}")
            return
        if compiles:
            try:
                recorded.compile(given)
            except Exception as error:  # no compiler, or one that does not know some operation
                self._fall_back("traced", f"a step cannot be compiled, and is replayed as recorded: {gist(error)}")
        self._ready[shape] = recorded

    def _fall_back(self, step: StepMode, trouble: str) -> None:
        self.trouble, self.in_effect = trouble, self.plan._replace(step=step)

    def _record(self, index: int, alone: bool, steps: int | None, given: StepInputs) -> "TracedStep":
        from gossamer.engines.steps.traced import TracedStep  # torch's tracer takes a while to import

        now, again = (TracedStep(_in_a_row(self._as_step(index, alone), steps), given) for _ in range(2))
        if not now.same_as(again):
            raise ValueError("it does not do the same every time")
        return now

    def _made_of(self, alone: bool, steps: int | None) -> list[Any]:
        """All that a recording takes from elsewhere than its tensors."""
        work = self.training
        about = [work.dataset.scaling, work.weight_decay, work.clip, work.rounds, alone, steps]
        return [work.method, work.model.template, work.loss, *about]


def _in_a_row(step: Step, steps: int | None) -> Step:
    """So many steps as one, on batches with a leading dimension of steps; without a number, the step itself."""
    if steps is None:
        return step

    def all_of_them(state: State, local: Local, batch: Batch, about: About, lr: Tensor) -> tuple[Local, Tensor]:
        losses = []
        for k in range(steps):
            local, loss = step(state, local, Batch(*(values[k] for values in batch)), about, lr)
            losses.append(loss)
        return local, torch.stack(losses)

    return all_of_them


def _alone(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _only(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    """The one row of each."""
    return {name: value[0] for name, value in rows.items()}


def _one_row(values: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.unsqueeze(0) for name, value in values.items()}


def _like(active: Tensor, value: Tensor) -> Tensor:
    return active.view(-1, *[1] * (value.dim() - 1))


def gist(error: Exception) -> str:
    """An error in one line."""
    if "data-dependent control flow" in str(error):  # torch's words for it are about its tracer
        return "it branches on the value of a tensor"
    line = str(error).strip().partition("\n")[0]
    return line if isinstance(error, ForkFailed) else f"{type(error).__name__}: {line}"
