"""The rules of clones, of published tables, and of what checkpoints are made of."""

import random
from typing import Any

import msgspec
import pytest

from persist.codecs.evolution import evolve_schema
from persist.codecs.part.part import Part
from persist.codecs.types.schema import TIME_MAX, CollectionSchema
from persist.core.errors import Superseded
from persist.core.log import kinds
from persist.core.log.fields import Deletes, Keyframe, TableFile
from persist.core.log.framing import BlobRef
from persist.core.log.keys import make_checkpoint_key, make_part_key
from persist.core.log.kinds import Mutation
from persist.core.names import INDEX_HOLD, VIEW_HOLD
from persist.core.state_rules.collection_rules import ExpectDerived, create_clone
from persist.core.state_rules.contents import CollectionState, Unsealed, summarize_unsealed
from persist.core.state_rules.draft import Draft
from persist.core.state_rules.erasures import REASON_CHARS_MAX, check_reason
from persist.core.state_rules.location import LOCATION_RULES, LocationState
from persist.core.state_rules.publications import apply_publication, list_unused_blobs
from persist.core.state_rules.schemas import load_newest_schema
from persist.core.state_rules.state import State, apply_record
from persist.errors import AsOfNotSealed, CollectionNotFound, InvalidUsage
from tests.core.state_rules.test_refusals import CREATED, ID, OTHER, SCHEMA, contents_after, part, record

THIRD, TABLE = "7" * 32, "8" * 32
FIRST, SECOND = part(1, 0), part(2, 3)
SOURCE = (CREATED, kinds.Append(ID, (FIRST,)), kinds.Append(ID, (SECOND,)), kinds.Seal(ID, (5,)))


def clone(*parts: Part, as_of: int = 3, **changed: Any) -> kinds.Clone:
    runs = tuple((n,) for n in range(len(parts)))
    return msgspec.structs.replace(
        kinds.Clone(OTHER, "d", ID, as_of, SCHEMA.to_json(), parts=parts, runs=runs), **changed
    )


def test_a_clone_shares_what_its_source_has_at_a_sealed_time() -> None:
    state = apply_record(State(), record(*SOURCE))
    own = msgspec.structs.replace(part(9, 1), blob=make_part_key(OTHER, 0))
    for parts in ((), (FIRST,), (FIRST, SECOND), (own,), (SECOND, own)):
        draft = Draft(state)
        assert draft.extend([clone(*parts)])
        after = apply_record(state, record(clone(*parts), seqno=1))
        assert after.entries[OTHER].folders == (ID,), "also if it has no part there"
    with pytest.raises(CollectionNotFound):
        Draft(state).extend([clone(FIRST, source=THIRD)])
    with pytest.raises(AsOfNotSealed):
        Draft(state).extend([clone(FIRST, as_of=5)])
    stranger = msgspec.structs.replace(FIRST, blob=make_part_key(THIRD, 0))
    with pytest.raises(ValueError, match=r"and its source 0000.* has none there"):
        Draft(state).extend([clone(stranger)])
    with pytest.raises(Superseded, match="a compaction has replaced a part"):
        Draft(state).extend([clone(FIRST, part(3, 0))])
    wider = CollectionSchema.of({"k": SCHEMA.arrow.field("k").type}, {"v": SCHEMA.arrow.field("k").type})
    with pytest.raises(Superseded, match="has evolved meanwhile"):
        Draft(state).extend([clone(FIRST, schema=wider.to_json())])


def test_a_clone_of_a_clone_may_share_what_lies_with_the_first() -> None:
    state = apply_record(State(), record(*SOURCE))
    state = apply_record(state, record(clone(FIRST), seqno=1))
    second = msgspec.structs.replace(clone(FIRST), collection=THIRD, name="e", source=OTHER)
    assert Draft(state).extend([second])
    assert apply_record(state, record(second, seqno=2)).entries[THIRD].folders == (ID, OTHER)


@pytest.mark.parametrize("as_of", [0, 3, TIME_MAX])
def test_a_clone_begins_at_its_time_with_what_was_before_it(as_of: int) -> None:
    contents = create_clone(clone(FIRST, as_of=as_of))
    assert (contents.since, contents.upper) == (as_of, as_of + 1)
    assert (contents.history, contents.history_from, contents.next_number) == (((0,),), 0, 1)
    if as_of < TIME_MAX:
        with pytest.raises(ValueError, match=f"a part has times after {as_of}"):
            create_clone(clone(FIRST, part(2, as_of + 1), as_of=as_of))
    assert len(create_clone(clone(FIRST, part(2, as_of), as_of=as_of)).numbered) == 2
    later = clone(FIRST, part(2, as_of), as_of=as_of, runs=((1,),), keyframe=Keyframe(0, (0,)))
    if as_of > 0:
        assert create_clone(later).history_from == 1


class Tables:
    """What is published of a collection, by the contents' rules and by dicts that follow them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.contents = contents_after(*SOURCE[1:])
        self.files: dict[str, set[int]] = {}
        self.versions: dict[str, int] = {}
        self.drawn = 0

    def publish(self, table: str, **changed: Any) -> None:
        """Publish the next version, which has a few parts more or less, and one that comes with it or not."""
        had = self.files.get(table, set())
        known = {*self.contents.numbered}
        more = {n for n in known - had if self.chance.random() < 0.5}
        less = {n for n in had if self.chance.random() < 0.4}
        brought: tuple[Part, ...] = ()
        if self.chance.random() < 0.4:
            self.drawn += 1
            brought = (part(100 + self.drawn, 1),)
        step = kinds.Publish(
            ID,
            table,
            TABLE,
            self.versions.get(table, -1) + 1,
            4,
            parts=brought,
            files=tuple(TableFile(n) for n in [*sorted(more), *([-1] if brought else [])]),
            removed=tuple(sorted(less)),
        )
        step = msgspec.structs.replace(step, **changed)
        after = self.change(step)
        number = self.contents.next_number
        self.files[table] = (had - less) | more | ({number} if brought else set())
        before = self.contents.published.get(table)
        self.versions[table] = step.version
        self.contents = after
        publication = after.published[table]
        gone = {} if before is None else {n: f for n, f in before.files.items() if n in less}
        assert publication.before == gone
        assert {n for n, file in publication.files.items() if file.version == step.version} == more | (
            {number} if brought else set()
        )
        assert publication.is_renewed is (before is None)

    def change(self, step: kinds.Publish | kinds.Unpublish) -> CollectionState:
        unused = list_unused_blobs(self.contents, step)
        if unused:
            with pytest.raises(Superseded, match="other blobs become unused than expected"):
                apply_publication(self.contents, step)
        return apply_publication(self.contents, msgspec.structs.replace(step, unused=unused))

    def check(self) -> None:
        assert {table: {*each.files} for table, each in self.contents.published.items()} == self.files
        assert {table: each.version for table, each in self.contents.published.items()} == self.versions
        named = set[int]().union(*self.files.values(), *(each.before for each in self.contents.published.values()))
        assert self.contents.kept.keys() == named - self.contents.numbered.keys()


@pytest.mark.parametrize("seed", range(8))
def test_a_published_table_has_what_its_versions_brought_and_did_not_remove(seed: int) -> None:
    tables = Tables(seed)
    for _ in range(12):
        table = tables.chance.choice(("delta", "iceberg"))
        tables.publish(table)
        if tables.chance.random() < 0.15:
            step = kinds.Unpublish(ID, table, tables.versions[table])
            tables.contents = tables.change(step)
            del tables.files[table], tables.versions[table]
        tables.check()


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"version": 2}, Superseded, "has another version by now"),
        ({"version": 0}, Superseded, "has another version by now"),
        ({"id": "9" * 32}, Superseded, "was removed and published anew meanwhile"),
        ({"id": "x"}, ValueError, "is not the id of a table"),
        ({"as_of": 5}, AsOfNotSealed, "5"),
        ({"schema": 0}, ValueError, "of a schema that has 1"),
        ({"schema": 2}, ValueError, "of a schema that has 1"),
        ({"removed": (77,)}, ValueError, "it removes parts that the previous version does not have"),
        ({"files": (TableFile(77),), "parts": ()}, Superseded, "a compaction came first"),
        ({"files": (), "parts": (part(50, 0),)}, ValueError, "brings parts that the table does not name"),
        ({"metadata": (make_part_key(ID, 1),)}, ValueError, "neither of the previous version nor added by this one"),
    ],
)
def test_a_version_that_does_not_follow_is_refused(changed: dict[str, Any], error: type[Exception], words: str) -> None:
    tables = Tables(1)
    tables.publish("iceberg")
    with pytest.raises(error, match=words):
        tables.publish("iceberg", **changed)
    tables.check()


@pytest.mark.parametrize(("left_out", "is_refused"), [(0, False), (1, False), (2, True)])
def test_a_table_leaves_out_no_more_rows_than_a_part_has(left_out: int, is_refused: bool) -> None:
    contents, vectors = contents_after(*SOURCE[1:]), make_part_key(ID, 9)
    file = TableFile(0, Deletes(vectors, 0, 1, left_out))
    step = kinds.Publish(ID, "delta", TABLE, 0, 4, files=(file,), blobs=(vectors,))
    if is_refused:
        with pytest.raises(ValueError, match="leaves out more rows than"):
            apply_publication(contents, step)
    else:
        assert apply_publication(contents, step).published["delta"].files[0].deletes == file.deletes
    with pytest.raises(ValueError, match="neither of the previous version nor added by this one"):
        apply_publication(contents, msgspec.structs.replace(step, blobs=()))


def test_a_condition_on_views_and_indexes_holds_until_one_comes_or_goes() -> None:
    view = VIEW_HOLD + OTHER
    contents = contents_after(kinds.SetHold(ID, INDEX_HOLD + THIRD, 0), kinds.SetHold(ID, "a reader", 0))
    state = apply_record(State(), record(CREATED, kinds.SetHold(ID, INDEX_HOLD + THIRD, 0)))
    assert contents.holds.keys() == {INDEX_HOLD + THIRD, "a reader"}
    assert Draft(state).extend([ExpectDerived(ID, (INDEX_HOLD + THIRD,))])
    for holds in ((), (view,), (INDEX_HOLD + THIRD, view)):
        with pytest.raises(Superseded, match="has come or gone meanwhile"):
            Draft(state).extend([ExpectDerived(ID, tuple(sorted(holds)))])


@pytest.mark.parametrize("reason", ["x", "r" * REASON_CHARS_MAX, " request 17 "])
def test_a_reason_of_fair_length_is_taken(reason: str) -> None:
    check_reason(reason)


@pytest.mark.parametrize("reason", ["", "  ", "r" * (REASON_CHARS_MAX + 1), 17, None])
def test_what_is_no_reason_is_refused(reason: Any) -> None:
    with pytest.raises(InvalidUsage, match="is not a text of 1 to 1000 characters"):
        check_reason(reason)


def test_checkpoints_are_made_of_the_first_that_was_named_or_of_later_ones() -> None:
    def pointer(seqno: int) -> BlobRef:
        return BlobRef(make_checkpoint_key(seqno), 1, "x")

    def taken(control: LocationState, of: int, seqno: int) -> LocationState:
        return rule(control, kinds.TakeOver(pointer(of)), seqno)

    rule = LOCATION_RULES[kinds.TakeOver]

    first = taken(LocationState(), 5, 8)
    assert first.taken_over is not None
    assert (first.taken_over.seqno, first.taken_over.checkpoint) == (8, pointer(5))
    for of, is_taken in ((6, False), (7, False), (5, True), (8, True), (9, True)):
        later = taken(first, of, 10)
        assert (later != first) is is_taken
        assert (later.taken_over and later.taken_over.seqno) == (10 if is_taken else 8)
    for of in (8, 9):
        with pytest.raises(ValueError, match="is not the name of a checkpoint before seqno 8"):
            taken(LocationState(), of, 8)
    with pytest.raises(ValueError, match="is not the name of a checkpoint"):
        rule(LocationState(), kinds.TakeOver(BlobRef("checkpoint/x", 1, "x")), 8)


@pytest.mark.parametrize(("floor", "since"), [(4, 0), (5, 5), (6, 5), (7, 7), (8, 7), (9, 9), (100, 9)])
def test_what_was_destroyed_lives_on_up_to_the_last_erasure_that_the_log_has_passed(floor: int, since: int) -> None:
    assert LocationState(erased=5, erasures=((7, ID), (9, OTHER))).find_last_destroyed(floor) == since


@pytest.mark.parametrize(
    ("is_what", "words"),
    [
        (Unsealed(1, 5, 5, True), "1 update at time 5"),
        (Unsealed(1200, 5, 7, True), "1,200 updates at times 5 to 7"),
        (Unsealed(2, 5, 5, False), "at most 2 updates at time 5"),
    ],
)
def test_what_is_not_sealed_is_said_in_words(is_what: Unsealed, words: str) -> None:
    assert str(is_what) == words
    assert is_what.advice == f"{words}: sealing to {is_what.last + 1} makes all of that readable"


def test_what_is_not_sealed_is_counted() -> None:
    def after(*steps: Mutation) -> CollectionState:
        return contents_after(kinds.Append(ID, (FIRST, SECOND)), *steps)

    assert summarize_unsealed(after()) == Unsealed(2, 0, 3, True)
    assert summarize_unsealed(after(kinds.Seal(ID, (1,)))) == Unsealed(1, 3, 3, True)
    assert summarize_unsealed(after(kinds.Seal(ID, (4,)))) is None


def test_the_newest_schema_is_that_of_the_collection_whichever_is_known() -> None:
    versions = [SCHEMA]
    for name in ("a", "b", "c"):
        field = {name: SCHEMA.arrow.field("k").type}
        known = versions[-1]
        versions.append(evolve_schema(known, add=field, defaults={}, drop=[], rename={}, widen={}, reorder=None))
    contents = contents_after(*(kinds.Evolve(ID, each.to_json()) for each in versions[1:]))
    for each in versions:
        newest = load_newest_schema(each, contents)
        assert (newest.version, newest.names) == (4, versions[-1].names)
