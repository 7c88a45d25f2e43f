"""Tables of collections of all kinds at random times, while others write and compact, as each reader has them.

A run of one reader compares 200 versions with the snapshots of their times. Each kind of collection is changed by steps
that a seed draws: rows come, go and come again, columns are added, renamed, widened and dropped, history is compacted
and given up, garbage is collected, by two clients in turn.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.core.log.fields import Table
from tests.services.publish.readers import DELTA, ICEBERG, format_reader, marks_of, same_rows
from tests.services.publish.test_delta import NESTED, SETTINGS, client

TIMES = 200
READERS = [
    *[pytest.param("delta", name, marks=marks_of(name, "delta")) for name in DELTA],
    *[pytest.param("iceberg", name, marks=marks_of(name, "iceberg")) for name in ICEBERG],
]
NESTED_VALUE = {"s": NESTED, "l": pa.list_(pa.float64()), "m": pa.map_(pa.string(), pa.int32())}


class Kind:
    """A collection, and what its next updates are. held is what a model has of it: values and counts by key."""

    def __init__(self, client: persist.Client, name: str, chance: random.Random) -> None:
        self.name, self.chance, self.time, self.allowed = name, chance, 0, 0
        self.held: dict[Any, list[tuple[Any, int]]] = {}
        key: Any = {"composite": {"k": str, "j": pa.int32()}, "keyless": None}.get(name, {"k": int})
        more = {"gone": bool} if name == "keyed" else {}
        value: Any = NESTED_VALUE if name == "nested" else {"a": str, "b": pa.int32(), **more}
        keyed = persist.Keyed(tombstone="gone") if name == "keyed" else None
        client.create_or_load(name, key=key, value=value, keyed=keyed)

    def write(self, c: persist.Collection) -> None:
        """Change some records at the next time, and seal it."""
        r, time = self.chance, self.time
        names = [field.name for field in c.handle.get_reading_schema().value.fields]
        numbers = r.sample(range(400), r.choice([1, 3, 60, 200]))
        if self.name == "keyed":
            events = [(k, None if r.random() < 0.3 else self._value(names)) for k in numbers]
            c.upsert(events, time=time, seal=time + 1).result()
        else:
            rows: list[Any] = []
            for n in numbers:
                key: Any = {"composite": (f"k{n % 7}", n), "keyless": None}.get(self.name, n)
                rows += [((key, value), time, -count) for value, count in self.held.pop(n, [])]
                if r.random() < 0.7:
                    count = r.choice([1, 1, 1, 3]) if self.name in ("multiple", "keyless") else 1
                    self.held[n] = [(self._value(names), count)]
                    rows.append(((key, self.held[n][0][0]), time, count))
            c.write(rows, seal=time + 1).result()
        self.time += 1

    def _value(self, names: list[str]) -> tuple[Any, ...]:
        r = self.chance
        if self.name == "nested":
            struct = r.choice([None, {"x": r.randrange(9), "y": ["p", None]}])
            return struct, [r.random(), None][: r.randrange(3)], r.choice([None, [("q", r.randrange(9))]])
        known: dict[str, Any] = {"b": r.choice([None, r.randrange(1000)]), "gone": False}
        return tuple(known.get(name, r.choice(["x", "", None])) for name in names)

    def allow(self, c: persist.Collection) -> None:
        """Give up history, but for a few times."""
        self.allowed = max(self.allowed, c.since.time or 0, self.time - 1 - self.chance.randrange(3))
        c.allow_compaction(self.allowed).result()

    def evolve(self, c: persist.Collection) -> None:
        """Rename a column, or widen one. What is held stays, by place."""
        schema = c.handle.get_reading_schema()
        if self.chance.random() < 0.3 and schema.arrow.field("b").type == pa.int32():
            c.evolve(widen={"b": pa.int64()})
        else:
            first = schema.value.fields[0].name
            c.evolve(rename={first: f"a{self.time}" if first != f"a{self.time}" else "a"})


KINDS = ["plain", "composite", "nested", "keyless", "keyed", "multiple"]


def states(clients: list[persist.Client], kinds: list[Kind], chance: random.Random) -> Iterator[tuple[str, int]]:
    """Change collections; yield after each step one of them, or a view, and a time of it."""
    view = clients[0].create_view("view", "SELECT a, count(*) AS n, sum(b) AS total FROM multiple GROUP BY a")
    while True:
        client, kind = chance.choice(clients), chance.choice(kinds)
        c = client.load(kind.name)
        match chance.randrange(9):
            case 0:
                c.compact()
            case 1:
                kind.allow(c)
            case 2:
                client.gc()
            case 3 if kind.name not in ("multiple", "nested"):
                kind.evolve(c)
            case _:
                kind.write(c)
        view.refresh()
        name = chance.choice([kind.name, kind.name, kind.name, "view"])
        looked = client.load(name)
        if chance.random() < 0.6 and (looked.upper.time or 0) > (looked.since.time or 0):
            yield name, chance.randint(looked.since.time or 0, (looked.upper.time or 1) - 1)


@pytest.mark.thorough
@pytest.mark.costly("two hundred versions of tables")
@pytest.mark.parametrize(("table", "reader"), READERS, ids=lambda each: str(each))
def test_a_table_is_the_snapshot_at_200_random_times(tmp_path: Path, table: Table, reader: str) -> None:
    read: Callable[[str], pa.Table] = {"delta": DELTA, "iceberg": ICEBERG}[table][reader]
    chance, rows = random.Random(f"{table} {reader}"), 0
    with persist.open(tmp_path / "l", settings=SETTINGS) as one, persist.open(tmp_path / "l", settings=SETTINGS) as two:
        kinds = [Kind(one, name, chance) for name in KINDS]
        for kind in kinds:
            kind.time = 0
            kind.write(one.load(kind.name))
        seen: set[str] = set()
        for times, (name, as_of) in enumerate(states([one, two], kinds, chance)):
            c = one.load(name)
            rows += same_rows(read(c.publish(table, as_of=as_of).url), c, as_of)
            seen.add(name)
            if times == TIMES - 1:
                break
        assert seen == {*KINDS, "view"}
        assert rows > 10 * TIMES
        assert one.fsck(deep=True).is_clean


__all__ = ["client"]  # The fixture.
Read = Callable[[str], pa.Table]
INNER = pa.struct([("a", pa.int32()), ("b", pa.string())])


@pytest.mark.thorough(except_every=3)
@format_reader
def test_fields_inside_of_a_table_follow(client: persist.Client, form: Any, read: Read) -> None:
    value = {"s": INNER, "l": pa.list_(INNER), "m": pa.map_(pa.string(), INNER)}
    c = client.create_or_load("c", key={"k": int}, value=value)

    def write(time: int, name: str) -> None:
        inner = [{"a": time, name: "x"}, None]
        rows = [{"k": 10 * time + n, "s": each, "l": [each], "m": [("p", each)]} for n, each in enumerate(inner)]
        table = pa.Table.from_pylist(rows, schema=pa.schema([c.schema.arrow.field(n) for n in ("k", "s", "l", "m")]))
        c.write(table, time=time, seal=time + 1).result()
        c.compact()

    write(0, "b")
    assert same_rows(read(c.publish(form).url), c) == 2
    parts = {*c.handle.contents().published[form].files}
    c.evolve(add={f"{path}.n": pa.int64() for path in ("s", "l.element")})
    assert same_rows(read(c.publish(form).url), c) == 2
    assert {*c.handle.contents().published[form].files} == parts, "nothing is written again"
    c.evolve(add={"m.value.n": pa.int64()})
    assert same_rows(read(c.publish(form).url), c) == 2
    write(1, "b")
    assert same_rows(read(c.publish(form).url), c) == 4
    c.evolve(rename={f"{path}.b": f"{path}.c" for path in ("s", "l.element", "m.value")}, widen={"s.a": pa.int64()})
    assert same_rows(read(c.publish(form).url), c) == 4
    c.evolve(drop=[f"{path}.n" for path in ("s", "l.element", "m.value")], add={"s.n": pa.int64(), "s.b": pa.string()})
    write(2, "c")
    assert same_rows(read(c.publish(form).url), c) == 6
    assert client.fsck(deep=True).is_clean
