"""axe-core, which finds what a page does not offer to everyone: from the npm registry, fetched when it is needed."""

import functools
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

from browser import Page

PACKAGE = "axe-core@4.14.0"
#: The rules of WCAG 2.1, levels A and AA, contrast among them.
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
SCRIPT = f"""axe.run(document, {{runOnly: {RULES}}}).then((found) => found.violations.flatMap(({{id, nodes}}) =>
    nodes.map((node) => `${{id}}: ${{node.target.join(' ')}}: ${{node.any.map((each) => each.message)}}`)))"""


@functools.cache
def axe() -> str:
    """Its script; the test is skipped where npm cannot give it."""
    if shutil.which("npm") is None:
        pytest.skip(f"no npm here, so that {PACKAGE} checks no page: install it (Debian: apt-get install npm)")
    with tempfile.TemporaryDirectory() as place:
        command = ["npm", "pack", "--silent", "--fetch-retries=0", "--prefer-offline", PACKAGE]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            pytest.skip(f"npm cannot fetch {PACKAGE}, so that no page is checked: {done.stderr.strip()[-200:]}")
        with tarfile.open(Path(place, done.stdout.split()[-1])) as package:
            script = package.extractfile("package/axe.min.js")
            assert script is not None
            return script.read().decode()


def violations(page: Page) -> list[str]:
    """What breaks a rule on the page that is open."""
    page.run(f"{axe()}; 0")
    found = page.run(SCRIPT)
    assert isinstance(found, list)
    return found
