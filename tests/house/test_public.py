"""What the documentation imports, users may import: it stands in `gossamer` or in the `__all__` of a package."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
IMPORTS = sorted({
    (node.module, alias.name)
    for page in PAGES
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    for node in ast.walk(ast.parse(block))
    if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "gossamer"
    for alias in node.names
})  # fmt: skip


@pytest.mark.parametrize(("module", "name"), IMPORTS)
def test_what_the_documentation_imports_is_public(module: str, name: str) -> None:
    package = importlib.import_module(module)
    assert Path(str(package.__file__)).name == "__init__.py", f"{module} is no package"
    assert name in package.__all__
