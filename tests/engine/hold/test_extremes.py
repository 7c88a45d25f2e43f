"""Clocks that jump both ways under leases, and a million holds on one collection."""

import random
import uuid
from collections.abc import Iterable

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

import persist
from persist.blob.protocol import MemoryBlob
from persist.core.log import kinds
from persist.core.log.framing import encode_framed
from persist.core.state_rules.collection_rules import CollectionStep, apply_step, merge_holds
from persist.core.state_rules.contents import CollectionState, Held
from persist.engine.follow.state_objects import StateObject
from persist.errors import LeaseExpired
from tests.engine.hold.test_leases import collection, opened, since
from tests.support.clocks import ImpatientClock
from tests.support.tiers import examples

LEASE_S = 30.0
DAY_S = 86_400.0
MILLION = 1_000_000


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_clocks_do_a_reader_reads_what_it_held_or_is_told_that_its_lease_ended(seed: int) -> None:
    """Reader and compactor have clocks of their own, whose wall time jumps by up to a year either way."""
    chance, blob = random.Random(seed), MemoryBlob()
    reads, compacts = ImpatientClock(), ImpatientClock()
    outcomes = set()
    with opened(blob, reads, lease_s=LEASE_S) as reader, opened(blob, compacts, lease_s=LEASE_S) as compactor:
        written = collection(compactor)
        expected = {as_of: written.snapshot(as_of).count() for as_of in range(19)}
        for _ in range(12):
            as_of = since(written) or 0
            snapshot = reader.load("c").snapshot(as_of)
            written.allow_compaction(as_of + 1).result()
            for _ in range(chance.randrange(1, 6)):
                clock = chance.choice((reads, compacts))
                clock.jump(chance.choice((-1, 1)) * chance.choice((0.01, 1, LEASE_S, 365 * DAY_S)))
                clock.sleep(chance.choice((0.1, LEASE_S / 2, 3 * LEASE_S)))
                if chance.random() < 0.5:
                    compactor.maintain()
                    written.compact()
                    compactor.gc()
                try:
                    assert snapshot.count() == expected[as_of]
                    outcomes.add("read")
                except LeaseExpired:
                    outcomes.add("expired")
                    break
            snapshot.close()
    assert "read" in outcomes


@pytest.mark.thorough
@pytest.mark.costly("a million holds")
def test_a_collection_with_a_million_holds_is_held_and_compacted() -> None:
    blob = MemoryBlob()
    with persist.open(blob, settings=persist.Settings(background=False)) as client:
        orders = client.create_or_load("orders", key={"k": int}, value=None)
        orders.write([((1, None), 0, 1)], seal=10).result()
        contents = orders.handle.contents()
    holds = {f"consumer {n}": Held(1 + n % 7) for n in range(MILLION)}
    contents = msgspec.structs.replace(contents, holds=holds)
    for step in (
        kinds.SetHold(contents.id, "one more", 3),
        kinds.SetHold(contents.id, "one more", 4, None, 3),
        kinds.Seal(contents.id, (11,)),
        kinds.AllowCompaction(contents.id, (9,)),
        kinds.ReleaseHold(contents.id, "one more", 4),
    ):
        made = apply_step(contents, step)
        assert made is not None
        contents = made
    assert (len(contents.holds), contents.since_times) == (MILLION, (1,))
    assert len(encode_framed(StateObject(location=uuid.uuid4().hex, collection=contents))) > 10 * MILLION


def contents_of(*holds: tuple[str, int]) -> CollectionState:
    with persist.open(MemoryBlob(), settings=persist.Settings(background=False)) as client:
        orders = client.create_or_load("orders", key={"k": int}, value=None)
        orders.write([((1, None), 0, 1)], seal=10).result()
        contents = orders.handle.contents()
    return msgspec.structs.replace(contents, holds={name: Held(time) for name, time in holds})


CONTENTS = contents_of(("a", 2), ("b", 4))
DRAWN = st.lists(
    st.tuples(st.sampled_from(["set"] * 8 + ["release", "allow"]), st.sampled_from("abcdef"), st.integers(0, 2)),
    max_size=12,
)


@given(DRAWN, st.integers(0, 6), st.integers(0, 60))
@settings(max_examples=examples(600))
def test_holds_that_are_set_together_come_to_what_they_do_one_by_one(
    drawn: list[tuple[str, str, int]], allowed: int, wrong: int
) -> None:
    # Since may be behind what allows it to go on, as after an evolution.
    contents = msgspec.structs.replace(CONTENTS, allowed_times=(allowed,))
    times, steps = {name: held.time for name, held in contents.holds.items()}, list[CollectionStep]()
    for number, (kind, hold, more) in enumerate(drawn):
        if kind == "set":
            expected = times.get(hold)
            times[hold] = (4 if expected is None else expected) + more
            expected = 99 if number == wrong else expected
            steps.append(kinds.SetHold(CONTENTS.id, hold, times[hold], None, expected, [None, 1, 1][more]))
        elif kind == "release":
            times.pop(hold, None)
            steps.append(kinds.ReleaseHold(CONTENTS.id, hold))
        else:
            steps.append(kinds.AllowCompaction(CONTENTS.id, (allowed + more,)))

    def outcome(steps: Iterable[CollectionStep]) -> object:
        made = contents
        try:
            for step in steps:
                made = apply_step(made, step)
        except (ValueError, persist.PersistError) as error:
            return type(error), str(error)
        return made

    assert outcome(merge_holds(steps)) == outcome(steps)


def test_many_holds_in_one_commit_are_set_by_one_step() -> None:
    """Each step copies the table of holds."""
    with persist.open(MemoryBlob(), settings=persist.Settings(background=False)) as client:
        orders = client.create_or_load("orders", key={"k": int}, value=None)
        orders.write([((1, None), 0, 1)], seal=10).result()
        steps = [kinds.SetHold(orders.id, f"consumer {n}", n % 7) for n in range(2_000)]
        assert len([*merge_holds(steps)]) == 1
        orders.handle.submit("hold", steps).result()
        assert len(orders.handle.contents().holds) == 2_000
