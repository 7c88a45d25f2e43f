"""The directory in memory: a change copies a shard, never all of it, and nobody sees another's changes."""

import tracemalloc
import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.core.log import kinds
from persist.core.log.kinds import Mutation
from persist.core.log.records import Record
from persist.core.state_rules import frozen_map
from persist.core.state_rules.draft import Draft
from persist.core.state_rules.frozen_map import FrozenMap, MapChanges, extend_map
from persist.core.state_rules.state import State, apply_record

SCHEMA = {"key": {"fields": [["k", "int64"]]}, "value": None}
KEYS = st.sampled_from([str(n) for n in range(600)])


@given(st.lists(st.dictionaries(KEYS, st.none() | st.integers(), max_size=8), max_size=20))
def test_a_frozen_map_is_what_a_dict_would_be_and_copies_leave_it_alone(steps: list[dict[str, int | None]]) -> None:
    expected: dict[str, int] = {}
    versions: list[tuple[FrozenMap[int], dict[str, int]]] = [(FrozenMap(), {})]
    for changes in steps:
        expected = {**expected, **changes}  # type: ignore[dict-item]
        expected = {key: value for key, value in expected.items() if value is not None}
        versions.append((versions[-1][0].with_changes(changes), expected))
    for found, model in versions:
        assert dict(found) == model
        assert len(found) == len(model)
        assert all(
            found.get(str(n)) == model.get(str(n)) and (str(n) in found) == (str(n) in model) for n in range(600)
        )
        assert found == FrozenMap(model)


def test_changes_hide_what_is_below_them() -> None:
    below = FrozenMap({"stays": 1, "goes": 2, "changes": 3})
    lower = MapChanges(below)
    lower.update({"goes": None, "new": 4})
    upper = MapChanges(lower)
    upper.update({"changes": 5, "new": None})
    assert [upper.look_up(key) for key in ("stays", "goes", "changes", "new", "never")] == [1, None, 5, None, None]
    assert dict(upper.iterate_in_memory()) == {"stays": 1, "changes": 5}
    assert dict(lower.iterate_in_memory()) == {"stays": 1, "changes": 3, "new": 4}


def record(state: State, *mutations: Mutation) -> Record:
    return Record(
        location="f" * 32,
        seqno=state.seqno + 1,
        commit=uuid.uuid4().hex,
        previous=state.commit,
        writer="a test",
        epoch=None,
        written_ms=0,
        mutations=mutations,
    )


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4)), max_size=40))
def test_maps_that_grow_from_any_earlier_one_are_what_dicts_would_be(steps: list[tuple[int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frozen_map, "GROWN_MAX", 5)
        versions: list[tuple[Mapping[int, str], dict[int, str]]] = [({}, {})]
        for step, (at, count) in enumerate(steps):
            found, model = versions[-1 - at % len(versions)]
            new = {len(model) + n: f"{step}, {n}" for n in range(count)}
            versions.append((extend_map(found, new), {**model, **new}))
    for found, model in versions:
        assert (found == model, len(found), [*found.values()]) == (True, len(model), [*model.values()])
        assert ([*found.items()], {**found}) == ([*model.items()], model)


def location_of(collections: int) -> tuple[State, list[str]]:
    ids = [uuid.uuid4().hex for _ in range(collections)]
    state = State()
    return apply_record(state, record(state, *(kinds.Create(id_, f"c{n}", SCHEMA) for n, id_ in enumerate(ids)))), ids


def allocated(work: Any) -> int:
    work()  # What is made once is made now.
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("collections", [10, 10_000])
def test_a_commit_to_one_collection_does_not_copy_what_is_known_of_all(collections: int) -> None:
    state, ids = location_of(collections)
    step = kinds.Seal(ids[0], (5,))
    following = record(state, step)
    assert allocated(lambda: apply_record(state, following)) < 40_000
    assert allocated(lambda: Draft(state).extend([step])) < 40_000
    assert apply_record(state, following).entries[ids[0]].pending[-1] == step
    assert len(apply_record(state, following).entries) == collections
    entry = state.entries[ids[1]]
    assert allocated(lambda: state.replace_entry(entry)) < 40_000
