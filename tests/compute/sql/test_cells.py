"""The table of cells (`tests.compute.sql.cells`): what views accept gives what DuckDB gives, whatever the values are.

Each expression is computed on all rows as one batch, on each row alone, and as a view, whose rows are then retracted.
Where DuckDB raises, so does the expression; the view has no such rows for it.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from persist.compute.sql.adapt_expression import FUNCTIONS
from persist.errors import InvalidUsage
from tests.compute.sql.answered import ERROR, Accepted, Answers, Oracle, computed, equal, plain
from tests.compute.sql.cells import OPERATORS, Sheet, sheets

CELLS_MIN = 20_000
PARTS = 12
NO_WORD = -(2**63)  # Is NULL in the words of a dataflow, which refuses it.
AT_ONCE = 60  # So many expressions are one view.
# What is said of values that DuckDB has, and views do not (`docs/use/views-sql.md`, "The language").
LIMITS = ("an interval has up to", "an interval does not fit 64 bits")


def _of_one_name(table: Sequence[Sheet]) -> list[Sheet]:
    """Return a table with one name for each function: others are the same to views."""
    found = []
    for sheet in table:
        names: dict[str, str] = {}
        for name, _ in sheet.expressions:
            names.setdefault(FUNCTIONS.get(name, name), name)
        expressions = [each for each in sheet.expressions if names[FUNCTIONS.get(each[0], each[0])] == each[0]]
        found.append(Sheet(sheet.types, sheet.rows[:: max(1, len(sheet.rows) // 14)], expressions))
    return found


def _checked(part: Sequence[Sheet], location: str) -> dict[str, int]:
    """Raise AssertionError unless all expressions of some sheets are right; return how many cells each name has."""
    cells: dict[str, int] = defaultdict(int)
    wrong: list[str] = []
    with persist.open(location) as client:
        for number, sheet in enumerate(part):
            oracle = Oracle(sheet)
            answers = oracle.answers()
            accepted: list[tuple[Answers, Accepted]] = []
            for first in range(0, len(answers), AT_ONCE):
                some = answers[first : first + AT_ONCE]
                bound = zip(some, oracle.bound(some), strict=True)
                accepted += [(each, made) for each, made in bound if not isinstance(made, InvalidUsage)]
            if not accepted:
                continue
            columns = oracle.rows()
            for each, made in accepted:
                wrong += [f"{sheet.types} {each.sql}: {problem}" for problem in _problems(sheet, each, made, columns)]
                cells[each.name] += len(each.values)
            for first in range(0, len(accepted), AT_ONCE):
                some = [each for each, _ in accepted[first : first + AT_ONCE]]
                wrong += _of_view(client, f"c{number}_{first}", some, columns)
            oracle.duck.close()
    assert not wrong, f"{len(wrong)} wrong, such as\n" + "\n".join(wrong[:20])
    return cells


def _problems(sheet: Sheet, answers: Answers, made: Accepted, columns: dict[str, Any]) -> list[str]:
    """Return what is wrong with an expression on all rows at once, and on each alone."""
    found = []
    alone = [computed(made, columns, [at]) for at in range(len(sheet.rows))]
    for at, (wanted, got) in enumerate(zip(answers.values, alone, strict=True)):
        if isinstance(got, str):
            if wanted is not ERROR and not any(limit in got for limit in LIMITS):
                found.append(f"{sheet.rows[at]} gives {wanted!r} in DuckDB, and raises {got[:200]}")
            answers.values[at] = ERROR
        elif not equal(answers.name, got[0], wanted):
            found.append(f"{sheet.rows[at]} gives {wanted!r} in DuckDB, and here {got[0]!r}")
    together = computed(made, columns, answers.good)
    if isinstance(together, str):
        return [*found, f"the rows that give a value raise together {together[:200]}"]
    for at, got in zip(answers.good, together, strict=True):
        if not equal(answers.name, got, answers.values[at]):
            found.append(f"{sheet.rows[at]} gives {answers.values[at]!r} in DuckDB, and among others {got!r}")
    return found


def _of_view(client: persist.Client, name: str, answers: Sequence[Answers], columns: dict[str, Any]) -> list[str]:
    """Return what is wrong with a view of expressions, when rows come and go."""
    rows = pa.table(columns)
    shown = ["id"]
    for at, each in enumerate(answers):
        each.values = [ERROR if value == NO_WORD and type(value) is int else value for value in each.values]
        if len(each.good) < len(rows):
            rows = rows.append_column(f"ok{at}", pa.array([value is not ERROR for value in each.values]))
            shown.append(f"CASE WHEN ok{at} THEN {each.sql} END AS x{at}")
        else:
            shown.append(f"{each.sql} AS x{at}")
    for field in list(rows.schema):
        if field.type == pa.int64():
            rows = rows.filter(pc.fill_null(pc.not_equal(rows[field.name], NO_WORD), True))
        elif pa.types.is_floating(field.type):  # A dataflow takes -0.0 for 0.0.
            is_negative = np.signbit(rows[field.name].fill_null(1).to_numpy())
            rows = rows.filter(pa.array(~(is_negative & (rows[field.name].fill_null(1).to_numpy() == 0))))
    every = rows["id"].to_pylist()
    fields = {field.name: field.type for field in rows.schema}
    given = client.create_or_load(name, key={"id": fields.pop("id")}, value=fields)
    given.write(rows, time=1, seal=2).result()
    view = client.create_view(f"{name}_view", f"SELECT {', '.join(shown)} FROM {name}", key=["id"])
    view.refresh()
    wrong = _differences(view, 1, answers, every)
    for time, gone, left in ((2, every[1::2], every[::2]), (3, every[::2], [])):
        some = rows.filter(pc.is_in(rows["id"], pa.array(gone, pa.int32())))
        given.write(some.append_column("_diff", pa.array([-1] * len(gone))), time=time).result()
        given.seal(time + 1).result()
        view.refresh()
        wrong += _differences(view, time, answers, left)
    return wrong


def _differences(view: Any, time: int, answers: Sequence[Answers], left: list[int]) -> list[str]:
    table = view.snapshot(time).to_arrow().sort_by("id")
    if table["id"].to_pylist() != left:
        return [f"the view has the rows {table['id'].to_pylist()} at {time}, and not {left}"]
    found = []
    for at, each in enumerate(answers):
        wanted = [None if each.values[row] is ERROR else each.values[row] for row in left]
        for row, want, got in zip(left, wanted, plain(table[f"x{at}"]), strict=True):
            if not equal(each.name, got, want):
                found.append(f"{each.sql}: the view has {got!r} for row {row} at {time}, and not {want!r}")
    return found


_EVERY = sheets()
_QUICK = _of_one_name(_EVERY)


@pytest.mark.thorough
def test_every_function_operator_and_cast_that_views_accept_is_right_whatever_the_values_are() -> None:
    cells = _checked(_QUICK, "memory://cells")
    assert sum(cells.values()) >= CELLS_MIN, sum(cells.values())
    known = {FUNCTIONS.get(name, name) for name in cells}
    missing = {*FUNCTIONS.values(), *OPERATORS, "CAST", "TRY_CAST"} - known
    assert not missing, (
        f"no expression of {sorted(missing)} is in the table: give them values in tests/compute/sql/values.py"
    )


def test_a_part_of_the_table_is_right() -> None:
    assert sum(_checked(_QUICK[::96], "memory://part").values()) >= CELLS_MIN // 192


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(PARTS))
def test_all_names_and_more_values_are_right(part: int) -> None:
    _checked(_EVERY[part::PARTS], f"memory://cells{part}")
