"""What the live page reads of runs that are being written, damaged, deleted, or lie elsewhere."""

import json
import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from gossamer.pages.live.feed import KEPT, Feed
from gossamer.pages.live.folder import FolderWatch
from gossamer.pages.live.reading import Tail, held_locks, last_lines
from gossamer.pages.live.scan import Scan
from gossamer.pages.live.series import COLUMNS, Series, Thinned
from gossamer.runs.folder import RunFolder
from made_runs import made_run


def line(round: int, **more: Any) -> str:
    return json.dumps({"round": round, **more}) + "\n"


def test_a_file_that_grows_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    tail = Tail(file)
    assert tail.read() == (False, [])  # not there yet
    file.write_text(line(1) + line(2) + '{"round": 3, "lo')
    assert tail.read() == (False, [{"round": 1}, {"round": 2}])
    with file.open("a") as more:
        more.write('ss": 4}\n' + "not JSON\n" + '["a list"]\n' + line(4))
    assert tail.read() == (False, [{"round": 3, "loss": 4}, {"round": 4}])
    assert tail.read() == (False, [])
    aside = tmp_path / "aside"
    aside.write_text(line(1))
    aside.replace(file)  # as a run does that goes on from a checkpoint
    assert tail.read() == (True, [{"round": 1}])
    file.unlink()
    assert tail.read() == (True, [])


def test_only_ordinary_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(line(1, text="secret"))
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "."):
        assert Tail(tmp_path / name).read() == (False, [])
        assert last_lines(tmp_path / name) == []
    assert last_lines(tmp_path / "secret") == [{"round": 1, "text": "secret"}]


def test_of_a_long_file_the_last_whole_lines_are_found(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(line(number, pad="x" * 90) for number in range(2000)) + '{"round": 2000')
    found = last_lines(file)
    assert 500 < len(found) < 700
    assert [each["round"] for each in found] == list(range(2000 - len(found), 2000))


def test_rows_are_thinned_evenly_and_evaluated_ones_stay() -> None:
    kept = Thinned(most=40)
    for number in range(1, 5001):
        kept.add([(number % 10 == 0, [number])])
    evaluated = [row[0] for row in kept.rows if row[0] % 10 == 0]
    others = [row[0] for row in kept.rows if row[0] % 10]
    assert 20 < len(evaluated) <= 40
    assert 20 < len(others) <= 40
    assert {b - a for a, b in pairwise(evaluated)} == {10 * kept.every[0]}
    assert max(others) > 4700
    assert kept.rows == sorted(kept.rows)


def test_a_round_waits_for_its_seconds(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    series = Series(folder)
    folder.metrics.write_text(line(1, local_loss=2.0, bytes_total=8, test_accuracy=float("nan")))
    assert series.look() == (False, [])
    folder.timings.write_text(line(1, seconds_local=1.5, seconds_mixing=0.5))
    anew, (row,) = series.look()
    values = dict(zip(COLUMNS, row, strict=True))
    assert not anew
    assert (values["round"], values["seconds"], values["bytes"], values["local_loss"]) == (1, 2, 8, 2)
    assert values["test_accuracy"] is None
    with folder.metrics.open("a") as file:
        file.write(line(2, local_loss="text"))
    assert series.look() == (False, [])
    _, (row,) = series.look()  # of another program, or cut short: it comes without
    assert row[: len(COLUMNS)] == [2, *[None] * (len(COLUMNS) - 1)]
    for path in (folder.metrics, folder.timings):
        path.unlink()
        path.write_text(line(1, seconds_local=1.0))
    anew, rows = series.look()
    assert anew
    assert [each[0] for each in series.kept.rows] == [each[0] for each in rows] == [1]


def test_tabs_share_messages_and_one_that_is_behind_gets_the_whole() -> None:
    feed = Feed()
    feed.put("a", 1)
    feed.add("rows", [[1]])
    assert feed.flush()
    feed.put("a", 1)
    assert not feed.flush()
    feed.add("rows", [[2]])
    feed.drop("a")
    assert feed.flush()
    first, second = ([json.loads(each[5:]) for each in feed.since(number)] for number in (-1, 1))
    assert first == [{"all": True, "set": {"rows": [[1], [2]]}}]
    assert second == [{"set": {}, "add": {"rows": [[2]]}, "gone": ["a"]}]
    assert feed.since(1)[0] is feed.since(1)[0]
    for number in range(KEPT + 1):
        feed.put("a", number)
        feed.flush()
    (whole,) = feed.since(1)
    assert json.loads(whole[5:])["all"]


def test_nothing_outside_of_the_folder_is_found(tmp_path: Path) -> None:
    made_run(tmp_path / "elsewhere" / "run")
    root = tmp_path / "root"
    made_run(root / "deep" / "er" / "run")
    made_run(root / ".hidden" / "run")
    (root / "link").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (root / "linked").mkdir()
    (root / "linked" / "experiment.toml").symlink_to(tmp_path / "elsewhere" / "run" / "experiment.toml")
    made_run(root / "a" / "b" / "c" / "d" / "e" / "f" / "too-deep")
    scan = Scan(root)
    assert scan.look().runs == [root / "deep" / "er" / "run"]
    made_run(root / "new")
    assert scan.look().runs == [root / "deep" / "er" / "run", root / "new"]


def listed(watch: FolderWatch) -> dict[str, dict[str, Any]]:
    """The groups by their names."""
    return {group["name"]: group for name, group in watch.look().items() if name.startswith("group/")}


def test_every_state_of_a_run(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    watch = FolderWatch(root)
    assert watch.look()["about"]["gone"]
    root.mkdir()
    about = watch.look()["about"]
    assert not about["gone"]
    assert about["groups"] == 0

    made_run(root / "whole")
    diverged = made_run(root / "diverged", done=3)
    (diverged / "stopped.json").write_text(json.dumps({"kind": "diverged", "round": 3, "reason": "loss is NaN"}))
    with (diverged / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "test_accuracy": NaN, "local_loss": Infinity}\n{"round": 5, "te')
    made_run(root / "newer")
    (root / "newer" / "environment.json").write_text('{"format": 99}')
    made_run(root / "damaged")
    (root / "damaged" / "experiment.toml").write_bytes(b"rounds = \xff")
    made_run(root / "other")
    (root / "other" / "experiment.toml").write_text("name = 1")
    dead = made_run(root / "dead", done=5, final=False)
    for path in (dead, *dead.iterdir()):
        os.utime(path, (1, 1))
    fresh = made_run(root / "fresh", done=0, final=False)
    (fresh / "metrics.jsonl").unlink()
    groups = listed(watch)
    assert {name: group["state"] for name, group in groups.items()} == {
        "whole": "finished", "diverged": "diverged", "newer": "unreadable", "damaged": "unreadable",
        "other": "unreadable", "dead": "interrupted", "fresh": "running",
    }  # fmt: skip
    assert groups["damaged"]["problem"] == "experiment.toml cannot be read: it is no text"
    assert groups["dead"]["command"] == f"gossamer resume {dead}"
    assert (groups["diverged"]["done"], groups["dead"]["done"]) == (4, 5)

    lock = FileLock(dead / ".lock")
    with lock:
        if held_locks() is not None:
            assert listed(watch)["dead"]["state"] == "running"
    assert listed(watch)["dead"]["state"] == "interrupted"

    view = watch.view("nowhere", True)
    assert view is None
    ids = {group["name"]: name.removeprefix("group/") for name, group in watch.look().items() if name != "about"}
    for name in groups:
        view = watch.view(ids[name], True)
        assert view is not None
        json.dumps(view.values, allow_nan=False)
        json.dumps(view.rows, allow_nan=False)
    assert "format 99" in json.dumps(watch.view(ids["newer"], True).values)  # type: ignore[union-attr]

    shutil.rmtree(root)
    assert watch.look()["about"]["gone"]
    made_run(root / "again")
    assert list(listed(watch)) == ["again"]


def test_a_comparison_says_what_is_to_come(tmp_path: Path) -> None:
    folder = tmp_path / "compared"
    folder.mkdir()
    text = 'seeds = 2\nrounds = 12\n[sweep]\nmethod = ["dfedavg", "dfedsam"]\n'
    (folder / "comparison.toml").write_text(text)
    made_run(folder / "dfedavg-seed0")
    made_run(folder / "dfedavg-seed1", done=6, final=False)
    watch = FolderWatch(tmp_path)
    (group,) = listed(watch).values()
    assert (group["state"], group["runs"], group["ended"], group["done"], group["rounds"]) == ("running", 4, 1, 18, 48)
    assert group["left"] == pytest.approx((6 + 12 + 12) * 0.6)
    assert group["described"] == "2 variants of method, 2 seeds"
    name = next(key for key in watch.look() if key.startswith("group/")).removeprefix("group/")
    watch.view(name, True)
    view = watch.view(name, False)  # graphs are laid out after the first look
    assert view is not None
    assert [view.values[f"run/{run}"]["state"] for run in view.values["shown"]["runs"]] == [
        "finished", "running", "waiting", "waiting",
    ]  # fmt: skip
    assert len(view.values["clients/dfedavg-seed0"]["values"][0]["row"]) == 8
    assert view.rows == {"rows/dfedavg-seed0": (False, []), "rows/dfedavg-seed1": (False, [])}
    (folder / "comparison.toml").write_text("sweep = 3\n")
    os.utime(folder / "comparison.toml", (1, 1))
    problem = listed(watch)["compared"]
    assert problem["state"] == "unreadable"
    assert "comparison.toml cannot be read" in problem["problem"]


def test_a_graph_of_the_users_code_is_not_built(tmp_path: Path) -> None:
    made_run(tmp_path / "own", graph={"name": "no.such.module:graph"})
    made_run(tmp_path / "file", graph={"name": "edge-list", "path": "/etc/passwd"})
    watch = FolderWatch(tmp_path)
    for name in [key.removeprefix("group/") for key in watch.look() if key != "about"]:
        watch.view(name, True)
        view = watch.view(name, False)
        assert view is not None
        assert not any(key.startswith("graph/") for key in view.values)
