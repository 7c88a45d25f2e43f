"""A program that goes on does not compute again what its outputs hold, and is right all the same."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.dataflow import Program, Running, Stream, col, lit, open_together
from tests.compute.dataflow.ledger import rows_at

FACTS = {"id": pa.int64(), "k": pa.int64()}
GROUPS = {"k": pa.int64(), "g": pa.string()}


def sources(client: persist.Client) -> tuple[persist.Collection, persist.Collection]:
    facts = client.create_or_load("facts", key={"id": pa.int64()}, value={"k": pa.int64()})
    groups = client.create_or_load("groups", key={"k": pa.int64()}, value={"g": pa.string()})
    return facts, groups


def filled(client: persist.Client) -> tuple[persist.Collection, persist.Collection]:
    facts, groups = sources(client)
    groups.write([((k, "even" if k % 2 == 0 else "odd"), 0, 1) for k in range(10)], seal=persist.Antichain())
    facts.write([((number, number % 7), 0, 1) for number in range(50)], seal=1).result()
    return facts, groups


def joined(program: Program) -> Stream:
    return program.source("facts", schema=FACTS).join(program.source("groups", schema=GROUPS), "k")


def counting(after: Callable[[Stream], Stream] = lambda counts: counts, name: str = "counting") -> Program:
    program = Program(name)
    made = after(joined(program).group_by("g").count("n"))
    made.persist(f"{name} out", key=[made.columns[0]])
    return program


def gave(running: Running, kind: str) -> int:
    return sum(each.updates for each in running.operators() if each.kind == kind)


def expected(facts: persist.Collection, time: int) -> Counter[tuple[Any, ...]]:
    rows = facts.snapshot(time).to_arrow().to_pylist()
    return Counter(Counter("even" if row["k"] % 2 == 0 else "odd" for row in rows).items())


AFTER: dict[str, Callable[[Stream], Stream]] = {
    "as it is": lambda counts: counts,
    "its columns renamed and in another order": lambda counts: counts.map(many=col("n"), group=col("g")),
    "with columns that do not matter": lambda counts: counts.extend(more=col("n") + 1, one=lit(1)),
}


@pytest.mark.parametrize("which", AFTER)
def test_a_program_that_goes_on_does_not_join_again_what_its_counts_tell(which: str, client: persist.Client) -> None:
    facts, _ = filled(client)
    for turn in range(3):
        with counting(AFTER[which]).open(client) as running:
            running.step()
            assert (gave(running, "join") == 0) == (turn > 0)
            facts.write([((1000 + turn, 3), turn + 1, 1), ((turn, turn), turn + 1, -1)], seal=turn + 2).result()
            running.step()
            assert gave(running, "join") >= 2
    rows = client.load("counting out").snapshot(3).to_arrow().to_pylist()
    names = ("group", "many") if which.startswith("its columns") else ("g", "n")
    assert Counter(tuple(row[name] for name in names) for row in rows) == expected(facts, 3)


@pytest.mark.parametrize(
    "after",
    [
        lambda counts: counts.filter(col("n") > 3),  # Groups are missing.
        lambda counts: counts.map(g=col("g"), n=col("n") * 2),  # Not the count itself.
        lambda counts: counts.map(n=col("n"), one=lit("x")),  # The groups have no names.
    ],
)
def test_counts_that_an_output_does_not_tell_are_made_again(
    after: Callable[[Stream], Stream], client: persist.Client
) -> None:
    facts, _ = filled(client)
    for turn in range(2):
        with counting(after).open(client) as running:
            running.step()
            assert gave(running, "join") > 0
        facts.write([((1000 + turn, 1), turn + 1, 1)], seal=turn + 2).result()
    with counting(after, "anew").open(client) as running:
        running.step()
    with counting(after).open(client) as running:
        running.step()
    assert rows_at(client.load("counting out"), 2) == rows_at(client.load("anew out"), 2)


def test_an_output_that_is_compacted_further_is_computed_again(client: persist.Client) -> None:
    facts, _ = filled(client)
    with counting().open(client) as running:
        running.step()
    client.load("counting out").allow_compaction(5).result()
    facts.write([((1000, 1), 5, 1)], seal=6).result()
    with counting().open(client) as running:
        running.step()
        assert gave(running, "join") > 0
    assert rows_at(client.load("counting out"), 5) == expected(facts, 5)


def test_what_happens_later_by_itself_still_happens(client: persist.Client) -> None:
    """A window takes away later what it lets in now, so what is before it does not rest."""

    def program() -> Program:
        made = Program("recent")
        recent = joined(made).temporal_filter(col("id"), col("id") + 5)
        recent.group_by("g").count("n").persist("recent", key=["g"])
        recent.persist("window", key=["id"])
        return made

    facts, groups = sources(client)
    groups.write([((k, "even" if k % 2 == 0 else "odd"), 0, 1) for k in range(10)], seal=persist.Antichain())
    facts.write([((number, number % 7), 0, 1) for number in range(20)])
    for time in range(20):
        facts.seal(time + 1).result()
        with program().open(client) as running:
            running.step()
        there = [number for number in range(20) if number <= time < number + 5]
        assert rows_at(client.load("window"), time) == Counter(
            (number, number % 7, "even" if number % 7 % 2 == 0 else "odd") for number in there
        )
        counts = Counter("even" if number % 7 % 2 == 0 else "odd" for number in there)
        assert rows_at(client.load("recent"), time) == Counter(counts.items())


def test_a_count_that_is_read_inside_the_program_too_tells_what_it_was(client: persist.Client) -> None:
    def program() -> Program:
        made = Program("histogram")
        counts = joined(made).group_by("k").count("n")
        counts.persist("counts", key=["k"])
        counts.group_by("n").agg(keys=lit(1).sum(), least=col("k").min()).persist("histogram", key=["n"])
        return made

    facts, _ = filled(client)
    for turn in range(3):
        with program().open(client) as running:
            running.step()
            assert (gave(running, "join") == 0) == (turn > 0)
            facts.write([((1000 + turn, 3), turn + 1, 1), ((turn, turn), turn + 1, -1)], seal=turn + 2).result()
            running.step()
    rows = facts.snapshot(3).to_arrow().to_pylist()
    counts = Counter(row["k"] for row in rows)
    assert rows_at(client.load("counts"), 3) == Counter(counts.items())
    assert rows_at(client.load("histogram"), 3) == Counter(
        (n, len(ks), min(ks)) for n in set(counts.values()) for ks in [[k for k in counts if counts[k] == n]]
    )


def test_a_program_that_sealed_further_and_one_that_is_new_go_on_together(client: persist.Client) -> None:
    facts, _ = filled(client)
    with counting().open(client) as running:
        running.step()
    facts.write([((1000, 1), 1, 1)], seal=2).result()
    other = counting(lambda counts: counts.map(g=col("g"), n=col("n")), "other")
    with open_together([counting(), other], client) as running:
        running.step()
    facts.write([((1001, 1), 2, 1)], seal=3).result()
    with open_together([counting(), other], client) as running:
        running.step()
    for name in ("counting out", "other out"):
        assert rows_at(client.load(name), 2) == expected(facts, 2)


def test_an_output_whose_origin_is_in_doubt_is_compared_with_all_that_the_program_gives(client: persist.Client) -> None:
    facts, _ = filled(client)
    with counting().open(client) as running:
        running.step()
    counting().drop(client)  # Nothing says any more that this program has written it.
    facts.write([((1000, 1), 1, 1)], seal=2).result()
    with counting().open(client) as running:
        running.step()
        assert gave(running, "join") > 0
    assert rows_at(client.load("counting out"), 1) == expected(facts, 1)


@pytest.mark.parametrize("partial", [False, True])
def test_sums_go_on_from_what_their_output_shows(partial: bool, client: persist.Client) -> None:
    def program() -> Program:
        made = Program("sums")
        sums = (
            made.source("facts", schema=FACTS)
            .group_by("k")
            .agg(s=col("id").sum(), c=col("id").count(), n=lit(1).count())
        )
        sums.persist("sums", key=["k"])
        return made

    facts, _ = sources(client)
    ids = [-(2**40), -23, -1, 2**31, 5, -(2**31) - 1]
    facts.write([((number, number % 2), 0, 1) for number in ids], seal=1).result()
    with program().open(client) as running:
        running.step()
    for time, number in enumerate((-7, 2**33, -(2**34)), 1):
        ids.append(number)
        facts.write([((number, number % 2), time, 1)], seal=time + 1).result()
        with program().open(client, partial=partial) as running:
            running.step()
            assert (running.partial is not None) == partial
    parts = {k: [number for number in ids if number % 2 == k] for k in (0, 1)}
    assert rows_at(client.load("sums"), 3) == Counter((k, sum(part), len(part), len(part)) for k, part in parts.items())
