"""A peer in a process of its own, whose memory is watched while all that is bad comes at once."""

import resource
import signal
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest

from attacker import SECONDS, Live, experiment
from bad_letters import BAD_LETTERS
from gossamer.peers.wire import wire_pb2 as wire
from networks import Process, make_kits

#: Idle connections; a third of the files that we may open if that is less.
IDLE = 1000


def memory(process: Process, what: str) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(what)))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_memory_stays_small(tmp_path: Path) -> None:
    """All of it, and a thousand idle connections: half as much memory again at most, no traceback, rounds go on."""
    kits = make_kits(tmp_path, experiment("dfedavg"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else 1 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), hard))  # ours; the other process sees to its own
    victim = Process(kits[0])
    try:
        few = min(most, 1024)
        resource.prlimit(victim.pid, resource.RLIMIT_NOFILE, (few, few))  # as small machines have it
        with Live(kits, here=[1]) as live, ExitStack() as connections:
            live.until(lambda: (kits[0] / "run" / "outbox" / "0.letter").exists() or not victim.runs())
            live.round()
            usual = memory(victim, "VmRSS")
            address = (live.attacker.kit.roster.members[0].host, live.attacker.kit.roster.members[0].port)
            for _ in range(min(IDLE, most // 3)):
                connections.enter_context(socket.create_connection(address, SECONDS))
            live.round()
            for name, (bad, _) in BAD_LETTERS.items():
                if name != "another process":
                    with suppress(grpc.RpcError):
                        live.attacker.deliver(0, bad(*live.good()))
            bomb = [wire.Piece(chunk=bytes(100_000_000))]  # would be there twice, as it came and as bytes of Python's
            live.attacker.deliver(0, bomb, compression=grpc.Compression.Gzip)
            live.round()
            assert memory(victim, "VmHWM") < 1.5 * usual
            refused = live.refused()
            assert {"truncated", "wrong digest", "not finite", "unreadable"} <= refused.keys()
            assert "fault" not in refused
            assert live.inbox() == []
        victim.send(signal.SIGTERM)
        code, said = victim.ended()
    finally:
        victim.kill()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert code == 130
    assert "Traceback" not in said
