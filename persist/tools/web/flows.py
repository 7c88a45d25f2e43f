"""Describes the flows of data in a location: which node feeds which, lags, costs of refreshes, and holders of history.

Nodes are collections, sources, views and followers. A follower is a sink, a consumer or a report: a permanent hold
shows up to which time it has read. Nodes and edges come from states alone (`FactsCache`), and what a refresh wrote from
the newest records. A view or source that is stuck has its last failure, until it succeeds again.
"""

import threading
from dataclasses import asdict
from typing import Any

import persist
from persist.connect.ingest.source import SOURCE
from persist.core.names import LIBRARY_HOLDS
from persist.tools.reports.health import report_health
from persist.tools.reports.surveys import Facts, FactsCache, format_hold, get_names_by_id
from persist.tools.web.records import Records
from persist.tools.web.slider import is_sentinel

LINEAGE_MAX = 10_000  # How many definitions the picture of flows reads.
VIEWS_DRAWN_MAX = 200
LISTED_MAX = 200  # The limit of each list.


class Flows:
    """Describes how data flows in a location, with a read-only client. Thread-safe."""

    def __init__(self, client: "persist.Client", records: Records) -> None:
        self._client = client
        self._records = records
        self._facts = FactsCache(client)
        self._lock = threading.Lock()

    def lineage(self) -> dict[str, Any]:
        """Return a graph of sources, collections, views and sinks.

        Cost: a GET for each collection that has changed since the last call, at most.
        """
        names = self._client.collections()
        with self._lock:
            all_facts = self._facts.of(names[:LINEAGE_MAX])
        by_id = {facts.contents.id: facts for facts in all_facts}
        edges: list[tuple[str, str]] = []
        sides: dict[str, dict[str, Any]] = {}
        fed = sorted(
            (f for f in all_facts if _list_feeders(f) or _list_followers(f)), key=lambda facts: not _is_view(facts)
        )
        for facts in fed[:VIEWS_DRAWN_MAX]:
            for feeder in _list_feeders(facts):
                if feeder in by_id:
                    edges.append((by_id[feeder].name, facts.name))
                elif not _is_view(facts):
                    edges.append((feeder, facts.name))
                    sides[feeder] = {"kind": "source", "upper": None, "moment": None}
            for follower, at in _list_followers(facts).items():
                edges.append((facts.name, follower))
                sides[follower] = {"kind": "follower", "upper": str(at), "moment": facts.moment(at)}
        drawn, named = _compute_depths(edges), {facts.name: facts for facts in all_facts}
        nodes = [
            {"name": name, "depth": depth, **(sides[name] if name in sides else _make_node(named[name]))}
            for name, depth in sorted(drawn.items())
        ]
        left_out = max(0, len(names) - LINEAGE_MAX)
        return {"nodes": nodes, "edges": edges, "left_out": left_out, "not_drawn": max(0, len(fed) - VIEWS_DRAWN_MAX)}

    def health(self) -> dict[str, Any]:
        """Return the health of a location, holders of history, and last commits, as JSON."""
        with self._lock:
            health = report_health(self._client, known=self._facts)
            all_facts = self._facts.of(self._client.collections())
        last = self._records.list_newest_writes()
        by_name = {facts.name: facts for facts in all_facts}

        def get_last_write(name: str) -> dict[str, Any] | None:
            return last.get(by_name[name].contents.id) if name in by_name else None

        totals = {name: value for name, value in asdict(health).items() if name not in ("collections", "waiting")}
        lists = {
            "lagging": [asdict(lag) for lag in health.collections if lag.behind_s is not None or lag.unsealed],
            "views": [{**asdict(view), "wrote": get_last_write(view.view)} for view in health.views],
            "sources": [
                {**asdict(source), "wrote": [get_last_write(name) for name in source.collections][:1]}
                for source in health.sources
            ],
            "sinks": [asdict(sink) for sink in health.sinks],
            "followers": [lag for facts in all_facts for lag in _list_follower_lags(facts)],
            "holds": [hold for facts in all_facts for hold in _list_holds(self._client, facts)],
            "kept_back": [asdict(entry) for entry in health.kept_back],
            "waiting": [asdict(waiting) for waiting in health.waiting],
        }
        counts = {f"{name}_total": len(rows) for name, rows in lists.items()}
        answer: dict[str, Any] = _stringify_times(
            {**totals, **counts, **{name: rows[:LISTED_MAX] for name, rows in lists.items()}}
        )
        return answer


def _is_view(facts: Facts) -> bool:
    return facts.contents.view is not None


def _list_feeders(facts: Facts) -> list[str]:
    """Return the ids of a view's inputs, or the source of a collection."""
    if facts.contents.view is not None:
        return [*facts.contents.view.get("reads", {}).values()]
    source = facts.contents.about.properties.get(SOURCE)
    return [] if source is None else [source]


def _list_followers(facts: Facts) -> dict[str, int]:
    """Return the named consumers of a collection, with their times."""
    return {
        name: hold.time
        for name, hold in facts.contents.holds.items()
        if hold.lease is None
        and not name.startswith(LIBRARY_HOLDS)
        and not is_sentinel(hold.time, facts.contents.timeline)
    }


def _make_node(facts: Facts) -> dict[str, Any]:
    """Return the kind and upper of a collection, as a node of the graph."""
    upper = facts.upper
    far = upper is None or is_sentinel(upper, facts.contents.timeline)
    moment = None if far or not upper else facts.moment(upper)
    return {"kind": classify(facts), "upper": None if far else str(upper), "moment": moment}


def classify(facts: Facts) -> str:
    """Return the kind of a collection: view, keyed, source or plain."""
    if _is_view(facts):
        return "view"
    return "keyed" if facts.contents.keyed is not None else "filled" if _list_feeders(facts) else "written"


def _list_holds(client: "persist.Client", facts: Facts) -> list[dict[str, Any]]:
    """Return a collection's holds, least time first, and which block since."""
    leases, names = client.engine.follower.state.control.leases, get_names_by_id(client)
    waits = facts.contents.allowed > facts.contents.since
    holds = [
        (entry.time, format_hold(None if entry.lease else hold, names), leases.get(entry.lease or ""))
        for hold, entry in facts.contents.holds.items()
    ]
    holds += [(at, f"tag {tag}", None) for tag, at in facts.contents.tags.items()]
    return [
        {
            "collection": facts.name,
            "hold": hold,
            "holder": None if lease is None else lease.holder,
            "time": at,
            "moment": facts.moment(at),
            "keeps_back": waits and at <= facts.contents.since,
        }
        for at, hold, lease in sorted(holds, key=lambda held: held[0])
        if not is_sentinel(at, facts.contents.timeline)
    ]


_TIMES = frozenset(("upper", "input_upper", "since", "allowed", "time"))


def _stringify_times(answer: Any) -> Any:
    """Return an answer with times as texts, because JavaScript lacks 64-bit integers."""
    if isinstance(answer, dict):
        return {
            name: str(value) if name in _TIMES and isinstance(value, int) else _stringify_times(value)
            for name, value in answer.items()
        }
    return [_stringify_times(item) for item in answer] if isinstance(answer, list | tuple) else answer


def _compute_depths(edges: list[tuple[str, str]]) -> dict[str, int]:
    """Return for each node the length of the longest path to it. Edges have no cycle."""
    depths = {name: 0 for edge in edges for name in edge}
    for _ in depths:
        previous = dict(depths)
        for source, view in edges:
            depths[view] = max(depths[view], depths[source] + 1)
        if depths == previous:
            break
    return depths


def _list_follower_lags(facts: Facts) -> list[dict[str, Any]]:
    """Return how far each follower of a collection is behind upper."""
    upper, timeline = facts.upper, facts.timeline
    is_far = upper is None or is_sentinel(upper, facts.contents.timeline)
    return [
        {
            "follower": name,
            "collection": facts.name,
            "time": at,
            "moment": facts.moment(at),
            "behind_s": None
            if timeline is None or is_far or upper is None
            else max(0.0, (timeline.to_datetime(upper) - timeline.to_datetime(at)).total_seconds()),
        }
        for name, at in _list_followers(facts).items()
    ]
