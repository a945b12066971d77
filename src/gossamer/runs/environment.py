"""What computes a run: versions of the packages, the commit of Gossamer, the machine."""

import json
import platform
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("gossamer", "torch", "numpy", "scipy", "networkx", "safetensors", "pydantic")


def environment() -> dict[str, Any]:
    """Versions of what computes a run."""
    found = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "packages": {name: version(name) for name in PACKAGES},
    }
    return found if (known := commit()) is None else {**found, "commit": known}


def commit() -> str | None:
    """The git commit of this package, if it runs from a checkout or was installed from a repository."""
    checkout = Path(__file__).parents[3]
    if (checkout / ".git").exists():
        with suppress(OSError, subprocess.SubprocessError):
            described = subprocess.run(
                ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
                capture_output=True, text=True, check=True, timeout=10,
            )  # fmt: skip
            return described.stdout.strip() or None
        return None
    with suppress(PackageNotFoundError, ValueError, KeyError, TypeError):
        return str(json.loads(distribution("gossamer").read_text("direct_url.json") or "")["vcs_info"]["commit_id"])
    return None
