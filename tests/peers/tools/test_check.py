"""`network check` against real sockets: every reason for which a peer cannot be talked to is told as it is."""

import asyncio
import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gossamer.errors import GossamerError
from gossamer.experiment import Experiment
from gossamer.peers.identity.certificates import Authority, server_name
from gossamer.peers.identity.kit import KitError, open_kit, renew, revoke, write_kits
from gossamer.peers.identity.roster import Member, Roster
from gossamer.peers.tools import check as check_module
from gossamer.peers.tools.check import Hello, check_network, disagreement
from gossamer.peers.wire.probe import probe

NAMES = ("alice", "bob", "carol")


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    members = tuple(Member(name=name, port=port) for name, port in zip(NAMES, free_ports(3), strict=True))
    write_kits(Roster(Experiment(clients=3), members), tmp_path / "kits")
    return tmp_path / "kits"


class Peer:
    """A TLS server as a peer is one: it demands a certificate of the network, and speaks first."""

    def __init__(self, folder: Path, port: int, says: bytes = b"hello", trusts: Path | None = None) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
        context.load_verify_locations(trusts or folder / "authority.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["h2"])
        self._socket, self._context, self._says = socket.create_server(("127.0.0.1", port)), context, says
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._open: list[socket.socket] = []
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                plain, _ = self._socket.accept()
            except OSError:
                return
            try:
                secure = self._context.wrap_socket(plain, server_side=True)
                if self._says == b"":
                    secure.close()
                    continue
                if self._says != b"nothing":
                    secure.sendall(self._says)
                self._open.append(secure)
            except (ssl.SSLError, OSError):
                plain.close()

    def stop(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)
        for one in self._open:
            one.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Peer]]:
    started: list[Peer] = []

    def start(*arguments: object, **more: object) -> Peer:
        started.append(Peer(*arguments, **more))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for peer in started:
        peer.stop()


def port(kits: Path, name: str) -> int:
    return open_kit(kits / "alice").roster.member(name).port


def asked(kits: Path, name: str = "bob", patience: float = 5.0) -> str | None:
    kit = open_kit(kits / "alice")
    return probe(kit, kit.roster.member(name), patience)


def test_a_peer_that_is_there(kits: Path, serve: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch) -> None:
    serve(kits / "bob", port(kits, "bob"))
    same = Hello(check_module.version("gossamer"), open_kit(kits / "alice").roster.digest, {})
    monkeypatch.setattr(check_module, "ask", lambda kit, member: same)
    assert asked(kits) is None
    lines = {line.name: line for line in check_network(kits)}
    assert list(lines) == list(NAMES)
    assert lines["bob"].network_problem is None
    assert lines["alice"].network_problem == "refused: nobody listens there"
    assert all(line.kit_problem is None and line.days_left == 364 for line in lines.values())
    alone = {line.name: line for line in check_network(kits / "alice")}
    assert (alone["alice"].days_left, alone["bob"].days_left) == (364, None)


def test_a_peer_whose_kit_was_renewed_elsewhere(kits: Path, serve: Callable[..., Peer]) -> None:
    serve(kits / "bob", port(kits, "bob"))
    serve(kits / "carol", port(kits, "carol"))

    def seen(folder: Path) -> list[tuple[int | None, int | None, bool]]:
        return [(line.days_left, line.shown_days_left, line.outdated) for line in check_network(folder)]

    assert seen(kits) == [(364, None, False), (364, 364, False), (364, 364, False)]
    renew(kits, ["alice", "bob"], days=20)
    assert seen(kits) == [(19, None, False), (19, 364, True), (364, 364, False)]
    assert seen(kits / "alice") == [(19, None, False), (None, 364, False), (None, 364, False)]


def test_one_who_has_the_certificate_and_is_no_peer(kits: Path, serve: Callable[..., Peer]) -> None:
    serve(kits / "bob", port(kits, "bob"))
    problem = {line.name: line.network_problem for line in check_network(kits)}["bob"]
    assert str(problem).startswith("it does not answer as a peer does (")


def test_a_real_grpc_server(kits: Path) -> None:
    grpc = pytest.importorskip("grpc")
    kit = open_kit(kits / "bob")

    async def connects(name: str) -> bool:
        """Whether a peer's own way to connect finds `name` where bob is."""
        alice = open_kit(kits / "alice")
        credentials = grpc.ssl_channel_credentials(alice.authority, alice.key, alice.certificate)
        options = [("grpc.ssl_target_name_override", server_name(name))]
        async with grpc.aio.secure_channel(kit.member.address, credentials, options=options) as channel:
            try:
                await asyncio.wait_for(channel.channel_ready(), 2)
            except TimeoutError:
                return False
            return True

    async def serve_and_ask() -> str | None:
        server = grpc.aio.server()
        credentials = grpc.ssl_server_credentials([(kit.key, kit.certificate)], kit.authority, True)
        server.add_secure_port(kit.member.address, credentials)
        await server.start()
        try:
            assert await connects("bob")
            assert not await connects("carol")  # it is bob who answers
            return await asyncio.to_thread(asked, kits)
        finally:
            await server.stop(None)

    assert asyncio.run(serve_and_ask()) is None


def certificate(kits: Path, name: str, first_day: int, days: int) -> Path:
    """A server's kit with a certificate of the right authority for another time."""
    folder = kits.parent / "made"
    shutil.copytree(kits / "bob", folder)
    start = datetime.now(UTC) + timedelta(days=first_day)
    key, pem = Authority.load(kits / "authority").issue(name, "127.0.0.1", days, not_before=start)
    (folder / "key.pem").write_bytes(key)
    (folder / "certificate.pem").write_bytes(pem)
    return folder


def test_every_reason(kits: Path, serve: Callable[..., Peer], tmp_path: Path) -> None:
    assert asked(kits) == "refused: nobody listens there"
    ports = port(kits, "bob")

    def problem(folder: Path, **more: object) -> str | None:
        peer = serve(folder, ports, **more)
        try:
            return asked(kits)
        finally:
            peer._socket.shutdown(socket.SHUT_RDWR)
            peer._socket.close()
            peer._socket = socket.create_server(("127.0.0.1", 0))  # so that it can be stopped once more

    assert problem(kits / "carol") == "it has another peer's certificate, not that of 'bob'"
    assert problem(certificate(kits, "bob", -9, 5)) == "its certificate has expired"
    shutil.rmtree(tmp_path / "made")
    assert problem(certificate(kits, "bob", 2, 5)) == "its certificate is not valid yet; is a clock wrong?"
    write_kits(open_kit(kits / "alice").roster, tmp_path / "other")
    assert problem(tmp_path / "other" / "bob") == (
        "its certificate was signed by somebody else than this network's authority"
    )
    refuses = problem(kits / "bob", trusts=tmp_path / "other" / "bob" / "authority.pem")
    assert refuses is not None
    assert refuses.startswith("it refuses this kit")
    assert (
        problem(kits / "bob", says=b"")
        == "it closed the connection: it refuses this kit (by its clock?), or is no Gossamer peer"
    )
    revoke(kits, "bob")
    assert "certificate of 'bob' revoked since" in str(problem(kits / "bob"))


def test_a_peer_that_says_nothing(kits: Path, serve: Callable[..., Peer]) -> None:
    serve(kits / "bob", port(kits, "bob"), says=b"nothing")
    assert str(asked(kits, patience=0.3)).startswith("timed out: it accepted the connection")


def test_a_port_that_is_frozen_and_one_without_tls(kits: Path) -> None:
    with socket.create_server(("127.0.0.1", port(kits, "bob"))) as frozen:
        assert str(asked(kits, patience=0.3)).startswith("timed out")
        frozen.settimeout(5)

        def plain() -> None:
            for _ in range(2):  # the first is the one from above
                connection, _ = frozen.accept()
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                connection.close()

        thread = threading.Thread(target=plain)
        thread.start()
        said = str(asked(kits))
        thread.join()
        assert "is it a Gossamer peer?" in said or "not reachable" in said


def test_a_host_that_does_not_exist(kits: Path) -> None:
    kit = open_kit(kits / "alice")
    assert str(probe(kit, Member(name="bob", host="nowhere.invalid", port=7001), 2.0)).startswith("no such host")


def test_what_a_peer_says_of_itself(kits: Path, serve: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch) -> None:
    kit = open_kit(kits / "alice")
    right = Hello(check_module.version("gossamer"), kit.roster.digest, {})
    assert disagreement(kit, right) is None
    assert "runs version 9.9 of Gossamer" in str(disagreement(kit, right._replace(version="9.9")))
    assert "runs another experiment (abc" in str(disagreement(kit, right._replace(digest="abc")))
    serve(kits / "bob", port(kits, "bob"))
    monkeypatch.setattr(check_module, "ask", lambda kit, member: right._replace(digest="abc"))
    problems = {line.name: line.network_problem for line in check_network(kits)}
    assert str(problems["bob"]).startswith("runs another experiment")
    assert problems["carol"] == "refused: nobody listens there"

    def silent(kit: object, member: object) -> None:
        raise GossamerError("it does not answer")

    monkeypatch.setattr(check_module, "ask", silent)
    assert {line.name: line.network_problem for line in check_network(kits)}["bob"] == "it does not answer"


def test_kits_that_are_not_fit(kits: Path, tmp_path: Path) -> None:
    (kits / "bob" / "key.pem").chmod(0o644)
    shutil.rmtree(kits / "carol")
    write_kits(open_kit(kits / "alice").roster, tmp_path / "other")
    shutil.copytree(tmp_path / "other" / "carol", kits / "carol")
    lines = {line.name: line for line in check_network(kits)}
    assert list(lines) == list(NAMES)
    assert lines["alice"].kit_problem is None
    assert "chmod 600" in str(lines["bob"].kit_problem)
    assert "is of another network" in str(lines["carol"].kit_problem)
    with pytest.raises(KitError, match="chmod 600"):
        check_network(kits / "bob")
    (kits / "alice" / "crl.pem").unlink()
    shutil.rmtree(kits / "carol")
    assert [str(line.kit_problem)[:7] for line in check_network(kits)] == ["crl.pem", str(kits / "bob")[:7]]


def test_folders_without_kits(tmp_path: Path) -> None:
    with pytest.raises(KitError, match="there are no kits in it"):
        check_network(tmp_path)
    with pytest.raises(KitError, match="does not exist"):
        check_network(tmp_path / "nowhere")
