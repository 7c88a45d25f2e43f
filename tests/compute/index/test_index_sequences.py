"""Random sequences of writes, evolutions, compactions and indexes: look-ups agree with a model, at every time."""

import operator
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import persist
from tests.compute.index.always import QUIET, indexes_that_always_pay
from tests.support.tiers import examples

Row: TypeAlias = tuple[tuple[str, Any], ...]
KINDS = (
    *("write", "write", "upsert", "delete", "overwrite", "restore", "index", "index", "drop"),
    *("add", "remove", "rename", "compact", "refresh", "reopen", "early", "erase", "null"),
)
LASTING = 90  # The least id of rows that are written early, before their time comes, and which nobody changes then.
STEP = st.tuples(st.sampled_from(KINDS), st.integers(0, 5), st.integers(0, 3))


class Sequence:
    """A collection with indexes, and beside it what it holds at every time, as rows of columns by name."""

    def __init__(self, url: str) -> None:
        self.client = persist.open(url, settings=QUIET)
        self.orders = self.client.create_or_load("orders", key={"id": int}, value={"c": int, "s": str})
        self.contents: list[Counter[Row]] = []  # By time.
        self.columns = ["id", "c", "s"]
        self.early: list[Row] = []  # Of the time that comes next.
        self.named = self.allowed = 0

    def do(self, what: str, number: int, other: int) -> None:
        now = Counter(self.contents[-1]) if self.contents else Counter[Row]()
        value = tuple({"c": other, "s": f"s{other}"}.get(name.rstrip("0123456789")) for name in self.columns[1:])
        row: Row = tuple(zip(self.columns, (number, *value), strict=True))
        time = len(self.contents)
        if self.early and what in ("upsert", "delete", "overwrite", "restore"):
            what = "write"  # The others wait for the seal of what was written early.
        match what:
            case "write":
                self.orders.write([(number, value)], time=time).result()
                self.sealed(now + Counter({row: 1}))
            case "upsert":
                self.orders.upsert([(number, value)], time=time).result()
                self.sealed(Counter({each: n for each, n in now.items() if each[0][1] != number}) + Counter({row: 1}))
            case "delete" if self.contents:
                self.orders.delete([number], time=time).result()
                self.sealed(Counter({each: n for each, n in now.items() if each[0][1] != number}))
            case "overwrite" if self.contents:
                self.orders.overwrite([(number, value)], time=time, where=f"id < {LASTING}").result()
                self.sealed(Counter({each: n for each, n in now.items() if each[0][1] >= LASTING}) + Counter({row: 1}))
            case "early":
                self.orders.write([(LASTING + number, value)], time=time).result()
                self.early.append((("id", LASTING + number), *row[1:]))
            case "null":
                self.orders.write([(number, (None,) * len(value))], time=time).result()
                self.sealed(now + Counter({(row[0], *((name, None) for name, _ in row[1:])): 1}))
            case "erase" if self.contents:
                self.orders.erase([number], reason="a test")
                self.contents = [
                    Counter({each: n for each, n in held.items() if each[0][1] != number}) for held in self.contents
                ]
            case "restore" if self.contents and (self.orders.since.time or 0) < time:
                back = max(self.orders.since.time or 0, time - 1 - number)
                self.orders.restore(back, time=time).result()
                self.sealed(self.contents[back])
            case "index":
                self.orders.index(*self.chosen(other))
            case "drop" if self.orders.indexes():
                self.orders.drop_index(*self.orders.indexes()[0].columns).result()
            case "refresh":
                for index in self.orders.indexes():
                    self.orders.index(*index.columns)
            case "compact" if self.contents:
                self.allowed = max(self.allowed, time - 1 - number)
                self.orders.allow_compaction(self.allowed).result()
                self.client.maintain()
            case "reopen":
                self.client.close()
                self.client = persist.open(self.client.url, settings=QUIET)
                self.orders = self.client.load("orders")
            case "add" | "remove" | "rename":
                self.evolve(what)

    def chosen(self, other: int) -> list[str]:
        c, s = (next((n for n in self.columns if n.startswith(letter)), "id") for letter in "cs")
        return [[c], [s, c], [c, "id"], [s]][other] if c != "id" != s else [self.columns[-1], "id"]

    def evolve(self, what: str) -> None:
        indexed = {name for index in self.orders.indexes() for name in index.columns}
        self.named += 1
        free = [name for name in self.columns[1:] if name not in indexed]
        if what == "add":
            name = f"x{self.named}"
            self.orders.evolve(add={name: int})
            self.columns.append(name)
            self.contents = [Counter({(*row, (name, None)): n for row, n in held.items()}) for held in self.contents]
        elif what == "remove" and free and len(self.columns) > 3:
            self.orders.evolve(drop=[free[-1]])
            self.columns.remove(free[-1])
            self.contents = [without(held, free[-1]) for held in self.contents]
        elif what == "rename":
            old = self.columns[1]
            new = f"{old.rstrip('0123456789')}{self.named}"
            self.orders.evolve(rename={old: new})
            self.columns[1] = new
            self.contents = [
                Counter({tuple((new if name == old else name, v) for name, v in row): n for row, n in held.items()})
                for held in self.contents
            ]

    def sealed(self, contents: Counter[Row]) -> None:
        self.contents.append(contents + Counter(self.early))
        self.early = []
        if self.orders.upper < persist.Antichain(len(self.contents)):
            self.orders.seal(len(self.contents)).result()

    def check(self) -> None:
        for as_of in range(self.orders.since.time or 0, len(self.contents)):
            held = self.contents[as_of]
            for where, passes in self.conditions():
                wanted = Counter({row: n for row, n in held.items() if n and passes(dict(row))})
                table = self.orders.get(where=where, as_of=as_of)
                found = Counter(tuple((name, row[name]) for name in self.columns) for row in table.to_pylist())
                assert found == wanted, (as_of, where, self.orders.indexes())

    def check_other_reads(self) -> None:
        """Compare what else reads by a condition, as of the last time."""
        as_of, column = len(self.contents) - 1, self.columns[-1]
        for where, passes in self.conditions():
            wanted = Counter({row: n for row, n in self.contents[as_of].items() if n and passes(dict(row))})
            with (
                self.orders.snapshot(as_of, where=where) as rows,
                self.orders.snapshot(where=where, form="diff") as all_,
            ):
                assert rows.count() == len(rows) == wanted.total()
                assert all_.to_arrow().num_rows == len(wanted)
            some: Counter[Any] = Counter()
            for row, n in wanted.items():
                some[dict(row)[column]] += n
            with self.client.sql(f"SELECT {column} AS v FROM orders WHERE {where}", as_of=as_of) as answer:
                assert Counter(answer.to_arrow()["v"].to_pylist()) == some, where
            with self.orders.snapshot(as_of, columns=[column], where=where, form="diff") as few:
                assert {row[column]: row["_diff"] for row in few.to_arrow().to_pylist()} == some, where

    def conditions(self) -> Iterator[tuple[str, Callable[[dict[str, Any]], bool]]]:
        """Yield conditions on the columns of indexes, and what they say of a row."""
        for index in self.orders.indexes():
            first, *_ = columns = index.columns
            for number in (0, 2):
                values = {name: number if name == "id" or name[0] in "cx" else f"s{number}" for name in columns}
                yield " and ".join(f"{name} = {value!r}" for name, value in values.items()), partial(has, values)
            value = values[first]
            yield f"{first} >= {value!r}", partial(compared, first, operator.ge, value)
            yield f"{first} < {value!r}", partial(compared, first, operator.lt, value)
            yield f"not {first} = {value!r}", partial(compared, first, operator.ne, value)
            yield f"{first} is null", partial(has, {first: None})
            yield f"{first} in ({value!r}) or id = 1", partial(has_either, {first: value}, {"id": 1})


def has(values: dict[str, Any], row: dict[str, Any]) -> bool:
    return values.items() <= row.items()


def has_either(some: dict[str, Any], others: dict[str, Any], row: dict[str, Any]) -> bool:
    return has(some, row) or has(others, row)


def compared(column: str, holds: Callable[[Any, Any], bool], value: Any, row: dict[str, Any]) -> bool:
    return row[column] is not None and holds(row[column], value)


def without(held: Counter[Row], column: str) -> Counter[Row]:
    left: Counter[Row] = Counter()
    for row, n in held.items():
        left[tuple(pair for pair in row if pair[0] != column)] += n
    return left


@pytest.mark.costly("a location for each of many sequences, all times of which are read")
@settings(deadline=None, max_examples=examples(60))
@given(st.lists(STEP, min_size=4, max_size=14))
def test_look_ups_agree_with_a_model_whatever_happens_to_a_collection_and_its_indexes(
    steps: list[tuple[str, int, int]],
) -> None:
    sequence = Sequence(f"memory://{uuid.uuid4()}")
    try:
        with indexes_that_always_pay():
            for step in steps:
                sequence.do(*step)
                sequence.check()
            if sequence.contents:
                sequence.check_other_reads()
        assert sequence.client.fsck().problems == ()
    finally:
        sequence.client.close()
