"""What `gossamer live` says."""

from pathlib import Path

from rich.markup import escape

from gossamer.terminal.console import note, say


def say_serving(url: str, place: Path, open_to_all: bool) -> None:
    """Print the address to open."""
    if open_to_all:
        note("[yellow]note:[/] this page is not encrypted: whoever sees the traffic sees it, and the password. "
             "--certificate and --key encrypt it.")  # fmt: skip
    say(f"{escape(str(place))} is shown at  [bold cyan]{escape(url)}[/]")
    note("[dim]Ctrl-C ends the page, and nothing else.[/]")
