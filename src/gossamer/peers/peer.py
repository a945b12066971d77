"""A peer: one client with its own samples, on a network that may lose, delay or double what it sends.

Every round it trains, writes its letters to its outbox, sends them for as long as it takes, waits for those it needs
(how long is the network's policy), writes down which it mixes, mixes them, and commits its state. Killed at any moment,
it starts again from the last commit, finds its letters and its notes, and says and does the same things again.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gossamer.engines.reference import Client, share_of
from gossamer.errors import DivergenceError, RunFolderError
from gossamer.methods import Message, Operator, arrived
from gossamer.peers.edges import Edges, parcel_of
from gossamer.peers.identity.kit import Kit
from gossamer.peers.losses import Losses
from gossamer.peers.mass import Parcel, given
from gossamer.peers.neighbours import Neighbours
from gossamer.peers.report import Report
from gossamer.peers.schedule import Plan
from gossamer.peers.standing import AHEAD, Standing
from gossamer.peers.store.journal import Journal, Line, next_life, take_folder, under
from gossamer.peers.store.letters import Damaged, Letter
from gossamer.peers.store.mailbox import Mailbox
from gossamer.peers.store.outbox import Outbox
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.peers.wire.door import Door
from gossamer.peers.wire.schema import Schema
from gossamer.peers.wire.service import Service
from gossamer.peers.wire.weather import Weather
from gossamer.system.allocator import give_back
from gossamer.training.steps import Training

#: Methods of these families can go on without a neighbour's message: its weight stays with the peer, or comes later.
#: What other methods keep (duals, trackers, masks, or what only their author knows) a missing one may spoil for good.
MAY_GO_ON = ("averaging", "push-sum")
#: Below this push-sum weight a peer keeps its mass to itself until others have sent it some: x / w stays well defined.
LEAST_WEIGHT = 1e-6
#: Above this weight, of one on average, a peer gives mass away though it misses some that it should get.
ENOUGH_WEIGHT = 0.5
#: What helps where a file is damaged that a peer cannot do without.
PUT_BACK = "Put back a copy of this folder; if there is none, the network has to be started anew."


class Peer:
    """One peer of a network. `await peer.run()` runs it to the end of its last round."""

    def __init__(
        self,
        kit: Kit,
        training: Training,
        folder: Path,
        weather: Weather | None = None,
        watch: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.kit, self.training, self.folder = kit, training, folder
        self.number, self.exchange = kit.number, kit.roster.exchange
        self.method: Any = training.method
        self.schema = Schema(training, self.number)
        self.plan = Plan(training.network, self.number, self.schema.open_steps)
        self.losses = Losses(self.method, training.network, self.number)
        self._lock = take_folder(folder, kit)
        self.now = Standing(
            network=kit.roster.digest,
            process=wire.Process(number=next_life(folder), token=secrets.randbits(64)),
            rounds=training.rounds,
            floor=-self.schema.open_steps,
        )
        self.report = Report(kit, training, folder, watch)
        with needed():
            self.journal = Journal(folder)
        self.journal.begin()
        self.outbox = Outbox(folder / "outbox", self.exchange.sync)
        self.mailbox = Mailbox(folder / "inbox")
        self.edges = Edges(self.mailbox, self.schema.model_dtype)
        self.client = Client(self.number, training)
        training.model.forget_initial()
        self.waits = self.exchange.late == "wait" or getattr(self.method, "family", "") not in MAY_GO_ON
        self._resume()
        self.door = Door(self.now, self.schema, self.plan, self.mailbox, self.edges, self.losses)
        self.service = Service(self)
        self.neighbours = Neighbours(kit, self.now, self.mailbox, self.edges, self.report.log, self.waits, weather)
        # For each thread that computes, the libraries below keep scratch memory of their own: there is one.
        self._computes = ThreadPoolExecutor(1, f"{kit.name}-computes")
        self._began = time.monotonic()

    # Life

    async def run(self) -> None:
        """All rounds, from wherever it stands, and then for as long as neighbours may need it."""
        torch.set_num_threads(1)
        await self.service.start()
        self.report.log("started", round=self.now.done, rounds=self.now.rounds, process=self.now.process.number)
        tasks = [asyncio.create_task(self.neighbours.talk()), asyncio.create_task(self._all_rounds())]
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
            self._computes.shutdown(wait=False)
            self._lock.release()

    async def _compute(self, work: Callable[..., Any], *about: Any) -> Any:
        """Work that takes a while; meanwhile letters come and go."""
        return await asyncio.get_running_loop().run_in_executor(self._computes, partial(work, *about))

    async def _all_rounds(self) -> None:
        self.now.doing = "greeting"
        await self.neighbours.greet()
        self._post_again()
        while self.now.done < self.now.rounds:
            self._catch_up()
            await self._round(self.now.done)
        self.now.finished = True
        self.report.final(self.now.done, self.method.model(self.client.state))
        self.now.doing = "staying for the others"
        await self.neighbours.stay()

    async def _round(self, index: int) -> None:
        started = time.monotonic()
        if index == 0 and hasattr(self.method, "open"):
            await self._open()
        self.now.doing = "training"
        give_back()
        loss = await self._compute(self.client.train, index)
        self._check_sound(index, loss)
        self.losses.note(self.number, index, loss)
        trained = time.monotonic()
        for step in range(index * self.schema.steps, (index + 1) * self.schema.steps):
            await self._exchange(step, self.method.sends)
        self.now.doing = "mixing"
        self.client.state = await self._compute(
            self.method.receive, self.client.state, self.client.message, self.client.round(index)
        )
        await self._commit(index + 1)
        mixed = time.monotonic()
        self.now.doing = "measuring"
        quality = await self._compute(self.report.measure, index + 1, self.method.model(self.client.state))
        seconds = {
            "seconds_local": trained - started, "seconds_mixing": mixed - trained,
            "seconds_evaluation": time.monotonic() - mixed,
        }  # fmt: skip
        self.report.round(index + 1, loss, quality, self._sent_bytes(), seconds)

    async def _open(self) -> None:
        """The exchange before the first round, of a method that has one."""
        await self._compute(self.client.open)
        operators: dict[str, Operator] = dict.fromkeys(self.client.message, "average")
        for step in range(-self.schema.open_steps, 0):
            await self._exchange(step, operators)
        self.client.state = self.method.opened(self.client.state, self.client.message, self.client.round(0))

    def _check_sound(self, index: int, loss: float) -> None:
        trains = self.training.batches.steps[self.number] > 0
        sound = all(bool(torch.isfinite(value).all()) for value in self.client.message.values())
        if not sound or (trains and not np.isfinite(loss)):
            raise DivergenceError(
                f"{self.kit.name}: diverged in round {index + 1}: its training loss is {loss:g}, or its model is not "
                f"finite. The state after round {index} is kept. Try a smaller lr."
            )

    # One gossip step

    async def _exchange(self, step: int, operators: dict[str, Operator]) -> None:
        """Send, wait, write down, mix."""
        await self._keep_pace(step)
        line = self.journal.mixed(step)  # of a process that was killed after it had written this down
        losses = self._losses_to_choose_by(line)
        own, hears, tells = self.plan.at(step, losses)
        if losses is not None:  # who chooses this peer is known to nobody but the chooser
            hears = {}
        message = self.client.letter(coded=step >= 0)
        pushed = self.schema.pushed if step >= 0 else []
        sends_letters = not pushed or bool(self.schema.mixed)
        shares, kept = given(tells, self._held_back(step, tells)) if pushed else ({}, 0.0)
        self.now.doing = "sending"
        if sends_letters:
            await self._send_letter(step, {name: message[name] for name in message if name not in pushed}, tells)
        for receiver, share in shares.items():
            await self._send_mass(step, pushed, receiver, share)
        if line is None:
            self.now.doing = "waiting"
            heard = await self.neighbours.wait_for([*hears], partial(self._is_here, step, sends_letters), step)
            line = {"step": step}
            line |= {"heard": {str(j): step for j in heard}} if sends_letters else {}
            line |= {"mass": self.edges.due(step)} if pushed else {}
            line |= {} if losses is None else {"losses": losses.tolist()}
            self.journal.write(line)
        self.now.doing = "mixing"
        letters = {int(name): self.mailbox.letter(wire.LETTER, int(name), step) for name in line.get("heard", {})}
        parcels = self.edges.letters(line.get("mass", {}))
        give_back()
        await self._compute(self._mix, step, operators, hears, own, letters, parcels, kept)
        self.now.floor = step + 1

    async def _keep_pace(self, step: int) -> None:
        """Nobody runs away from neighbours that do not answer, or from losses that it chooses by."""
        if self.waits:
            letters_before = step - AHEAD * self.schema.steps
            await self.mailbox.wait(partial(self.neighbours.have, step, letters_before), None)
        if self.losses.choose:
            recent = step // self.schema.steps - AHEAD
            await self.mailbox.wait(partial(self._knows_losses_since, recent), self.exchange.patience)

    def _knows_losses_since(self, round: int) -> bool:
        links = self.neighbours.links.items()
        return all(self.losses.are_since(round, j) or not link.reachable for j, link in links)

    def _losses_to_choose_by(self, line: Line | None) -> np.ndarray | None:
        if not self.losses.choose:
            return None
        return self.losses.table() if line is None else np.array(line["losses"])

    def _is_here(self, step: int, letters: bool, sender: int) -> bool:
        if letters:
            return self.mailbox.has(wire.LETTER, sender, step)
        return self.edges.has_through(sender) >= step

    def _held_back(self, step: int, tells: Mapping[int, float]) -> list[int]:
        """Receivers whose share of this step stays here, written down before anything leaves.

        Where somebody is away, mass flows towards it, or no longer comes from it. A peer that went on giving as usual
        would keep ever less, and its steps, which are taken at x / w, would grow without bound. So those that have not
        acknowledged what they were given are given no more. And who is light, misses a sender or is held back from by
        one, and so gets much less than it would give, gives nothing.
        """
        if step in self.journal.holds or self.journal.mixed(step) is not None:
            return self.journal.holds.get(step, [])
        weight = float(self.client.message.get("weight", torch.inf))
        away = self.edges.away(step - AHEAD * self.schema.steps)
        gives = weight * sum(share for receiver, share in tells.items() if receiver not in away)
        drains = self.edges.came < gives / 2 and (self.neighbours.miss_someone() or self.edges.is_held_from())
        light = weight < (ENOUGH_WEIGHT if drains else LEAST_WEIGHT)
        # A process before this one may have given some of them their share, and then have been killed.
        have_it = {receiver for receiver in tells if self.edges.out_to(receiver).through >= step}
        held = sorted((set(tells) if light else away & set(tells)) - have_it)
        if held:
            self.journal.write({"hold": [step, held]})
        return held

    async def _send_letter(self, step: int, message: Message, tells: Mapping[int, float]) -> None:
        """Write the letter of this step, once for all receivers, and post it."""
        path = await self.outbox.write_letter(self._header(wire.LETTER, step), message)
        self.neighbours.post(wire.LETTER, step, path, tells)

    async def _send_mass(self, step: int, pushed: list[str], receiver: int, weight: float) -> None:
        """Owe a receiver its share, write the parcel down, and post it."""
        edge = self.edges.out_to(receiver)
        # Edges are changed here and by receipts, so never in a thread of their own.
        edge.add(step, share_of(self.client.message, weight, pushed))
        if parcel := edge.parcel():
            header = self._header(wire.MASS, parcel.through, parcel.base)
            path = await self.outbox.write_parcel(receiver, header, parcel.total)
            if edge.total:  # else it has been acknowledged already: a line that was to send the one before found it
                edge.total = Letter(path).message  # if it is ever needed again; it takes no memory there
            self.neighbours.post(wire.MASS, parcel.through, path, [receiver])

    def _header(self, kind: int, step: int, base: int = 0) -> wire.Header:
        return wire.Header(
            network=self.now.network,
            version=self.now.version,
            process=self.now.process,
            kind=kind,  # type: ignore[arg-type]
            step=step,
            base=base,
            losses=self.losses.tell(),
        )

    def _mix(
        self,
        step: int,
        operators: dict[str, Operator],
        hears: dict[int, float],
        own: float,
        letters: Mapping[int, Letter],
        parcels: Mapping[int, list[Letter]],
        kept: float,
    ) -> None:
        """Mix just what the trace says."""

        def told(sender: int) -> Message:
            message = letters[sender].message
            return arrived(self.method, message) if step >= 0 else message

        taken = self.edges.take(parcels)
        mass = Unread({sender: parcels[sender][-1] for sender in taken}, taken.__getitem__)
        self.client.hear(step, operators, hears, own, Unread(letters, told), mass, kept)
        self.edges.put_down()

    # What is kept

    async def _commit(self, round: int) -> None:
        """Keep the state, then forget what led to it."""
        taken, edges = self.edges.state()
        tensors = {f"state/{name}": value for name, value in self.client.state.items()}
        tensors |= {f"edge/{name}": value for name, value in taken.items()}
        about = {"network": self.now.network, "edges": edges, "losses": self.losses.state()}
        await asyncio.to_thread(self.journal.commit, round, tensors, about)
        self.edges.put_down()
        self.now.done = round
        self.mailbox.forget(wire.LETTER, self.now.floor)
        self.edges.forget()
        behind = self.now.floor - self.schema.steps
        self.outbox.forget(behind, wanted=self.neighbours.drop(behind))

    def _resume(self) -> None:
        """Go back to the last commit, if there is one, with what is owed to others."""
        for receiver, path in self.outbox.parcels():
            with needed():  # what it holds would be missing from the sum of all for good
                base, through, total = parcel_of(Letter(path))
            kept = {name: value.clone() for name, value in total.items()}  # the file will be another one
            self.edges.out_to(receiver).resume(Parcel(base, through, kept))
        with needed():
            found = self.journal.last(self.now.network)
        if found is None:
            return
        self.now.done, tensors, about = found
        fresh, state = self.client.state, under("state/", tensors)
        if {n: v.shape for n, v in state.items()} != {n: v.shape for n, v in fresh.items()}:
            raise RunFolderError(
                f"{self.folder}: holds the state of another model or method than the kit's experiment."
            )
        self.client.state = {name: state[name].to(fresh[name].device) for name in fresh}
        self.edges.load(under("edge/", tensors), about["edges"])
        self.losses.load(about["losses"])
        self.now.floor = self.now.done * self.schema.steps
        if self.journal.ends < self.now.floor:
            self.report.log("trace cut short", reason=f"it ends before round {self.now.done}: no replay of this run")
        self._look_at_letters()

    def _look_at_letters(self) -> None:
        """Letters that were damaged while no process ran: are they missed?"""
        for step, path in self.outbox.letters():
            try:
                Letter(path)
            except Damaged as error:
                if self.waits and step < self.now.floor:  # else it is written anew, or others go on without it
                    raise RunFolderError(f"{error}, and neighbours may wait for it. {PUT_BACK}") from None
                path.unlink()
                self.report.log("lost letter", reason=str(error))

    def _post_again(self) -> None:
        """Letters that were not acknowledged when the process ended."""
        for step, path in self.outbox.letters():
            if step < self.now.floor:  # others will be written anew by the round that is done again
                self.outbox.sign(path, self.now.process)
                self.neighbours.post(wire.LETTER, step, path, self.plan.at(step).tells)
        for receiver, path in self.outbox.parcels():
            self.outbox.sign(path, self.now.process)
            self.neighbours.post(wire.MASS, self.edges.out_to(receiver).through, path, [receiver])

    def _catch_up(self) -> None:
        """After an absence: go on where the others are, rather than where nobody is any more."""
        there = self.journal.skips.get(self.now.done)
        if there is None:
            # Who has finished has a letter left to be averaged with, but no mass to give.
            done = [j for j, link in self.neighbours.links.items() if link.finished] if self.schema.pushed else []
            there = min(self.now.most_are_at(but_for=done), self.now.rounds - 1)
            # What has left this peer must first have left its own state too.
            owes = any(edge.sent >= self.now.done * self.schema.steps for edge in self.edges.outs.values())
            if self.waits or there - self.now.done < AHEAD or owes:
                return
            self.journal.write({"skip": [self.now.done, there]})
            self.report.log("catching up", from_round=self.now.done, to_round=there)
        self.now.done = there
        self.now.floor = there * self.schema.steps

    # What is told

    def status(self) -> dict[str, Any]:
        """How this peer is doing."""
        now, metrics, weight = self.now, self.report.metrics, self.client.state.get("weight")
        return {
            "peer": self.kit.name, "round": now.done, "rounds": now.rounds, "doing": now.doing,
            "finished": now.finished, "loss": metrics.get("local_loss"),
            "accuracy": metrics.get("test_accuracy"), "test_loss": metrics.get("test_loss"),
            "sent_bytes": self._sent_bytes(), "received_bytes": self.service.received_bytes,
            "refused": self.service.refused, "weight": None if weight is None else float(weight),
            "process": now.process.number, "seconds": round(time.monotonic() - self._began, 1),
            "neighbours": {
                link.member.name: {
                    "reachable": link.reachable, "waiting": len(link.waiting), "round": now.others.get(j),
                    "failures": link.failures, "finished": link.finished,
                    "sends": bool(link.sent_bytes or link.waiting), "hears": j in self.mailbox.came,
                } for j, link in self.neighbours.links.items()
            },
        }  # fmt: skip

    def _sent_bytes(self) -> int:
        return sum(link.sent_bytes for link in self.neighbours.links.values())


@contextmanager
def needed() -> Iterator[None]:
    """Reading what a peer cannot do without: if it is damaged, the peer does not start."""
    try:
        yield
    except Damaged as error:
        raise RunFolderError(f"{error}. {PUT_BACK}") from None


class Unread(Mapping[int, Message]):
    """What letters hold, by sender, each read when it is looked at; then those before it leave the memory."""

    def __init__(self, letters: Mapping[int, Letter], read: Callable[[int], Message]) -> None:
        self._letters, self._read = letters, read

    def __getitem__(self, sender: int) -> Message:
        for letter in self._letters.values():
            letter.put_down()
        return self._read(sender)

    def __iter__(self) -> Iterator[int]:
        return iter(self._letters)

    def __len__(self) -> int:
        return len(self._letters)
