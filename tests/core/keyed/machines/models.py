"""Running a machine over events in some steps, and what ten lines for one key say that should come of it."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from persist.codecs.types.schema import CollectionSchema, Side
from persist.core.keyed.machine import DELETED, GROUP, Machine, Touched

# An event is (key, value or None, time); values are tuples. What a key holds is a list of values.
KeyEvent = tuple[int, Any, int]
Rule = Callable[[list[Any], Any, int], list[Any]]
Changes = Counter[tuple[int, Any, int]]


def schema_of(**value: pa.DataType) -> CollectionSchema:
    return CollectionSchema(Side.of({"k": pa.int64()}, "key"), Side.of(value or None, "value"))


def by_rule(events: Sequence[KeyEvent], rule: Rule) -> Changes:
    """Return the changes (key, value, time) that a rule makes of events, each with its diff, if that is not 0."""
    held: dict[int, list[Any]] = {}
    changes: Changes = Counter()
    for key, value, time in sorted(events, key=lambda event: event[2]):
        before = held.get(key, [])
        held[key] = rule([*before], value, time)
        for one in before:
            changes[key, one, time] -= 1
        for one in held[key]:
            changes[key, one, time] += 1
    return Counter({change: diff for change, diff in changes.items() if diff})


def by_machine(machine: Machine, schema: CollectionSchema, events: Sequence[KeyEvent], cuts: Sequence[int]) -> Changes:
    """Return the changes that a machine makes of events that are resolved in steps: up to each cut, then the rest."""
    changes: Changes = Counter()
    for lower, upper in zip([0, *sorted(cuts)], [*sorted(cuts), 2**62], strict=True):
        some = sorted((e for e in events if lower <= e[2] < upper), key=lambda event: (event[0], event[2]))
        if some:
            updates = machine.step(touched(machine, schema, some, changes))
            assert updates.schema.equals(schema.arrow)
            for row in updates.to_pylist():
                change = (row["k"], tuple(row[name] for name in schema.value_names), row["_time"])
                assert lower <= change[2] < upper
                changes[change] += row["_diff"]
    return Counter({change: diff for change, diff in changes.items() if diff})


def touched(machine: Machine, schema: CollectionSchema, events: Sequence[KeyEvent], changes: Changes) -> Touched:
    """Return what a machine is given: events in the order of keys and times, and what their keys hold."""
    keys = sorted({key for key, _, _ in events})
    groups = {key: group for group, key in enumerate(keys)}
    held: Counter[tuple[int, Any]] = Counter()
    for (key, value, _), diff in changes.items():
        held[key, value] += diff
    assert all(count >= 0 for count in held.values())
    rows = sorted(
        ((groups[k], k, v) for (k, v), n in held.items() for _ in range(n) if k in groups), key=lambda r: r[0]
    )
    present = pa.Table.from_pylist(
        [{"k": k, **dict(zip(schema.value_names, v, strict=True)), GROUP: g} for g, k, v in rows],
        pa.schema([*schema.key.fields, *schema.value.fields, pa.field(GROUP, pa.int64())]),
    )
    fields = machine.event_fields(schema)
    arrived = pa.Table.from_pylist(
        [
            {
                "k": k,
                **({} if v is None else dict(zip([f.name for f in fields], v, strict=True))),
                "_time": t,
                DELETED: v is None,
                GROUP: groups[k],
            }
            for k, v, t in events
        ],
        pa.schema(
            [
                *schema.key.fields,
                *fields,
                pa.field("_time", pa.int64()),
                pa.field(DELETED, pa.bool_()),
                pa.field(GROUP, pa.int64()),
            ]
        ),
    )
    return Touched(schema, len(keys), present, arrived)
