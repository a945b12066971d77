"""Standard output and standard error, and numbers as a person reads them."""

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gossamer.workers.launch import first_process

#: Results go to standard output; progress, notes and errors to standard error, so that output can be piped. Of several
#: processes that a launcher started, only the first one prints.
out = Console(highlight=False, quiet=not first_process())
err = Console(stderr=True, highlight=False, quiet=not first_process())


def say(line: str) -> None:
    """Print one line of a result, not wrapped: a command in it can be copied."""
    out.print(line, soft_wrap=True)


def note(line: str) -> None:
    """Print one line on standard error, not wrapped."""
    err.print(line, soft_wrap=True)


def say_where(*paths: Path, words: str = "written to") -> None:
    """Print where something was written."""
    say(f"{words} " + ", ".join(f"[cyan]{escape(str(path))}[/]" for path in paths))


def note_where(path: Path) -> None:
    """Print, on standard error, where the files of something that failed are."""
    note(f"what there is of it: [cyan]{escape(str(path))}[/]")


def say_go_on(round: int, command: str) -> None:
    """Print the command that continues after a stop."""
    note(f"stopped after round {round}. Go on with:  {escape(command)}")


def say_next(*commands: str) -> None:
    """Print the commands that a user may want to try next."""
    for lead, command in zip(("\nTry next:", *[" " * 9] * len(commands)), commands, strict=False):
        say(f"{lead}  [bold cyan]{escape(command)}[/]")


def known(value: float | None) -> bool:
    """Whether a number was measured and has a meaning."""
    return value is not None and value == value


def ruled_table(title: str | None = None) -> Table:
    """An empty table with a line below its heads."""
    return Table(
        title=title, title_justify="left", title_style="bold", header_style="bold",
        box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True,
    )  # fmt: skip


def with_caption(table: Table, lines: Sequence[str]) -> Table:
    """A table with lines below it."""
    table.caption, table.caption_justify = "\n".join(lines) or None, "left"
    return table


def plain_table() -> Table:
    """An empty table without heads and lines."""
    return Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
