"""`gossamer live`."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gossamer.commands.folders import RUNS
from gossamer.errors import GossamerError
from gossamer.terminal.live_view import say_serving

if TYPE_CHECKING:
    from gossamer.pages.live.server import Source

MISSING = "gossamer live: needs two more packages:  pip install 'gossamer[live]'"


def live(
    place: Annotated[
        Path | None, typer.Argument(metavar="[RUNS_FOLDER | KIT]", help="What to follow; default: the folder runs.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes any that is free.")] = 8420,
    host: Annotated[
        str, typer.Option(help="The address to serve on; one that others reach needs a password.")
    ] = "127.0.0.1",
    password_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", envvar="GOSSAMER_LIVE_PASSWORD_FILE", help="A file whose first line is the password."
        ),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve HTTPS with this certificate (PEM).")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's key (PEM).")] = None,
) -> None:
    """Serve a page that follows the runs below a folder, or a network of peers. It only reads. Ctrl-C ends it."""
    try:
        from gossamer.pages.live import server
        from gossamer.pages.live.guard import new_token, read_password
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise GossamerError(MISSING) from None
    if (certificate is None) != (key is None):
        raise GossamerError("--certificate and --key: a certificate needs its key, and a key its certificate")
    password = read_password(password_file) if password_file is not None else None
    if password is None and certificate is None and not server.is_loopback(host):
        raise GossamerError(
            f"--host {host}: others may reach this address. Give --password-file, or --certificate and --key"
        )
    if certificate is not None and key is not None:
        server.check_certificate(certificate, key)
    source = source_of(place)
    on = server.listen(host, port)
    token = new_token() if password is None else None
    address = server.Address(host, on.getsockname()[1], token, password, certificate, key)
    open_to_all = certificate is None and not server.is_loopback(host)
    asyncio.run(server.serve(source, address, on, lambda: say_serving(address.url, place or RUNS, open_to_all)))
    raise KeyboardInterrupt  # the only way to leave


def source_of(place: Path | None) -> "Source":
    """What to follow: a network if it is a kit, else the runs below a folder."""
    from gossamer.pages.live.folder import FolderSource
    from gossamer.peers.identity.kit import is_kit, kits_in, open_kit

    folder = place or RUNS
    if place is not None and not place.is_dir():
        what = "is a file" if place.exists() else "does not exist"
        raise GossamerError(f"{place}: {what}. Name a folder with runs below it, or a kit.")
    if folder.is_dir():
        if is_kit(folder):
            from gossamer.pages.live.network import NetworkSource

            return NetworkSource(open_kit(folder))
        if kits := kits_in(folder):
            raise GossamerError(f"{folder}: holds kits. Name one of them, for example {kits[0]}")
    return FolderSource(folder.resolve())
