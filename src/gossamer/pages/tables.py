"""The tables of a comparison: what they hold, and their files in CSV, Markdown and LaTeX."""

import math
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gossamer.measure import METRICS, SCORES
from gossamer.runs.files import write_text
from gossamer.studies import Comparison, Cost, Target, VariantResult
from gossamer.system.words import amount, number, score_text

if TYPE_CHECKING:
    import pandas as pd

#: The caption of a table with runs through a server.
WAY_UP = "Sent by a client through a server: the way up alone."


class Cell(NamedTuple):
    """One cell of a table, and whether it is the best of its column."""

    text: str
    best: bool = False


class Column(NamedTuple):
    """One column: its head, and a cell for each row."""

    head: str
    cells: list[Cell]
    #: Text stands on the left, numbers on the right.
    is_text: bool = False

    @property
    def texts(self) -> list[str]:
        return [cell.text for cell in self.cells]


class Sheet(NamedTuple):
    """A table for people."""

    title: str
    columns: list[Column]
    #: What stands below the table.
    notes: list[str]
    #: Heads of columns that a narrow terminal leaves out, the first one first.
    dispensable: tuple[str, ...] = ()


def sheets(comparison: Comparison, title: str = "", seconds: bool = False) -> list[Sheet]:
    """The tables of a comparison: results, what it took to reach each target, differences to the baseline.

    With `seconds`, also times, which differ from one computer to another.
    """
    made = [results_sheet(comparison, title, seconds)]
    made += [target_sheet(comparison, target, seconds) for target in comparison.targets]
    return [*made, difference_sheet(comparison)] if comparison.baselines else made


def results_sheet(comparison: Comparison, title: str, seconds: bool) -> Sheet:
    """Mean ± standard deviation over the seeds, one row per variant."""
    score, variants = comparison.score, list(comparison.variants.values())
    direction = METRICS[score.key].direction
    what = "" if score.key == "test_accuracy" else f" {score.words.removeprefix('test ').removeprefix('training ')}"

    def scored(head: str, key: str, pick: str) -> Column:
        estimates = [getattr(variant, pick)(key) for variant in variants]
        cells = [score_text(key, *estimate) for estimate in estimates]
        return Column(head, marked(comparison, cells, [estimate.mean for estimate in estimates], direction))

    columns = [scored(f"best{what}", score.key, "best"), scored(f"last{what}", score.key, "last")]
    if score.worst:
        columns.append(scored("worst client", score.worst, "last"))
    if score.key in ("test_score", "test_error"):  # beside a metric of one's own
        own = [other for other in SCORES[2:4] if any(not math.isnan(r.last(other.key)) for r in comparison.records)]
        columns += [scored(f"last {other.words}", other.key, "last") for other in own]
    columns.append(plain_column("consensus", (number(variant.last("consensus").mean) for variant in variants)))
    sent = (amount(variant.estimate(lambda run: run.client_bytes).mean, unit="B") for variant in variants)
    columns.append(plain_column("sent in all by a client", sent))
    if seconds:
        times = (variant.estimate(lambda run: run.seconds).mean for variant in variants)
        columns.append(plain_column("time", (seconds_text(time) for time in times)))
    notes = [WAY_UP] if has_server(comparison) else []
    if len(set().union(*(variant.test_sets for variant in variants))) > 1:
        notes.append("Not all were tested on the same samples: compare within one data set.")
    if len({frozenset(variant.runs) for variant in variants}) > 1 and "seed" not in comparison.keys:
        notes.append("Not all have the same seeds, so their data and initial weights differ too.")
    return Sheet(title, [*key_columns(comparison), *columns], notes, ("time", f"last{what}", "consensus"))


def target_sheet(comparison: Comparison, target: Target, seconds: bool) -> Sheet:
    """What every variant did until it reached a target."""
    variants = list(comparison.variants.values())
    results = [variant.until(target) for variant in variants]
    columns = []
    for quantity in Cost._fields:
        if quantity == "seconds" and not seconds:
            continue
        cells: list[str] = []
        means: list[float] = []
        for variant, result in zip(variants, results, strict=True):
            estimate, bound = result.estimate(quantity), result.more_than(quantity)
            reached = f" ({result.met} of {len(result.by_seed)})" if result.met and quantity == "rounds" else ""
            if estimate is not None:
                cells.append(quantity_text(quantity, *estimate))
            elif any(variant.runs[seed].diverged for seed, each in result.by_seed.items() if not each.met):
                cells.append(f"diverged{reached}" if quantity == "rounds" else "–")  # more rounds would not reach it
            else:
                cells.append("–" if math.isnan(bound) else f"> {quantity_text(quantity, bound)}{reached}")
            means.append(math.nan if estimate is None else estimate.mean)
        head = {"bytes": "sent by all, both ways", "seconds": "time"}.get(quantity, quantity)
        columns.append(Column(head, marked(comparison, cells, means, "down")))
    some = any(0 < result.met < len(result.by_seed) for result in results)
    notes = ["In brackets: the number of seeds that reached it."] if some else []
    title = ", ".join(filter(None, [f"Until {target}", seeds_words(comparison)]))
    return Sheet(title, [*key_columns(comparison), *columns], notes, ("time", "messages", "gradients"))


def difference_sheet(comparison: Comparison) -> Sheet:
    """Every variant minus its baseline, in pairs of one seed."""
    score = comparison.score
    found = {label: comparison.difference(label) for label in comparison.variants}
    pairs = {label: difference for label, difference in found.items() if difference is not None}
    percent = "accuracy" in score.key
    several = any(difference.error is not None for difference in pairs.values())

    def text(value: float, error: float | None) -> str:
        if math.isnan(value):
            return "–"
        factor, digits, fine = (100, ".2f", ".2f") if percent else (1, ".3g", ".2g")
        shown = f"{factor * value:+{digits}}".replace("-", "−")
        return shown if error is None else f"{shown} ± {factor * error:{fine}}"

    head = "difference" + (" in points" if percent else "") + (" ± standard error" if several else "")
    columns = [
        *key_columns(comparison, list(pairs)),
        plain_column("baseline", (difference.baseline for difference in pairs.values()), is_text=True),
        plain_column(head, (text(difference.mean, difference.error) for difference in pairs.values())),
    ]
    if len({len(difference.seeds) for difference in pairs.values()}) > 1:
        columns.append(plain_column("seeds", (str(len(difference.seeds)) for difference in pairs.values())))
    columns.append(plain_column("more than its error", (d.words for d in pairs.values()), is_text=True))
    seeds = max(len(difference.seeds) for difference in pairs.values())
    over = f", over {seeds} seeds" if several else ""
    title = f"Difference to the baseline in best {score.words}, in pairs of one seed{over}"
    return Sheet(title, columns, [], ("more than its error",))


def pivot_sheet(comparison: Comparison) -> Sheet:
    """The best score, one row for each value of the first key and one column for each of the others."""
    score, first = comparison.score, comparison.keys[0]
    rows = list(dict.fromkeys(variant.values[first] for variant in comparison.variants.values()))
    heads: dict[str, dict[str | int | float, VariantResult]] = {}
    for variant in comparison.variants.values():
        heads.setdefault(pivot_head(variant, first), {})[variant.values[first]] = variant
    columns = [plain_column(first, map(str, rows), is_text=True)]
    for head, found in heads.items():
        estimates = [found[row].best(score.key) if row in found else None for row in rows]
        best = leading([math.nan if e is None else e.mean for e in estimates], METRICS[score.key].direction)
        cells = ["" if estimate is None else score_text(score.key, *estimate) for estimate in estimates]
        columns.append(Column(head, [Cell(text, mark) for text, mark in zip(cells, best, strict=True)]))
    return Sheet(", ".join(filter(None, [f"Best {score.words}", seeds_words(comparison)])), columns, [])


def pivot_head(variant: VariantResult, first: str) -> str:
    """The values of all keys but the first, as the head of a column."""
    return ", ".join(f"{key}={value}" for key, value in variant.values.items() if key != first)


def key_columns(comparison: Comparison, labels: Sequence[str] | None = None) -> list[Column]:
    """One column for each key, for all variants or for some; of unequal numbers of seeds, one more."""
    variants = [comparison.variants[label] for label in labels or comparison.variants]
    columns = [
        plain_column(key, (str(variant.values.get(key, "")) for variant in variants), is_text=True)
        for key in comparison.keys
    ]
    if labels is None and len({len(variant.runs) for variant in variants}) > 1:
        columns.append(plain_column("seeds", (str(len(variant.runs)) for variant in variants)))
    return columns


def plain_column(head: str, cells: Iterable[str], is_text: bool = False) -> Column:
    """A column in which nothing is marked."""
    return Column(head, [Cell(text) for text in cells], is_text)


def head_lines(column: Column) -> list[str]:
    """The head of a column of numbers, in at most two lines."""
    narrow = max(map(len, [*column.head.split(), *column.texts]))
    return next(
        lines
        for width in range(narrow, narrow + len(column.head))
        if len(lines := textwrap.wrap(column.head, width)) < 3
    )


def marked(comparison: Comparison, cells: Sequence[str], means: Sequence[float], direction: str | None) -> list[Cell]:
    """Cells in which the best of all variants with the same test samples is marked."""
    samples = [tuple(sorted(variant.test_sets)) for variant in comparison.variants.values()]
    best = [False] * len(cells)
    for group in set(samples):
        inside = [mean if own == group else math.nan for own, mean in zip(samples, means, strict=True)]
        best = [mark or new for mark, new in zip(best, leading(inside, direction), strict=True)]
    return [Cell(text, mark) for text, mark in zip(cells, best, strict=True)]


def leading(means: Sequence[float], direction: str | None) -> list[bool]:
    """Which of the numbers are the best; none of a single one.

    >>> leading([0.9, 0.8, math.nan], "up"), leading([0.9], "up")
    ([True, False, False], [False])
    """
    known = [mean for mean in means if not math.isnan(mean)]
    best = (max if direction == "up" else min)(known, default=math.nan)
    return [len(means) > 1 and mean == best for mean in means]


def has_server(comparison: Comparison) -> bool:
    """Whether a server takes part in any of the runs."""
    graphs = (record.experiment.get("graph", "") for record in comparison.records)
    return any((graph if isinstance(graph, str) else graph.get("name")) == "server" for graph in graphs)


def quantity_text(quantity: str, value: float, spread: float | None = None) -> str:
    """An amount of rounds, bytes, messages, gradients or seconds."""
    if quantity == "seconds":
        return seconds_text(value, spread)
    return amount(value, spread, "B" if quantity == "bytes" else "")


def seconds_text(value: float, spread: float | None = None) -> str:
    """Seconds to a tenth, with their spread if given."""
    return "–" if math.isnan(value) else f"{value:.1f}" + ("" if spread is None else f" ± {spread:.1f}") + " s"


def seeds_words(comparison: Comparison) -> str:
    """What numbers with ± are, if there are any."""
    counts = {len(variant.runs) for variant in comparison.variants.values()}
    if counts == {1}:
        return ""
    return f"{f'{counts.pop()} seeds' if len(counts) == 1 else 'several seeds'}: mean ± standard deviation"


def write_tables(comparison: Comparison, folder: Path, title: str) -> list[Path]:
    """Write the tables of a comparison into a folder.

    Files hold what depends on the experiments alone; seconds, which differ from run to run, are in a file of their own.
    """
    made = sheets(comparison, title)
    if len(comparison.keys) > 1:
        made.append(pivot_sheet(comparison))
    runs = comparison.run_table
    times = [name for name in comparison.measures if name.startswith("seconds")]
    texts = {
        "table.csv": without(comparison.table, times).to_csv(index=False),
        "table.md": "\n".join(map(to_markdown, made)),
        "table.tex": to_latex(made),
        "pivot.csv": pivot_table(comparison).to_csv(index=False),
        "runs.csv": without(runs, times).to_csv(index=False),
        "seconds.csv": runs[[*comparison.keys, "seed", *times]].to_csv(index=False),
    }
    if comparison.baselines:
        found = comparison.difference_table
        texts["differences.csv"] = found[~found["measure"].isin(times)].to_csv(index=False)
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def without(table: "pd.DataFrame", names: Sequence[str]) -> "pd.DataFrame":
    """A table without some columns and their spreads."""
    return table.drop(columns=[c for c in table.columns if c.removesuffix(" spread") in names])


def pivot_table(comparison: Comparison) -> "pd.DataFrame":
    """The best score with its spread, one row for each value of the first key; of one key, one column for each seed."""
    import pandas as pd  # takes a third of a second, which no run should wait for before its first round

    key, first = comparison.score.key, comparison.keys[0]
    rows: dict[str | int | float, dict[str, str | int | float]] = {}
    for variant in comparison.variants.values():
        row = rows.setdefault(variant.values[first], {first: variant.values[first]})
        if len(comparison.keys) == 1:
            row |= {f"seed={seed}": run.best(key) for seed, run in variant.runs.items()}
            continue
        head, estimate = pivot_head(variant, first), variant.best(key)
        row[head] = estimate.mean
        if estimate.spread is not None:
            row[f"{head} spread"] = estimate.spread
    return pd.DataFrame(rows.values())


def to_markdown(sheet: Sheet) -> str:
    """A table in Markdown, the best of a column in bold; a title stands above it in bold."""

    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*")

    lines = [f"**{escaped(sheet.title)}**", ""] if sheet.title else []
    lines.append(f"| {' | '.join(escaped(column.head) for column in sheet.columns)} |")
    lines.append(f"|{'|'.join('---' if column.is_text else '---:' for column in sheet.columns)}|")
    for row in zip(*(column.cells for column in sheet.columns), strict=True):
        lines.append(f"| {' | '.join(f'**{escaped(c.text)}**' if c.best else escaped(c.text) for c in row)} |")
    return "\n".join([*lines, *(line for note in sheet.notes for line in ("", escaped(note)))]) + "\n"


def greek(letter: str) -> str:
    """The name of a Greek letter in LaTeX."""
    name = unicodedata.name(letter).split()[-1].lower().replace("lamda", "lambda")  # as Unicode spells it
    return name.capitalize() if letter.isupper() else name


#: The unit of a number.
UNIT = re.compile(r" (%|s|[kMGT]?B)$")
#: Characters with a meaning in LaTeX, or that its fonts lack.
LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"$<$", ">": r"$>$", "±": r"$\pm$", "≥": r"$\geq$",
    "≤": r"$\leq$", "−": r"$-$", "–": "--", "·": r"$\cdot$", "×": r"$\times$", "∞": r"$\infty$", "|": r"$|$",
    "∇": r"$\nabla$", "∂": r"$\partial$", "‖": r"$\|$", "√": r"$\surd$", "≈": r"$\approx$", "≠": r"$\neq$",
    "∈": r"$\in$", "→": r"$\to$", "∑": r"$\sum$", "′": r"$'$", "ϵ": r"$\epsilon$", "ϕ": r"$\phi$", "ℓ": r"$\ell$",
    '"': "''",
    "[": "{[}", "*": "{*}",  # either would belong to the end of the row before
    **{letter: f"$\\{greek(letter)}$" for letter in "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΦΨΩ"},
}  # fmt: skip


def latex_text(text: str) -> str:
    r"""Text with LaTeX's special characters escaped.

    >>> print(latex_text("dfedsam_x(ρ=0.1): 93.6 ± 1.1 %"))
    dfedsam\_x($\rho$=0.1): 93.6 $\pm$ 1.1~\%
    """
    escaped = "".join(LATEX.get(character, character) for character in " ".join(text.split()))
    return escaped.replace(r" \%", r"~\%")


def latex_head(column: Column) -> str:
    """The head of a column; that of numbers in two lines if it is wider than they are."""
    lines = [column.head] if column.is_text else head_lines(column)
    shown = r" \\ ".join(map(latex_text, lines))
    return shown if len(lines) == 1 else rf"\begin{{tabular}}[b]{{@{{}}r@{{}}}}{shown}\end{{tabular}}"


def unit_in_head(column: Column) -> Column:
    """A column whose head says the unit that all its cells have.

    >>> unit_in_head(Column("best", [Cell("91.0 ± 0.3 %", True), Cell("–")]))
    Column(head='best (%)', cells=[Cell(text='91.0 ± 0.3', best=True), Cell(text='–', best=False)], is_text=False)
    """
    units = {found and found[0] for cell in column.cells if cell.text.strip("–") for found in [UNIT.search(cell.text)]}
    if column.is_text or len(units) != 1 or not (unit := units.pop()):
        return column
    cells = [cell._replace(text=cell.text.removesuffix(unit)) for cell in column.cells]
    return Column(f"{column.head} ({unit.strip()})", cells)


def to_latex(made: Sequence[Sheet]) -> str:
    """Tables in LaTeX with the rules of booktabs, the best of a column in bold, for `\\input` in a document."""
    lines = [r"% Needs \usepackage{booktabs}; with \usepackage[utf8]{inputenc} for labels that are not ASCII."]
    for sheet in made:
        columns = list(map(unit_in_head, sheet.columns))
        bold: Callable[[Cell], str] = lambda c: rf"\textbf{{{latex_text(c.text)}}}" if c.best else latex_text(c.text)  # noqa: E731
        caption = " ".join(f"{text.rstrip('.')}." for text in (sheet.title, *sheet.notes) if text)
        lines += [
            r"\begin{table}",
            r"  \centering",
            r"  \small\setlength{\tabcolsep}{4pt}",
            *([rf"  \caption{{{latex_text(caption)}}}"] if caption else []),
        ]
        lines += [rf"  \begin{{tabular}}{{{''.join('l' if column.is_text else 'r' for column in columns)}}}"]
        lines += [r"    \toprule", rf"    {' & '.join(map(latex_head, columns))} \\"]
        lines += [r"    \midrule"]
        lines += [
            rf"    {' & '.join(map(bold, row))} \\" for row in zip(*(column.cells for column in columns), strict=True)
        ]
        lines += [r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"
