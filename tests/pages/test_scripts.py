"""The pages' scripts, where they compute."""

import shutil
import subprocess
from pathlib import Path

import pytest

import gossamer.pages
from gossamer.pages.report import MODULES, joined

SCRIPTS = Path(gossamer.pages.__file__).parent / "scripts"


@pytest.mark.skipif(shutil.which("node") is None, reason="no node here: the scripts are run in Chromium alone")
def test_what_the_scripts_compute(tmp_path: Path) -> None:
    shutil.copytree(SCRIPTS, tmp_path / "scripts")
    (tmp_path / "scripts" / "package.json").write_text('{"type": "module"}')
    here = Path(__file__).with_name("numbers.test.mjs")
    command = ["node", str(here), str(tmp_path / "scripts"), *MODULES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_joined_modules_neither_import_nor_export() -> None:
    lines = joined(MODULES).splitlines()
    assert [line for line in lines if line.startswith(("import ", "export "))] == []


def test_what_is_not_ours_comes_with_version_and_licence() -> None:
    assert "(v1.6.32)" in (SCRIPTS / "uplot" / "uPlot.iife.min.js").read_text()
    assert "MIT License" in (SCRIPTS / "uplot" / "LICENSE").read_text()
