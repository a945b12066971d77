"""The other peers, as one of them sees them: the lines to them, and how long it waits for what they send."""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from gossamer.errors import GossamerError
from gossamer.peers.edges import Edges
from gossamer.peers.identity.kit import Kit
from gossamer.peers.pace import Pace
from gossamer.peers.report import Log
from gossamer.peers.standing import Standing
from gossamer.peers.store.journal import TwoProcesses
from gossamer.peers.store.mailbox import Mailbox
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.peers.wire.links import Link
from gossamer.peers.wire.weather import Weather

#: Seconds between notes about a neighbour that is waited for.
REMIND = 10.0
#: Seconds that a finished peer stays for neighbours that can no longer be reached.
GRACE = 3.0
#: Seconds in which another neighbour may show that one that refuses everything of this peer is wrong.
DOUBT = 1.0
#: Seconds that a peer may take to say hello.
GREETING = 2.0


class Neighbours:
    """Everyone else. `waits`: whether nothing goes on without them."""

    def __init__(
        self, kit: Kit, now: Standing, mailbox: Mailbox, edges: Edges, log: Log, waits: bool, weather: Weather | None
    ) -> None:
        self._kit, self._now, self._mailbox, self._edges, self._log = kit, now, mailbox, edges, log
        self._waits, self._weather = waits, weather
        self._patience = kit.roster.exchange.patience
        others = [number for number in range(len(kit.roster.members)) if number != kit.number]
        self._paces = {j: Pace(self._patience) for j in others}
        self.links: dict[int, Link] = {}
        self._takes_ours: dict[int, bool] = {}
        self._trouble: asyncio.Future[None] | None = None
        self._asked: dict[int, asyncio.Task[None]] = {}

    async def talk(self) -> None:
        """Send what is posted, for as long as this peer runs; ends only with a reason why it cannot."""
        self._trouble = asyncio.get_running_loop().create_future()
        for j in self._paces:
            self.links[j] = Link(self._kit, j, self._on_receipt, self._waits, self._weather)
        lines = [asyncio.create_task(link.run()) for link in self.links.values()]
        try:
            await asyncio.wait([self._trouble, *lines], return_when=asyncio.FIRST_COMPLETED)
            for ended in [self._trouble, *lines]:
                if ended.done():
                    ended.result()
        finally:
            for task in [*lines, *self._asked.values()]:
                task.cancel()
            for link in self.links.values():
                await link.close()

    def post(self, kind: int, step: int, path: Path, receivers: Iterable[int]) -> None:
        """Send a letter to some of them, for as long as it takes."""
        for j in receivers:
            self.links[j].post(kind, step, path)

    def drop(self, before: int) -> set[int]:
        """Give up letters of steps before this one that nobody waits for; gives the steps of those that are left."""
        for link in self.links.values():
            if not self._waits or link.refuses:
                link.drop(before)
        return {step for link in self.links.values() for kind, step in link.waiting if kind == wire.LETTER}

    def have(self, mass_before: int, letters_before: int) -> bool:
        """Whether they have all mass and all letters of the steps before these."""
        return not any(
            step < (mass_before if kind == wire.MASS else letters_before)
            for link in self.links.values()
            if not link.refuses
            for kind, step in link.waiting
        )

    def miss_someone(self) -> bool:
        """Whether somebody was waited for in vain, and has not been heard since."""
        return any(pace.missed for pace in self._paces.values())

    async def wait_for(self, senders: list[int], here: Callable[[int], bool], step: int) -> list[int]:
        """Wait for what they send at a gossip step, for as long as the policy says; gives whose is here.

        Those who are rounds ahead are not waited for: they wait for this peer, so that the two halves of a network that
        fell apart come together again.
        """

        def settled(j: int) -> bool:
            return here(j) or (not self._waits and self._now.is_behind(j))

        began = reminded = time.monotonic()
        while missing := [j for j in senders if not settled(j)]:
            now, left = time.monotonic(), REMIND
            if not self._waits:
                left = max(began + self._paces[j].limit(self._is_alive(j)) for j in missing) - now
                if left <= 0:
                    break
            if now - reminded >= REMIND:
                reminded = now
                self._log("waiting", step=step, for_peers=[*map(self._name, missing)], seconds=round(now - began, 1))
            # With each that comes, the time that those who are left may take is another one.
            await self._mailbox.wait(partial(_any, settled, missing), min(left, REMIND))
        heard = [j for j in senders if here(j)]
        for j in senders:
            missed = self._paces[j].missed
            if j in heard:
                if missed > 1:
                    self._log("heard again", step=step, neighbour=self._name(j), after=missed)
                self._paces[j].heard(max(0.0, self._mailbox.came.get(j, began) - began))
            else:
                if not missed:  # the rest of an absence is one line, at its end
                    self._log("went on without", step=step, neighbour=self._name(j))
                self._paces[j].silent()
                if j not in self._asked or self._asked[j].done():
                    self._asked[j] = asyncio.create_task(self._look_for(self.links[j]))
        return heard

    async def _look_for(self, link: Link) -> None:
        """See whether a silent neighbour is there: who hears from it, but sends it nothing, would not know."""
        with suppress(Exception):  # counted by the link
            answer = await link.greet(self._now.hello(), GREETING)
            self._now.heard_of(link.number, answer.round)

    def _is_alive(self, j: int) -> bool:
        """Whether a neighbour gives a sign of life: it can be reached, or was heard a moment ago."""
        return self.links[j].reachable or time.monotonic() - self._mailbox.came.get(j, 0.0) < self._patience / 4

    # What they say

    async def greet(self) -> None:
        """Say hello to whoever is there; who is not will be met later."""
        same: dict[str, bool] = {}

        async def meet(link: Link) -> None:
            name = link.member.name
            try:
                answer = await link.greet(self._now.hello(), GREETING)
            except Exception as error:
                self._log("not there yet", neighbour=name, reason=str(link.last_error or error))
                return
            same[name] = answer.network == self._now.network
            if not same[name]:
                self._log("other network", neighbour=name)
            elif answer.version != self._now.version:
                self._log("other version", neighbour=name, theirs=answer.version[:20], ours=self._now.version)
            self._now.heard_of(link.number, answer.round)

        await asyncio.gather(*map(meet, self.links.values()))
        if same and not any(same.values()):
            self._give_up(self._troubles(" and ".join(same))["another network"])

    def greeted(self, sender: int, hello: wire.Hello) -> None:
        """A peer says hello, or goodbye."""
        if hello.network == self._now.network and sender in self.links:
            self.links[sender].finished = hello.finished
            self.links[sender].hurry()

    async def stay(self) -> None:
        """Be there until they have what they need of this peer."""
        await asyncio.gather(*map(self._still_needs_us, self.links.values()))
        ends = time.monotonic() + max(self._patience, GRACE)
        while time.monotonic() < ends:
            needy = False
            for link in self.links.values():
                if not link.finished and not link.waiting and await self._still_needs_us(link) and link.reachable:
                    ends = time.monotonic() + max(self._patience, GRACE)
                needy = needy or (not link.finished and (bool(link.waiting) or link.down_for() < GRACE))
            if not needy:
                return
            await asyncio.sleep(0.2)

    async def _still_needs_us(self, link: Link) -> bool:
        """Say how far this peer is; whether the other one has not finished yet, as far as can be seen."""
        try:
            await link.greet(self._now.hello(), GREETING)
        except Exception:  # counted by the link
            return link.down_for() < GRACE
        return not link.finished

    async def _on_receipt(self, link: Link, kind: int, step: int, receipt: wire.Receipt) -> None:
        """One of them has answered."""
        self._now.heard_of(link.number, receipt.round)
        if kind == wire.MASS and receipt.verdict in (wire.ACCEPTED, wire.DOUBLED):
            try:
                self._edges.out_to(link.number).acknowledged(receipt.through)
            except ValueError as error:
                self._log("strange receipt", neighbour=link.member.name, reason=str(error))
        self._takes_ours[link.number] = receipt.verdict != wire.REFUSED
        if receipt.verdict == wire.REFUSED:
            self._log("was refused", neighbour=link.member.name, step=step, reason=receipt.reason[:300])
            for reason, trouble in self._troubles(link.member.name).items():
                if receipt.reason.startswith(reason):
                    asyncio.get_running_loop().call_later(DOUBT, self._give_up_unless_heard, trouble)
        await self._mailbox.nudge()

    def _troubles(self, other: str) -> dict[str, GossamerError]:
        """What a peer cannot go on with if all others say so, by the words they say."""
        return {
            "another process": TwoProcesses(
                f"{self._kit.name}: {other} already hears another process with this kit. One kit is for one process: "
                "stop one of them."
            ),
            "another network": GossamerError(
                f"{self._kit.name}: {other} runs another network file. Give every peer the kit of the same 'gossamer "
                "network create'."
            ),
            "another version": GossamerError(
                f"{self._kit.name}: {other} runs another version of Gossamer than {self._now.version}. Install the "
                "same one everywhere."
            ),
        }

    def _give_up_unless_heard(self, error: GossamerError) -> None:
        """One neighbour alone cannot stop a peer whose letters others take."""
        if not any(self._takes_ours.values()):
            self._give_up(error)

    def _give_up(self, error: GossamerError) -> None:
        if self._trouble is not None and not self._trouble.done():
            self._trouble.set_exception(error)

    def _name(self, number: int) -> str:
        return self._kit.roster.members[number].name


def _any(settled: Callable[[int], bool], senders: list[int]) -> bool:
    return any(map(settled, senders))
