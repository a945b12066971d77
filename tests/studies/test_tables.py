"""The tables of a comparison in Markdown, LaTeX and CSV."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from gossamer.pages.tables import (
    LATEX,
    Cell,
    Column,
    latex_head,
    latex_text,
    pivot_sheet,
    sheets,
    target_sheet,
    to_latex,
    to_markdown,
    write_tables,
)
from gossamer.studies import Comparison, VariantResult
from records import NINETY, comparison, record

TWO_SEEDS = {
    "plain": {0: record(0.5, 0.92), 1: record(0.7, 0.94)},
    "50% & $x_1$ #{a}~^\\|*": {0: record(0.9, 0.95), 1: record(0.4, 0.6)},
}


def check_latex(text: str) -> list[list[list[str]]]:
    """The rows of every tabular, after what a compiler would refuse is refused."""
    assert text.isascii()
    bare = re.sub(r"(?m)(?<!\\)%.*$", "", text)
    unescaped = re.sub(r"\\[\\{}$&#_%]", "", bare.replace("\\\\\n", "\n"))
    assert unescaped.count("{") == unescaped.count("}")
    assert unescaped.count("$") % 2 == 0
    assert "#" not in unescaped
    stack = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", bare):
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert not stack
    known = {"begin", "end", "centering", "caption", "toprule", "midrule", "bottomrule", "textbf", "textbackslash"}
    known |= {
        "small",
        "setlength",
        "tabcolsep",
        "textasciicircum",
        "textasciitilde",
        "pm",
        "geq",
        "leq",
        "cdot",
        "rho",
        "alpha",
    }
    bare = re.sub(r"\\begin\{tabular\}\[b\]\{@\{\}r@\{\}\}(.*?)\\end\{tabular\}", r"\1", bare)  # a head in two lines
    assert set(re.findall(r"\\([a-zA-Z]+)", bare)) <= known
    tables = []
    for columns, body in re.findall(r"\\begin\{tabular\}\{([lr]+)\}(.*?)\\end\{tabular\}", bare, re.DOTALL):
        lines = [line.strip() for line in body.splitlines() if "&" in line]
        assert all(line.endswith(r"\\") for line in lines)
        rows = [re.split(r"(?<!\\)&", line.removesuffix(r"\\")) for line in lines]
        assert {len(row) for row in rows} == {len(columns)}
        assert not any(line.startswith(("[", "*")) for line in lines)  # they would belong to the \\ before
        tables.append([[cell.strip() for cell in row] for row in rows])
    return tables


def test_latex_has_the_best_in_bold_and_every_sign_escaped() -> None:
    found = comparison(TWO_SEEDS, (NINETY,), "plain")
    results, target, difference = check_latex(to_latex(sheets(found, "α = 0.1 · digits")))
    assert results[0][:2] == ["variant", r"best (\%)"]
    assert results[1][1] == r"\textbf{93.0 $\pm$ 1.4}"
    assert results[2][0] == r"50\% \& \$x\_1\$ \#\{a\}\textasciitilde{}\textasciicircum{}\textbackslash{}$|${*}"
    assert target[1][1] == r"\textbf{2 $\pm$ 0}"
    assert target[2][1] == "$>$ 2 (1 of 2)"
    assert difference[1][-2:] == [r"$-$15.50 $\pm$ 18.50", "no"]
    assert latex_text("[ρ]") == r"{[}$\rho$]"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex with booktabs")
def test_latex_compiles(tmp_path: Path) -> None:
    signs = "".join(latex for latex in LATEX if latex not in "[*")
    named = {**TWO_SEEDS, f"[{signs}": TWO_SEEDS["plain"], "*²‖é": TWO_SEEDS["plain"]}
    write_tables(comparison(named, (NINETY,), "plain"), tmp_path, f"every sign: {signs}")
    (tmp_path / "paper.tex").write_text(
        r"\documentclass{article}\usepackage[utf8]{inputenc}\usepackage{booktabs}"
        r"\begin{document}\input{table}\end{document}"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "paper.pdf").stat().st_size > 10_000


def test_heads_of_numbers_are_in_two_lines_in_latex() -> None:
    head = Column("sent in all by a client", [Cell("13.3 MB")])
    assert latex_head(head) == r"\begin{tabular}[b]{@{}r@{}}sent in all \\ by a client\end{tabular}"
    assert latex_head(Column("rounds", [Cell("13")])) == "rounds"


def test_one_seed_has_no_spread_in_any_file(tmp_path: Path) -> None:
    single = comparison({label: {0: runs[0]} for label, runs in TWO_SEEDS.items()}, (NINETY,), "plain")
    for path in write_tables(single, tmp_path, "title"):
        text = path.read_text()
        assert not re.search(r"±|\\pm|spread|standard deviation", text), path
    check_latex((tmp_path / "table.tex").read_text())


def test_a_variant_that_diverged_has_no_rounds_to_a_target() -> None:
    lost, late = (
        replace(record(0.5), stopped="diverged in round 2"),
        replace(record(0.95), stopped="diverged in round 2"),
    )
    found = comparison(
        {"lost": {0: lost}, "one": {0: record(0.9), 1: lost}, "late": {0: late}, "low": {0: record(0.5)}}
    )
    columns = {column.head: column.texts for column in target_sheet(found, NINETY, seconds=False).columns}
    assert columns["rounds"] == ["diverged", "diverged (1 of 2)", "1", "> 1"]
    assert columns["messages"] == ["–", "–", "3", "> 3"]


def test_markdown_is_one_table_for_each_sheet() -> None:
    text = "\n".join(map(to_markdown, sheets(comparison(TWO_SEEDS, (NINETY,), "plain"))))
    assert "| plain | **93.0 ± 1.4 %** |" in text
    assert r"50% & $x_1$ #{a}~^\\\|\* " in text
    assert len(re.findall(r"(?m)^\|---\|", text)) == 3


def swept() -> Comparison:
    """Two methods on two graphs; the second is not there for one of them."""
    values = {("a", "ring"): 0.5, ("a", "full"): 0.7, ("b", "ring"): 0.6}
    return Comparison({
        f"{method}, {graph}": VariantResult(
            f"{method}, {graph}", {"variant": method, "graph": graph}, {0: record(best), 1: record(best + 0.1)}
        )
        for (method, graph), best in values.items()
    })  # fmt: skip


def test_tidy_and_pivot(tmp_path: Path) -> None:
    found = swept()
    write_tables(found, tmp_path, "")
    tidy = pd.read_csv(tmp_path / "table.csv")
    assert list(tidy.columns[:4]) == ["variant", "graph", "seeds", "best accuracy"]
    assert list(tidy["graph"]) == ["ring", "full", "ring"]
    assert not [column for column in tidy.columns if "seconds" in column]
    pivot = pd.read_csv(tmp_path / "pivot.csv", index_col="variant")
    assert pivot.loc["a", "graph=full"] == pytest.approx(0.75)
    assert pivot.loc["a", "graph=full spread"] == pytest.approx(0.1 / 2**0.5)
    assert pd.isna(pivot.loc["b", "graph=full"])
    runs = pd.read_csv(tmp_path / "runs.csv")
    assert list(runs["seed"]) == [0, 1] * 3
    times = pd.read_csv(tmp_path / "seconds.csv")
    assert list(times.columns) == ["variant", "graph", "seed", "seconds"]
    sheet = pivot_sheet(found)
    assert [column.cells for column in sheet.columns[1:]] == [
        [Cell("55.0 ± 7.1 %"), Cell("65.0 ± 7.1 %", best=True)],
        [Cell("75.0 ± 7.1 %", best=True), Cell("")],
    ]


def test_best_is_marked_within_one_set_of_test_samples() -> None:
    found = comparison({
        "a": {0: record(0.5)}, "b": {0: record(0.6)},
        "c": {0: record(0.9, dataset="mnist")},
        "d": {0: record(0.8, dataset={"name": "mnist", "train_samples": 60, "normalise": True})},
    })  # fmt: skip
    (sheet,) = sheets(found)
    assert [cell.best for cell in sheet.columns[1].cells] == [False, True, True, False]
    assert "Not all were tested on the same samples: compare within one data set." in sheet.notes


def test_other_seeds_are_told() -> None:
    same, other = {0: record(0.5), 1: record(0.6)}, {0: record(0.5), 2: record(0.6)}
    (sheet,) = sheets(comparison({"a": same, "b": other}))
    assert sheet.notes == ["Not all have the same seeds, so their data and initial weights differ too."]
    (sheet,) = sheets(comparison({"a": same, "b": same}))
    assert sheet.notes == []


def test_unequal_numbers_of_seeds_are_a_column() -> None:
    (sheet,) = sheets(comparison({"a": {0: record(0.5), 1: record(0.6)}, "b": {0: record(0.6)}}))
    assert [column.head for column in sheet.columns[:2]] == ["variant", "seeds"]
    assert [cell.text for cell in sheet.columns[1].cells] == ["2", "1"]
    assert [cell.text for cell in sheet.columns[2].cells] == ["55.0 ± 7.1 %", "60.0 %"]
