"""`gossamer partition`: the clients' samples as a table, as JSON and as a picture."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Command = Callable[..., Any]
Settings = Callable[..., list[str]]


def test_a_table_and_json(gossamer: Command, settings: Settings) -> None:
    answer = gossamer("partition", *settings(partition='{name="shards", classes_per_client=2}'), "--json")
    assert answer.code == 0
    about = json.loads(answer.out)
    assert about["sizes"] == [50, 50, 50, 50]
    assert [sum(row) for row in about["labels"]] == about["sizes"]
    table = gossamer("partition", *settings())
    assert table.code == 0
    assert "200 samples, 4 clients" in table.out


def test_a_picture(gossamer: Command, settings: Settings, place: Path) -> None:
    answer = gossamer("partition", *settings(), "--out", "pictures/split.png")
    assert answer.code == 0
    assert (place / "pictures" / "split.png").read_bytes().startswith(b"\x89PNG")
