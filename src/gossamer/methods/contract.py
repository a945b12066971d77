"""What a method is: plain functions of one client, on flat vectors.

A method never sees another client. It says what it keeps between rounds (`State`), what one local step does, what it
sends (`Message`) and what it makes of what comes back mixed. Whoever runs it (many clients stacked in one process, or
one peer on a network) calls the same functions in the same order:

    init -> for every round: begin -> step, step, ... -> finish -> [messages are mixed] -> receive

Messages are mixed linearly, by the operator that `sends` names for each of them:

    average   the weighted average over the neighbours and the client itself (rows of W sum to one)
    push      what the neighbours' columns of W send here (columns sum to one: push-sum mass is conserved)
    sum       the plain sum over the neighbours, without the client itself
    server    the mean over the clients that took part in the round
"""

from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from gossamer.methods.local import Gradient

State: TypeAlias = dict[str, Tensor]
Local: TypeAlias = dict[str, Tensor]
Message: TypeAlias = dict[str, Tensor]
Operator: TypeAlias = Literal["average", "push", "sum", "server"]


class Round(NamedTuple):
    """What a client knows of the round it is in."""

    #: Counted from 0.
    number: int
    lr: float
    #: The number of local steps this client takes in the round. A tensor, because it may differ between clients.
    steps: Tensor


@runtime_checkable
class Method(Protocol):
    """The interface of every method; a class with these members is one, without any base class.

    Optional members: `gossip_steps` (how often the messages are mixed in a round, 1), `local_work` (an own amount of
    local work in place of the experiment's), `paper` (where it comes from).
    """

    #: The operator that mixes each tensor of the message, by its name.
    sends: ClassVar[dict[str, Operator]]
    #: The laws of the test-suite that hold for it, by their number.
    laws: ClassVar[tuple[str, ...]]

    def init(self, x0: Tensor) -> State:
        """What a client keeps, at the start."""
        ...

    def begin(self, state: State, round: Round) -> Local:
        """The scratch values of a round, before its first local step."""
        ...

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        """One local step; `gradient` is bound to one mini-batch."""
        ...

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        """After the last local step: what is kept, and what is sent."""
        ...

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        """What becomes of the state when the mixed messages arrive."""
        ...

    def model(self, state: State) -> Tensor:
        """The vector that is evaluated."""
        ...


class LocalWork(NamedTuple):
    """How much a client trains in a round: so many epochs over its samples, or so many steps."""

    epochs: int | None = None
    steps: int | None = None


def gossip_steps(method: Method) -> int:
    """How often the messages of one round are mixed."""
    return int(getattr(method, "gossip_steps", 1))


def local_work(method: Method) -> LocalWork | None:
    """The method's own amount of local work, if it insists on one."""
    work: Any = getattr(method, "local_work", None)
    return None if work is None else LocalWork(*work)
