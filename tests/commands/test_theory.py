"""`gossamer theory` as a user calls it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gossamer.terminal import console

Command = Callable[..., Any]
Settings = Callable[..., list[str]]
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(gossamer: Command, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Call:
    """`gossamer theory` of a small experiment, on a terminal of 80 columns."""
    for stream in (console.out, console.err):
        monkeypatch.setattr(stream, "width", 80)
    return lambda *arguments: gossamer("theory", *settings(batch_size=None), *arguments)


@pytest.mark.parametrize("method", ["dfedsam", "dfedsgpsm", "dfedadmm-sam", "local-g-ecl"])
def test_the_table(call: Call, method: str) -> None:
    code, out, err = call(f"--set=method={method}")
    assert (code, err) == (0, "")
    for word in ("λ", "spectral gap", "Φ(λ, m, Q)", "σ_l", "σ_g", "start", "noise", "heterogeneity", "graph", "share"):
        assert word in out
    assert out.count("covers this method") == 1
    assert out.count("→ ") == 4
    assert "worst cases" in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_bound_that_holds_has_one_column(call: Call) -> None:
    _, out, _ = call("--set=lr=1e-6", "--set=method={name='dfedadmm', penalty=1e-6}")
    assert "does not hold" not in out
    assert out.count("share") == 4


def test_json(call: Call) -> None:
    code, out, _ = call("--json", "--smoothness=2.5")

    def no_constants(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    said = json.loads(out, parse_constant=no_constants)
    assert code == 0
    assert said["graph"]["name"] == "ring"
    assert said["graph"]["p"] == pytest.approx(1 - said["graph"]["lambda"] ** 2)
    assert said["constants"]["smoothness"] == 2.5
    assert [bound["method"] for bound in said["bounds"]] == ["DFedSAM", "Local G-ECL", "DFedSGPSM", "DFedADMM"]
    for bound in said["bounds"]:
        values = bound["allowed"] or bound["here"]
        assert sum(term["share"] for term in values["terms"]) == pytest.approx(1)
        assert sum(term["value"] for term in values["terms"]) == pytest.approx(values["bound"])


def test_isolated_clients_as_json(call: Call) -> None:
    code, out, _ = call("--json", "--set=graph=isolated")
    assert code == 0
    assert "Infinity" not in out
    assert "NaN" not in out
    assert json.loads(out)["graph"]["phi"] is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--smoothness=nan"], "smoothness: should be a positive number (got nan)"),
        (["--smoothness=-1"], "smoothness: should be a positive number (got -1)"),
        (["--smoothness=0"], "smoothness: should be a positive number"),
        (["--smoothness=inf"], "smoothness: should be a positive number"),
        (["--set=lr=nan"], "lr"),
        (["--set=local_steps=0"], "no client takes a local step"),
        (["nowhere.toml"], "nowhere.toml"),
        (["--set=method=dfedadmm", "--set=graph={name='directed-random', neighbours=2}"], "cannot run on graph"),
    ],
)
def test_bad_input(call: Call, arguments: list[str], says: str) -> None:
    code, out, err = call(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert says in " ".join(err.split())
