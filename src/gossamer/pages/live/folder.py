"""What a page is told of the runs below a folder."""

import asyncio
import json
import time
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gossamer.pages.live.feed import Feed, Row
from gossamer.pages.live.groups import Group, comparison, groups, name_in
from gossamer.pages.live.reading import held_locks
from gossamer.pages.live.run import WatchedRun
from gossamer.pages.live.scan import Found, Scan
from gossamer.pages.live.series import COLUMNS, Series
from gossamer.pages.report_data import AXES, PANELS, graph_of
from gossamer.studies import COMPARISON

#: The most groups that are listed, those that have changed last.
LISTED = 200
#: The most runs of one group that are shown.
SHOWN = 300
#: The same charts for peers, of which each measures its own model.
PEERS = tuple(panel._replace(title=panel.title.replace("the averaged model", "each peer's model")) for panel in PANELS)
#: Seconds for which what nobody looks at is kept, for a page that is loaded again.
KEPT = 30.0


@dataclass
class View:
    """What has been read of one group: values, and of its runs' rows whether they begin anew, and new ones."""

    values: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, tuple[bool, list[Row]]] = field(default_factory=dict)


class FolderWatch:
    """Reads the runs below a folder; used by one thread at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._scan = Scan(root)
        self._runs: dict[Path, WatchedRun] = {}
        self._comparisons: dict[Path, tuple[int, Group]] = {}
        self._groups: dict[str, Group] = {}
        self._graphs: dict[str, dict[str, Any]] = {}

    def look(self) -> dict[str, Any]:
        """The list of all groups, by name."""
        try:
            found, gone = self._scan.look(), False
        except OSError:
            found, gone = Found([], [], False), True
        locks = held_locks()
        self._runs = {path: self._runs.get(path) or WatchedRun(path) for path in found.runs}
        for run in self._runs.values():
            run.look(locks)
        self._comparisons = {path: self._comparison(path) for path in found.comparisons}
        self._groups = groups(self.root, self._runs, (group for _, group in self._comparisons.values()))
        newest = sorted(self._groups.values(), key=lambda group: (-group.changed, group.name))[:LISTED]
        about = {
            "kind": "runs", "root": str(self.root), "gone": gone, "groups": len(self._groups), "listed": len(newest),
            "cut": found.cut,
        }  # fmt: skip
        return {"about": about, **{f"group/{group.id}": group.summary() for group in newest}}

    def _comparison(self, path: Path) -> tuple[int, Group]:
        """A comparison, read again only when its file has changed."""
        try:
            changed = (path / COMPARISON).stat().st_mtime_ns
        except OSError:
            changed = 0
        before = self._comparisons.get(path)
        if before is not None and before[0] == changed:
            return before
        return changed, comparison(path, name_in(self.root, path))

    def view(self, shown: str, begins: bool) -> View | None:
        """What is new of a group, or with `begins` all of it; None if there is no such group."""
        group = self._groups.get(shown)
        if group is None:
            return None
        view, drawn = View(), 0
        labels = group.labels
        runs = []
        for name, (planned, progress) in list(zip(group.planned, group, strict=True))[:SHOWN]:
            about = {
                "label": planned.label, "variant": labels.index(planned.label), "seed": planned.seed,
                "state": progress.state, "round": progress.round, "rounds": progress.rounds, "why": progress.why,
                "score": progress.score,
                "left": progress.left if progress.state == "running" else None, "graph": None,
            }  # fmt: skip
            runs.append(name)
            run = group.runs.get(name)
            if run is not None and progress.state != "unreadable":
                if begins or run.series is None:
                    run.series = Series(run.folder)
                anew, new = run.series.look()
                view.rows[f"rows/{name}"] = (anew or begins, run.series.kept.rows if anew or begins else new)
                about["every"] = max(run.series.kept.every)
                if (held := run.clients()) is not None:
                    view.values[f"clients/{name}"] = held
                    key, is_new = self._graph(run.experiment, may_draw=not begins and not drawn)
                    drawn += is_new
                    if key is not None:
                        about["graph"] = key
                        view.values[f"graph/{key}"] = self._graphs[key]
            view.values[f"run/{name}"] = about
        view.values["shown"] = {
            "id": shown, "name": group.name, "path": str(group.path), "labels": labels, "runs": runs,
            "more": len(group.planned) - len(runs), "columns": COLUMNS, "axes": [axis._asdict() for axis in AXES],
            "metrics": [panel._asdict() for panel in (PEERS if group.of_peers else PANELS)],
            "report": (group.path / "report.html").is_file(),
        }  # fmt: skip
        return view

    def forget(self, shown: str) -> None:
        """Drop the rows of a group."""
        if (group := self._groups.get(shown)) is not None:
            for run in group.runs.values():
                run.series = None

    def _graph(self, experiment: dict[str, Any], may_draw: bool) -> tuple[str | None, bool]:
        """The name of an experiment's graph, and whether it has just been laid out, which takes a while."""
        graph = experiment.get("graph")
        name = graph.get("name") if isinstance(graph, dict) else graph
        if not isinstance(name, str) or ":" in name or name == "edge-list":
            return None, False  # the user's code, or a file that lies somewhere else: not for a page that only looks
        key = json.dumps([graph, experiment.get("clients"), experiment.get("seed")], default=str)
        if key in self._graphs:
            return key, False
        if not may_draw:
            return None, False
        self._graphs[key] = graph_of(experiment)
        return key, True


class FolderSource:
    """Feeds of a folder: one of the list, and one of each group that a tab shows."""

    #: Seconds until the next look.
    every: float = 1.0
    #: Whether there is something to see that is lost if nobody looks.
    always = False
    shows = True

    def __init__(self, root: Path) -> None:
        self._watch = FolderWatch(root)
        self._list = Feed()
        self._feeds: dict[str, Feed] = {}
        self._wanted: dict[str, float] = {}

    def feed(self, shown: str | None) -> Feed:
        """The feed of the list, or of a group."""
        if shown is None:
            return self._list
        self._wanted[shown] = time.monotonic()
        return self._feeds.setdefault(shown, Feed())

    async def look(self, shown: Set[str]) -> None:
        """Read what is new, and tell it. `shown` are the groups that are looked at now."""
        now = time.monotonic()
        self._wanted |= dict.fromkeys(shown, now)
        for name in [name for name, when in self._wanted.items() if now - when > KEPT]:
            del self._wanted[name]
            self._feeds.pop(name, None)
            self._watch.forget(name)
        wanted = {name: self._feeds[name].number == 0 for name in self._wanted}
        listed, views = await asyncio.to_thread(self._read, wanted)
        _replace(self._list, listed)
        for name, view in views.items():
            feed = self._feeds[name]
            _replace(feed, {"shown": None} if view is None else view.values, () if view is None else view.rows)
            for rows, (anew, new) in ({} if view is None else view.rows).items():
                if anew:
                    feed.rows(rows, new)
                else:
                    feed.add(rows, new)
        for feed in (self._list, *self._feeds.values()):
            feed.flush()

    def _read(self, wanted: dict[str, bool]) -> tuple[dict[str, Any], dict[str, View | None]]:
        listed = self._watch.look()
        return listed, {name: self._watch.view(name, begins) for name, begins in wanted.items()}

    async def close(self) -> None:
        """Nothing is open."""


def _replace(feed: Feed, values: dict[str, Any], rows: Any = ()) -> None:
    """Set these values, and forget all names that are neither among them nor among the rows."""
    for name in feed.names():
        if name not in values and name not in rows:
            feed.drop(name)
    for name, value in values.items():
        feed.put(name, value)
