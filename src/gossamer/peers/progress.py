"""Where a peer is in its run, and where the other peers are as far as it knows."""

from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.metadata import version

from gossamer.peers.wire import wire_pb2 as wire

VERSION = version("gossamer")
#: Rounds that a neighbour may be ahead.
AHEAD = 2


@dataclass
class PeerProgress:
    """What a peer reports about itself, and the rounds that other peers have reported."""

    #: The digest of the network file.
    network: str
    process: wire.Process
    #: Rounds of the whole run.
    rounds: int
    #: The next gossip step to mix; letters of earlier steps are no longer useful.
    next_step: int
    #: Rounds that are complete.
    done: int = 0
    #: The current activity, in a word or two.
    doing: str = "starting"
    finished: bool = False
    #: The peers that are waited for, with the seconds so far.
    waiting_for: dict[str, float] = field(default_factory=dict)
    #: The last known round of each other peer.
    others: dict[int, int] = field(default_factory=dict)
    #: The last gossip step of which a letter or mass of each other peer was stored here.
    heard: dict[int, int] = field(default_factory=dict)
    #: The number of the last process that sent letters, of each other peer.
    processes: dict[int, wire.Process] = field(default_factory=dict)
    #: The digests of the user's own code in the experiment, by part.
    code: dict[str, str] = field(default_factory=dict)
    version: str = VERSION

    def hello(self, peer: int) -> wire.Hello:
        """A greeting for another peer, or the answer to one."""
        return wire.Hello(
            version=self.version, network=self.network, process=self.process, round=self.done, finished=self.finished,
            code=self.code, known_process=self.processes[peer].number if peer in self.processes else 0,
            heard=self.heard.get(peer),
        )  # fmt: skip

    def header(self) -> wire.Header:
        """What every letter of this process says about its sender."""
        return wire.Header(network=self.network, version=self.version, code=self.code_digest, process=self.process)

    @property
    def code_digest(self) -> str:
        """One digest of all of the user's code; empty without any."""
        return sha256(repr(sorted(self.code.items())).encode()).hexdigest()[:16] if self.code else ""

    def note_heard(self, peer: int, step: int) -> None:
        """Record a letter or mass that is stored here."""
        self.heard[peer] = max(self.heard.get(peer, step), step)

    def note_round(self, peer: int, round: int) -> None:
        """Record that a peer has reached this round."""
        self.others[peer] = max(self.others.get(peer, 0), min(round, self.rounds))

    def finished_peers(self) -> set[int]:
        """The peers that have done all rounds: mass that is sent to them stays there."""
        return {peer for peer, round in self.others.items() if round >= self.rounds}

    def is_far_behind(self, peer: int) -> bool:
        """Whether another peer is so far ahead that it no longer has its letters of this round."""
        return self.others.get(peer, 0) >= self.done + AHEAD

    def median_round(self, excluding: Collection[int] = ()) -> int:
        """The round that half of the other peers have reached. A single peer that claims more has no effect."""
        claimed = sorted(round for peer, round in self.others.items() if peer not in excluding) or [0]
        return claimed[(len(claimed) - 1) // 2]
