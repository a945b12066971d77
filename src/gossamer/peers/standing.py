"""Where a peer is in its run, and where the others are as far as it has heard."""

from collections.abc import Collection
from dataclasses import dataclass, field
from importlib.metadata import version

from gossamer.peers.wire import wire_pb2 as wire

VERSION = version("gossamer")
#: Rounds that a neighbour may be ahead.
AHEAD = 2


@dataclass
class Standing:
    """What a peer says of itself when it is asked."""

    network: str
    """The digest of the network file."""
    process: wire.Process
    rounds: int
    """Of the whole run."""
    floor: int
    """The next gossip step to be mixed: letters of earlier ones are of no use."""
    done: int = 0
    """Rounds that are over."""
    doing: str = "starting"
    finished: bool = False
    others: dict[int, int] = field(default_factory=dict)
    """The round of each other peer that has been heard of."""
    version: str = VERSION

    def hello(self) -> wire.Hello:
        """What is told to whoever asks."""
        return wire.Hello(
            version=self.version, network=self.network, process=self.process, round=self.done, finished=self.finished
        )

    def heard_of(self, peer: int, round: int) -> None:
        """A peer says, or shows, that it is in this round."""
        self.others[peer] = max(self.others.get(peer, 0), min(round, self.rounds))

    def is_behind(self, peer: int) -> bool:
        """Whether a peer is so far ahead that what it said in this round is no longer to be had."""
        return self.others.get(peer, 0) >= self.done + AHEAD

    def most_are_at(self, but_for: Collection[int] = ()) -> int:
        """The round that half of the others have reached: one alone that claims to be far ahead is not followed."""
        claimed = sorted(round for peer, round in self.others.items() if peer not in but_for) or [0]
        return claimed[(len(claimed) - 1) // 2]
