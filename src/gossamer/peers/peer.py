"""A peer: one client with its own samples, on a network that may lose, delay or double what it sends.

Every round it trains, writes its letters to its outbox, sends them for as long as it takes, waits for those it needs
(how long is the network's policy), writes down which it mixes, mixes them, and commits its state. Killed at any moment,
it starts again from the last commit, finds its letters and its notes, and says and does the same things again.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

from gossamer.engines.client import Training
from gossamer.engines.isolated import Client, share_of, together
from gossamer.errors import DivergenceError, GossamerError, RunFolderError
from gossamer.measure import Evaluator
from gossamer.methods import Message, Operator, arrived
from gossamer.peers import letters
from gossamer.peers import wire_pb2 as wire
from gossamer.peers.journal import Journal, Line
from gossamer.peers.kit import Kit
from gossamer.peers.letters import Damaged, Letter
from gossamer.peers.links import Link
from gossamer.peers.mailbox import Mailbox
from gossamer.peers.mass import InEdge, OutEdge, Parcel
from gossamer.peers.memory import give_back
from gossamer.peers.pace import Pace
from gossamer.peers.schema import LARGEST_LOSS, Schema
from gossamer.peers.service import Answer, Service
from gossamer.peers.weather import Weather
from gossamer.runs.files import append_line, make_folder, write_text
from gossamer.runs.folder import EXPERIMENT, FINAL, RunFolder, read_lines, to_json

VERSION = version("gossamer")
#: Methods of these families keep something that a missing message would spoil for good: they wait.
MUST_WAIT = ("ADMM", "edge consensus", "gradient tracking", "sparse")
#: Rounds that a neighbour may be ahead.
AHEAD = 2
#: Below this push-sum weight a peer keeps its mass to itself until others have sent it some: x / w stays well defined.
LEAST_WEIGHT = 1e-6
#: Seconds between notes about a neighbour that is waited for.
REMIND = 10.0
#: Seconds that a finished peer stays for neighbours that can no longer be reached.
GRACE = 3.0
#: Seconds in which another neighbour may show that one that refuses everything of this peer is wrong.
DOUBT = 1.0

Log = Callable[..., None]
#: Letters by kind, sender and step.
Found = dict[tuple[int, int, int], Letter]


def _all(here: Callable[[int], bool], senders: list[int]) -> bool:
    return all(here(j) for j in senders)


class Unread(Mapping[int, Message]):
    """Letters by sender, each read when it is looked at; then the one before leaves the memory."""

    def __init__(self, letters: dict[int, Letter], coded: Any) -> None:
        self._letters, self._coded = letters, coded

    def __getitem__(self, sender: int) -> Message:
        for letter in self._letters.values():
            letter.put_down()
        message = self._letters[sender].message
        return message if self._coded is None else arrived(self._coded, message)

    def __iter__(self) -> Iterator[int]:
        return iter(self._letters)

    def __len__(self) -> int:
        return len(self._letters)


class TwoProcesses(GossamerError):
    """Another process speaks for this peer."""


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
        self.network = training.network
        self.schema = Schema(training, self.number)
        self.waits = self.exchange.late == "wait" or getattr(self.method, "family", "") in MUST_WAIT
        self._weather, self._watch = weather, watch
        self._digest = kit.roster.digest
        self._lock = self._take_folder()
        self.journal = Journal(folder)
        self.process = wire.Process(number=self._next_life(), token=secrets.randbits(64))
        self.client = Client(self.number, training)
        training.model.forget_initial()
        self.done = 0
        self.floor = -self.schema.open_steps
        """The next gossip step to be mixed: letters of earlier ones are of no use."""
        self.edges_in: dict[int, InEdge] = {}
        self.edges_out: dict[int, OutEdge] = {}
        self.losses: dict[int, tuple[int, float]] = {}
        self.finished = False
        self._skips: dict[int, int] = dict(line["skip"] for line in self.journal.lines if "skip" in line)
        self.metrics: dict[str, Any] = next(reversed(read_lines(folder / "metrics.jsonl")), {})
        self.doing = "starting"
        self._rounds_of: dict[int, int] = {}
        self._takes_ours: dict[int, bool] = {}
        self._processes: dict[int, wire.Process] = {}
        self._outbox = folder / "outbox"
        make_folder(self._outbox)
        self._resume()
        self.mailbox = Mailbox(folder / "inbox")
        self.service = Service(
            kit, self.schema, self.mailbox, self._judge, self._hello, self._greeted, lambda: json.dumps(self.status()),
            self._has_through, self._held, self._heard, self.log, self.exchange.sync,
        )  # fmt: skip
        self.links: dict[int, Link] = {}
        self.paces = {j: Pace(self.exchange.patience) for j in range(self.network.clients) if j != self.number}
        self._trouble: asyncio.Future[None] | None = None
        self._sent_before = 0
        self._began = time.monotonic()

    # Life

    async def run(self) -> None:
        """All rounds, from wherever it stands, and then for as long as neighbours may need it."""
        torch.set_num_threads(1)
        self._trouble = asyncio.get_running_loop().create_future()
        await self.service.start()
        self.links = {
            j: Link(self.kit, j, self._on_receipt, self._weather)
            for j in range(self.network.clients)
            if j != self.number
        }
        tasks = [asyncio.create_task(link.run()) for link in self.links.values()]
        work = asyncio.create_task(self._all_rounds())
        self.log("started", round=self.done, rounds=self.training.rounds, process=self.process.number)
        try:
            await asyncio.wait([work, self._trouble, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for ended in [self._trouble, *tasks, work]:
                if ended.done():
                    ended.result()
        finally:
            for task in [work, *tasks]:
                task.cancel()
            await self.service.stop()
            for link in self.links.values():
                await link.close()
            self._lock.release()

    async def _all_rounds(self) -> None:
        await self._greet_everyone()
        self._post_again()
        while self.done < self.training.rounds:
            self._catch_up()
            await self._round(self.done)
        self.finished = True
        self._write_final()
        self.log("finished", **self.metrics)
        self.doing = "staying for the others"
        await self._stay()

    async def _round(self, index: int) -> None:
        started = time.monotonic()
        if index == 0 and hasattr(self.method, "open"):
            await self._open()
        self.doing = "training"
        give_back()
        loss = await asyncio.to_thread(self.client.train, index)
        trains = self.training.batches.steps[self.number] > 0
        sound = all(bool(torch.isfinite(value).all()) for value in self.client.message.values())
        if not sound or (trains and not np.isfinite(loss)):
            raise DivergenceError(
                f"{self.kit.name}: diverged in round {index + 1}: its training loss is {loss:g}, or its model is not "
                f"finite. The state after round {index} is kept. Try a smaller lr."
            )
        trained = time.monotonic()
        self.losses[self.number] = (index, loss)
        steps = self.schema.steps
        for step in range(index * steps, (index + 1) * steps):
            await self._exchange(step, self.method.sends)
        self.doing = "mixing"
        self.client.state = await asyncio.to_thread(
            self.method.receive, self.client.state, self.client.message, self.client.round(index)
        )
        self._commit(index + 1)
        exchanged = time.monotonic()
        self.doing = "measuring"
        await self._record(index + 1, loss, trained - started, exchanged - trained)

    async def _open(self) -> None:
        """The exchange before the first round, of a method that has one."""
        await asyncio.to_thread(self.client.open)
        operators: dict[str, Operator] = dict.fromkeys(self.client.message, "average")
        mixings = self.schema.open_steps
        for step in range(mixings):
            await self._exchange(step, operators, at=step - mixings)
        self.client.state = self.method.opened(self.client.state, self.client.message, self.client.round(0))

    # One gossip step

    async def _exchange(self, step: int, operators: dict[str, Operator], at: int | None = None) -> None:
        """Send, wait, write down, mix."""
        at = step if at is None else at
        line = self.journal.mixed(at)
        losses = self._known_losses(line)
        weights = self.network.matrix(step, losses)
        column = weights[:, [self.number]].toarray()[:, 0]
        heard_weights = weights[[self.number], :].toarray()[0]
        row = {int(j): float(heard_weights[j]) for j in np.flatnonzero(heard_weights) if j != self.number}
        own = float(heard_weights[self.number])
        receivers = [int(j) for j in np.flatnonzero(column) if j != self.number]
        by_loss = losses is not None
        if self.waits:  # nobody runs away from a neighbour that does not answer
            await self.mailbox.wait(partial(self._is_heard, at), None)
        if by_loss:  # nobody is waited for by name, so keep step with everyone's losses
            recent = at // self.schema.steps - AHEAD
            await self.mailbox.wait(partial(self._knows_losses_since, recent), self.exchange.patience)
        wire_message = self.client.letter(coded=at >= 0)
        pushed = self.schema.pushed if at >= 0 else []
        held = bool(line.get("held")) if line else bool(pushed) and self._too_light()
        self.doing = "sending"
        if not pushed or self.schema.mixed:
            await self._send_letter(at, wire_message, pushed, receivers)
        if pushed and not held:
            await self._send_mass(at, pushed, receivers, column)
        if held:
            own = 1.0
        if line is None:
            senders = [] if by_loss else sorted(row)
            heard = await self._wait_for(at, senders, bool(pushed))
            line = {"step": at}
            if not pushed or self.schema.mixed:
                line["heard"] = {str(j): at for j in heard}
            if pushed:
                # Mass of later steps, from a neighbour that is ahead, waits for its turn.
                due = {
                    j: [s for s in self.mailbox.steps(wire.MASS, j) if s <= at] for j in self.mailbox.senders(wire.MASS)
                }
                line["mass"] = {
                    str(j): steps[-1] for j, steps in due.items() if steps and steps[-1] > self._edge_in(j).through
                }
            if by_loss:
                line["losses"] = losses.tolist()  # type: ignore[union-attr]
            if held:
                line["held"] = True
            self.journal.write(line)
        found = self._letters_of(at, line)
        give_back()
        await asyncio.to_thread(self._mix, at, line, found, operators, {} if by_loss else row, own)
        self.floor = at + 1

    def _knows_losses_since(self, round: int) -> bool:
        return all(self.losses.get(j, (-1, 0.0))[0] >= round or not link.reachable for j, link in self.links.items())

    def _is_heard(self, at: int) -> bool:
        """Whether the neighbours have its earlier messages: all of its mass, and letters but for those of late."""
        far = at - AHEAD * self.schema.steps
        return not any(
            step < (at if kind == wire.MASS else far)
            for link in self.links.values()
            if not link.refuses
            for kind, step in link.waiting
        )

    async def _send_letter(self, at: int, message: Message, pushed: list[str], receivers: list[int]) -> None:
        """Write the letter of this step, once for all receivers, and post it."""
        path = self._outbox / f"{at}.letter"
        kept = {name: value for name, value in message.items() if name not in pushed}
        await asyncio.to_thread(letters.write, path, self._header(wire.LETTER, at), kept, self.exchange.sync)
        for j in receivers:
            self.links[j].post(wire.LETTER, at, path)

    async def _send_mass(self, at: int, pushed: list[str], receivers: list[int], column: np.ndarray) -> None:
        """Owe every receiver its share, write the parcels down, and post them."""
        for j in receivers:
            edge = self.edges_out.setdefault(j, OutEdge())
            # Edges are changed here and by receipts, so never in a thread of their own.
            edge.add(at, share_of(self.client.message, float(column[j]), pushed))
            if parcel := edge.parcel():
                path = self._outbox / f"{j}.mass"
                header = self._header(wire.MASS, parcel.through)
                header.base = parcel.base
                await asyncio.to_thread(letters.write, path, header, parcel.total, self.exchange.sync)
                self.links[j].post(wire.MASS, parcel.through, path)

    async def _wait_for(self, at: int, senders: list[int], pushing: bool) -> list[int]:
        """Wait for the letters of this step; gives whose have come."""
        self.doing = "waiting"
        kind = wire.MASS if pushing and not self.schema.mixed else wire.LETTER

        def here(j: int) -> bool:
            if kind == wire.MASS:
                return self._has_through(j) >= at
            return self.mailbox.has(kind, j, at)

        began = time.monotonic()
        reminded = began
        while missing := [j for j in senders if not here(j)]:
            now = time.monotonic()
            if self.waits:
                left = REMIND
            else:
                left = max(began + self.paces[j].limit(self._reachable(j)) for j in missing) - now
                if left <= 0:
                    break
            if now - reminded >= REMIND:
                reminded = now
                names = [self.kit.roster.members[j].name for j in missing]
                self.log("waiting", step=at, for_peers=names, seconds=round(now - began, 1))
            await self.mailbox.wait(partial(_all, here, missing), min(left, REMIND))
        for j in senders:
            if here(j):
                self.paces[j].heard(max(0.0, self.mailbox.came.get(j, began) - began))
            else:
                self.paces[j].silent()
                self.log("went on without", step=at, neighbour=self.kit.roster.members[j].name)
        return [j for j in senders if here(j)]

    def _mix(
        self, at: int, line: Line, found: Found, operators: dict[str, Operator], row: dict[int, float], own: float
    ) -> None:
        """Mix just what the line says."""
        coded = self.method if at >= 0 else None
        heard = Unread({int(name): found[wire.LETTER, int(name), at] for name in line.get("heard", {})}, coded)
        mass = {}
        for name in line.get("mass", {}):
            taken = []
            for (kind, sender, _), letter in found.items():
                if kind == wire.MASS and sender == int(name):
                    new = self._edge_in(sender).take(Parcel(letter.header.base, letter.header.step, letter.message))
                    taken += [] if new is None else [new]
            if taken:
                mass[int(name)] = together(taken)
        self.client.hear(at, operators, row, own, heard, mass)

    def _letters_of(self, at: int, line: Line) -> Found:
        """The letters that a line of the trace names, in the order in which mass is to be taken."""
        wanted = [(int(wire.LETTER), int(name), at) for name in line.get("heard", {})]
        for name, through in line.get("mass", {}).items():
            steps = self.mailbox.steps(wire.MASS, int(name))
            wanted += [(int(wire.MASS), int(name), step) for step in steps if step <= through]
        return {key: self.mailbox.letter(*key) for key in wanted}

    # Others

    def _judge(self, sender: int, header: wire.Header) -> Answer:
        """Whether a letter is let in, by its header alone."""
        if header.network != self._digest:
            return Answer(wire.REFUSED, "another network: its experiment, peers or policy differ from ours")
        if header.version != VERSION:
            return Answer(wire.REFUSED, f"another version: {header.version[:20]!r}, this peer runs {VERSION}")
        if not self._is_right_process(sender, header.process):
            return Answer(wire.REFUSED, "another process speaks for this peer")
        steps, rounds = self.schema.steps, self.training.rounds
        step = header.step
        if step >= rounds * steps or step < -self.schema.open_steps:
            return Answer(wire.REFUSED, f"wrong step: there is no step {step}")
        kind = int(header.kind)
        if kind not in (wire.LETTER, wire.MASS):
            return Answer(wire.REFUSED, f"unknown kind of message: {kind}")
        if self.mailbox.has(kind, sender, step):
            return Answer(wire.DOUBLED)
        if kind == wire.MASS and step <= self._has_through(sender):
            return Answer(wire.DOUBLED)
        if kind == wire.LETTER and step < self.floor:
            return Answer(wire.PAST, f"past: step {step} is over, this peer is at step {self.floor}")
        self._rounds_of[sender] = max(self._rounds_of.get(sender, 0), step // steps)
        if step >= self.floor + AHEAD * steps + steps:
            return Answer(wire.EARLY, f"future: step {step} is too far ahead of step {self.floor}")
        if self.network.by_loss is None and not self._is_neighbour(sender, step):
            return Answer(wire.REFUSED, f"no neighbour: this peer does not hear from the sender at step {step}")
        return Answer(None)

    def _heard(self, header: wire.Header) -> None:
        """A letter was let in: take note of the losses that it tells."""
        for known in header.losses:
            if known.peer != self.number and known.round > self.losses.get(known.peer, (-1, 0.0))[0]:
                self.losses[known.peer] = (known.round, known.loss)

    def _is_neighbour(self, sender: int, step: int) -> bool:
        matrix_step = step if step >= 0 else step + self.schema.open_steps
        return sender != self.number and self.network.matrix(matrix_step)[self.number, sender] != 0

    def _is_right_process(self, sender: int, process: wire.Process) -> bool:
        """Of two processes with one name, the one that started last is heard; of two copies, the first."""
        known = self._processes.get(sender)
        if known is not None and process != known and process.number <= known.number:
            return False
        self._processes[sender] = process
        return True

    async def _on_receipt(self, link: Link, kind: int, step: int, receipt: wire.Receipt) -> None:
        """A neighbour has answered."""
        self._rounds_of[link.number] = max(
            self._rounds_of.get(link.number, 0), min(receipt.round, self.training.rounds)
        )
        if kind == wire.MASS and receipt.verdict in (wire.ACCEPTED, wire.DOUBLED):
            try:
                self.edges_out[link.number].acknowledged(receipt.through)
            except ValueError as error:
                self.log("strange receipt", neighbour=link.member.name, reason=str(error))
        self._takes_ours[link.number] = receipt.verdict != wire.REFUSED
        if receipt.verdict == wire.REFUSED:
            self.log("was refused", neighbour=link.member.name, step=step, reason=receipt.reason[:300])
            said = {
                "another process": TwoProcesses(
                    f"{self.kit.name}: {link.member.name} already hears another process with this kit. One kit is for "
                    "one process: stop one of them."
                ),
                "another network": GossamerError(
                    f"{self.kit.name}: {link.member.name} runs another network file. Give every peer the kit of the "
                    "same 'gossamer network create'."
                ),
                "another version": GossamerError(
                    f"{self.kit.name}: {link.member.name} runs another version of Gossamer than {VERSION}. Install the "
                    "same one everywhere."
                ),
            }
            for reason, trouble in said.items():
                if receipt.reason.startswith(reason):
                    asyncio.get_running_loop().call_later(DOUBT, self._give_up_unless_heard, trouble)
        await self.mailbox.nudge()

    def _give_up_unless_heard(self, error: GossamerError) -> None:
        """One neighbour alone cannot stop a peer whose letters others take."""
        if not any(self._takes_ours.values()):
            self._give_up(error)

    def _give_up(self, error: GossamerError) -> None:
        if self._trouble is not None and not self._trouble.done():
            self._trouble.set_exception(error)

    async def _greet_everyone(self) -> None:
        """Say hello to whoever is there; who is not will be met later."""

        async def greet(link: Link) -> None:
            try:
                answer = await link.greet(self._hello(), seconds=2)
            except Exception as error:
                self.log("not there yet", neighbour=link.member.name, reason=str(link.last_error or error))
                return
            same[link.member.name] = answer.network == self._digest
            if answer.network != self._digest:
                self.log("other network", neighbour=link.member.name)
            elif answer.version != VERSION:
                self.log("other version", neighbour=link.member.name, theirs=answer.version[:20], ours=VERSION)
            self._rounds_of[link.number] = min(answer.round, self.training.rounds)

        self.doing = "greeting"
        same: dict[str, bool] = {}
        await asyncio.gather(*(greet(link) for link in self.links.values()))
        if same and not any(same.values()):
            self._give_up(GossamerError(
                f"{self.kit.name}: {' and '.join(same)} runs another network file. Give every peer the kit of the "
                "same 'gossamer network create'."
            ))  # fmt: skip

    async def _stay(self) -> None:
        """Be there until the neighbours have what they need of this peer."""
        goodbyes = (link.greet(self._hello(), seconds=2) for link in self.links.values())
        await asyncio.gather(*goodbyes, return_exceptions=True)
        ends = time.monotonic() + max(self.exchange.patience, GRACE)
        while time.monotonic() < ends:
            open_ends = []
            for link in self.links.values():
                if link.waiting and not link.finished:
                    open_ends.append(link)
                elif not link.finished:
                    try:
                        await link.greet(self._hello(), seconds=2)
                    except Exception:
                        if link.down_for() < GRACE:
                            open_ends.append(link)
                    else:
                        if not link.finished:
                            open_ends.append(link)
                            ends = time.monotonic() + max(self.exchange.patience, GRACE)
            if not open_ends:
                return
            await asyncio.sleep(0.2)

    def _hello(self) -> wire.Hello:
        return wire.Hello(
            version=VERSION, network=self._digest, process=self.process, round=self.done, finished=self.finished
        )

    def _greeted(self, sender: int, hello: wire.Hello) -> None:
        """A peer says hello, or goodbye."""
        if hello.network == self._digest and sender in self.links:
            self.links[sender].finished = hello.finished
            self.links[sender].hurry()

    def _header(self, kind: int, step: int) -> wire.Header:
        known = [
            wire.Loss(peer=j, round=r, loss=loss) for j, (r, loss) in self.losses.items() if abs(loss) <= LARGEST_LOSS
        ]
        told = known if getattr(self.method, "shares_loss", False) else []
        return wire.Header(
            network=self._digest,
            version=VERSION,
            process=self.process,
            kind=kind,  # type: ignore[arg-type]
            step=step,
            losses=told,
        )

    def _known_losses(self, line: Line | None) -> np.ndarray | None:
        """Everyone's training loss as far as it has been heard of; who is unknown counts as an average one."""
        if not getattr(self.method, "shares_loss", False) or self.network.by_loss is None:
            return None
        if line is not None and "losses" in line:
            return np.array(line["losses"])
        known = {j: loss for j, (_, loss) in self.losses.items() if np.isfinite(loss)}
        usual = float(np.mean(list(known.values()))) if known else 0.0
        return np.array([known.get(j, usual) for j in range(self.network.clients)])

    def _reachable(self, j: int) -> bool:
        """Whether a neighbour gives a sign of life: it can be reached, or was heard a moment ago."""
        return self.links[j].reachable or time.monotonic() - self.mailbox.came.get(j, 0.0) < self.paces[j].patience / 4

    # What is kept

    def _edge_in(self, j: int) -> InEdge:
        return self.edges_in.setdefault(j, InEdge(self.schema.model_dtype))

    def _has_through(self, j: int) -> int:
        """Up to which step everything of a sender's mass is on this disk."""
        waiting = self.mailbox.steps(wire.MASS, j)
        return max([self._edge_in(j).through, *waiting[-1:]])

    def _held(self, j: int) -> Parcel:
        """The last of a sender's mass that is on this disk."""
        if waiting := self.mailbox.steps(wire.MASS, j):
            letter = self.mailbox.letter(wire.MASS, j, waiting[-1])
            return Parcel(letter.header.base, letter.header.step, letter.message)
        edge = self._edge_in(j)
        return Parcel(edge.base, edge.through, edge.total)

    def _too_light(self) -> bool:
        weight = self.client.message.get("weight")
        return weight is not None and float(weight) < LEAST_WEIGHT

    def _commit(self, round: int) -> None:
        """Keep the state, then forget what led to it."""
        tensors = {f"state/{name}": value for name, value in self.client.state.items()}
        edges = {}
        for j, edge in self.edges_in.items():
            kept, numbers = edge.state()
            tensors |= {f"edge/{j}/{name}": value for name, value in kept.items()}
            edges[str(j)] = numbers
        about = {"network": self._digest, "edges": edges, "losses": {str(j): kept for j, kept in self.losses.items()}}
        self.journal.commit(round, tensors, about)
        self.done = round
        self.mailbox.forget(wire.LETTER, self.floor)
        for j, edge in self.edges_in.items():
            self.mailbox.forget(wire.MASS, edge.through + 1, j)
        behind = self.floor - self.schema.steps
        for link in self.links.values():
            if not self.waits or link.refuses:
                link.drop(behind)
        wanted = {step for link in self.links.values() for kind, step in link.waiting if kind == wire.LETTER}
        for path in self._outbox.glob("*.letter"):
            if int(path.stem) < behind and int(path.stem) not in wanted:
                path.unlink(missing_ok=True)

    def _resume(self) -> None:
        """Go back to the last commit, if there is one."""
        for path in self._outbox.glob("*.mass"):
            try:
                letter = Letter(path)
            except Damaged as error:
                self.log("lost mass", reason=f"{error}: what it held for {path.stem} is gone")
                continue
            edge = self.edges_out.setdefault(int(path.stem), OutEdge())
            through = letter.header.step
            kept = {name: value.clone() for name, value in letter.message.items()}
            edge.load(kept, {"base": letter.header.base, "through": through, "sent": through})
        found = self.journal.last(self._digest)
        if found is None:
            return
        self.done, tensors, about = found
        state = {name.removeprefix("state/"): value for name, value in tensors.items() if name.startswith("state/")}
        fresh = self.client.state
        if {n: v.shape for n, v in state.items()} != {n: v.shape for n, v in fresh.items()}:
            raise RunFolderError(
                f"{self.folder}: holds the state of another model or method than the kit's experiment."
            )
        self.client.state = {name: state[name].to(fresh[name].device) for name in fresh}
        for j, numbers in about["edges"].items():
            prefix = f"edge/{j}/"
            kept = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
            self._edge_in(int(j)).load(kept, numbers)
        self.losses = {int(j): (int(r), float(loss)) for j, (r, loss) in about["losses"].items()}
        self.floor = self.done * self.schema.steps

    def _post_again(self) -> None:
        """Letters that were not acknowledged when the process ended."""
        for path in sorted(self._outbox.glob("*.letter"), key=lambda path: int(path.stem)):
            step = int(path.stem)
            if step >= self.floor:  # will be written anew by the round that is done again
                continue
            matrix_step = step if step >= 0 else step + self.schema.open_steps
            for receiver in np.flatnonzero(self.network.matrix(matrix_step)[:, [self.number]].toarray()[:, 0]):
                if receiver != self.number:
                    self._refresh(path)
                    self.links[int(receiver)].post(wire.LETTER, step, path)
        for j in self.edges_out:
            path = self._outbox / f"{j}.mass"
            self._refresh(path)
            self.links[j].post(wire.MASS, self.edges_out[j].through, path)

    def _refresh(self, path: Path) -> None:
        """Put this process's name on a letter of the process before it."""
        letter = Letter(path)
        if letter.header.process != self.process:
            letter.header.process.CopyFrom(self.process)
            letters.write(path, letter.header, letter.message, self.exchange.sync)

    def _catch_up(self) -> None:
        """After an absence: go on where the others are, rather than where nobody is any more."""
        line = self._skips.get(self.done)
        if line is None:
            if self.waits:
                return
            # Where half of them are: one alone that claims to be far ahead is not followed.
            claimed = sorted(self._rounds_of.values()) or [0]
            there = min(claimed[(len(claimed) - 1) // 2], self.training.rounds - 1)
            # What has left this peer must first have left its own state too.
            owes = max([edge.sent for edge in self.edges_out.values()], default=-1) >= self.done * self.schema.steps
            if there - self.done < AHEAD or owes:
                return
            line = there
            self.journal.write({"skip": [self.done, there]})
            self.log("catching up", from_round=self.done, to_round=there)
        self.done = line
        self.floor = self.done * self.schema.steps

    def _take_folder(self) -> FileLock:
        make_folder(self.folder)
        lock = FileLock(self.folder / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise TwoProcesses(f"{self.folder}: another process runs this peer. One kit is for one process.") from None
        if not (self.folder / EXPERIMENT).exists():
            write_text(self.folder / "environment.json", json.dumps({"engine": {"peer": self.kit.name}}) + "\n")
            write_text(self.folder / EXPERIMENT, self.kit.roster.experiment.to_toml())
        return lock

    def _next_life(self) -> int:
        """How often this peer has been started, this time included."""
        path = self.folder / "lives"
        number = int(path.read_text()) + 1 if path.exists() else 1
        write_text(path, str(number))
        return number

    # What is told

    async def _record(self, round: int, loss: float, seconds_local: float, seconds_exchange: float) -> None:
        """Measure the round and write it down."""
        experiment = self.kit.roster.experiment
        now = sum(link.sent_bytes for link in self.links.values())
        sent, self._sent_before = now - self._sent_before, now
        total = self.metrics.get("bytes_total", 0) + sent
        metrics: dict[str, Any] = {
            "round": round, "lr": experiment.lr * experiment.lr_decay ** (round - 1), "local_loss": loss,
            "bytes_per_client": float(sent), "bytes_round": sent, "bytes_total": total,
        }  # fmt: skip
        every = experiment.evaluate.every
        started = time.monotonic()
        if round == self.training.rounds or (every and round % every == 0):
            evaluator = Evaluator(self.training.model, self.training.loss, self.training.dataset, 1)
            vector = self.method.model(self.client.state)[None]
            quality = await asyncio.to_thread(evaluator.test, vector)
            if quality:
                metrics["test_loss"], metrics["test_accuracy"] = float(quality.loss), float(quality.accuracy)
        self.metrics = metrics
        folder = RunFolder(self.folder)
        folder.record(metrics, {
            "round": round, "seconds_local": seconds_local, "seconds_mixing": seconds_exchange,
            "seconds_evaluation": time.monotonic() - started,
        })  # fmt: skip
        self.log("round", **metrics)

    def _write_final(self) -> None:
        vector = self.method.model(self.client.state)
        RunFolder(self.folder).save_model(FINAL, self.training.model.unflatten(vector), self.done)

    def status(self) -> dict[str, Any]:
        """How this peer is doing."""
        weight = self.client.state.get("weight")
        names = [member.name for member in self.kit.roster.members]
        return {
            "peer": self.kit.name, "round": self.done, "rounds": self.training.rounds, "doing": self.doing,
            "finished": self.finished, "loss": self.metrics.get("local_loss"),
            "accuracy": self.metrics.get("test_accuracy"), "test_loss": self.metrics.get("test_loss"),
            "sent_bytes": sum(link.sent_bytes for link in self.links.values()),
            "received_bytes": self.service.received_bytes, "refused": dict(self.service.refused),
            "weight": None if weight is None else float(weight), "process": self.process.number,
            "seconds": round(time.monotonic() - self._began, 1),
            "neighbours": {
                names[j]: {"reachable": link.reachable, "waiting": len(link.waiting), "round": self._rounds_of.get(j),
                           "failures": link.failures, "finished": link.finished,
                           "sends": bool(link.sent_bytes or link.waiting), "hears": j in self.mailbox.came}
                for j, link in self.links.items()
            },
        }  # fmt: skip

    def log(self, event: str, **about: Any) -> None:
        """One structured line."""
        line = {"time": round(time.time(), 3), "peer": self.kit.name, "event": event, **about}
        append_line(self.folder / "log.jsonl", to_json(line))
        if self._watch is not None:
            self._watch(line)
