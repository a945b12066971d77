import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from gossamer.data.download import extract, fetch
from gossamer.data.sources import File
from gossamer.errors import DataError

CONTENT = np.random.default_rng(0).bytes(300_000)


@pytest.fixture
def file(server, make):
    server.files["/a.bin"] = CONTENT
    return make.published("a.bin", CONTENT)


def test_a_file_is_fetched_whole(server, file, tmp_path):
    seen = []
    target = tmp_path / "new" / "folder" / "a.bin"
    fetch(file, [f"{server.address}/a.bin"], target, lambda *progress: seen.append(progress))
    assert target.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert os.listdir(target.parent) == ["a.bin"]


def test_a_broken_connection_is_taken_up_where_it_broke(server, file, tmp_path):
    server.cut_after, server.cuts = 100_000, 2
    fetch(file, [f"{server.address}/a.bin"], tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == [None, "bytes=100000-", "bytes=200000-"]


def test_an_interrupted_download_is_resumed_by_the_next_run(server, file, tmp_path):
    (tmp_path / "a.bin.part").write_bytes(CONTENT[:1234])
    fetch(file, [f"{server.address}/a.bin"], tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert server.requests == [("/a.bin", "bytes=1234-")]


def test_what_was_received_is_kept_when_nothing_more_comes(server, file, tmp_path):
    server.cut_after, server.cuts = 1000, 99
    with pytest.raises(DataError, match=f"{server.address}/a.bin: "):
        fetch(file, [f"{server.address}/a.bin"], tmp_path / "a.bin")
    assert (tmp_path / "a.bin.part").read_bytes() == CONTENT[:5000]
    assert not (tmp_path / "a.bin").exists()


def test_a_server_that_ignores_ranges(server, file, tmp_path):
    server.ranges = False
    (tmp_path / "a.bin.part").write_bytes(CONTENT[:1234])
    fetch(file, [f"{server.address}/a.bin"], tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("known_size", [True, False])
def test_a_part_that_is_too_long_is_begun_anew(server, file, tmp_path, known_size):
    (tmp_path / "a.bin.part").write_bytes(CONTENT + b"more")
    wanted = file if known_size else File("a.bin", None, file.digest)
    fetch(wanted, [f"{server.address}/a.bin"], tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert [asked for _, asked in server.requests] == ["bytes=300004-", None]  # refused with 416


def test_a_complete_part_needs_no_network(file, tmp_path, unreachable):
    (tmp_path / "a.bin.part").write_bytes(CONTENT)
    fetch(file, [f"{unreachable}/a.bin"], tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("size", [100, len(CONTENT)])
def test_a_damaged_part_of_an_earlier_run_is_begun_anew(server, file, tmp_path, size):
    (tmp_path / "a.bin.part").write_bytes(bytes(size))
    fetch(file, [f"{server.address}/a.bin"], tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_wrong_content_is_refused_and_removed(server, file, tmp_path):
    server.files["/a.bin"] = bytes(len(CONTENT))
    with pytest.raises(DataError, match=r"other content than the published file: sha256 \w{64}, expected \w{64}"):
        fetch(file, [f"{server.address}/a.bin"], tmp_path / "a.bin")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("served", "kind"), [(CONTENT[:-1], "truncated"), (CONTENT + b"x", "too long")])
def test_wrong_size_is_refused(server, file, tmp_path, served, kind):
    server.files["/a.bin"] = served
    with pytest.raises(DataError, match=f"{kind}: [0-9,]+ of 300,000 bytes"):
        fetch(file, [f"{server.address}/a.bin"], tmp_path / "a.bin")


def test_the_next_mirror_is_asked(server, file, tmp_path, unreachable):
    server.files["/bad/a.bin"] = b"<html>please log in</html>"
    urls = [f"{unreachable}/a.bin", f"{server.address}/gone/a.bin", f"{server.address}/bad/a.bin", "nonsense://x"]
    fetch(file, [*urls, f"{server.address}/a.bin"], tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    (tmp_path / "a.bin").unlink()
    with pytest.raises(
        DataError, match=r"gone/a\.bin: 404 Not Found; .*bad/a\.bin: truncated: 26 of 300,000 bytes; nonsense"
    ):
        fetch(file, urls, tmp_path / "a.bin")


def test_without_any_address(file, tmp_path):
    with pytest.raises(DataError, match="no address is known"):
        fetch(file, [], tmp_path / "a.bin")


def test_a_server_that_does_not_say_how_long(server, tmp_path):
    server.files["/a.bin"] = CONTENT
    server.lengths = False
    seen = []
    fetch(File("a.bin"), [f"{server.address}/a.bin"], tmp_path / "a.bin", lambda *progress: seen.append(progress))
    assert seen[-1] == (len(CONTENT), None)


def test_a_folder_that_cannot_be_written(server, file, tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(DataError, match=r"taken: cannot be written \(File exists\)"):
        fetch(file, [f"{server.address}/a.bin"], tmp_path / "taken" / "a.bin")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk(server, file, tmp_path):
    (tmp_path / "a.bin.part").symlink_to("/dev/full")
    with pytest.raises(DataError, match=r"a\.bin\.part: cannot be written \(No space left on device\)"):
        fetch(file, [f"{server.address}/a.bin"], tmp_path / "a.bin")


def archive(path: Path, members: dict[str, bytes | tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
            else:
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return path


def test_only_the_named_members_are_unpacked(tmp_path):
    packed = archive(tmp_path / "a.tar.gz", {"in/b": b"bb", "../evil": b"x", "in/a": b"aa", "in/readme": b"r"})
    extract(packed, {"in/a": tmp_path / "a", "in/b": tmp_path / "b"})
    assert sorted(os.listdir(tmp_path)) == ["a", "a.tar.gz", "b"]
    assert ((tmp_path / "a").read_bytes(), (tmp_path / "b").read_bytes()) == (b"aa", b"bb")


def test_a_link_is_not_a_member(tmp_path):
    link = tarfile.TarInfo("in/a")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    packed = archive(tmp_path / "a.tar.gz", {"in/a": link})
    with pytest.raises(DataError, match=r"not the expected archive: there is no in/a in it"):
        extract(packed, {"in/a": tmp_path / "a"})
    assert os.listdir(tmp_path) == ["a.tar.gz"]


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b[5:]])
def test_damaged_archives(tmp_path, damage):
    packed = archive(tmp_path / "a.tar.gz", {"in/a": CONTENT})
    packed.write_bytes(damage(packed.read_bytes()))
    with pytest.raises(DataError, match=r"a\.tar\.gz: damaged archive"):
        extract(packed, {"in/a": tmp_path / "a", "in/b": tmp_path / "b"})


def test_an_archive_that_cannot_be_unpacked(tmp_path):
    packed = archive(tmp_path / "a.tar.gz", {"in/a": b"aa"})
    with pytest.raises(DataError, match=r"absent/a\.part: cannot be written"):
        extract(packed, {"in/a": tmp_path / "absent" / "a"})
