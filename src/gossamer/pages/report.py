"""The report: runs as one HTML file that needs nothing else, for a browser, a phone or paper."""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from gossamer.pages.report_data import clients, curves, differing
from gossamer.pages.report_measures import flatness_sheet, landscapes, sharpness_sheets, theory_sheet
from gossamer.pages.report_verdict import verdict
from gossamer.pages.tables import Sheet, plain_column, seeds_words, sheets
from gossamer.runs.files import write_text
from gossamer.runs.folder import RunFolder
from gossamer.studies import COMPARISON, Comparison
from gossamer.system.words import counted

#: The name of a report that is written into a folder.
REPORT = "report.html"
#: The modules of the page, each after those that it imports.
MODULES = ("numbers.js", "dom.js", "table.js", "charts.js", "clients.js", "landscape.js", "report.js")
#: Nothing may be fetched from anywhere, whatever the page holds.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; base-uri 'none'"


def write_report(
    comparison: Comparison, path: Path, title: str, sources: Sequence[Path] = (), data_dir: Path | None = None
) -> Path:
    """Write the report of a comparison; `sources` are the folders that it was read from, `data_dir` has the data."""
    write_text(path, report(comparison, title, sources, data_dir))
    return path


def report(comparison: Comparison, title: str, sources: Sequence[Path] = (), data_dir: Path | None = None) -> str:
    """The page."""
    drawn, held, around = curves(comparison), clients(comparison), landscapes(comparison)
    data = {**drawn, "clients": held, "landscapes": around, "files": tables_as_csv(comparison)}
    body = [
        f"<header><h1>{escape(title)}</h1>",
        f'<p class="verdict">{escape(verdict(comparison))}</p>',
        *(f'<p class="note warn">{escape(line)}</p>' for line in remarks(comparison)),
        "</header>",
        *section("Results", results(comparison)),
        *section("Curves", curve_places(comparison, drawn)),
        *section("Variants" if len(comparison.variants) > 1 else "The run", variants(comparison)),
        *section("Clients", client_places(held)),
        *section("Flatness", flatness(comparison, around)),
        *section("Theory", table(bounds) if (bounds := theory_sheet(comparison, data_dir)) is not None else ()),
        *section("How to repeat it", repeat(comparison, sources)),
    ]
    return page(title, "\n".join(body), data, MODULES)


def page(title: str, body: str, data: Any, modules: Sequence[str]) -> str:
    """A whole page with its styles, data and scripts inside."""
    # The only text that could end the data's element early is "</script"; without "<" there is none.
    inside = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<style>
{asset("uplot/uPlot.min.css")}
{asset("style.css")}
</style>
</head>
<body>
<main>
{body}
</main>
<script type="application/json" id="data">{inside}</script>
<script>
{asset("uplot/uPlot.iife.min.js")}
</script>
<script type="module">
{joined(modules)}
</script>
</body>
</html>
"""


def asset(name: str) -> str:
    """The text of a style or script of this room."""
    return files("gossamer.pages").joinpath("scripts").joinpath(name).read_text(encoding="utf-8")


def joined(modules: Iterable[str]) -> str:
    """Modules as one, since a page that is one file cannot import: each name is defined in one of them alone."""
    text = "\n".join(asset(name) for name in modules)
    text = re.sub(r"^import [^;]*;\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^export ", "", text, flags=re.MULTILINE)


def section(title: str, lines: Iterable[str]) -> Iterator[str]:
    """A section with a heading; none if it has nothing to say."""
    inside = list(lines)
    if inside:
        yield from (f"<section><h2>{escape(title)}</h2>", *inside, "</section>")


def remarks(comparison: Comparison) -> list[str]:
    """Which runs are not whole, and why; of many, how many more."""
    found = comparison.remarks
    return found if len(found) <= 6 else [*found[:5], f"{len(found) - 5} more runs are not whole."]


def results(comparison: Comparison) -> Iterator[str]:
    """The tables, sortable, the best of each column marked."""
    words = seeds_words(comparison)
    about = [words[0].upper() + words[1:] + "."] if words else []
    if len(comparison.variants) > 1:
        about.append("Bold: the best of a column.")
    sorting = '<span class="screen">A click on a head sorts by it.</span>' if len(comparison.variants) > 1 else ""
    if about:
        yield f'<p class="about">{escape(" ".join(about))} {sorting}</p>'
    for sheet in sheets(comparison, seconds=True):
        yield from table(sheet)


def table(sheet: Sheet) -> Iterator[str]:
    """A table for people as HTML."""
    yield '<div class="sheet"><div class="scroll" tabindex="0"><table class="sortable">'
    if sheet.title:
        yield f"<caption><span>{escape(sheet.title)}</span></caption>"
    heads = (f'<th scope="col"{_kind(column.is_text)}>{escape(column.head)}</th>' for column in sheet.columns)
    yield f"<thead><tr>{''.join(heads)}</tr></thead><tbody>"
    for row in zip(*(column.cells for column in sheet.columns), strict=True):
        cells = (
            f"<td{_kind(column.is_text, cell.best)}>{escape(cell.text)}</td>"
            for column, cell in zip(sheet.columns, row, strict=True)
        )
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"
    yield from (f'<p class="note">{escape(note)}</p>' for note in sheet.notes)
    yield "</div>"


def _kind(is_text: bool, best: bool = False) -> str:
    names = " ".join(name for name, has in (("text", is_text), ("best", best)) if has)
    return f' class="{names}"' if names else ""


def curve_places(comparison: Comparison, drawn: dict[str, Any]) -> Iterator[str]:
    """Where the scripts draw the curves, and what there is to know of them."""
    if not drawn["metrics"]:
        return
    several = any(len(variant.runs) > 1 for variant in comparison.variants.values())
    notes = ["Bands: ± one standard deviation over the seeds."] if several else []
    notes += drawn["notes"]
    zoom = '<span class="screen">Drag across a chart to zoom; a double click shows all of it.</span>'
    yield '<div class="controls" id="curves-controls"></div><div id="curves-legend"></div>'
    yield '<div class="charts" id="curves-charts"></div>'
    yield f'<p class="note" style="margin-top: 20px">{escape(" ".join(notes))} {zoom}</p>'


def variants(comparison: Comparison) -> Iterator[str]:
    """What all variants have in common, and what tells each from the others."""
    same, apart = differing(comparison)
    keys = list(dict.fromkeys(key for each in apart.values() for key in each))
    if keys:
        columns = [plain_column("variant", apart, is_text=True)]
        columns += [plain_column(key, (each.get(key, "–") for each in apart.values()), is_text=True) for key in keys]
        yield from table(Sheet("", columns, []))
        yield "<h3>The same for all</h3>"
    yield facts(same.items())


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values, in two columns."""
    inside = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in pairs)
    return f'<dl class="facts">{inside}</dl>'


def client_places(held: dict[str, Any]) -> Iterator[str]:
    """Where the scripts draw the clients."""
    shown = any(each["partition"] is not None or each["graph"] is not None for each in held["variants"])
    if shown:
        yield '<p class="about">Of the first seed of each variant.</p>' if len(held["variants"]) > 1 else ""
        yield '<div class="controls" id="clients-controls"></div><div id="clients-body"></div>'
    yield from (f'<p class="note warn">{escape(note)}</p>' for note in held["notes"])


def flatness(comparison: Comparison, around: list[dict[str, Any]]) -> Iterator[str]:
    """The tables of flatness, and where the scripts draw the landscapes."""
    during = flatness_sheet(comparison)
    for sheet in [*([during] if during is not None else []), *sharpness_sheets(comparison)]:
        yield from table(sheet)
    if around:
        yield "<h3>The loss around the averaged model</h3>"
        seeds = " Of the first seed of each variant." if len(comparison.records) > len(comparison.variants) else ""
        yield (
            '<p class="about">Along random directions, each filter of which is as long as the model\'s own, from '
            f"−{around[0]['radius']:g} to {around[0]['radius']:g} times it; the model is in the middle.{seeds}</p>"
        )
        yield '<div id="landscapes"></div>'


def repeat(comparison: Comparison, sources: Sequence[Path]) -> Iterator[str]:
    """The command, the file, versions, seeds, the machine, and the data as CSV."""
    folder = comparison.folder or (sources[0] if len(sources) == 1 else None)
    study = folder / COMPARISON if folder is not None else None
    if study is not None and study.is_file():
        yield f"<pre class='wrap'>gossamer compare {escape(shlex.quote(COMPARISON))}</pre>"
        yield f"<p>with this file, {escape(COMPARISON)}:</p>"
        yield f"<pre tabindex='0'>{escape(study.read_text(encoding='utf-8', errors='replace').strip())}</pre>"
    else:
        yield "<p>Each run folder holds its experiment.toml: <code>gossamer run experiment.toml</code> repeats it.</p>"
    yield facts(machine(comparison))
    yield '<h3 class="screen">The data</h3><div class="downloads" id="downloads"></div>'


def machine(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """What computed the runs, each fact once."""
    found: dict[str, list[str]] = {}

    def note(key: str, value: Any) -> None:
        if value not in (None, "", {}) and str(value) not in found.setdefault(key, []):
            found[key].append(str(value))

    for variant in comparison.variants.values():
        for seed, run in variant.runs.items():
            note("seeds", seed)
            if run.folder is None:
                continue
            said = RunFolder(run.folder).environment()
            packages = said.get("packages")
            if isinstance(packages, dict):
                note("versions", ", ".join(f"{name} {number}" for name, number in packages.items()))
            note("commit", said.get("commit"))
            note("Python", said.get("python"))
            note("machine", said.get("platform"))
            engine = said.get("engine")
            if isinstance(engine, dict) and isinstance(engine.get("workers"), int):
                note("computed by", counted(engine["workers"], "worker process").replace("processs", "processes"))
    for key, values in found.items():
        yield key, (", " if key == "seeds" else "; ").join(values)


def tables_as_csv(comparison: Comparison) -> dict[str, str]:
    """The tables as CSV, by file name."""
    texts = {"table.csv": comparison.table.to_csv(index=False), "runs.csv": comparison.run_table.to_csv(index=False)}
    if comparison.baselines:
        texts["differences.csv"] = comparison.difference_table.to_csv(index=False)
    return texts
