"""What a page is told of a network of peers, by asking each of them for its status with a kit."""

import time
from collections.abc import Iterable, Iterator, Set
from typing import Any

from gossamer.pages.live.feed import Feed, Row
from gossamer.pages.live.series import Thinned, number
from gossamer.pages.report_data import Axis, Panel, graph_of
from gossamer.peers.identity.kit import Kit
from gossamer.peers.tools.watch import NetworkWatcher, PeerView
from gossamer.studies import part_label
from gossamer.system.words import counted

AXES = (
    Axis("round", "round", "number"),
    Axis("bytes", "bytes sent", "bytes"),
    Axis("seconds", "seconds", "seconds"),
)
PANELS = (
    Panel("accuracy", "Test accuracy of each peer's model", "percent"),
    Panel("test_loss", "Test loss of each peer's model", log=True),
    Panel("loss", "Training loss of each peer", log=True),
    Panel("weight", "Push-sum weight of each peer"),
)
COLUMNS = (*(axis.key for axis in AXES), *(panel.key for panel in PANELS))
#: Events that are kept.
EVENTS = 300
#: Seconds between two looks; in the last rounds of a network of few peers.
EVERY, SOON = 0.5, 0.1
LAST_ROUNDS, FEW = 2, 16
#: Seconds that a peer has to answer: longer, and one that is frozen holds up the view of all others.
TIMEOUT = 2.0
#: Looks that a peer may miss before it counts as away, as one under load does.
MISSES = 2


class NetworkSource:
    """The feed of a network."""

    #: What peers say is not written anywhere that this page reads: it is asked for, whether somebody looks or not.
    always = True
    shows = False

    def __init__(self, kit: Kit) -> None:
        self._kit, self._feed = kit, Feed()
        self._watcher: NetworkWatcher | None = None
        self._began = time.monotonic()
        self._peers = {member.name: Peer() for member in kit.roster.members}
        experiment = kit.roster.experiment
        title = [part_label(experiment, key) for key in ("method", "graph", "dataset")]
        graph = graph_of(
            {"graph": experiment.resolved()["graph"], "clients": experiment.clients, "seed": experiment.seed}
        )
        self._about = {
            "kind": "network", "title": " · ".join([counted(experiment.clients, "peer"), *title]), "asked_as": kit.name,
            "names": list(kit.roster.names), "addresses": [member.address for member in kit.roster.members],
            "graph": graph, "columns": COLUMNS, "axes": [axis._asdict() for axis in AXES],
            "metrics": [panel._asdict() for panel in PANELS], "rounds": experiment.rounds,
            "late": kit.roster.exchange.late,
        }  # fmt: skip
        self._feed.put("about", self._about)
        self._feed.rows("events", [])
        self._feed.flush()

    @property
    def every(self) -> float:
        """Seconds until the next look: few towards the end, since a peer that has finished soon leaves."""
        told = [peer for peer in self._peers.values() if peer.left is not None]
        ends = told and min(peer.left or 0 for peer in told) <= LAST_ROUNDS
        return SOON if ends and len(self._peers) <= FEW else EVERY

    def feed(self, shown: str | None) -> Feed:
        """The feed of the network."""
        return self._feed

    async def look(self, shown: Set[str]) -> None:
        """Ask all peers, and tell what is new."""
        if all(peer.finished for peer in self._peers.values()):
            return  # peers that have finished leave
        if self._watcher is None:
            self._watcher = NetworkWatcher(self._kit, TIMEOUT)
        views = await self._watcher.look()
        seconds, letters = round(time.monotonic() - self._began, 1), {}
        for view in views:
            peer = self._peers[view.name]
            events = list(peer.look(view))
            self._feed.add("events", [[round(time.time(), 1), view.name, *event] for event in events])
            self._feed.put(f"peer/{view.name}", peer.told(view))
            dropped, new = peer.rows(view, seconds)
            if dropped:
                self._feed.rows(f"rows/{view.name}", peer.kept.rows)
            else:
                self._feed.add(f"rows/{view.name}", new)
            for name, about in view.neighbours.items():
                if about["sends"]:
                    letters[f"{view.name}>{name}"] = [about["waiting"], about.get("letters", 0)]
        self._feed.put("letters", letters)
        self._feed.keep_last("events", EVENTS)
        self._feed.flush()

    async def close(self) -> None:
        """Close all connections."""
        if self._watcher is not None:
            await self._watcher.close()


class Peer:
    """What has been seen of one peer."""

    def __init__(self) -> None:
        self.kept = Thinned()
        self.finished = False
        self._answered = self._away = False
        self._misses = self._process = 0
        self._since: float | None = None
        self._round = -1
        #: Rounds that it has to do, when it last answered and had not finished.
        self.left: int | None = None
        self._refused: dict[str, int] = {}

    def look(self, view: PeerView) -> Iterator[tuple[str, str]]:
        """The events since the last look, each with its kind."""
        status = view.status
        if view.problem is None:
            if not self._answered:
                yield "come", "answers" if status["round"] == 0 else f"answers, at round {status['round']}"
            elif self._away or status["process"] > self._process:
                again = "started again, " if status["process"] > self._process else ""
                yield "back", f"is back: {again}at round {status['round']}"
            self._answered, self._away, self._misses, self._since = True, False, 0, None
            self.left = None if view.finished else status["rounds"] - status["round"]
            if status["process"] != self._process:  # it counts from zero again
                self._process, self._refused = status["process"], {}
            for kind, count in status["refused"].items():
                more = count - self._refused.get(kind, 0)
                if more > 0:
                    yield "refused", f"refused {counted(more, 'message')}: {kind}"
            self._refused = dict(status["refused"])
        elif self._answered and not view.finished:
            self._misses += 1
            if self._since is None:
                self._since = time.time()
            if self._misses >= MISSES and not self._away:
                self._away, self.left = True, None
                yield "away", f"does not answer: {view.problem}"
        if view.finished and not self.finished:
            self.finished = True
            yield "finished", "has finished"

    def told(self, view: PeerView) -> dict[str, Any]:
        """Its state as the page shows it."""
        status, state = view.status, "working"
        if self.finished:
            state = "finished"
        elif not self._answered:
            state = "waiting"
        elif self._away:
            state = "away"
        rounds = status.get("rounds", 0)
        return {
            "state": state, "problem": view.problem if state in ("away", "waiting") else None,
            "since": None if self._since is None else round(self._since),
            "round": rounds if self.finished else status.get("round", 0), "rounds": rounds,
            "doing": status.get("doing", ""), "starts": status.get("process", 0),
            "waiting_for": sorted(status.get("waiting_for", {})), "away": view.away,
            "neighbours": len(view.neighbours), "loss": number(status.get("loss")),
            "accuracy": number(status.get("accuracy")), "test_loss": number(status.get("test_loss")),
            "weight": _weight(status.get("weight")), "sent": status.get("sent_bytes", 0),
            "received": status.get("received_bytes", 0), "refused": status.get("refused", {}),
        }  # fmt: skip

    def rows(self, view: PeerView, seconds: float) -> tuple[bool, list[Row]]:
        """Whether rows were dropped, and the row of a round that has been completed."""
        status = view.status
        if view.problem is not None or status["round"] == self._round or not status["round"]:
            return False, []
        self._round = status["round"]
        values: Iterable[Any] = (
            status["round"], status["sent_bytes"], seconds, status["accuracy"], status["test_loss"], status["loss"],
            status["weight"],
        )  # fmt: skip
        row = [number(value) for value in values]
        return self.kept.add([(status["accuracy"] is not None, row)])


def _weight(value: Any) -> float | None:
    """A push-sum weight with all its digits: those of all peers and of their letters sum to the number of peers."""
    return value if isinstance(value, float) and value == value else None
