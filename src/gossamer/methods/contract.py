"""What a method is: plain functions of one client, on flat vectors.

A method never sees another client. It says what it keeps between rounds (`State`), what one local step does, what it
sends (`Message`) and what it makes of what comes back mixed. Whoever runs it (many clients stacked in one process, or
one peer on a network) calls the same functions in the same order:

    init -> [open] -> for every round: begin -> step, step, ... -> finish -> [messages are mixed] -> receive

Messages are mixed linearly, by the operator that `sends` names for each of them:

    average   the weighted average over the neighbours and the client itself (rows of W sum to one)
    push      what the columns of W send here (columns sum to one: push-sum mass is conserved)
    deliver   the same without the client's own share, which it keeps itself (`round.own_weight`)
    sum       the plain sum over the neighbours, without the client itself
    server    the mean over the clients that took part in the round
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from gossamer.methods.local import Gradient

State: TypeAlias = dict[str, Tensor]
Local: TypeAlias = dict[str, Tensor]
Message: TypeAlias = dict[str, Tensor]
Operator: TypeAlias = Literal["average", "push", "deliver", "sum", "server"]
Need: TypeAlias = Literal["undirected", "doubly stochastic", "static", "everyone"]


class Round(NamedTuple):
    """What a client knows of the round it is in. Tensors are what may differ between clients."""

    #: Counted from 0, out of `rounds`.
    number: int
    rounds: int
    lr: float
    #: The number of local steps this client takes in the round.
    steps: Tensor
    #: How many neighbours it hears from, and the weight it gives itself.
    degree: Tensor
    own_weight: Tensor
    #: The share of all clients that take part in the round.
    share: float = 1.0
    #: For a method with `draws`: one uniform number in [0, 1) for each parameter, keyed by client and round.
    noise: Tensor | None = None


@runtime_checkable
class Method(Protocol):
    """The interface of every method; a class with these members is one, without any base class.

    What a method may have besides:

    gossip_steps    how often the messages of a round are mixed (1)
    local_work      its own amount of local work, in place of the experiment's
    weight_decay    its own weight decay, in place of the experiment's; "experiment": that of the experiment
    needs           what it needs of a graph, beyond what its operators do: see `Need`
    needs_equal_steps   True: every client must take the same number of local steps
    draws           True: `round.noise` is there
    shares_loss     True: every client tells all others its training loss, which the graph may go by
    default_graph   the graph it runs on where the experiment names none
    fit             fit(setting) -> the form of the method for this network and model, see `Setting`
    refuse          refuse(lr, degree) -> why it cannot work with this learning rate where a client has as many
                    neighbours as `degree`, or None
    open            open(state, full_gradient, round) -> state, message: an exchange before the first round
    opened          opened(state, mixed, round) -> state: what becomes of it, after `open_mixings` mixings
    encode, decode  encode(message) -> the tensors that really travel; decode(wire) -> the same message again
    family, paper   for the listings
    """

    #: The operator that mixes each tensor of the message, by its name. A tensor that is mixed in a second way as well
    #: is named with that operator in front: {"x": "average", "sum x": "sum"} sends x once.
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


class Setting(NamedTuple):
    """What a method may want to know before a run, once for all clients."""

    server: bool
    #: The shapes of the model's tensors, in the order in which they lie in the flat vector.
    shapes: tuple[tuple[int, ...], ...]


FullGradient: TypeAlias = Callable[[], Tensor]


def gossip_steps(method: Method) -> int:
    """How often the messages of one round are mixed."""
    return int(getattr(method, "gossip_steps", 1))


def local_work(method: Method) -> LocalWork | None:
    """The method's own amount of local work, if it insists on one."""
    work: Any = getattr(method, "local_work", None)
    return None if work is None else LocalWork(*work)


def needs(method: Method) -> tuple[Need, ...]:
    """What the method needs of a graph, beyond what its operators do."""
    found: tuple[Need, ...] = getattr(method, "needs", ())
    return found


def fitted(method: Method, setting: Setting) -> Method:
    """The form of the method for a network and a model."""
    fit: Callable[[Setting], Method] | None = getattr(method, "fit", None)
    return method if fit is None else fit(setting)


def travelling(method: Method, message: Message) -> Message:
    """The tensors of one client's message as they really travel."""
    encode: Callable[[Message], Message] | None = getattr(method, "encode", None)
    return message if encode is None else encode(message)


def arrived(method: Method, wire: Message) -> Message:
    """The message that these tensors carried."""
    decode: Callable[[Message], Message] | None = getattr(method, "decode", None)
    return wire if decode is None else decode(wire)


def mixes(sends: dict[str, Operator], message: Message) -> dict[str, tuple[str, Operator]]:
    """For each mixed result: the message tensor it comes from and the operator that makes it."""
    return {key: (key if key in message else key.removeprefix(f"{operator} "), operator)
            for key, operator in sends.items()}  # fmt: skip


def per_step(difference: Tensor, round: Round) -> Tensor:
    """A displacement as a mean direction: difference / (K η), and zero for a client that took no step."""
    return difference / (torch.clamp(round.steps, min=1) * round.lr)
