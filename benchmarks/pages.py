"""How fast a large report is: 50 runs of 1,000 rounds, on a graph of 1,000 clients, opened in Chromium.

    python -m benchmarks.pages

The run folders hold made-up numbers. Times are those of the page itself: until the first paint, until everything is
drawn, and from a click until the next frame.
"""

import sys
import tempfile
import time
from pathlib import Path

from gossamer.pages.report import write_report
from gossamer.studies import read_comparison

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from browser import chromium
from made_runs import made_run

RUNS, ROUNDS, CLIENTS = 50, 1000, 1000
CHANGE = "const s = document.querySelector('{}'); s.value = 3; s.dispatchEvent(new Event('{}'))"
CLICKS = {
    "curves against bytes": "document.querySelector('input[value=bytes]').click()",
    "curves against seconds": "document.querySelector('input[value=seconds]').click()",
    "a variant hidden": "document.querySelector('.legend button').click()",
    "a table sorted": "document.querySelector('th').firstChild.click()",
    "clients of another round": CHANGE.format("input[type=range]", "input"),
    "clients of another variant": CHANGE.format("select", "change"),
}
TIMED = "new Promise(done => {{ const from = performance.now(); {}; requestAnimationFrame(() => setTimeout(() => done(performance.now() - from))) }})"  # noqa: E501


def main() -> None:
    """Print the times."""
    with tempfile.TemporaryDirectory() as place:
        runs = Path(place) / "runs"
        graph = {"name": "k-regular", "k": 6}
        for number in range(RUNS):
            name, level = runs / f"run-{number:02d}", 0.5 + number / 110
            made_run(name, lr=0.01 * (1 + number), level=level, rounds=ROUNDS, clients=CLIENTS, graph=graph, kept=100)
        started = time.perf_counter()
        page = write_report(read_comparison([runs]), Path(place) / "report.html", "benchmark", [runs])
        wrote = time.perf_counter() - started
        print(f"{RUNS} runs, {ROUNDS:,} rounds, {CLIENTS:,} clients")
        print(f"{'written':28}{wrote:8.1f} s, {page.stat().st_size / 1e6:.1f} MB")
        with chromium() as tab:
            tab.look(1280)
            tab.open(page.as_uri())
            paint = tab.run("performance.getEntriesByName('first-contentful-paint')[0].startTime")
            loaded = tab.run("performance.getEntriesByType('navigation')[0].loadEventEnd")
            print(f"{'first paint':28}{paint:8.0f} ms\n{'everything drawn':28}{loaded:8.0f} ms")
            for name, click in CLICKS.items():
                print(f"{name:28}{tab.run(TIMED.format(click)):8.0f} ms")
            assert not tab.complaints, tab.complaints


if __name__ == "__main__":
    main()
