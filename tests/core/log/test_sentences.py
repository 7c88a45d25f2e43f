"""What people read of a record, kind by kind."""

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from persist.codecs.part.stream import encode_parts
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.updates import to_updates
from persist.core.log import kinds
from persist.core.log.fields import KeyedForm, Keyframe, MachineForm, TokenMark
from persist.core.log.kinds import KINDS

ID = "a" * 32
INTS = CollectionSchema.of({"k": pa.int64()}, None)
[(_, ONE)] = encode_parts(to_updates([((1, None), 3, 1), ((2, None), 3, 1)], INTS), INTS)
PART = msgspec.structs.replace(ONE, inline=b"1", bytes=1_500)
LATER = msgspec.structs.replace(PART, blob="part/x", inline=b"", rows=1, time_max=5)
SCHEMA = {"version": 2, "key": {"fields": [["id", "int64"]]}, "value": {"fields": [["amount", "int64"]]}}
FORM = KeyedForm(MachineForm("upsert", 1))
SENTENCES: list[tuple[Any, str]] = [
    (kinds.Create(ID, "c", {}), "created 'c'"),
    (kinds.Create(ID, "c", {}, view={}), "created the view 'c'"),
    (kinds.Clone(ID, "c", "b" * 32, 7, {}), "created 'c' as a clone of a collection as of t7"),
    (kinds.Append(ID, (PART,)), "wrote 2 updates to 'c' at time t3 (1,500 bytes, in the record itself)"),
    (kinds.Append(ID, (LATER,)), "wrote 1 update to 'c' at times t3 to t5 (1,500 bytes)"),
    (kinds.Append(ID, (PART, LATER)), "wrote 3 updates to 'c' at times t3 to t5 (3,000 bytes)"),
    (kinds.Replace(ID), "compacted 'c': rearranged its parts"),
    (
        kinds.Replace(ID, removed_runs=(1, 2), runs=((-1,),), keyframes=(Keyframe(4, ()), Keyframe(9, ()))),
        "compacted 'c': made a keyframe as of t4, t9; merged 2 runs into 1",
    ),
    (
        kinds.Replace(ID, removed_keyframes=(4,), history_from=7),
        "compacted 'c': dropped 1 keyframe; forgot the history before t7",
    ),
    (kinds.Tokens(ID, (TokenMark("a", 1), TokenMark("b", 2))), "remembered 'a', 'b' as written to 'c'"),
    (kinds.Seal(ID, (8,)), "sealed 'c' to t8"),
    (kinds.Seal(ID, ()), "sealed 'c' for ever"),
    (kinds.AllowCompaction(ID, (8,)), "allowed compaction of 'c' up to t8"),
    (kinds.SetHold(ID, "h", 4, lease="l"), "a reader holds 'c' at t4 by a lease"),
    (kinds.SetHold(ID, "h", 4), "the hold 'h' of 'c' was set at t4"),
    (kinds.SetHold(ID, "h", 4, expected=2), "the hold 'h' of 'c' was moved from t2 to t4"),
    (kinds.Erase(ID, 3, "me", 0, "request 17"), "erased 3 updates of 'c' from all times: request 17"),
    (kinds.Pend(ID, (PART,)), "wrote 2 events to 'c', which become updates when their times are sealed"),
    (kinds.Resolve(ID, (1,), (6,), parts=(LATER,)), "turned the events of 'c' before t6 into 1 update"),
    (kinds.Publish(ID, "delta", ID, 3, 7), "published 'c' as of t7 as version 3 of its delta table"),
    (kinds.Evolve(ID, SCHEMA), "gave 'c' version 2 of its schema: id, amount"),
    (
        kinds.Evolve(ID, {**SCHEMA, "value": None}, FORM),
        "gave 'c' version 2 of its schema: id; it takes events from then on",
    ),
    (kinds.Redefine(ID, {"number": 3, "sql": "SELECT 1"}, (1,)), "gave 'c' its definition 3: SELECT 1"),
    (kinds.SetTag(ID, "monthly", 4), "tagged 'c' as of t4 as 'monthly'"),
    (kinds.Note(ID, "moved"), "noted on 'c': moved"),
    (kinds.GrantLease("l", "someone", 1), "someone took a lease"),
    (kinds.GrantLease("l", "someone", 1, renews=True), "someone renewed a lease"),
    (kinds.OpenWriter("r", "someone"), "someone opened the location exclusively"),
    (kinds.OpenWriter("r", "someone", force=True), "someone opened the location exclusively by force"),
    (kinds.Collected((("a", 1), ("b", 2))), "forgot 2 things whose blobs were deleted"),
]


@pytest.mark.parametrize(("mutation", "sentence"), SENTENCES, ids=[sentence for _, sentence in SENTENCES])
def test_a_record_is_told_in_a_sentence(mutation: Any, sentence: str) -> None:
    assert mutation.describe("'c'", lambda time: f"t{time}") == sentence


def test_a_note_on_no_collection_names_none() -> None:
    assert kinds.Note("", "moved").describe("", str) == "noted: moved"


def test_every_kind_that_makes_its_sentence_has_one_here() -> None:
    making = {kind for kind in KINDS.values() if "describe" in vars(kind)}
    assert making == {type(mutation) for mutation, _ in SENTENCES}
