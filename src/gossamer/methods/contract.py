"""The interface of a method: plain functions of one client, on flat vectors.

A method never sees another client. It defines the state that a client keeps between rounds (`State`), one local step,
the message that is sent (`Message`) and the state after the mixed messages have arrived. Every engine, and a peer on a
network, calls the same functions in the same order:

    init -> [open] -> for every round: begin -> step, step, ... -> finish -> [messages are mixed] -> receive

Messages are mixed linearly, by the operator that `sends` names for each of them:

    average   the weighted average over the neighbours and the client itself (rows of W sum to one)
    push      what the columns of W send here (columns sum to one: push-sum mass is conserved)
    deliver   the same without the client's own share, which it keeps itself (`round.own_weight`)
    sum       the plain sum over the neighbours, without the client itself
    server    the mean over the clients that took part in the round
"""

from collections.abc import Callable
from dataclasses import fields
from difflib import get_close_matches
from functools import lru_cache
from math import inf
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeAlias, get_args, runtime_checkable

import torch
from pydantic import BeforeValidator, Field, ValidationError, model_validator
from torch import Tensor

from gossamer.errors import ExperimentError, did_you_mean
from gossamer.methods.local import Gradient
from gossamer.parts import explain, part

State: TypeAlias = dict[str, Tensor]
Local: TypeAlias = dict[str, Tensor]
Message: TypeAlias = dict[str, Tensor]
Operator: TypeAlias = Literal["average", "push", "deliver", "sum", "server"]
OPERATORS: tuple[str, ...] = get_args(Operator)
Need: TypeAlias = Literal["undirected", "doubly stochastic", "static", "everyone"]


class Round(NamedTuple):
    """A round as one client knows it. What is a tensor may differ between clients."""

    #: Counted from 0, out of `rounds`.
    number: int
    rounds: int
    lr: float
    #: The number of local steps this client takes in the round; without samples, each with a zero gradient.
    steps: Tensor
    #: How many neighbours it hears from, and the weight it gives itself.
    degree: Tensor
    own_weight: Tensor
    #: The share of all clients that take part in the round.
    participation: float = 1.0
    #: For a method with `draws`: one uniform number in [0, 1) for each parameter, keyed by client and round.
    noise: Tensor | None = None


@runtime_checkable
class Method(Protocol):
    """The interface of every method; a class with these members is one, without any base class.

    `Traits` lists the members that a method may have besides.
    """

    #: The operator that mixes each tensor of the message, by its name. A tensor that is mixed in a second way as well
    #: is named with that operator in front: {"x": "average", "sum x": "sum"} sends x once.
    sends: ClassVar[dict[str, Operator]]

    def init(self, x0: Tensor) -> State:
        """The state of a client before the first round."""
        ...

    def begin(self, state: State, round: Round) -> Local:
        """The scratch values of a round, before its first local step."""
        ...

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        """One local step; `gradient` is bound to one mini-batch."""
        ...

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        """The state after the last local step, and the message."""
        ...

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        """The state after the mixed messages have arrived."""
        ...

    def model(self, state: State) -> Tensor:
        """The vector that is evaluated."""
        ...


class LocalWork(NamedTuple):
    """The local work of a round: a number of epochs over the client's samples, or of steps."""

    epochs: int | None = None
    steps: int | None = None


class Setting(NamedTuple):
    """The network and the model that a method is bound to."""

    #: Whether the network has a server.
    server: bool
    #: The shapes of the model's tensors, in the order in which they lie in the flat vector.
    shapes: tuple[tuple[int, ...], ...]
    #: Whether all clients take the same number of local steps.
    equal_steps: bool = True


FullGradient: TypeAlias = Callable[[], Tensor]

#: The members that every method has.
REQUIRED = ("init", "begin", "step", "finish", "receive", "model", "sends")
#: How alike (1: equal) an unknown name must be to a member's to be taken for a misspelling of it.
MISSPELT = 0.85


class Codec(NamedTuple):
    """How a message travels: packed by `encode`, and the same message again by `decode`."""

    encode: Callable[[Message], Message]
    decode: Callable[[Message], Message]


class Opening(NamedTuple):
    """The exchange before the first round: the message of `open` is mixed `mixings` times and given to `opened`."""

    open: Callable[[State, FullGradient, Round], tuple[State, Message]]
    opened: Callable[[State, Message, Round], State]
    mixings: int


def _check_decay(given: Any) -> Any:
    if given != "experiment" and not (isinstance(given, int | float) and 0 <= given < inf):
        raise ValueError(f"should be a number, 0 or more, or 'experiment' (got {given!r})")
    return given


def _check_needs(given: Any) -> Any:
    if isinstance(given, str):
        raise ValueError(f"should be a tuple, such as ({given!r},) (got {given!r})")
    return given


@part
class Traits:
    """The optional members of a method, checked, with their defaults.

    A field is a member that a method's class may have, under the same name. `docs/methods.md` lists them from here.
    """

    gossip_steps: Annotated[
        int, Field(strict=True, ge=1, description="how often the messages of a round are mixed")
    ] = 1
    local_work: Annotated[
        LocalWork | None,
        Field(description="`LocalWork(steps=…)` or `LocalWork(epochs=…)`, in place of the experiment's local work"),
    ] = None
    weight_decay: Annotated[
        float | Literal["experiment"],
        BeforeValidator(_check_decay),
        Field(description="its own weight decay, in place of the experiment's"),
    ] = "experiment"
    needs: Annotated[
        tuple[Need, ...],
        BeforeValidator(_check_needs),
        Field(
            description="what it needs of a graph beyond what its operators need: "
            '`"undirected"`, `"doubly stochastic"`, `"static"`, `"everyone"`'
        ),
    ] = ()
    assumes: Annotated[
        tuple[Need, ...],
        Field(description="what its theory assumes of a graph beyond `needs`; a run on another graph says so"),
    ] = ()
    needs_equal_steps: Annotated[
        bool, Field(strict=True, description="every client must take the same number of local steps")
    ] = False
    default_graph: Annotated[
        str | None, Field(description="the name of the graph it runs on where the experiment names none")
    ] = None
    draws: Annotated[bool, Field(strict=True, description="`round.noise` is there")] = False
    shares_loss: Annotated[
        bool,
        Field(strict=True, description="every client tells all others its training loss, which the graph may go by"),
    ] = False
    may_miss_messages: Annotated[
        bool,
        Field(
            strict=True,
            description="a peer may go on without a neighbour's message. Stated by the class itself, never inherited: "
            "a subclass may keep more, which a missing message would spoil",
        ),
    ] = False
    specialise: Annotated[
        Callable[[Setting], Method] | None,
        Field(
            description="`specialise(setting)` gives the form of the method for a network (`setting.server`), a "
            "model (`setting.shapes`) and local work (`setting.equal_steps`)"
        ),
    ] = None
    refuse: Annotated[
        Callable[[float, int], str | None] | None,
        Field(
            description="`refuse(lr, degree)` says why it cannot work with this learning rate where a client has "
            "`degree` neighbours, or gives None"
        ),
    ] = None
    open: Annotated[
        Callable[[State, FullGradient, Round], tuple[State, Message]] | None,
        Field(
            description="`open(state, full_gradient, round)` gives the state and the message of an exchange before the "
            "first round"
        ),
    ] = None
    opened: Annotated[
        Callable[[State, Message, Round], State] | None,
        Field(description="`opened(state, mixed, round)` gives the state after that exchange"),
    ] = None
    open_mixings: Annotated[
        int, Field(strict=True, ge=0, description="how often the message of that exchange is mixed")
    ] = 1
    encode: Annotated[
        Callable[[Message], Message] | None, Field(description="`encode(message)` gives the tensors that travel")
    ] = None
    decode: Annotated[
        Callable[[Message], Message] | None, Field(description="`decode(wire)` gives the message back")
    ] = None
    weight: Annotated[
        Callable[[State], Tensor] | None,
        Field(description="`weight(state)` is the weight of a client in the average model"),
    ] = None
    family: Annotated[str, Field(description="its heading in the listings")] = ""
    paper: Annotated[str, Field(description="its source in the listings")] = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for one, other in (("open", "opened"), ("encode", "decode")):
            have, lack = (one, other) if getattr(self, one) else (other, one)
            if getattr(self, have) and not getattr(self, lack):
                raise ValueError(f"it has '{have}' and no '{lack}': a method has both or neither")
        if self.local_work and (self.local_work.epochs is None) == (self.local_work.steps is None):
            raise ValueError(f"local_work: set either steps or epochs (got {self.local_work})")
        return self

    @property
    def codec(self) -> Codec | None:
        """How messages travel, if not as they are."""
        return Codec(self.encode, self.decode) if self.encode and self.decode else None

    @property
    def opening(self) -> Opening | None:
        """The exchange before the first round, if there is one."""
        return Opening(self.open, self.opened, self.open_mixings) if self.open and self.opened else None

    def encoded(self, message: Message) -> Message:
        """One client's message as it travels."""
        return message if self.encode is None else self.encode(message)

    def decoded(self, wire: Message) -> Message:
        """The message that travelled as these tensors."""
        return wire if self.decode is None else self.decode(wire)


MEMBERS = tuple(field.name for field in fields(Traits))


def traits_of(method: Any) -> Traits:
    """The optional members of a method; what is no method, or has a misspelt, wrong or half member, is refused.

    >>> from gossamer.methods import DFedSAMMGS
    >>> traits_of(DFedSAMMGS(gossip_steps=4)).gossip_steps
    4
    """
    names = set(dir(method))
    if missing := [name for name in REQUIRED if name not in names]:
        raise ExperimentError(f"method: {method!r} is not a method: it lacks {', '.join(missing)}")
    where = f"method '{type(method).__name__}'"
    _check_sends(where, method.sends)
    for name in sorted(names - {*REQUIRED, *MEMBERS}):
        if (member := _near(name)) and _would_do(member, name, getattr(method, name)):
            raise ExperimentError(f"{where} has '{name}', which no method has: did you mean '{member}'?")
    if "may_miss_messages" not in vars(type(method)):
        names.discard("may_miss_messages")
    try:
        return Traits(**{name: getattr(method, name) for name in MEMBERS if name in names})
    except ValidationError as error:
        raise ExperimentError(explain(error, where)) from None


def _check_sends(where: str, sends: Any) -> None:
    """Refuse anything but a dict from names of message tensors to operators."""
    example = 'such as {"x": "average"}'
    if not isinstance(sends, dict):
        raise ExperimentError(
            f"{where}: `sends` should name an operator for each message tensor, {example} (got {sends!r})"
        )
    for operator in sends.values():
        if operator not in OPERATORS:
            raise ExperimentError(
                f"{where}: `sends`: unknown operator {operator!r}: {did_you_mean(str(operator), OPERATORS)}"
            )


@lru_cache(4096)
def _near(name: str) -> str | None:
    """The member that a public name nearly is, if any."""
    near = [] if name.startswith("_") else get_close_matches(name, MEMBERS, n=1, cutoff=MISSPELT)
    return near[0] if near else None


def _would_do(member: str, name: str, value: Any) -> bool:
    """Whether a value under a similar name can be meant for a member: a list of `weights` is no `weight` function."""
    if callable(value) and name.startswith(member):  # a function of one's own: `weights`, `encoder`, `refused`
        return False
    try:
        Traits(**{member: value})
    except ValidationError:
        return False
    return True


def bind(method: Method, setting: Setting) -> Method:
    """The form of a method for a network and a model, as its `specialise` gives it.

    A subclass that inherits `specialise` is bound as itself or refused: a form of another class knows nothing of what
    the subclass adds.
    """
    specialise, given = traits_of(method).specialise, type(method)
    if specialise is None:
        return method
    form = specialise(setting)
    if not isinstance(form, Method):
        raise ExperimentError(f"method '{given.__name__}': `specialise` gives {form!r}, which is not a method")
    if not isinstance(form, given) and "specialise" not in vars(given):
        parent = next(cls.__name__ for cls in given.__mro__ if "specialise" in vars(cls))
        raise ExperimentError(
            f"method '{given.__name__}' inherits the `specialise` of '{parent}', which here gives a "
            f"'{type(form).__name__}' and loses what '{given.__name__}' adds. Give it a `specialise(self, setting)` of "
            "its own: `return self` keeps the method as it is."
        )
    return form


def mixes(sends: dict[str, Operator], message: Message) -> dict[str, tuple[str, Operator]]:
    """For each mixed result: the message tensor it comes from and the operator that makes it."""
    return {key: (key if key in message else key.removeprefix(f"{operator} "), operator)
            for key, operator in sends.items()}  # fmt: skip


def per_step(difference: Tensor, round: Round) -> Tensor:
    """A displacement as a mean direction: difference / (K η), and zero if there are no local steps."""
    return difference / (torch.clamp(round.steps, min=1) * round.lr)
