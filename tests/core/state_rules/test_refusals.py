"""What the rules refuse of records and of operations that are not in the log yet."""

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from persist.codecs.evolution import evolve_schema
from persist.codecs.part.part import Part
from persist.codecs.part.stream import encode_parts
from persist.codecs.types.schema import TIME_MAX, CollectionSchema
from persist.codecs.updates.updates import to_updates
from persist.core.errors import Superseded
from persist.core.log import kinds
from persist.core.log.fields import KeyedForm, Keyframe, MachineForm
from persist.core.log.kinds import Mutation
from persist.core.log.records import Record, Submitted
from persist.core.names import VIEW_HOLD
from persist.core.state_rules.collection_rules import ExpectDefinition, ExpectParts, apply_step
from persist.core.state_rules.contents import CollectionState, check_runs, compute_replacement, get_last_sealed
from persist.core.state_rules.draft import Draft
from persist.core.state_rules.location import Dropped, LocationState, check_uploaded
from persist.core.state_rules.state import State, apply_record
from persist.errors import (
    AsOfNotSealed,
    CollectionExists,
    ColumnsNeeded,
    HoldMoved,
    InvalidUsage,
    LeaseExpired,
    UploadExpired,
    ViewRedefined,
)

ID, OTHER = "0" * 32, "1" * 32
LEASE, OTHER_LEASE = "a" * 32, "b" * 32
HOLD = "c" * 32
SCHEMA = CollectionSchema.of({"k": pa.int64()}, None)
CREATED = kinds.Create(ID, "c", SCHEMA.to_json())


def record(*mutations: Mutation, submitted: tuple[Submitted, ...] = (), seqno: int = 0) -> Record:
    said: dict[str, Any] = {"submitted": submitted} if submitted else {}
    return Record(
        location="f" * 32,
        seqno=seqno,
        commit="e" * 32,
        previous=None if seqno == 0 else "e" * 32,
        writer="a test",
        epoch=None,
        written_ms=0,
        mutations=mutations,
        **said,
    )


def contents_after(*mutations: Mutation) -> CollectionState:
    contents = apply_record(State(), record(CREATED, *mutations)).entries[ID].contents
    assert contents is not None
    return contents


def part(number: int, time: int) -> Part:
    [(_, part)] = encode_parts(to_updates([((1, None), time, 1)], SCHEMA), SCHEMA)
    return msgspec.structs.replace(part, blob=f"part/{ID}/{0:020d}-{number:032x}.parquet", inline=b"")


def test_a_name_and_an_id_are_given_once() -> None:
    draft = Draft(State())
    draft.extend([CREATED])
    for again in (kinds.Create(OTHER, "c", SCHEMA.to_json()), kinds.Create(ID, "d", SCHEMA.to_json())):
        with pytest.raises(CollectionExists):
            draft.extend([again])
    assert draft.extend([kinds.Create(OTHER, "d", SCHEMA.to_json())])


def test_a_hold_lives_by_one_lease_which_is_there() -> None:
    draft = Draft(State())
    draft.extend([CREATED, *(kinds.GrantLease(lease, "a test", 1) for lease in (LEASE, OTHER_LEASE))])
    for _ in range(2):
        assert draft.extend([kinds.SetHold(ID, HOLD, 0, lease=LEASE)])
    with pytest.raises(ValueError, match="lives by another lease"):
        draft.extend([kinds.SetHold(ID, HOLD, 0, lease=OTHER_LEASE)])
    assert draft.extend([kinds.SetHold(ID, "d" * 32, 0, lease=OTHER_LEASE)])
    with pytest.raises(LeaseExpired):
        draft.extend([kinds.SetHold(ID, HOLD, 0, lease="9" * 32)])


def test_a_record_holds_no_operations_of_a_submitter_after_a_gap() -> None:
    for first in (1, 4, 5):
        apply_record(State(), record(submitted=(Submitted(OTHER, first, 4),)))
    with pytest.raises(ValueError, match="begins more than one after its end"):
        apply_record(State(), record(submitted=(Submitted(OTHER, 1, 4), Submitted(ID, 6, 4))))


def test_the_last_sealed_time_lies_before_upper_and_is_the_last_of_all_where_that_is_empty() -> None:
    assert get_last_sealed(contents_after(kinds.Seal(ID, (5,)))) == 4
    assert get_last_sealed(contents_after(kinds.Seal(ID, ()))) == TIME_MAX


def test_a_compaction_uses_all_that_it_brings() -> None:
    contents = contents_after(kinds.Append(ID, (part(1, 0), part(2, 1))), kinds.Seal(ID, (5,)))
    firsts = tuple(run[0] for run in contents.history)
    merged = msgspec.structs.replace(part(3, 0), rows=2, diff_sum=2)
    fitting = kinds.Replace(
        ID, (merged,), removed_runs=firsts, runs=((-1,),), unused=(part(1, 0).blob, part(2, 1).blob)
    )
    after, unused = compute_replacement(contents, fitting)
    assert after.history == ((contents.next_number,),)
    assert unused == fitting.unused
    with pytest.raises(ValueError, match="it brings parts that it does not use"):
        compute_replacement(contents, msgspec.structs.replace(fitting, parts=(merged, part(4, 0))))


def test_a_condition_on_parts_holds_until_another_part_comes() -> None:
    known = contents_after(kinds.Append(ID, (part(1, 0),)))
    after = apply_record(State(), record(CREATED, kinds.Append(ID, (part(1, 0),))))
    assert Draft(after).extend([ExpectParts(ID, known.next_number)])
    with pytest.raises(Superseded):
        Draft(after).extend([ExpectParts(ID, known.next_number - 1)])


def test_events_that_were_written_with_a_schema_that_the_collection_never_had_are_refused() -> None:
    keyed = msgspec.structs.replace(CREATED, keyed=KeyedForm(MachineForm("upsert", 1)))
    apply_record(State(), record(keyed, kinds.Pend(ID, (part(1, 0),))))
    with pytest.raises(ValueError, match="it has schema version 2, and the collection has 1 to 1"):
        apply_record(State(), record(keyed, kinds.Pend(ID, (msgspec.structs.replace(part(1, 0), schema=2),))))


def test_a_definition_of_a_view_follows_the_one_before_it() -> None:
    state = apply_record(State(), record(msgspec.structs.replace(CREATED, view={"number": 1, "sql": "a"})))
    assert Draft(state).extend([kinds.Redefine(ID, {"number": 2, "sql": "b"}, (0,))])
    for number in (1, 3):
        with pytest.raises(ViewRedefined):
            Draft(state).extend([kinds.Redefine(ID, {"number": number, "sql": "b"}, (0,))])


def test_a_hold_may_stand_where_upper_may_and_no_later() -> None:
    draft = Draft(State())
    draft.extend([CREATED, kinds.SetHold(ID, "last", TIME_MAX + 1)])
    with pytest.raises(InvalidUsage, match="hold time"):
        draft.extend([kinds.SetHold(ID, "later", TIME_MAX + 2)])


def test_a_hold_that_was_released_in_a_draft_can_be_set_anew() -> None:
    draft = Draft(State())
    draft.extend([CREATED, kinds.SetHold(ID, "h", 4)])
    with pytest.raises(HoldMoved):
        draft.extend([kinds.SetHold(ID, "h", 4)])
    draft.extend([kinds.ReleaseHold(ID, "h", 4)])
    assert draft.extend([kinds.SetHold(ID, "h", 2)])


def test_a_part_of_a_keyframe_has_no_later_times() -> None:
    one, other = part(1, 0), part(2, 3)
    contents = contents_after(kinds.Append(ID, (one, other)), kinds.Seal(ID, (5,)))
    keyframe = Keyframe(3, (-1, -2))
    after, _ = compute_replacement(contents, kinds.Replace(ID, (part(3, 0), part(4, 3)), keyframes=(keyframe,)))
    check_runs(after)
    with pytest.raises(ValueError, match="a part of the keyframe as of 2 has later times"):
        check_runs(msgspec.structs.replace(after, keyframes=(msgspec.structs.replace(after.keyframes[0], as_of=2),)))


def test_a_condition_on_a_definition_holds_until_there_is_another() -> None:
    draft = Draft(State())
    draft.extend([msgspec.structs.replace(CREATED, view={"number": 2, "sql": "a"})])
    assert draft.extend([ExpectDefinition(ID, 2)])
    for number in (1, 3):
        with pytest.raises(ViewRedefined):
            draft.extend([ExpectDefinition(ID, number)])


def test_an_upload_from_before_the_floor_and_one_that_waits_to_be_deleted_come_too_late() -> None:
    late = part(1, 0)
    append = kinds.Append(ID, (late,))
    dropped = Dropped(0, 0, ID, blobs=(late.blob,))
    check_uploaded(LocationState(), append)
    check_uploaded(LocationState(dropped=(msgspec.structs.replace(dropped, collection=OTHER),)), append)
    for control in (LocationState(upload_floor=1), LocationState(dropped=(dropped,))):
        with pytest.raises(UploadExpired):
            check_uploaded(control, append)


def test_a_column_that_a_view_reads_is_not_dropped() -> None:
    two = CollectionSchema.of({"k": pa.int64()}, {"a": pa.int64(), "b": pa.int64()})
    table = kinds.Create(ID, "c", two.to_json())
    view = kinds.Create(OTHER, "v", SCHEMA.to_json(), view={"sql": "a"})
    column = two.ids[two.names.index("b")]
    holds = [
        kinds.SetHold(ID, "a reader", 0, columns=(column,)),
        kinds.SetHold(ID, VIEW_HOLD + OTHER, 0, columns=(column,)),
    ]
    without = kinds.Evolve(
        ID, evolve_schema(two, add={}, defaults={}, drop=["b"], rename={}, widen={}, reorder=None).to_json()
    )
    free = apply_record(State(), record(table, view, holds[0]))
    assert Draft(free).extend([without])
    with pytest.raises(ColumnsNeeded) as caught:
        Draft(apply_record(State(), record(table, view, *holds))).extend([without])
    assert caught.value.readers == {"b": ["v"]}


def test_a_tag_names_the_last_sealed_time_and_none_that_is_not_sealed() -> None:
    contents = CollectionState(ID, "c", SCHEMA.to_json(), upper_times=(7,))
    for time in (7, 8):
        with pytest.raises(AsOfNotSealed):
            apply_step(contents, kinds.SetTag(ID, "a tag", time))
    assert apply_step(contents, kinds.SetTag(ID, "a tag", 6)).tags == {"a tag": 6}
    complete = msgspec.structs.replace(contents, upper_times=())
    assert apply_step(complete, kinds.SetTag(ID, "a tag", TIME_MAX)).tags == {"a tag": TIME_MAX}
