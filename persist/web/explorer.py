"""What the page asks for, as JSON: each method is one question, and reads a bounded amount."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import persist
from persist.dataflow import depths
from persist.facts import Facts, portrait, survey, time_of
from persist.log import read_record
from persist.web.shown import cells, first_rows, key_of, picture

LIST_MAX = 200  # Collections, or rows of contents, in one answer.
ROWS_MAX = 1000  # Updates in one answer.
OFFSET_MAX = 100_000  # Contents are read from their beginning, so nobody turns further pages than this.
UPDATES_READ_MAX = 2_000_000  # Updates that may be read and sorted for one answer.
LINEAGE_MAX = 10_000  # Collections whose definitions are looked at, once, for the picture of what reads what.
VIEWS_DRAWN_MAX = 200
RECORDS_READ_MAX = 600  # For the picture of commits.
MINUTES = 60


@dataclass(frozen=True, slots=True)
class _Lineage:
    """What a collection reads, and the entry of the state for which that was found."""

    entry: Any
    id: str
    reads: tuple[str, ...]
    upper: str | None


class Explorer:
    """Answers the questions of the page with a client that only reads. Safe to use from many threads."""

    def __init__(self, client: "persist.Client") -> None:
        self._client = client
        self._written_ms: dict[int, int] = {}  # Of records, by seqno: they never change.
        self._lineage: dict[str, _Lineage] = {}  # Of collections, by name.
        self._lock = threading.Lock()

    @property
    def seqno(self) -> int:
        """The last record of the log. Cost: one GET."""
        return self._client.seqno

    def collections(self, *, search: str = "", offset: int = 0, limit: int = 50) -> dict[str, Any]:
        """Return a page of the collections whose names contain some text."""
        wanted = search.casefold()
        names = [name for name in self._client.collections() if wanted in name.casefold()]
        now_s = time.time()
        shown = names[max(0, offset) :][: _within(limit, LIST_MAX)]
        items = [_listed(facts, now_s) for facts in survey(self._client, shown)]
        return {"url": self._client.url, "seqno": self._client.seqno, "total": len(names), "items": items}

    def collection(self, name: str) -> dict[str, Any]:
        """Return all there is to say of one collection, and its picture."""
        loaded = self._client.load(name)
        summary = portrait(self._client, loaded)
        facts = summary.facts
        latest = facts.latest
        return {
            **_listed(facts, time.time()),
            "url": self._client.url,
            "columns": [dict(zip(("side", "name", "type"), column, strict=True)) for column in summary.columns],
            "timeline": facts.contents.timeline,
            "version": len(facts.contents.earlier) + 1,
            "unsealed": None if facts.unsealed is None else facts.unsealed.advice,
            "latest": None if latest is None else str(latest),
            "runs": len(facts.contents.history),
            "keyframes": len(facts.contents.keyframes),
            "picture": picture(facts.contents),
        }

    def contents(
        self,
        name: str,
        as_of: str | None,
        *,
        offset: int = 0,
        limit: int = 50,
        key: str | None = None,
        schema: int | None = None,
    ) -> dict[str, Any]:
        """Return a page of the contents as of a time, or what they hold under one key; by a version of the schema."""
        if not 0 <= offset <= OFFSET_MAX:
            raise persist.InvalidUsage(f"only the first {OFFSET_MAX:,} rows can be turned to: search for a key instead")
        collection = self._client.load(name)
        with collection.snapshot(_time(as_of), form="diff", schema=schema, timeout_s=0) as snapshot:
            at = snapshot.explain().as_of
            if key:
                wanted = key_of(key, collection.handle.reading_schema(schema))
                rows = snapshot.get(wanted).slice(0, LIST_MAX)
            else:
                rows = first_rows(snapshot.to_batches(), snapshot.schema, offset, _within(limit, LIST_MAX))
        return {"as_of": str(at), "moment": _moment(collection, at), **cells(rows)}

    def changes(self, name: str, lower: str, upper: str, *, schema: int | None = None) -> dict[str, Any]:
        """Return the first updates with lower <= time < upper, as far as these are sealed."""
        collection = self._client.load(name)
        start, stop = (
            collection.handle.as_bound("from", _required(lower)),
            collection.handle.as_bound("until", _required(upper)),
        )
        facts = Facts(collection.handle.contents())
        if facts.upper is not None:
            stop = min(stop, facts.upper)
        asked, start = start, max(start, 0 if facts.since == 0 else (facts.since or 0) + 1)
        is_compacted = asked < start  # What came at since and before it cannot be told apart any more.
        _check_updates(facts, start, stop)
        if start >= stop:
            empty = collection.handle.reading_schema(schema).arrow.empty_table()
            ends = {"from": str(start), "until": str(stop)}
            return {**ends, "more": False, "compacted": is_compacted, **cells(empty)}
        with collection.changes(start, stop, times="int", schema=schema, timeout_s=0) as updates:
            rows = first_rows(updates.to_batches(), updates.schema, 0, ROWS_MAX + 1)
        answer = {"from": str(start), "until": str(stop), "more": len(rows) > ROWS_MAX, "compacted": is_compacted}
        return {**answer, **cells(rows.slice(0, ROWS_MAX))}

    def history(self, name: str, key: str) -> dict[str, Any]:
        """Return what a key had as of since, and all its updates after that."""
        collection = self._client.load(name)
        wanted = key_of(key, collection.schema)
        facts = Facts(collection.handle.contents())
        if facts.latest is None or facts.since is None:
            return {
                "since": None,
                "before": None,
                "updates": cells(collection.schema.arrow.empty_table()),
                "more": False,
            }
        with collection.snapshot(facts.since, form="diff", timeout_s=0) as snapshot:
            before = snapshot.get(wanted).slice(0, LIST_MAX)
        start = facts.since + 1
        until = max(start, facts.latest + 1)
        with collection.changes(start, until, where=_is_key(wanted), times="int", timeout_s=0) as updates:
            rows = first_rows(updates.to_batches(), updates.schema, 0, ROWS_MAX + 1)
        answer = {"since": str(facts.since), "before": cells(before), "updates": cells(rows.slice(0, ROWS_MAX))}
        return {**answer, "more": len(rows) > ROWS_MAX}

    def difference(self, name: str, first: str, second: str) -> dict[str, Any]:
        """Return what turns the contents of one time into those of another."""
        collection = self._client.load(name)
        one, two = _required(first), _required(second)
        ends = sorted((collection.handle.as_time("first", one), collection.handle.as_time("second", two)))
        _check_updates(Facts(collection.handle.contents()), ends[0] + 1, ends[1] + 1)
        rows = collection.diff(one, two, timeout_s=0)
        sides = {"keys": collection.schema.key_names, "values": collection.schema.value_names}
        return {"total": len(rows), "more": len(rows) > ROWS_MAX, **sides, **cells(rows.slice(0, ROWS_MAX))}

    def plan(self, name: str, as_of: str | None) -> dict[str, Any]:
        """Return what reading the contents as of a time takes."""
        with self._client.load(name).snapshot(_time(as_of), timeout_s=0) as snapshot:
            explanation = snapshot.explain()
        fields = asdict(explanation)
        return {
            **{name: fields[name] for name in ("direction", "parts", "bytes", "rows", "memory", "slices", "pruned")},
            **{name: fields[name] for name in ("base_parts", "base_bytes", "base_rows")},
            "as_of": str(explanation.as_of),
            "keyframe": None if explanation.keyframe is None else str(explanation.keyframe),
            "text": str(explanation),
        }

    def lineage(self) -> dict[str, Any]:
        """Return which views read which collections, with how far each is from data that users write.

        Cost: a GET for each collection that has changed since the last call, at most.
        """
        names = self._client.collections()
        lineages = self._lineage_of(names[:LINEAGE_MAX])
        by_id = {node.id: name for name, node in lineages.items()}
        views = [name for name in sorted(lineages) if lineages[name].reads]
        drawn = views[:VIEWS_DRAWN_MAX]
        edges = [(by_id[id_], view) for view in drawn for id_ in lineages[view].reads if id_ in by_id]
        nodes = [
            {"name": name, "depth": depth, "upper": lineages[name].upper}
            for name, depth in sorted(_depths(edges).items())
        ]
        left_out = max(0, len(names) - LINEAGE_MAX)
        return {"nodes": nodes, "edges": edges, "left_out": left_out, "not_drawn": len(views) - len(drawn)}

    def _lineage_of(self, names: Sequence[str]) -> "dict[str, _Lineage]":
        """Return what the collections read, by name; what has not changed is remembered."""
        state = self._client.engine.follower.state
        entries = {name: state.entries[state.ids[name]] for name in names if name in state.ids}
        with self._lock:
            known = {n: lineage for n, lineage in self._lineage.items() if n in entries and lineage.entry is entries[n]}
        for facts in survey(self._client, [name for name in entries if name not in known]):
            reads = () if facts.contents.view is None else tuple(facts.contents.view.get("reads", {}).values())
            upper = None if facts.upper is None else str(facts.upper)
            known[facts.name] = _Lineage(entries.get(facts.name), facts.contents.id, reads, upper)
        with self._lock:
            self._lineage = known
        return known

    def dataflow(self, name: str) -> dict[str, Any]:
        """Return the operators of a view: what they keep, and what they do to compute it from what its inputs hold."""
        view = self._client.view(name)
        known = self._client.engine.follower
        rows = sum(Facts(known.current(id_, id_)).rows_about for id_ in view.definition.inputs)
        if rows > UPDATES_READ_MAX:
            raise persist.InvalidUsage(
                f"what the view reads holds {rows:,} rows, and the page computes {UPDATES_READ_MAX:,} at most: "
                "call view.refresh() and print(view.explain()) in Python"
            )
        measured = view.live.rehearse()
        operators = [
            {**asdict(operator), "rate": operator.rate, "depth": at}
            for operator, at in zip(measured, depths(measured), strict=True)
        ]
        return {"operators": operators, "rows": rows}

    def commits(self) -> dict[str, Any]:
        """Return how many records each of the last minutes has, by the clocks of their writers."""
        last = self._client.seqno
        with self._lock:
            known = {seqno: ms for seqno, ms in self._written_ms.items() if seqno > last - RECORDS_READ_MAX}
        now_minute, first = int(time.time() // 60), max(0, last - RECORDS_READ_MAX + 1)
        minutes: Counter[int] = Counter()
        is_whole = first == 0
        for seqno in range(last, first - 1, -1):
            if seqno not in known:
                record = read_record(self._client.engine.blob, seqno)
                if record is None:
                    is_whole = True  # It has been truncated: older ones are of no interest here.
                    break
                known[seqno] = record.written_ms
            minute = known[seqno] // 60_000
            if minute <= now_minute - MINUTES:
                is_whole = True
                break
            minutes[minute] += 1
        with self._lock:
            self._written_ms = known
        counts = [minutes[minute] for minute in range(now_minute - MINUTES + 1, now_minute + 1)]
        return {"counts": counts, "at_least": not is_whole}


def _depths(edges: list[tuple[str, str]]) -> dict[str, int]:
    """Return how many steps each node is from those that read nothing; definitions go in no circle."""
    depths = {name: 0 for edge in edges for name in edge}
    for _ in depths:
        before = dict(depths)
        for source, view in edges:
            depths[view] = max(depths[view], depths[source] + 1)
        if depths == before:
            break
    return depths


def _listed(facts: Facts, now_s: float) -> dict[str, Any]:
    listed = facts.as_json()
    return {
        **listed,
        **{end: None if listed[end] is None else str(listed[end]) for end in ("since", "upper")},
        **{f"{end}_moment": listed[f"{end}_moment"] if listed[end] else None for end in ("since", "upper")},
        "sql": None if facts.contents.view is None else facts.contents.view.get("sql"),
        "waiting": listed["unsealed"],
        "lag_s": facts.lag_s(now_s),
    }


def _time(text: str | None) -> int | str | None:
    return None if text is None or not text.strip() else _required(text)


def _required(text: str) -> int | str:
    return time_of(text.strip())


def _moment(found: "persist.Collection", time: int) -> str | None:
    return None if found.timeline is None else found.timeline.text_of(time)


def _within(limit: int, most: int) -> int:
    return min(max(1, limit), most)


def _is_key(wanted: pa.Table) -> pc.Expression:
    condition: Any = None
    for name in wanted.column_names:
        value = wanted[name][0]
        test = pc.field(name) == value if value.is_valid else pc.field(name).is_null()
        condition = test if condition is None else condition & test
    return condition


def _check_updates(facts: Facts, start: int, stop: int) -> None:
    """Refuse what would read and sort more updates than the page may ask for."""
    touched = [p for p in facts.contents.history_parts if p.time_min < stop and p.time_max >= start]
    rows = sum(part.rows for part in touched)
    if rows > UPDATES_READ_MAX:
        raise persist.InvalidUsage(
            f"up to {rows:,} updates lie between these times, and the page reads {UPDATES_READ_MAX:,} at most: choose "
            "times that are nearer to each other, or use persist changes on the command line"
        )
