"""Peers that cannot start, and peers that are not let in: they end with the reason, never with a traceback."""

import shutil
import socket
import sys
from pathlib import Path

import grpc
import numpy as np
import pytest

from attacker import Live, experiment
from gossamer.commands.app import app
from gossamer.errors import GossamerError
from gossamer.peers.identity.kit import open_kit, revoke
from gossamer.peers.tools import process
from networks import make_kits, make_peers


def told_no(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    monkeypatch.setattr(sys, "argv", ["gossamer", "peer", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit:
        app()
    said = capsys.readouterr().err
    assert exit.value.code == 2
    assert "Traceback" not in said
    return " ".join(said.split())


@pytest.fixture
def kits(tmp_path: Path) -> list[Path]:
    return make_kits(tmp_path, experiment("dfedavg", clients=4))


def test_a_peer_that_cannot_start(
    kits: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    np.savez(tmp_path / "wide.npz", x=np.zeros((10, 65), "float32"), y=np.zeros(10, "int64"))
    assert "65" in told_no(monkeypatch, capsys, kits[0], "--data", tmp_path / "wide.npz")
    assert "--data names nothing" in told_no(monkeypatch, capsys, kits[0], "--data", "")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", open_kit(kits[0]).member.port))
        taken.listen()
        said = told_no(monkeypatch, capsys, kits[0])
        assert "cannot listen" in said
        assert "another program on that port" in said
    (kits[1] / "key.pem").chmod(0o644)
    assert "others can read this private key" in told_no(monkeypatch, capsys, kits[1])
    (kits[1] / "key.pem").unlink()
    assert "key.pem missing" in told_no(monkeypatch, capsys, kits[1])
    revoke(kits[0].parent, "p2")
    assert "revoked" in told_no(monkeypatch, capsys, kits[2])


def test_revoked_and_of_another_experiment(kits: list[Path], tmp_path: Path) -> None:
    """Peers that have the list refuse who is on it; a peer that all others disagree with ends with the reason."""
    odd = tmp_path / "odd"
    shutil.copytree(kits[2], odd)
    network = (odd / "network.toml").read_text()
    (odd / "network.toml").write_text(network.replace("rounds = 10000", "rounds = 9999"))
    evil = kits[-1]
    stolen = (evil / "key.pem").read_bytes(), (evil / "certificate.pem").read_bytes()
    shutil.copytree(evil, tmp_path / "before")
    revoke(kits[0].parent, evil.name)
    shutil.copytree(tmp_path / "before", evil, dirs_exist_ok=True)  # the attacker's own list is as short as it likes
    with Live(kits, here=[0, 1]) as live:
        live.until(lambda: all(live.status(number)["doing"] == "waiting" for number in live.peers))
        assert live.attacker.told(stolen) == grpc.StatusCode.PERMISSION_DENIED
        assert live.status(0)["refused"]["revoked certificate"] == 1
        with pytest.raises(GossamerError, match="another network file"):
            live.run(make_peers([odd])[0])
        assert not any(task.done() for task in live.tasks)


def test_a_signal_before_the_first_round_is_answered(
    kits: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While samples are read, SIGTERM and Ctrl-C are the same: see `startup.interrupt_on_sigterm`."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(process, "peer_training", interrupted)
    monkeypatch.setattr("os._exit", leave)
    monkeypatch.setattr(sys, "argv", ["gossamer", "peer", str(kits[0])])
    with pytest.raises(SystemExit) as ended:
        app()
    assert ended.value.code == 130
    said = " ".join(capsys.readouterr().err.split())
    assert "stopped before it had started. Start again with: gossamer peer" in said
    assert not (kits[0] / "run").exists()
