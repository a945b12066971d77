"""No method without numbers worked out on paper."""

import ast
from pathlib import Path

import pytest

from gossamer.methods import METHODS


def golden_tests() -> dict[str, list[str]]:
    """The golden tests of each built-in method: named after it, and after no other with a longer name."""
    names = [
        node.name
        for file in sorted(Path(__file__).parent.glob("test_*.py"))
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and file != Path(__file__)
    ]
    found: dict[str, list[str]] = {method: [] for method in METHODS}
    for name in names:
        called = [m for m in METHODS if f"{name}_".startswith(f"test_{m.replace('-', '_')}_")]
        if called:
            found[max(called, key=len)].append(name)
    return found


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_golden_test(method: str) -> None:
    assert golden_tests()[method], f"tests/golden has no test_{method.replace('-', '_')}: work two rounds out on paper"
