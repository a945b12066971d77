"""The notebook of `examples/` runs from top to bottom, and shows what it says."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


class ThisPython(KernelSpecManager):
    """The kernel of this environment, whatever is installed for the user."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Jupyter's own packages
def test_the_notebook_runs_and_shows_tables_and_curves(tmp_path: Path) -> None:
    book = nbformat.read(NOTEBOOK, as_version=4)
    kernel = AsyncKernelManager(kernel_spec_manager=ThisPython(), kernel_name="python3")
    NotebookClient(book, timeout=300, km=kernel, resources={"metadata": {"path": str(tmp_path)}}).execute()
    if kept := os.environ.get("GOSSAMER_NOTEBOOK"):  # to look at it
        nbformat.write(book, kept)
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    # On a slow machine matplotlib says that it builds its font cache.
    said = [each for each in outputs if each.get("name") == "stderr" and "font cache" not in each["text"]]
    shown = {
        cell.source.splitlines()[-1]: [output for output in cell.outputs if "name" not in output] for cell in cells
    }
    for name in ("run", "result"):
        (page,) = texts(shown[name], "text/html")
        assert "<table" in page
        assert "data:image/png;base64," in page
    (page,) = texts(shown["run.partition"], "text/html")
    assert "data:image/png;base64," in page
    assert len(shown["run"]) == 2  # a line of progress, and the run
    assert len(shown["result"]) == 2  # one line for all six runs, and the comparison
    assert "round 10/10" in texts(shown["run"], "text/plain")[0]
    assert texts(shown["figure"], "image/png")
    assert (tmp_path / "accuracy.pdf").read_bytes().startswith(b"%PDF")
    assert not said


def texts(outputs: list[Any], kind: str) -> list[str]:
    return [output["data"][kind] for output in outputs if kind in output.get("data", {})]


def test_the_notebook_is_kept_without_its_output() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code")
