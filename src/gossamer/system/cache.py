"""Compiled steps and measured plans, kept on this machine for later runs.

The name of a file is a digest of all that its content depends on: Gossamer's code, torch, the processor, the number of
threads, and what the caller adds. When any of it changes, the file is not found, and is made again.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from platformdirs import user_cache_path

from gossamer.system.machine import processor_and_features


def cache_file(folder: str, *depends_on: Any) -> Path:
    """The file, without a suffix, for something that depends on the text of these values, and on the machine."""
    machine = [GOSSAMER_CODE, torch.__version__, processor_and_features(), torch.get_num_threads()]
    return Path(user_cache_path("gossamer") / folder / digest(repr([*machine, *depends_on]).encode()))


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that other processes may read or write at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as aside:
        aside.write(content)
    os.replace(aside.name, path)


def kept_library(build: Callable[[Path], None], *depends_on: Any) -> Path:
    """The shared library that `build` writes to a path; one that was built earlier on this machine is used again."""
    base = cache_file("steps", *depends_on)
    try:
        base.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(base.with_suffix(".lock")):  # other workers need the same library at the same time
            for path in base.parent.glob(f"{base.name}-*.so"):
                if path.stem == f"{base.name}-{digest(path.read_bytes())}":
                    return path
                path.unlink()  # damaged: loading it would end the process
            return _built(build, base)
    except OSError:  # a folder that cannot be written to, say
        return _built(build, Path(tempfile.mkdtemp()) / base.name)


def _built(build: Callable[[Path], None], base: Path) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        aside = Path(folder) / "library.so"
        build(aside)
        content = aside.read_bytes()
    path = base.with_name(f"{base.name}-{digest(content)}.so")
    write_atomically(path, content)
    return path


def digest(content: bytes) -> str:
    """A short name for some bytes."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _gossamer_code() -> str:
    """A digest of Gossamer's own files: a development version changes without its number."""
    folder, found = Path(__file__).parents[1], hashlib.blake2b(digest_size=16)
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".h")):
        found.update(f"{path.relative_to(folder)} {path.stat().st_size} ".encode() + path.read_bytes())
    return found.hexdigest()


#: As it was when this process imported it.
GOSSAMER_CODE = _gossamer_code()
