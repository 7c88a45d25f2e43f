"""The rule of erasures: which parts make room for which, against lists of numbers."""

import random
from typing import Any

import msgspec
import pytest

from persist.codecs.part.part import Part
from persist.core.errors import Superseded
from persist.core.log import kinds
from persist.core.log.fields import KeyedForm, MachineForm
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.erasures import (
    ERASURES_KEPT,
    apply_erasure,
    count_erasures,
    list_blobs_unused_after_erasure,
    replace_erased_parts,
)
from persist.core.state_rules.state import State, apply_record
from persist.errors import InvalidUsage
from tests.core.state_rules.test_refusals import CREATED, ID, contents_after, part, record

KEYED = KeyedForm(MachineForm("upsert", 1), resolve="background")


def plain(runs: int) -> CollectionState:
    return contents_after(*(kinds.Append(ID, (part(n, n),)) for n in range(runs)), kinds.Seal(ID, (runs,)))


def pending(parts: int) -> CollectionState:
    created = msgspec.structs.replace(CREATED, keyed=KEYED)
    pends = (kinds.Pend(ID, tuple(part(n, n) for n in range(parts))),)
    contents = apply_record(State(), record(created, *pends)).entries[ID].contents
    assert contents is not None
    return contents


def erase(*parts: Part, replaced: dict[int, tuple[int, ...]], events: int = 0, **changed: Any) -> kinds.Erase:
    step = kinds.Erase(ID, 7, "a test", 0, "request 17", parts=parts, events=events, replaced=(*replaced.items(),))
    return msgspec.structs.replace(step, **changed)


@pytest.mark.parametrize("seed", range(6))
def test_each_part_that_held_a_record_makes_room_for_those_without_it(seed: int) -> None:
    chance = random.Random(seed)
    contents, made, held = plain(6), 100, {n: part(n, n) for n in range(6)}
    runs = [list(run) for run in contents.history]
    assert runs == [[n] for n in range(6)]
    for turn in range(4):
        going = sorted(n for n in held if chance.random() < 0.4)
        step_parts, replaced = list[Part](), dict[int, tuple[int, ...]]()
        number, places = contents.next_number, dict[int, list[int]]()
        for old in going:
            come = chance.randrange(3)
            places[old] = [number + len(step_parts) + n for n in range(come)]
            replaced[old] = tuple(-1 - len(step_parts) - n for n in range(come))
            for _ in range(come):
                made += 1
                step_parts.append(part(made, held[old].time_max))
        step = erase(*step_parts, replaced=replaced)
        unused = tuple(sorted(held[n].blob for n in going))
        assert list_blobs_unused_after_erasure(contents, step) == unused
        if unused:
            with pytest.raises(Superseded, match="other blobs become unused"):
                apply_erasure(contents, step)
        contents = apply_erasure(contents, msgspec.structs.replace(step, unused=unused))
        runs = [run for run in ([m for n in run for m in places.get(n, [n])] for run in runs) if run]
        held = {n: each for n, each in held.items() if n not in places}
        held |= {number + n: each for n, each in enumerate(step_parts)}
        assert [list(run) for run in contents.history] == runs
        assert contents.numbered == held
        assert contents.next_number == number + len(step_parts)
        assert count_erasures(contents) == turn + 1
    assert {each.reason for each in contents.erasures} == {"request 17"}


def test_events_that_wait_make_room_for_events_in_their_order() -> None:
    contents = pending(3)
    first, second, third = contents.pending
    step = erase(part(50, 0), part(51, 0), replaced={first: (-1, -2), third: ()}, events=2)
    after = replace_erased_parts(contents, step)
    assert [each.blob for each in after.pending.values()] == [part(50, 0).blob, part(51, 0).blob, part(1, 1).blob]
    assert [*after.pending] == [n + contents.next_number + 2 for n in range(3)]
    assert after.next_number == contents.next_number + 5
    assert not after.numbered
    for events in (0, 1):
        with pytest.raises(ValueError, match="it replaces updates by events"):
            replace_erased_parts(contents, msgspec.structs.replace(step, events=events))
    assert second in contents.pending


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"updates": -1}, ValueError, "it erases -1 updates"),
        ({"events": 2}, ValueError, "2 of its parts hold events"),
        ({"events": 1}, ValueError, "it replaces updates by events"),
        ({"reason": " "}, InvalidUsage, "is not a text"),
        ({"replaced": ((77, (-1,)),)}, Superseded, "is not there any more: a compaction came first"),
        ({"replaced": ((0, ()),)}, ValueError, "parts that replace no part, or two"),
        ({"replaced": ((0, (-1,)), (1, (-1,)))}, ValueError, "parts that replace no part, or two"),
        ({"replaced": ((0, (0,)),)}, ValueError, "it brings parts that replace no part, or two"),
    ],
)
def test_an_erasure_that_no_writer_would_make_is_refused(
    changed: dict[str, Any], error: type[Exception], words: str
) -> None:
    step = erase(part(50, 0), replaced={0: (-1,)})
    replace_erased_parts(plain(2), step)
    replace_erased_parts(plain(2), msgspec.structs.replace(step, updates=0))
    with pytest.raises(error, match=words):
        replace_erased_parts(plain(2), msgspec.structs.replace(step, **changed))


def test_so_many_erasures_are_remembered_and_all_are_counted() -> None:
    contents = plain(1)
    for _ in range(ERASURES_KEPT + 3):
        contents = replace_erased_parts(contents, erase(replaced={}))
    assert len(contents.erasures) == ERASURES_KEPT
    assert (contents.erasures[0].number, count_erasures(contents)) == (4, ERASURES_KEPT + 3)
