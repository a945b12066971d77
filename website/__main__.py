"""The documentation as a site that needs neither the repository nor a network.

    python -m website build/site

writes it from `docs/`, the README and the other pages beside it. Links are written for the repository: here those to
its pages lead to pages of the site, those to its files to a page that shows the file. A link or an anchor that leads
nowhere is an error.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from os.path import relpath
from pathlib import Path

from website.markdown_of_github import spaced, titled

HERE = Path(__file__).parent
ROOT = HERE.parent
#: Pages that do not stand in `docs/`, and their names in the site.
BESIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
#: Fenced blocks, which hold no links; links and pictures.
FENCE_OR_LINK = re.compile(
    r"(?P<fence>^```.*?^```$)|(?P<head>\]\()(?P<target>[^)\s#]+)(?=[)#])", re.MULTILINE | re.DOTALL
)
COLOURS = re.compile(r"\x1b\[[\d;]*m")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".sbatch": "sh", ".json": "json"}


def place_of(file: Path) -> str:
    """The path in the site of a file of the repository."""
    name = file.relative_to(ROOT).as_posix()
    if name in BESIDE:
        return BESIDE[name]
    return name.removeprefix("docs/") if name.startswith("docs/") else f"files/{name}.md"


def with_links(file: Path, shown: set[Path]) -> str:
    """A page's Markdown with links that fit the site; files of the repository that it links to are added to `shown`."""

    def link(found: re.Match[str]) -> str:
        target = found["target"]
        if found["fence"] or "://" in target or target.startswith("mailto:"):
            return found[0]
        leads = (file.parent / target).resolve()
        if not leads.is_file() or not leads.is_relative_to(ROOT):
            return found[0]  # the strict build says where it is
        place = place_of(leads)
        if place.startswith("files/"):
            shown.add(leads)
        return found["head"] + relpath(place, Path(place_of(file)).parent).replace(os.sep, "/")

    return spaced(titled(FENCE_OR_LINK.sub(link, file.read_text(encoding="utf-8"))))


def shown_file(file: Path) -> str:
    """A page that shows a file; of a notebook, its text and code."""
    text = file.read_text(encoding="utf-8")
    front = "---\nsearch:\n  exclude: true\nhide: [toc]\n---\n"
    if file.suffix == ".ipynb":
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
        body = "\n\n".join(source if kind == "markdown" else fenced(source, "python") for kind, source in cells)
        return f"{front}{body}\n"
    return f"{front}# {file.name}\n\n`{file.relative_to(ROOT)}`\n\n{fenced(text, LANGUAGES.get(file.suffix, 'text'))}\n"


def fenced(text: str, language: str) -> str:
    """A block of code."""
    return f"~~~~{language}\n{text.rstrip()}\n~~~~"


def write_pages(pages: Path) -> None:
    """Everything that the site is made of, under one folder."""
    shown: set[Path] = set()
    for file in [*(ROOT / name for name in BESIDE), *(ROOT / "docs").rglob("*")]:
        place = pages / place_of(file) if file.is_file() else None
        if place is None:
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            place.write_text(with_links(file, shown), encoding="utf-8")
        else:
            shutil.copyfile(file, place)
    for file in shown:
        place = pages / place_of(file)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(shown_file(file), encoding="utf-8")
    shutil.copytree(HERE / "assets", pages / "assets")


def build(site: Path) -> int:
    """Write the site into a folder, which is replaced; the exit code."""
    with tempfile.TemporaryDirectory() as work:
        shutil.copyfile(HERE / "zensical.toml", Path(work, "zensical.toml"))
        write_pages(Path(work, "pages"))
        command = [sys.executable, "-m", "zensical", "build", "--strict"]
        variables = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=work, env=variables, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = COLOURS.sub("", f"{done.stdout}{done.stderr}")
            print(said.split("Traceback")[0] if "--strict" in said else said, file=sys.stderr)
            return 1
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(Path(work, "site"), site)
        print(f"{site}/index.html")
        return 0


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1])))
