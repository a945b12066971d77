"""A peer whose disk was damaged while it did not run: told what, where and what to do, never with a traceback."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from attacker import experiment
from gossamer.errors import RunFolderError
from networks import make_kits, make_peers, run_together

PUT_BACK = "Put back a copy of this folder"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def flip(path: Path) -> None:
    found = bytearray(path.read_bytes())
    middle = len(found) // 2
    found[middle : middle + 8] = bytes(byte ^ 0xFF for byte in found[middle : middle + 8])
    path.write_bytes(found)


def first_line(path: Path) -> None:
    path.write_text("{" + path.read_text())


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A kit of each network, after two rounds."""
    found = {}
    networks = {"waits": ("dfedavg", "wait"), "goes on": ("dfedavg", "reweigh"), "pushes": ("sgp", "reweigh")}
    for name, (method, late) in networks.items():
        kits = make_kits(tmp_path_factory.mktemp(method), experiment(method, clients=3).but(rounds=2), late=late)
        run_together(make_peers(kits))
        found[name] = kits[0]
    return found


@pytest.mark.parametrize(
    ("which", "where", "damage", "says"),
    [
        ("waits", "trace.jsonl", first_line, "trace.jsonl: line 1 is damaged"),
        ("waits", "checkpoints/round-000002.safetensors", flip, "round-000002.safetensors: damaged"),
        ("waits", "checkpoints/round-000002.safetensors", cut, "round-000002.safetensors: damaged"),
        ("waits", "outbox/1.letter", cut, "1.letter: is cut short, and neighbours may wait for it"),
        ("pushes", "outbox/1.mass", cut, "1.mass: is cut short"),
    ],
)
def test_what_a_peer_cannot_do_without(
    which: str, where: str, damage: Callable[[Path], None], says: str, after: dict[str, Path], tmp_path: Path
) -> None:
    kit = tmp_path / after[which].name
    shutil.copytree(after[which], kit)
    damage(kit / "run" / where)
    with pytest.raises(RunFolderError, match=says) as refused:
        make_peers([kit])
    assert PUT_BACK in str(refused.value)


def test_what_it_can(after: dict[str, Path], tmp_path: Path) -> None:
    """A letter that others go on without is dropped; a trace that lost its end is no reason not to learn."""
    kit = tmp_path / after["goes on"].name
    shutil.copytree(after["goes on"], kit)
    cut(kit / "run/outbox/1.letter")
    lines = (kit / "run/trace.jsonl").read_text().splitlines(keepends=True)
    (kit / "run/trace.jsonl").write_text("".join(lines[:-1]))
    (peer,) = make_peers([kit])
    assert peer.progress.done == 2
    log = [json.loads(line) for line in (kit / "run/log.jsonl").read_text().splitlines()]
    assert [line["event"] for line in log[-2:]] == ["trace cut short", "lost letter"]
    assert not (kit / "run/outbox/1.letter").exists()
