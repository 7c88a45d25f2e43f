"""A collection whose schema changes at random, held against a model: records by column id, read by any version.

Between the changes there are writes with the newest schema and with older ones, retractions of what is there, seals,
compactions and new clients; after each step, reads of all kinds at old times and with old versions.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

import persist
from tests.engine.evolving import EvolvingMachine
from tests.support.tiers import examples

NAMES = ("a", "b", "c", "d", "e")
WIDER = {pa.int8(): [pa.int16(), pa.int32()], pa.int16(): [pa.int64(), pa.float32()], pa.string(): [pa.large_string()]}
TOO_WIDE = {
    pa.int16(): 1000,
    pa.int32(): 1000,
    pa.int64(): 100_000,
    pa.float32(): 0.5,
}  # For what was widened to these.
VALUES = {pa.int8(): st.integers(0, 2), pa.int16(): st.integers(0, 2), pa.string(): st.sampled_from(["", "x", "y"])}


@dataclass
class Version:
    """A version of the schema: (id, name, type) of each value column, and the defaults by id."""

    columns: list[tuple[int, str, pa.DataType]]
    defaults: dict[int, Any] = field(default_factory=dict)

    def read(self, record: dict[int, Any]) -> tuple[Any, ...]:
        return tuple(record.get(id_, self.defaults.get(id_)) for id_, _, _ in self.columns)

    def values(self, kind: pa.DataType) -> st.SearchStrategy[Any]:
        base = next((k for k, wide in WIDER.items() if kind in wide), kind)
        base = base if base in VALUES else pa.int16()
        wider = st.just(TOO_WIDE[kind]) if kind != base and kind in TOO_WIDE else st.nothing()
        return st.none() | VALUES[base] | wider

    def holds(self, values: tuple[Any, ...]) -> bool:
        """Whether the types of this version hold what columns that are wider by now may have."""
        most = {pa.int8(): 127, pa.int16(): 2**15 - 1}
        kinds = (most.get(kind) for _, _, kind in self.columns)
        return all(
            value is None or bound is None or (value <= bound and value == int(value))
            for value, bound in zip(values, kinds, strict=True)
        )


class Evolving(EvolvingMachine[Version]):
    """See the module's docstring."""

    @initialize()
    def begin(self) -> None:
        self.collection = self.client.create_or_load(
            "c", key={"k": pa.int32()}, value={"a": pa.int8(), "b": pa.string()}
        )
        self.versions = [Version([(1, "a", pa.int8()), (2, "b", pa.string())])]
        self.next_id = 3
        self.handles = {1: self.client.load("c")}
        self.key_name = "k"

    # Changes.

    def evolve(self, version: Version, **change: Any) -> None:
        version.defaults = {id_: self.newest.defaults.get(id_) for id_, _, _ in version.columns} | version.defaults
        super().evolve(version, **change)

    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        free = [name for name in NAMES if name not in [n for _, n, _ in self.newest.columns]]
        if not (free):
            return
        name, kind = data.draw(st.sampled_from(free)), data.draw(st.sampled_from([*VALUES]))
        default = data.draw(st.none() | VALUES[kind])
        version = Version([*self.newest.columns, (self.next_id, name, kind)], {self.next_id: default})
        self.next_id += 1
        self.evolve(version, add={name: kind}, defaults={} if default is None else {name: default})

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        if not (self.newest.columns):
            return
        gone = data.draw(st.sampled_from(self.newest.columns))
        self.evolve(Version([each for each in self.newest.columns if each != gone]), drop=[gone[1]])

    @rule(data=st.data())
    def rename(self, data: st.DataObject) -> None:
        names = [name for _, name, _ in self.newest.columns]
        new = data.draw(st.permutations(NAMES))[: len(names)]
        change = {old: to for old, to in zip(names, new, strict=True) if old != to}
        if not (change):
            return
        columns = [(id_, to, kind) for (id_, _, kind), to in zip(self.newest.columns, new, strict=True)]
        self.evolve(Version(columns), rename=change)

    @rule(data=st.data())
    def widen(self, data: st.DataObject) -> None:
        narrow = [each for each in self.newest.columns if each[2] in WIDER]
        if not (narrow):
            return
        chosen = data.draw(st.sampled_from(narrow))
        kind = data.draw(st.sampled_from(WIDER[chosen[2]]))
        columns = [(*each[:2], kind) if each == chosen else each for each in self.newest.columns]
        self.evolve(Version(columns), widen={chosen[1]: kind})

    @rule()
    def widen_the_key(self) -> None:
        if self.handles[max(self.handles)].schema.key.fields[0].type != pa.int32():
            return
        self.evolve(Version([*self.newest.columns]), widen={self.key_name: pa.int64()}, rename={self.key_name: "kk"})
        self.key_name = "kk"

    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        columns = data.draw(st.permutations(self.newest.columns))
        if not (columns):
            return
        names = [name for _, name, _ in columns]
        if columns == self.newest.columns:
            assert self.collection.evolve(reorder=names) == len(self.versions)  # Nothing changes.
        else:
            self.evolve(Version([*columns]), reorder=names)

    # Writes.

    def write(self, number: int, rows: list[tuple[int, dict[int, Any], int, int]]) -> None:
        version, handle = self.versions[number - 1], self.handles[number]
        names = [handle.schema.key_names[0], *(name for _, name, _ in version.columns)]
        columns: list[list[Any]] = [[key for key, _, _, _ in rows]]
        columns += [[record.get(id_) for _, record, _, _ in rows] for id_, _, _ in version.columns]
        table = pa.table(
            [
                pa.array(values, handle.schema.arrow.field(name).type)
                for name, values in zip(names, columns, strict=True)
            ]
            + [pa.array([row[at] for row in rows], pa.int64()) for at in (2, 3)],
            names=[*names, "_time", "_diff"],
        )
        only_adds = self.newest.columns[: len(version.columns)] == version.columns and not self.was_key_changed(number)
        only_adds = only_adds and len({id_ for id_, _, _ in version.columns}) == len(version.columns)
        future = handle.write(table)
        if only_adds:
            future.result()
            self.updates += [(key, record, time, diff, number) for key, record, time, diff in rows]
        else:
            with pytest.raises(persist.errors.SchemaMismatch, match="by now"):
                future.result()

    def was_key_changed(self, number: int) -> bool:
        return self.handles[number].schema.key != self.handles[len(self.versions)].schema.key

    @rule(data=st.data(), count=st.integers(1, 6))
    def insert(self, data: st.DataObject, count: int) -> None:
        number = data.draw(st.sampled_from([len(self.versions)] * 2 + [*self.handles]))
        version = self.versions[number - 1]
        rows = []
        for _ in range(count):
            record = {id_: data.draw(version.values(kind)) for id_, _, kind in version.columns}
            rows.append((data.draw(st.integers(0, 3)), record, self.upper + data.draw(st.integers(0, 1)), 1))
        self.write(number, rows)

    @precondition(lambda self: self.updates)
    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        """Retract what is there, as the newest schema has it: it cancels, whenever it was written."""
        present = self.contents(self.newest, 2**62)
        if not (present):
            return
        key, values = data.draw(st.sampled_from(sorted(present, key=repr)))
        record = {id_: value for (id_, _, _), value in zip(self.newest.columns, values, strict=True)}
        later = max(self.upper, max(update[2] for update in self.updates))
        self.write(len(self.versions), [(key, record, later, -1)])

    # Reads.

    def counted(self, table: pa.Table) -> Counter[tuple[int, tuple[Any, ...]]]:
        return counted(table)

    def contents(self, version: Version, as_of: int, since: int = -1) -> Counter[tuple[int, tuple[Any, ...]]]:
        found: Counter[tuple[int, tuple[Any, ...]]] = Counter()
        for key, record, time, diff, _ in self.updates:
            if since < time <= as_of:
                found[key, version.read(record)] += diff
        return Counter({each: count for each, count in found.items() if count})

    @precondition(lambda self: self.upper > self.since)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        as_of = data.draw(st.integers(self.since, self.upper - 1))
        expected = self.contents(self.newest, as_of)
        handle = data.draw(st.sampled_from([*self.handles.values()]))
        snapshot = handle.snapshot(as_of, form="diff")
        assert counted(snapshot.to_arrow()) == expected
        assert snapshot.count() == sum(expected.values())
        for key in range(4):
            found = [
                (key, tuple(row)) for row in rows_of(snapshot.get(keys_of(snapshot, key)).drop_columns(["_diff"]), 1)
            ]
            assert sorted(found, key=repr) == sorted((each for each in expected if each[0] == key), key=repr)
        if self.newest.columns:
            at = data.draw(st.integers(0, len(self.newest.columns) - 1))
            _, name, kind = self.newest.columns[at]
            wanted = data.draw(self.newest.values(kind))
            test = pc.field(name).is_null() if wanted is None else pc.field(name) == pa.scalar(wanted, kind)
            filtered = handle.snapshot(as_of, form="diff", where=test).to_arrow()
            assert counted(filtered) == Counter({e: n for e, n in expected.items() if e[1][at] == wanted})
            one = handle.snapshot(as_of, form="diff", columns=[name]).to_arrow()
            sums: Counter[Any] = Counter()
            for (_, values), count in expected.items():
                sums[values[at]] += count
            assert dict(zip(one[name].to_pylist(), one["_diff"].to_pylist(), strict=True)) == {
                value: count for value, count in sums.items() if count
            }

    @precondition(lambda self: self.upper > self.since)
    @rule(data=st.data())
    def read_with_an_old_version(self, data: st.DataObject) -> None:
        as_of = data.draw(st.integers(self.since, self.upper - 1))
        number = data.draw(st.integers(1, len(self.versions)))
        version = self.versions[number - 1]
        wanted, expected = {id_ for id_, _, _ in version.columns}, self.contents(version, as_of)
        try:
            table = self.collection.snapshot(as_of, form="diff", schema=number).to_arrow()
        except persist.errors.SchemaMismatch as error:
            assert number < len(self.versions)
            is_too_narrow = not all(version.holds(values) for _, values in expected)
            if "is gone" in str(error) or (is_too_narrow and "cannot hold" in str(error)):
                return
            raise
        assert all(version.holds(values) for _, values in expected)
        # What was written without a column that was dropped cannot be read with it: never as NULL.
        later = [v for _, _, time, _, v in self.updates if time <= as_of and v > number]
        assert all(wanted <= {id_ for id_, _, _ in self.versions[v - 1].columns} for v in later)
        assert counted(table) == expected


def keys_of(snapshot: persist.Snapshot, key: int) -> pa.Table:
    field = snapshot.scan.schema.key.fields[0]
    return pa.table({field.name: pa.array([key], field.type)})


def rows_of(table: pa.Table, skip: int = 0) -> list[list[Any]]:
    columns = [column.to_pylist() for column in table.columns[skip:]]
    return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in range(len(table))]


def counted(table: pa.Table) -> Counter[tuple[int, tuple[Any, ...]]]:
    found: Counter[tuple[int, tuple[Any, ...]]] = Counter()
    for key, *values, diff in rows_of(table):
        found[key, tuple(values)] += diff
        assert diff
    return Counter({each: count for each, count in found.items() if count})


TestEvolving = Evolving.TestCase
TestEvolving.settings = settings(max_examples=examples(60, quick=3), stateful_step_count=30, deadline=None)
