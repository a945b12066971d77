"""The documentation site: built strictly, and opened in Chromium without anything but its own files."""

import functools
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import gossamer
from browser import Page, chromium, needs_chromium

ROOT = Path(__file__).parents[2]
#: Where the results of a search lead, once there are some; they live in a shadow root.
FOUND = """(async () => {
    const links = () => [...document.querySelectorAll('*')].flatMap((each) => each.shadowRoot ?? [])
        .flatMap((root) => [...root.querySelectorAll('a')].map((each) => each.getAttribute('href')));
    for (let i = 0; i < 600 && !links().length; i += 1) await new Promise((done) => setTimeout(done, 50));
    return links();
})()"""


def run(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "website", str(site)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site") / "site"
    done = run(ROOT, place)
    assert done.returncode == 0, done.stderr
    assert "arning" not in done.stdout + done.stderr
    return place


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with chromium() as opened:
        yield opened


def test_every_page_is_in_the_site_and_in_its_navigation(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {name for name in pages if not (site / name).is_file()} == set()
    entries = tomllib.loads((ROOT / "website" / "zensical.toml").read_text())["project"]["nav"]
    named = re.findall(r"'([\w/-]+)\.md'", str(entries))
    assert len(named) == len(set(named))
    tables = {name for name in pages if name.startswith("tables/")}  # pages that others link to
    assert {f"{name}.html" for name in named} == pages - tables | {"index.html", "contributing.html", "changelog.html"}


def test_formulas_are_set_and_none_is_left_as_text(site: Path) -> None:
    theory = (site / "theory.html").read_text(encoding="utf-8")
    assert "<mfrac>" in theory
    assert theory.count('class="formula"') >= 8
    for file in site.rglob("*.html"):
        if "files" not in file.relative_to(site).parts:
            text = re.sub(
                r"<(pre|code|script|style)\b.*?</\1>|<[^>]*>", "", file.read_text(encoding="utf-8"), flags=re.S
            )
            assert not re.search(r"\$[^$\s]+\$|\\(frac|sum|lVert|bar|tilde|text)\b", text), file.name


def test_lists_tables_and_code_are_what_they_are_on_github(site: Path) -> None:
    for file in site.rglob("*.html"):
        if "files" not in file.relative_to(site).parts:
            text = re.sub(r"<(pre|code|script|style)\b.*?</\1>", "", file.read_text(encoding="utf-8"), flags=re.S)
            assert not re.search(r"\|--|<p>\||^- |<p>- |^\d+\. |```", text, re.M), file.name


def test_nothing_is_asked_of_the_internet(site: Path) -> None:
    asks = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=[\"']?(?:https?:)?//[^\"'\s>]+")
    for file in site.rglob("*.html"):
        assert [found for found in asks.findall(file.read_text(encoding="utf-8")) if "canonical" not in found] == []
    for file in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", file.read_text(encoding="utf-8"))


def test_the_reference_has_every_public_name(site: Path) -> None:
    reference = (site / "python.html").read_text(encoding="utf-8")
    assert [name for name in gossamer.__all__ if f'id="{name.lower()}"' not in reference] == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[dead](nowhere.md)", "nowhere.md"),
        ("[dead](start.md#no-such-heading)", "no-such-heading"),
        ("$\\nosuchcommand$", "nosuchcommand"),
    ],
)
def test_what_leads_nowhere_is_refused(tmp_path: Path, text: str, says: str) -> None:
    copy = tmp_path / "copy"
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text("# A page\n")
    shutil.copytree(ROOT / "website", copy / "website")
    (copy / "docs").mkdir()
    (copy / "docs" / "start.md").write_text(f"# Start\n\n{text}\n")
    done = run(copy, tmp_path / "site")
    assert done.returncode == 1
    assert says in done.stderr
    assert not (tmp_path / "site").exists()


@needs_chromium
@pytest.mark.parametrize("served", [False, True], ids=["by file", "by a local server"])
def test_search_formulas_and_pictures_work_without_a_network(site: Path, page: Page, served: bool) -> None:
    if not served:
        look_around(page, site.as_uri())
        return
    handler = functools.partial(Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        look_around(page, f"http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


def look_around(page: Page, base: str) -> None:
    page.requests.clear()
    page.complaints.clear()
    for width in (390, 1280):
        page.look(width, dark=width == 390)
        for name in ("index", "methods/averaging", "theory", "python", "which-method", "reproduction"):
            page.open(f"{base}/{name}.html")
            assert page.run("document.documentElement.scrollWidth") <= width, name
            assert page.run("[...document.images].every(each => each.complete && each.naturalWidth > 0)"), name
    page.open(f"{base}/theory.html")
    assert page.run("document.querySelector('.formula mfrac').getBoundingClientRect().height") > 20
    assert page.run("document.fonts.ready.then(() => document.fonts.check('16px Formulas'))")
    page.run("document.querySelector('.md-search__button').click()")
    page("Input.insertText", text="push-sum mass")
    assert any("push-sum.html" in link for link in page.run(FOUND))
    assert [each for each in page.requests if not each.startswith((base, "data:", "blob:", "about:"))] == []
    assert page.complaints == []
