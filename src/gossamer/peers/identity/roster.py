"""The network file: one experiment, the peers that run it, and how they exchange letters.

    [experiment]            # as in an experiment file; or: experiment = "winner.toml", relative to this file
    method = "dfedavg"
    rounds = 30

    [exchange]
    late = "wait"

    [peers.alice]           # the order of the peers is the order of the clients in a simulation
    host = "10.0.0.1"
    port = 7001
    data = "experiment"

The number of clients is the number of peers. Keys that are left out have the defaults below.
"""

import hashlib
import ipaddress
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tomli_w
from pydantic import Field, ValidationError, field_validator

from gossamer.errors import ExperimentError, GossamerError, did_you_mean
from gossamer.experiment import CATALOGS, Checked, Experiment, is_spec, read_toml
from gossamer.experiment.compatibility import check_compatibility
from gossamer.graphs import make_network
from gossamer.methods import METHODS, bind
from gossamer.methods import Setting as Place
from gossamer.parts import explain

#: The value of `data` for the samples that the experiment's partition gives to the peer's number.
EXPERIMENT_DATA = "experiment"
#: The authority's folder beside the kits; no peer may have this name.
AUTHORITY = "authority"
#: Follows a peer's name in its certificate; no host name may end like this.
SUFFIX = ".peers.gossamer"
#: The decentralised counterparts of methods with a server.
WITHOUT_SERVER = {"fedavg": "dfedavg", "fedsam": "dfedsam", "scaffold": "d-scaffold", "fedpd": "dfedadmm"}

NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
LONGEST_NAME = 63
LONGEST_HOST = 253


class RosterError(GossamerError):
    """The network file is invalid, or peers cannot run its experiment."""


class Address(NamedTuple):
    """Host and port.

    >>> str(Address("::1", 7001)), str(Address("127.0.0.1", 7002))
    ('[::1]:7001', '127.0.0.1:7002')
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Member(Checked):
    """One peer: its name and address, and the place of its samples."""

    name: str
    host: str = Field("127.0.0.1", description="where other peers reach it: a name or an address")
    port: int = Field(ge=1, le=65535)
    data: str = Field(EXPERIMENT_DATA, min_length=1, description="experiment, a folder, an .npz, or module:function")
    holdout: float = Field(0.0, ge=0, lt=1, description="share of its samples to test on, if it has no test samples")

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        if len(name) > LONGEST_NAME:
            raise ValueError(f"has {len(name)} characters, at most {LONGEST_NAME} are allowed")
        if not NAME.fullmatch(name):
            raise ValueError(f"should be of a-z, 0-9 and inner hyphens, like 'clinic-2' (got {name!r})")
        if name == AUTHORITY:
            raise ValueError(f"'{AUTHORITY}' is the folder of the network's own key; choose another name")
        return name

    @field_validator("host")
    @classmethod
    def _host(cls, host: str) -> str:
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        try:
            address = ipaddress.ip_address(bare)
        except ValueError:
            digits = re.fullmatch(r"[0-9.]+", bare)  # an invalid address
            if digits or len(bare) > LONGEST_HOST or not HOST.fullmatch(bare) or bare.endswith(SUFFIX):
                raise ValueError(
                    f"should be a name like 'gpu1.example.org' or an address like '10.0.0.1' or '::1' (got {host!r})"
                ) from None
            return bare.lower()
        if address.is_unspecified or address.is_multicast or getattr(address, "scope_id", None):
            raise ValueError(f"should be an address at which the other peers reach this one (got {host!r})")
        return str(address)

    @property
    def address(self) -> str:
        """Host and port."""
        return str(Address(self.host, self.port))


class Exchange(Checked):
    """The policy for late messages, the same for all peers."""

    late: Literal["wait", "reweigh"] = Field("wait", description="what a peer does without a neighbour's message")
    patience: float = Field(60.0, gt=0, allow_inf_nan=False, description="seconds: the longest wait for a neighbour")
    sync: bool = Field(False, strict=True, description="messages survive a power cut, not only a kill")


@dataclass(frozen=True)
class Roster:
    """An experiment and the peers that run it; raises an error for what cannot work."""

    experiment: Experiment
    members: tuple[Member, ...]
    exchange: Exchange = field(default_factory=Exchange)

    def __post_init__(self) -> None:
        _check_members(self.members)
        if self.experiment.clients != len(self.members):
            raise RosterError(_disagree(self.experiment.clients, len(self.members)))
        for key, value in self.experiment.describe().items():
            if key in CATALOGS and not is_spec(value):
                raise RosterError(
                    f"{key}: {type(value).__name__} is an object that only this Python program has; the other peers "
                    "need it by name: put it into a module and write package.module:name"
                )
        if self.experiment.stop_at is not None:
            raise RosterError("stop_at: no peer can stop all others after the same round; leave it out, or simulate")
        if self.experiment.evaluate.start:
            raise RosterError("evaluate.start: peers do not measure before their first round; leave it out")
        _check_method(self.experiment)

    @property
    def names(self) -> tuple[str, ...]:
        """The peers' names, by number."""
        return tuple(member.name for member in self.members)

    @property
    def digest(self) -> str:
        """A digest of all that peers must share: the experiment, the names in order, and the exchange."""
        shared = [self.experiment.to_toml(), self.names, self.exchange.model_dump()]
        return hashlib.sha256(json.dumps(shared).encode()).hexdigest()[:16]

    def number(self, name: str) -> int:
        """The peer's number, which is its client number in a simulation."""
        if name not in self.names:
            raise RosterError(f"there is no peer '{name}' in the network: {did_you_mean(name, self.names)}")
        return self.names.index(name)

    def member(self, name: str) -> Member:
        """The peer called `name`."""
        return self.members[self.number(name)]

    def to_toml(self, peer: str | None = None) -> str:
        """The network file; with `peer`, the one for that peer's kit, without the `data` of others."""
        known = {} if peer is None else {"peer": self.member(peer).name}
        private = {m.name: {"data", "holdout"} if peer not in (None, m.name) else set() for m in self.members}
        peers = {m.name: m.model_dump(exclude={"name", *private[m.name]}) for m in self.members}
        experiment = tomllib.loads(self.experiment.to_toml())
        tables = {"experiment": experiment, "exchange": self.exchange.model_dump(), "peers": peers}
        return tomli_w.dumps({**known, **tables})


def load_roster(path: Path) -> Roster:
    """The network of a TOML file; errors name the file and the key."""
    try:
        values = read_toml(path)
    except ExperimentError as error:
        if twice := re.search(r"\('peers', '(.+)'\) twice", str(error)):
            raise RosterError(f"{path}: two peers are called '{twice[1]}'; each needs a name of its own") from None
        raise
    if "peer" in values:
        raise RosterError(f"{path}: is the network file of the kit of '{values['peer']}', not the one kits are made of")
    return _named(path, values)


def load_kit_roster(path: Path) -> tuple[Roster, str]:
    """The network in a kit's file, and the name of the kit's peer."""
    values = read_toml(path)
    name = values.pop("peer", None)
    if not isinstance(name, str):
        raise RosterError(f"{path}: does not name its peer (peer = \"...\"); kits come from 'network create'")
    roster = _named(path, values)
    if name not in roster.names:
        raise RosterError(f"{path}: peer: there is no '{name}' among the peers: {did_you_mean(name, roster.names)}")
    return roster, name


def _named(path: Path, values: Mapping[str, Any]) -> Roster:
    """The network of a file's values; errors name the file."""
    try:
        return _roster(values, path.parent)
    except GossamerError as error:
        raise RosterError(f"{path}: {error}") from None


def _roster(values: Mapping[str, Any], folder: Path) -> Roster:
    _refuse_unknown("", values, ("experiment", "exchange", "peers"))
    peers = values.get("peers", {})
    if not isinstance(peers, Mapping) or not all(isinstance(about, Mapping) for about in peers.values()):
        raise RosterError("peers: each is a table of its own, [peers.alice], with host, port and data")
    members = []
    for name, about in peers.items():
        where, known = f"peers.{name}", [key for key in Member.model_fields if key != "name"]
        _refuse_unknown(f"{where}.", about, known)
        members.append(_checked(where, Member, {"name": name, **about}))
    _check_members(members)
    exchange = values.get("exchange", {})
    if not isinstance(exchange, Mapping):
        raise RosterError(f"exchange: should be a table, [exchange] (got {exchange!r})")
    _refuse_unknown("exchange.", exchange, Exchange.model_fields)
    experiment = _experiment(values.get("experiment"), folder, len(members))
    return Roster(experiment, tuple(members), _checked("exchange", Exchange, exchange))


def _experiment(given: Any, folder: Path, clients: int) -> Experiment:
    """The experiment, from the network file or a file of its own, with as many clients as there are peers."""
    where = "experiment"
    if isinstance(given, str):
        where = str(folder / Path(given).expanduser())
        given = read_toml(Path(where))
    if not isinstance(given, Mapping):
        got = "" if given is None else f" (got {given!r})"
        raise RosterError(f'experiment: should be a table, [experiment], or a file, experiment = "winner.toml"{got}')
    if "sweep" in given:
        raise RosterError(
            f"{where}: has a [sweep], so it is a comparison, and peers run one experiment: take the "
            "experiment.toml out of the run folder that won"
        )
    asked = given.get("clients", clients)
    if asked != clients or isinstance(asked, bool):
        raise RosterError(f"{where}: {_disagree(asked, clients)}")
    try:
        return Experiment(**{**given, "clients": clients})
    except ExperimentError as error:
        raise RosterError(f"{where}: {error}") from None


def _disagree(clients: Any, peers: int) -> str:
    return f"clients = {clients}, but there are {peers} peers: leave the key out, or list as many peers"


def _check_members(members: Sequence[Member]) -> None:
    if len(members) < 2:
        raise RosterError(f"peers: a network needs at least 2, each as a table [peers.NAME] (got {len(members)})")
    names: set[str] = set()
    places: dict[tuple[str, int], str] = {}
    for member in members:
        if member.name in names:
            raise RosterError(f"peers: two of them are called '{member.name}'")
        names.add(member.name)
        place = ("127.0.0.1" if member.host == "localhost" else member.host, member.port)
        if place in places:
            raise RosterError(
                f"peers.{member.name}: {member.address} is taken by '{places[place]}'; give each its own port"
            )
        places[place] = member.name


def _check_method(experiment: Experiment) -> None:
    """Refuse a method that needs a server or is incompatible with the graph."""
    method = bind(experiment.method, Place(server=False, shapes=()))
    if "server" in method.sends.values():
        name = next((n for n, maker in METHODS.items() if type(experiment.method) is maker), type(method).__name__)
        instead = f": take '{WITHOUT_SERVER[name]}'" if name in WITHOUT_SERVER else ""
        raise RosterError(f"method '{name}' needs a server, and peers have none{instead}")
    if experiment.order != "together":
        raise RosterError(f"order: peers all train at once; '{experiment.order}' is for simulations")
    network = make_network(experiment.graph_or_default, experiment.clients, experiment.seed)
    if network.has_server:
        raise RosterError(f"graph '{network.name}' has a server, and peers have none: take 'ring' or 'exponential'")
    check_compatibility(experiment.method, network)


def _refuse_unknown(where: str, given: Mapping[str, Any], known: Any) -> None:
    for key in given:
        if key not in known:
            raise RosterError(f"unknown key '{where}{key}': {did_you_mean(key, known)}")


def _checked(where: str, table: Any, values: Mapping[str, Any]) -> Any:
    try:
        return table(**values)
    except ValidationError as error:
        raise RosterError(explain(error, where)) from None
