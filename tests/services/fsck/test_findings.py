"""Each finding of an examination as a whole: of states, checkpoints, parts and objects that nothing refers to."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from persist.blob.errors import (
    CorruptBlob,
    Corruption,
    IncompatibleVersion,
    InvalidUsage,
    MissingBlob,
    StoreMisconfigured,
)
from persist.blob.layers.cache import SMALL_BYTES
from persist.blob.protocol import BlobEntry, MemoryBlob
from persist.codecs.errors import DiffOverflow
from persist.codecs.part.part import Part
from persist.codecs.part.stream import encode_parts
from persist.codecs.updates.updates import to_updates
from persist.core.log import kinds
from persist.core.log.fields import KeyedForm, MachineForm, TokenArchive
from persist.core.log.framing import BlobRef, encode_framed
from persist.core.log.keys import CHECKPOINTS, CLOCK_KEY, make_checkpoint_key, make_record_key
from persist.core.log.records import Record
from persist.core.settings import Settings
from persist.core.state_rules.annotations import About, Archives
from persist.core.state_rules.contents import CollectionState, Held, Publication
from persist.core.state_rules.location import Dropped, Lease, LocationState
from persist.core.state_rules.state import CollectionEntry, State
from persist.engine.follow.checkpoint import INTERVAL, Checkpoint
from persist.services.fsck import parts
from persist.services.fsck.checkpoint import CheckpointRepair, _list_record_names
from persist.services.fsck.examination import (
    OVERDUE_INTERVALS,
    REMADE,
    _add_advice,
    _Examination,
    _is_dropped,
    _is_published,
    _list_pending_erasures,
)
from persist.services.fsck.log import LogExamination, LoosePart, _examine_state
from persist.services.fsck.parts import PartExamination
from persist.services.fsck.report import (
    OBJECT_BYTES_MAX,
    Checked,
    CountedBlob,
    Findings,
    FsckReport,
    Problem,
    Repair,
    Unreferenced,
    _format_age,
)
from tests.support.clocks import ImpatientClock
from tests.support.keyframes import contents_of, part_of

LOCATION, OTHER = "0" * 32, "1" * 32
change = msgspec.structs.replace
LEASED = LocationState(leases={"lease": Lease("a holder", 0)})


def state_of(*entries: CollectionEntry, **changed: Any) -> State:
    state = replace(State(LOCATION, 7, control=LEASED, commit="2" * 32), **changed)
    for entry in entries:
        state = replace(state, ids=state.ids.with_changes({entry.name: entry.id})).replace_entry(entry)
    return state


def entry_of(contents: CollectionState, **changed: Any) -> CollectionEntry:
    return CollectionEntry(contents.id, contents.name, contents=contents, **changed)


def throw(error: Exception) -> Any:
    raise error


def has_contents(state: State) -> bool:
    return any(entry.contents is not None for entry in state.entries.values())


def told(findings: Findings) -> list[tuple[str, str, str, str | None]]:
    return [(problem.kind, problem.blob, problem.what, problem.collection) for problem in findings.problems]


PART = part_of(3, 1, 2)
SOUND = contents_of(PART, since=2, upper=5)
BOTH = "the holds that live by leases are not noted both in the directory and with the collection"


@pytest.mark.parametrize(
    ("changed", "leased", "found"),
    [
        ({}, (), []),
        ({"holds": {"h": Held(2), "l": Held(3, "lease")}, "tags": {"t": 2}}, (("l", "lease"),), []),
        ({"holds": {"l": Held(3, "lease")}}, (), [BOTH]),
        ({}, (("l", "gone"),), ["it has holds that live by leases that are gone", BOTH]),
        ({"holds": {"h": Held(1), "i": Held(2)}, "tags": {"a": 0, "u": 2}}, (), ["since has passed the holds ['a', 'h']"]),  # noqa: E501
        ({"numbered": {0: change(PART, blob="", inline=b"rows")}, "inline_bytes": 4}, (), []),
        ({"inline_bytes": 3}, (), ["inline_bytes is 3, and the inline parts have 0 bytes"]),
        ({"next_number": 0}, (), ["a part has a number that was not assigned yet; the next is 0"]),
    ],
)  # fmt: skip
def test_an_entry_of_a_state_that_breaks_a_rule_is_found(
    changed: dict[str, Any], leased: tuple[tuple[str, str], ...], found: list[str]
) -> None:
    findings, unread = Findings(MemoryBlob()), CollectionEntry(OTHER, "unread")
    _examine_state(state_of(unread, entry_of(change(SOUND, **changed), leased=leased)), findings)
    assert told(findings) == [("rule", make_record_key(7), what, "c") for what in found]


UNREAD = CollectionEntry(LOCATION, "c")
CONTROL, WIDER = change(LEASED, log_floor=3, erased=1), change(UNREAD, folders=(OTHER, LOCATION))
HELD = change(UNREAD, leased=(("l", "lease"),))
LATER, MORE, ELSE = (
    change(SOUND, tags={"t": 3}, since_times=(3,)),
    "it has other collections",
    "it says something else of",
)


@pytest.mark.parametrize(
    ("stored", "replayed", "found"),
    [
        (state_of(entry_of(SOUND)), state_of(entry_of(SOUND)), []),
        (state_of(location=OTHER), state_of(), [("it names another location", None)]),
        (state_of(commit=OTHER), state_of(), [("it was made after another commit", None)]),
        (state_of(control=CONTROL), state_of(), [("it says something else of log_floor, erased", None)]),
        (state_of(UNREAD), state_of(), [(MORE, None)]),
        (state_of(change(UNREAD, name="d")), state_of(UNREAD), [(MORE, None)]),
        (state_of(UNREAD).replace_entry(CollectionEntry(OTHER, "d")), state_of(UNREAD), [(MORE, None)]),
        (state_of(HELD), state_of(UNREAD), [(f"{ELSE} the leases of its holds", "c")]),
        (state_of(WIDER), state_of(change(UNREAD, folders=(OTHER,))), [(f"{ELSE} where its parts lie", "c")]),
        (state_of(change(UNREAD, folders=(OTHER,))), state_of(WIDER), []),
        (state_of(entry_of(LATER)), state_of(entry_of(SOUND)), [(f"{ELSE} since_times, tags", "c")]),
        (state_of(UNREAD), state_of(entry_of(SOUND)), []),
        (state_of(entry_of(SOUND)), state_of(UNREAD), []),
    ],
)  # fmt: skip
def test_a_checkpoint_is_compared_with_the_log_member_by_member(
    stored: State, replayed: State, found: list[tuple[str, str | None]]
) -> None:
    findings = Findings(MemoryBlob())
    log = LogExamination(MemoryBlob(), findings)
    log.state = replayed
    log._compare_checkpoint(
        Checkpoint(location=LOCATION, seqno=7, commit=OTHER, control=LEASED, collections=()), stored
    )
    key = make_checkpoint_key(7)
    assert told(findings) == [("disagrees", key, f"{what} than the log up to it", name) for what, name in found]
    assert has_contents(log.state) is (has_contents(stored) or has_contents(replayed)), "what can be read now is known"


class Frugal(MemoryBlob):
    """Refuses to read a part of a value, except to see whether it is there."""

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        assert range in (None, (0, 0))
        return super().get(key, range)


def stored_part(blob: MemoryBlob, *keys: int, name: str = "a") -> Part:
    """Store a part of a collection; return its descriptor."""
    [(data, part)] = encode_parts(to_updates([((key, "v"), 1, 1) for key in keys], SOUND.schema), SOUND.schema)
    blob.set(key := f"part/{LOCATION}/{0:020d}-{name * 32}.parquet", data)
    return change(part, blob=key)


def examined(blob: MemoryBlob, contents: CollectionState, deep: bool, state: State | None = None) -> Findings:
    findings = Findings(blob)
    counted = CountedBlob(blob, findings)
    sizes = None if deep else {entry.key: entry.bytes for entry in blob.list("")}
    examination = PartExamination(counted, findings, sizes, LOCATION)
    for examine in (examination.examine, examination.examine_tables, examination.examine_archives):
        examine(contents)
    examination.finish(state_of(entry_of(contents)) if state is None else state)
    return findings


@pytest.mark.parametrize("deep", [True, False])
def test_a_part_that_is_not_what_its_descriptor_says_is_told_with_both(deep: bool) -> None:
    blob = Frugal()
    one, two = stored_part(blob, 1, 2), stored_part(blob, 5, 6, 7, name="b")
    contents, size = contents_of(one, two, upper=5), one.bytes + two.bytes
    assert told(sound := examined(blob, contents, deep)) == []
    assert sound.checked == {"part": Checked(2, size)}
    data = blob.get(one.blob) or b""
    says = f"its descriptor says {one.bytes} bytes with checksum {one.checksum}"
    blob.set(one.blob, data[:-1])
    [(*where, what, name)] = told(examined(blob, contents, deep))
    assert (where, name) == (["damaged", one.blob], "c")
    if deep:
        assert what.startswith(f"it has {one.bytes - 1} bytes with checksum ")
        assert what.endswith(f", and {says}")
    else:
        assert what == f"it has {one.bytes - 1} bytes, and its descriptor says {one.bytes}"
    blob.set(one.blob, blob.get(two.blob) or b"")
    other = f"it has {two.bytes} bytes with checksum {two.checksum}, and {says}: it holds what belongs to {two.blob}"
    other = other if deep else f"it has {two.bytes} bytes, and its descriptor says {one.bytes}"
    assert told(examined(blob, contents, deep)) == [("exchanged" if deep else "damaged", one.blob, other, "c")]
    blob.set(one.blob, bytes(SMALL_BYTES + 1))
    [(*where, what, _)] = told(examined(blob, contents, deep))
    large = f"it has {SMALL_BYTES + 1:,} bytes, and at most {SMALL_BYTES:,} can belong there"
    assert what == (large if deep else f"it has {SMALL_BYTES + 1} bytes, and its descriptor says {one.bytes}")
    blob.delete(one.blob)
    missing = f"it is missing, and {one.bytes} bytes with checksum {one.checksum} belong there"
    found = [("missing", one.blob, missing, "c")]
    assert told(examined(blob, contents, deep)) == found
    assert told(examined(blob, contents, deep, state_of(UNREAD))) == found
    assert told(examined(blob, contents, deep, state_of())) == [], "it was dropped meanwhile"
    assert told(examined(blob, contents, deep, state_of(entry_of(contents_of(two, upper=5))))) == [], "or replaced"


@pytest.mark.parametrize("deep", [True, False])
def test_parts_inside_the_log_runs_and_schemas_are_examined(deep: bool) -> None:
    blob = MemoryBlob()
    one, two, three = (
        stored_part(blob, *keys, name=name) for keys, name in (((1, 4), "a"), ((5, 6), "b"), ((4, 5), "c"))
    )
    inline = change(one, blob="", inline=blob.get(one.blob) or b"")
    assert examined(blob, contents_of(inline, upper=5), deep).checked == {"inline": Checked(1, one.bytes)}
    wrong = change(inline, inline=b"rows")
    assert [found[:2] for found in told(examined(blob, contents_of(wrong, upper=5), deep))] == [
        ("damaged", f"inline part {one.checksum}")
    ] * deep
    neither = "its descriptor must have either the key of a blob or the bytes themselves"
    assert told(examined(blob, contents_of(change(one, blob=""), upper=5), deep)) == [
        ("rule", f"inline part {one.checksum}", neither, "c")
    ]
    for second, is_wrong in ((two, False), (three, True)):
        run = change(contents_of(one, second, upper=5), history=((0, 1),))
        what = f"it overlaps in key with {one.blob}, and both are in one run"
        assert told(examined(blob, run, deep)) == [("overlap", second.blob, what, "c")] * is_wrong
    [(*where, what, name)] = told(examined(blob, change(SOUND, schema_json={"key": "odd"}), deep))
    assert (where, name) == (["rule", f"collection {LOCATION}"], "c")
    assert what.startswith("its schema cannot be understood, so its parts were not examined: ")


@pytest.mark.parametrize("deep", [True, False])
def test_what_tables_and_archives_need_is_looked_for(deep: bool) -> None:
    blob = Frugal()
    table = Publication("3" * 32, 1, 4, 1, metadata=("table/b", "table/a"))
    archive = TokenArchive(BlobRef(blob="archive", bytes=5, checksum="4" * 32), 1)
    refused = "until it is back, a write with a token that is not among the newest is refused"
    contents = change(SOUND, numbered={}, history=(), published={"delta": table}, archived=Archives((archive,)))
    needs = "it is missing, and a published table needs it: unpublish it, and publish again"
    assert told(examined(blob, contents, deep)) == [
        ("missing", "table/a", needs, "c"),
        ("missing", "table/b", needs, "c"),
        ("missing", "archive", f"it is missing, and older tokens are in it: {refused}", "c"),
    ]
    assert told(examined(blob, contents, deep, state_of(entry_of(SOUND)))) == []
    assert len(told(examined(blob, contents, deep, state_of(UNREAD)))) == 3
    assert len(told(examined(blob, contents, deep, state_of()))) == 3
    for key in ("table/a", "table/b", "archive"):
        blob.set(key, b"four")
    [(*where, what, name)] = told(examined(blob, contents, deep))
    assert (where, name) == (["damaged", "archive"], "c")
    assert what.endswith(f": {refused}")
    assert deep or what == f"it has 4 bytes, and 5 belong there: {refused}"


FIRST = Record(
    location=LOCATION, seqno=0, commit=LOCATION, previous=None, writer="w", epoch=None, written_ms=0, mutations=()
)
RECORD = encode_framed(FIRST)


@pytest.mark.parametrize(
    ("data", "error", "kind"),
    [
        (b"", IncompatibleVersion("log/1", 9, 3), "incompatible"),
        (RECORD, MissingBlob("log/1", "gone"), "missing"),
        (None, CorruptBlob("log/1", "it is not a valid record"), "damaged"),
        (b"odd", CorruptBlob("log/1", "it is not a valid record"), "damaged"),
        (RECORD, CorruptBlob("log/1", "it is not a valid record"), "rule"),
        (RECORD, CorruptBlob("log/1", "no writer would make it"), "rule"),
        (RECORD, CorruptBlob("log/1", "it breaks a rule of the log"), "rule"),
        (RECORD, CorruptBlob("log/1", "it says seqno 0"), "exchanged"),
        (RECORD, CorruptBlob("state/1", "it is not a valid record"), "exchanged"),
    ],
)
def test_an_error_of_a_reader_is_classified(data: bytes | None, error: Corruption, kind: str) -> None:
    blob = MemoryBlob()
    if data is not None:
        blob.set(error.key, data)  # type: ignore[attr-defined]
    findings = Findings(blob)
    for _ in range(2):  # Each is told once.
        findings.add_corruption(error, collection="c")
    what = getattr(error, "reason", "it has format version 9, and versions up to 3 are known here")
    assert told(findings) == [(kind, error.key, what, "c")]  # type: ignore[attr-defined]


def test_what_is_read_is_counted_once_and_keys_that_cannot_be_are_not_there() -> None:
    class Odd(MemoryBlob):
        def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
            if key == "bad":
                raise InvalidUsage("no such key")
            if key == "worse":
                raise StoreMisconfigured("no such store")
            return super().get(key, range)

    inner = Odd()
    inner.set("log/0", b"four")
    inner.set("part/0", b"five!")
    findings = Findings(inner)
    blob = CountedBlob(inner, findings)
    assert (blob.get("log/0", (0, 2)), findings.checked) == (b"fo", {})
    for read in (blob.get, lambda key: blob.get_at_most(key, OBJECT_BYTES_MAX)):
        assert (read("log/0"), read("part/0"), read("log/1"), read("bad")) == (b"four", b"five!", None, None)
        with pytest.raises(StoreMisconfigured):
            read("worse")
    assert findings.checked == {"log": Checked(1, 4), "part": Checked(1, 5)}


def test_an_age_is_told_in_its_largest_unit() -> None:
    ages = {
        -3.0: "0 s",
        59.4: "59 s",
        60.0: "1.0 min",
        3599.0: "60.0 min",
        3600.0: "1.0 h",
        86399.0: "24.0 h",
        129600.0: "1.5 d",
    }
    assert {age: _format_age(age) for age in ages} == ages


def test_a_report_is_a_table_of_each_kind_and_nothing_where_there_is_none() -> None:
    assert str(FsckReport("mem", seqno=3)) == "mem up to seqno 3: no problem"
    assert [FsckReport("mem").is_empty, FsckReport("mem").is_clean] == [True, True]
    problem = Problem("missing", "part/1", "it is\n gone", "copy it", "c")
    leak = Unreferenced("notes.txt", "foreign", 1234, 5400.0, "see whose it is")
    for changed in ({"problems": (problem,)}, {"unreferenced": (leak,)}, {"checked": {"log": Checked(1, 1)}}):
        assert not replace(FsckReport("mem"), **changed).is_empty
    report = FsckReport(
        "mem", (problem,), (leak,), {"log": Checked(1234, 5)}, ("more",), 3, False, (Repair("create", "a", "why"),)
    )
    shown = """mem up to seqno 3, without reading parts: 1 problem

checked
  kind  blobs  bytes
  log   1,234      5

problems
  kind     blob    collection  what is wrong  what to do
  missing  part/1  c           it is gone     copy it

nothing refers to
  kind     blob       bytes    age  what to do
  foreign  notes.txt  1,234  1.5 h  see whose it is

unfinished
  more

repairs planned
  action  blob  why
  create  a     why"""
    assert [line.rstrip() for line in str(report).splitlines()] == shown.splitlines()
    done = replace(report, repairs_done=report.repairs_planned)
    rest = "\n\nrepairs done\n  action  blob  why\n  create  a     why\n\n"
    assert str(done) == f"{report}{rest}no problem is left"
    assert "problems left\n  kind" in str(replace(done, problems_left=(problem,)))
    assert str(replace(done, problems=())).endswith("create  a     why")


def test_a_dropped_part_and_a_published_file_are_told_from_leaks() -> None:
    key = f"part/{OTHER}/x"
    for dropped, is_so in (
        (Dropped(1, 0, LOCATION, blobs=(key,)), True),
        (Dropped(1, 0, LOCATION, blobs=("part/x",), folders=(OTHER,)), False),
        (Dropped(1, 0, OTHER), True),
        (Dropped(1, 0, LOCATION, folders=(OTHER,)), True),
        (Dropped(1, 0, LOCATION), False),
    ):
        assert _is_dropped(key, state_of(control=LocationState(dropped=(dropped,)))) is is_so
    state = state_of(entry_of(change(SOUND, published={"iceberg": Publication("3" * 32, 1, 4, 1)})))
    assert [_is_published(state, LOCATION, f"part/{name}") for name in ("x/_delta_log/0", "x/metadata")] == [
        False,
        True,
    ]
    assert [_is_published(state_of(UNREAD), id_, "part/x") for id_ in (LOCATION, OTHER)] == [True, False]


def examination_of(state: State, *entries: BlobEntry, now_s: float = 100.0) -> _Examination:
    examination = _Examination(MemoryBlob(), Settings(), ImpatientClock(), True)
    examination.log.state, examination._now_s = state, now_s
    examination.inventory = {entry.key: entry for entry in entries}
    return examination


def upload(folder: str, id_: str, seqno: int = 6, end: str = ".parquet") -> str:
    return f"{folder}/{id_}/{seqno:020d}-{'a' * 32}{end}"


OLD_ENOUGH = "repair, or gc, deletes it when it is old enough"
REPLACED, LOOSE, NAMED = upload("part", LOCATION, 3), upload("part", LOCATION, 4), upload("list", LOCATION, 5, ".json")


def test_each_object_that_nothing_refers_to_is_told_with_its_kind() -> None:
    tables = "the collection has no such table: publishing it again, or destroying it, deletes this"
    aside = "a repair has set it aside: delete it when you do not miss its contents"
    foreign = "this library did not write it: see whose it is"
    listed: dict[str, tuple[str, str] | None] = {
        CLOCK_KEY: None,
        make_record_key(4): ("record", "repair, or gc, deletes it: it is below the log's floor"),
        make_record_key(5): None,
        make_checkpoint_key(7): None,
        f"lost/{make_record_key(9)}": ("lost", aside),
        PART.blob: None,
        LOOSE: None,
        NAMED: None,
        REPLACED: ("part", "gc deletes it: compaction has replaced it"),
        upload("part", LOCATION): ("part", OLD_ENOUGH),
        upload("part", OTHER): ("part", "gc deletes it: its collection was destroyed"),
        upload("list", LOCATION, 6, ".json"): ("list", OLD_ENOUGH),
        upload("state", OTHER, 6, ".json"): ("state", "gc deletes it: its collection was destroyed"),
        f"directory/{6:020d}-{'a' * 32}.json": ("directory", OLD_ENOUGH),
        f"part/{LOCATION}/_delta_log/{0:020d}.json": None,
        f"part/{LOCATION}/metadata/v1.metadata.json": ("table", tables),
        f"part/{OTHER}/_delta_log/_last_checkpoint": ("part", "gc deletes it: its collection was destroyed"),
        "part/other": ("foreign", foreign),
        "notes.txt": ("foreign", foreign),
    }
    dropped = (Dropped(1, 0, OTHER), Dropped(2, 0, LOCATION, blobs=(REPLACED,)))
    contents = change(SOUND, published={"delta": Publication("3" * 32, 1, 4, 1)})
    state = state_of(entry_of(contents), control=LocationState(dropped=dropped))
    examination = examination_of(state, *(BlobEntry(key, 7, 40.0) for key in listed))
    examination.log.floor, examination.log.named = 5, {NAMED}
    examination.log.loose = [LoosePart(LOCATION, change(PART, blob=LOOSE), False)]
    found = [*examination._list_unreferenced()]
    assert {leak.blob: (leak.kind, leak.advice) for leak in found} == {key: of for key, of in listed.items() if of}
    assert {(leak.bytes, leak.age_s) for leak in found} == {(7, 60.0)}
    examination.log.state = None
    assert [*examination._list_unreferenced()] == []


@pytest.mark.parametrize(
    ("kind", "key", "age_s", "is_doomed"),
    [
        ("record", make_record_key(1), 0, True),
        ("foreign", upload("part", LOCATION), 99, False),
        ("lost", "lost/x", 99, False),
        ("table", f"part/{LOCATION}/metadata/v1.metadata.json", 99, False),
        ("part", upload("part", LOCATION, 6), 10, True),
        ("part", upload("part", LOCATION, 6), 9, False),
        ("part", upload("part", LOCATION, 7), 10, False),
        ("part", REPLACED, 10, False),
        ("part", "part/odd", 99, False),
        ("state", upload("state", LOCATION, 6, ".json"), 10, True),
        ("state", upload("state", LOCATION, 6, ".json"), 9, False),
        ("directory", f"directory/{6:020d}-{'a' * 32}.json", 10, True),
        ("list", upload("list", LOCATION, 4, ".json"), 10, True),
        ("list", upload("list", LOCATION, 5, ".json"), 10, False),
    ],
)
def test_what_is_old_enough_is_doomed(kind: Any, key: str, age_s: float, is_doomed: bool) -> None:
    class Ages:
        def is_old_upload(self, seqno: int, age_s: float) -> bool:
            return age_s >= 10

    state = state_of(control=LocationState(log_floor=5, dropped=(Dropped(2, 0, LOCATION, blobs=(REPLACED,)),)))
    leak = Unreferenced(key, kind, 1, age_s, "")
    ages: Any = Ages()
    assert examination_of(state)._is_doomed(leak, state, ages, 7) is is_doomed


@pytest.mark.parametrize("has_clock", [False, True])
def test_deletions_are_planned_with_what_comes_before_them(has_clock: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    examination = examination_of(state_of(), *[BlobEntry(CLOCK_KEY, 0, 0.0)] * has_clock)
    part, state_object, record = upload("part", LOCATION), upload("state", LOCATION, 6, ".json"), make_record_key(1)
    clock = ("replace" if has_clock else "create", CLOCK_KEY, "to ask the store what time it is")

    def planned(*doomed: str, floor: int = 1) -> list[tuple[str, ...]]:
        monkeypatch.setattr(examination, "_compute_upload_floor", lambda: floor)
        return [(step.action, step.blob, step.why) for step in examination.list_deletions([*doomed])]

    def declares(seqno: int, what: str) -> tuple[str, ...]:
        return "commit", make_record_key(seqno), f"to declare {what}; as after any commit, a checkpoint may follow"

    def deletes(*keys: str) -> list[tuple[str, ...]]:
        return [("delete", key, "nothing refers to it") for key in keys]

    made = "of what checkpoints are made from then on"
    assert planned() == []
    assert planned(record) == [clock, *deletes(record)]
    assert planned(part, floor=0) == [clock, *deletes(part)]
    assert planned(part) == [clock, declares(8, "old uploads void"), *deletes(part)]
    for doomed, seqno, first in (
        ((state_object,), 8, []),
        ((part, state_object), 9, [declares(8, "old uploads void")]),
    ):
        checkpoint = ("create", make_checkpoint_key(seqno), "the first one made so")
        assert planned(*doomed) == [clock, *first, declares(seqno, made), checkpoint, *deletes(*doomed)]


def test_a_checkpoint_is_overdue_by_records_and_by_age() -> None:
    key = make_record_key(3 + OVERDUE_INTERVALS * INTERVAL)
    for modified_s, newest, is_overdue in ((40.0, 3, True), (40.1, 3, False), (40.0, 4, False)):
        examination = examination_of(state_of(seqno=90), BlobEntry(key, 1, modified_s))
        examination.log.newest = newest
        examination._check_overdue()
        what = "the newest one is at seqno 3, and the log is at 90"
        assert told(examination.findings) == [("overdue", CHECKPOINTS, what, None)] * is_overdue
        assert examination.knows_references() is False, "the log does not end where the state does"


@pytest.mark.parametrize(
    ("keys", "what", "advice"),
    [
        ([CLOCK_KEY], "", ""),
        (
            [CLOCK_KEY, "part/1", "x", "lost/1"],
            "2 objects such as part/1 can be read by no client: no",
            "restore the log",
        ),
        (["lost/1"], "1 object such as lost/1 can be read by no client: no record is there", "restore the log"),
        (
            ["y", "x/part"],
            "this is not a location: nothing is there but what persist did not write, such as y",
            "check",
        ),
    ],
)
def test_objects_without_a_log_are_a_problem(keys: list[str], what: str, advice: str) -> None:
    examination = examination_of(state_of(), *(BlobEntry(key, 1, 0.0) for key in keys))
    examination._check_empty()
    assert [problem.blob for problem in examination.findings.problems] == ["log/"] * bool(what)
    for problem in examination.findings.problems:
        assert (problem.what.startswith(what), problem.advice.startswith(advice)) == (True, True)


def test_what_an_erasure_still_owes_is_told_for_each_kind() -> None:
    def pending(owed: dict[str, Any], name: str = ".owed.1") -> list[str]:
        about = About(properties={"owed": json.dumps(owed)})
        return [*_list_pending_erasures(state_of(UNREAD, entry_of(change(SOUND, id=OTHER, name=name, about=about))))]

    end = ": client.maintain() does it, or the next erase()"
    every = {"tables": {"a": 1}, "views": ["a"] * 1234, "indexes": ["a", "b"]}
    said = "an erasure has still to refresh views (1,234), fill indexes (2), publish tables (1)"
    assert (pending(every), pending({"views": []})) == ([said + end], [f"an erasure has still to end{end}"])
    assert pending(every, "plain") == [*_list_pending_erasures(None)] == []


def test_advice_to_make_again_is_for_what_checkpoints_consist_of() -> None:
    for folder, kind, is_advised in (
        *[(folder, kind, True) for folder in ("checkpoint/", "directory/", "state/") for kind in REMADE],
        *(("checkpoint/", "rule", False), ("log/", "missing", False), ("part/", "damaged", False)),
    ):
        problem = Problem(kind, f"{folder}1", "it is bad", "as before")  # type: ignore[arg-type]
        assert _add_advice(problem, "do this") == (replace(problem, advice="do this") if is_advised else problem)


def test_what_mutations_bring_is_noted() -> None:
    one, two, three = (part_of(1, n, n) for n in range(3))
    pointer = BlobRef(blob="list/1", bytes=1, checksum="4" * 32)
    erase = kinds.Erase(LOCATION, 1, "w", 0, "why", parts=(one, two, three), parts_in=pointer, events=1)
    log = LogExamination(MemoryBlob(), Findings(MemoryBlob()))
    for mutation, is_events in (
        (kinds.Append(LOCATION, (one, two)), [False, False]),
        (kinds.Pend(LOCATION, (one, two)), [True, True]),
        (erase, [False, False, True]),
    ):
        for state, is_noted in (
            (None, True),
            (state_of(UNREAD), True),
            (state_of(entry_of(SOUND)), False),
            (state_of(), False),
        ):
            log.loose = []
            log._note_loose([mutation, kinds.Seal(LOCATION, (1,))], state)
            assert (
                log.loose
                == [
                    LoosePart(LOCATION, part, is_event)
                    for part, is_event in zip(mutation.parts, is_events, strict=False)
                ]
                * is_noted
            )
    created, schema = kinds.Create(OTHER, "d", SOUND.schema_json), {"key": None, "value": None}
    evolved = [kinds.Evolve(OTHER, schema), kinds.Redefine(OTHER, {}, (1,)), kinds.Redefine(OTHER, {}, (1,), schema)]
    log._note_mutations([erase, kinds.Append(LOCATION, (one,)), created, *evolved])
    assert (log.named, log.created, log.evolved) == ({"list/1"}, {OTHER: created}, {OTHER: [schema, schema]})


def test_what_a_record_names_is_kept_with_it() -> None:
    one, two, inline = (change(PART, blob=key) for key in (REPLACED, LOOSE, ""))
    table = kinds.Publish(LOCATION, "delta", "3" * 32, 1, 4, parts=(two,), blobs=(NAMED,))
    mutations = (kinds.Append(LOCATION, (one, change(inline, inline=b"rows"))), kinds.Seal(LOCATION, (1,)), table)
    blob = MemoryBlob()
    blob.set(make_record_key(0), encode_framed(change(FIRST, mutations=mutations)))
    assert [*_list_record_names(blob, 0)] == [REPLACED, LOOSE, NAMED]
    assert [*_list_record_names(blob, 1)] == []
    blob.set(make_record_key(1), b"odd")
    assert [*_list_record_names(blob, 1)] == []


@pytest.mark.parametrize("is_keyed", [True, False])
def test_keys_with_several_values_are_one_problem_of_keyed_collections(
    is_keyed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = change(SOUND, keyed=KeyedForm(MachineForm("upsert", 1))) if is_keyed else SOUND
    what = "2 keys have more than one value, or less than none, at some time; one is (1,)"
    for wrong, is_told in (([((1,), 4), ((2,), 3)], True), ([], False)):
        findings = Findings(MemoryBlob())
        monkeypatch.setattr(parts, "find_keys_with_several", lambda *_, wrong=wrong: iter(wrong))
        parts.examine_values(MemoryBlob(), contents, findings)
        assert told(findings) == [("rule", f"part/{LOCATION}/", what, "c")] * (is_told and is_keyed)
    for error in (CorruptBlob("part/1", "gone"), DiffOverflow("too much")):
        monkeypatch.setattr(parts, "find_keys_with_several", lambda *_, error=error: throw(error))
        parts.examine_values(MemoryBlob(), contents, findings)
    assert told(findings) == []


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("kind", [MissingBlob, CorruptBlob])
def test_what_a_checkpoint_lacks_that_was_collected_meanwhile_is_no_problem(
    kind: type[CorruptBlob], is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob, key = MemoryBlob(), make_checkpoint_key(7)
    if is_there:
        blob.set(key, b"odd")
    log = LogExamination(blob, Findings(blob))
    monkeypatch.setattr(log, "_load_base", lambda *_: throw(kind("state/1", "gone")))
    monkeypatch.setattr("persist.services.fsck.log.load_state", lambda *_: throw(kind("state/1", "gone")))
    entry = CollectionEntry(LOCATION, "c", base=BlobRef(blob="state/1", bytes=1, checksum="4" * 32))
    checkpoint = Checkpoint(location=LOCATION, seqno=7, commit=OTHER, control=LEASED, collections=())
    is_told = is_there or kind is CorruptBlob
    found = [("missing" if kind is MissingBlob else "damaged", "state/1", "gone", "c")] * is_told
    assert (log._load_contents(state_of(entry), entry), told(log._findings)) == (None, found)
    log._examine_checkpoint(checkpoint)
    assert (told(log._findings), log.bad_checkpoints) == (found, {key} if is_told else set())


@pytest.mark.parametrize("makes_one", [True, False])
def test_checkpoints_are_made_again_before_bad_ones_go(makes_one: bool) -> None:
    blob, state = MemoryBlob(), state_of(entry_of(change(SOUND, numbered={}, history=())))
    own, other, sound = (make_checkpoint_key(seqno) for seqno in (7, 3, 2))
    for key in (own, other) if makes_one else (other,):
        blob.set(key, b"odd")
    repair = CheckpointRepair(
        blob, state, sorted([own, other, sound] if makes_one else [other, sound]), makes_one=makes_one
    )
    planned = [(step.action, step.blob, step.why) for step in repair.plan()]
    made = "what the log says up to seqno 7"
    gone = [("delete", key, "it cannot be used, and a newer or equal one can") for key in (other, sound)]
    first: list[Any] = planned[: -len(gone)] or [None]
    *objects, last = first
    assert planned[-len(gone) :] == sorted(gone, key=lambda step: step[1])
    assert last == (("replace", own, made) if makes_one else None)
    assert [(action, key[:39], why) for action, key, why in objects] == [
        ("create", f"state/{LOCATION}/", made)
    ] * makes_one
    done = [(step.action, step.blob, step.why) for step in repair.run()]
    assert done == [step for step in planned if step[1] != sound], "what is not bad by now stays"
    assert [entry.key for entry in blob.list("checkpoint/")] == [own] * makes_one
    assert [*repair.run()] == []
