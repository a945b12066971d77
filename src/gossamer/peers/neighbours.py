"""The other peers as one peer sees them: the links to them, and how long to wait for their letters."""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from gossamer.errors import GossamerError
from gossamer.peers.identity.kit import Kit
from gossamer.peers.ledger import MassLedger
from gossamer.peers.pace import Pace
from gossamer.peers.progress import PeerProgress
from gossamer.peers.report import Log
from gossamer.peers.store.journal import TwoProcesses
from gossamer.peers.store.mailbox import Mailbox
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.peers.wire.faults import Faults
from gossamer.peers.wire.links import Link

#: Seconds between log lines about a neighbour that is waited for.
REMIND = 10.0
#: Seconds that a finished peer stays for neighbours that can no longer be reached.
GRACE = 3.0
#: Seconds in which another neighbour may accept a letter after one has refused it, before the peer gives up.
DOUBT = 1.0
#: Seconds that a peer may take to answer a greeting.
GREETING = 2.0


class Neighbours:
    """All other peers. `waits`: whether no step is mixed without their letters."""

    def __init__(
        self,
        kit: Kit,
        progress: PeerProgress,
        mailbox: Mailbox,
        ledger: MassLedger,
        log: Log,
        waits: bool,
        faults: Faults | None,
    ) -> None:
        self._kit, self._progress, self._mailbox, self._ledger, self._log = kit, progress, mailbox, ledger, log
        self._waits, self._faults = waits, faults
        self._patience = kit.roster.exchange.patience
        others = [number for number in range(len(kit.roster.members)) if number != kit.number]
        self._paces = {j: Pace(self._patience) for j in others}
        self.links: dict[int, Link] = {}
        self._accepts: dict[int, bool] = {}  # whether each accepted the last letter that it answered
        self._failure: asyncio.Future[None] | None = None
        self._probes: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Send the letters that are posted, for as long as this peer runs; ends only with an error."""
        self._failure = asyncio.get_running_loop().create_future()
        for j in self._paces:
            self.links[j] = Link(self._kit, j, self._on_receipt, self._waits, self._faults)
        sending = [asyncio.create_task(link.run()) for link in self.links.values()]
        try:
            await asyncio.wait([self._failure, *sending], return_when=asyncio.FIRST_COMPLETED)
            for ended in [self._failure, *sending]:
                if ended.done():
                    ended.result()
        finally:
            for task in [*sending, *self._probes.values()]:
                task.cancel()
            for link in self.links.values():
                await link.close()

    def post(self, kind: int, step: int, path: Path, receivers: Iterable[int]) -> None:
        """Send a letter to these receivers until each has acknowledged it."""
        for j in receivers:
            self.links[j].post(kind, step, path)

    def drop(self, before: int) -> set[int]:
        """Stop sending letters of steps before this one that nobody waits for; return the steps that are left."""
        for link in self.links.values():
            if not self._waits or link.refuses:
                link.drop(before)
        return {step for link in self.links.values() for kind, step in link.waiting if kind == wire.LETTER}

    def have_acknowledged(self, mass_before: int, letters_before: int) -> bool:
        """Whether all mass and all letters of the steps before these are acknowledged."""
        return not any(
            step < (mass_before if kind == wire.MASS else letters_before)
            for link in self.links.values()
            if not link.refuses
            for kind, step in link.waiting
        )

    async def wait_for(self, senders: list[int], here: Callable[[int], bool], step: int) -> list[int]:
        """Wait for the messages of a gossip step for as long as the policy says; return the senders that were heard.

        Senders that are rounds ahead are not waited for: they wait for this peer. So the two halves of a network that
        was split come together again.
        """

        def settled(j: int) -> bool:
            return here(j) or (not self._waits and self._progress.is_far_behind(j))

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
            # The limit depends on the senders that are left, so it is computed again after each arrival.
            await self._mailbox.wait(partial(_any, settled, missing), min(left, REMIND))
        heard = [j for j in senders if here(j)]
        for j in senders:
            missed = self._paces[j].missed
            if j in heard:
                if missed > 1:
                    self._log("heard again", step=step, neighbour=self._name(j), after=missed)
                self._paces[j].heard(max(0.0, self._mailbox.last_arrival.get(j, began) - began))
            else:
                if not missed:  # an absence is logged at its start and at its end
                    self._log("went on without", step=step, neighbour=self._name(j))
                self._paces[j].silent()
                if j not in self._probes or self._probes[j].done():
                    self._probes[j] = asyncio.create_task(self._probe(self.links[j]))
        return heard

    async def _probe(self, link: Link) -> None:
        """Greet a silent neighbour: a peer that sends it nothing would not notice that it is unreachable."""
        with suppress(Exception):  # counted by the link
            answer = await link.greet(self._progress.hello(), GREETING)
            self._progress.note_round(link.number, answer.round)

    def _is_alive(self, j: int) -> bool:
        """Whether a neighbour can be reached, or was heard a moment ago."""
        return self.links[j].reachable or time.monotonic() - self._mailbox.last_arrival.get(j, 0.0) < self._patience / 4

    # Greetings and receipts

    async def greet(self) -> None:
        """Greet all peers; those that do not answer are met later."""
        same: dict[str, bool] = {}

        async def meet(link: Link) -> None:
            name = link.member.name
            try:
                answer = await link.greet(self._progress.hello(), GREETING)
            except Exception as error:
                self._log("not there yet", neighbour=name, reason=str(link.last_error or error))
                return
            same[name] = answer.network == self._progress.network
            if not same[name]:
                self._log("other network", neighbour=name)
            elif answer.version != self._progress.version:
                self._log("other version", neighbour=name, theirs=answer.version[:20], ours=self._progress.version)
            self._progress.note_round(link.number, answer.round)

        await asyncio.gather(*map(meet, self.links.values()))
        if same and not any(same.values()):
            self._give_up(self._failures(" and ".join(same))["another network"])

    def greeted(self, sender: int, hello: wire.Hello) -> None:
        """Handle the greeting of another peer."""
        if hello.network == self._progress.network and sender in self.links:
            self.links[sender].finished = hello.finished
            self.links[sender].wake()

    async def stay(self) -> None:
        """Stay until no other peer needs letters of this one."""
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
        """Report this peer's round to another one; return whether the other has not finished, as far as is known."""
        try:
            await link.greet(self._progress.hello(), GREETING)
        except Exception:  # counted by the link
            return link.down_for() < GRACE
        return not link.finished

    async def _on_receipt(self, link: Link, kind: int, step: int, receipt: wire.Receipt) -> None:
        """Handle the answer to a letter."""
        self._progress.note_round(link.number, receipt.round)
        if kind == wire.MASS and receipt.verdict in (wire.ACCEPTED, wire.DOUBLED):
            try:
                self._ledger.out_edge(link.number).acknowledged(receipt.through)
            except ValueError as error:
                self._log("strange receipt", neighbour=link.member.name, reason=str(error))
        self._accepts[link.number] = receipt.verdict != wire.REFUSED
        if receipt.verdict == wire.REFUSED:
            self._log("was refused", neighbour=link.member.name, step=step, reason=receipt.reason[:300])
            for reason, failure in self._failures(link.member.name).items():
                if receipt.reason.startswith(reason):
                    asyncio.get_running_loop().call_later(DOUBT, self._give_up_unless_accepted, failure)
        await self._mailbox.notify()

    def _failures(self, other: str) -> dict[str, GossamerError]:
        """The errors that end this peer if all others refuse it, by the start of the reason."""
        return {
            "another process": TwoProcesses(
                f"{self._kit.name}: {other} already exchanges letters with another process that has this kit. One kit "
                "is for one process: stop one of them."
            ),
            "another network": GossamerError(
                f"{self._kit.name}: {other} runs another network file. Give every peer the kit of the same 'gossamer "
                "network create'."
            ),
            "another version": GossamerError(
                f"{self._kit.name}: {other} runs another version of Gossamer than {self._progress.version}. Install "
                "the same one everywhere."
            ),
        }

    def _give_up_unless_accepted(self, error: GossamerError) -> None:
        """A single neighbour cannot stop a peer whose letters others accept."""
        if not any(self._accepts.values()):
            self._give_up(error)

    def _give_up(self, error: GossamerError) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    def _name(self, number: int) -> str:
        return self._kit.roster.members[number].name


def _any(settled: Callable[[int], bool], senders: list[int]) -> bool:
    return any(map(settled, senders))
