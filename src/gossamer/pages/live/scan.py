"""The runs and comparisons below a folder, found again and again at the cost of what has changed."""

import os
import time
from pathlib import Path
from typing import NamedTuple

from gossamer.runs.folder import EXPERIMENT
from gossamer.studies import COMPARISON

#: How deep below the folder runs are looked for.
DEPTH = 5
#: The most folders that are looked into.
FOLDERS = 20_000
#: Seconds for which a changed folder is read again: the clocks of file systems are coarse.
COARSE = 2.0


class Found(NamedTuple):
    """What there is below a folder."""

    runs: list[Path]
    comparisons: list[Path]
    #: Whether there were more folders than are looked into.
    cut: bool


class _Inside(NamedTuple):
    changed: int
    is_run: bool
    is_comparison: bool
    folders: tuple[Path, ...]


class Scan:
    """The folders below one, each read again only when its own entries have changed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[Path, _Inside] = {}

    def look(self) -> Found:
        """All runs and comparisons; an OSError if the folder itself cannot be read."""
        runs, comparisons = [], []
        known: dict[Path, _Inside] = {}
        self.root.stat()
        left = [(self.root, 0)]
        while left and len(known) < FOLDERS:
            path, depth = left.pop()
            try:
                inside = known[path] = self._inside(path)
            except OSError:  # it is gone, or not ours to read
                if path == self.root:
                    raise
                continue
            if inside.is_run:
                runs.append(path)
                continue
            if inside.is_comparison:
                comparisons.append(path)
            if depth < DEPTH:
                left += [(folder, depth + 1) for folder in inside.folders]
        self._known = known
        return Found(sorted(runs), sorted(comparisons), bool(left))

    def _inside(self, path: Path) -> _Inside:
        changed = path.stat().st_mtime_ns
        before = self._known.get(path)
        if before is not None and before.changed == changed and time.time() - changed / 1e9 > COARSE:
            return before
        is_run = is_comparison = False
        folders = []
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name == EXPERIMENT:
                    is_run = entry.is_file(follow_symlinks=False)
                elif entry.name == COMPARISON:
                    is_comparison = entry.is_file(follow_symlinks=False)
                elif not entry.name.startswith((".", "__")) and entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
        return _Inside(changed, is_run, is_comparison, tuple(folders))
