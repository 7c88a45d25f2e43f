"""A query as a view that cold and open handles refresh in random turns, against the same query in DuckDB."""

import random
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import persist
from persist import View
from persist.compute.dataflow.state.costs import Costs
from persist.compute.sql.types import to_arrow
from persist.sql import open_together
from tests.compute.index.always import indexes_that_always_pay
from tests.compute.sql.oracle import TABLES, Changes, Duck, Row, comparable

QUIET = persist.Settings(background=False)


@contextmanager
def requests_by_key(*, small_bytes: int = -1) -> Iterator[None]:
    """Let refreshes request the keys of changes however small an input is: tables of tests are."""
    with pytest.MonkeyPatch.context() as constants:
        constants.setattr("persist.compute.dataflow.ports.past.SMALL_BYTES", small_bytes)
        yield


def let_duckdb_build(view: View) -> None:
    """Let DuckDB compute the first contents of a view, however little its inputs hold."""
    view.live.together.options = {"costs": Costs(first_build_rows=0)}


def check_in_turns(sql: str, steps: list[Changes], seed: int) -> list[str]:
    """Raise AssertionError unless a view has DuckDB's answer at every time; return who refreshed it each time.

    Some refreshes take in several times. Between them inputs may be compacted, handles opened and closed, and indexes
    of the inputs made, refreshed and dropped. Refreshes look records up in them wherever they can. Most views keep what
    their groups are (`persist.compute.sql.groups`).
    """
    chance, ways = random.Random(seed), list[str]()
    indexing = random.Random(seed + 1)  # By itself: so a seed is the query and the ways that it always was.
    wants: list[Counter[Row]] = []
    with (
        requests_by_key(small_bytes=random.Random(seed + 2).choice([-1, -1, 500])),
        indexes_that_always_pay(),
        persist.open(f"memory://{uuid.uuid4()}", settings=QUIET) as client,
    ):
        duck, state = Duck(TABLES), {name: Counter[Row]() for name in TABLES}
        tables = {
            name: client.create_or_load(name, key={column: to_arrow(kind) for column, kind in columns})
            for name, columns in TABLES.items()
        }
        for time, batch in enumerate(steps):
            for name, table in tables.items():
                for row, diff in batch.get(name, ()):
                    state[name][row] += diff
                duck.set(name, state[name])
                table.write([((row, None), time, diff) for row, diff in batch.get(name, ())], seal=time + 1).result()
            wants.append(duck.answer(sql))
            for table in tables.values():
                index_at_random(table, indexing)
            if time == 0:
                view = client.create_view("v", sql, indexes=indexing.choice([None, "auto", "auto"]))
                if seed % 2:
                    let_duckdb_build(view)
            elif chance.random() < 0.3:
                continue
            wanted = "cold" if len(ways) == 1 else chance.choice(["cold", "cold", "state", "as it is", "as it is"])
            ways.append(refreshed(view, wanted))
            begun = view.since.time or 0
            for as_of in range(begun, time + 1):
                have = contents(view, as_of)
                assert have == wants[as_of], (
                    f"as of {as_of}, refreshed by {ways}\n{sql}\n"
                    f"DuckDB: {wants[as_of] - have}\nthis:   {have - wants[as_of]}"
                )
        duck.close()
        built = client.create_view("built", sql, start=0)  # The updates of all times are built at once.
        let_duckdb_build(built)
        built.refresh()
        assert [contents(built, as_of) for as_of in range(len(wants))] == wants, f"built from {sql}"
        assert client.fsck().problems == ()
    return ways


def check_together(queries: list[str], steps: list[Changes], seed: int) -> None:
    """Raise AssertionError unless views that one commit refreshes have DuckDB's answers each time."""
    chance = random.Random(seed)
    with (
        requests_by_key(small_bytes=chance.choice([-1, 500])),
        persist.open(f"memory://{uuid.uuid4()}", settings=QUIET) as client,
    ):
        duck, state = Duck(TABLES), {name: Counter[Row]() for name in TABLES}
        tables = {
            name: client.create_or_load(name, key={column: to_arrow(kind) for column, kind in columns})
            for name, columns in TABLES.items()
        }
        views: list[View] = []
        for time, batch in enumerate(steps):
            for name, table in tables.items():
                for row, diff in batch.get(name, ()):
                    state[name][row] += diff
                duck.set(name, state[name])
                table.write([((row, None), time, diff) for row, diff in batch.get(name, ())], seal=time + 1).result()
            if time == 0:
                views = [
                    client.create_view(f"v{at}", sql, indexes="auto" if chance.random() < 0.5 else None)
                    for at, sql in enumerate(queries)
                ]
            with open_together(views) as together:
                together.refresh()
                assert time == 0 or (together.running is not None and together.running.partial is not None)
            for sql, view in zip(queries, views, strict=True):
                have, want = contents(view, time), duck.answer(sql)
                assert have == want, f"as of {time}, {sql}\nDuckDB: {want - have}\nthis:   {have - want}"
        duck.close()


def chain(seed: int) -> str:
    """Return a query that joins three to five tables, each with one of those before it by some of their columns."""
    chance, columns = random.Random(seed), {"t": ["a", "b", "s"], "u": ["a", "b", "s"], "w": ["a"]}
    names = [chance.choice("ttuuw") for _ in range(chance.randint(3, 5))]
    joins = [f"{names[0]} x0"]
    for at, name in enumerate(names[1:], 1):
        conditions = []
        for _ in range(chance.choice([1, 1, 2])):
            before = chance.randrange(at)
            column = chance.choice(columns[name])
            kinds = ["s"] if column == "s" else ["a", "b"]
            others = [other for other in columns[names[before]] if other in kinds]
            if others:
                conditions.append(f"x{at}.{column} = x{before}.{chance.choice(others)}")
        on = " AND ".join(conditions) or f"x{at}.a = x{at - 1}.a"
        joins.append(f"{chance.choice(['JOIN', 'JOIN', 'JOIN', 'LEFT JOIN'])} {name} x{at} ON {on}")
    if chance.random() < 0.3:
        at = chance.randrange(len(names))
        inner = f"SELECT 1 FROM u y WHERE y.a = x{at}.a"
        where = f" WHERE {chance.choice(['', 'NOT '])}EXISTS ({inner})"
    else:
        where = chance.choice(["", f" WHERE x{chance.randrange(len(names))}.a > 0"])
    source = f"FROM {' '.join(joins)}{where}"
    at, other = chance.randrange(len(names)), chance.randrange(len(names))
    if chance.random() < 0.3:
        return f"SELECT DISTINCT x{at}.a AS one, x{other}.a AS other {source}"
    value = chance.choice(["count(*)", f"sum(x{other}.a)", f"count(x{other}.a)", f"min(x{other}.a)"])
    return f"SELECT x{at}.{chance.choice(columns[names[at]])} AS k, {value} AS v, count(*) AS n {source} GROUP BY 1"


def index_at_random(table: persist.Collection, chance: random.Random) -> None:
    """Make, refresh or drop an index of a table, or leave all as it is."""
    known = table.indexes()
    if known and chance.random() < 0.2:
        table.drop_index(*chance.choice(known).columns).result()
    elif chance.random() < 0.6:
        columns = chance.sample(table.columns, chance.choice([1, 1, 1, 2]))
        if columns != list(table.schema.key_names):
            table.index(*columns)


def refreshed(view: View, wanted: str) -> str:
    """Refresh a view cold, with state, or as it is; return whether its sources were read whole or in part."""
    if wanted == "cold":
        view.close()
    if wanted == "state":
        view.open_state()
    else:
        view.refresh()
    return way_of(view)


def way_of(view: View) -> str:
    """Return what a handle keeps: "state" is all of it, "part" is what was requested."""
    running = view.live.running
    assert running is not None
    return "state" if running.partial is None else "part"


def contents(view: View, as_of: int) -> Counter[Row]:
    table = view.snapshot(as_of, form="diff").to_arrow()
    columns = [table[name].to_pylist() for name, _ in view.definition.columns]
    found: Counter[Row] = Counter()
    for record, diff in zip(zip(*columns, strict=True), table["_diff"].to_pylist(), strict=True):
        found[tuple(map(comparable, record))] += diff
    return Counter({record: count for record, count in found.items() if count})
