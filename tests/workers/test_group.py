"""Collective operations of forked workers, and of those of a launcher."""

import os
import threading
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.workers import Group, launch
from gossamer.workers.board import Board
from groups import in_group, needs_forks, over_each_transport


@needs_forks
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 300)), max_size=6), st.integers(1, 70))
@settings(max_examples=15, deadline=None)
def test_what_does_not_fit_on_the_board_is_sent_in_pieces(parcels: list[tuple[int, int, int]], slot: int) -> None:
    """Between any two of three workers, of any length; a slot holds a few numbers."""
    posts = {(sender, receiver): length for sender, receiver, length in parcels if sender != receiver}

    def post(sender: int, receiver: int) -> torch.Tensor:
        return torch.arange(posts[sender, receiver]) * 10 + sender

    def work(group: Group) -> list[int]:
        for _ in range(3):
            sends = {to: post(group.rank, to) for sender, to in posts if sender == group.rank}
            receives = {by: torch.zeros_like(post(by, to)) for by, to in posts if to == group.rank}
            group.exchange(sends, receives)
            assert all(torch.equal(taken, post(by, group.rank)) for by, taken in receives.items())
            everyone = group.all_sum(torch.arange(100.0).view(10, 10).T * (group.rank + 1))  # not in one piece, either
            assert torch.equal(everyone, 6 * torch.arange(100.0).view(10, 10).T)
        return [1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "Board", partial(Board, slot=8 * slot))
        assert in_group(3, work) == [1]


@needs_forks
@over_each_transport
def test_collective_operations(transport: str) -> None:
    def work(group: Group) -> Any:
        own = range(group.rank * 2, group.rank * 2 + 2)
        values = torch.tensor([float("nan"), 1.0]) if group.rank else torch.tensor([float("inf"), 2.0])
        group.barrier()
        return (
            group.broadcast(f"worker {group.rank} says ü" * (1 + group.rank)),
            group.broadcast("" if group.first else "x"),
            group.broadcast("second" if group.rank else "first", source=1),
            group.ranks_where(group.rank == 1),
            group.any(group.rank == 1),
            group.any(False),
            group.all_sum(torch.ones(2) * (group.rank + 1)).tolist(),
            group.gather_clients(values, own, 4).tolist(),
            os.getpid(),
        )

    words, silence, second, who, yes, no, total, everyone, process = in_group(2, work, transport)
    assert words == "worker 0 says ü"
    assert (silence, second, who) == ("", "second", [1])
    assert (yes, no, total) == (True, False, [3.0, 3.0])
    assert everyone[0] == float("inf")
    assert everyone[1] == 2.0
    assert everyone[2] != everyone[2]
    assert everyone[3] == 1.0
    assert process == os.getpid()  # the first worker is this process


@needs_forks
def test_a_group_in_a_thread_of_its_own() -> None:
    found = []
    thread = threading.Thread(
        target=lambda: found.append(in_group(3, lambda group: group.all_sum(torch.ones(1)).item()))
    )
    thread.start()
    thread.join(60)
    assert found == [3.0]
