"""The tables of a comparison in a terminal of some width."""

import re
from collections import Counter

import pytest
from rich.console import Console

from gossamer.pages.tables import sheets
from gossamer.studies import Comparison, VariantResult
from gossamer.terminal.comparison_view import sheet_table
from records import NINETY, record


@pytest.mark.parametrize("width", [50, 80, 120])
def test_nothing_is_cut_off_in_silence(width: int) -> None:
    runs = {seed: record(0.5, 0.92 + seed / 100, 0.999) for seed in range(3)}
    values = [
        {"variant": label, "graph": graph}
        for label in ("DFedAvg with a label of some length", "DFedSAM 50% & ρ²=0.1 ‖∇f‖ [é]", "DFedADMM")
        for graph in ("ring", "exponential")
    ]
    variants = {", ".join(each.values()): VariantResult(", ".join(each.values()), each, runs) for each in values}
    first, *others = variants
    baselines = dict.fromkeys(others, first) if width >= 80 else {}  # three columns of labels, which all must stay
    for sheet in sheets(Comparison(variants, (NINETY,), baselines), seconds=True):
        console = Console(width=width)
        with console.capture() as shown:
            console.print(sheet_table(sheet, width, "elsewhere"))
        text = shown.get()
        said = re.search(r"Left out on a narrow terminal: (.*?); elsewhere", " ".join(text.split()))
        kept = [column for column in sheet.columns if said is None or column.head not in said[1].split(", ")]
        expected = Counter(
            word for c in kept for part in (c.head, *(cell.text for cell in c.cells)) for word in part.split()
        )
        assert not expected - Counter(text.split()), sheet.title
