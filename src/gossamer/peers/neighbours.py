"""The other peers as one peer sees them: the links to them, and how long to wait for their letters."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from gossamer.errors import GossamerError
from gossamer.peers.identity.code import different_parts
from gossamer.peers.identity.kit import Kit
from gossamer.peers.ledger import MassLedger
from gossamer.peers.pace import Pace
from gossamer.peers.progress import PeerProgress
from gossamer.peers.report import Log
from gossamer.peers.store.journal import TwoProcesses, write_process_number
from gossamer.peers.store.mailbox import Mailbox
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.peers.wire.faults import Faults
from gossamer.peers.wire.links import NOBODY, Link
from gossamer.peers.wire.probe import ABSENT, NOT_OF_THIS_NETWORK, REFUSED, Connection

#: What an operator can do about a peer that is waited for, by why it cannot be met.
ANSWERS = "it answers"
HINTS = {
    ABSENT: "start it, with its kit and run folder, and see that its address leads there; if it is gone for good, "
    "create the network anew without it",
    REFUSED: "'gossamer network check' says which certificate is not valid, 'gossamer network renew' makes a new one; "
    "if all are valid, compare the clocks",
    NOT_OF_THIS_NETWORK: "give every peer the kit of the same 'gossamer network create'",
    ANSWERS: "'gossamer network watch' says what it does, and for whom it waits itself",
}
#: Seconds until the first log line about a neighbour that is waited for; each next one comes after twice the time, or
#: after this much more.
REMIND, LONGEST_REMIND = 10.0, 600.0
#: Seconds that a finished peer stays for neighbours that can no longer be reached.
GRACE = 3.0
#: By how much longer it stays where they cannot finish without its last letters.
NEEDED = 60
#: Seconds in which another neighbour may accept a letter after one has refused it, before the peer gives up.
DOUBT = 1.0
#: The most starts that a neighbour may know of and this peer's run folder may not.
MOST_AHEAD = 1000
#: Characters of a reason that are logged: some of it may come from others.
LONGEST = 300
#: Seconds that a peer may take to answer a greeting.
GREETING = 2.0


class Neighbours:
    """All other peers. `waits`: whether no step is mixed without their letters.

    `last_sent` is the last gossip step of which the run `folder` of this peer may have sent something at its start,
    and `receivers` are the peers to which it sends in the steps after that.
    """

    def __init__(
        self,
        kit: Kit,
        folder: Path,
        last_sent: int,
        receivers: Collection[int],
        progress: PeerProgress,
        mailbox: Mailbox,
        ledger: MassLedger,
        log: Log,
        waits: bool,
        faults: Faults | None,
    ) -> None:
        self._kit, self._progress, self._mailbox, self._ledger, self._log = kit, progress, mailbox, ledger, log
        self._waits, self._faults = waits, faults
        self._folder, self._last_sent, self._receivers = folder, last_sent, receivers
        self._answers: dict[int, wire.Hello] = {}  # to the last greeting
        self._other_code: set[int] = set()  # peers that have greeted with other code of the user's parts
        self._patience = kit.roster.exchange.patience
        others = [number for number in range(len(kit.roster.members)) if number != kit.number]
        self._paces = {j: Pace(self._patience) for j in others}
        self.links: dict[int, Link] = {}
        self._accepts: dict[int, bool] = {}  # whether each accepted the last letter that it answered
        self._failure: asyncio.Future[None] | None = None
        self._probes: dict[int, asyncio.Task[None]] = {}
        self._reminding: asyncio.Task[None] | None = None  # its failure is that of the peer

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
            for task in [*sending, *self._probes.values(), *([self._reminding] if self._reminding else [])]:
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

        began, remind = time.monotonic(), REMIND
        while missing := [j for j in senders if not settled(j)]:
            now, left = time.monotonic(), REMIND
            if not self._waits:
                left = max(began + self._paces[j].limit(self._is_alive(j)) for j in missing) - now
                if left <= 0:
                    break
            self._progress.waiting_for = {self._name(j): round(now - began, 1) for j in missing}
            if now - began >= remind:
                remind = min(2 * remind, remind + LONGEST_REMIND)
                if self._reminding is None or self._reminding.done():  # beside the wait: greetings may take seconds
                    self._reminding = asyncio.create_task(self._remind(step, missing, now - began))
            # The limit depends on the senders that are left, so it is computed again after each arrival.
            await self._mailbox.wait(partial(_any, settled, missing), min(left, REMIND))
        self._progress.waiting_for = {}
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

    async def _remind(self, step: int, missing: list[int], seconds: float) -> None:
        """Log for whom this peer waits, how long already, why, and what an operator can do."""
        try:
            reasons = await asyncio.gather(*(self._meet(self.links[j]) for j in missing))
            why, hints = {}, set()
            for j, reason in zip(missing, reasons, strict=True):
                kind, text = reason or (ANSWERS, self.links[j].last_verdict or "it is not that far")
                why[self._name(j)] = f"{kind}: {text}"
                hints.add(HINTS[kind])
            self._check_agreement()
            advice = {"hint": "; ".join(sorted(hints))} if self._waits else {}
            self._log("waiting for", step=step, seconds=round(seconds, 1), for_peers=why, **advice)
        except GossamerError as error:  # nobody waits for this task
            self._give_up(error)

    async def _probe(self, link: Link) -> None:
        """Greet a silent neighbour: a peer that sends it nothing would not notice that it is unreachable."""
        with suppress(Exception):  # counted by the link
            answer = await link.greet(self._progress.hello(link.number), GREETING)
            self._progress.note_round(link.number, answer.round)

    def _is_alive(self, j: int) -> bool:
        """Whether a neighbour can be reached, or was heard a moment ago."""
        return self.links[j].reachable or time.monotonic() - self._mailbox.last_arrival.get(j, 0.0) < self._patience / 4

    # Greetings and receipts

    async def greet(self) -> None:
        """Greet all peers; those that do not answer are met later."""
        reasons = await asyncio.gather(*map(self._meet, self.links.values()))
        for link, reason in zip(self.links.values(), reasons, strict=True):
            if reason is not None:
                self._log(reason[0], neighbour=link.member.name, reason=reason[1])
        self._check_agreement()
        known = max((hello.known_process for hello in self._answers.values() if self._is_same(hello)), default=0)
        ours = self._progress.process
        if ours.number <= known <= ours.number + MOST_AHEAD:  # an older copy of the folder, of the same round
            ours.number = known + 1
            write_process_number(self._folder, ours.number)

    def _is_same(self, hello: wire.Hello) -> bool:
        return hello.network == self._progress.network

    async def _meet(self, link: Link) -> tuple[str, str] | None:
        """Exchange greetings with a peer, and note what it disagrees about; return why it cannot be met: kind, reason.

        What gRPC says about a failed handshake helps nobody, so a peer that is there is probed.
        """
        name, ours = link.member.name, self._progress
        try:
            answer = await link.greet(ours.hello(link.number), GREETING)
        except Exception as error:
            found = Connection(NOBODY) if link.last_error == NOBODY else await link.probe()
            return found.kind, f"{found.problem or link.last_error or error}, at {link.member.address}"
        self._answers[link.number] = answer
        if answer.network != ours.network:
            self._log("other network", neighbour=name)
        elif answer.version != ours.version:
            self._log("other version", neighbour=name, theirs=answer.version[:20], ours=ours.version)
        elif parts := different_parts(ours.code, answer.code):
            self._log("other code", neighbour=name, parts=", ".join(parts)[:LONGEST])
        ours.note_round(link.number, answer.round)
        return None

    def _check_agreement(self) -> None:
        """Give up if all peers that have answered disagree with this one."""
        answers, ours = self._answers, self._progress
        if not answers:
            return
        others = " and ".join(self._name(j) for j in sorted(answers))
        same = {j: answer for j, answer in answers.items() if self._is_same(answer)}
        if not same:
            self._give_up(self._failures(others)["another network"])
        elif all(answer.version == ours.version and dict(answer.code) != ours.code for answer in same.values()):
            self._give_up(self._failures(" and ".join(map(self._name, sorted(same))))["another code"])
        # Peers that have letters of later steps than this folder can have sent: it is older, or not the only one.
        sent = max(self._last_sent, ours.next_step)
        heard = [
            answer.heard if answer.HasField("heard") else sent for j, answer in same.items() if j in self._receivers
        ]
        if heard and min(heard) > sent:
            self._give_up(self._older_folder(sent, min(heard)))

    def _older_folder(self, sent: int, heard: int) -> GossamerError:
        return TwoProcesses(
            f"{self._folder}: has sent letters up to step {sent} at most, but others have letters of this peer up to "
            f"step {heard}. Either another process runs with this kit (one kit is for one process: stop one of them), "
            "or this folder is new or an older copy: put back the folder as it was when this peer last ran. If there "
            "is none, this peer cannot take part again: start the network anew."
        )

    def greeted(self, sender: int, hello: wire.Hello) -> None:
        """Handle the greeting of another peer."""
        parts = different_parts(self._progress.code, hello.code) if self._is_same(hello) else []
        if parts and sender not in self._other_code:  # once: a caller may greet as often as it likes
            self._other_code.add(sender)
            self._log("other code", neighbour=self._name(sender), parts=", ".join(parts)[:LONGEST])
        if self._is_same(hello) and sender in self.links:
            self.links[sender].finished = hello.finished
            self.links[sender].wake()

    async def stay(self) -> bool:
        """Stay until no other peer needs letters of this one; return whether all of them have finished."""
        began = time.monotonic()
        await asyncio.gather(*map(self._still_needs_us, self.links.values()))
        if behind := [link for link in self.links.values() if not link.finished]:
            self._log("staying for", for_peers=[link.member.name for link in behind],
                      for_unreachable_at_most=max(map(self._longest_stay, behind)),
                      reason="they have not finished, and may need the last letters of this peer")  # fmt: skip
        while any([await self._is_stayed_for(link, began) for link in self.links.values()]):
            await asyncio.sleep(0.2)
        if left := [link.member.name for link in self.links.values() if link.waiting and not link.finished]:
            reason = "they cannot be reached, and have not acknowledged the last letters of this peer"
            self._log("left behind", for_peers=left, reason=reason, hint="start this peer again if they come back")
        return all(link.finished for link in self.links.values())

    async def _is_stayed_for(self, link: Link, began: float) -> bool:
        """Whether this peer, which began to stay then, stays for another one, which may need its last letters."""
        if link.finished or not (link.waiting or await self._still_needs_us(link)) or link.finished:
            return False
        away = min(link.down_for(), time.monotonic() - began)
        return away < (self._longest_stay(link) if link.waiting else GRACE)

    def _longest_stay(self, link: Link) -> float:
        """The most seconds to stay for an unreachable peer. Where no step is mixed without this one's last letters, it
        could not finish."""
        needed = self._waits and link.waiting and not link.refuses
        return max(self._patience * (NEEDED if needed else 1), GRACE)

    async def _still_needs_us(self, link: Link) -> bool:
        """Report this peer's round to another one; return whether the other has not finished, as far as is known."""
        try:
            await link.greet(self._progress.hello(link.number), GREETING)
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
            self._log("refused by", neighbour=link.member.name, step=step, reason=receipt.reason[:LONGEST])
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
            "another code": GossamerError(
                f"{self._kit.name}: {other} runs other code of {self._different_parts()}. Install the same code "
                "everywhere, then start again."
            ),
            "another version": GossamerError(
                f"{self._kit.name}: {other} runs another version of Gossamer than {self._progress.version}. Install "
                "the same one everywhere."
            ),
        }

    def _different_parts(self) -> str:
        """The parts of the experiment whose code differs from that of some peer."""
        ours = self._progress.code
        found = {part for answer in self._answers.values() for part in different_parts(ours, answer.code)}
        return ", ".join(f"'{part[:LONGEST]}'" for part in sorted(found)[:8]) or ", ".join(f"'{part}'" for part in ours)

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
