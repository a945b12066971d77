"""How long a peer waits for its neighbours."""

import asyncio
from pathlib import Path

from gossamer import Experiment
from networks import make_kits, make_peers


def test_who_is_away_is_not_waited_for_together_with_who_is_late(tmp_path: Path) -> None:
    """One neighbour is known to be away, another may take a minute, and comes at once: then nobody is waited for."""
    described = Experiment(method="dfedavg", clients=3, model="softmax", graph="full")
    peer = make_peers(make_kits(tmp_path, described, late="reweigh", patience=60.0)[:1])[0]
    neighbours = peer.neighbours
    come: set[int] = set()

    async def wait() -> list[int]:
        talking = asyncio.create_task(neighbours.talk())
        await asyncio.sleep(0)
        neighbours.links[1]._failed(TimeoutError())
        neighbours._paces[1].missed = 2
        waiting = asyncio.create_task(neighbours.wait_for([1, 2], come.__contains__, 0))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        come.add(2)
        await peer.mailbox.nudge()
        heard = await asyncio.wait_for(waiting, 5)  # far from the minute
        talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)
        return heard

    assert asyncio.run(wait()) == [2]
