"""The tables of docs/reproduction.md and docs/which-method.md: a paper's numbers beside those of our stored runs.

`python -m gossamer.pages.reproduction results PAGE...` writes every table anew, between its two comments
`<!-- table: NAME -->` and `<!-- end of table -->`; the prose around them is kept.
"""

import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gossamer.pages import tuned
from gossamer.runs.files import write_text
from gossamer.studies.reproduction import PaperStudy, load_paper, names, reached_in, read_results, stored_by_experiment
from gossamer.studies.results import Estimate, VariantResult

TABLE = re.compile(r"(<!-- table: ([a-z0-9-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
#: How the heading of a column of rounds ends.
TO_TARGET = ": paper / ours"
#: The heading of a further metric, and how its values are written.
COLUMNS = {
    "train_accuracy": ("training %", ".2%"),
    "top_eigenvalue": ("top eigenvalue", ".3g"),
    "sam_sharpness": ("SAM-sharpness", ".3g"),
}


class Side(NamedTuple):
    """A table of the paper's numbers and ours, as text, and the cells that were not run."""

    headings: list[str]
    rows: list[list[str]]
    missing: list[str]


def side_by_side(paper: PaperStudy, runs: Mapping[str, VariantResult]) -> Side:
    """The paper's numbers beside ours, one row for each cell that was run; of a tuned study, one for each method."""
    if paper.tuning is not None:
        return Side(tuned.headings(paper), tuned.rows(paper, runs), tuned.unfinished(paper, runs))
    accuracy = any(numbers.best is not None for numbers in paper.numbers.values())
    traffic = any(numbers.traffic is not None for numbers in paper.numbers.values())
    headings = ["cell", "seeds", "to round"]
    headings += ["paper %", "ours %", "difference"] if accuracy else [] if traffic else ["ours %"]
    headings += [COLUMNS.get(key, (key.replace("_", " "), ""))[0] for key in paper.columns]
    headings += [f"to {target} %{TO_TARGET}" for target in paper.targets]
    headings += ["paper GiB", "of FedAvg or Gossip", "ours: bytes a round", "of FedAvg or Gossip"] if traffic else []
    rows = []
    for label in paper.labels:
        if label not in runs:
            continue
        found, numbers = runs[label], paper.numbers.get(label)
        best = found.best(paper.metric)
        row = [label, str(len(found.runs)), _range([run.rounds for run in found.runs.values()])]
        if accuracy:
            said = numbers.best if numbers else None
            asked = paper.study.experiment.rounds  # a cell of fewer rounds asks for the speed alone
            whole = all(run.rounds >= max(asked, run.experiment["rounds"]) for run in found.runs.values())
            row += ["" if said is None else f"{said:.2f}", _percent(best)]
            row.append(f"{100 * best.mean - said:+.2f}" if said is not None and whole else "")
        elif not traffic:
            row.append(_percent(best))
        row += [_column(found, key) for key in paper.columns]
        row += [_rounds(paper, found, target) for target in paper.targets]
        if traffic and numbers and numbers.traffic:
            base = "FedAvg, server" if "server" in label else "Gossip"
            bytes_, others = (_bytes_a_round(runs.get(name)) for name in (label, base))
            said = paper.numbers[base].traffic or 1
            row += [f"{numbers.traffic:g}", f"{numbers.traffic / said:.2f}", f"{bytes_:,.0f}", f"{bytes_ / others:.3f}"]
        rows.append(row)
    return Side(headings, rows, [label for label in paper.labels if label not in runs])


def _bytes_a_round(found: VariantResult | None) -> float:
    if found is None:
        return float("nan")
    run = next(iter(found.runs.values()))
    return run.last("bytes_total") / run.rounds


def _percent(best: Estimate) -> str:
    spread = "" if best.spread is None else f" ± {100 * best.spread:.2f}"
    return f"{100 * best.mean:.2f}{spread}"


def _column(found: VariantResult, key: str) -> str:
    """A further metric after the last round; nothing where it was not measured."""
    mean, spread = found.last(key)
    if math.isnan(mean):
        return ""
    form = COLUMNS.get(key, ("", ".3g"))[1]
    shown = [format(value, form).removesuffix("%") for value in (mean, spread) if value is not None]
    return " ± ".join(shown)


def _range(values: list[int]) -> str:
    return str(values[0]) if len(set(values)) == 1 else f"{min(values)} to {max(values)}"


def _rounds(paper: PaperStudy, found: VariantResult, target: str) -> str:
    numbers = paper.numbers.get(found.label)
    if numbers is None or target not in numbers.rounds:
        return ""
    said = numbers.rounds[target]
    reached = [
        f"> {run.rounds}" if (at := reached_in(run, paper.metric, target)) is None else str(at)
        for run in found.runs.values()
    ]
    return f"{'> 300' if said is None else said} / {', '.join(reached)}"


def markdown(paper: PaperStudy, runs: Mapping[str, VariantResult]) -> str:
    """The table and the conclusions of a paper as Markdown."""
    side = side_by_side(paper, runs)
    lines = [f"{paper.source}: {paper.shows}. `gossamer reproduce {paper.name}`", ""]
    if side.rows:
        lines += [f"| {' | '.join(row)} |" for row in [side.headings, ["---"] * len(side.headings), *side.rows]]
        lines.append("")
    if side.missing and side.rows:
        cells = paper.labels if paper.tuning is None else paper.tuning.candidates
        lines += [f"Not run: {len(side.missing)} of {len(cells)} {'cells' if paper.tuning is None else 'methods'}.", ""]
    elif side.missing:
        open_ = "; ".join(f"*{conclusion.says}*" for conclusion in paper.conclusions)
        return "\n".join([*lines, f"Not run. Cannot be told: {open_}." if open_ else "Not run.", ""])
    if paper.tuning is not None:
        lines += [f"- {said}" for said in tuned.standings(paper, runs)]
    for conclusion in paper.conclusions:
        verdict, why = paper.judge(conclusion, runs)
        lines.append(f"- *{conclusion.says}*: **{verdict}** ({why})")
    return "\n".join(lines).rstrip("\n") + "\n"


def rebuild(page: str, results: Path) -> str:
    """The page with every table written anew from the stored results."""
    stored = stored_by_experiment(results)

    def table(found: re.Match[str]) -> str:
        paper = load_paper(found[2])
        return f"{found[1]}{markdown(paper, read_results(paper, results, stored))}{found[3]}"

    return TABLE.sub(table, page)


def overview() -> list[tuple[str, str, int]]:
    """Name, content and number of cells of every file."""
    papers = map(load_paper, names())
    return [(paper.name, f"{paper.source}: {paper.shows}", len(paper.labels)) for paper in papers]


if __name__ == "__main__":
    results, *pages = map(Path, sys.argv[1:])
    for page in pages:
        write_text(page, rebuild(page.read_text(encoding="utf-8"), results))
