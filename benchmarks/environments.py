"""Environments of their own for what Gossamer is measured against: made on demand, and never in the project's own one.

    python -m benchmarks.environments             what there is
    python -m benchmarks.environments jax fluke   makes them (JAX takes half a minute, Flower some minutes)

Each is a virtual environment in `.environments/` that sees the packages of the running one beneath its own. So torch is
not installed again, a package that asks for another version of something gets it there alone, and nothing changes here.
"""

import argparse
import os
import shutil
import site
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".environments"
#: What is installed, by the contender that needs it. The versions are those that the contenders were written for.
PACKAGES = {
    "jax": "jax==0.10.2",
    "flower": "flwr[simulation]==1.41.0",
    "gossipy": "gossipy-dfl==0.0.1",
    "fluke": "fluke-fl==0.8.1",
    "pfl": "pfl[pytorch]==0.6.0",
}


class CannotMake(Exception):
    """An environment could not be made; the message says why."""


def python_of(name: str) -> Path | None:
    """The interpreter of an environment, if it is there with the packages that are asked for today."""
    try:
        ready = (FOLDER / name / "ready").read_text(encoding="utf-8") == PACKAGES[name]
    except OSError:
        return None
    return FOLDER / name / "bin" / "python" if ready else None


def make(name: str) -> Path:
    """Make an environment, or find it made; gives its interpreter."""
    if found := python_of(name):
        return found
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    try:
        venv.create(folder, with_pip=True)
        _show_packages_beneath(folder)
        _run_pip(folder / "bin" / "python", PACKAGES[name])
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotMake(f"no environment for {name}: {error}") from error
    (folder / "ready").write_text(PACKAGES[name], encoding="utf-8")
    return folder / "bin" / "python"


def _show_packages_beneath(folder: Path) -> None:
    """Let an environment import what the running one can, after its own packages."""
    beneath = "; ".join(f"site.addsitedir({path!r})" for path in site.getsitepackages())
    own = next((folder / "lib").glob("python*/site-packages"))
    (own / "zz_beneath.pth").write_text(f"import site; {beneath}\n", encoding="utf-8")


def _run_pip(python: Path, package: str) -> None:
    """Install a package; torch stays what it is."""
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
    done = subprocess.run([*command, package], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": ""})
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise CannotMake(f"no environment for {python.parts[-3]}: {' '.join(errors) or done.stderr[-500:]}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Make some, or tell which there are."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.environments", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which to make: {', '.join(PACKAGES)}")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.names if name not in PACKAGES]:
        parser.error(f"there is no {unknown[0]}, but {', '.join(PACKAGES)}")
    for name in given.names:
        print(f"making {name} ({PACKAGES[name]}) in {FOLDER / name}", file=sys.stderr)
        try:
            make(name)
        except CannotMake as error:
            parser.exit(2, f"{error}\n")
    for name, package in PACKAGES.items():
        print(f"{name:8} {package:26} {'there' if python_of(name) else 'not made'}")


if __name__ == "__main__":
    main()
