"""What the log may do to a keyed collection (`persist.core.state_rules.keyed_rules`): rules alone, without any
store."""

from typing import Any

import pyarrow as pa
import pytest

from persist.codecs.part.part import Part
from persist.codecs.types.schema import CollectionSchema
from persist.core.errors import Superseded
from persist.core.log import kinds
from persist.core.log.fields import KeyedForm, MachineForm
from persist.core.state_rules.collection_rules import CollectionStep, apply_step, check_contents
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.keyed_rules import PlannedPend, list_due_parts
from persist.errors import (
    FrontierRegression,
    KeyedCollection,
    LateEvents,
    NotKeyed,
    PendingEvents,
    UpdateNotBeyondUpper,
)

ID = "c" * 32
UPSERT = MachineForm("upsert", 1)
SCHEMA = CollectionSchema.of({"k": pa.int64()}, {"at": pa.int64(), "gone": pa.bool_()})


def part(first: int, last: int | None = None, inline: bytes = b"x") -> Part:
    last = first if last is None else last
    return Part(
        inline=inline,
        bytes=1,
        rows=1,
        memory=1,
        checksum="",
        footer=(0, ""),  # type: ignore[arg-type]
        time_min=first,
        time_max=last,
        negatives=0,
        diff_sum=1,
    )


def keyed(*steps: CollectionStep, machine: MachineForm = UPSERT, **declared: Any) -> CollectionState:
    state = apply_step(None, kinds.Create(ID, "users", SCHEMA.to_json(), KeyedForm(machine, **declared)))
    return after(state, *steps)


def after(state: CollectionState, *steps: CollectionStep) -> CollectionState:
    for step in steps:
        state = apply_step(state, step)
        check_contents(state)
    return state


def test_events_wait_beside_the_history_and_a_resolution_puts_updates_in_their_place() -> None:
    state = keyed(kinds.Pend(ID, (part(3), part(4, 8))), kinds.Pend(ID, (part(9),)))
    assert [*state.pending] == [0, 1, 2]
    assert state.history_parts == ()
    state = after(state, kinds.Resolve(ID, (0,), (5,), (0, 1), (part(3),)))
    assert [*state.pending] == [1, 2]  # The second lies on both sides.
    assert (state.upper_times, state.resolved, [*state.numbered]) == ((5,), 5, [3])
    assert state.inline_bytes == 3


def test_a_resolution_of_other_events_than_are_pending_loses() -> None:
    state = keyed(kinds.Pend(ID, (part(3),)))
    late = kinds.Resolve(ID, (0,), (5,), (0,))
    for other in (kinds.Pend(ID, (part(4),)), kinds.Resolve(ID, (0,), (2,)), PlannedPend(ID, 4, 4, None)):
        with pytest.raises(Superseded):
            after(apply_step(state, other), late)
    after(state, kinds.Pend(ID, (part(5),)), late)  # It is not concerned.


def test_a_seal_never_passes_events_that_are_pending() -> None:
    state = keyed(kinds.Pend(ID, (part(3, 8),)))
    assert after(state, kinds.Seal(ID, (3,))).upper == 3
    for upper in ((4,), ()):
        with pytest.raises(PendingEvents, match="upsert"):
            apply_step(state, kinds.Seal(ID, upper))


def test_a_seal_to_the_present_upper_does_nothing_though_a_pending_part_lies_on_both_sides_of_it() -> None:
    state = keyed(kinds.Pend(ID, (part(1, 8),)), kinds.Resolve(ID, (0,), (5,), (0,)))
    assert after(state, kinds.Seal(ID, (5,))) == state
    assert list_due_parts(state, 5) == ()
    assert list_due_parts(state, 6) == (0,)


def test_plain_updates_to_a_keyed_collection_and_events_to_another_are_refused() -> None:
    with pytest.raises(KeyedCollection, match="upsert"):
        keyed(kinds.Append(ID, (part(3),)))
    plain = apply_step(None, kinds.Create(ID, "plain", SCHEMA.to_json()))
    for step in (kinds.Pend(ID, (part(3),)), kinds.Resolve(ID, (0,), (4,)), kinds.AdvanceLateBound(ID, 4)):
        with pytest.raises(NotKeyed, match="write"):
            apply_step(plain, step)


def test_events_at_sealed_times_are_refused() -> None:
    state = keyed(kinds.Seal(ID, (4,)))
    for step in (kinds.Pend(ID, (part(3, 9),)), PlannedPend(ID, 3, 9, None)):
        with pytest.raises(UpdateNotBeyondUpper):
            apply_step(state, step)


def test_since_stays_before_upper() -> None:
    state = keyed(kinds.AllowCompaction(ID, (9,)))
    assert state.since == 0
    assert after(state, kinds.Seal(ID, (4,))).since == 3
    assert after(state, kinds.Seal(ID, ())).since == 9
    background = keyed(
        kinds.AllowCompaction(ID, ()), kinds.Pend(ID, (part(3),)), kinds.Seal(ID, (8,)), resolve="background"
    )
    assert background.since == 0
    assert after(background, kinds.Resolve(ID, (0,), (6,), (0,))).since == 5


def test_in_the_background_a_seal_passes_events_and_what_is_resolved_follows() -> None:
    state = keyed(kinds.Seal(ID, (2,)), kinds.Pend(ID, (part(3),)), kinds.Seal(ID, (8,)), resolve="background")
    assert (state.upper, state.resolved, [*state.pending]) == (8, 2, [0])
    state = after(state, kinds.Resolve(ID, (2,), (8,), (0,), (part(3),)))
    assert (state.upper, state.resolved, [*state.pending]) == (8, 8, [])
    with pytest.raises(Superseded):
        after(state, kinds.Resolve(ID, (2,), (8,), (0,), (part(3),)))


def test_a_resolution_that_seals_nothing_or_goes_back_is_refused() -> None:
    state = keyed(kinds.Seal(ID, (4,)))
    for end in ((4,), (3,)):
        with pytest.raises(FrontierRegression):
            after(state, kinds.Resolve(ID, (4,), end))


def test_updates_at_times_that_are_not_resolved_are_never_written() -> None:
    for wrong in (part(1), part(5)):
        with pytest.raises(ValueError, match="resolve"):
            keyed(kinds.Seal(ID, (2,)), kinds.Resolve(ID, (2,), (5,), (), (wrong,)))


def test_the_late_bound_only_moves_forward_and_what_is_below_it_is_refused() -> None:
    state = keyed(kinds.Pend(ID, (part(1),), watermarks=(3, 20)), order_by=("at",), late_by=5, late_bound=2)
    assert state.late_bound == 15
    assert after(state, kinds.Pend(ID, (part(1),), watermarks=(15, 16))).late_bound == 15
    assert after(state, kinds.AdvanceLateBound(ID, 9)).late_bound == 15
    assert after(state, kinds.AdvanceLateBound(ID, 17)).late_bound == 17
    for late in (14, -(2**63)):
        with pytest.raises(LateEvents):
            after(state, kinds.Pend(ID, (part(1),), watermarks=(late, 30)))
        with pytest.raises(LateEvents):
            after(state, kinds.Resolve(ID, (0,), (3,), (0,), watermarks=(late, 30)))


@pytest.mark.parametrize(
    "declared",
    [
        {"order_by": ("nowhere",)},
        {"tombstone": "nowhere"},
        {"tombstone_value": "x"},
        {"late_by": 3},
        {"late_by": -3, "order_by": ("at",)},
        {"late_bound": 3},
        {"machine": MachineForm("", 1)},
        {"machine": MachineForm("x" * 129, 1)},
        {"machine": MachineForm("upsert", -1)},
    ],
)
def test_a_declaration_that_does_not_fit_its_schema_is_not_one_a_writer_would_make(declared: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        keyed(**declared)
