"""What the library takes and gives, in the words of steps and history, and back."""

from collections import Counter
from contextlib import suppress
from typing import Any

import pyarrow as pa

import persist
from persist.blob.protocol import Blob
from persist.codecs.errors import DiffOverflow
from tests.proofs.simulator.expectations import KEYED_WRITE
from tests.proofs.simulator.history import Event
from tests.proofs.simulator.language import Step
from tests.proofs.simulator.log_reader import frontier, pad, shorten
from tests.proofs.simulator.tables import TableBroken
from tests.support.model import EMPTY

DEFAULT = "default"
FRONTIERS = ("upper", "since", "asked", "current", "expected", "actual")
PLAIN = ("time", "as_of", "lower")


class Boom(Exception):
    """Raised inside a `multi_write` block, which must then do nothing."""


def times_of(events: list[Event]) -> list[int]:
    written = [e.args["updates"] for e in events if e.op == "write"]
    written += [_with_diff(e.args["events"]) for e in events if e.op == "upsert"]
    steps = [step for e in events if e.op == "multi" for step in e.args["steps"]]
    written += [what if kind == "write" else _with_diff(what) for kind, _, what in steps if kind != "seal"]
    return [time for updates in written for _, _, time, _ in updates if time is not None]


def _with_diff(events: list[Any]) -> list[Any]:
    return [[*event, 1] for event in events]


def added_columns(collection: persist.Collection | None) -> list[str]:
    """Return the columns that a handle knows of, and that its collection got later."""
    return [] if collection is None else list(collection.schema.value_names[1:])


def padded_value(value: str, collection: persist.Collection) -> Any:
    """Return a value with the defaults of all columns that the collection got later: so they tell nothing apart."""
    more = added_columns(collection)
    return (value, *[DEFAULT] * len(more)) if more else value


def update_tuples(step: Step, collection: persist.Collection) -> list[Any]:
    return [((k, padded_value(_padded(v), collection)), t, d) for k, v, t, d in step["updates"]]


def row_tuples(step: Step, collection: persist.Collection) -> list[Any]:
    return [(k, padded_value(_padded(v), collection)) for k, v, _, _ in step["updates"]]


def event_tuples(events: list[Any], collection: persist.Collection) -> list[Any]:
    return [(k, None if v is None else padded_value(_padded(v), collection), t) for k, v, t in events]


def _padded(value: str) -> str:
    return pad(value, int(value[3:])) if value.startswith("big") else value


def bad_updates(kind: str, collection: persist.Collection) -> list[Any]:
    good: list[Any] = [(1, padded_value("x", collection)), 0, 1]
    changed: dict[str, list[Any]] = {
        "time below 0": [good[0], -1, 1],
        "time too large": [good[0], 2**63 - 1, 1],
        "diff too large": [good[0], 0, 2**63],
        "no tuple": [good[0], 0],
        "wrong type": [("one", padded_value("x", collection)), 0, 1],
        "wrong columns": [(1, "x", "y"), 0, 1],
        KEYED_WRITE: [good[0], 0, 1],
    }
    return [tuple(changed[kind])]


def antichain_at(upper: int) -> persist.Antichain:
    return persist.Antichain() if upper == EMPTY else persist.Antichain(upper)


def real_name(collection: persist.Collection, name: str) -> str:
    """Return what the schema calls the column that history calls k or v."""
    return collection.schema.names["kv".index(name)]


def contents_of(snapshot: persist.Snapshot, columns: str) -> list[list[Any]]:
    table = snapshot.to_arrow()
    rows = [list(row) for row in zip(*table.to_pydict().values(), strict=True)]
    if snapshot.form == "rows":
        rows = [[*row, n] for row, n in Counter(map(tuple, rows)).items()]
    # History has columns in the order k, v.
    order = sorted(range(len(columns)), key=lambda n: "kv".index(columns[n]))
    return [[*(plain_value(row[at]) for at in order), row[-1]] for row in rows]


def contents_by_name(blob: Blob) -> dict[str, list[Any]]:
    """Return id, frontiers and the latest contents of all collections of a store; None for contents that overflow."""
    found: dict[str, list[Any]] = {}
    with persist.open(blob, mode="read", settings=persist.Settings(background=False)) as client:
        for name in client.collections():
            c = client.load(name)
            upper, since = (frontier(list(each.elements)) for each in (c.upper, c.since))
            found[name] = [c.id, upper, since, [] if upper == 0 else None]  # Since may have passed the last time.
            with suppress(DiffOverflow):
                if since < upper:
                    columns = [real_name(c, each) for each in "kv"]
                    found[name][3] = contents_of(c.snapshot(columns=columns, form="diff"), "kv")
    return found


def updates_of(table: pa.Table) -> list[list[Any]]:
    rows = zip(*table.to_pydict().values(), strict=True)
    return [[plain_value(value) for value in (*row[:2], *row[-2:])] for row in rows]


def plain_value(value: Any) -> Any:
    return shorten(value) if isinstance(value, str) else value


def subscribed_at(feed: persist.Listen, as_of: int | None) -> int:
    """Return the time of the snapshot that a subscription begins with."""
    return feed.reached - 1 if as_of is None else as_of


def error_answer(error: BaseException, op: str) -> list[Any]:
    """Return an error as history has it."""
    if op == "close":
        errors = error.exceptions if isinstance(error, BaseExceptionGroup) else [error]
        return ["error", "Unseen", {"classes": sorted({type(each).__name__ for each in errors})}]
    if not isinstance(error, (persist.PersistError, Boom)):
        if not isinstance(error, Exception):
            raise error
        if isinstance(error, TableBroken):
            return ["error", "TableBroken", {"problem": str(error)}]
        return ["error", f"{type(error).__name__}: {error}", {}]
    attributes: dict[str, Any] = {}
    for name in (*FRONTIERS, *PLAIN):
        value = getattr(error, name, None)
        if value is not None:
            attributes[name] = frontier(list(value.elements)) if isinstance(value, persist.Antichain) else value
    known = type(error).__name__
    if known == "BeforeViewBegan":  # Which says where a view begins, too.
        known = "AsOfCompacted"
    return ["error", known, attributes] if known != "CorruptBlob" else ["error", f"CorruptBlob: {error}", {}]
