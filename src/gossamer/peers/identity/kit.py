"""A peer's kit: the folder that it needs to take part, and that no other peer may have.

    kits/
      authority/   the network's own key: stays with the creator of the network
      alice/       key.pem (0600)  certificate.pem  authority.pem  crl.pem  network.toml
      bob/         ...

A kit holds its own peer's key and no other secret. It is all that `gossamer peer` needs on the peer's machine.
"""

import os
import shlex
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gossamer.errors import GossamerError, did_you_mean
from gossamer.peers.identity.certificates import (
    CERTIFICATE,
    CRL,
    KEY,
    Authority,
    CertificateError,
    check_certificate,
    check_key,
    read_certificate,
    read_crl,
    valid_until,
)
from gossamer.peers.identity.roster import AUTHORITY, Member, Roster, load_kit_roster
from gossamer.runs.files import replace_file

AUTHORITY_CERTIFICATE = "authority.pem"
NETWORK = "network.toml"
#: The certificates that the authority has issued, so that they can be revoked if their kits are elsewhere.
ISSUED = "issued"
PRIVATE, PUBLIC = 0o600, 0o644


class KitError(GossamerError):
    """A kit is incomplete, not private, or invalid for the network; or kits cannot be written."""


@dataclass(frozen=True)
class Kit:
    """A peer's number in the network, its key and certificate, and how to verify other peers."""

    folder: Path
    name: str
    number: int
    roster: Roster
    key: bytes
    certificate: bytes
    authority: bytes
    crl: bytes

    def __repr__(self) -> str:  # without the key, since it may be printed or logged
        return f"Kit({str(self.folder)!r}, name={self.name!r})"

    @property
    def member(self) -> Member:
        """This peer in the network file."""
        return self.roster.members[self.number]


def write_kits(roster: Roster, out: Path, days: int = 365) -> None:
    """Write an authority and one kit for every peer into the new folder `out`: everything or nothing."""
    out = _free(out)
    authority = Authority.create()
    issued = {member.name: authority.issue(member.name, member.host, days) for member in roster.members}
    files = authority.files
    draft = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _write_folder(draft, {})
        _write_folder(draft / AUTHORITY, files)
        certificates = {f"{name}.pem": pair.certificate for name, pair in issued.items()}
        _write_folder(draft / AUTHORITY / ISSUED, certificates)
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
    """The kit in a folder; raises an error if a peer cannot start with it."""
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
    """The kits in a folder that `write_kits` has written, by name."""
    try:
        inside = sorted(path for path in folder.iterdir() if path.is_dir() and path.name != AUTHORITY)
    except OSError as error:
        raise KitError(f"{folder}: cannot be read: {error.strerror}") from None
    return [path for path in inside if is_kit(path)]


def is_kit(folder: Path) -> bool:
    """Whether a folder is a kit, complete or not. A network file alone does not make a kit."""
    return any((folder / name).exists() for name in (KEY, AUTHORITY_CERTIFICATE))


def revoke(kits: Path, name: str) -> list[Path]:
    """Revoke all certificates of a peer, write the new list into every kit in the folder, and return those kits."""
    authority, issued_to = _open_authority(kits)
    for path in _certificates_of(name, issued_to, kits):
        try:
            authority = authority.revoke(path.read_bytes())
        except OSError as error:
            raise KitError(f"{path}: cannot be read: {error.strerror}") from None
        except CertificateError as error:
            raise KitError(f"{path}: {error}") from None
    # The authority's own list first: after an interruption, the same command continues from it.
    there = kits_in(kits)
    for path in (kits / AUTHORITY, *there):
        _replace(path / CRL, authority.files[CRL])
    return there


def renew(kits: Path, names: Iterable[str] = (), days: int = 365) -> dict[str, datetime]:
    """Write a new key and certificate into the kits of these peers (default: all): all of them or none.

    Returns until when each is valid. Older certificates stay valid until they expire or are revoked.
    """
    authority, issued_to = _open_authority(kits)
    chosen = list(dict.fromkeys(names)) or sorted(issued_to)
    for name in chosen:
        _certificates_of(name, issued_to, kits)
    members = [_to_renew(kits / name, authority) for name in chosen]
    issued = {member.name: authority.issue(member.name, member.host, days) for member in members}
    # Record the certificates before they reach the kits, so that they can be revoked whatever happens.
    files = {
        kits / AUTHORITY / ISSUED / f"{name}.{read_certificate(pair.certificate).serial_number:x}.pem": pair.certificate
        for name, pair in issued.items()
    }
    for name, (key, certificate) in issued.items():
        new = {KEY: key, CERTIFICATE: certificate, CRL: authority.files[CRL]}
        files |= {kits / name / file: content for file, content in new.items()}
    _replace_all(files)
    return {name: valid_until(pair.certificate) for name, pair in issued.items()}


def _open_authority(kits: Path) -> tuple[Authority, dict[str, list[Path]]]:
    """The authority beside the kits, and the certificates that it has issued, by peer."""
    home = kits / AUTHORITY
    if not (home / KEY).exists():
        raise KitError(
            f"{kits}: has no {AUTHORITY}/{KEY}; name the folder that 'gossamer network create' wrote. Where the key is "
            "lost, nobody can change who belongs to this network: create it anew"
        )
    issued_to: dict[str, list[Path]] = {}
    for path in sorted((home / ISSUED).glob("*.pem")):  # NAME.pem at first, then NAME.SERIAL.pem
        issued_to.setdefault(path.name.split(".")[0], []).append(path)
    if not issued_to:
        raise KitError(
            f"{home / ISSUED}: has none of the certificates that were given out. Bring back the whole folder, or make "
            "new kits with 'gossamer network create'"
        )
    return Authority.load(home), issued_to


def _certificates_of(name: str, issued_to: Mapping[str, list[Path]], kits: Path) -> list[Path]:
    if name not in issued_to:
        raise KitError(f"{kits}: there is no certificate of a peer '{name}': {did_you_mean(name, issued_to)}")
    return issued_to[name]


def _to_renew(folder: Path, authority: Authority) -> Member:
    """The peer of a kit of this authority. The kit's key and certificate may be missing."""
    if not folder.is_dir():
        raise KitError(
            f"{folder}: is not there, and a new certificate needs a kit to go into. Bring the folder back, or name the "
            "peers whose kits are there"
        )
    roster, name = load_kit_roster(folder / NETWORK)
    if name != folder.name:
        raise KitError(f"{folder}: is the kit of '{name}', by its {NETWORK}; give it its own name again")
    theirs = read_certificate(_read(folder / AUTHORITY_CERTIFICATE), str(folder / AUTHORITY_CERTIFICATE))
    if theirs != authority.certificate:
        raise KitError(f"{folder}: is of another network than {folder.parent / AUTHORITY}: another authority")
    return roster.member(name)


def _replace(path: Path, content: bytes) -> None:
    replace_file(path, lambda aside: _write_new(aside, content, _mode(path)))


def _replace_all(files: Mapping[Path, bytes]) -> None:
    """Put all files in place, or leave everything as it was.

    New files are written first and renamed last. Only a kill during the renaming can leave a key without its
    certificate; such a kit is refused until it is renewed again.
    """
    drafts = {path: path.with_name(f".{path.name}.{os.getpid()}.part") for path in files}
    before: dict[Path, bytes | None] = {}
    try:
        for path, draft in drafts.items():
            _write_new(draft, files[path], _mode(path))
        for path, draft in drafts.items():
            before[path] = path.read_bytes() if path.exists() else None
            draft.replace(path)
    except BaseException as error:
        for path, draft in drafts.items():
            with suppress(OSError):  # it may not exist yet
                draft.unlink()
            if (old := before.get(path)) is not None:
                _replace(path, old)
            elif path in before:
                path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            where = Path(error.filename or next(iter(files))).parent
            raise KitError(f"{where}: cannot be written: {error.strerror}. Nothing was changed.") from error
        raise


def _free(out: Path) -> Path:
    """The folder to write to, if it is new or empty."""
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
    """Write a new private folder; a key file is private from its creation."""
    folder.mkdir(mode=0o700)
    for name, content in files.items():
        _write_new(folder / name, content, _mode(folder / name))


def _mode(path: Path) -> int:
    return PRIVATE if path.name == KEY else PUBLIC


def _write_new(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _read_kit(folder: Path) -> dict[str, bytes]:
    """The files of a complete kit whose key only its owner can read."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise KitError(f"{folder}: {what}; name a kit, a folder that 'gossamer network create' wrote")
    if not is_kit(folder):
        kits = [path.name for path in kits_in(folder)]
        hint = f"the kits are in it: {', '.join(kits)}" if kits else f"it has no {KEY}"
        raise KitError(f"{folder}: is no kit; {hint}")
    names = (KEY, CERTIFICATE, AUTHORITY_CERTIFICATE, CRL)
    missing = [name for name in (*names, NETWORK) if not (folder / name).is_file()]
    if folder.name == AUTHORITY and NETWORK in missing:
        raise KitError(f"{folder}: is the network's authority and no kit; it stays with the creator of the network")
    if missing:
        raise KitError(f"{folder}: {', '.join(missing)} missing; copy the kit anew, whole")
    return {name: _read(folder / name, private=name == KEY) for name in names}


def _read(path: Path, private: bool = False) -> bytes:
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
