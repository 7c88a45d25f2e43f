"""Tasks of a cluster give what a running program gives, at every time; and what they cannot compute is named."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import persist
from persist import View
from persist.compute.dataflow.cluster.exchanges import split_into_stages
from persist.compute.dataflow.cluster.job import Job
from persist.compute.dataflow.ports.ports import Ports
from persist.compute.dataflow.running.partial import explain_why_not_partial
from persist.compute.sql.types import to_arrow
from persist.core.settings import Tuning
from persist.dataflow import Program, col
from persist.errors import InvalidUsage, OperatorFailed
from tests.compute.dataflow.cluster.emulated import compute_by_tasks, emulated
from tests.compute.sql.corpus import QUERIES
from tests.compute.sql.grammar import Grammar
from tests.compute.sql.oracle import TABLES, changes
from tests.compute.sql.whole_history import held

pytestmark = pytest.mark.filterwarnings("ignore::persist.sql.UnboundedState")
QUIET = persist.Settings(background=False, tuning=Tuning(hold_linger_s=0))


@pytest.fixture
def client(tmp_path: Path) -> Iterator[persist.Client]:
    with persist.open(str(tmp_path / "location"), settings=QUIET) as found:
        yield found


def write(client: persist.Client, seed: int, first: int, last: int, *, only: str | None = None) -> None:
    """Let the tables change at some times; in the last step only one row of one table, if it is named."""
    for time, batch in [*enumerate(changes(seed, steps=last, size=6))][first:last]:
        for name, every in batch.items():
            rows = every if only is None else every[: name == only]
            table = client.create_or_load(name, key={c: to_arrow(k) for c, k in TABLES[name]}, value=None)
            table.write([((row, None), time, diff) for row, diff in rows], seal=time + 1).result()


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
    """Raise AssertionError unless views hold the same whoever computes them; return how many tasks can compute."""
    write(client, seed, 0, 2)
    views, done = both(client, queries), 0
    for first, last, only in ((2, 2, None), (2, 4, None), (4, 5, [*TABLES][seed % len(TABLES)])):
        write(client, seed, first, last, only=only)
        for sql, by_tasks, embedded in views:
            if explain_why_not_partial(by_tasks.live.make_program().plan.drop_unused()) is not None:
                continue
            try:
                embedded.refresh()
            except OperatorFailed:  # The query fails on a row: what tasks do then is tested with Spark.
                continue
            compute_by_tasks(by_tasks, partitions=1 + seed % 4, seed=seed)
            embedded.close()
            assert held(by_tasks) == held(embedded), sql
            done += last == 5
    return done


@pytest.mark.thorough
@pytest.mark.costly("each block refreshes a sixth of all queries twice")
@pytest.mark.parametrize("block", range(6))
def test_tasks_give_what_a_running_program_gives(client: persist.Client, block: int) -> None:
    assert check(client, QUERIES[block::6], block) >= 5


@pytest.mark.thorough(except_every=20)
@pytest.mark.costly("each block refreshes two queries three times in two ways")
@pytest.mark.parametrize("block", range(20))
def test_tasks_give_what_a_running_program_gives_for_random_queries(client: persist.Client, block: int) -> None:
    queries = [Grammar(1000 + 4 * block + number).query() for number in range(2)]
    assert check(client, queries, block) >= 1


def test_what_tasks_cannot_compute_says_why(client: persist.Client) -> None:
    write(client, 1, 0, 1)
    recursive = client.create_view(
        "r", "WITH RECURSIVE r AS (SELECT a FROM t UNION SELECT a + 1 FROM r WHERE a < 9) SELECT a AS a FROM r"
    )
    assert "is recursive" in str(explain_why_not_partial(recursive.live.make_program().plan.drop_unused()))
    current = client.create_view("c", "SELECT a, b FROM u WHERE a <= _now()")
    assert "as time goes on" in str(explain_why_not_partial(current.live.make_program().plan.drop_unused()))
    program = Program("p").using(client)
    program.source("t").inspect(print)
    assert "lives in the program that runs it" in str(explain_why_not_partial(program.plan.drop_unused()))
    assert "2 dimensions" in str(explain_why_not_partial(Program("two", dimensions=2).plan))


def persisted(stream: Any, *key: str) -> None:
    stream.persist("by " + key[0], key=[*key])


def summed(stream: Any, key: str, of: str) -> Any:
    return stream.group_by(key).agg(n=col(of).sum())


def after_a_join(t: Any, u: Any) -> None:
    joined = t.join(u.map(a=col("a"), v=col("b")), "a")
    persisted(summed(joined, "a", "v"), "a")
    persisted(summed(joined, "b", "v"), "b")


def in_a_circle(t: Any, u: Any) -> None:
    """One side of the last join has the groups' key, and the other side is made of the groups."""
    groups = summed(t, "a", "b")
    other = t.map(a=col("a"), v=col("b")).join(groups.map(v=col("n"), z=col("a")), "v")
    persisted(groups.join(other, "a"), "a")


STAGES: dict[Callable[[Any, Any], Any], str] = {
    lambda t, u: persisted(t, "a"): "source 0 | 0:a Persist",
    lambda t, u: persisted(summed(t, "a", "b").filter(col("n") > 1).map(c=col("a"), n=col("n")), "c"): (
        "source Linear 0 | 0:a Reduce Linear Linear Persist"
    ),
    lambda t, u: persisted(summed(t, "a", "b").map(c=col("a") + 1), "c"): (
        "source Linear 0 | 0:a Reduce Linear 1 | 1:c Persist"
    ),
    lambda t, u: persisted(summed(t.group_by("a", "b").count(), "a", "b"), "a"): (
        "source Linear 0 | 0:a,b Reduce Linear 1 | 1:a Reduce Persist"
    ),
    lambda t, u: persisted(t.group_by("a").count().group_by("a", "count").agg(n=col("a").max()), "a"): (
        "source Linear 0 | 0:a Reduce Linear Reduce Persist"
    ),
    lambda t, u: persisted(t.concat(u).distinct(), "a", "b"): "source 0 | source 1 | 0:a,b 1:a,b Concat Reduce Persist",
    lambda t, u: persisted(summed(t.concat(u), "a", "b"), "a"): (
        "source 0 | source 1 | 0:None 1:None Concat Linear 2 | 2:a Reduce Persist"
    ),
    lambda t, u: persisted(t.concat(t.map(a=col("b"), b=col("a"))).distinct(), "b"): (
        "source Linear Concat 0 | 0:a,b Reduce Persist"
    ),
    lambda t, u: persisted(summed(summed(t, "a", "b").map(a=col("a"), b=col("n")).concat(u), "a", "b"), "a"): (
        "source Linear 0 | source 1 | 0:a 1:a Reduce Linear Concat Linear Reduce Persist"
    ),
    lambda t, u: persisted(summed(t, "a", "b").join(u, "a"), "a", "b"): (
        "source Linear 0 | source 1 | 0:a 1:a Reduce Join Persist"
    ),
    after_a_join: "source 0 | source Linear 1 | 0:a 1:a Join Linear Linear Reduce Persist 2 | 2:b Reduce Persist",
    in_a_circle: ("source Linear Linear 0 1 | 0:a Reduce Linear 2 3 | 1:v 2:v Join 4 | 3:a 4:a Join Persist"),
}


@pytest.mark.parametrize(("build", "told"), STAGES.items(), ids=range(len(STAGES)))
def test_there_is_one_shuffle_for_each_change_of_key(client: persist.Client, build: Any, told: str) -> None:
    """Stages are told with the exchanges that they read and their keys, their operators, and what they give."""
    for name in ("t", "u"):
        client.create_or_load(name, key={"a": int, "b": int}, value=None)
    program = Program("p").using(client)
    build(program.source("t"), program.source("u"))
    stages = []
    for stage in split_into_stages(program.plan.drop_unused()):
        parts = [f"{read.number}:{read.keys and ','.join(read.keys)}" for read in stage.reads]
        parts += ["source"] * (stage.source is not None)
        parts += [type(node.operator).__name__ for node in stage.nodes]
        stages.append(" ".join([*parts, *(f"{each.number}" for each in stage.gives)]))
        assert {each.number for each in stage.feeds.values()} == {each.number for each in stage.reads}
        assert [type(sink.operator).__name__ for sink in stage.sinks] == ["Persist"] * parts.count("Persist")
    assert " | ".join(stages) == told


def test_a_job_that_somebody_came_before_is_refused_as_a_whole_and_leaves_nothing(client: persist.Client) -> None:
    write(client, 3, 0, 2)
    view = client.create_view("v", "SELECT a, count(*) AS n FROM t GROUP BY a")
    other = client.create_view("o", "SELECT n, count(*) AS m FROM v GROUP BY n")
    other.refresh()
    other.close()
    write(client, 3, 2, 4)
    program = other.live.make_program()
    with Ports.of_job(program, client.engine) as ports, Job(program, ports, client.url, {}, 2) as job:
        stored = emulated(job.make_tasks(2), random.Random(1))
        assert {*stored} == {"v", "o"}
        view.refresh()
        with pytest.raises(persist.errors.UpperMismatch):
            job.commit(stored)
    other.refresh()
    blobs = {entry.key for entry in client.engine.blob.list("part/")}
    assert not blobs & {part.blob for parts in stored.values() for part in parts if part.blob}
    assert client.fsck().problems == ()
