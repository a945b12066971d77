"""Neighbours that answer with nonsense or with lies, and two processes that both claim to be one peer."""

import json
import shutil
import threading
from pathlib import Path

import pytest

from attacker import SECONDS, Live
from bad_letters import PICKLED
from gossamer.peers import neighbours
from gossamer.peers.identity.kit import open_kit
from gossamer.peers.store.journal import TwoProcesses
from gossamer.peers.wire import links
from gossamer.peers.wire import wire_pb2 as wire
from networks import free_ports, make_peers


@pytest.fixture(autouse=True)
def hurry(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers make up their minds sooner, and the attacker is honest again in the end."""
    monkeypatch.setattr(neighbours, "DOUBT", 0.1)
    monkeypatch.setattr(links, "LAST_RETRY", 0.1)
    monkeypatch.setattr(live.attacker, "answer", live.attacker.answer)


def told_off(live: Live, reason: str) -> bool:
    """Whether each honest peer has been told that it was refused for this reason."""
    logs = [[json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()] for folder in live.folders]
    return all(any(line.get("reason") == reason for line in log) for log in logs)


def owes(live: Live, victim: int) -> bool:
    """Whether an honest peer has letters for the attacker that are not acknowledged."""
    return live.status(victim)["neighbours"][live.attacker.kit.name]["waiting"] > 0  # type: ignore[no-any-return]


def test_answers_that_make_no_sense(live: Live) -> None:
    """A neighbour that answers letters with nonsense, or with lies, loses its own letters and nobody else's."""
    honest = live.attacker.answer
    lie = "another network"
    answers = [
        b"\xff" * 50, b"", bytes(3_000_000), PICKLED,
        wire.Receipt(verdict=77, round=-(1 << 63), through=(1 << 63) - 1).SerializeToString(),  # type: ignore[arg-type]
        wire.Receipt(verdict=wire.REFUSED, reason="another process" + "!" * 100_000).SerializeToString(),
        wire.Receipt(verdict=wire.REFUSED, reason=lie).SerializeToString(),
    ]  # fmt: skip
    for answer in answers:
        asked = threading.Event()

        def say(answer: bytes = answer, asked: threading.Event = asked) -> bytes:
            asked.set()
            return answer

        live.attacker.answer = say
        live.round()
        assert asked.wait(SECONDS)
        if answer is not answers[-1]:  # who waits does not go far without an answer
            live.attacker.answer = honest
            live.until(lambda: not any(owes(live, victim) for victim in live.honest))
    live.until(lambda: told_off(live, lie))
    live.wait(2 * neighbours.DOUBT)  # now they would have given up
    live.attacker.answer = honest
    live.round()
    assert max(map(len, (live.folders[0] / "log.jsonl").read_text().splitlines())) < 2000


def test_a_kit_that_is_in_use(live: Live) -> None:
    with pytest.raises(TwoProcesses, match="another process runs this peer"):
        make_peers([live.kits[0]])
    live.round()


def test_a_copied_kit(live: Live, tmp_path: Path) -> None:
    """Its neighbours go on with the first process; the copy, whose folder has sent nothing, ends with the reason."""
    shutil.copytree(live.kits[1], tmp_path / "copy", ignore=shutil.ignore_patterns("run"))
    network = tmp_path / "copy" / "network.toml"
    (port,) = free_ports(1)
    network.write_text(network.read_text().replace(str(open_kit(live.kits[1]).member.port), str(port)))
    live.attacker.hello.heard = 1 << 40
    with pytest.raises(TwoProcesses, match="one kit is for one process"):
        live.run(make_peers([tmp_path / "copy"])[0])
    live.attacker.hello.ClearField("heard")
    live.round()
