"""Outputs seal as far as what they are made of is sealed, and as the collections that they are told to wait for."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import persist
from persist.blob.protocol import MemoryBlob
from persist.dataflow import Antichain, Program, col, lit, open_together
from persist.errors import SourceLost
from tests.support.tiers import examples

KEY, VALUE = {"k": pa.int64()}, {"v": pa.int64()}


def made(client: persist.Client, *names: str) -> list[persist.Collection]:
    return [client.create_or_load(name, key=KEY, value=VALUE) for name in names]


def counted(client: persist.Client) -> Program:
    """Of `a`: a count that waits for nothing, one that waits for the seal of `b`, and one for a stream of `c`, too."""
    program = Program("counted").using(client)
    a, c = program.source("a"), program.source("c")
    counts = a.group_by("k").agg(n=lit(1).sum())
    counts.persist("alone", key=["k"])
    counts.sealed_with("b").persist("with-b", key=["k"])
    counts.sealed_with("b", c.filter(col("v") > 0)).persist("with-all", key=["k"])
    c.distinct().persist("of-c", key=["k"])
    return program


def uppers(client: persist.Client) -> dict[str, int]:
    return {name: client.load(name).upper.time or -1 for name in ("alone", "with-b", "with-all", "of-c")}


def test_an_output_waits_for_what_it_is_made_of_and_for_what_it_is_told_to(client: persist.Client) -> None:
    a, b, c = made(client, "a", "b", "c")
    a.write([((1, 1), 0, 1), ((1, 2), 5, 1), ((2, 1), 7, 1)])
    for collection in (a, b, c):
        collection.seal(1).result()
    with counted(client).open(client) as running:
        running.run()
        a.seal(9).result()
        c.seal(4).result()
        running.run()
        assert uppers(client) == {"alone": 9, "with-b": 1, "with-all": 1, "of-c": 4}
        b.write([((9, 9), 3, 1)], seal=7).result()
        running.run()
        assert uppers(client) == {"alone": 9, "with-b": 7, "with-all": 4, "of-c": 4}
        assert sorted(client.load("with-b").snapshot(6).rows()) == [(1, 2)]
        assert sorted(client.load("with-all").snapshot(3).rows()) == [(1, 1)]


def test_a_program_begins_where_its_conditions_hold(client: persist.Client) -> None:
    a, b = made(client, "a", "b")
    a.write([((1, 1), 2, 1), ((2, 1), 6, 1)], seal=9)
    b.seal(4).result()
    program = Program("begins").using(client)
    program.source("a").sealed_with("b").persist("out", key=["k"])
    with program.open(client) as running:
        running.run()
    out = client.load("out")
    assert (out.since, out.upper) == (Antichain(3), Antichain(4))
    assert list(out.snapshot(3).rows()) == [(1, 1)]


def test_nothing_of_a_collection_that_is_waited_for_is_read_or_held(client: persist.Client) -> None:
    a, b = made(client, "a", "b")
    a.write([(1, 1)], time=0, seal=1)
    b.write([((k, k), 0, 1) for k in range(1000)], seal=1).result()
    program = Program("waits").using(client)
    program.source("a").sealed_with("b").persist("out", key=["k"])
    with program.open(client) as running:
        running.run()
        assert [source.handle.name for source in running.sources] == ["a"]
        assert client.load("b").holds() == []
        assert "upper['b']" in program.explain()
        a.seal(3).result()
        b.seal(2).result()
        running.run(until=1)
        assert client.load("out").upper == Antichain(2)
        b.drop().result()
        with pytest.raises(SourceLost, match="'b'"):
            running.step()


def test_streams_in_memory_wait_for_each_other_and_pass_early() -> None:
    program = Program("memory")
    a, b = (program.input(name, key=KEY, value=VALUE) for name in "ab")
    seen = a.sealed_with(b).early()
    with program.open() as running:
        running["a"].insert([((1, 1), 0, 1)])
        running["a"].close()
        running.step()
        assert seen.updates()["_early"].to_pylist() == [True]
        running["b"].insert([((7, 7), 0, 1)])
        running["b"].advance_to(1)
        running.step()
        assert seen.updates().to_pylist() == [{"k": 1, "v": 1, "_time": 0, "_diff": 1, "_early": False}]


@settings(max_examples=examples(40))
@given(data=st.data())
def test_whatever_is_sealed_when_outputs_hold_what_recomputing_gives_as_far_as_they_may(data: Any) -> None:
    with persist.open(MemoryBlob(), settings=persist.Settings(background=False)) as client:
        collections = dict(zip("abc", made(client, "a", "b", "c"), strict=True))
        sealed, written = dict.fromkeys("abc", 1), list[tuple[int, int, int]]()
        for collection in collections.values():
            collection.seal(1).result()
        running = counted(client).open(client)
        for _ in range(data.draw(st.integers(1, 8))):
            name = data.draw(st.sampled_from("aabc"))
            updates = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=3))
            rows = [((k, 1), sealed[name] + later, 1) for k, later in updates]
            sealed[name] += data.draw(st.integers(0, 3))
            collections[name].write(rows, seal=sealed[name]).result()
            written += [(k, time, diff) for (k, _), time, diff in rows] if name == "a" else []
            if data.draw(st.booleans()):
                running.run()
            if data.draw(st.integers(0, 3)) == 0:
                running.close()
                running = counted(client).open(client)
        running.run()
        running.close()
        a, b, c = sealed.values()
        assert uppers(client) == {"alone": a, "with-b": min(a, b), "with-all": min(a, b, c), "of-c": c}
        for name, upper in uppers(client).items():
            if name != "of-c":
                for time in range(client.load(name).since.time or 0, upper):
                    want = Counter(k for k, at, _ in written if at <= time)
                    assert dict(client.load(name).snapshot(time).rows()) == want


def test_what_cannot_be_waited_for_is_refused(client: persist.Client) -> None:
    made(client, "a")
    program = Program("waits").using(client)
    a = program.source("a")
    with pytest.raises(persist.InvalidUsage, match="name a stream or a collection to wait for"):
        a.sealed_with()
    out = a.persist("out", key=["k"])
    with pytest.raises(persist.InvalidUsage, match="writes collection 'out'"):
        a.sealed_with("out")
    out.sealed_with("nothing").persist("other", key=["k"])
    with pytest.raises(persist.InvalidUsage, match="reads collection 'nothing'"):
        a.persist("nothing", key=["k"])
    with pytest.raises(SourceLost, match="'nothing': the collection is not there"):
        program.open(client)
    other = Program("writes").using(client)
    other.source("a").persist("nothing", key=["k"])
    with pytest.raises(persist.InvalidUsage, match="'nothing' is written by one and read by another"):
        open_together([program, other], client)
    with pytest.raises(persist.InvalidUsage, match="times of a collection have one dimension"):
        Program("wide", dimensions=2).input("a", key=KEY).sealed_with("a")
