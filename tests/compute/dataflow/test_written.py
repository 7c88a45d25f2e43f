"""A source that the program writes: computed from before it is durable, and committed with what comes of it."""

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
from persist.core.settings import Tuning
from persist.dataflow import Antichain, Program, Running, col, lit
from persist.errors import InputClosed, OutputConflict
from tests.support.stepped import Stepped
from tests.support.tiers import examples

KEY, VALUE = {"k": pa.int64()}, {"v": pa.int64()}


def counted(client: persist.Client) -> Program:
    program = Program("counted").using(client)
    events = program.source("events", written=True)
    events.group_by("k").agg(n=lit(1).sum(), v=col("v").sum()).persist("totals", key=["k"])
    return program


def events_of(client: persist.Client) -> persist.Collection:
    return client.create_or_load("events", key=KEY, value=VALUE)


def contents(collection: persist.Collection, time: int) -> list[Any]:
    return sorted(collection.snapshot(time).rows())


def test_what_is_given_and_what_comes_of_it_are_one_record(client: persist.Client) -> None:
    events = events_of(client)
    events.write([(1, 1)], time=0, seal=2).result()
    with counted(client).open(client) as running:
        running.run()
        assert running["events"].frontier == Antichain(2)
        with pytest.raises(InputClosed):
            running["events"].insert([((1, 5), 1, 1)])
        running["events"].insert([((1, 5), 2, 1), ((2, 7), 4, 1)])
        running["events"].advance_to(4)
        before = client.engine.seqno
        done = running.step()
        running.run()
        assert done.seqno == client.engine.seqno == before + 1
        totals = client.load("totals")
        assert events.upper == totals.upper == Antichain(4)
        assert contents(totals, 3) == [(1, (2, 6))]
        assert contents(events, 3) == [(1, 1), (1, 5)]
    with counted(client).open(client) as running:
        running["events"].insert([((3, 1), 5, 1)])
        running["events"].advance_to(6)
        running.run()
        assert contents(totals, 5) == [(1, (2, 6)), (3, (1, 1))]


@pytest.mark.parametrize("is_sealed", [False, True])
def test_who_else_writes_what_is_given_is_noticed_and_nothing_is_written(
    client: persist.Client, is_sealed: bool
) -> None:
    events = events_of(client)
    with counted(client).open(client) as running:
        running["events"].insert([((1, 1), 0, 1)])
        running["events"].advance_to(1)
        running.step()
        events.write([(9, 9)], time=1, seal=2 if is_sealed else None).result()
        running["events"].insert([((1, 2), 1, 1)])
        running["events"].advance_to(2)
        with pytest.raises(OutputConflict, match=r"output 'events.*another writer has"):
            running.step()
        assert client.load("totals").upper == Antichain(1)
    events.seal(3).result()
    with counted(client).open(client) as running:
        running["events"].advance_to(5)
        running.run()
        assert contents(client.load("totals"), 4) == [(1, (1, 1)), (9, (1, 9))]


ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 2)), max_size=3)


@settings(max_examples=examples(40))
@given(
    steps=st.lists(
        st.tuples(ROWS, st.integers(0, 2), st.sampled_from(["step", "step", "fail", "doubt", "reopen", "lose"]))
    )
)
def test_whatever_fails_outputs_hold_what_was_given_and_sealed(steps: Any) -> None:
    """Commits fail or are in doubt, programs are closed, and updates that no step has taken are lost."""
    store = Stepped(MemoryBlob())
    options = persist.Settings(background=False, tuning=Tuning(attempts_max=1))

    def fail(what: str) -> None:
        raise (persist.Unavailable if what == "fail" else persist.Indeterminate)("not now")

    with persist.open(store, settings=options) as client:
        events_of(client)
        running: Running = counted(client).open(client)
        upper, given, kept = 0, list[tuple[int, int, int]](), list[tuple[int, int, int]]()
        for rows, later, what in [*steps, ([], 1, "step")]:
            new = [(k, v, upper + at) for k, v, at in rows]
            running["events"].insert([((k, v), time, 1) for k, v, time in new])
            given += new
            upper += later
            running["events"].advance_to(upper)
            if what in ("fail", "doubt") and later:
                (store.before if what == "fail" else store.after)("create", "log/", partial(fail, what))
                with suppress(persist.Unavailable, persist.Indeterminate):
                    running.step()
                assert store.is_done
            if what == "lose":
                sealed = client.load("events").upper.time or 0
                given = [row for row in given if row[2] < sealed]
                upper = sealed
            else:
                running.run()
                kept = [row for row in given if row[2] < upper]
            if what in ("reopen", "lose"):
                given = [row for row in given if row[2] < upper]  # What is not sealed is the giver's to give again.
                running.close()
                running = counted(client).open(client)
                assert running["events"].frontier == Antichain(upper)
        running.close()
        assert client.load("events").upper == client.load("totals").upper == Antichain(upper)
        for time in range(client.load("totals").since.time or 0, upper):
            there = [(k, v) for k, v, at in kept if at <= time]
            assert contents(client.load("events"), time) == sorted(there)
            counts = Counter(k for k, _ in there)
            wanted = [(k, (n, sum(v for other, v in there if other == k))) for k, n in sorted(counts.items())]
            assert contents(client.load("totals"), time) == wanted


def test_what_cannot_be_written_is_refused(client: persist.Client) -> None:
    events_of(client)
    client.create_or_load("keyed", key=KEY, value=VALUE, keyed=persist.Keyed())
    client.create_or_load("coded", key=persist.Json(), value=None)
    program = Program("refused").using(client)
    for name in ("keyed", "coded"):
        with pytest.raises(persist.InvalidUsage, match="is keyed or has codecs"):
            program.source(name, written=True)
    with pytest.raises(persist.InvalidUsage, match="leave schema, as_of and unsealed out"):
        program.source("events", written=True, unsealed=True)
    with pytest.raises(persist.InvalidUsage, match="written=1 is neither"):
        program.source("events", written=1)  # type: ignore[arg-type]
    stream = program.source("events", written=True)
    with pytest.raises(persist.InvalidUsage, match="reads collection 'events'"):
        stream.persist("events", key=["k"])
    with pytest.raises(persist.InvalidUsage, match="writes collection 'events'"):
        program.source("events")
