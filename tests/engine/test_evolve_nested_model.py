"""Columns whose fields inside change at random, held against a model: values by field id, read by any version.

Between the changes there are writes with the newest schema and with older ones, retractions, seals, compactions and new
clients; after each step, reads of all kinds, at old times and with old versions.
"""

from collections import Counter
from collections.abc import Iterator
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

KINDS = {"int8": pa.int8(), "int16": pa.int16(), "int64": pa.int64(), "string": pa.string()}
WIDER = {"int8": "int16", "int16": "int64"}
MOST = {"int8": 127, "int16": 2**15 - 1, "int64": 2**63 - 1}
NAMES = ("a", "b", "c", "x.y")


@dataclass
class Type:
    """A type: of a leaf by its name; of "struct", "list" or "map", with ids, names and types of what is inside."""

    kind: str
    inner: dict[int, tuple[str, "Type"]] = field(default_factory=dict)

    def arrow(self) -> pa.DataType:
        inside = [(name, of.arrow()) for name, of in self.inner.values()]
        if self.kind == "struct":
            return pa.struct(inside)
        if self.kind == "list":
            return pa.list_(inside[0][1])
        return pa.map_(pa.string(), inside[0][1]) if self.kind == "map" else KINDS[self.kind]

    def read(self, value: Any) -> Any:
        """Return a value as Arrow shows it with these names, of one that has ids."""
        if value is None or not self.inner:
            return value
        if self.kind == "struct":
            return {name: of.read(value.get(id_)) for id_, (name, of) in self.inner.items()}
        of = next(iter(self.inner.values()))[1]
        return [of.read(each) for each in value] if self.kind == "list" else [(k, of.read(v)) for k, v in value]

    def holds(self, value: Any) -> bool:
        if value is None or self.kind == "string":
            return True
        if self.kind == "struct":
            return all(of.holds(value.get(id_)) for id_, (_, of) in self.inner.items())
        if self.inner:
            of = next(iter(self.inner.values()))[1]
            return all(of.holds(each if self.kind == "list" else each[1]) for each in value)
        return bool(value <= MOST[self.kind])

    def values(self) -> st.SearchStrategy[Any]:
        if not self.inner:
            some: st.SearchStrategy[Any] = (
                st.sampled_from(["", "x"]) if self.kind == "string" else st.sampled_from([0, 1, MOST[self.kind]])
            )
        elif self.kind == "struct":
            some = st.fixed_dictionaries({id_: of.values() for id_, (_, of) in self.inner.items()})
        else:
            inside = next(iter(self.inner.values()))[1].values()
            some = st.lists(inside if self.kind == "list" else st.tuples(st.sampled_from("pq"), inside), max_size=2)
        return st.none() | some

    def places(self, path: str = "") -> Iterator[tuple[str, "Type"]]:
        """Yield each place inside, with its path."""
        yield path, self
        for name, of in self.inner.values():
            yield from of.places(f'{path}."{name}"' if "." in name else f"{path}.{name}")

    def ids(self) -> set[int]:
        return {*self.inner}.union(*(of.ids() for _, of in self.inner.values()))

    def copy(self) -> "Type":
        return Type(self.kind, {id_: (name, of.copy()) for id_, (name, of) in self.inner.items()})


class EvolvingInside(EvolvingMachine[Type]):
    """See the module's docstring."""

    @initialize()
    def begin(self) -> None:
        self.next_id = 0
        inside = [("list", "element"), ("map", "value")]
        structs = [self.struct() for _ in range(3)]
        nested = [Type(kind, {self.new_id(): (step, structs[at])}) for at, (kind, step) in enumerate(inside)]
        structs[2].inner[self.new_id()] = ("deep", Type("list", {self.new_id(): ("element", self.struct())}))
        self.versions = [Type("struct", dict(enumerate([("s", structs[2]), ("l", nested[0]), ("m", nested[1])], -3)))]
        value = {name: of.arrow() for name, of in self.newest.inner.values()}
        self.collection = self.client.create_or_load("c", key={"k": pa.int32()}, value=value)
        self.handles = {1: self.client.load("c")}

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def struct(self) -> Type:
        return Type("struct", {self.new_id(): ("a", Type("int8")), self.new_id(): ("b", Type("string"))})

    # Changes.

    def place(self, data: st.DataObject, version: Type, kind: str) -> tuple[str, Type]:
        structs = [(path[1:], of) for path, of in version.places() if of.kind == kind and path]
        return data.draw(st.sampled_from(structs))

    @rule(data=st.data(), kind=st.sampled_from(["int8", "string", "struct", "list"]))
    def add(self, data: st.DataObject, kind: str) -> None:
        version = self.newest.copy()
        path, struct = self.place(data, version, "struct")
        if free := [name for name in NAMES if name not in [name for name, _ in struct.inner.values()]]:
            name, id_ = data.draw(st.sampled_from(free)), self.new_id()
            of = Type("list", {self.new_id(): ("element", self.struct())}) if kind == "list" else Type(kind)
            struct.inner[id_] = (name, self.struct() if kind == "struct" else of)
            step = f'"{name}"' if "." in name else name
            self.evolve(version, add={f"{path}.{step}": struct.inner[id_][1].arrow()})

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        version = self.newest.copy()
        path, struct = self.place(data, version, "struct")
        name, _ = struct.inner.pop(data.draw(st.sampled_from([*struct.inner])))
        if struct.inner:
            self.evolve(version, drop=[f'{path}."{name}"'])

    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        """Drop the last field of a struct, and add one of the same name and type: its old values are gone."""
        version = self.newest.copy()
        path, struct = self.place(data, version, "struct")
        name, of = struct.inner.pop(max(struct.inner, key=[*struct.inner].index))
        if not of.inner:
            struct.inner[self.new_id()] = (name, of)
            self.evolve(version, drop=[f'{path}."{name}"'], add={f'{path}."{name}"': of.arrow()})

    @rule(data=st.data())
    def rename(self, data: st.DataObject) -> None:
        version = self.newest.copy()
        path, struct = self.place(data, version, "struct")
        names = [name for name, _ in struct.inner.values()]
        new = data.draw(st.permutations([*NAMES, "deep"]))[: len(names)]
        change = {f'{path}."{old}"': f'{path}."{to}"' for old, to in zip(names, new, strict=True) if old != to}
        struct.inner = {id_: (to, of) for (id_, (_, of)), to in zip(struct.inner.items(), new, strict=True)}
        if change:
            self.evolve(version, rename=change)

    @rule(data=st.data())
    def widen(self, data: st.DataObject) -> None:
        version = self.newest.copy()
        if narrow := [(path[1:], of) for path, of in version.places() if of.kind in WIDER]:
            path, leaf = data.draw(st.sampled_from(narrow))
            leaf.kind = WIDER[leaf.kind]
            self.evolve(version, widen={path: leaf.arrow()})

    # Writes.

    def write(self, number: int, rows: list[tuple[int, dict[int, Any], int, int]]) -> None:
        version, handle = self.versions[number - 1], self.handles[number]
        columns: dict[str, pa.Array] = {"k": pa.array([row[0] for row in rows], pa.int32())}
        for id_, (name, of) in version.inner.items():
            columns[name] = pa.array([of.read(record[id_]) for _, record, _, _ in rows], of.arrow())
        columns |= {name: pa.array([row[at] for row in rows], pa.int64()) for name, at in (("_time", 2), ("_diff", 3))}
        future = handle.write(pa.table(columns))
        if is_extended(version, self.newest):
            future.result()
            self.updates += [(*row, number) for row in rows]
        else:
            with pytest.raises(persist.errors.SchemaMismatch, match="by now"):
                future.result()

    @rule(data=st.data(), count=st.integers(1, 5))
    def insert(self, data: st.DataObject, count: int) -> None:
        number = data.draw(st.sampled_from([len(self.versions)] * 2 + [*self.handles]))
        of = self.versions[number - 1].inner
        rows = []
        for _ in range(count):
            record = {id_: data.draw(column.values()) for id_, (_, column) in of.items()}
            rows.append((data.draw(st.integers(0, 2)), record, self.upper + data.draw(st.integers(0, 1)), 1))
        self.write(number, rows)

    @precondition(lambda self: self.updates)
    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        """Retract what is there, as the newest schema has it: it cancels, whenever it was written."""
        key, record, _, _, _ = data.draw(st.sampled_from(self.updates))
        later = max(self.upper, max(update[2] for update in self.updates))
        if self.contents(self.newest, later)[self.row(self.newest, key, record)] > 0:
            self.write(len(self.versions), [(key, record, later, -1)])

    # Reads.

    def counted(self, table: pa.Table) -> Counter[str]:
        return counted(table)

    def row(self, version: Type, key: int, record: dict[int, Any]) -> str:
        return repr((key, list(version.read(record).values())))

    def contents(self, version: Type, as_of: int, since: int = -1) -> Counter[str]:
        found: Counter[str] = Counter()
        for key, record, time, diff, _ in self.updates:
            if since < time <= as_of:
                found[self.row(version, key, record)] += diff
        return Counter({each: count for each, count in found.items() if count})

    @precondition(lambda self: self.upper > self.since)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        as_of = data.draw(st.integers(self.since, self.upper - 1))
        expected = self.contents(self.newest, as_of)
        snapshot = data.draw(st.sampled_from([*self.handles.values()])).snapshot(as_of, form="diff")
        assert counted(snapshot.to_arrow()) == expected
        assert snapshot.count() == sum(expected.values())
        some = pa.table({"k": pa.array([1], pa.int32())})
        assert counted(snapshot.get(some)) == Counter({e: n for e, n in expected.items() if e.startswith("(1,")})
        whole = self.newest.inner[-3][1]
        id_ = data.draw(st.sampled_from([*whole.inner]))
        name, _ = whole.inner[id_]
        condition = pc.is_null(pc.field("s", name))
        filtered = self.collection.snapshot(as_of, form="diff", where=condition).to_arrow()
        nulls: Counter[str] = Counter()
        for key, record, time, diff, _ in self.updates:
            if time <= as_of and (record[-3] is None or record[-3].get(id_) is None):
                nulls[self.row(self.newest, key, record)] += diff
        assert counted(filtered) == Counter({each: count for each, count in nulls.items() if count})

    @precondition(lambda self: self.upper > self.since)
    @rule(data=st.data())
    def read_with_an_old_version(self, data: st.DataObject) -> None:
        as_of = data.draw(st.integers(self.since, self.upper - 1))
        number = data.draw(st.integers(1, len(self.versions)))
        version, expected = self.versions[number - 1], self.contents(self.versions[number - 1], as_of)
        holds = all(version.holds(record) for _, record, time, _, _ in self.updates if time <= as_of)
        try:
            table = self.collection.snapshot(as_of, form="diff", schema=number).to_arrow()
        except persist.errors.SchemaMismatch as error:
            assert number < len(self.versions)
            if "is gone" in str(error) or (not holds and "cannot hold" in str(error)):
                return
            raise
        later = [v for _, _, time, _, v in self.updates if time <= as_of and v > number]
        assert all(version.ids() <= self.versions[v - 1].ids() for v in later)
        assert counted(table) == expected


def is_extended(before: Type, after: Type) -> bool:
    """Whether a type has all that it had, under the same names and in the same order, and perhaps more."""
    remaining = [(id_, name) for id_, (name, _) in after.inner.items() if id_ in before.inner]
    return (
        before.kind == after.kind
        and remaining == [(id_, name) for id_, (name, _) in before.inner.items()]
        and all(is_extended(of, after.inner[id_][1]) for id_, (_, of) in before.inner.items())
    )


def counted(table: pa.Table) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in table.to_pylist():
        diff = row.pop("_diff")
        assert diff
        key, *values = row.values()
        found[repr((key, values))] += diff
    return Counter({each: count for each, count in found.items() if count})


TestEvolvingInside = EvolvingInside.TestCase
TestEvolvingInside.settings = settings(max_examples=examples(60, quick=3), stateful_step_count=30, deadline=None)
