"""What the peers of a network did, done again in one process from their traces: the same vectors at the end.

A trace says what a peer mixed at each gossip step (see `journal`), not when it came: losses, delays and restarts have
left no other mark on its model. Every peer is a `Client` that follows its own trace as far as it gets, until it needs
what another one has yet to write.
"""

from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from gossamer.engines.reference import Client, pushed_names, share_of, together
from gossamer.errors import GossamerError, RunFolderError
from gossamer.experiment.preparation import prepare
from gossamer.methods import Message, Operator, arrived, gossip_steps
from gossamer.peers.identity.kit import NETWORK, KitError, kits_in
from gossamer.peers.identity.roster import EXPERIMENT_DATA, Roster, load_kit_roster
from gossamer.peers.mass import given
from gossamer.peers.store.journal import Journal, with_prefix
from gossamer.runs.folder import EXPERIMENT, FINAL, RunFolder, read_lines
from gossamer.system.threads import on_threads
from gossamer.training.steps import Training

#: How far apart the same arithmetic may end, by the numbers that models are made of.
SAME = {"float32": 1e-5, "float64": 1e-10}

Line = Mapping[str, Any]


class Need(NamedTuple):
    """What a peer waits for: at `step` it mixed what `sender` wrote at step `written`."""

    step: int
    sender: int
    written: int


#: Something that may have to wait; at its end, whether it was done.
Steps: TypeAlias = Generator[Need, None, bool]


def replay(training: Training, traces: Sequence[Sequence[Line]], drift: dict[int, float] | None = None) -> Tensor:
    """The peers' final vectors, [peers, d], by their traces in the order of their numbers.

    `drift`, if given, is filled with how far each gossip step moved the mean of what is averaged, relative to it:
    zero where everyone was heard, on a graph that preserves it.
    """
    peers = len(training.batches.parts)
    if len(traces) != peers:
        raise GossamerError(f"{len(traces)} traces for {peers} peers: every peer's is needed")
    post = Post(traces)
    means = Means(peers)
    replayed = [ReplayedPeer(number, training, lines, post, means) for number, lines in enumerate(traces)]
    lives = {peer.client.number: peer.live() for peer in replayed}
    needs: dict[int, Need] = {}
    while lives:
        before = (post.written, len(lives))
        for number, life in list(lives.items()):
            need = next(life, None)
            if need is None:
                del lives[number]
            else:
                needs[number] = need
        if (post.written, len(lives)) == before:
            number = min(lives, key=lambda number: needs[number].step)
            step, sender, written = needs[number]
            raise GossamerError(
                f"the traces contradict each other: peer {number} mixed at step {step} what peer {sender} wrote to it "
                f"at step {written}, but by the traces that was never written"
            )
    if drift is not None:
        drift |= means.moved
    return torch.stack([peer.client.method.model(peer.client.state) for peer in replayed])


class Means:
    """How far mixing moves the mean of what is averaged, at each gossip step that all peers took part in."""

    def __init__(self, peers: int) -> None:
        self._peers = peers
        self._sums: dict[int, tuple[int, Tensor, Tensor]] = {}
        self.moved: dict[int, float] = {}

    def add(self, step: int, before: Tensor, after: Tensor) -> None:
        """What one peer brought to a step, and what it left with."""
        count, sent, got = self._sums.pop(step, (0, torch.zeros_like(before), torch.zeros_like(after)))
        count, sent, got = count + 1, sent + before, got + after
        if count < self._peers:
            self._sums[step] = (count, sent, got)
        else:
            self.moved[step] = float((got - sent).norm() / sent.norm().clamp(min=1e-30))


class Post:
    """What peers have written and others have yet to read."""

    def __init__(self, traces: Sequence[Sequence[Line]]) -> None:
        self.written = 0
        self._letters: dict[tuple[int, int], Message] = {}
        # Letters are kept for as long as somebody will read them, so that a long run fits the memory.
        self._readers = Counter(letter for lines in traces for line in lines for letter in _entries(line, "heard"))
        self._shares: dict[tuple[int, int], list[tuple[int, Message]]] = {}

    def wants(self, sender: int, step: int) -> bool:
        """Whether somebody will read a letter that is not written yet."""
        return self._readers[sender, step] > 0 and (sender, step) not in self._letters

    def write(self, sender: int, step: int, letter: Message) -> None:
        """A letter for all who read it."""
        self.written += 1
        if self._readers[sender, step]:
            self._letters[sender, step] = letter

    def push(self, sender: int, receiver: int, step: int, share: Message) -> None:
        """Mass for one receiver."""
        self.written += 1
        self._shares.setdefault((sender, receiver), []).append((step, share))

    def read(self, sender: int, step: int) -> Message | None:
        """A letter, None if it is not written yet."""
        letter = self._letters.get((sender, step))
        if letter is not None:
            self._readers[sender, step] -= 1
            if not self._readers[sender, step]:
                del self._letters[sender, step]
        return letter

    def take(self, sender: int, receiver: int, through: int) -> Message | None:
        """All mass up to a step that was not taken before, None if that step's is not written yet."""
        shares = self._shares.get((sender, receiver), [])
        due = [share for step, share in shares if step <= through]
        if not due or shares[len(due) - 1][0] != through:
            return None
        del shares[: len(due)]
        return together(due)


class ReplayedPeer:
    """One peer that follows its trace."""

    def __init__(self, number: int, training: Training, lines: Sequence[Line], post: Post, means: Means) -> None:
        self.client = Client(number, training)
        self._network = training.network
        self._method: Any = training.method
        self._lines = deque(line for line in lines if "hold" not in line)
        self._holds = dict(line["hold"] for line in lines if "hold" in line)
        self._post = post
        self._means = means

    def live(self) -> Iterator[Need]:
        """Everything it did; yields what it needs for as long as that is not there."""
        index, hops = 0, gossip_steps(self._method)
        if hasattr(self._method, "open") and not (yield from self._open()):
            return
        while self._lines:
            if "skip" not in self._lines[0]:
                index += yield from self._round(index)
                continue
            if self._post.wants(self.client.number, index * hops):  # it was killed when it had written already
                yield from self._round(index)
            index = self._skip(index)
        if self._post.wants(self.client.number, index * hops):
            yield from self._round(index)

    def _open(self) -> Steps:
        """The exchange before the first round; whether it was brought to its end."""
        client, method = self.client, self._method
        before = client.state
        client.open()
        operators: dict[str, Operator] = dict.fromkeys(client.message, "average")
        for step in range(method.open_mixings):
            if not (yield from self._exchange(step, operators, step - method.open_mixings)):
                client.state = before
                return False
        client.state = method.opened(client.state, client.message, client.round(0))
        return True

    def _round(self, index: int) -> Steps:
        """One round; whether it was brought to its end. One that was not has left letters, and nothing else."""
        client, hops = self.client, gossip_steps(self._method)
        before = client.state
        client.train(index)
        for step in range(index * hops, (index + 1) * hops):
            if not (yield from self._exchange(step, self._method.sends, step)):
                client.state = before
                return False
        client.state = self._method.receive(client.state, client.message, client.round(index))
        return True

    def _exchange(self, step: int, operators: dict[str, Operator], at: int) -> Steps:
        """One gossip step with the weights of `step`, known in letters and traces as `at`; whether it was made."""
        client, post, number = self.client, self._post, self.client.number
        coded = at >= 0
        wire = client.letter(coded)
        post.write(number, at, arrived(self._method, wire) if coded else wire)
        line = self._next(at)
        if line is None:
            return False
        weights = self._weights(step, line)
        tells = {int(j): float(weights[j, number]) for j in np.flatnonzero(weights[:, number]) if j != number}
        shares, kept = given(tells, self._holds.get(at, []))
        if pushed := pushed_names(operators, client.message):
            for receiver, share in shares.items():
                post.push(number, receiver, at, share_of(client.message, share, pushed))
        row = {int(j): float(weights[number, j]) for j in np.flatnonzero(weights[number])}
        own = row.pop(number, 0.0)
        heard, mass = {}, {}
        for sender, written in _entries(line, "heard"):
            if sender not in row:
                raise GossamerError(
                    f"peer {number} mixed at step {at} a letter of peer {sender}, not its neighbour then"
                )
            while (letter := post.read(sender, written)) is None:
                yield Need(at, sender, written)
            heard[sender] = letter
        for sender, written in _entries(line, "mass"):
            while (taken := post.take(sender, number, written)) is None:
                yield Need(at, sender, written)
            mass[sender] = taken
        averaged = [name for name, operator in operators.items() if operator == "average"]
        before = {name: client.message[name] for name in averaged[:1]}
        client.hear(at, operators, row, own, heard, mass, kept)
        for name, value in before.items():
            self._means.add(at, value, client.message[name])
        return True

    def _skip(self, index: int) -> int:
        """The round with which it goes on after it was away."""
        start, end = self._lines.popleft()["skip"]
        if start != index or end < start:
            raise GossamerError(
                f"trace of peer {self.client.number}: goes from round {start} to {end} where round {index} is next"
            )
        return int(end)

    def _next(self, at: int) -> Line | None:
        """The line of a step; None if the peer was killed before it mixed."""
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
    """(sender, step) of what a line names, by sender; keys are strings where it has been JSON."""
    return sorted((int(sender), int(step)) for sender, step in line.get(kind, {}).items())


class Agreement(NamedTuple):
    """What a replay of a network's runs found."""

    #: How far what each peer ended with is from what the traces give.
    differences: dict[str, float]
    #: How far that may be.
    allowed: float
    rounds: int
    #: Letters that were needed and not waited for.
    missing: int
    #: Shares of mass that their sender kept.
    held: int
    #: Rounds that peers were away for, added up.
    skipped: int
    #: How far the mean of what is averaged was moved, relative to it: by the worst step, and by all together.
    worst_drift: float
    total_drift: float

    @property
    def others(self) -> list[str]:
        """The peers that ended with another model than the traces give."""
        return [name for name, difference in self.differences.items() if not difference <= self.allowed]


def replay_kits(kits: Path, runs: Path | None = None, data_dir: Path | None = None) -> Agreement:
    """Replay what all peers of a network did, and compare with the models that they ended with. Writes nothing.

    The run of a peer is KITS/NAME/run or, if `runs` is given, RUNS/NAME.
    """
    roster = _roster_of(kits)
    experiment = roster.experiment
    places = {name: runs / name if runs else kits / name / "run" for name in roster.names}
    _check_whole(kits, places, experiment.rounds)
    traces, states = zip(*(_read(place, roster) for place in places.values()), strict=True)
    training = prepare(experiment, data_dir).training
    moved: dict[int, float] = {}
    with on_threads(1):  # as peers compute, so that sums are in the same order
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
    """The network of some kits, if its samples are known here. Certificates may have expired since it ran."""
    found = [load_kit_roster(folder / NETWORK) for folder in kits_in(kits)]
    if not found:
        raise KitError(f"{kits}: there are no kits in it; name the folder that 'gossamer network create' wrote")
    if own := [name for roster, name in found if roster.member(name).data != EXPERIMENT_DATA]:
        raise KitError(
            f"{kits}: samples of their own, by the kits: {', '.join(own)}. A replay has only those of the "
            f'experiment\'s data set, so it needs peers with data = "{EXPERIMENT_DATA}"'
        )
    return found[0][0]


def _check_whole(kits: Path, places: Mapping[str, Path], rounds: int) -> None:
    """Refuse what is no finished run, with all peers that have none."""
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
        if not all(isinstance(line, dict) and line.keys() & {"step", "skip", "hold"} for line in journal.lines):
            raise ValueError
    except (OSError, ValueError):
        raise RunFolderError(
            f"{run}: is not whole: trace.jsonl or the last of checkpoints/ is missing, cut short or damaged. Copy the "
            "run anew"
        ) from None
    return journal.lines, with_prefix("state/", last[1])


def _difference(training: Training, replayed: Tensor, run: Path, state: Mapping[str, Tensor]) -> float:
    """How far the model in a run, both as committed and as written at the end, is from the replayed one."""
    method: Any = training.method
    final = RunFolder(run).load_model(FINAL)
    try:
        written = torch.cat([final[name].reshape(-1) for name in training.model.names])
        return float((torch.stack([method.model(dict(state)), written]) - replayed).abs().max())
    except (KeyError, RuntimeError):  # a tensor that is not there, or of another size
        raise RunFolderError(f"{run}: holds another model than the experiment's. Has own code changed since?") from None
