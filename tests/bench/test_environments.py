"""Environments for what Gossamer is measured against: made beside the project's own, which never changes."""

import sys
from pathlib import Path

import pytest
from benchmarks import environments


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    return tmp_path


def test_an_environment_is_there_if_it_has_the_version_that_is_asked_for(folder):
    assert environments.python_of("jax") is None
    (folder / "jax").mkdir()
    (folder / "jax" / "ready").write_text(environments.PACKAGES["jax"])
    assert environments.python_of("jax") == folder / "jax" / "bin" / "python"
    (folder / "jax" / "ready").write_text("jax==0.0.1")
    assert environments.python_of("jax") is None


@pytest.mark.slow
def test_an_environment_sees_the_packages_beneath_it_and_changes_none(folder, monkeypatch):
    monkeypatch.setattr(environments, "_run_pip", lambda python, package: None)
    python = environments.make("jax")
    shown = environments.subprocess.run(
        [python, "-c", "import torch, sys; print(sys.prefix); print(torch.__file__)"], capture_output=True, text=True
    ).stdout.splitlines()
    import torch

    assert Path(shown[0]) == folder / "jax" != Path(sys.prefix)
    assert shown[1] == torch.__file__
    assert environments.make("jax") == python  # found, not made again


@pytest.mark.slow
def test_a_package_that_cannot_be_installed_ends_with_what_pip_said(folder, monkeypatch, capsys):
    monkeypatch.setitem(environments.PACKAGES, "jax", "./no-such-package")
    with pytest.raises(SystemExit) as ended:
        environments.main(["jax"])
    assert ended.value.code == 2
    assert "no environment for jax: ERROR" in capsys.readouterr().err
    assert environments.python_of("jax") is None


def test_an_unknown_environment_is_refused(folder, capsys):
    with pytest.raises(SystemExit):
        environments.main(["theano"])
    assert "there is no theano, but jax, flower" in capsys.readouterr().err
