"""Pictures of the live page, of a comparison and of a network of peers of which one is killed: `make live-pictures`.

python tests/helpers/live_picture.py docs/images
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from browser import Page, chromium

GOSSAMER = [sys.executable, "-m", "gossamer"]
#: Seconds that anything may take.
LONG = 300.0


@contextmanager
def running(*arguments: str, cwd: Path) -> Iterator[IO[str]]:
    """A command and its output, ended with the block."""
    command = [*GOSSAMER, *arguments]
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout
    finally:
        process.terminate()
        process.wait()


def until(right: Callable[[], object]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + LONG
    while not right():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.1)


def picture(page: Page, place: Path, what: str, when: str, out: Path) -> None:
    """A picture of the page as soon as a script finds the right moment in it."""
    with running("live", what, "--port", "0", cwd=place) as said:
        page.look(1280, 1180)
        page.open(said.readline().split()[-1])
        until(lambda: page.run(when))
        time.sleep(1)  # for the last charts
        page.window(out)


def main(out: Path) -> None:
    """Write both pictures."""
    with tempfile.TemporaryDirectory() as folder, chromium() as page:
        place = Path(folder)
        with running("compare", "--out", "runs/five-methods", "--workers", "1", "--set", "rounds=100", cwd=place):
            until((place / "runs" / "five-methods").exists)
            rows = "[...document.querySelectorAll('table.live tbody tr')].map(row => row.textContent)"
            # in the middle of the third method
            half = f"{rows}.some(row => /^dfedavgm, seed 1.*(moments| s| min)$/.test(row))"
            picture(page, place, "runs", half, out / "live.png")
        with running("network", "demo", "--kill", "--rounds", "30", "--out", "demo", cwd=place):
            until((place / "demo" / "kits" / "alice").exists)
            away = "Boolean(document.querySelector('circle.away') && document.querySelector('.resting circle'))"
            picture(page, place, "demo/kits/alice", away, out / "live-network.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
