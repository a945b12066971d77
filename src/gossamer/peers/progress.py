"""Where a peer is in its run, and where the other peers are as far as it knows."""

from collections.abc import Collection
from dataclasses import dataclass, field
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
    #: The last known round of each other peer.
    others: dict[int, int] = field(default_factory=dict)
    version: str = VERSION

    def hello(self) -> wire.Hello:
        """The answer to a greeting."""
        return wire.Hello(
            version=self.version, network=self.network, process=self.process, round=self.done, finished=self.finished
        )

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
