"""C++ that is compiled on this machine, for its processor, into libraries that are kept and found again."""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from gossamer.system.cache import kept_library

COMPILER = "g++"
#: Without `errno` and traps, which nothing here looks at, functions of vectors can be used. NaN stays NaN.
FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
#: Seconds that compiling may take: it takes one to five.
TIMEOUT = 60
#: The names of torch's types in C++.
REAL = {torch.float32: "float", torch.float64: "double"}


class CannotCompile(ValueError):
    """There is no library; the message says why."""


def check_compiler() -> None:
    """Refuse to go on where there is no compiler."""
    if shutil.which(COMPILER) is None:
        raise CannotCompile(f"there is no {COMPILER}")


def cpp_library(code: str, real: torch.dtype | None = None, headers: Sequence[Path] = ()) -> Path:
    """The library of some C++, in which REAL is this type of numbers; headers come first. Raises `CannotCompile`."""
    defined = [f"#define REAL {REAL[real]}"] if real else []
    source = "\n".join([*defined, *(header.read_text("utf-8") for header in headers), code])
    return kept_library(lambda path: _compile(source, path), "C++", source, COMPILER, FLAGS)


def _compile(source: str, into: Path) -> None:
    check_compiler()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "library.cpp"
        file.write_text(source, encoding="utf-8")
        try:
            command = [COMPILER, *FLAGS, str(file), "-o", str(into), "-lm"]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            raise CannotCompile(f"{COMPILER} takes over {TIMEOUT} s") from None
        except subprocess.CalledProcessError as error:
            lines = [line for line in error.stderr.splitlines() if "error" in line]
            raise CannotCompile(f"{COMPILER} fails: {lines[0] if lines else error.returncode}") from None
