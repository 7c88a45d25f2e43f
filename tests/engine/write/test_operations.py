"""How what callers ask becomes few mutations: their order, the times they get, and what shares a record."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from persist.blob.errors import InvalidUsage
from persist.codecs.order.digest import DIGEST_MODULUS
from persist.codecs.part.part import Part
from persist.codecs.types.schema import TIME_MAX
from persist.codecs.updates.small import convert_small_updates
from persist.core.antichain import END, Antichain
from persist.core.log import kinds
from persist.core.log.fields import TokenMark
from persist.core.state_rules.collection_rules import PlannedAppend
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.keyed_rules import PlannedPend
from persist.engine.write.commit_future import CommitFuture, UnobservedErrors
from persist.engine.write.operations import (
    Asked,
    AtCommit,
    Change,
    Operation,
    Step,
    Write,
    assign_times,
    choose_common_times,
    merge_operations,
    split_into_records,
)
from persist.engine.write.write_options import (
    WriteOptions,
    add_token,
    check_token,
    compute_delete_digest,
    compute_overwrite_digest,
    format_filter,
)
from tests.core.state_rules.test_refusals import SCHEMA, part

A, B, C = ("abc"[n] * 32 for n in range(3))
FIELDS = {"key": {"fields": [["k", "int64"]]}, "value": None}


def operation(*steps: Step) -> Operation:
    return Operation.of(steps, {}, CommitFuture(UnobservedErrors("memory://x"), lambda: None), None)


def write(id_: str = A, *, at_commit: bool = False, time: int = 5, size: int = 10, digest: int | None = None) -> Write:
    small = convert_small_updates([((1, None), time, 1)], SCHEMA)
    assert small is not None
    return Write(id_, SCHEMA, time, size, small, digest=digest, at_commit=at_commit)


def uploading(id_: str, *parts: Part, time_min: int = 0) -> "tuple[Write, Future[tuple[Part, ...]]]":
    future: Future[tuple[Part, ...]] = Future()
    if parts:
        future.set_result(parts)
    return Write(id_, SCHEMA, time_min, 0, future), future


def plain(*ids: str) -> Operation:
    """Return a write to collections at the time of its commit."""
    return operation(*(step for id_ in ids for step in (write(id_, at_commit=True), AtCommit(id_))))


def test_an_operation_knows_what_it_takes_and_whether_it_can_be_committed() -> None:
    pending, future = uploading(A)
    made = operation(write(size=3), pending, write(B, size=4), kinds.Seal(A, (9,)))
    assert (made.bytes, made.uploads, made.is_ready, made.is_alone) == (7, [future], False, False)
    future.set_result(())
    assert made.is_ready
    assert operation(kinds.Rename(A, "d")).is_alone
    assert operation(kinds.Seal(A, (1,))).is_ready
    assert [each.shares_time for each in (plain(A), plain(A, B), operation(write()), made)] == [
        True,
        True,
        False,
        False,
    ]
    noted: list[Step] = [write(at_commit=True), AtCommit(A), kinds.Note(A, "x"), kinds.Tokens(A, ())]
    assert operation(*noted).shares_time
    assert not operation(*noted, kinds.Seal(A, (1,))).shares_time
    assert not operation(write(at_commit=True), AtCommit(A, time=7)).shares_time
    assert not operation(write(), AtCommit(A)).shares_time


def test_an_upload_says_what_is_wrong_with_it_and_of_which_versions_it_is() -> None:
    good, _ = uploading(A, part(1, 4), part(2, 6), time_min=4)
    assert good.upload_error() is None
    assert (good.time_max, [*good.versions]) == (None, [1])
    early, _ = uploading(A, part(1, 4), part(2, 3), time_min=4)
    assert "the updates were changed while they were being written" in str(early.upload_error())
    failed, future = uploading(A)
    future.set_exception(OSError("full"))
    assert str(failed.upload_error()) == "full"
    assert write().upload_error() is None
    assert (write(time=7).time_max, [*write().versions]) == (7, [1])
    table = pa.table({"k": [1, 2], "_time": [3, 9], "_diff": [1, 1]})
    assert Write(A, SCHEMA, 3, 1, table).time_max == 9


TIMES = {A: 20, B: 30}


def test_what_is_validated_has_the_times_that_the_commit_gives_and_seals_after_them_at_the_end() -> None:
    tokens = kinds.Tokens(A, (TokenMark("t", 0, "d"),))
    remembered = kinds.Tokens(A, (TokenMark("t", 20, "d"),))
    assert [*plain(A).plan(TIMES)] == [PlannedAppend(A, 20, 1)]  # It shares its time: who validates it seals.
    first, last = AtCommit(A, time=1), AtCommit(A, time=1)
    mixed = operation(write(at_commit=True), first, write(B, time=4), Asked(A, 1), last, tokens, kinds.Seal(B, (7,)))
    assert [*mixed.plan(TIMES)] == [
        PlannedAppend(A, 20, 1),
        PlannedAppend(B, 4, 1),
        kinds.Seal(A, (21,)),
        remembered,
        kinds.Seal(B, (7,)),
    ]
    assert [*operation(write(), tokens).plan(TIMES)] == [PlannedAppend(A, 5, 1), tokens]
    events = Write(A, SCHEMA, 5, 1, pa.table({}), events=PlannedPend(A, 5, 6, None))
    stamped = Write(A, SCHEMA, 0, 1, pa.table({}), events=PlannedPend(A, 0, 0, None), at_commit=True)
    assert [*operation(events).plan(TIMES)] == [PlannedPend(A, 5, 6, None)]
    assert [*operation(stamped, AtCommit(A)).plan(TIMES)] == [PlannedPend(A, 20, 20, None)]


def test_a_seal_of_the_operation_itself_may_lie_beyond_the_time_of_the_commit() -> None:
    asked = AtCommit(A)
    far = operation(kinds.Seal(B, (90,)), kinds.Seal(A, (50,)), asked, kinds.Seal(A, (70,)))
    assert far.find_seal_before(asked) == Antichain(50)
    assert far.build_seal(asked, TIMES) == kinds.Seal(A, (50,))
    assert operation(kinds.Seal(A, (9,)), asked).build_seal(asked, TIMES) == kinds.Seal(A, (21,))
    assert operation(kinds.Seal(A, ()), asked).build_seal(asked, TIMES) == kinds.Seal(A, ())


def changed(*steps: Step, times: Mapping[str, int] = TIMES) -> Change:
    change = Change(A)
    for step in steps:
        change.add(step, times)
    return change


def contents(**fields: Any) -> CollectionState:
    return CollectionState(A, "c", FIELDS, **fields)


def test_the_mutations_of_a_change_stand_in_the_order_in_which_they_are_valid() -> None:
    steps: list[Any] = [
        kinds.Destroy(A),
        kinds.Note(A, "why"),
        kinds.Rename(A, "d"),
        kinds.AllowCompaction(A, (3,)),
        kinds.Seal(A, (9,)),
        kinds.SetHold(A, "h", 1),
        kinds.ReleaseHold(A, "h"),
        kinds.Batch(A, "q", 1, "r"),
        kinds.Tokens(A, (TokenMark("t", 5, None),)),
        kinds.Tokens(A, (TokenMark("u", 5, None),)),
        kinds.Replace(A),
        kinds.Create(A, "c", FIELDS),
    ]
    change, encoded = changed(*steps, times={}), kinds.Append(A)
    made = change.mutations(None, [encoded])
    both = kinds.Tokens(A, (TokenMark("t", 5, None), TokenMark("u", 5, None)))
    create, replace, batch = steps[11], steps[10], steps[7]
    assert made == [create, replace, encoded, both, batch, *steps[5:7], *steps[4:2:-1], steps[2], steps[1], steps[0]]


def test_the_last_seal_and_the_farthest_since_count_and_what_changes_nothing_is_left_out() -> None:
    far, near = kinds.AllowCompaction(A, (7,)), kinds.AllowCompaction(A, (3,))
    for order in ((far, near), (near, far)):
        assert changed(*order).allow_compaction == far
    assert changed(kinds.Seal(A, (3,)), kinds.Seal(A, (9,))).seal == kinds.Seal(A, (9,))
    change = changed(kinds.Seal(A, (9,)), far, kinds.Rename(A, "c"))
    known = contents(upper_times=(9,), allowed_times=(7,))
    assert change.mutations(known, []) == []
    assert len(change.mutations(None, [])) == 3
    behind = contents(upper_times=(8,), allowed_times=(6,))
    assert change.mutations(behind, []) == [kinds.Seal(A, (9,)), far]
    assert changed(kinds.Rename(A, "d")).mutations(known, []) == [kinds.Rename(A, "d")]


def test_the_time_of_the_commit_is_sealed_unless_more_is() -> None:
    for steps, upper in [
        ((AtCommit(A),), (21,)),
        ((kinds.Seal(A, (20,)), AtCommit(A)), (21,)),
        ((kinds.Seal(A, (22,)), AtCommit(A)), (22,)),
        ((kinds.Seal(A, ()), AtCommit(A)), ()),
        ((AtCommit(A), kinds.Seal(A, (40,))), (40,)),
    ]:
        assert changed(*steps).seal == kinds.Seal(A, upper)


def test_leases_are_granted_first_and_what_concerns_the_location_comes_last() -> None:
    grant, void = kinds.GrantLease("1" * 32, "me", 5), kinds.VoidUploads(3)
    grants, changes, rest = merge_operations(
        [operation(void, kinds.Seal(B, (1,)), grant), operation(kinds.Seal(A, (2,)), kinds.Seal(B, (3,)))], {}
    )
    assert (grants, [*changes], rest) == ([grant], [B, A], [void])
    assert changes[B].seal == kinds.Seal(B, (3,))


def test_what_gets_one_time_shares_a_record_and_what_names_its_own_does_not_join_it() -> None:
    named, other, alone = operation(write()), operation(write(B)), operation(AtCommit(A), write())
    for given, lengths in [
        ([named, named, other], [3]),
        ([plain(A), plain(A), plain(A)], [3]),
        ([plain(A), named], [1, 1]),
        ([named, plain(A)], [1, 1]),
        ([plain(A), other, plain(A)], [3]),
        ([plain(A), alone, plain(A)], [1, 1, 1]),
        ([alone, other], [2]),
        ([other, alone], [2]),
        ([named, alone], [1, 1]),
        ([alone, named], [1, 1]),
        ([plain(A, B), plain(B), plain(A)], [3]),
        ([plain(A), plain(A, B), other], [2, 1]),
        ([operation(kinds.VoidUploads(1)), plain(A), operation(kinds.VoidUploads(1))], [3]),
        ([], [0]),
    ]:
        assert [len(record) for record in split_into_records(given)] == lengths
        assert [each for record in split_into_records(given) for each in record] == given


def at(operations: list[Operation], uppers: Mapping[str, int], wall_ms: int = 0) -> dict[str, int]:
    return assign_times(operations, uppers.__getitem__, wall_ms)


def test_who_names_no_time_gets_one_beyond_the_upper_of_all_that_is_written_with_it() -> None:
    assert at([], {}) == {}
    assert at([operation(write())], {A: 3}) == {}
    assert at([plain(A), plain(B)], {A: 3, B: 9}) == {A: 3, B: 9}
    assert at([plain(A, B), plain(C)], {A: 3, B: 9, C: 5}) == {A: 9, B: 9, C: 5}
    assert at([plain(A, B), plain(B, C)], {A: 3, B: 9, C: 12}) == {A: 12, B: 12, C: 12}
    assert at([plain(A), plain(B), plain(A, B)], {A: 3, B: 9}) == {A: 9, B: 9}
    assert at([operation(kinds.Seal(A, (50,)), AtCommit(A))], {A: 3}) == {A: 50}
    assert at([operation(kinds.Seal(A, (2,)), AtCommit(A))], {A: 3}) == {A: 3}
    assert at([plain(A)], {A: END}) == {A: TIME_MAX}
    assert at([plain(A)], {A: TIME_MAX}) == {A: TIME_MAX}


def together(uppers: Mapping[str, int], wall_ms: int, **units: str | None) -> dict[str, int]:
    """Return the times of collections by the last letter of their ids, of which units gives the timelines."""
    asks = {id_: AtCommit(id_, timeline=unit) for id_, unit in units.items()}
    return choose_common_times(asks, uppers, wall_ms)


def test_on_timelines_one_moment_is_given_which_is_not_before_the_clock() -> None:
    assert together({"x": 5}, 1_700, x="s") == {"x": 5}
    assert together({"x": 5}, 9_999, x="s") == {"x": 9}
    assert together({"x": 5}, 1_700, x="ms") == {"x": 1_700}
    assert together({"x": 5}, 1_700, x="us") == {"x": 1_700_000}
    assert together({"x": 0, "y": 0}, 1_999, x="s", y="ms") == {"x": 1, "y": 1_000}
    assert together({"x": 0, "y": 1_001}, 0, x="s", y="ms") == {"x": 2, "y": 2_000}
    assert together({"x": 0, "y": 1_000}, 0, x="s", y="ms") == {"x": 1, "y": 1_000}
    assert together({"x": 7, "y": 1_000}, 0, x="s", y="ms") == {"x": 7, "y": 7_000}
    assert together({"x": 7, "y": 1_000, "n": 4}, 0, x="s", y="ms", n=None) == {"x": 7, "y": 7_000, "n": 4}
    assert together({"m": 8, "n": 4}, 99_000, m=None, n=None) == {"m": 8, "n": 8}
    assert together({"x": 1, "y": 1}, 2**60, x="s", y="ns") == {"x": 2**60 // 1000, "y": TIME_MAX}
    chosen = {"x": AtCommit("x", "s", 77), "y": AtCommit("y", "s")}
    assert choose_common_times(chosen, {"x": 3, "y": 5}, 0) == {"x": 77, "y": 5}


def test_a_token_remembers_the_digest_of_all_that_was_asked_of_each_collection() -> None:
    steps: list[Step] = [
        write(time=9),
        write(time=7),
        Asked(A, DIGEST_MODULUS - 1),
        Asked(A, 3),
        Asked(B, None),
        Asked(B, 2),
    ]
    assert add_token(None, [A, B], steps) == steps[:2]
    assert add_token("t", [A, B, C], steps) == [
        *steps[:2],
        kinds.Tokens(A, (TokenMark("t", 7, f"{2:016x}"),)),
        kinds.Tokens(B, (TokenMark("t", 0, None),)),
        kinds.Tokens(C, (TokenMark("t", 0, f"{0:016x}"),)),
    ]
    for good in (None, "x", "x" * 200):
        check_token(good)
    for bad in ("", "x" * 201, "a\nb", 7):
        with pytest.raises(InvalidUsage, match="is not a text of 1 to 200 printable characters"):
            check_token(bad)  # type: ignore[arg-type]


def test_what_is_asked_otherwise_has_another_digest() -> None:
    filters = [pc.field("a") > 5, pc.field("a") > 6, pc.field("a").isin(range(999)), pc.field("a").isin(range(998))]
    assert len({format_filter(each, "t") for each in filters}) == 4
    assert format_filter(pc.field("a") > 5, "t") == format_filter(filters[0], "t")
    assert format_filter(filters[0], None) is format_filter(None, "t") is None
    asked = [
        *(
            compute_overwrite_digest(rows, time, where)
            for rows in (1, 2)
            for time in (None, 0, 3)
            for where in (None, "x")
        ),
        *(
            compute_delete_digest(rows, time, where)
            for rows in (1, 2)
            for time in (None, 0, 3)
            for where in (None, "x")
        ),
    ]
    assert len({*asked}) == len(asked)
    assert (
        compute_overwrite_digest(5, 1) - compute_overwrite_digest(2, 1)
        == compute_delete_digest(5, 1) - compute_delete_digest(2, 1)
        == 3
    )


def noted(message: str | None, metadata: dict[str, str] | None, collections: list[str]) -> list[kinds.Note]:
    return WriteOptions(message=message, metadata=metadata).make_notes(collections)


def test_a_message_is_noted_with_each_collection_once() -> None:
    assert noted(None, None, [A]) == noted(None, {}, [A]) == []
    assert noted("why", None, [A, B, A]) == [kinds.Note(A, "why", {}), kinds.Note(B, "why", {})]
    assert noted(None, {"a": "b"}, [A]) == [kinds.Note(A, "", {"a": "b"})]
    assert noted("", None, [A]) == [kinds.Note(A, "", {})]
    assert noted("x", None, []) == []
    for message, metadata in ((3, None), ("x", ["a"]), ("x", {"a": 1}), ("x", {1: "a"}), (None, {"a": None})):
        with pytest.raises(InvalidUsage, match="metadata="):
            WriteOptions(message=message, metadata=metadata)  # type: ignore[arg-type]
