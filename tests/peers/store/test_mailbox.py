"""Waiting for letters."""

import asyncio
from pathlib import Path

import pytest

from gossamer.peers.store.mailbox import Mailbox


@pytest.mark.parametrize("ticks", range(6))
def test_who_is_told_to_stop_stops_also_when_a_letter_comes_at_that_moment(ticks: int, tmp_path: Path) -> None:
    """`asyncio.wait_for` forgets a cancellation that comes together with what it waits for, in Python 3.11."""

    async def both() -> bool:
        mailbox, here = Mailbox(tmp_path / "inbox"), asyncio.Event()
        waiting = asyncio.create_task(mailbox.wait(here.is_set, 60.0))
        await asyncio.sleep(0.01)
        here.set()
        await mailbox.notify()
        for _ in range(ticks):
            await asyncio.sleep(0)
        told = waiting.cancel()
        await asyncio.wait([waiting])
        return waiting.cancelled() == told

    assert asyncio.run(both())
