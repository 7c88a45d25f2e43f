"""A listen looks at the parts that it has not read, and finds the same as if it looked at all of them."""

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import persist
from persist.blob.protocol import MemoryBlob
from persist.codecs.part.part import Part
from persist.codecs.part.stream import encode_parts
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.updates import to_updates
from persist.core.log import kinds
from persist.core.state_rules.contents import CollectionState, append_parts, compute_replacement
from persist.engine.read.planning.snapshot_plan import UnreadParts
from tests.support.clocks import ImpatientClock

SCHEMA = CollectionSchema.of({"k": pa.int64()}, None)
((_, PART),) = encode_parts(to_updates([((1, None), 0, 1)], SCHEMA), SCHEMA)


def part(first: int, length: int) -> Part:
    return msgspec.structs.replace(PART, time_min=first, time_max=first + length)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=3)),
        st.tuples(st.just("merge"), st.sets(st.integers(0, 9), min_size=1, max_size=4)),
        st.tuples(st.just("read"), st.integers(0, 3)),
    ),
    max_size=25,
)


@given(STEPS)
def test_what_is_unread_is_what_all_parts_would_give(steps: list[tuple[str, object]]) -> None:
    contents, unread, lower = CollectionState("c" * 32, "c", SCHEMA.to_json(), upper_times=(1000,)), UnreadParts(), 0
    for kind, what in steps:
        if kind == "append":
            assert isinstance(what, list)
            contents = append_parts(contents, tuple(part(lower + first, length) for first, length in what))
        elif kind == "merge":
            assert isinstance(what, set)
            gone = [run for at, run in enumerate(contents.history) if at in what]
            parts = [each for run in gone for each in contents.list_parts(run)]
            if not parts:
                continue
            first, last = min(each.time_min for each in parts), max(each.time_max for each in parts)
            total = sum(each.diff_sum for each in parts)
            merged = msgspec.structs.replace(part(first, last - first), rows=total, diff_sum=total)
            step = kinds.Replace("c" * 32, (merged,), removed_runs=tuple(run[0] for run in gone), runs=((-1,),))
            contents, _ = compute_replacement(contents, step)
        else:
            assert isinstance(what, int)
            lower += what
            expected = [each for each in contents.history_parts if each.time_max >= lower]
            assert [*unread.select_from_frontier(contents, lower)] == expected


def test_a_step_looks_at_no_part_that_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with persist.open(MemoryBlob(), clock=ImpatientClock(), settings=persist.Settings(background=False)) as client:
        collection = client.create_or_load("c", key={"k": int}, value=None)
        listen = collection.listen()
        for time in range(5):
            collection.write([((time, None), time, 1)], seal=time + 1).result()
        assert len(next(listen).updates) == 5
        looked: list[int] = []
        before = CollectionState.list_parts

        def parts_of(contents: CollectionState, numbers: object) -> tuple[Part, ...]:
            found = before(contents, numbers)  # type: ignore[arg-type]
            looked.append(len(found))
            return found

        monkeypatch.setattr(CollectionState, "list_parts", parts_of)
        for time in range(5, 9):
            collection.write([((time, None), time, 1)], seal=time + 1).result()
            looked.clear()
            assert next(listen).updates["k"].to_pylist() == [time]
            assert sum(looked) == 1
        collection.compact()
        collection.write([((9, None), 9, 1)], seal=10).result()
        assert next(listen).updates["k"].to_pylist() == [9]


@pytest.mark.parametrize(
    ("is_remote", "poll_s", "longest"), [(False, "by store", 0.005), (True, "by store", 1.0), (True, 0.2, 0.2)]
)
def test_who_waits_looks_often_where_that_costs_little(
    is_remote: bool, poll_s: Any, longest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryBlob, "is_remote", is_remote, raising=False)
    with persist.open(MemoryBlob(), settings=persist.Settings(background=False, poll_s=poll_s)) as client:
        assert client.engine.follower.longest_pause_s == longest


def test_a_pause_of_nothing_is_refused() -> None:
    with pytest.raises(persist.InvalidUsage, match="poll_s"):
        persist.Settings(poll_s=0)
