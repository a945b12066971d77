"""`gossamer network check`: whether kits are complete, certificates valid, and peers running and authentic.

Peers are asked with a kit, over the same mutual TLS that they use among themselves.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import grpc

from gossamer.errors import GossamerError
from gossamer.peers.identity.certificates import is_newer, valid_until
from gossamer.peers.identity.code import code_digests, different_parts
from gossamer.peers.identity.kit import Kit, KitError, is_kit, kits_in, open_kit
from gossamer.peers.identity.roster import Member
from gossamer.peers.wire import tls
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.peers.wire.links import SERVICE, describe_failure
from gossamer.peers.wire.probe import meet

#: Seconds for each of: the connection, the handshake, the first answer.
TIMEOUT = 5.0


class Hello(NamedTuple):
    """The version and experiment of a running peer."""

    version: str
    digest: str
    #: The digests of the user's own code, by part.
    code: dict[str, str]


class PeerCheck(NamedTuple):
    """The result for one peer; a problem of None means that there is none."""

    name: str
    address: str
    #: For a kit that is here: its problem, and the days that its certificate is still valid.
    kit_problem: str | None
    days_left: int | None
    #: For the running peer: its problem, and its answer.
    network_problem: str | None
    hello: Hello | None
    #: For the certificate that it presents: the days left, and whether its kit has a newer one.
    shown_days_left: int | None = None
    outdated: bool = False


def ask(kit: Kit, member: Member) -> Hello:
    """Ask a running peer which version and which experiment it runs."""
    with tls.blocking_channel(kit, member) as channel:
        greet = channel.unary_unary(
            f"/{SERVICE}/Greet",
            request_serializer=wire.Hello.SerializeToString,
            response_deserializer=wire.Hello.FromString,
        )
        try:
            # Without a network: this is no peer, and must not be taken for one.
            answer: wire.Hello = greet(wire.Hello(version=version("gossamer")), timeout=TIMEOUT)
        except grpc.RpcError as error:
            raise GossamerError(f"it does not answer as a peer does ({describe_failure(error)})") from None
    return Hello(answer.version, answer.network, dict(answer.code))


def check_network(folder: Path) -> list[PeerCheck]:
    """Check one kit, or all the kits in a folder, and every peer of their network."""
    folders = [folder] if is_kit(folder) or not folder.is_dir() else kits_in(folder)
    if not folders:
        raise KitError(f"{folder}: there are no kits in it; name a kit, or the folder that 'network create' wrote")
    kits, problems = _open(folders)
    if not kits:  # without a kit the peers are unknown and cannot be asked
        if len(folders) == 1:
            raise problems[folders[0].name]
        return [PeerCheck(name, "", _without_place(name, folders, error), None, None, None)
                for name, error in problems.items()]  # fmt: skip
    first = kits[0]
    with ThreadPoolExecutor(max_workers=32) as pool:
        lines = list(pool.map(lambda member: _line(member, kits, first), first.roster.members))
    by_name = {line.name: line for line in lines}
    for name, error in problems.items():
        line = by_name.get(name, PeerCheck(name, "", None, None, None, None))
        by_name[name] = line._replace(kit_problem=_without_place(name, folders, error))
    return list(by_name.values())


def _open(folders: Sequence[Path]) -> tuple[list[Kit], dict[str, GossamerError]]:
    """The valid kits, and the problems of the others by the names of their folders."""
    kits: list[Kit] = []
    problems: dict[str, GossamerError] = {}
    for folder in folders:
        try:
            kit = open_kit(folder)
            if kits and kit.authority != kits[0].authority:
                raise KitError(f"{folder}: is of another network than {kits[0].folder}: another authority")
            if kits and kit.roster.digest != kits[0].roster.digest:
                raise KitError(f"{folder}: its network file has another experiment than that of {kits[0].folder}")
            kits.append(kit)
        except GossamerError as error:
            problems[folder.name] = error
    return kits, problems


def _without_place(name: str, folders: Sequence[Path], error: GossamerError) -> str:
    """The problem without the folder, for a table that has the name beside it."""
    folder = next(path for path in folders if path.name == name)
    return str(error).removeprefix(f"{folder}: ")


def _line(member: Member, kits: Sequence[Kit], asking: Kit) -> PeerCheck:
    own = next((kit for kit in kits if kit.name == member.name), None)
    days = _days_left(own.certificate) if own else None
    (problem, shown, _), hello = meet(asking, member, TIMEOUT), None
    if problem is None:
        try:
            hello = ask(asking, member)
            problem = disagreement(asking, hello)
        except GossamerError as error:
            problem = str(error)
    return PeerCheck(
        member.name, member.address, None, days, problem, hello,
        shown_days_left=_days_left(shown) if shown else None,
        outdated=bool(own and shown and is_newer(own.certificate, shown)),
    )  # fmt: skip


def _days_left(certificate: bytes) -> int:
    return (valid_until(certificate) - datetime.now(UTC)).days


def disagreement(kit: Kit, hello: Hello) -> str | None:
    """Why a peer with this answer cannot run with the peer of this kit; None if it can."""
    if hello.digest != kit.roster.digest:
        return f"runs another experiment ({hello.digest}, here {kit.roster.digest})"
    if hello.version != (ours := version("gossamer")):
        return f"runs version {hello.version} of Gossamer (here {ours})"
    if parts := different_parts(code_digests(kit.roster.experiment), hello.code):
        return f"runs other code of {', '.join(parts)} than is installed here"
    return None
