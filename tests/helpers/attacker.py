"""An attacker with the kit of a peer, and honest peers that it is let loose on: real sockets, real TLS.

The honest peers wait for the attacker as for any other peer: a round is over only when they have also taken a good
letter of it. So each attack is followed by a round.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import grpc
import pytest

from gossamer import Experiment
from gossamer.peers.identity.certificates import server_name
from gossamer.peers.identity.kit import open_kit
from gossamer.peers.peer import Peer
from gossamer.peers.store.letters import DamagedFile, Letter
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.peers.wire.links import SERVICE
from networks import make_peers

#: Whoever waits longer than this waits in vain, however slow the machine.
SECONDS = 120
#: As few as can be: two honest peers, so that each has another one to believe, and the attacker.
CLIENTS = 3
CALL = f"/{SERVICE}"

Found = TypeVar("Found")


def experiment(method: str, **changed: Any) -> Experiment:
    """More rounds than will ever be done, each of them a matter of milliseconds."""
    return Experiment(**{
        "method": method, "clients": CLIENTS, "rounds": 10_000, "model": "softmax", "graph": "full", "local_steps": 1,
        "batch_size": 4, "dataset": {"name": "digits", "train_samples": 40},
        "evaluate": {"every": 0, "clients": 0, "training": 0}, **changed,
    })  # fmt: skip


def until(found: Callable[[], Found]) -> Found:
    """Wait for something; gives it."""
    ends = time.monotonic() + SECONDS
    while not (what := found()):
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.005)
    return what


def pieces(header: wire.Header, body: bytes = b"", *more: bytes) -> list[wire.Piece]:
    """A letter as it travels."""
    return [wire.Piece(header=header), *(wire.Piece(chunk=chunk) for chunk in (body, *more))]


class Attacker:
    """Whoever has the kit of a peer: calls the others, and answers their calls as it likes."""

    def __init__(self, kit: Path) -> None:
        self.kit = open_kit(kit)
        self.number = self.kit.number
        self.process = wire.Process(number=1, token=7)
        self.answer: Callable[[], bytes] = lambda: wire.Receipt(verdict=wire.ACCEPTED).SerializeToString()
        self.channels: dict[int, grpc.Channel] = {}
        self._server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        self.hello = wire.Hello(version="0", network=self.kit.roster.digest, round=1 << 60)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {
            "Greet": grpc.unary_unary_rpc_method_handler(lambda request, context: self.hello.SerializeToString()),
            "Deliver": grpc.stream_unary_rpc_method_handler(self._deliver),
        }),))  # fmt: skip
        own = grpc.ssl_server_credentials([(self.kit.key, self.kit.certificate)], self.kit.authority, True)
        self._server.add_secure_port(self.kit.member.address, own)
        self._server.start()

    def _deliver(self, pieces: Iterable[bytes], context: Any) -> bytes:
        for _ in pieces:
            pass
        return self.answer()

    def channel(self, victim: int) -> grpc.Channel:
        if victim not in self.channels:
            member = self.kit.roster.members[victim]
            own = grpc.ssl_channel_credentials(self.kit.authority, self.kit.key, self.kit.certificate)
            options = [
                ("grpc.ssl_target_name_override", server_name(member.name)),
                ("grpc.max_send_message_length", -1),
            ]
            self.channels[victim] = grpc.secure_channel(member.address, own, options)
        return self.channels[victim]

    def deliver(self, victim: int, pieces: Iterable[bytes | wire.Piece], **about: Any) -> wire.Receipt:
        raw = (each if isinstance(each, bytes) else each.SerializeToString() for each in pieces)
        call = self.channel(victim).stream_unary(f"{CALL}/Deliver")
        return wire.Receipt.FromString(call(raw, timeout=SECONDS, **about))

    def report(self, victim: int) -> dict[str, Any]:
        answer = self.channel(victim).unary_unary(f"{CALL}/Report")(b"", timeout=SECONDS)
        return json.loads(wire.Status.FromString(answer).json)  # type: ignore[no-any-return]

    def told(self, pair: tuple[bytes, bytes] | None) -> grpc.StatusCode:
        """What the first peer tells a caller with this key and certificate."""
        member = self.kit.roster.members[0]
        own = grpc.ssl_channel_credentials(self.kit.authority, *(pair or ()))
        options = [("grpc.ssl_target_name_override", server_name(member.name)), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.secure_channel(member.address, own, options) as channel, pytest.raises(grpc.RpcError) as refusal:
            channel.unary_unary(f"{CALL}/Report")(b"", timeout=SECONDS)
        return refusal.value.code()

    def close(self) -> None:
        for channel in self.channels.values():
            channel.close()
        self._server.stop(0).wait()


class Live:
    """Honest peers that run in a thread, and the attacker beside them, who has the last kit.

    `here` says which of the honest ones run in this process; the others are processes of their own, or missing.
    """

    def __init__(self, kits: list[Path], here: Iterable[int] | None = None) -> None:
        self.kits = kits
        self.evil = len(kits) - 1
        self.honest = range(self.evil)
        self.folders = [kits[number] / "run" for number in self.honest]
        self.attacker = Attacker(kits[self.evil])
        self.peers = {number: make_peers([kits[number]])[0] for number in (self.honest if here is None else here)}
        self.tasks: list[asyncio.Task[None]] = []
        self.faults: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> "Live":
        # hypothesis seeds the global streams of this process before each example: no peer drew from them.
        self._patch.setattr("gossamer.training.watch.drawn_since", lambda before: [])
        self._thread.start()
        try:
            self.until(lambda: self.tasks and all(map(self._has_started, self.peers.values())))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is None:
            assert not self.faults, self.faults

    async def _run(self) -> None:
        self._loop.set_exception_handler(self._note)
        self.tasks = [asyncio.create_task(peer.run()) for peer in self.peers.values()]
        for ended in await asyncio.gather(*self.tasks, return_exceptions=True):
            if not isinstance(ended, asyncio.CancelledError):
                self.faults.append(f"a peer ended: {ended!r}")
        await self._loop.shutdown_default_executor()

    def _note(self, loop: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
        # The library hands all that happens to whichever loop runs, also what is left over from an earlier test's.
        if str(about.get("exception")) != "Event loop is closed":
            self.faults.append(str(about))

    def close(self) -> None:
        for task in self.tasks:
            self._loop.call_soon_threadsafe(task.cancel)
        self._thread.join()
        self._patch.undo()
        self._loop.close()
        self.attacker.close()

    def until(self, found: Callable[[], Found]) -> Found:
        """Wait for something that comes to pass only if all is well with the honest peers."""

        def look() -> Found:
            assert not self.faults, self.faults
            assert not (ended := [task for task in self.tasks if task.done()]), ended
            return found()

        return until(look)

    def ask(self, question: Callable[[], Found]) -> Found:
        """Ask a peer of this process something, in its own thread."""

        async def answer() -> Found:
            return question()

        return asyncio.run_coroutine_threadsafe(answer(), self._loop).result(SECONDS)

    def status(self, victim: int) -> dict[str, Any]:
        """How an honest peer is doing."""
        peer = self.peers.get(victim)
        return self.attacker.report(victim) if peer is None else self.ask(peer.status)

    def _has_started(self, peer: Peer) -> bool:
        return self.ask(peer.status)["doing"] != "starting"  # type: ignore[no-any-return]

    def wait(self, seconds: float) -> None:
        """Let time pass for the honest peers: what they had to do by then is done."""
        asyncio.run_coroutine_threadsafe(asyncio.sleep(seconds), self._loop).result(SECONDS)

    def run(self, peer: Peer) -> None:
        """One more peer, to its end."""
        asyncio.run_coroutine_threadsafe(peer.run(), self._loop).result(SECONDS)

    @contextmanager
    def beside(self, peer: Peer) -> Iterator[None]:
        """One more peer, for a while."""
        task = self.ask(lambda: asyncio.create_task(peer.run()))
        try:
            self.until(lambda: task.done() or self._has_started(peer))
            yield
        finally:
            self._loop.call_soon_threadsafe(task.cancel)
            until(task.done)
        if not task.cancelled():
            task.result()

    def at(self, victim: int) -> int:
        """The round that an honest peer is at."""
        return self.status(victim)["round"]  # type: ignore[no-any-return]

    def good(self, victim: int = 0, kind: str = "letter") -> tuple[wire.Header, bytes]:
        """A letter for the step that a peer is at: what it sends itself, in the attacker's name."""

        def look() -> Letter | None:
            step = self.at(victim)
            name = f"{step}.letter" if kind == "letter" else f"{self.evil}.mass"
            try:
                letter = Letter(self.folders[victim] / "outbox" / name)
            except DamagedFile:  # not written yet, or gone: the peer has gone on meanwhile
                return None
            return letter if letter.header.step == step else None

        letter = self.until(look)
        assert letter is not None
        header = wire.Header.FromString(letter.header.SerializeToString())
        header.process.CopyFrom(self.attacker.process)
        return header, b"".join(letter.chunks())

    def help(self, victim: int) -> None:
        """Give a peer a good letter of the attacker."""
        receipt = self.attacker.deliver(victim, pieces(*self.good(victim)))
        # It may have had one before, and have gone on meanwhile.
        assert receipt.verdict in (wire.ACCEPTED, wire.DOUBLED, wire.PAST), receipt

    def round(self) -> None:
        """A round of all honest peers, with a good letter of the attacker for each."""
        before = [self.at(victim) for victim in self.honest]
        for victim in self.honest:
            self.help(victim)
        self.until(lambda: all(self.at(victim) > round for victim, round in enumerate(before)))

    def settle(self) -> None:
        """Bring all honest peers to the same step, where they rest: waiting for the attacker, with nothing of it."""
        while True:
            at = [self.at(victim) for victim in self.honest]
            if len(set(at)) == 1 and not any(map(self.inbox, self.honest)):
                break
            behind = [victim for victim in self.honest if at[victim] == min(at)]
            for victim in behind:
                if f"{self.evil}at{at[victim]}.letter" not in self.inbox(victim):
                    self.help(victim)
            self.until(lambda behind=behind, at=at: all(self.at(victim) > at[victim] for victim in behind))
        self.until(lambda: all(map(self._rests, self.honest)))

    def _rests(self, victim: int) -> bool:
        status = self.status(victim)
        return status["doing"] == "waiting" and not any(each["waiting"] for each in status["neighbours"].values())

    def refused(self, victim: int = 0) -> dict[str, int]:
        return self.attacker.report(victim)["refused"]  # type: ignore[no-any-return]

    def inbox(self, victim: int = 0) -> list[str]:
        """Files of the attacker, whole or half written."""
        inside = [path.name for path in (self.folders[victim] / "inbox").iterdir()]
        return sorted(name for name in inside if name.startswith((f"{self.evil}at", f".{self.evil}at")))
