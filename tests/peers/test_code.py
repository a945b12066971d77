"""Peers whose code of the user's own parts differs do not train together, and name the part."""

import asyncio
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attacker import experiment, until
from forked import Forked
from gossamer import Experiment
from gossamer.errors import ExperimentError
from gossamer.peers import peer as peer_module
from gossamer.peers.identity.code import code_digests, different_parts
from gossamer.peers.identity.kit import open_kit
from gossamer.peers.progress import VERSION
from gossamer.peers.tools.check import Hello, disagreement
from networks import SECONDS, make_kits, make_peers

METHOD = """
import torch
from gossamer.methods import DFedAvg
import {helper}

class Mine(DFedAvg):
    family = "averaging"

    def step(self, state, local, gradient, round):
        return {{"y": local["y"] - {helper}.scale({factor}) * round.lr * gradient(local["y"])}}
"""


def write(folder: Path, module: str, factor: float = 1.0, scale: str = "factor") -> None:
    folder.mkdir(exist_ok=True)
    helper = f"{module}_helper"
    (folder / f"{module}.py").write_text(METHOD.format(helper=helper, factor=factor))
    (folder / f"{helper}.py").write_text(f"fails = []\ndef scale(factor):\n    return {scale}\n")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's, with a helper of its own."""
    name = f"lab_{tmp_path.name}".replace("-", "_")
    write(tmp_path / "alice", name)
    monkeypatch.chdir(tmp_path / "alice")
    monkeypatch.syspath_prepend(str(tmp_path / "alice"))
    yield name
    for module in (name, f"{name}_helper"):
        sys.modules.pop(module, None)


def described(lab: str) -> Experiment:
    return experiment(f"{lab}:Mine", clients=2).but(rounds=3)


def test_the_digest_covers_the_module_and_what_it_imports_of_the_users(lab: str, tmp_path: Path) -> None:
    ours = described(lab)
    first = code_digests(ours)
    assert list(first) == [f"method {lab}:Mine"]
    assert code_digests(ours) == first
    write(tmp_path / "alice", lab, factor=2.0)
    second = code_digests(ours)
    write(tmp_path / "alice", lab, factor=2.0, scale="2 * factor")
    third = code_digests(ours)
    assert len({str(each) for each in (first, second, third)}) == 3
    assert different_parts(first, third) == list(first)
    assert not code_digests(experiment("dfedavg"))  # built-in parts are those of the version


def test_an_installed_package_of_the_users_is_covered_and_those_of_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the folder is in which packages are: of a virtual environment, of the user, of the system."""
    place, (ours, theirs) = tmp_path / "dist-packages", (f"ours_{tmp_path.name}", f"theirs_{tmp_path.name}")
    for package in (ours, theirs):
        (place / package.replace("-", "_")).mkdir(parents=True)
    ours, theirs = ours.replace("-", "_"), theirs.replace("-", "_")
    (place / theirs / "__init__.py").write_text("def scale():\n    return 1.0\n")
    (place / ours / "__init__.py").write_text(
        f"import {theirs}\nfrom {ours}.help import scale\nfrom gossamer.methods import DFedAvg\n"
        "class Mine(DFedAvg):\n    pass\n"
    )
    (place / ours / "help.py").write_text("def scale():\n    return 1.0\n")
    monkeypatch.syspath_prepend(str(place))
    described = experiment(f"{ours}:Mine", clients=2)
    first = code_digests(described)
    (place / theirs / "__init__.py").write_text("def scale():\n    return 2.0\n")
    assert code_digests(described) == first
    (place / ours / "help.py").write_text("def scale():\n    return 2.0\n")
    assert code_digests(described) != first
    for module in [name for name in sys.modules if name.startswith((ours, theirs))]:
        del sys.modules[module]


WAYS_TO_IMPORT = {
    "a constant": ("from {0}.rates import RATE", "rates.py"),
    "in a function": ("def later():\n    import {0}.rates", "rates.py"),
    "relative, of a package": ("from .inner import rates", "inner/rates.py"),
    "a package's own file": ("from .inner import rates", "inner/__init__.py"),
    "the package that the part is in": ("", "__init__.py"),
    "a package without a file": ("import {0}_bare.rates", "../{0}_bare/rates.py"),
    "all names": ("from {0}.rates import *", "rates.py"),
}


@pytest.mark.parametrize("way", WAYS_TO_IMPORT)
def test_whatever_is_imported_is_covered(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what leaves no trace in the part's module, such as a number, and what is imported only when it is needed."""
    name = "lab" + hashlib.sha256(str(tmp_path).encode()).hexdigest()[:8]
    statement, changed = (text.format(name) for text in WAYS_TO_IMPORT[way])
    package = tmp_path / name
    for file in ("__init__.py", "inner/__init__.py", "inner/rates.py", "rates.py", f"../{name}_bare/rates.py"):
        (package / file).parent.mkdir(parents=True, exist_ok=True)
        (package / file).write_text("RATE = 1.0\n")
    (package / "part.py").write_text(
        "from gossamer.methods import DFedAvg\nimport torch.nn.functional\n"
        "try:\n    import nowhere.to_be_found\nexcept ImportError:\n    pass\n"
        f"{statement}\nclass Mine(DFedAvg):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    described = experiment(f"{name}.part:Mine", clients=2)
    first = code_digests(described)
    assert code_digests(described) == first
    (package / changed).write_text("RATE = 2.0\n")
    assert code_digests(described) != first
    for module in [each for each in sys.modules if each.startswith(name)]:
        del sys.modules[module]


def test_a_module_that_cannot_be_read_as_python_is_covered_too(lab: str, tmp_path: Path) -> None:
    """It is imported when it is needed, and fails then."""
    (tmp_path / "alice" / f"{lab}.py").open("a").write(f"\ndef later():\n    import {lab}_broken\n")
    first = code_digests(described(lab))
    (tmp_path / "alice" / f"{lab}_broken.py").write_text("def (:")
    assert code_digests(described(lab)) != first


def test_peers_with_different_code_end_with_the_name_of_the_part(lab: str, tmp_path: Path) -> None:
    kits = make_kits(tmp_path, described(lab))
    write(tmp_path / "bob", lab, scale="3 * factor")
    alice = Forked(["peer", str(kits[0]), "-q"], tmp_path / "alice", {"OMP_NUM_THREADS": "1"})
    log = kits[0] / "run/log.jsonl"
    try:
        until(lambda: log.exists() and "not there yet" in log.read_text())
        bob = Forked(["peer", str(kits[1]), "-q"], tmp_path / "bob", {"OMP_NUM_THREADS": "1"})
        code, _, said = bob.end(SECONDS)
        assert code == 2, said
        assert f"p1: p0 runs other code of 'method {lab}:Mine'" in " ".join(said.split())
        until(lambda: "other code" in log.read_text())  # and alice, who is left alone, says why
        assert not (kits[0] / "run/metrics.jsonl").exists()
    finally:
        alice.kill()


def test_a_run_that_goes_on_with_other_code_or_another_version_says_so(
    lab: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kits = make_kits(tmp_path, described(lab))
    log = kits[0] / "run/log.jsonl"

    def started() -> str:
        (peer,) = make_peers(kits[:1])
        peer._lock.release()
        return log.read_text() if log.exists() else ""

    assert "changed" not in started() + started()
    write(tmp_path / "alice", lab, factor=2.0)
    assert f"this run was begun with other code of 'method {lab}:Mine'" in started()
    monkeypatch.setattr(peer_module, "VERSION", "9.9")
    assert f"this run was begun with version {VERSION} of Gossamer, now 9.9" in started()


def test_check_names_the_part_too(lab: str, tmp_path: Path) -> None:
    kit = open_kit(make_kits(tmp_path, described(lab))[0])
    hello = Hello(VERSION, kit.roster.digest, {f"method {lab}:Mine": "0" * 16})
    assert disagreement(kit, hello) == f"runs other code of method {lab}:Mine than is installed here"
    assert disagreement(kit, hello._replace(code=code_digests(kit.roster.experiment))) is None


def test_a_method_that_fails_ends_its_peer_with_the_line(lab: str, tmp_path: Path) -> None:
    write(tmp_path / "alice", lab, scale='{}["missing"]')
    kits = make_kits(tmp_path, described(lab))
    with pytest.raises(ExperimentError, match=rf"KeyError: 'missing' \(.*{lab}_helper\.py, line 3"):
        asyncio.run(asyncio.wait_for(make_peers(kits[:1])[0].run(), SECONDS))


def test_a_method_that_fails_later_ends_its_peer_with_the_line(lab: str, tmp_path: Path) -> None:
    write(tmp_path / "alice", lab, scale='{}["missing"] if fails else factor')
    (peer,) = make_peers(make_kits(tmp_path, described(lab))[:1])
    sys.modules[f"{lab}_helper"].fails.append(True)
    with pytest.raises(ExperimentError, match=rf"p0, round 1: KeyError: 'missing' \(.*{lab}_helper\.py, line 3"):
        asyncio.run(asyncio.wait_for(peer.run(), SECONDS))
