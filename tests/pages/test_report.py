"""The report, opened in a real Chromium, and what it is refused or made of."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from axe import violations
from browser import Page, chromium, needs_chromium
from gossamer.pages.report import report
from gossamer.pages.report_verdict import verdict
from gossamer.studies import read_comparison
from made_runs import made_run

Command = Callable[..., Any]
EVIL = '<img src=x onerror="document.title=1">'


def many(place: Path, **more: Any) -> Path:
    """Three variants with three seeds each, on two graphs."""
    directed = {"name": "directed-random", "neighbours": 3}
    for method, level, graph in (("dfedavg", 0.9, "ring"), ("dfedsam", 0.93, "full"), ("osgp", 0.95, directed)):
        for seed in range(3):
            made_run(place / f"{method}-seed{seed}", method=method, graph=graph, level=level, seed=seed, **more)
    return place


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with chromium() as opened:
        yield opened


def opened(page: Page, file: Path, *, width: int = 1280, dark: bool = False) -> Page:
    page.requests.clear()
    page.complaints.clear()
    page.look(width, dark=dark)
    page.open(file.resolve().as_uri())
    assert page.run("document.documentElement.dataset.ready") == "true"
    return page


@needs_chromium
@pytest.mark.slow
def test_every_section_at_every_width_in_light_and_dark_and_on_paper(
    page: Page, gossamer: Command, place: Path
) -> None:
    many(place / "c", top_eigenvalue=3.0)
    for seed in range(3):  # the first has a landscape, the second half of one
        about = {"grid": {"points": 3, "dimensions": 2, "radius": 1.0}}
        (place / "c" / f"osgp-seed{seed}" / "landscape-train-2d.json").write_text(json.dumps(about))
        rows = "".join(f"0,0,{1 + row / 9}\n" for row in range(9 if seed == 0 else 4))
        (place / "c" / f"osgp-seed{seed}" / "landscape-train-2d.csv").write_text(f"x,y,loss\n{rows}")
        about = {"grid": {"points": 3, "dimensions": 1, "radius": 1.0}}
        (place / "c" / f"osgp-seed{seed}" / "landscape-train-1d.json").write_text(json.dumps(about))
        (place / "c" / f"osgp-seed{seed}" / "landscape-train-1d.csv").write_text("x,loss\n-1,2\n0,1\n1,2\n")
        for model, top in (("average", 3.0 + seed), ("client 0", 9.0)):
            keys = {
                "round": 12,
                "saved": "final",
                "on": "train",
                "sample_count": 60,
                "rho": 0.05,
                "seed": 0,
                "probes": 30,
            }
            measured = {**keys, "model": model, "loss": 0.5, "top": [top], "trace": 20.0, "sam_sharpness": 0.1}
            with (place / "c" / f"osgp-seed{seed}" / "sharpness.jsonl").open("a") as lines:
                lines.write(json.dumps(measured) + "\n" + ('{"model": "ave' if model == "client 0" else ""))
    assert gossamer("report", "c").code == 0
    file = place / "c" / "report.html"
    for width in (390, 1280):
        for dark in (False, True):
            opened(page, file, width=width, dark=dark)
            heads = page.run("[...document.querySelectorAll('h2')].map(each => each.textContent)")
            assert heads == ["Results", "Curves", "Variants", "Clients", "Flatness", "How to repeat it"]
            assert page.run("document.documentElement.scrollWidth") <= width
            assert page.run("document.querySelectorAll('.chart canvas').length") >= 5
            assert page.run("document.querySelectorAll('svg.graph circle').length") == 8
            assert page.run("document.querySelectorAll('#landscapes canvas').length") == 1
            assert "var(--c2)" in page.run("document.querySelector('#landscapes path').getAttribute('style')")
            captions = page.run("[...document.querySelectorAll('caption')].map(each => each.textContent)")
            assert "The averaged model at the end, on 60 train samples" in captions
            assert "Clients' own models at the end, on 60 train samples" in captions
            assert "4.00 ± 1.0" in page.run("document.body.textContent")
            assert page.picture(place / f"{width}-{dark}.png").stat().st_size > 30_000
            assert (page.complaints, page.requests) == ([], [file.as_uri()])
    assert page.pdf(place / "paper.pdf").read_bytes().startswith(b"%PDF")
    text = file.read_text()
    data = text.split('id="data">')[1].split("</script>")[0]
    assert len(text.encode()) - len(data.encode()) < 500_000
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    pixels = "c.getContext('2d').getImageData(0, 0, c.width, c.height).data"
    assert all(page.run(f"[...document.querySelectorAll('.chart canvas')].map(c => {pixels}.some(x => x > 0))"))


@needs_chromium
@pytest.mark.slow
def test_a_report_is_there_for_everyone(page: Page, place: Path) -> None:
    file = written(place, many(place / "c", gradient_norm_squared=0.3))
    for width, dark in ((1280, False), (1280, True), (390, False)):
        opened(page, file, width=width, dark=dark)
        assert violations(page) == []


@needs_chromium
@pytest.mark.slow
def test_switches_sorting_and_the_slider(page: Page, place: Path) -> None:
    opened(page, written(place, many(place / "c")))
    axis = "document.querySelector('input[value=bytes]').click()"
    before = "document.querySelector('.chart canvas').toDataURL()"
    first = page.run(before)
    page.run(axis)
    against_bytes = page.run(before)
    page.run("document.querySelector('.legend button').click()")
    assert len({first, against_bytes, page.run(before)}) == 3
    assert page.run("document.querySelector('.legend button').getAttribute('aria-pressed')") == "false"
    labels = "[...document.querySelectorAll('table')[0].tBodies[0].rows].map(row => row.cells[0].textContent)"
    assert page.run(labels) == ["dfedavg", "dfedsam", "osgp"]
    page.run("for (const i of [1, 2]) document.querySelectorAll('th')[1].firstChild.click()")
    assert page.run(labels) == ["osgp", "dfedsam", "dfedavg"]
    colours = "[...document.querySelectorAll('svg.graph circle')].map(each => each.style.fill).join()"
    last = page.run(colours)
    change = "{{ const s = document.querySelector('{}'); s.value = {}; s.dispatchEvent(new Event('{}')) }}"
    page.run(change.format("input[type=range]", 0, "input"))
    assert page.run(colours) != last
    page.run(change.format("select", 2, "change"))
    assert "directed-random" in page.run("document.getElementById('clients-body').textContent")
    assert page.complaints == []


@needs_chromium
@pytest.mark.slow
def test_a_label_with_html_in_it_is_text(page: Page, place: Path) -> None:
    for number, name in enumerate((EVIL, "</script><script>document.title=1</script>")):
        made_run(place / "c" / f"run-{number}", method={"name": "dfedavg", "note": name}, level=0.8 + number / 10)
    opened(page, written(place, place / "c", title=EVIL))
    assert page.run("document.title") == EVIL
    assert page.run("document.images.length") == 0
    assert page.run("document.querySelector('td.text + td.text').textContent.includes('<')")
    assert page.complaints == []


@needs_chromium
@pytest.mark.slow
def test_many_rounds_and_clients_are_thinned_and_it_says_so(page: Page, place: Path) -> None:
    made_run(place / "c" / "large", clients=1000, rounds=1000, graph="full", kept=200)
    opened(page, written(place, place / "c"))
    said = page.run("document.body.textContent")
    assert "400 of 1,000 rounds are drawn" in said
    assert "6,000 of 499,500 links are drawn" in said
    assert "48 of 1000 clients" in said
    assert page.run("document.querySelectorAll('svg.graph circle').length") == 1000
    assert page.complaints == []


@needs_chromium
@pytest.mark.slow
def test_runs_that_diverged_have_no_numbers_or_are_half_written(page: Page, place: Path) -> None:
    made_run(place / "c" / "whole")
    nothing = made_run(place / "c" / "empty", method="dfedsam", done=0, final=False)
    (nothing / "metrics.jsonl").unlink()
    (nothing / "partition.json").write_text("{")
    diverged = made_run(place / "c" / "diverged", method="osgp", done=3, graph={"name": "my.module:graph"})
    (diverged / "stopped.json").write_text(json.dumps({"kind": "diverged", "round": 3, "reason": "loss is NaN"}))
    with (diverged / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "test_accuracy": null, "local_loss": NaN}\n{"round": 5, "test_acc')
    opened(page, written(place, place / "c"))
    said = page.run("document.body.textContent")
    assert "diverged: loss is NaN" in said
    assert "empty: unfinished" in said
    assert "empty has no finite number" in said
    assert "is not drawn" in said
    assert page.complaints == []


def written(place: Path, folder: Path, title: str = "title") -> Path:
    file = place / "page.html"
    file.write_text(report(read_comparison([folder]), title, [folder]))
    return file


def test_what_no_report_is_made_of(refused: Callable[..., str], place: Path) -> None:
    (place / "empty").mkdir()
    refused("report", "empty", says=("is not a run folder",))
    refused("report", "nowhere", says=("does not exist",))
    newer = made_run(place / "newer")
    (newer / "environment.json").write_text('{"format": 99}')
    refused("report", "newer", says=("of a newer Gossamer",))
    made_run(place / "run")
    refused("report", "run", "--out", "empty", says=("is a folder",))
    refused("report", "run", "--out", "missing/report.html", says=("cannot be written",))


def test_the_verdict_is_made_from_the_numbers(place: Path) -> None:
    alone = verdict(read_comparison([made_run(place / "one")]))
    assert "one reached a best accuracy of 85.5 %" in alone
    said = verdict(read_comparison([many(place / "c")]))
    assert said.startswith("osgp reached the best accuracy, 90.7 ± 0.4 %; dfedsam came next with 88.8 ± 0.4 %.")
    assert "1.9 ± 0.0 points (mean and standard error of 3 seeds, in pairs) is more than twice" in said
    for name, level in (("a", 0.9), ("b", 0.8)):
        made_run(place / "two" / name, level=level, method="dfedavg" if name == "a" else "dfedsam")
    assert "of one seed: whether it is more than chance is not known" in verdict(read_comparison([place / "two"]))
    for name in ("a", "b"):
        made_run(place / "same" / name, method="dfedavg" if name == "a" else "dfedsam")
    assert "a and b reached the same best accuracy" in verdict(read_comparison([place / "same"]))


def test_the_verdict_says_who_is_ahead_at_the_end(place: Path) -> None:
    for name, level in (("a", 0.9), ("b", 0.8)):
        made_run(place / "c" / name, level=level, method="dfedavg" if name == "a" else "dfedsam")
    lines = [json.loads(line) for line in (place / "c" / "a" / "metrics.jsonl").read_text().splitlines()]
    lines[-1]["test_accuracy"] = 0.1
    (place / "c" / "a" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = verdict(read_comparison([place / "c"]))
    assert said.startswith("a reached the best accuracy, 84.2 %")
    assert said.endswith("At the end, b is ahead: 76.0 % against 10.0 %.")
