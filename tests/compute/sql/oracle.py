"""A query as a dataflow against the same query in DuckDB: after each of several changes both give the same multiset."""

import datetime
import decimal
import random
import uuid
from collections import Counter
from functools import cache
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa

from persist.codecs.types.schema import CollectionSchema
from persist.compute.dataflow.state.costs import USUAL, Costs
from persist.compute.query import add_functions
from persist.compute.sql.compile import plan_query
from persist.compute.sql.lower import Lowering
from persist.compute.sql.order import NOTHING, Known
from persist.compute.sql.types import to_arrow, to_duckdb
from persist.dataflow import Program, Stream, col

Row: TypeAlias = tuple[Any, ...]
Changes: TypeAlias = dict[str, list[tuple[Row, int]]]
Columns: TypeAlias = list[tuple[str, str]]

TABLES: dict[str, Columns] = {
    "t": [("a", "int32"), ("b", "int32"), ("s", "text"), ("d", "date"), ("m", "decimal(12,2)"), ("f", "double")],
    "u": [("a", "int32"), ("b", "int32"), ("s", "text")],
    "w": [("a", "int64"), ("x", "double"), ("p", "boolean"), ("ts", "timestamp"), ("h", "decimal(30,4)")],
}
_TEXTS = ["x", "xy", "abc", "", "a%", "é_", "X"]
_FLOATS = [0.0, -0.0, 1.5, 2.25, -3.0, float("nan"), float("inf")]


def value(random_: random.Random, kind: str) -> Any:
    """Return a value of a type, from so few that they meet; NULL is one of them."""
    if random_.random() < 0.2:
        return None
    if kind.startswith("int"):
        return random_.randint(0, 4)
    if kind == "text":
        return random_.choice(_TEXTS)
    if kind == "date":
        return datetime.date(2020, random_.randint(1, 3), random_.randint(1, 28))
    if kind == "timestamp":
        return datetime.datetime(2020, 1, random_.randint(1, 31), random_.randint(0, 23), 30, 0, 250_000)
    if kind == "double":
        return random_.choice(_FLOATS[:5] if random_.random() < 0.9 else _FLOATS)
    if kind == "boolean":
        return random_.random() < 0.5
    return decimal.Decimal(random_.randint(-500, 500)) / 100


def changes(seed: int, *, steps: int = 4, size: int = 8) -> list[Changes]:
    """Return what happens to the tables, step by step: about a third of it are retractions."""
    random_, state, found = random.Random(seed), {name: list[Row]() for name in TABLES}, []
    for _ in range(steps):
        batch: Changes = {}
        for name, columns in TABLES.items():
            rows = []
            for _ in range(size):
                if state[name] and random_.random() < 0.35:
                    rows.append((state[name].pop(random_.randrange(len(state[name]))), -1))
                else:
                    row = tuple(value(random_, kind) for _, kind in columns)
                    state[name].append(row)
                    rows.append((row, 1))
            batch[name] = rows
        found.append(batch)
    return found


def comparable(value: Any) -> Any:
    """Return a value so that equal ones are equal: numbers of all types, floats to nine digits, NaN."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, float):
        return "NaN" if value != value else float(f"{value:.9g}") + 0.0
    if isinstance(value, int | decimal.Decimal):
        return decimal.Context(prec=76).normalize(decimal.Decimal(value)) or decimal.Decimal(0)
    if isinstance(value, list | tuple):
        return tuple(map(comparable, value))
    if isinstance(value, dict) and [*value] == [f"v{number}" for number in range(1, len(value) + 1)]:
        return tuple(map(comparable, value.values()))  # A struct without names.
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, datetime.timedelta):
        return "interval", value
    if isinstance(value, dict) and [*value] == ["months", "days", "micros"]:
        return "interval", datetime.timedelta(30 * value["months"] + value["days"], 0, value["micros"])
    if isinstance(value, dict):
        return tuple((key, comparable(each)) for key, each in value.items())
    return value


def multiset(rows: Any) -> Counter[Row]:
    return Counter(tuple(map(comparable, row)) for row in rows)


@cache
def _database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(":memory:", config={"threads": 1})


class Duck:
    """DuckDB with the tables, to ask what the answer is."""

    def __init__(self, tables: dict[str, Columns]) -> None:
        self._tables = tables
        self._connection = _database().cursor()  # Temporary tables are of a cursor alone.
        add_functions(self._connection, "tumble hop session")
        for name, columns in tables.items():
            shown = ", ".join(f"{column} {to_duckdb(kind)}" for column, kind in columns)
            self._connection.execute(f"CREATE TEMP TABLE {name} ({shown})")

    def set(self, name: str, rows: Counter[Row]) -> None:
        self._connection.execute(f"DELETE FROM {name}")
        every = [row for row, count in rows.items() for _ in range(count)]
        if every:
            marks = ", ".join("?" * len(self._tables[name]))
            values = ", ".join([f"({marks})"] * len(every))  # One statement is several times faster than one for each.
            self._connection.execute(f"INSERT INTO {name} VALUES {values}", [each for row in every for each in row])

    def answer(self, sql: str) -> Counter[Row]:
        return multiset(self._connection.execute(sql).fetchall())

    def close(self) -> None:
        self._connection.close()


def schemas(tables: dict[str, Columns]) -> dict[str, CollectionSchema]:
    return {name: CollectionSchema.of({c: to_arrow(k) for c, k in columns}, None) for name, columns in tables.items()}


def program_of(
    sql: str, tables: dict[str, Columns] = TABLES, *, is_rewritten: bool = True, known: Known = NOTHING
) -> tuple[Program, Stream, list[str]]:
    """Return a query as a program, its answer, and the inputs that it reads."""
    plan, columns = plan_query(sql, schemas(tables))
    program = Program("query")
    inputs: dict[str, Stream] = {}

    def source(name: str) -> Stream:
        if name not in inputs:
            inputs[name] = program.input(name, key={column: to_arrow(kind) for column, kind in tables[name]})
        return inputs[name]

    lowering = Lowering(program, source, known)
    answer = lowering.lower_query(plan) if is_rewritten else lowering.lower_rewritten(plan)
    expected = [to_arrow(kind) for _, kind in columns]
    assert answer.schema.types == expected, (answer.schema, expected)
    return program, answer, list(inputs)


def check(
    sql: str,
    steps: list[Changes],
    tables: dict[str, Columns] = TABLES,
    *,
    is_rewritten: bool = True,
    known: Known = NOTHING,
    asked: str | None = None,
    costs: Costs = USUAL,
) -> None:
    """Raise AssertionError unless the dataflow has DuckDB's answer after each step: to `asked`, if that is given."""
    program, answer, inputs = program_of(sql, tables, is_rewritten=is_rewritten, known=known)
    seen, duck = answer.capture(), Duck(tables)
    state: dict[str, Counter[Row]] = {name: Counter() for name in tables}
    have: Counter[Row] = Counter()
    with program.open(costs=costs) as running:
        for time, batch in enumerate(steps):
            for name, rows in batch.items():
                for row, diff in rows:
                    state[name][row] += diff
                duck.set(name, state[name])
            for name in inputs:
                running[name].insert([((row, None), time, diff) for row, diff in batch.get(name, ())])
                running[name].advance_to(time + 1)
            running.step()
            for record, diff in _taken(seen.take()):
                have[record] += diff
            have = Counter({record: count for record, count in have.items() if count})
            want = duck.answer(asked or sql)
            assert have == want, f"after step {time}\n{sql}\nDuckDB: {want - have}\nthis:   {have - want}"
    duck.close()


def _taken(table: pa.Table) -> list[tuple[Row, int]]:
    columns = [
        table[name].to_pylist(maps_as_pydicts="strict") for name in table.column_names if name not in ("_time", "_diff")
    ]
    rows = zip(*columns, strict=True) if columns else [()] * len(table)
    return [(tuple(map(comparable, row)), diff) for row, diff in zip(rows, table["_diff"].to_pylist(), strict=True)]


__all__ = ["TABLES", "Changes", "Duck", "changes", "check", "col", "multiset", "program_of"]
