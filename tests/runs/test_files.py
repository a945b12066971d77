"""Writing that survives a full disk: whole or not at all."""

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from gossamer.errors import RunFolderError
from gossamer.runs import folder as folders
from gossamer.runs.checkpoint import Checkpoint, Damaged, load_checkpoint, load_tensors, save_checkpoint, save_tensors
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


def test_checkpoints_come_back_as_they_were(tmp_path: Path) -> None:
    state = {
        "x": torch.randn(3, 5),
        "weight": torch.rand(3, dtype=torch.float64),
        "count": torch.arange(3),
        "none": torch.empty(3, 0),
        "turned": torch.randn(5, 3).T,
        "flag": torch.tensor([True, False, True]),
    }
    for round in (8, 9, 10):
        path = save_checkpoint(tmp_path, Checkpoint(round, "digest", state))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-000009.safetensors", "round-000010.safetensors"]
    found = load_checkpoint(path, CPU)
    assert (found.round, found.experiment) == (10, "digest")
    assert found.state.keys() == state.keys()
    for name, rows in state.items():
        assert found.state[name].dtype == rows.dtype
        assert torch.equal(found.state[name], rows)


def test_any_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, Checkpoint(3, "0123456789abcdef", {"x": torch.randn(2, 3)}))
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x01
        path.write_bytes(damaged)
        try:
            found = load_checkpoint(path, CPU)
        except Damaged:
            continue
        # Only padding may change unseen.
        assert (found.round, found.experiment) == (3, "0123456789abcdef")
        path.write_bytes(whole)
        assert torch.equal(found.state["x"], load_checkpoint(path, CPU).state["x"])


def test_files_that_are_no_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "round-000001.safetensors"
    save_tensors(path, {"x": torch.zeros(2)}, {"other": "thing"})
    with pytest.raises(Damaged, match="which round"):
        load_checkpoint(path, CPU)
    path.write_text("hello")
    with pytest.raises(Damaged, match="damaged"):
        load_tensors(path)


def test_a_full_disk_under_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import SafetensorError

    from gossamer.runs import checkpoint

    def fail(*_: object, **__: object) -> NoReturn:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    save_checkpoint(tmp_path, Checkpoint(1, "d", {"x": torch.zeros(2)}))
    monkeypatch.setattr(checkpoint, "save_file", fail)
    with pytest.raises(
        RunFolderError, match=r"round-000002\.safetensors: cannot be written: No space left on device\. "
    ):
        save_checkpoint(tmp_path, Checkpoint(2, "d", {"x": torch.zeros(2)}))
    assert [p.name for p in tmp_path.iterdir()] == ["round-000001.safetensors"]
