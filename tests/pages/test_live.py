"""The live page in a real Chromium, beside real runs and real peers."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Page, chromium, needs_chromium
from command_line import Spawned, children
from made_runs import made_run

pytestmark = [pytest.mark.slow, needs_chromium]
EVIL = "<img src=x onerror=document.title=1>"
#: Whoever waits longer than this waits in vain, however slow the machine.
SECONDS = 120.0
HEADLINE = "(document.getElementById('headline')?.textContent ?? '')"


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with chromium() as opened:
        yield opened


def until(value: Callable[[], Any], right: Callable[[Any], bool] = bool) -> Any:
    """A value, as soon as it is right."""
    end = time.monotonic() + SECONDS
    while not right(found := value()):
        assert time.monotonic() < end, found
        time.sleep(0.03)
    return found


def address(live: Spawned) -> str:
    """What `gossamer live` says is to be opened."""
    return until(lambda: re.search(r"http://\S+", live._out.read_text() if live._out.exists() else ""))[0]


def opened(page: Page, url: str, width: int = 1280) -> None:
    page.requests.clear()
    page.complaints.clear()
    page.look(width)
    page.open(url)
    until(lambda: page.run("document.documentElement.dataset.ready"))


def wrong(page: Page) -> list[str]:
    """What the page complains of, besides that a server that was killed does not answer."""
    return [text for text in page.complaints if "ERR_" not in text]


def files(folder: Path) -> dict[str, bytes]:
    """The files of runs that are the same bytes for the same experiment."""
    varying = ("timings.jsonl", "environment.json", "seconds", "table", "runs", "report", "curves", "differences")
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith((*varying, ".")))
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_a_running_comparison_a_killed_server_and_the_end(
    page: Page, spawn: Callable[..., Spawned], settings: Callable[..., list[str]], place: Path
) -> None:
    compare = ["compare", "--sweep", "method=dfedavg,sgp", "--workers", "1", *settings(rounds=4)]
    alone = spawn(*compare, "--out", "alone")
    # What lies beside it: a name that is HTML, a run that is half-written, one of another version.
    made_run(place / "runs" / EVIL.replace("/", ""), method={"name": "dfedavg", "note": EVIL})
    half = made_run(place / "runs" / "half", done=3, final=False)
    with (half / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "local_loss": NaN}\n{"round": 5, "test_acc')
    made_run(place / "runs" / "newer", done=1)
    (place / "runs" / "newer" / "environment.json").write_text('{"format": 99}')
    watched = spawn(*compare, "--out", "runs/watched", hold=("runs/watched/dfedavg-seed0", 2))
    live = spawn("live", "--port", "0")
    opened(page, address(live))

    said = until(lambda: page.run(HEADLINE), lambda text: "2 of 5" not in text and "run" in text)
    until(lambda: page.run("document.body.textContent"), lambda text: "of 4" in text and "format 99" in text)
    rows = "[...document.querySelectorAll('table.live tbody tr')].map(row => row.textContent)"
    until(lambda: page.run(rows), lambda found: any("2 of 4" in row for row in found))
    assert "is running" in said or "run now" in said
    assert page.run("document.images.length") == 0
    assert EVIL in page.run("document.body.textContent")
    until(lambda: page.run("document.querySelectorAll('.chart canvas').length"), lambda count: count >= 3)

    # By keyboard: what has the focus is seen, and Enter chooses another run, which is there again after a reload.
    for _ in range(40):
        page("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        page("Input.dispatchKeyEvent", type="keyUp", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        if page.run("document.activeElement.textContent") == "half":
            break
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    chosen = "[...document.querySelectorAll('h2')].map(head => head.textContent)"
    until(lambda: page.run(chosen), lambda heads: "half" in heads)
    page("Page.reload")
    until(lambda: page.run(chosen), lambda heads: "half" in heads)

    # A tab that is hidden lets go of its connection, and takes it up again.
    hide = (
        "Object.defineProperty(document, 'hidden', {value: %s, configurable: true}); "
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    page.run(hide % "true")
    streams = sum("events" in url for url in page.requests)
    page.run(hide % "false")
    until(lambda: page.run(HEADLINE) and sum("events" in url for url in page.requests), lambda now: now > streams)

    # Killed without a word: the page says so, and the run does not notice.
    live.kill()
    until(lambda: page.run("document.getElementById('connection').textContent"), lambda text: "connection lost" in text)
    assert all(url.startswith(address(live)) for url in page.requests)
    assert wrong(page) == []

    live = spawn("live", "runs/watched", "--port", "0")
    opened(page, address(live), width=390)
    until(lambda: page.run(HEADLINE), lambda text: "watched is running" in text)
    page.run("window.before = 1")
    watched.let_go()
    until(lambda: page.run(HEADLINE), lambda text: text == "Nothing runs now. All 2 runs have ended.")
    assert page.run("window.before") == 1  # without a reload
    assert page.run("document.documentElement.scrollWidth") <= 390
    assert wrong(page) == []
    assert watched.wait().code == alone.wait().code == 0
    assert files(place / "alone") == files(place / "runs" / "watched")
    assert len(files(place / "alone")) >= 8

    live.send(signal.SIGINT)
    end = live.wait()
    assert end.code == 130
    assert "Traceback" not in end.text
    assert len(end.out.splitlines()) == 1
    assert end.err.strip().splitlines()[-1] == "stopped; nothing that was written is lost."


def test_peers_of_which_one_dies_and_comes_back(page: Page, spawn: Callable[..., Spawned], place: Path) -> None:
    small = ["--set", "model=softmax", "--set", "local_steps=2", "--set", 'dataset={name="digits", train_samples=200}']
    demo = spawn(
        "network", "demo", "--kill", "--peers", "3", "--rounds", "30", "--method", "sgp", *small, "--out", "demo"
    )
    # All wait for the last peer until the page is open: bob is killed in the middle.
    last = until(lambda: children(demo.pid), lambda peers: len(peers) == 3)[-1]
    os.kill(last, signal.SIGSTOP)
    try:
        live = spawn("live", "demo/kits/alice", "--port", "0")
        opened(page, address(live))
        page.run("window.before = 1")
    finally:
        os.kill(last, signal.SIGCONT)
    states = "[...document.querySelectorAll('svg.graph circle[class]')].map(circle => circle.getAttribute('class'))"
    until(lambda: page.run(states), lambda found: "away" in found)
    until(lambda: page.run(HEADLINE), lambda text: re.search("bob.* not answer", text))
    assert page.run("getComputedStyle(document.querySelector('circle.away')).fill") != page.run(
        "getComputedStyle(document.querySelector('circle.working, circle.finished')).fill"
    )
    page.picture(place / "away.png")
    # Peers that have finished leave at once: the page may have asked too late for the last words.
    end = "All 3 peers have finished 30 rounds|No peer answers any more"
    until(lambda: page.run(HEADLINE), lambda text: re.match(end, text))
    assert page.run("window.before") == 1  # all without a reload
    log = page.run("[...document.querySelectorAll('.events li')].map(each => each.textContent)")
    assert any("bob is back: started again" in line for line in log), log
    text = page.run("document.body.textContent")
    assert "The push-sum weights that peers hold sum to" in text
    assert "Push-sum weight of each peer" in text
    page("Page.reload")
    until(lambda: page.run(HEADLINE), lambda text: re.match(end, text))
    assert page.run("[...document.querySelectorAll('.events li')].length") == len(log)
    assert wrong(page) == []
    assert demo.wait().code == 0
    live.send(signal.SIGTERM)
    assert live.wait().code == 130


def test_a_folder_that_is_empty_is_deleted_and_comes_back(
    page: Page, spawn: Callable[..., Spawned], place: Path
) -> None:
    (place / "runs").mkdir()
    live = spawn("live", "runs", "--port", "0")
    opened(page, address(live))
    until(lambda: page.run(HEADLINE), lambda text: "No runs here yet" in text)
    (place / "runs").rename(place / "moved")
    until(lambda: page.run(HEADLINE), lambda text: "The folder is not there" in text)
    made_run(place / "runs" / "one")
    until(lambda: page.run(HEADLINE), lambda text: "12 rounds are done" in text)
    until(lambda: page.run("document.querySelectorAll('svg.graph circle').length"), lambda count: count == 8)
    assert wrong(page) == []
