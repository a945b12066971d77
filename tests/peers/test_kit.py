"""Kits: what is in one, who may read it, and everything that keeps a peer from starting with it."""

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gossamer.errors import GossamerError
from gossamer.experiment import Experiment
from gossamer.peers import kit as kits_module
from gossamer.peers.certificates import Authority
from gossamer.peers.kit import KitError, kits_in, open_kit, revoke, write_kits
from gossamer.peers.roster import Member, Roster

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
        from datetime import UTC, datetime, timedelta

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
    with pytest.raises(KitError, match=r"authority.pem"):
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
