"""A peer's kit: the one folder that it needs to take part, and that nobody else may have.

    kits/
      authority/   the network's own key: stays with whoever created the network
      alice/       key.pem (0600)  certificate.pem  authority.pem  crl.pem  network.toml
      bob/         ...

A kit has its own peer's key and no other secret. Copied to its machine, it is all that `gossamer peer` needs.
"""

import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gossamer.errors import GossamerError, did_you_mean
from gossamer.peers.certificates import (
    CERTIFICATE,
    CRL,
    KEY,
    Authority,
    CertificateError,
    check_certificate,
    check_key,
    read_certificate,
    read_crl,
)
from gossamer.peers.roster import AUTHORITY, Member, Roster, load_kit_roster
from gossamer.runs.files import replace_file

AUTHORITY_CERTIFICATE = "authority.pem"
NETWORK = "network.toml"
#: The certificates that the authority has given out, so that one can be revoked whose kit is elsewhere.
ISSUED = "issued"
PRIVATE, PUBLIC = 0o600, 0o644


class KitError(GossamerError):
    """A kit is not whole, not private, or not fit for the network; or kits cannot be written."""


@dataclass(frozen=True)
class Kit:
    """What a peer has: its number in the network, its key, and how to tell who the others are."""

    folder: Path
    name: str
    number: int
    roster: Roster
    key: bytes
    certificate: bytes
    authority: bytes
    crl: bytes

    def __repr__(self) -> str:  # without the key: what is printed or logged is read by others
        return f"Kit({str(self.folder)!r}, name={self.name!r})"

    @property
    def member(self) -> Member:
        """This peer, as the network file has it."""
        return self.roster.members[self.number]


def write_kits(roster: Roster, out: Path, days: int = 365) -> None:
    """Make an authority and one kit for every peer in the new folder `out`: all of it or nothing."""
    out = _free(out)
    authority = Authority.create()
    issued = {member.name: authority.issue(member.name, member.host, days) for member in roster.members}
    files = authority.files
    draft = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _write_folder(draft, {})
        _write_folder(draft / AUTHORITY, files)
        given_out = {f"{name}.pem": pair.certificate for name, pair in issued.items()}
        _write_folder(draft / AUTHORITY / ISSUED, given_out)
        for name, (key, certificate) in issued.items():
            about = {
                KEY: key,
                CERTIFICATE: certificate,
                AUTHORITY_CERTIFICATE: files[CERTIFICATE],
                CRL: files[CRL],
                NETWORK: roster.to_toml(name).encode(),
            }
            _write_folder(draft / name, about)
        draft.rename(out)  # onto nothing, or onto an empty folder
    except BaseException as error:
        shutil.rmtree(draft, ignore_errors=True)
        if isinstance(error, OSError):
            raise KitError(f"{out}: cannot be written: {error.strerror or error}. Nothing was left there.") from error
        raise


def open_kit(folder: Path) -> Kit:
    """The kit in a folder, if a peer may start with it; else the reason why not."""
    files = _read_kit(folder)
    roster, name = load_kit_roster(folder / NETWORK)
    try:
        authority = read_certificate(files[AUTHORITY_CERTIFICATE], AUTHORITY_CERTIFICATE)
        read_certificate(files[CERTIFICATE], CERTIFICATE)
        check_key(files[KEY], files[CERTIFICATE], KEY)
        read_crl(files[CRL], authority, CRL)
        check_certificate(files[CERTIFICATE], files[AUTHORITY_CERTIFICATE], files[CRL], name)
    except CertificateError as error:
        raise KitError(f"{folder}: {error}") from None
    return Kit(
        folder=folder,
        name=name,
        number=roster.number(name),
        roster=roster,
        key=files[KEY],
        certificate=files[CERTIFICATE],
        authority=files[AUTHORITY_CERTIFICATE],
        crl=files[CRL],
    )


def kits_in(folder: Path) -> list[Path]:
    """The kits in the folder that `write_kits` made, by name."""
    try:
        inside = sorted(path for path in folder.iterdir() if path.is_dir() and path.name != AUTHORITY)
    except OSError as error:
        raise KitError(f"{folder}: cannot be read: {error.strerror}") from None
    return [path for path in inside if is_kit(path)]


def is_kit(folder: Path) -> bool:
    """Whether a folder is meant to be a kit, whole or not; the file that kits are made of may lie anywhere."""
    return any((folder / name).exists() for name in (KEY, AUTHORITY_CERTIFICATE))


def revoke(kits: Path, name: str) -> list[Path]:
    """Put a peer's certificate on the list of revoked ones, and the list into every kit there; gives those kits."""
    home = kits / AUTHORITY
    if not (home / KEY).exists():
        raise KitError(f"{kits}: has no {AUTHORITY}/{KEY}; name the folder that 'gossamer network create' wrote")
    authority, given_out = Authority.load(home), sorted(path.stem for path in (home / ISSUED).glob("*.pem"))
    if name not in given_out:
        raise KitError(f"{kits}: there is no certificate of a peer '{name}': {did_you_mean(name, given_out)}")
    try:
        longer = authority.revoke((home / ISSUED / f"{name}.pem").read_bytes())
    except OSError as error:
        raise KitError(f"{home / ISSUED / name}.pem: cannot be read: {error.strerror}") from None
    # The authority's own list first: should this be interrupted, the same command goes on from it.
    there = kits_in(kits)
    for path in (home, *there):
        _replace(path / CRL, longer.files[CRL])
    return there


def _replace(path: Path, content: bytes) -> None:
    def write(aside: Path) -> None:
        aside.write_bytes(content)

    replace_file(path, write)


def _free(out: Path) -> Path:
    """The folder to write to, if there is nothing in it yet."""
    try:
        out = out.resolve()
        if out == Path.cwd():
            raise KitError(f"{out}: is the current folder; name a new one with --out")
        taken = out.exists() and (not out.is_dir() or any(out.iterdir()))
    except OSError as error:
        raise KitError(f"{out}: cannot be used: {error.strerror}") from None
    if taken:
        raise KitError(f"{out}: exists already, and keys are never overwritten; name a new folder with --out")
    return out


def _write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """A new private folder with new files; a key is private from its first byte on."""
    folder.mkdir(mode=0o700)
    for name, content in files.items():
        mode = PRIVATE if name == KEY else PUBLIC
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)


def _read_kit(folder: Path) -> dict[str, bytes]:
    """The files of a kit, all there, the key readable by its owner alone."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise KitError(f"{folder}: {what}; name a kit, a folder that 'gossamer network create' wrote")
    if not is_kit(folder):
        kits = [path.name for path in kits_in(folder)]
        hint = f"the kits are in it: {', '.join(kits)}" if kits else f"it has no {KEY}"
        raise KitError(f"{folder}: is no kit; {hint}")
    names = (KEY, CERTIFICATE, AUTHORITY_CERTIFICATE, CRL)
    missing = [name for name in (*names, NETWORK) if not (folder / name).is_file()]
    if missing:
        raise KitError(f"{folder}: {', '.join(missing)} missing; copy the kit anew, whole")
    return {name: _read(folder / name, private=name == KEY) for name in names}


def _read(path: Path, private: bool) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            if private and mode & 0o077:
                raise KitError(
                    f"{path}: others can read this private key (mode {mode:04o}). Make it yours alone:  "
                    f"chmod 600 {shlex.quote(str(path))}"
                )
            return file.read()
    except OSError as error:
        raise KitError(f"{path}: cannot be read: {error.strerror}") from None
