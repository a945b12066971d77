"""Repeat a run of peers in one process from their traces, and compare the final models.

A trace holds the letters that a peer mixed at each gossip step (see `journal`), not their times: losses, delays and
restarts affect a model in no other way. Every peer is a `Client` that follows its trace until it needs a letter that
another one has yet to write; then the other peers continue.
"""

from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from gossamer.errors import GossamerError, RunFolderError
from gossamer.experiment import prepare
from gossamer.methods import Message, Operator
from gossamer.peers.identity.kit import NETWORK, KitError, kits_in
from gossamer.peers.identity.roster import EXPERIMENT_DATA, Roster, load_kit_roster
from gossamer.peers.mass import given
from gossamer.peers.store.journal import Journal, check_owner, holds_in, with_prefix
from gossamer.runs.folder import EXPERIMENT, FINAL, RunFolder, read_lines
from gossamer.system.threads import on_threads
from gossamer.training import Client, Training, pushed_names, share_of, together

#: The largest difference between models that count as the same, by dtype.
SAME = {"float32": 1e-5, "float64": 1e-10}

Line = Mapping[str, Any]


class Need(NamedTuple):
    """A letter that a peer waits for: at `step` it mixed the letter that `sender` wrote at step `written`."""

    step: int
    sender: int
    written: int


#: A part of a run that yields while it must wait; returns whether it was completed.
Steps: TypeAlias = Generator[Need, None, bool]


def replay(training: Training, traces: Sequence[Sequence[Line]], drift: dict[int, float] | None = None) -> Tensor:
    """The peers' final vectors, [peers, d], from their traces in the order of their numbers.

    `drift`, if given, is filled with the relative change of the mean at each gossip step of an averaging method: zero
    where every letter was mixed, on a graph that preserves the mean.
    """
    peers = len(training.batches.client_rows)
    if len(traces) != peers:
        raise GossamerError(f"{len(traces)} traces for {peers} peers: every peer's is needed")
    sent = SentMessages(traces)
    means = MeanDrift(peers)
    replayed = [ReplayedPeer(number, training, lines, sent, means) for number, lines in enumerate(traces)]
    running = {peer.client.number: peer.run() for peer in replayed}
    needs: dict[int, Need] = {}
    while running:
        before = (sent.written, len(running))
        for number, peer_run in list(running.items()):
            need = next(peer_run, None)
            if need is None:
                del running[number]
            else:
                needs[number] = need
        if (sent.written, len(running)) == before:
            number = min(running, key=lambda number: needs[number].step)
            step, sender, written = needs[number]
            raise GossamerError(
                f"the traces contradict each other: peer {number} mixed at step {step} a letter that peer {sender} "
                f"wrote at step {written}, but by the traces it was never written"
            )
    if drift is not None:
        drift |= means.moved
    return torch.stack([peer.client.method.model(peer.client.state) for peer in replayed])


class MeanDrift:
    """The change of the mean of the averaged vectors, at each gossip step that all peers took part in."""

    def __init__(self, peers: int) -> None:
        self._peers = peers
        self._sums: dict[int, tuple[int, Tensor, Tensor]] = {}
        self.moved: dict[int, float] = {}

    def add(self, step: int, before: Tensor, after: Tensor) -> None:
        """Add one peer's vector before and after a step."""
        count, sent, got = self._sums.pop(step, (0, torch.zeros_like(before), torch.zeros_like(after)))
        count, sent, got = count + 1, sent + before, got + after
        if count < self._peers:
            self._sums[step] = (count, sent, got)
        else:
            self.moved[step] = float((got - sent).norm() / sent.norm().clamp(min=1e-30))


class SentMessages:
    """Messages that peers have written and others have yet to read."""

    def __init__(self, traces: Sequence[Sequence[Line]]) -> None:
        self.written = 0
        self._letters: dict[tuple[int, int], Message] = {}
        # A letter is kept only until its last reader has read it, so that a long run fits into memory.
        self._readers = Counter(letter for lines in traces for line in lines for letter in _entries(line, "heard"))
        self._shares: dict[tuple[int, int], list[tuple[int, Message]]] = {}

    def wants(self, sender: int, step: int) -> bool:
        """Whether some peer will read this letter, and it is not written yet."""
        return self._readers[sender, step] > 0 and (sender, step) not in self._letters

    def write(self, sender: int, step: int, letter: Message) -> None:
        """Write a letter."""
        self.written += 1
        if self._readers[sender, step]:
            self._letters[sender, step] = letter

    def push(self, sender: int, receiver: int, step: int, share: Message) -> None:
        """Write a share of mass for one receiver."""
        self.written += 1
        self._shares.setdefault((sender, receiver), []).append((step, share))

    def read(self, sender: int, step: int) -> Message | None:
        """Read a letter; None if it is not written yet."""
        letter = self._letters.get((sender, step))
        if letter is not None:
            self._readers[sender, step] -= 1
            if not self._readers[sender, step]:
                del self._letters[sender, step]
        return letter

    def take(self, sender: int, receiver: int, through: int) -> Message | None:
        """Take all mass up to a step that was not taken before; None if the mass of that step is not written yet."""
        shares = self._shares.get((sender, receiver), [])
        due = [share for step, share in shares if step <= through]
        if not due or shares[len(due) - 1][0] != through:
            return None
        del shares[: len(due)]
        return together(due)


class ReplayedPeer:
    """One peer that follows its trace."""

    def __init__(
        self, number: int, training: Training, lines: Sequence[Line], sent: SentMessages, means: MeanDrift
    ) -> None:
        self.client = Client(number, training)
        self._network = training.network
        self._traits = training.traits
        self._lines = deque(line for line in lines if "hold" not in line)
        self._holds = holds_in(lines)
        self._sent = sent
        self._means = means

    def run(self) -> Iterator[Need]:
        """The whole run; yields the letter that it needs, until that is written."""
        index, hops = 0, self._traits.gossip_steps
        if self._traits.opening and not (yield from self._open()):
            return
        while self._lines:
            if "skip" not in self._lines[0]:
                index += yield from self._round(index)
                continue
            if self._sent.wants(self.client.number, index * hops):  # it was killed after it had written its letter
                yield from self._round(index)
            index = self._skip(index)
        if self._sent.wants(self.client.number, index * hops):
            yield from self._round(index)

    def _open(self) -> Steps:
        """The exchange before the first round; returns whether it was completed."""
        client, mixings = self.client, self._traits.open_mixings
        before = client.state
        client.open()
        operators: dict[str, Operator] = dict.fromkeys(client.message, "average")
        for step in range(mixings):
            if not (yield from self._exchange(step, operators, step - mixings)):
                client.state = before
                return False
        client.opened()
        return True

    def _round(self, index: int) -> Steps:
        """One round; returns whether it was completed. An incomplete one has written letters and no more."""
        client = self.client
        before = client.state
        client.train(index)
        for step in client.work.gossip_steps(index):
            if not (yield from self._exchange(step, client.method.sends, step)):
                client.state = before
                return False
        client.receive(index)
        return True

    def _exchange(self, step: int, operators: dict[str, Operator], at: int) -> Steps:
        """One gossip step with the weights of `step`, numbered `at` in traces; returns whether it was mixed."""
        client, sent, number = self.client, self._sent, self.client.number
        coded = at >= 0
        letter_sent = client.letter(coded)
        sent.write(number, at, self._traits.decoded(letter_sent) if coded else letter_sent)
        line = self._next(at)
        if line is None:
            return False
        weights = self._weights(step, line)
        tells = {int(j): float(weights[j, number]) for j in np.flatnonzero(weights[:, number]) if j != number}
        shares, kept = given(tells, self._holds.get(at, {}))
        if pushed := pushed_names(operators, client.message):
            for receiver, share in shares.items():
                sent.push(number, receiver, at, share_of(client.message, share, pushed))
        row = {int(j): float(weights[number, j]) for j in np.flatnonzero(weights[number])}
        own = row.pop(number, 0.0)
        heard, mass = {}, {}
        for sender, written in _entries(line, "heard"):
            if sender not in row:
                raise GossamerError(
                    f"peer {number} mixed at step {at} a letter of peer {sender}, not its neighbour then"
                )
            while (letter := sent.read(sender, written)) is None:
                yield Need(at, sender, written)
            heard[sender] = letter
        for sender, written in _entries(line, "mass"):
            while (taken := sent.take(sender, number, written)) is None:
                yield Need(at, sender, written)
            mass[sender] = taken
        averaged = [name for name, operator in operators.items() if operator == "average"]
        before = {name: client.message[name] for name in averaged[:1]}
        client.hear(at, operators, row, own, heard, mass, kept)
        for name, value in before.items():
            self._means.add(at, value, client.message[name])
        return True

    def _skip(self, index: int) -> int:
        """The round to which the peer jumped after an absence."""
        start, end = self._lines.popleft()["skip"]
        if start != index or end < start:
            raise GossamerError(
                f"trace of peer {self.client.number}: goes from round {start} to {end} where round {index} is next"
            )
        return int(end)

    def _next(self, at: int) -> Line | None:
        """The line of a step; None if the peer was killed before it mixed the step."""
        if not self._lines or "skip" in self._lines[0]:
            return None
        line = self._lines.popleft()
        if line["step"] != at:
            raise GossamerError(
                f"trace of peer {self.client.number}: says step {line['step']} where step {at} should follow"
            )
        return line

    def _weights(self, step: int, line: Line) -> np.ndarray:
        """The weights of a step, as this peer knew them."""
        losses = np.array(line["losses"], dtype=np.float64) if "losses" in line else None
        weights: np.ndarray = self._network.matrix(step, losses).toarray()
        return weights


def _entries(line: Line, kind: str) -> list[tuple[int, int]]:
    """The pairs (sender, step) of a line, sorted; JSON has turned the senders into strings."""
    return sorted((int(sender), int(step)) for sender, step in line.get(kind, {}).items())


class Agreement(NamedTuple):
    """The result of a replay."""

    #: The largest difference between each peer's final model and the replayed one.
    differences: dict[str, float]
    #: The largest difference that counts as the same model.
    allowed: float
    rounds: int
    #: Letters that peers went on without.
    missing: int
    #: Shares of mass that their senders held back.
    held: int
    #: Rounds that peers skipped after absences, summed over peers.
    skipped: int
    #: The relative change of the mean of an averaging method: in the worst step, and summed over steps.
    worst_drift: float
    total_drift: float

    @property
    def others(self) -> list[str]:
        """The peers whose final model differs from the replayed one."""
        return [name for name, difference in self.differences.items() if not difference <= self.allowed]


def replay_kits(kits: Path, runs: Path | None = None, data_dir: Path | None = None) -> Agreement:
    """Replay the runs of all peers of a network, and compare their final models. Writes nothing.

    The run of a peer is KITS/NAME/run or, if `runs` is given, RUNS/NAME.
    """
    roster = _roster_of(kits)
    experiment = roster.experiment
    places = {name: runs / name if runs else kits / name / "run" for name in roster.names}
    _check_whole(kits, places, experiment.rounds)
    for name, place in places.items():
        check_owner(place, name, roster.digest)
    traces, states = zip(*(_read(place, roster) for place in places.values()), strict=True)
    training = prepare(experiment, data_dir).training
    moved: dict[int, float] = {}
    with on_threads(1):  # as peers compute, so that sums have the same order
        vectors = replay(training, traces, moved).cpu()
    differences = {
        name: _difference(training, vector, place, state)
        for vector, (name, place), state in zip(vectors, places.items(), states, strict=True)
    }
    missing = sum(
        int(training.network.hears(max(line["step"], 0))[number]) - len(line["heard"])
        for number, lines in enumerate(traces)
        for line in lines
        if "heard" in line
    )
    skipped = sum(line["skip"][1] - line["skip"][0] for lines in traces for line in lines if "skip" in line)
    drifts = list(moved.values()) or [0.0]
    held = sum(len(line["hold"][1]) for lines in traces for line in lines if "hold" in line)
    allowed = SAME[experiment.dtype]
    return Agreement(differences, allowed, experiment.rounds, missing, held, skipped, max(drifts), sum(drifts))


def _roster_of(kits: Path) -> Roster:
    """The network of some kits, if its samples come with the experiment. Certificates may have expired."""
    found = [load_kit_roster(folder / NETWORK) for folder in kits_in(kits)]
    if not found:
        raise KitError(f"{kits}: there are no kits in it; name the folder that 'gossamer network create' wrote")
    if own := [name for roster, name in found if roster.member(name).data != EXPERIMENT_DATA]:
        raise KitError(
            f"{kits}: these peers have samples of their own: {', '.join(own)}. A replay has only those of the "
            f'experiment\'s data set, so it needs peers with data = "{EXPERIMENT_DATA}"'
        )
    return found[0][0]


def _check_whole(kits: Path, places: Mapping[str, Path], rounds: int) -> None:
    """Refuse missing and unfinished runs, and name their peers."""
    if absent := [f"{name} ({place})" for name, place in places.items() if not (place / EXPERIMENT).is_file()]:
        raise GossamerError(
            f"{kits}: a replay needs the run of every peer, and there is none of {', '.join(absent)}. Copy each run "
            "folder to that place, or name the folder that has them all, each as FOLDER/NAME, with --runs FOLDER"
        )
    done = {name: read_lines(RunFolder(place).metrics)[-1:] for name, place in places.items()}
    if early := [
        f"{name} ({done[name][0]['round'] if done[name] else 0} of {rounds} rounds)"
        for name, place in places.items()
        if not RunFolder(place).finished
    ]:
        raise GossamerError(
            f"{kits}: a replay needs finished runs, and these are not: {', '.join(early)}. A peer that is started "
            "again, with 'gossamer peer', goes on where it was"
        )


def _read(run: Path, roster: Roster) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """The trace of a finished run, and the state after its last round."""
    try:
        journal = Journal(run)
        last = journal.last(roster.digest)
        if not (journal.whole and journal.lines) or last is None or last[0] != roster.experiment.rounds:
            raise ValueError
    except (OSError, ValueError):
        raise RunFolderError(
            f"{run}: is not whole: trace.jsonl or the last of checkpoints/ is missing, cut short or damaged. Copy the "
            "run anew"
        ) from None
    return journal.lines, with_prefix("state/", last[1])


def _difference(training: Training, replayed: Tensor, run: Path, state: Mapping[str, Tensor]) -> float:
    """The largest difference between the replayed model and the run's, both as committed and in its final file."""
    final = RunFolder(run).load_model(FINAL)[1]
    try:
        written = torch.cat([final[name].reshape(-1) for name in training.model.names])
        return float((torch.stack([training.method.model(dict(state)), written]) - replayed).abs().max())
    except (KeyError, RuntimeError):  # a tensor that is not there, or of another size
        raise RunFolderError(
            f"{run}: holds another model than the experiment's. Has your code changed since?"
        ) from None
