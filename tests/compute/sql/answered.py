"""What DuckDB, the expressions of views, and views themselves answer for a sheet of the table of cells."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from persist.compute.sql.adapt_expression import Expressions
from persist.compute.sql.duck import bind_query
from persist.compute.sql.rows import lower_term
from persist.compute.sql.types import from_duckdb_name, to_arrow
from persist.core.expression.evaluation import broadcast, evaluate, infer_type
from persist.core.expression.term import Term
from persist.errors import InvalidUsage
from tests.compute.sql.cells import Sheet

# What libraries of mathematics round in different ways in the last digits.
_INEXACT = (
    *("sin", "cos", "tan", "cot", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    *(
        "exp",
        "ln",
        "log",
        "log10",
        "log2",
        "pow",
        "power",
        "**",
        "^",
        "degrees",
        "radians",
        "epoch",
        "date_part",
        "datepart",
    ),
)
Error = type("Error", (), {"__repr__": lambda _: "an error"})
ERROR = Error()


@dataclass
class Answers:
    """DuckDB's answers for one expression: of each row, a value or ERROR.

    Attributes:
        sql: the expression as it is asked; intervals are added to a timestamp, because no column can hold them.
    """

    name: str
    sql: str
    values: list[Any]

    @property
    def good(self) -> list[int]:
        return [at for at, value in enumerate(self.values) if value is not ERROR]


@dataclass
class Accepted:
    """An expression as views run it, over the columns c0, c1, …, which are those of these numbers."""

    expression: Term
    numbers: list[int]


class Oracle:
    """DuckDB with the rows of one sheet."""

    def __init__(self, sheet: Sheet) -> None:
        self.sheet = sheet
        self.kinds = [from_duckdb_name(kind) for kind in sheet.types]
        self.duck = duckdb.connect(":memory:")
        self.duck.execute("PRAGMA disable_optimizer")
        self.duck.execute("SET threads = 1")
        self.duck.execute("SET TimeZone = 'UTC'")
        columns = ", ".join(f"a{at} {kind}" for at, kind in enumerate(sheet.types))
        self.duck.execute(f"CREATE TABLE t (id INTEGER, {columns})")
        texts = [[None if row[at] is None else row[at] for row in sheet.rows] for at in range(len(sheet.types))]
        given = pa.table({"id": pa.array(range(len(sheet.rows)), pa.int32())} | _texts(texts))
        casts = ", ".join(f"CAST(a{at} AS {kind})" for at, kind in enumerate(sheet.types))
        self.duck.register("given", given)
        self.duck.execute(f"INSERT INTO t SELECT id, {casts} FROM given")

    def rows(self) -> dict[str, pa.Array]:
        """Return the rows as columns of the types that views read."""
        found = self.duck.sql("SELECT * FROM t ORDER BY id").to_arrow_table()
        kinds = [pa.int32(), *map(to_arrow, self.kinds)]
        return {name: _as(found[name], kind) for name, kind in zip(found.column_names, kinds, strict=True)}

    def answers(self) -> list[Answers]:
        """Return what DuckDB answers, of the expressions that it can bind."""
        asked = []
        for name, sql in self.sheet.expressions:
            if name == "epoch_ms" and "TIMESTAMP_NS" in self.sheet.types:
                continue  # DuckDB 2.0.1 has lost it: "Unimplemented type for cast (INT64 -> INT64)".
            try:
                kind = str(self.duck.execute(f"DESCRIBE SELECT {sql} AS x FROM t").fetchall()[0][1])
            except duckdb.Error:
                continue
            if kind == "INTERVAL":
                sql = f"TIMESTAMP '2020-01-31 12:00:00' + ({sql})"
            elif kind == '"NULL"':
                sql = f"CAST({sql} AS INTEGER)"
            asked.append((name, sql))
        found = []
        for first in range(0, len(asked), 100):
            found += self._some(asked[first : first + 100])
        return found

    def _some(self, asked: Sequence[tuple[str, str]]) -> list[Answers]:
        shown = ", ".join(f"TRY({sql}) AS v{at}, TRY(({sql}) IS NULL) AS n{at}" for at, (_, sql) in enumerate(asked))
        try:
            table = self.duck.sql(f"SELECT {shown} FROM t ORDER BY id").to_arrow_table()
        except duckdb.Error:  # TRY does not take all errors.
            if len(asked) == 1:
                return [self._by_row(*asked[0])]
            half = len(asked) // 2
            return [*self._some(asked[:half]), *self._some(asked[half:])]
        found = []
        for at, (name, sql) in enumerate(asked):
            values, known = plain(table[f"v{at}"]), table[f"n{at}"].to_pylist()
            found.append(Answers(name, sql, [ERROR if k is None else v for v, k in zip(values, known, strict=True)]))
        return found

    def _by_row(self, name: str, sql: str) -> Answers:
        values: list[Any] = []
        for at in range(len(self.sheet.rows)):
            try:
                values += plain(self.duck.sql(f"SELECT {sql} AS x FROM t WHERE id = {at}").to_arrow_table()["x"])
            except duckdb.Error:
                values.append(ERROR)
        return Answers(name, sql, values)

    def bound(self, answers: Sequence[Answers]) -> list[Accepted | InvalidUsage]:
        """Return each expression as views run it, or why it is refused."""
        sql = f"SELECT {', '.join(f'{each.sql} AS c{at}' for at, each in enumerate(answers))} FROM t"
        try:
            plan = bind_query(sql, {"t": [(f"a{at}", kind) for at, kind in enumerate(self.kinds)]}, "1").plan
        except InvalidUsage as error:
            if len(answers) == 1:
                return [error]
            half = len(answers) // 2
            return [*self.bound(answers[:half]), *self.bound(answers[half:])]
        assert plan["type"] == "LOGICAL_PROJECTION"
        read = [each["index"] for each in plan["children"][0].get("column_indexes", ())]
        numbers = [number if number < len(self.kinds) else 0 for number in read]
        schema = pa.schema([(f"c{at}", to_arrow(self.kinds[number])) for at, number in enumerate(numbers)])
        made: list[Accepted | InvalidUsage] = []
        for node in plan["expressions"]:
            try:
                expression = lower_term(Expressions(sql).translate(node), schema.names)
                infer_type(expression, schema, "map")
                made.append(Accepted(expression, numbers))
            except InvalidUsage as error:
                made.append(error)
        return made


def _texts(columns: list[list[Any]]) -> dict[str, pa.Array]:
    return {f"a{at}": pa.array(values, pa.string()) for at, values in enumerate(columns)}


def _as(column: Any, kind: pa.DataType) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array if array.type == kind else array.cast(kind)


def plain(column: Any) -> list[Any]:
    """Return values that can be compared: moments as numbers."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = array.type
    if pa.types.is_timestamp(kind):
        array = array.cast(pa.int64())
    elif pa.types.is_date(kind):
        array = array.cast(pa.int32())
    elif pa.types.is_time(kind):
        array = array.cast(pa.int64())
    elif pa.types.is_string_view(kind):
        array = array.cast(pa.string())
    return list(array.to_pylist())


def equal(name: str, one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        if one == other or (one != one and other != other):
            return True
        return name in _INEXACT and math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-300)
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    return bool(one == other)


def computed(accepted: Accepted, columns: dict[str, pa.Array], rows: list[int]) -> list[Any] | str:
    """Return what an expression is on some rows as one batch, or the error."""
    taken = pa.array(rows, pa.int64())
    frame = Batch(
        {f"c{at}": columns[f"a{number}"].take(taken) for at, number in enumerate(accepted.numbers)}, len(rows)
    )
    try:
        return plain(broadcast(evaluate(accepted.expression, frame), len(rows)))
    except (pa.ArrowException, ValueError, TypeError) as error:  # Those that name the record in a view.
        return f"{type(error).__name__}: {error}"


class Batch(dict[str, pa.Array]):
    """Columns of so many rows."""

    def __init__(self, columns: dict[str, pa.Array], rows: int) -> None:
        super().__init__(columns)
        self.rows = rows

    def __len__(self) -> int:
        return self.rows
