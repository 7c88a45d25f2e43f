"""What contents of a collection hold at all times, and how whatever breaks it is refused."""

from typing import Any

import msgspec
import pytest

from persist.core.errors import Superseded
from persist.core.log import kinds
from persist.core.log.fields import Keyframe, TableFile
from persist.core.log.keys import make_part_key
from persist.core.state_rules.contents import CollectionState, check_runs, compute_replacement
from persist.core.state_rules.location import ExclusiveWriter, check_writer
from persist.core.state_rules.publications import add_table_version, check_published
from persist.errors import Locked, WriterFenced
from tests.core.state_rules.test_refusals import ID, contents_after, part


def compacted() -> CollectionState:
    """Return contents with a keyframe as of 3, of the parts 2 and 3, and a history from 4 on, of the parts 4 and 5."""
    contents = contents_after(
        kinds.Append(ID, (part(1, 0),)),
        kinds.Append(ID, (part(2, 3),)),
        kinds.Seal(ID, (9,)),
        kinds.AllowCompaction(ID, (3,)),
    )
    brought = (part(3, 0), part(4, 3), part(5, 4), part(6, 8))
    step = kinds.Replace(
        ID,
        brought,
        removed_runs=tuple(run[0] for run in contents.history),
        runs=((-3,), (-4,)),
        keyframes=(Keyframe(3, (-1, -2)),),
        history_from=4,
    )
    after, unused = compute_replacement(contents, step)
    assert unused == (part(1, 0).blob, part(2, 3).blob)
    assert (after.history, after.keyframes) == (((4,), (5,)), (Keyframe(3, (2, 3)),))
    return after


def test_contents_after_a_compaction_keep_what_always_holds() -> None:
    check_runs(compacted())
    check_runs(msgspec.structs.replace(compacted(), history=((4, 5),)))
    check_runs(msgspec.structs.replace(compacted(), next_number=6))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"history": ((4, 4), (5,))}, "in two runs"),
        ({"history": ((4,), (5,), (4,))}, "in two runs"),
        ({"history": ((4,), (5,), (2,))}, "in two runs"),
        ({"history": ((4,), (5,), ())}, "a run is empty"),
        ({"history": ((4,),)}, "a part is in no run"),
        ({"history": ((4,), (5,), (6,))}, "lists a part that is not there"),
        ({"keyframes": (Keyframe(3, (2,)),)}, "a part is in no run"),
        ({"keyframes": (Keyframe(3, (2, 3, 7)),)}, "lists a part that is not there"),
        ({"next_number": 5}, "a number that was not assigned yet"),
        ({"pending": {6: part(7, 8)}, "next_number": 6}, "a number that was not assigned yet"),
        ({"history_from": 5}, "times before 5"),
        ({"keyframes": (Keyframe(9, (2, 3)),)}, "not of ascending sealed times"),
        ({"keyframes": (Keyframe(-1, (2, 3)),)}, "not of ascending sealed times"),
        ({"keyframes": (Keyframe(4, (2, 3)), Keyframe(3, (2, 3)))}, "not of ascending sealed times"),
        ({"keyframes": (Keyframe(3, (2, 3)), Keyframe(3, (2, 3)))}, "not of ascending sealed times"),
        ({"keyframes": (Keyframe(2, (2, 3)),)}, "has later times"),
        ({"keyframes": (Keyframe(4, (2, 3)),)}, "no keyframe is as of 3"),
        ({"since_times": (2,)}, "and since is"),
        ({"since_times": (0,)}, "and since is"),
    ],
)
def test_what_breaks_an_invariant_of_runs_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_runs(msgspec.structs.replace(compacted(), **changed))


@pytest.mark.parametrize("gone", [{"removed_runs": (4, 99)}, {"removed_keyframes": (3, 9)}])
def test_a_compaction_of_what_another_one_has_replaced_loses(gone: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(Superseded, match="another compaction came first"):
        compute_replacement(compacted(), msgspec.structs.replace(kinds.Replace(ID), **gone))


def test_whoever_opened_exclusively_after_another_is_named_by_its_epoch() -> None:
    seal = kinds.Seal(ID, (5,))
    check_writer(None, 5, None, [seal])
    with pytest.raises(WriterFenced, match="another one did at seqno 5"):
        check_writer(None, 5, 3, [seal])
    with pytest.raises(Locked):
        check_writer(ExclusiveWriter("1", "somebody"), 5, None, [seal])
    check_writer(ExclusiveWriter("1", "somebody"), 5, 5, [seal])


def test_what_breaks_an_invariant_of_published_tables_is_refused() -> None:
    step = kinds.Publish(ID, "delta", "8" * 32, 0, 4, parts=(part(7, 4),), files=(TableFile(4), TableFile(-1)))
    contents = add_table_version(compacted(), step)
    assert [*contents.kept] == [6]
    check_published(contents)
    inline = msgspec.structs.replace(part(7, 4), blob="", inline=b"x")
    for changed, words in (
        ({"kept": {}}, "names a part that is not there"),
        ({"kept": {6: part(7, 4), 7: part(8, 4)}}, "a part is kept that none names"),
        ({"next_number": 6}, "a kept part has a number that was not assigned yet"),
        ({"kept": {6: inline}}, "which is inline or has diffs other than 1"),
        ({"kept": {6: msgspec.structs.replace(part(7, 4), negatives=1)}}, "which is inline or has diffs other than 1"),
    ):
        with pytest.raises(ValueError, match=words):
            check_published(msgspec.structs.replace(contents, **changed))
    assert make_part_key(ID, 0) not in contents.named_blobs
