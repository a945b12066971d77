"""Where output goes, and numbers as a person reads them."""

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from gossamer.workers.launch import first_process

#: Results go to standard output; progress, notes and errors to standard error, so that output can be piped. Of several
#: processes that a launcher started, the first one speaks for all.
out = Console(highlight=False, quiet=not first_process())
err = Console(stderr=True, highlight=False, quiet=not first_process())


def say_where(*paths: Path) -> None:
    """Where something was written."""
    out.print("written to " + ", ".join(f"[cyan]{escape(str(path))}[/]" for path in paths), soft_wrap=True)


def percent(value: float | None, spread: float | None = None) -> str:
    """An accuracy in percent, with its spread where there is one."""
    if value is None or value != value:
        return "–"
    return f"{100 * value:.1f} %" if spread is None else f"{100 * value:.1f} ± {100 * spread:.1f} %"


def number(value: float | None) -> str:
    """A measured number, to three digits."""
    return "–" if value is None or value != value else f"{value:.3g}"
