"""Answers to the page's requests as JSON; each method reads a bounded amount."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import persist
from persist.codecs.types.objects import to_objects
from persist.compute.dataflow.running.reports import measure_depths
from persist.connect.ingest.source import SOURCE
from persist.tools.reports.surveys import Facts, load_facts, load_portrait
from persist.tools.web.flows import Flows, classify
from persist.tools.web.records import Records
from persist.tools.web.results import LIST_MAX, Results
from persist.tools.web.slider import format_cells, is_sentinel, make_picture, parse_key, take_rows

ROWS_MAX = 1000  # Updates in one answer.
UPDATES_READ_MAX = 2_000_000  # Updates that may be read and sorted for one answer.


class Explorer:
    """Answers the page's requests with a read-only client. Thread-safe."""

    def __init__(self, client: "persist.Client") -> None:
        self._client = client
        self.records = Records(client)
        self.results = Results(client)
        self.flows = Flows(client, self.records)

    @property
    def seqno(self) -> int:
        """The newest record's seqno. Cost: one GET."""
        return self._client.seqno

    def collections(self, *, search: str = "", offset: int = 0, limit: int = 50) -> dict[str, Any]:
        """Return a page of collections whose names contain a text."""
        pattern = search.casefold()
        names = [name for name in self._client.collections() if pattern in name.casefold()]
        offset = min(offset, max(0, len(names) - 1))
        now_s = time.time()
        page_names = names[max(0, offset) :][: min(max(1, limit), LIST_MAX)]
        items = [_list_facts(facts, now_s) for facts in load_facts(self._client, page_names)]
        return {"url": self._client.url, "seqno": self._client.seqno, "total": len(names), "items": items}

    def collection(self, name: str) -> dict[str, Any]:
        """Return a collection's facts, and its picture over time and key."""
        loaded = self._client.load(name)
        summary = load_portrait(self._client, loaded)
        facts = summary.facts
        latest = facts.latest
        return {
            **_list_facts(facts, time.time()),
            "url": self._client.url,
            "columns": [dict(zip(("side", "name", "type"), column, strict=True)) for column in summary.columns],
            "timeline": facts.contents.timeline,
            "version": len(facts.contents.earlier) + 1,
            "unsealed": None if facts.unsealed is None else facts.unsealed.advice,
            "latest": None if latest is None else str(latest),
            "runs": len(facts.contents.history),
            "keyframes": len(facts.contents.keyframes),
            "picture": make_picture(facts.contents),
        }

    def changes(self, name: str, lower: str, upper: str, *, schema: int | None = None) -> dict[str, Any]:
        """Return the first sealed updates with lower <= time < upper."""
        collection = self._client.load(name)
        start, stop = (
            collection.handle.as_bound("from", lower.strip()),
            collection.handle.as_bound("until", upper.strip()),
        )
        facts = Facts(collection.handle.contents())
        if facts.upper is not None:
            stop = min(stop, facts.upper)
        requested_start, start = start, max(start, 0 if facts.since == 0 else (facts.since or 0) + 1)
        is_compacted = requested_start < start  # Changes at or before since are merged.
        _check_updates(facts, start, stop)
        if start >= stop:
            empty = collection.handle.get_reading_schema(schema).arrow.empty_table()
            ends = {"from": str(start), "until": str(stop)}
            return {**ends, "more": False, "compacted": is_compacted, **format_cells(empty)}
        with collection.changes(start, stop, times="int", schema=schema, timeout_s=0) as updates:
            rows = take_rows(updates.to_batches(), updates.schema, 0, ROWS_MAX + 1)
        answer = {"from": str(start), "until": str(stop), "more": len(rows) > ROWS_MAX, "compacted": is_compacted}
        return {**answer, **format_cells(rows.slice(0, ROWS_MAX))}

    def history(self, name: str, key: str) -> dict[str, Any]:
        """Return the first readable value of a key, and its later updates."""
        collection = self._client.load(name)
        key_row = parse_key(key, collection.schema)
        facts = Facts(collection.handle.contents())
        if facts.latest is None or facts.since is None:
            return {
                "since": None,
                "before": None,
                "updates": format_cells(collection.schema.arrow.empty_table()),
                "who": [],
                "more": False,
            }
        with collection.snapshot(facts.since, form="diff", timeout_s=0) as snapshot:
            rows_before = snapshot.get(key_row).slice(0, LIST_MAX)
        start = facts.since + 1
        until = max(start, facts.latest + 1)
        with collection.changes(start, until, where=_match_key(key_row), times="int", timeout_s=0) as updates:
            rows = take_rows(updates.to_batches(), updates.schema, 0, ROWS_MAX + 1)
        first = rows.slice(0, ROWS_MAX)
        answer = {"since": str(facts.since), "before": format_cells(rows_before), "updates": format_cells(first)}
        who = self.records.authors(facts.contents.id, first["_time"].to_pylist())
        return {**answer, "who": who, "more": len(rows) > ROWS_MAX}

    def difference(self, name: str, first: str, second: str) -> dict[str, Any]:
        """Return the differences between the contents at two times, with changed columns and writers."""
        collection = self._client.load(name)
        first_time, two = first.strip(), second.strip()
        ends = sorted((collection.handle.as_time("first", first_time), collection.handle.as_time("second", two)))
        facts = Facts(collection.handle.contents())
        _check_updates(facts, ends[0] + 1, ends[1] + 1)
        rows = collection.diff(first_time, two, timeout_s=0).to_arrow()
        schema, shown_rows = collection.schema, rows.slice(0, ROWS_MAX)
        times = self._find_last_times(collection, shown_rows, ends[0] + 1, ends[1] + 1)
        return {
            "total": len(rows),
            "more": len(rows) > ROWS_MAX,
            "keys": schema.key_names,
            "values": schema.value_names,
            "differ": _list_differing_columns(shown_rows, schema.value_names),
            "times": [None if time is None else str(time) for time in times],
            "who": self.records.authors(facts.contents.id, times),
            **format_cells(shown_rows),
        }

    @staticmethod
    def _find_last_times(collection: "persist.Collection", rows: pa.Table, start: int, stop: int) -> list[int | None]:
        """Return for each row the last time its key changed, or None."""
        names = collection.schema.key_names
        if not len(rows):
            return []
        with collection.changes(start, stop, times="int", timeout_s=0) as changes:
            last = changes.to_arrow().select([*names, "_time"]).group_by(names).aggregate([("_time", "max")])
        try:
            numbered = rows.select(names).append_column("_row", pa.array(range(len(rows))))
            joined = numbered.join(last, names, join_type="left outer").sort_by("_row")
        except pa.ArrowException:
            return [None] * len(rows)
        last_times: list[int | None] = joined["_time_max"].to_pylist()
        return last_times

    def plan(self, name: str, as_of: str | None) -> dict[str, Any]:
        """Return the plan of reading the contents as of a time."""
        with self._client.load(name).snapshot(None if not as_of else as_of.strip(), timeout_s=0) as snapshot:
            explanation = snapshot.explain()
        fields = asdict(explanation)
        return {
            **{name: fields[name] for name in ("direction", "parts", "bytes", "rows", "memory", "slices", "pruned")},
            **{name: fields[name] for name in ("base_parts", "base_bytes", "base_rows")},
            "as_of": str(explanation.as_of),
            "keyframe": None if explanation.keyframe is None else str(explanation.keyframe),
            "text": str(explanation),
        }

    def dataflow(self, name: str) -> dict[str, Any]:
        """Return a view's operators with their state and work."""
        view = self._client.view(name)
        follower = self._client.engine.follower
        rows = sum(Facts(follower.refresh_and_require(id_, id_)).rows_about for id_ in view.definition.inputs)
        if rows > UPDATES_READ_MAX:
            raise persist.InvalidUsage(
                f"what the view reads holds {rows:,} rows, and the page computes {UPDATES_READ_MAX:,} at most: "
                "call view.refresh() and print(view.explain()) in Python"
            )
        measured = view.live.rehearse()
        operators = [
            {**asdict(operator), "rate": operator.rate, "depth": at}
            for operator, at in zip(measured, measure_depths(measured), strict=True)
        ]
        return {"operators": operators, "rows": rows}


def _list_differing_columns(rows: pa.Table, values: Sequence[str]) -> list[list[str]]:
    """Return for each changed row the names of its changed columns; [] if the row was added or removed."""
    changed = [kind == "update" for kind in rows["_change"].to_pylist()]
    differing: list[list[str]] = [[] for _ in changed]
    for name in values:
        pairs = zip(to_objects(rows[name]), to_objects(rows[f"_old_{name}"]), strict=True)
        for columns, is_update, (new, old) in zip(differing, changed, pairs, strict=True):
            if is_update and new != old and not (new != new and old != old):  # NaN is equal to itself.
                columns.append(name)
    return differing


def _list_facts(facts: Facts, now_s: float) -> dict[str, Any]:
    """Return facts of a collection for the list on the page."""
    listed = facts.as_json()
    return {
        **listed,
        **{end: None if listed[end] is None else str(listed[end]) for end in ("since", "upper")},
        **{f"{end}_moment": listed[f"{end}_moment"] if listed[end] else None for end in ("since", "upper")},
        "sql": None if facts.contents.view is None else facts.contents.view.get("sql"),
        "waiting": listed["unsealed"],
        "lag_s": facts.lag_s(now_s),
        "kind": classify(facts),
        "source": facts.contents.about.properties.get(SOURCE),
        "for_ever": facts.upper is None or is_sentinel(facts.upper, facts.contents.timeline),
    }


def _match_key(key_row: pa.Table) -> pc.Expression:
    """Return the condition that a row has the key of a table with one row."""
    condition: Any = None
    for name in key_row.column_names:
        value = key_row[name][0]
        test = pc.field(name) == value if value.is_valid else pc.field(name).is_null()
        condition = test if condition is None else condition & test
    return condition


def _check_updates(facts: Facts, start: int, stop: int) -> None:
    """Raise InvalidUsage if a range has too many updates for the page."""
    touched = [p for p in facts.contents.history_parts if p.time_min < stop and p.time_max >= start]
    rows = sum(part.rows for part in touched)
    if rows > UPDATES_READ_MAX:
        raise persist.InvalidUsage(
            f"up to {rows:,} updates lie between these times, and the page reads {UPDATES_READ_MAX:,} at most: choose "
            "times that are nearer to each other, or use persist changes on the command line"
        )
