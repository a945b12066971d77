"""The wheel, installed into an empty environment, works outside the repository, with a user's own method."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIP = ["-m", "pip", "--disable-pip-version-check", "--quiet"]
OWN = """
class Halved:
    sends = {"x": "average"}

    def init(self, x0):
        return {"x": x0}

    def begin(self, state, round):
        return {"x": state["x"]}

    def step(self, state, local, gradient, round):
        return {"x": local["x"] - 0.5 * round.lr * gradient(local["x"])}

    def finish(self, state, local, round):
        return state, {"x": local["x"]}

    def receive(self, state, mixed, round):
        return mixed

    def model(self, state):
        return state["x"]
"""


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH" and not key.startswith("COVERAGE")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel; of this environment it sees the dependencies, not the editable package."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a copy, so that the build leaves nothing in the repository
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, *PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source, cwd=folder)
    (wheel,) = folder.glob("gossamer-*.whl")
    venv.create(folder / "env", symlinks=True)
    scheme = sysconfig.get_paths("venv", {"base": str(folder / "env"), "platbase": str(folder / "env")})
    run(sys.executable, *PIP, "--python", folder / "env/bin/python", "install", "--no-deps", wheel, cwd=folder)
    # A plain line adds a folder, without reading the .pth files in it: one of those is the editable install.
    Path(scheme["purelib"], "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "env"


def test_a_run_with_an_own_method_outside_the_repository(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "mylab.py").write_text(OWN)
    (tmp_path / "tiny.toml").write_text(
        'method = "mylab:Halved"\nclients = 4\nrounds = 2\nlocal_steps = 2\nmodel = "softmax"\n'
        'dataset = {name = "digits", train_samples = 200}\n'
    )
    run(installed / "bin/gossamer", "run", "tiny.toml", "--out", "r", "--quiet", cwd=tmp_path)
    lines = (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["round"] == 2
    assert tomllib.loads((tmp_path / "r" / "experiment.toml").read_text())["method"] == "mylab:Halved"


def test_the_package_is_the_wheel_s_and_whole(installed: Path, tmp_path: Path) -> None:
    asked = "import gossamer, gossamer.peers.wire.wire_pb2; print(gossamer.__file__)"
    package = Path(run(installed / "bin/python", "-c", asked, cwd=tmp_path).stdout.strip()).parent
    assert package.is_relative_to(installed)
    files = {path.relative_to(ROOT / "src/gossamer") for path in (ROOT / "src/gossamer").rglob("*.*")}
    assert [name for name in files if "__pycache__" not in name.parts and not (package / name).exists()] == []
