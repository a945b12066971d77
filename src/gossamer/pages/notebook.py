"""Runs, comparisons and partitions as a notebook shows them: a table and curves."""

import base64
from functools import singledispatch
from html import escape
from typing import Any

from gossamer.data import PartitionSummary
from gossamer.pages import figures
from gossamer.pages.figures import Plot
from gossamer.pages.report import remarks, table
from gossamer.pages.tables import seeds_words, sheets
from gossamer.runs.record import RunRecord
from gossamer.simulation import Run
from gossamer.studies import Comparison, VariantResult, part_label
from gossamer.studies.execution import record_of

STYLE = """<style>
.gossamer th, .gossamer td {padding: 2px 10px; text-align: right} .gossamer .text, .gossamer caption {text-align: left}
.gossamer .best {font-weight: bold}
</style>"""


@singledispatch
def as_comparison(result: Any) -> Comparison:
    """A result as a comparison of one run, or of several."""
    raise TypeError(f"no runs: {result!r}")


@as_comparison.register
def _(result: Comparison) -> Comparison:
    return result


@as_comparison.register
def _(result: RunRecord) -> Comparison:
    seed = result.experiment.get("seed", 0)
    return Comparison({result.label: VariantResult(result.label, {"run": result.label}, {seed: result})})


@as_comparison.register
def _(result: Run) -> Comparison:
    return as_comparison(record_of(result, part_label(result.experiment, "method")))


def plot(result: Any, *what: Any, **options: Any) -> Plot:
    """A figure of a result; without arguments, an overview."""
    if isinstance(result, PartitionSummary):
        return figures.plot_partition(result)
    comparison = as_comparison(result)
    return figures.plot(comparison, *what, **options) if what or options else figures.overview(comparison)


def html(result: Any) -> str:
    """A table, and curves if any round was measured."""
    if isinstance(result, PartitionSummary):
        return picture(plot(result))
    comparison = as_comparison(result)
    said = (f"<p>{escape(line)}</p>" for line in remarks(comparison))
    drawn = [picture(plot(result))] if any(len(record.metrics) for record in comparison.records) else []
    tables = ("".join(table(sheet)) for sheet in sheets(comparison, seeds_words(comparison), seconds=True))
    return f'<div class="gossamer">{STYLE}{"".join([*tables, *said, *drawn])}</div>'


def picture(figure: Plot) -> str:
    """A figure inside a page."""
    content, about = figure._repr_png_()
    data = base64.b64encode(content).decode()
    return f'<img alt="figure" width="{about["width"]}" src="data:image/png;base64,{data}">'
