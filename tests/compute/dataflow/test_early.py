"""What passes before its time is complete: it is shown as such, changes nothing that is complete, and is taken back."""

import threading
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import persist
from persist.blob.protocol import MemoryBlob
from persist.dataflow import Captured, Program, col, lit
from tests.compute.dataflow.oracle import Updates, updates_of
from tests.compute.dataflow.programs import OPERATORS, build
from tests.compute.dataflow.schedule import captured, complete, drive, updates_strategy
from tests.support.stepped import WAIT_S, Stepped
from tests.support.tiers import examples

KEY, VALUE = {"k": pa.int64()}, {"v": pa.int64()}


def shown(seen: Captured, *, early: bool | None = None) -> Counter[tuple[Any, ...]]:
    """Return updates as (columns …, time, diff), how often each is shown; only those that are early, or are not."""
    rows = [tuple(row.values()) for row in seen.updates().to_pylist()]
    return Counter(row[:-1] for row in rows if early is None or row[-1] == early)


def test_operators_without_state_pass_on_what_is_not_complete_and_others_do_not() -> None:
    program = Program("early")
    given = program.input("a", key=KEY, value=VALUE)
    mapped = given.filter(col("v") > 1).map(k=col("k"), v=col("v") * 10)
    passing, counted = mapped.early(), mapped.group_by("k").count().early()
    with program.open() as running:
        running["a"].insert([((1, 1), 0, 1), ((1, 2), 0, 1), ((2, 3), 1, 1)])
        running.step()
        assert shown(passing, early=True) == Counter([(1, 20, 0, 1), (2, 30, 1, 1)])
        assert not shown(counted)
        running["a"].insert([((1, 2), 0, -1), ((1, 4), 0, 1)])
        running["a"].advance_to(1)
        running.step()
        assert shown(passing, early=False) == Counter([(1, 40, 0, 1)])
        assert shown(passing, early=True) == Counter([(2, 30, 1, 1)])
        assert shown(counted) == shown(counted, early=False) == Counter([(1, 1, 0, 1)])
        assert passing.rows() == [((1, 40), 0, 1)]
        assert passing.take().num_rows == 2
        assert shown(passing) == Counter([(2, 30, 1, 1)])


def test_a_step_that_is_limited_counts_times_that_passed_early() -> None:
    program = Program("early")
    given = program.input("a", key=KEY, value=VALUE)
    given.early()
    total = given.group_by().agg(v=col("v").sum()).capture()
    with program.open() as running:
        running["a"].insert([((1, 1), time, 1) for time in range(5)])
        running.step()
        running["a"].advance_to(5)
        running.step(times=2)
        assert {row[1] for row in total.rows()} == {0, 1}
        running.step()
        assert {row[1] for row in total.rows()} == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@settings(max_examples=examples(40))
@given(data=st.data())
def test_what_passes_early_adds_up_to_what_is_complete_at_the_end(dimensions: int, data: Any) -> None:
    choice = st.tuples(st.integers(0, len(OPERATORS) - 1), st.lists(st.integers(0, 5), min_size=3, max_size=3))
    choices = data.draw(st.lists(choice, min_size=1, max_size=4), label="operators")
    program, streams = build(dimensions, 2, choices)
    seen = [each.stream.early() for each in streams]
    probes = [each.stream.probe() for each in streams]
    inputs = [data.draw(updates_strategy(dimensions, 6), label=f"in{number}") for number in range(2)]
    with program.open(optimise=data.draw(st.booleans())) as running:
        drive(data.draw, running, inputs, dimensions, data.draw(st.integers(0, 4), label="steps"))
    updates = [updates_of(each) for each in inputs]
    for stream, early, probe in zip(streams, seen, probes, strict=True):
        assert probe.frontier is not None
        assert captured(early.rows()) == complete(stream.of(updates), probe.frontier), stream.stream.node
        for row in early.updates().to_pylist():
            time = tuple(value for name, value in row.items() if name.startswith("_time"))
            is_early = probe.frontier.has_beyond(time if dimensions > 1 else time[0])
            assert row["_early"] == is_early


def summed(rows: Counter[tuple[Any, ...]]) -> Updates:
    return updates_of(((row[:-2]), (row[-2],), row[-1] * count) for row, count in rows.items())


def opened(client: persist.Client, *, output: bool = True) -> tuple[Program, Captured, Captured]:
    program = Program("ahead").using(client)
    events = program.source("events", unsealed=True)
    seen = events.filter(col("v") != 0).map(k=col("k"), v=col("v") + 1).early()
    totals = events.group_by("k").agg(n=lit(1).sum(), v=col("v").sum())
    if output:
        totals.persist("totals", key=["k"])
    return program, seen, totals.capture()


def test_a_source_gives_what_is_written_before_it_is_sealed_and_outputs_wait(client: persist.Client) -> None:
    events = client.create_or_load("events", key=KEY, value=VALUE)
    events.write([(1, 1)], time=0, seal=1).result()
    program, seen, totals = opened(client)
    with program.open(client) as running:
        running.run()
        events.write([((1, 2), 1, 1), ((2, 3), 3, 1)]).result()
        running.step()
        assert shown(seen, early=True) == Counter([(1, 3, 1, 1), (2, 4, 3, 1)])
        assert client.load("totals").upper == persist.Antichain(1)
        events.seal(2).result()
        running.step()
        assert shown(seen, early=True) == Counter([(2, 4, 3, 1)])
        assert client.load("totals").upper == persist.Antichain(2)
        assert ((1, 2, 3), 1, 1) in totals.rows()
        events.write([(3, 9)], time=2).result()
        events.seal(persist.Antichain()).result()
        running.step()
        assert not shown(seen, early=True)
        running.rehearse()
        with pytest.raises(persist.InvalidUsage):
            running.step()
    assert sorted(client.load("totals").snapshot(3).rows()) == [(1, (2, 3)), (2, (1, 3)), (3, (1, 9))]


def stop_here(asked: threading.Event, goes_on: threading.Event) -> None:
    asked.set()
    goes_on.wait(WAIT_S)


def test_what_is_under_way_is_seen_before_it_is_durable_and_taken_back_if_it_fails(blob: MemoryBlob) -> None:
    store = Stepped(blob)
    with persist.open(store) as client, persist.open(blob) as other:
        events = client.create_or_load("events", key=KEY, value=VALUE)
        events.write([(1, 1)], time=0, seal=1).result()
        program, seen, _ = opened(client)
        with program.open(client) as running:
            running.run()
            for is_sealed_by_another in (False, True):
                asked, goes_on = threading.Event(), threading.Event()
                store.before("create", "log/", partial(stop_here, asked, goes_on))
                time = 2 if is_sealed_by_another else 1
                write = events.write([((2, 7), time, 1)])
                asked.wait(WAIT_S)
                running.step()
                assert shown(seen, early=True)[2, 8, time, 1] == 1
                assert not write.done()
                if is_sealed_by_another:
                    other.load("events").seal(5).result()
                goes_on.set()
                with suppress(persist.errors.UpdateNotBeyondUpper):
                    write.result()
                assert (write.exception() is not None) == is_sealed_by_another
                running.step()
                assert store.is_done
            assert summed(shown(seen)) == {((1, 2), (0,)): 1, ((2, 8), (1,)): 1}
        assert client.load("totals").upper == persist.Antichain(5)
        assert sorted(client.load("totals").snapshot(4).rows()) == [(1, (1, 1)), (2, (1, 7))]


CALLS = st.tuples(
    st.sampled_from(["write", "write", "large", "other", "late", "seal", "compact", "step", "reopen"]),
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 3), st.sampled_from([1, 1, -1])), max_size=4
    ),
)


@settings(max_examples=examples(60))
@given(calls=st.lists(CALLS, max_size=12))
def test_at_every_moment_a_source_has_given_what_is_written_and_outputs_hold_what_is_sealed(calls: Any) -> None:
    """Against a list of updates: whatever is sealed, refused and compacted."""
    blob = MemoryBlob()
    with persist.open(blob, settings=persist.Settings(background=False)) as client, persist.open(blob) as other:
        events = client.create_or_load("events", key=KEY, value=VALUE)
        events.seal(1).result()
        program, seen, _ = opened(client)
        running = program.open(client)
        running.run()
        upper, written, begun = 1, list[tuple[int, int, int, int]](), 0
        for call, rows in [*calls, ("step", [])]:
            updates = [((k, v), upper + later, diff) for k, v, later, diff in rows]
            match call:
                case "write" | "other" | "large":
                    if call == "large":  # It is uploaded before its record is made.
                        updates = updates * 900
                    (events if call != "other" else other.load("events")).write(updates).result()
                    written += [(*pair, time, diff) for pair, time, diff in updates]
                case "late":
                    assert events.write([((9, 9), upper - 1, 1)]).exception() is not None
                case "seal":
                    upper += len(rows)
                    events.seal(upper).result()
                case "compact":
                    events.compact()
                case "reopen":
                    running.close()
                    program, seen, _ = opened(client)
                    running = program.open(client)
                    begun = upper - 1
            running.run()
            want = updates_of(((k, v + 1), (max(time, begun),), diff) for k, v, time, diff in written if v)
            assert summed(shown(seen)) == want
            totals = client.load("totals")
            assert totals.upper == persist.Antichain(upper)
        early = updates_of(((k, v + 1), (time,), diff) for k, v, time, diff in written if v and time >= upper)
        assert summed(shown(seen, early=True)) == early
        running.close()


def test_who_may_only_read_sees_what_is_durable_and_texts_that_are_in_no_sealed_record(blob: MemoryBlob) -> None:
    with persist.open(blob) as client, persist.open(blob, mode="read") as reader:
        words = client.create_or_load("words", key={"word": pa.string()}, value=None)
        words.seal(1).result()
        program = Program("reads").using(reader)
        source = program.source("words", unsealed=True)
        seen, short = source.early(), source.filter(col("word") != "long").capture()
        with program.open(reader) as running:
            running.run()
            words.write([(("a", None), 1, 1), (("long", None), 1, 1), (("b", None), 2, 1)]).result()
            running.run()
            assert shown(seen, early=True) == Counter([("a", 1, 1), ("long", 1, 1), ("b", 2, 1)])
            words.write([(("long", None), 1, -1)]).result()
            words.compact()
            running.run()
            assert shown(seen, early=True) == Counter([("a", 1, 1), ("b", 2, 1)])
            words.seal(3).result()
            running.run()
            assert sorted(short.rows()) == [(("a",), 1, 1), (("b",), 2, 1)]
            assert shown(seen) == shown(seen, early=False) == Counter([("a", 1, 1), ("b", 2, 1)])


def test_what_cannot_be_read_ahead_is_refused(client: persist.Client) -> None:
    client.create_or_load("keyed", key=KEY, value=VALUE, keyed=persist.Keyed())
    program = Program("ahead").using(client)
    program.source("keyed", unsealed=True).capture()
    with pytest.raises(persist.InvalidUsage, match="'keyed' is keyed: its events become updates when"):
        program.open(client)
    with pytest.raises(persist.InvalidUsage, match="unsealed='yes' is neither True nor False"):
        program.source("keyed", unsealed="yes")  # type: ignore[arg-type]
    a = program.input("a", key=KEY, value=VALUE)
    with pytest.raises(persist.InvalidUsage, match=r"early: .* is inside an iteration"):
        a.iterate(lambda inside: (inside.early(), inside.distinct())[1])
