"""`gossamer reproduce`: the list of tables, a quick run that goes on, and what is refused."""

from collections.abc import Callable
from pathlib import Path

from command_line import Command
from gossamer.studies.reproduction import names


def test_the_list_has_every_table_and_figure(gossamer: Command) -> None:
    answer = gossamer("reproduce")
    assert answer.code == 0
    assert set(names()) <= set(answer.out.split())


def test_a_quick_run_goes_on_and_ends_with_both_tables(gossamer: Command, place: Path) -> None:
    command = ("reproduce", "dfedadmm-table-1", "--quick", "--cells", "DFedAvg, iid", "--quiet", "--workers", "1")
    first = gossamer(*command)
    assert first.code == 0, first.err
    (run,) = (place / "runs" / "reproduce-dfedadmm-table-1-quick").iterdir()
    written = (run / "metrics.jsonl").read_bytes()
    again = gossamer(*command, "--cells", "FedAvg, iid", "--results", "kept")
    assert (run / "metrics.jsonl").read_bytes() == written  # what has ended is not run again
    assert "98.07" in again.out  # the paper's number
    assert "cannot be told" in again.out
    assert sorted(p.name for p in (place / "kept" / "dfedadmm-table-1").iterdir()) == [
        "DFedAvg-iid-seed0",
        "FedAvg-iid-seed0",
    ]


def test_what_is_refused(refused: Callable[..., str]) -> None:
    refused("reproduce", "dfedadmm-tabel-1", says=("unknown table or figure", "dfedadmm-table-1"))
    refused("reproduce", "check-digits", "--cells", "Nobody", says=("'Nobody' is in no label",))
    refused("reproduce", "check-digits", "--budget", "0", says=("budget", "more than 0"))
    refused("reproduce", "--cells", "FedAvg", says=("--cells chooses from a table or figure, and none is named",))
    refused("reproduce", "check-digits", "--results", __file__, says=("should be a folder for the results",))
