"""A peer: one client with its own samples, on a network that may lose, delay or duplicate its letters.

In every round it trains, exchanges letters (see `gossip`) and commits its state. A peer that is killed at any moment
starts again from the last commit, finds its letters and its trace on disk, and repeats the same round.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gossamer.errors import DivergenceError, RunFolderError
from gossamer.methods import Operator
from gossamer.parts import in_user_code
from gossamer.peers.gossip import Gossip
from gossamer.peers.identity.code import code_digests
from gossamer.peers.identity.kit import Kit
from gossamer.peers.identity.roster import Address
from gossamer.peers.ledger import MassLedger, parcel_of
from gossamer.peers.losses import Losses
from gossamer.peers.mass import Parcel
from gossamer.peers.message_format import MessageFormat
from gossamer.peers.neighbours import Neighbours
from gossamer.peers.progress import AHEAD, VERSION, PeerProgress
from gossamer.peers.report import Report
from gossamer.peers.schedule import GossipSchedule
from gossamer.peers.store.journal import (
    Journal,
    changed_since_begun,
    next_process_number,
    take_folder,
    with_prefix,
)
from gossamer.peers.store.letters import DamagedFile, Letter
from gossamer.peers.store.mailbox import Mailbox
from gossamer.peers.store.outbox import Outbox
from gossamer.peers.weight import WeightGuard
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.peers.wire.admission import Admission
from gossamer.peers.wire.faults import Faults
from gossamer.peers.wire.service import Service, check_port
from gossamer.system.allocator import trim_freed_memory
from gossamer.training import Client, Training

#: Gossip steps in which the receivers of a graph that changes are looked for.
LOOK_AHEAD = 16
#: The remedy for a damaged file that a peer cannot run without.
PUT_BACK = "Put back a copy of this folder as it was when the peer last ran; if there is none, start the network anew."


class Peer:
    """One peer of a network. `await peer.run()` runs it to the end of its last round."""

    def __init__(
        self,
        kit: Kit,
        training: Training,
        folder: Path,
        faults: Faults | None = None,
        watch: Callable[[dict[str, Any]], None] | None = None,
        listen: Address | None = None,
    ) -> None:
        self.kit, self.training, self.folder = kit, training, folder
        self.number, exchange = kit.number, kit.roster.exchange
        self.method, self.traits = training.method, training.traits
        with in_user_code(f"{kit.name}, before the first round"):
            self.format = MessageFormat(training)
        self.schedule = GossipSchedule(training.network, self.number, self.format.open_steps)
        self.losses = Losses(self.traits, training.network, self.number)
        if not folder.exists():
            check_port(kit.member, listen)  # so that a start in vain leaves no folder behind
        code = code_digests(kit.roster.experiment)
        self._lock = take_folder(folder, kit, VERSION, code)
        self.progress = PeerProgress(
            network=kit.roster.digest,
            process=wire.Process(number=next_process_number(folder), token=secrets.randbits(64)),
            rounds=training.rounds,
            next_step=-self.format.open_steps,
            code=code,
        )
        with in_user_code(f"{kit.name}, before the first round"):
            self.report = Report(kit, training, folder, watch)
        with required_file():
            self.journal = Journal(folder)
        self.journal.begin()
        if changed := changed_since_begun(folder, VERSION, code):
            reason = f"this run was begun with {', '.join(changed)}: a replay may give other models"
            self.report.log("changed", reason=reason)
        self.outbox = Outbox(folder / "outbox", exchange.sync)
        self.mailbox = Mailbox(folder / "inbox")
        self.ledger = MassLedger(self.mailbox, self.format.model_dtype)
        self.guard = WeightGuard()
        self.client = Client(self.number, training)
        training.model.forget_initial()
        self.waits = exchange.late == "wait" or not self.traits.may_miss_messages
        self._resume()
        self._note_heard()
        sent = self._last_sent()
        self.neighbours = Neighbours(
            kit, folder, sent, self._receivers_after(sent), self.progress, self.mailbox, self.ledger, self.report.log,
            self.waits, faults,
        )  # fmt: skip
        admission = Admission(
            training, self.format, self.schedule, self.progress, self.mailbox, self.ledger, self.losses
        )
        self.service = Service(
            kit,
            admission,
            self.mailbox,
            self.report.log,
            self.progress.hello,
            self.neighbours.greeted,
            self.status,
            listen,
        )
        self._gossip = Gossip(
            client=self.client, format=self.format, schedule=self.schedule, progress=self.progress, losses=self.losses,
            journal=self.journal, outbox=self.outbox, mailbox=self.mailbox, ledger=self.ledger, guard=self.guard,
            neighbours=self.neighbours, waits=self.waits, patience=exchange.patience, compute=self._compute,
        )  # fmt: skip
        # One computing thread: the numeric libraries keep scratch memory for each thread that calls them.
        self._computing = ThreadPoolExecutor(1, f"{kit.name}-computes")
        self._started = time.monotonic()

    # Life

    async def run(self) -> None:
        """Run the rounds that are left, then stay for as long as neighbours may need this peer."""
        if self.journal.over:
            self.report.log("over", round=self.progress.done, reason="no other peer needs this one any longer")
            self._lock.release()
            return
        torch.set_num_threads(1)
        await self.service.start()
        self.report.log(
            "started", round=self.progress.done, rounds=self.progress.rounds, process=self.progress.process.number
        )
        tasks = [asyncio.create_task(self.neighbours.run()), asyncio.create_task(self._all_rounds())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.service.stop()
            self._computing.shutdown(wait=False)
            self._lock.release()

    async def _compute(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Run a computation in its own thread, while letters come and go."""
        with in_user_code(lambda: f"{self.kit.name}, round {self.progress.done + 1}"):
            return await asyncio.get_running_loop().run_in_executor(self._computing, partial(work, *arguments))

    async def _all_rounds(self) -> None:
        self.progress.doing = "greeting"
        await self.neighbours.greet()
        self._post_again()
        while self.progress.done < self.progress.rounds:
            self._catch_up()
            await self._round(self.progress.done)
        self.progress.finished = True
        self.report.final(self.progress.done, self.method.model(self.client.state))
        self.progress.doing = "staying for the others"
        if await self.neighbours.stay():
            self.journal.end()

    async def _round(self, index: int) -> None:
        started = time.monotonic()
        if index == 0 and self.traits.opening:
            await self._open()
        self.progress.doing = "training"
        trim_freed_memory()
        loss = await self._compute(self.client.train, index)
        self._check_sound(index, loss)
        self.losses.record(self.number, index, loss)
        trained = time.monotonic()
        for step in self.training.gossip_steps(index):
            await self._gossip.step(step, self.method.sends)
        self.progress.doing = "mixing"
        await self._compute(self.client.receive, index)
        await self._commit(index + 1)
        mixed = time.monotonic()
        self.progress.doing = "measuring"
        quality = await self._compute(self.report.measure, index + 1, self.method.model(self.client.state))
        seconds = {
            "seconds_local": trained - started, "seconds_mixing": mixed - trained,
            "seconds_evaluation": time.monotonic() - mixed,
        }  # fmt: skip
        letters = sum(link.sent_letters for link in self.neighbours.links.values())
        self.report.round(index + 1, loss, quality, (self._sent_bytes(), letters), seconds)

    async def _open(self) -> None:
        """The exchange before the first round, for methods that have one."""
        await self._compute(self.client.open)
        operators: dict[str, Operator] = dict.fromkeys(self.client.message, "average")
        for step in range(-self.format.open_steps, 0):
            await self._gossip.step(step, operators)
        self.client.opened()

    def _check_sound(self, index: int, loss: float) -> None:
        trains = self.training.batches.steps[self.number] > 0
        sound = all(bool(torch.isfinite(value).all()) for value in self.client.message.values())
        if not sound or (trains and not np.isfinite(loss)):
            raise DivergenceError(
                f"{self.kit.name}: diverged in round {index + 1}: its training loss is {loss:g}, or its model is not "
                f"finite. The state after round {index} is kept. Try a smaller lr."
            )

    # State on disk

    async def _commit(self, round: int) -> None:
        """Save the state, then delete the letters that led to it."""
        taken, edges = self.ledger.state()
        tensors = {f"state/{name}": value for name, value in self.client.state.items()}
        tensors |= {f"edge/{name}": value for name, value in taken.items()}
        about = {
            "network": self.progress.network, "edges": edges, "losses": self.losses.state(), "owed": self.ledger.owed(),
            "guard": self.guard.state(),
        }  # fmt: skip
        await asyncio.to_thread(self.journal.commit, round, tensors, about)
        self.ledger.release_memory()
        self.progress.done = round
        self.mailbox.drop(wire.LETTER, self.progress.next_step)
        self.ledger.drop_taken()
        before = self.progress.next_step - self.format.steps
        self.outbox.drop(before, keep=self.neighbours.drop(before))

    def _resume(self) -> None:
        """Restore the last commit, if there is one, and the mass that is owed to others."""
        for receiver, path in self.outbox.parcels():
            with required_file():  # without it, its mass would be missing from the total for good
                (letter := Letter(path)).verify()
                base, through, total = parcel_of(letter)
            copied = {name: value.clone() for name, value in total.items()}  # the file will be overwritten
            self.ledger.out_edge(receiver).resume(Parcel(base, through, copied))
        with required_file():
            found = self.journal.last(self.progress.network)
        if (begun := self.journal.begun_round(self.format.steps)) > (found[0] if found else 0):
            raise RunFolderError(
                f"{self.folder / 'checkpoints'}: the state after round {begun} is missing, from which trace.jsonl goes "
                f"on. {PUT_BACK}"
            )
        if found is None:
            self._check_inbox()
            return
        self.progress.done, tensors, about = found
        fresh, state = self.client.state, with_prefix("state/", tensors)
        if {n: v.shape for n, v in state.items()} != {n: v.shape for n, v in fresh.items()}:
            raise RunFolderError(
                f"{self.folder}: holds the state of another model or method than the kit's experiment."
            )
        self.client.state = {name: state[name].to(fresh[name].device) for name in fresh}
        self.ledger.load(with_prefix("edge/", tensors), about["edges"])
        self.losses.load(about["losses"])
        self.guard.load(about["guard"])
        self.progress.next_step = self.progress.done * self.format.steps
        if self.journal.ends < self.progress.next_step:
            reason = f"it ends before round {self.progress.done}: no replay of this run"
            self.report.log("trace cut short", reason=reason)
        self._check_outbox(about["owed"])
        self._check_inbox()

    def _note_heard(self) -> None:
        """Find the last step of a letter of each other peer: one whose run folder is older than that is told so."""
        for line in self.journal.lines:
            for sender, step in {**line.get("heard", {}), **line.get("mass", {})}.items():
                self.progress.note_heard(int(sender), int(step))
        for kind in (wire.LETTER, wire.MASS):
            for sender in self.mailbox.senders(kind):
                self.progress.note_heard(sender, self.mailbox.steps(kind, sender)[-1])

    def _last_sent(self) -> int:
        """The last gossip step of which this run folder may have sent something."""
        letters = [step for step, _ in self.outbox.letters()]
        mass = [self.ledger.out_edge(receiver).sent for receiver, _ in self.outbox.parcels()]
        return max([self.progress.next_step - 1, self.journal.ends - 1, *letters, *mass])

    def _receivers_after(self, step: int) -> set[int]:
        """The peers to which this one sends in the steps after this one."""
        if self.losses.choose:
            return set(range(self.training.network.clients)) - {self.number}
        steps = range(step + 1, min(step + 1 + LOOK_AHEAD, self.training.rounds * self.format.steps))
        return {receiver for each in steps for receiver in self.schedule.at(each).receivers}

    def _check_inbox(self) -> None:
        """Find letters that were lost or damaged while no process ran: their senders do not send them again."""
        for kind, path, problem in self.mailbox.damaged:
            if self.waits or kind == wire.MASS:
                raise RunFolderError(f"{problem}, and its sender does not send it again. {PUT_BACK}")
            path.unlink(missing_ok=True)
            self.report.log("lost letter", reason=problem)
        for line in self.journal.lines:
            if (step := line.get("step", -1)) < self.progress.next_step:
                continue
            for kind in (wire.LETTER, wire.MASS):
                for sender, through in line.get("heard" if kind == wire.LETTER else "mass", {}).items():
                    if not self.mailbox.has(kind, int(sender), through):
                        path = self.mailbox.path(kind, int(sender), through)
                        raise RunFolderError(f"{path}: is missing, and step {step} is to be mixed again. {PUT_BACK}")

    def _check_outbox(self, owed: dict[str, int]) -> None:
        """Find letters that were lost or damaged while no process ran: required if neighbours may wait for them."""
        for receiver, through in owed.items():
            if self.ledger.out_edge(int(receiver)).sent < through:
                path = self.outbox.parcel_path(int(receiver))
                raise RunFolderError(
                    f"{path}: is missing, or older than what was sent: the mass for "
                    f"'{self.kit.roster.names[int(receiver)]}' would be lost. {PUT_BACK}"
                )
        first = max(-self.format.open_steps, self.progress.next_step - self.format.steps)
        here = {step for step, _ in self.outbox.letters()}
        if self.waits and self.format.mixed and (lost := set(range(first, self.progress.next_step)) - here):
            path = self.outbox.letter_path(min(lost))
            raise RunFolderError(f"{path}: is missing, and neighbours may wait for it. {PUT_BACK}")
        for step, path in self.outbox.letters():
            try:
                Letter(path).verify()
            except DamagedFile as error:
                if self.waits and step < self.progress.next_step:  # else it is written anew, or others go on without
                    raise RunFolderError(f"{error}, and neighbours may wait for it. {PUT_BACK}") from None
                path.unlink()
                self.report.log("lost letter", reason=str(error))

    def _post_again(self) -> None:
        """Post the letters that were not acknowledged when the last process ended."""
        for step, path in self.outbox.letters():
            if step < self.progress.next_step:  # later ones are written anew by the round that is repeated
                self.outbox.sign(path, self.progress.header())
                self.neighbours.post(wire.LETTER, step, path, self.schedule.at(step).receivers)
        for receiver, path in self.outbox.parcels():
            self.outbox.sign(path, self.progress.header())
            self.neighbours.post(wire.MASS, self.ledger.out_edge(receiver).through, path, [receiver])

    def _catch_up(self) -> None:
        """A returning peer jumps to the round that half of the known peers have reached."""
        target = self.journal.skips.get(self.progress.done)
        if target is None:
            # Finished peers have a last letter to average with, but no mass to send.
            finished = [j for j, link in self.neighbours.links.items() if link.finished] if self.format.pushed else []
            target = min(self.progress.median_round(excluding=finished), self.progress.rounds - 1)
            # Mass of this round that was sent must be subtracted from the state first, and a round that is in the
            # trace was mixed: repeat the round.
            first = self.progress.done * self.format.steps
            repeats = self.ledger.has_sent_since(first) or self.journal.ends > first
            if self.waits or target - self.progress.done < AHEAD or repeats:
                return
            self.journal.write({"skip": [self.progress.done, target]})
            self.report.log("catching up", from_round=self.progress.done, to_round=target)
        self.progress.done = target
        self.progress.next_step = target * self.format.steps

    # Status

    def status(self) -> dict[str, Any]:
        """How this peer is doing, for `network watch` and Prometheus."""
        progress, metrics, weight = self.progress, self.report.metrics, self.client.state.get("weight")
        return {
            "peer": self.kit.name, "round": progress.done, "rounds": progress.rounds, "doing": progress.doing,
            "waiting_for": progress.waiting_for, "finished": progress.finished, "loss": metrics.get("local_loss"),
            "accuracy": metrics.get("test_accuracy"), "test_loss": metrics.get("test_loss"),
            "sent_bytes": self._sent_bytes(), "received_bytes": self.service.received_bytes,
            "refused": self.service.refused, "weight": None if weight is None else float(weight),
            "process": progress.process.number, "seconds": round(time.monotonic() - self._started, 1),
            "neighbours": {
                link.member.name: {
                    "reachable": link.reachable, "waiting": len(link.waiting), "round": progress.others.get(j),
                    "failures": link.failures, "finished": link.finished, "letters": link.sent_letters,
                    "sends": bool(link.sent_bytes or link.waiting), "hears": j in self.mailbox.last_arrival,
                } for j, link in self.neighbours.links.items()
            },
        }  # fmt: skip

    def _sent_bytes(self) -> int:
        return sum(link.sent_bytes for link in self.neighbours.links.values())


@contextmanager
def required_file() -> Iterator[None]:
    """Read files that a peer cannot run without: a damaged one ends the start with a remedy."""
    try:
        yield
    except DamagedFile as error:
        raise RunFolderError(f"{error}. {PUT_BACK}") from None
