"""Kits: what is in one, who may read it, and everything that keeps a peer from starting with it."""

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gossamer.errors import GossamerError
from gossamer.experiment import Experiment
from gossamer.peers.identity import certificates as certificates_module
from gossamer.peers.identity import kit as kits_module
from gossamer.peers.identity.certificates import Authority, CertificateError, check_certificate, valid_until
from gossamer.peers.identity.kit import KitError, kits_in, open_kit, renew, revoke, write_kits
from gossamer.peers.identity.roster import Member, Roster

NAMES = ("alice", "bob", "carol")
ROSTER = Roster(
    Experiment(clients=3, rounds=2), tuple(Member(name=name, port=7001 + i, data=name) for i, name in enumerate(NAMES))
)
FILES = {"key.pem", "certificate.pem", "authority.pem", "crl.pem", "network.toml"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "kits"
    write_kits(ROSTER, out)
    return out


@pytest.fixture
def kits(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path / "kits")
    return tmp_path / "kits"


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def all_in(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def changed(before: dict[Path, bytes | None], after: dict[Path, bytes | None]) -> set[str]:
    return {f"{path.parent.name}/{path.name}" for path in after if after[path] != before.get(path)}


def test_every_peer_opens_its_kit(written: Path) -> None:
    for number, name in enumerate(NAMES):
        kit = open_kit(written / name)
        assert (kit.name, kit.number, kit.member.name) == (name, number, name)
        assert kit.roster.digest == ROSTER.digest
        assert kit.member.data == name
        assert {path.name for path in (written / name).iterdir()} == FILES
    assert [path.name for path in kits_in(written)] == list(NAMES)


def test_nobody_has_anothers_secrets(written: Path) -> None:
    secrets = {path: path.read_bytes() for path in written.rglob("key.pem")}
    assert len(secrets) == len(set(secrets.values())) == 4
    for path in (path for path in written.rglob("*") if path.is_file()):
        held = [secret for secret, content in secrets.items() if content in path.read_bytes()]
        assert held == ([path] if path.name == "key.pem" else [])
        if path.name != "key.pem":
            assert b"PRIVATE" not in path.read_bytes()
    for name in NAMES:
        told = (written / name / "network.toml").read_text()
        assert [f'data = "{other}"' in told for other in NAMES] == [other == name for other in NAMES]


def test_the_key_is_never_printed(written: Path) -> None:
    assert "PRIVATE" not in repr(open_kit(written / "alice"))


@pytest.mark.usefixtures("open_umask")
def test_private_files_are_private_from_their_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, int] = {}
    plain = os.open

    def watched(path: Path, flags: int, mode: int = 0o777, **more: int) -> int:
        asked[Path(path).name] = mode
        return plain(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", watched)
    write_kits(ROSTER, tmp_path / "kits")
    assert asked["key.pem"] == 0o600
    assert {mode(path) for path in (tmp_path / "kits").rglob("key.pem")} == {0o600}
    assert {mode(path) for path in (tmp_path / "kits").rglob("*") if path.is_dir()} == {0o700}
    assert mode(tmp_path / "kits") == 0o700


def test_a_folder_that_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    for taken in (tmp_path / "full", tmp_path / "full" / "file"):
        with pytest.raises(KitError, match="exists already, and keys are never overwritten"):
            write_kits(ROSTER, taken)
    with pytest.raises(KitError, match="cannot be"):
        write_kits(ROSTER, tmp_path / "full" / "file" / "below")
    with pytest.raises(KitError, match="cannot be"):
        write_kits(ROSTER, tmp_path / ("x" * 300))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KitError, match="is the current folder"):
        write_kits(ROSTER, Path("."))
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    assert (tmp_path / "full" / "file").read_text() == "mine"


def test_an_empty_folder_a_deeper_one_a_link(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    write_kits(ROSTER, tmp_path / "link")
    write_kits(ROSTER, tmp_path / "a" / "b" / "kits")
    for made in (tmp_path / "empty", tmp_path / "a" / "b" / "kits"):
        assert open_kit(made / "bob").number == 1


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def full_after_a_while(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count == 9:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full_after_a_while)
    with pytest.raises(KitError, match="kits: cannot be written: No space left on device"):
        write_kits(ROSTER, tmp_path / "kits")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_kits(ROSTER, tmp_path / "kits")
    assert list(tmp_path.iterdir()) == []


def test_days_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(GossamerError, match=r"days: .*got 0"):
        write_kits(ROSTER, tmp_path / "kits", days=0)
    assert list(tmp_path.iterdir()) == []


def no_file(name: str) -> Callable[[Path], None]:
    return lambda kit: (kit / name).unlink()


def content(name: str, text: bytes) -> Callable[[Path], None]:
    def damage(kit: Path) -> None:
        (kit / name).write_bytes(text)

    return damage


def of(other: str, *names: str) -> Callable[[Path], None]:
    def swap(kit: Path) -> None:
        for name in names:
            shutil.copy(kit.parent / other / name, kit / name)

    return swap


def another_network(*names: str) -> Callable[[Path], None]:
    def swap(kit: Path) -> None:
        write_kits(ROSTER, kit.parent / "other")
        of("other/alice", *names)(kit)

    return swap


def reissued(first_day: int, days: int) -> Callable[[Path], None]:
    """A certificate of the right authority for another time."""

    def swap(kit: Path) -> None:
        authority = Authority.load(kit.parent / "authority")
        start = datetime.now(UTC) + timedelta(days=first_day)
        key, certificate = authority.issue("alice", "127.0.0.1", days, not_before=start)
        (kit / "key.pem").write_bytes(key)
        (kit / "certificate.pem").write_bytes(certificate)

    return swap


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (no_file("key.pem"), "key.pem missing"),
        (no_file("certificate.pem"), "certificate.pem missing"),
        (no_file("authority.pem"), "authority.pem missing"),
        (no_file("crl.pem"), "crl.pem missing"),
        (no_file("network.toml"), "network.toml missing"),
        (content("key.pem", b"no key"), "key.pem: unreadable"),
        (content("certificate.pem", b"no certificate"), "certificate.pem: unreadable.*expected one certificate in PEM"),
        (content("authority.pem", b""), "authority.pem: unreadable"),
        (content("crl.pem", b"\x80\x04"), "crl.pem: unreadable"),
        (content("network.toml", b"peer = 'alice'\n"), "network.toml: peers: a network needs at least 2"),
        (
            lambda kit: (kit / "key.pem").chmod(0o644),
            r"key.pem: others can read this .*mode 0644.*chmod 600 .*key\.pem",
        ),
        (lambda kit: (kit / "key.pem").chmod(0o640), r"mode 0640"),
        (lambda kit: (kit / "key.pem").chmod(0o602), r"mode 0602"),
        (of("bob", "key.pem"), "key.pem: is the key of another certificate"),
        (of("bob", "key.pem", "certificate.pem"), "certificate is of 'bob', not of 'alice'"),
        (of("bob", "network.toml"), "certificate is of 'alice', not of 'bob'"),
        (another_network("key.pem", "certificate.pem"), "signed by somebody else"),
        (another_network("authority.pem"), "crl.pem: signed by somebody else"),
        (another_network("authority.pem", "crl.pem"), "certificate signed by somebody else"),
        (another_network("crl.pem"), "crl.pem: signed by somebody else"),
        (reissued(-10, 5), "certificate expired since"),
        (reissued(2, 5), "certificate not valid before"),
        (lambda kit: revoke(kit.parent, "alice"), "certificate of 'alice' revoked since"),
    ],
)
def test_what_keeps_a_peer_from_starting(kits: Path, damage: Callable[[Path], None], says: str) -> None:
    damage(kits / "alice")
    with pytest.raises(GossamerError, match=says) as error:
        open_kit(kits / "alice")
    assert error.value.exit_code == 2
    assert str(kits / "alice") in str(error.value)
    assert "PRIVATE" not in str(error.value)


def test_folders_that_are_no_kits(kits: Path, tmp_path: Path) -> None:
    with pytest.raises(KitError, match="does not exist; name a kit"):
        open_kit(tmp_path / "nowhere")
    with pytest.raises(KitError, match="is a file; name a kit"):
        open_kit(kits / "alice" / "key.pem")
    with pytest.raises(KitError, match="is no kit; the kits are in it: alice, bob, carol"):
        open_kit(kits)
    with pytest.raises(KitError, match=r"is the network.s authority and no kit"):
        open_kit(kits / "authority")
    (tmp_path / "empty").mkdir()
    with pytest.raises(KitError, match=r"is no kit; it has no key.pem"):
        open_kit(tmp_path / "empty")


def test_revoking_one_leaves_the_others(kits: Path) -> None:
    assert [path.name for path in revoke(kits, "bob")] == list(NAMES)
    lists = {(kits / name / "crl.pem").read_bytes() for name in (*NAMES, "authority")}
    assert len(lists) == 1
    open_kit(kits / "alice")
    with pytest.raises(KitError, match="'bob' revoked since"):
        open_kit(kits / "bob")
    revoke(kits, "bob")  # again: nothing new
    assert {(kits / "alice" / "crl.pem").read_bytes()} == lists
    shutil.rmtree(kits / "carol")  # given away
    assert [path.name for path in revoke(kits, "carol")] == ["alice", "bob"]
    assert len(Authority.load(kits / "authority").crl) == 2


def test_revoking_goes_on_after_a_full_disk(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (kits / "carol" / "crl.pem").read_bytes()

    def full(path: Path, content: bytes) -> None:
        if path.parent.name == "carol":
            raise KitError("full")
        path.write_bytes(content)

    with monkeypatch.context() as patch:
        patch.setattr(kits_module, "_replace", full)
        with pytest.raises(KitError):
            revoke(kits, "alice")
    assert (kits / "carol" / "crl.pem").read_bytes() == before
    revoke(kits, "alice")
    assert (kits / "carol" / "crl.pem").read_bytes() == (kits / "authority" / "crl.pem").read_bytes()


def test_revoking_who_is_not_there(kits: Path) -> None:
    with pytest.raises(KitError, match="no certificate of a peer 'alic': did you mean 'alice'"):
        revoke(kits, "alic")
    with pytest.raises(KitError, match=r"no certificate of a peer '../alice'"):
        revoke(kits, "../alice")
    with pytest.raises(KitError, match=r"has no authority/key.pem"):
        revoke(kits / "alice", "alice")


@pytest.mark.usefixtures("open_umask")
def test_renewing_gives_new_keys_as_private_as_the_first(kits: Path) -> None:
    before = {name: open_kit(kits / name) for name in NAMES}
    until = renew(kits, days=20)
    assert list(until) == list(NAMES)
    for name, old in before.items():
        new = open_kit(kits / name)
        assert new.key != old.key
        assert until[name] == valid_until(new.certificate) < valid_until(old.certificate)
        check_certificate(old.certificate, new.authority, new.crl, name)  # as good as before
        assert {path.name: mode(path) for path in (kits / name).iterdir()} == {
            file: 0o600 if file == "key.pem" else 0o644 for file in FILES
        }


def test_renewing_some_leaves_the_others(kits: Path) -> None:
    before = all_in(kits)
    assert list(renew(kits, ["carol", "bob", "carol"])) == ["carol", "bob"]
    new = {path for path in changed(before, all_in(kits)) if not path.startswith("issued")}
    assert new == {f"{name}/{file}" for name in ("bob", "carol") for file in ("key.pem", "certificate.pem")}
    assert len(list((kits / "authority" / "issued").iterdir())) == 5
    shutil.rmtree(kits / "alice")  # given away, so it is not among those to be renewed here
    renew(kits, ["bob"])


def test_who_was_revoked_comes_back_and_the_thief_does_not(kits: Path) -> None:
    shutil.copytree(kits / "bob", kits.parent / "stolen")
    stolen = open_kit(kits.parent / "stolen")
    revoke(kits, "bob")
    shutil.copy(kits.parent / "stolen" / "crl.pem", kits / "bob")  # his kit was elsewhere then
    renew(kits, ["bob"])
    bob, alice = open_kit(kits / "bob"), open_kit(kits / "alice")
    check_certificate(bob.certificate, alice.authority, alice.crl, "bob")
    for kit in (alice, bob):
        with pytest.raises(CertificateError, match="'bob' revoked since"):
            check_certificate(stolen.certificate, kit.authority, kit.crl, "bob")


def test_revoking_takes_back_whatever_was_given_out(kits: Path) -> None:
    given = [open_kit(kits / "bob").certificate]
    for _ in range(2):
        renew(kits, ["bob"])
        given.append(open_kit(kits / "bob").certificate)
    revoke(kits, "bob")
    alice = open_kit(kits / "alice")
    for certificate in given:
        with pytest.raises(CertificateError, match="'bob' revoked since"):
            check_certificate(certificate, alice.authority, alice.crl, "bob")
    renew(kits, ["bob"])
    open_kit(kits / "bob")
    (given_out, *_) = (kits / "authority" / "issued").glob("bob.*.pem")
    given_out.write_text("nonsense")
    with pytest.raises(KitError, match=rf"{given_out}: certificate: unreadable"):
        revoke(kits, "bob")


def test_a_lost_or_broken_key_is_no_reason_not_to_renew(kits: Path) -> None:
    (kits / "alice" / "key.pem").unlink()
    (kits / "bob" / "certificate.pem").write_text("nonsense")
    renew(kits)
    for name in NAMES:
        open_kit(kits / name)


def another_kit(kits: Path) -> None:
    write_kits(ROSTER, kits.parent / "other")
    shutil.rmtree(kits / "bob")
    shutil.copytree(kits.parent / "other" / "bob", kits / "bob")


@pytest.mark.parametrize(
    ("damage", "names", "says"),
    [
        (lambda kits: None, ["alic"], "no certificate of a peer 'alic': did you mean 'alice'"),
        (lambda kits: None, ["alice", "../bob"], r"no certificate of a peer '\.\./bob'"),
        (lambda kits: (kits / "authority/key.pem").unlink(), [], "has no authority/key.pem; .*create it anew"),
        (lambda kits: shutil.rmtree(kits / "authority"), ["alice"], "has no authority/key.pem"),
        (lambda kits: (kits / "authority/crl.pem").unlink(), [], "crl.pem: cannot be read"),
        (lambda kits: shutil.rmtree(kits / "authority/issued"), [], "issued: has none of the certificates"),
        (lambda kits: shutil.rmtree(kits / "bob"), [], "kits/bob: is not there.*name the peers whose kits are there"),
        (lambda kits: shutil.rmtree(kits / "bob"), ["alice", "bob"], "kits/bob: is not there"),
        (lambda kits: (kits / "bob/network.toml").unlink(), [], "bob/network.toml: cannot be read: No such file"),
        (lambda kits: (kits / "bob/authority.pem").unlink(), [], "bob/authority.pem: cannot be read: No such file"),
        (lambda kits: shutil.copy(kits / "alice/network.toml", kits / "bob"), [], "kits/bob: is the kit of 'alice'"),
        (another_kit, [], "kits/bob: is of another network than .*kits/authority"),
    ],
)
def test_what_cannot_be_renewed(kits: Path, damage: Callable[[Path], None], names: list[str], says: str) -> None:
    damage(kits)
    before = all_in(kits)
    with pytest.raises(GossamerError, match=says) as error:
        renew(kits, names)
    assert error.value.exit_code == 2
    assert all_in(kits) == before


def test_renewing_for_no_days_or_with_an_authority_that_has_ended(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = all_in(kits)
    with pytest.raises(GossamerError, match=r"days: .*got 0"):
        renew(kits, days=0)
    now = certificates_module._now()
    monkeypatch.setattr(certificates_module, "_now", lambda: now + timedelta(days=4000))
    with pytest.raises(CertificateError, match=r"authority's certificate expired since .*'gossamer network create'"):
        renew(kits)
    assert all_in(kits) == before


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()], ids=["full", "stopped"])
@pytest.mark.parametrize("what", ["fsync", "replace"])
@pytest.mark.parametrize("at", [1, 3, 6, 8])
def test_a_renewal_that_fails_changes_nothing(
    kits: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException, what: str, at: int
) -> None:
    """Of two peers: two certificates for the authority to know, then three files for each kit."""
    before, count = all_in(kits), 0
    holder = {"fsync": os, "replace": Path}[what]
    plain = getattr(holder, what)

    def fails(*arguments: object) -> object:
        nonlocal count
        count += 1
        if count == at:
            raise failure
        return plain(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(holder, what, fails)
        with pytest.raises((KitError, KeyboardInterrupt), match=r"Nothing was changed|^$"):
            renew(kits, ["alice", "bob"])
    assert all_in(kits) == before
    assert mode(kits / "alice" / "key.pem") == 0o600
    renew(kits)
    open_kit(kits / "bob")
