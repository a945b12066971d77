"""Writing that survives a full disk: whole or not at all."""

import errno
import itertools
import os
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from safetensors import safe_open

from gossamer.errors import RunFolderError
from gossamer.runs import folder as folders
from gossamer.runs.checkpoint import (
    CheckpointShard,
    DamagedCheckpoint,
    checkpoint_paths,
    drop_old,
    load_rows,
    load_tensors,
    read_shards,
    save_shard,
    save_tensors,
)
from gossamer.runs.files import append_line, make_folder, replace_file, sync, write_text
from gossamer.runs.folder import RunFolder, read_lines, to_json

CPU = torch.device("cpu")


def full(*_: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "first")
    write_text(path, "second")
    assert path.read_text() == "second"

    def half(aside: Path) -> None:
        aside.write_text("ha")
        full()

    with pytest.raises(RunFolderError, match="file: cannot be written: No space left on device"):
        replace_file(path, half)

    def stopped(aside: Path) -> None:
        aside.write_text("ha")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_file(path, stopped)
    assert path.read_text() == "second"
    assert list(tmp_path.iterdir()) == [path]


def test_a_line_that_does_not_fit_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines"
    append_line(path, "one")
    write = os.write
    left = 5

    def small_disk(descriptor: int, content: memoryview) -> int:
        nonlocal left
        if not left:
            full()
        written = write(descriptor, content[:left])
        left -= written
        return written

    monkeypatch.setattr(os, "write", small_disk)
    with pytest.raises(RunFolderError, match="No space left"):
        append_line(path, "a longer line")
    assert path.read_text() == "one\n"
    left = 100
    append_line(path, "two")
    assert path.read_text() == "one\ntwo\n"


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for attempt in (lambda p: make_folder(p), lambda p: append_line(p, "x"), lambda p: write_text(p, "x"), sync):
        with pytest.raises(RunFolderError, match="cannot be written: Not a directory"):
            attempt(tmp_path / "file" / "below")


def test_half_a_folder_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "environment", full)
    with pytest.raises(OSError, match="No space"):
        RunFolder.create(tmp_path / "run", "rounds = 1\n")
    assert not (tmp_path / "run").exists()


def test_lines_up_to_the_first_that_is_not_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_lines(path) == []
    for torn in (b'{"round": 2', b"2", b"[2]", b'{"round": "2"}', b"\x00\x00\x00", b"\xff\xfe", b'{"other": 1}'):
        path.write_bytes(b'{"round": 1}\n' + torn + b'\n{"round": 3}\n')
        assert read_lines(path) == [{"round": 1}]


def test_numbers_that_json_does_not_know() -> None:
    assert to_json({"round": 1, "a": float("nan"), "b": float("inf"), "c": 0.1}) == (
        '{"round": 1, "a": null, "b": null, "c": 0.1}'
    )


STATE = {
    "x": torch.randn(7, 5),
    "weight": torch.rand(7, dtype=torch.float64),
    "count": torch.arange(7),
    "none": torch.empty(7, 0),
    "turned": torch.randn(5, 7).T,
    "flag": torch.tensor([True, False, True, True, True, False, False]),
}


def save(folder: Path, round: int, cuts: list[int], state: dict[str, torch.Tensor] = STATE) -> None:
    """A checkpoint as some workers write it, each the clients between two cuts."""
    for start, stop in itertools.pairwise(cuts):
        rows = {name: value[start:stop] for name, value in state.items()}
        save_shard(folder, round, "digest", range(start, stop), cuts[-1], rows)
    drop_old(folder)


def load(
    folder: Path, own: range, total: int, like: dict[str, torch.Tensor]
) -> tuple[CheckpointShard, dict[str, torch.Tensor]]:
    """What the worker that owns some clients reads of the newest checkpoint."""
    rows = {name: torch.empty((len(own), *value.shape[1:]), dtype=value.dtype) for name, value in like.items()}
    shards = read_shards(checkpoint_paths(folder)[0], total)
    load_rows(shards, own, rows)
    return shards[0], rows


@pytest.mark.parametrize("written", [[0, 7], [0, 3, 7], [0, 1, 2, 7]])
@pytest.mark.parametrize("read", [[0, 7], [0, 4, 7], [0, 2, 5, 7]])
def test_checkpoints_come_back_whoever_wrote_them(
    tmp_path: Path, written: list[int], read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gossamer.runs.checkpoint.PIECE", 40)  # so that everything comes in pieces
    for round in (8, 9, 10):
        save(tmp_path, round, written)
    assert len(checkpoint_paths(tmp_path)) == 2
    assert {path.name[:12] for path in tmp_path.iterdir()} == {"round-000009", "round-000010"}
    for start, stop in itertools.pairwise(read):
        shard, rows = load(tmp_path, range(start, stop), 7, STATE)
        assert (shard.round, shard.experiment) == (10, "digest")
        for name, value in STATE.items():
            assert rows[name].dtype == value.dtype
            assert torch.equal(rows[name], value[start:stop])


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_checkpoint_that_lacks_a_worker_is_not_whole(tmp_path: Path, lost: int) -> None:
    save(tmp_path, 5, [0, 3, 5, 7])
    sorted(tmp_path.iterdir())[lost].unlink()
    with pytest.raises(DamagedCheckpoint, match=f"the state of client {[0, 3, 5][lost]} is missing"):
        read_shards(checkpoint_paths(tmp_path)[0], 7)


def test_what_we_write_is_what_the_library_reads(tmp_path: Path) -> None:
    save_tensors(tmp_path / "a.safetensors", STATE, {"round": "1"})
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        assert all(torch.equal(file.get_tensor(name), value) for name, value in STATE.items())
        assert file.metadata()["round"] == "1"


def test_any_flipped_byte_is_noticed(tmp_path: Path) -> None:
    state = {"x": torch.randn(2, 3)}
    save(tmp_path, 3, [0, 2], state)
    path = tmp_path / "round-000003.safetensors"
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x01
        path.write_bytes(damaged)
        try:
            shard, rows = load(tmp_path, range(2), 2, state)
        except DamagedCheckpoint:
            continue
        # Only padding may change unseen.
        assert (shard.round, shard.experiment) == (3, "digest")
        assert torch.equal(rows["x"], state["x"])


def test_files_that_are_no_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "round-000001.safetensors"
    save_tensors(path, {"x": torch.zeros(2)}, {"other": "thing"})
    with pytest.raises(DamagedCheckpoint, match="which round"):
        read_shards([path], 2)
    path.write_text("hello")
    with pytest.raises(DamagedCheckpoint, match="damaged"):
        load_tensors(path)
