"""Steps in stages give what embedded steps give, at every time; and what has no such form is named."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.collection import Collection
from persist.dataflow import Program, col
from persist.dataflow.errors import OperatorFailed
from persist.errors import InvalidUsage
from persist.spark.step.planning import Place, StepPlan
from persist.spark.step.stages import cut, why_not
from persist.sql import View
from persist.sql.types import to_arrow
from tests.spark.step.emulated import emulated, stepped
from tests.sql.corpus import QUERIES
from tests.sql.grammar import Grammar
from tests.sql.oracle import TABLES, changes, comparable

pytestmark = pytest.mark.filterwarnings("ignore::persist.sql.UnboundedState")
QUIET = persist.Settings(background=False, hold_linger_s=0)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[persist.Client]:
    with persist.open(str(tmp_path / "location"), settings=QUIET) as found:
        yield found


def write(client: persist.Client, seed: int, first: int, last: int) -> None:
    """Let the tables change at some times."""
    for time, batch in [*enumerate(changes(seed, steps=last, size=6))][first:last]:
        for name, rows in batch.items():
            table = client.create_or_load(name, key={c: to_arrow(k) for c, k in TABLES[name]}, value=None)
            table.write([((row, None), time, diff) for row, diff in rows])
            table.seal(time + 1).result()


def held(collection: Collection) -> tuple[Any, Counter[tuple[Any, ...]]]:
    """Return what a collection holds at all times."""
    since = collection.since.time or 0
    then = collection.snapshot(since, form="diff").to_arrow()
    tables = [then.append_column("_time", pa.array([since] * len(then)))]
    upper = collection.upper.time or 0
    if since + 1 < upper:
        tables.append(collection.changes(since + 1, upper).to_arrow())
    found: Counter[tuple[Any, ...]] = Counter()
    for table in tables:
        for row in table.to_pylist():
            diff = row.pop("_diff")
            found[tuple(sorted((name, comparable(value)) for name, value in row.items()))] += diff
    return (since, upper), Counter({record: count for record, count in found.items() if count})


def both(client: persist.Client, queries: list[str]) -> list[tuple[str, View, View]]:
    """Return each query as two views, one to be stepped by tasks and one embedded; those that a view may be."""
    found = []
    for number, sql in enumerate(queries):
        named = f"SELECT * FROM ({sql}) AS q" if " order by " not in sql.lower() else sql
        try:
            found.append((sql, client.create_view(f"by tasks {number}", named), client.create_view(f"{number}", named)))
        except InvalidUsage:
            continue
    return found


def check(client: persist.Client, queries: list[str], seed: int) -> int:
    """Raise AssertionError unless views of queries hold the same whoever steps them; return how many have stages."""
    write(client, seed, 0, 2)
    views, done = both(client, queries), 0
    for last in (2, 5):
        write(client, seed, 2, last)
        for sql, by_tasks, embedded in views:
            if why_not(by_tasks.program().plan.without_unused()) is not None:
                continue
            try:
                embedded.refresh()
            except OperatorFailed:  # The query fails on a row: what tasks do then is tested with Spark.
                continue
            stepped(by_tasks, partitions=1 + seed % 4, seed=seed)
            embedded.close()
            assert held(by_tasks) == held(embedded), sql
            done += last == 5
    return done


@pytest.mark.sampled(0.3)
@pytest.mark.parametrize("block", range(6))
def test_a_query_gives_the_same_in_stages(client: persist.Client, block: int) -> None:
    assert check(client, QUERIES[block::6], block) >= 5


@pytest.mark.sampled(0.2)
@pytest.mark.parametrize("block", range(10))
def test_random_queries_give_the_same_in_stages(client: persist.Client, block: int) -> None:
    queries = [Grammar(1000 + 8 * block + number).query() for number in range(8)]
    assert check(client, queries, block) >= 2


def test_what_has_no_stages_says_why(client: persist.Client) -> None:
    write(client, 1, 0, 1)
    recursive = client.create_view(
        "r", "WITH RECURSIVE r AS (SELECT a FROM t UNION SELECT a + 1 FROM r WHERE a < 9) SELECT a AS a FROM r"
    )
    assert "is recursive" in str(why_not(recursive.program().plan.without_unused()))
    current = client.create_view("c", "SELECT a, b FROM u WHERE a <= _now()")
    assert "as time goes on" in str(why_not(current.program().plan.without_unused()))
    program = Program("p").using(client)
    program.source("t").inspect(print)
    assert "lives in the program that runs it" in str(why_not(program.plan.without_unused()))
    assert "2 dimensions" in str(why_not(Program("two", dimensions=2).plan))


def test_there_is_one_shuffle_for_each_change_of_key(client: persist.Client) -> None:
    write(client, 1, 0, 1)
    program = Program("p").using(client)
    t, u = program.source("t"), program.source("u")
    joined = t.join(u.map(a=col("a"), v=col("b")), "a")
    joined.group_by("a").agg(n=col("v").sum()).persist("by a", key=["a"])
    stages = cut(program.plan.without_unused())
    assert [(each.source is not None, [one.keys for one in each.reads], len(each.sinks)) for each in stages] == [
        (True, [], 0), (True, [], 0), (False, [("a",), ("a",)], 1)
    ]  # fmt: skip
    joined.group_by("s").agg(n=col("v").sum()).persist("by s", key=["s"])
    stages = cut(program.plan.without_unused())
    assert [[one.keys for one in each.reads] for each in stages if each.reads] == [[("a",), ("a",)], [("s",)]]


def test_a_view_switches_its_definition_in_stages(client: persist.Client) -> None:
    write(client, 3, 0, 2)
    views = [client.create_view(name, "SELECT a, count(*) AS n FROM t GROUP BY a") for name in ("tasks", "embedded")]
    stepped(views[0], partitions=2)
    for each in views:
        each.redefine("SELECT a, count(*) AS n, max(b) AS m FROM u GROUP BY a")
    write(client, 3, 2, 4)
    stepped(views[0], partitions=2)
    views[1].refresh()
    assert held(views[0]) == held(views[1])
    assert client.fsck().problems == ()


def test_a_step_that_somebody_came_before_is_refused_as_a_whole_and_leaves_nothing(client: persist.Client) -> None:
    write(client, 3, 0, 2)
    view = client.create_view("v", "SELECT a, count(*) AS n FROM t GROUP BY a")
    other = client.create_view("o", "SELECT n, count(*) AS m FROM v GROUP BY n")
    other.refresh()
    other.close()
    write(client, 3, 2, 4)
    place = Place(client.url, {}, parallel=2)
    program = other.program()
    with program.open(client) as running, StepPlan(program, running, place) as step:
        stored = emulated(step.tasks(2), random.Random(1))
        assert {*stored} == {"v", "o"}
        view.refresh()
        with pytest.raises(persist.UpperMismatch):
            step.commit(stored)
    other.refresh()
    blobs = {entry.key for entry in client.engine.blob.list("part/")}
    assert not blobs & {part.blob for parts in stored.values() for part in parts if part.blob}
    assert client.fsck().problems == ()
