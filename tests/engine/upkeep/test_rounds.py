"""What one round of a collector deletes and keeps, where the store says to the millisecond how old everything is."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import persist
from persist.blob.errors import StoreFull
from persist.blob.protocol import Blob, BlobEntry, MemoryBlob
from persist.core.log import kinds
from persist.core.log import records as commits
from persist.core.log.keys import CLOCK_KEY, make_checkpoint_key, make_record_key, parse_checkpoint_seqno
from persist.core.log.records import read_record
from persist.engine.follow.checkpoint import write_checkpoint
from persist.engine.upkeep import Deleted, GarbageReport
from persist.engine.write.part_writer import PartWriter
from tests.support.checkpoints import wait_for_checkpoint
from tests.support.clocks import ImpatientClock
from tests.support.rollback import Copy, copied, restore
from tests.support.tuned import tuned

KEY = {"k": pa.int64()}
UPLOADED = pa.table({"k": range(2_000), "_time": [90] * 2_000, "_diff": [1] * 2_000})
NOW_S = 1_800_000_000.0
GRACE_S = 500.0


class Dated(MemoryBlob):
    """A store whose clock shows `now_s`, and which dates what it holds by it, or as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = NOW_S
        self.dates: dict[str, float] = {}
        self.full: tuple[str, ...] = ()  # Prefixes for which there is no room.

    def _take(self, key: str) -> None:
        if key.startswith(self.full) and self.full:
            raise StoreFull(f"no room for {key}")

    def set(self, key: str, value: bytes) -> None:
        self._take(key)
        super().set(key, value)
        self.dates[key] = self.now_s

    def create(self, key: str, value: bytes) -> bool:
        self._take(key)
        created = super().create(key, value)
        if created:
            self.dates[key] = self.now_s
        return created

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        for entry in super().list(prefix, start_after):
            yield replace(entry, modified_s=self.dates[entry.key])


def keys(blob: MemoryBlob, prefix: str = "") -> list[str]:
    return [entry.key for entry in blob.list(prefix)]


def opened(blob: Blob, **changed: Any) -> persist.Client:
    settings = tuned(**{"background": False, "hold_linger_s": 0, "grace_s": GRACE_S, **changed})
    return persist.open(blob, clock=ImpatientClock(NOW_S), settings=settings)


def floor(client: persist.Client) -> int:
    return client.engine.follower.state.control.log_floor


@pytest.fixture(scope="module")
def sixty() -> Copy:
    """A location of 60 records, the last of which is at 59, with checkpoints at 15, 31 and 47."""
    blob = Dated()
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY)
        for time in range(1, 60):
            c.seal(time).result()
            wait_for_checkpoint(client)
    return copied(blob)


def aged(copy: Copy, ages_s: dict[int, float]) -> Dated:
    """Return the location of a copy, whose records were made long ago, and its checkpoints so long ago."""
    blob = Dated()
    blob.now_s = NOW_S - 1e6
    restore(blob, copy)
    blob.now_s = NOW_S
    for seqno, age_s in ages_s.items():
        blob.dates[make_checkpoint_key(seqno)] = NOW_S - age_s
    return blob


FEW: dict[str, Any] = {"log_retention_records": 16, "log_retention_s": 1000.0}
LONG: dict[str, Any] = {"log_retention_records": 16, "log_retention_s": 1e9}


@pytest.mark.parametrize(
    ("ages_s", "settings", "expected"),
    [
        ((1000, 999, 10), FEW, 16),  # What a checkpoint proves to be as old as the retention, and no later record.
        ((999.9, 999, 10), FEW, 0),
        ((-1, -2, -3), FEW, 0),  # By a store whose clock went back.
        ((9000, 5000, 10), FEW, 32),
        ((3000, 2000, 1500), FEW, 44),  # The last 16 of 60 stay, however old.
        ((3000, 2000, 1500), FEW | {"log_retention_records": 30}, 30),
        ((3000, 2000, 1500), FEW | {"log_retention_records": 58}, 0),  # A tenth of that is not worth a record.
        ((3000, 2000, 1500), FEW | {"log_retention_records": 55}, 5),
        ((500, 499, 10), LONG | {"log_records_max": 20}, 16),  # Too many, and as old as the grace period.
        ((900, 800, 700), LONG | {"log_records_max": 20}, 40),  # The newest 20 are not too many.
        ((900, 800, 700), LONG | {"log_records_max": 60}, 0),
        ((900, 800, 700), LONG | {"log_records_max": 59}, 1),
        ((240, 239, 10), LONG | {"log_records_max": 20, "grace_s": 0.0}, 16),  # Four minutes at least.
    ],
)
def test_the_log_begins_where_nobody_needs_what_was_before(
    sixty: Copy, ages_s: tuple[float, ...], settings: dict[str, Any], expected: int
) -> None:
    blob = aged(sixty, dict(zip((15, 31, 47), ages_s, strict=True)))
    with opened(blob, **settings) as client:
        client.gc()
        assert floor(client) == expected
        assert keys(blob, "log/")[0] == make_record_key(expected)
    stay = {parse_checkpoint_seqno(key) or 0 for key in keys(blob, "checkpoint/")}
    made = {seqno: 0.0 for seqno in stay if seqno >= 59}
    assert stay == kept_checkpoints(dict(zip((15, 31, 47), ages_s, strict=True)) | made, expected) | made.keys()


def test_the_newest_records_that_stay_have_no_more_than_so_many_bytes(sixty: Copy) -> None:
    blob = aged(sixty, {15: 900, 31: 800, 47: 700})
    newest = [entry.bytes for entry in blob.list("log/")][-30:]
    for spare, expected in ((0, 30), (-1, 31)):
        with opened(aged(sixty, {15: 900, 31: 800, 47: 700}), **LONG, log_bytes_max=sum(newest) + spare) as client:
            client.gc()
            assert floor(client) == expected


def test_between_two_collections_the_log_is_shortened_when_it_is_a_quarter_longer_than_it_should_be(
    sixty: Copy,
) -> None:
    for records_max, expected in ((48, 0), (47, 13)):
        with opened(aged(sixty, {15: 900, 31: 800, 47: 700}), **LONG, log_records_max=records_max) as client:
            client.engine.writer("a test").garbage.shorten_log()
            assert floor(client) == expected


def test_between_two_collections_nothing_is_done_about_a_log_that_is_short_enough_where_it_begins(sixty: Copy) -> None:
    blob = aged(sixty, {15: 900, 31: 800, 47: 700})
    with opened(blob, **LONG, log_records_max=47) as client:
        client.engine.writer("a test").garbage.shorten_log()
        assert floor(client) == 13
    blob.now_s += 1000
    with opened(blob, **FEW, log_records_max=47) as client:
        client.engine.writer("a test").garbage.shorten_log()
        assert floor(client) == 13, "it would be 44 after a collection of garbage"


def test_where_records_alone_are_dated_none_goes_that_follows_a_checkpoint_which_somebody_has_just_read(
    sixty: Copy,
) -> None:
    """There is room for a record only, not for a checkpoint nor for the question what time it is."""
    for ages_s, expected in (((900, 240), 32), ((900, 239), 16), ((240, 10), 16), ((239, 10), 0)):
        blob = aged(sixty, {15: ages_s[0], 31: ages_s[1], 47: 10})
        blob.dates[make_record_key(59)] = NOW_S  # The present, as far as the store tells it.
        blob.full = ("checkpoint/", CLOCK_KEY)
        with opened(blob, **FEW) as client:
            with pytest.raises(StoreFull, match="deleting more needs a small write first"):
                client.gc()
            assert floor(client) == expected
        assert keys(blob, "log/")[0] == make_record_key(0), "no checkpoint says yet where the log begins"


@pytest.mark.parametrize("full", ["checkpoint/", CLOCK_KEY, "log/"])
def test_a_round_for_which_there_was_no_room_says_so_whatever_it_was_for(sixty: Copy, full: str) -> None:
    blob = aged(sixty, {15: 5000, 31: 4900, 47: 4800})
    blob.full = (full,)
    with opened(blob, **FEW) as client, pytest.raises(StoreFull, match=f"the store is full: no room for {full}"):
        client.gc()


def kept_checkpoints(ages_s: dict[int, float], floor: int) -> set[int]:
    """Return which checkpoints stay: the newest two; the last one of each minute, or hour if it is an hour old."""
    seqnos = sorted(ages_s, reverse=True)
    kept, seen = set(seqnos[:2]), set()
    for seqno in seqnos:
        width_s = 3600 if ages_s[seqno] >= 3600 else 60
        span = width_s, (NOW_S - ages_s[seqno]) // width_s
        if span not in seen and seqno >= floor - 1:
            kept.add(seqno)
        seen.add(span)
    return kept


def test_checkpoints_stay_one_a_minute_for_an_hour_and_one_an_hour_after_that(sixty: Copy) -> None:
    blob = aged({key: data for key, data in sixty.items() if not key.startswith("checkpoint/")}, {})
    ages = [
        -130,
        -70,
        -10,
        0,
        20,
        59.9,
        60,
        61,
        120,
        3540,
        3599.9,
        3600,
        3660,
        3700,
        7199,
        7200,
        7201,
        10_800,
        14_399,
        15_000,
    ]
    ages_s = {59 - n: age_s for n, age_s in enumerate(ages)}
    for seqno in sorted(ages_s):
        with persist.open(blob, mode="read", seqno=seqno, clock=ImpatientClock(NOW_S)) as then:
            assert write_checkpoint(blob, then.engine.follower.state, {})
        blob.dates[make_checkpoint_key(seqno)] = NOW_S - ages_s[seqno]
    with opened(blob, log_retention_s=1e9) as client:
        client.gc()
    assert {parse_checkpoint_seqno(key) for key in keys(blob, "checkpoint/")} - {60} == kept_checkpoints(ages_s, 0)


@pytest.fixture
def small_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make directory objects, state objects and part lists of little data."""
    monkeypatch.setattr("persist.engine.follow.directory.INLINE_BYTES_MAX", 600)
    monkeypatch.setattr("persist.engine.follow.checkpoint.STORED_PENDING_MAX", 2)
    monkeypatch.setattr(commits, "PARTS_INLINE_MAX", 0)


LARGE = pa.table({"k": np.random.default_rng(0).integers(0, 2**62, 20_000)})


def littered(blob: Dated, client: persist.Client) -> tuple[str, str]:
    """Bring about old garbage; return the part of a destroyed collection, and one that no record names."""
    blob.now_s = NOW_S - 10_000
    stays, doomed, quiet = (client.create_or_load(name, key=KEY) for name in ("stays", "doomed", "quiet"))
    for each in (stays, doomed, quiet):
        each.write(LARGE, time=0, seal=1).result()
    (destroyed,) = keys(blob, f"part/{doomed.id}/")
    (orphan,) = PartWriter(blob, client.engine.follower.find_next_seqno).upload(stays.id, stays.schema, UPLOADED)
    doomed.drop().result()
    for time in range(2, 40):
        stays.write([((1, None), time, 1)], seal=time + 1).result()
        wait_for_checkpoint(client)
    blob.now_s = NOW_S
    return destroyed, orphan.blob


ALL_AT_ONCE: dict[str, Any] = {"log_retention_s": 1000.0, "log_retention_records": 16, "orphan_grace_s": 2000.0}


def reported(blob: Dated, before: Copy) -> dict[str, int]:
    """Return what a report should say of what has gone from a store since it was copied."""
    gone = before.keys() - copied(blob).keys()
    folders = {"parts": "part/", "lists": "list/", "states": "state/", "directories": "directory/"}
    folders |= {"checkpoints": "checkpoint/", "records": "log/"}
    counts = {what: sum(key.startswith(folder) for key in gone) for what, folder in folders.items()}
    return counts | {"bytes": sum(len(before[key]) for key in gone)}


@pytest.mark.usefixtures("small_objects")
def test_a_plan_says_what_a_collection_of_garbage_deletes_and_a_report_what_it_deleted() -> None:
    blob = Dated()
    with opened(blob, **ALL_AT_ONCE) as client:
        parts = littered(blob, client)
        before = copied(blob)
        planned, length = client.gc(dry_run=True), len(keys(blob, "log/"))
        assert copied(blob) == before
        done, added = client.gc(), 2  # Records that say what is collected, and what uploads are void.
        assert asdict(done) == {"collections": 1, **reported(blob, before)}
        assert not {*parts} & {*keys(blob, "part/")}
        assert len(keys(blob, "part/")) == 2
        assert (planned.collections, planned.parts) == (done.collections, done.parts) == (1, 2)
        assert planned.records == length - 16 == done.records - added
        assert planned.lists == done.lists - added == planned.records - 4  # The first ones made no part lists.
        assert done.blobs == 2 + done.lists + done.states + done.directories + done.checkpoints + done.records
        assert [client[name].snapshot().count() for name in ("stays", "quiet")] == [20_038, 20_000]
        assert client.fsck().is_clean


@pytest.mark.usefixtures("small_objects")
def test_of_what_is_said_to_have_leaked_only_that_goes_which_a_collection_of_garbage_would_delete() -> None:
    blob = Dated()
    with opened(blob, **ALL_AT_ONCE) as client:
        garbage = client.engine.writer("a test").garbage
        assert garbage.delete_leaked(["part/x"]) == Deleted()
        destroyed, orphan = littered(blob, client)
        newest = max(parse_checkpoint_seqno(key) or 0 for key in keys(blob, "checkpoint/"))
        unused = [
            f"{folder}/{seqno:020d}-{'0' * 32}.json"
            for folder in (f"state/{client['stays'].id}", "directory")
            for seqno in (0, newest, newest + 1)
        ]
        late = f"state/{client['stays'].id}/{0:020d}-{'1' * 32}.json"
        for key in (*unused, late):
            blob.set(key, b"")
            blob.dates[key] = NOW_S - 10_000
        blob.dates[late] = NOW_S + 10  # The store's clock went back.
        before = copied(blob)
        named = [key for key in keys(blob, "part/") if key not in (destroyed, orphan)]
        asked = [*named, destroyed, orphan, *unused, late, make_record_key(0), "elsewhere", *keys(blob, "checkpoint/")]
        deleted = garbage.delete_leaked(asked)
        assert sorted(deleted.keys) == sorted([orphan, *unused[:2], *unused[3:5]]), (
            "a later checkpoint may name the others"
        )
        assert before.keys() - copied(blob).keys() == {*deleted.keys}
        seqnos = [n for n in deleted.declared_at if client.engine.follower.state.seqno >= n]
        assert [type(m) for n in seqnos for m in read_record(blob, n).mutations] == [kinds.VoidUploads, kinds.TakeOver]  # type: ignore[union-attr]
        assert garbage.delete_leaked([orphan, *named]) == Deleted()


def test_without_a_grace_period_a_plan_counts_what_was_just_destroyed() -> None:
    with opened(Dated(), grace_s=0.0) as client:
        c = client.create_or_load("c", key=KEY)
        c.write(LARGE, time=0, seal=1).result()
        c.drop().result()
        planned = client.gc(dry_run=True)
        assert (planned.collections, planned.parts) == (1, 1)


def test_a_report_adds_up_what_was_deleted_and_says_it_in_words() -> None:
    report = GarbageReport(1, 2, 4, 8, 16, 32, 64, 1000)
    assert report.blobs == 126
    assert str(report) == (
        "deleted 1 destroyed collection, 2 parts, 4 lists, 8 states, 16 directories, 32 checkpoints, 64 records: "
        "1,000 bytes"
    )
    assert GarbageReport(parts=1, bytes=5).sentence("would delete") == "would delete 1 part: 5 bytes"


def test_nothing_is_planned_for_a_location_without_records() -> None:
    with opened(Dated()) as client:
        garbage = client.engine.writer("a test").garbage
        assert garbage.plan() == GarbageReport()
        assert str(garbage.plan()) == "nothing to delete"


@pytest.mark.parametrize(("what", "after_s"), [("destroyed", GRACE_S), ("uploaded", 2000.0)])
def test_blobs_go_when_their_grace_is_over_and_not_a_moment_sooner(what: str, after_s: float) -> None:
    blob = Dated()
    with opened(blob, orphan_grace_s=2000.0) as client:
        c = client.create_or_load("c", key=KEY)
        if what == "uploaded":
            list(PartWriter(blob, client.engine.follower.find_next_seqno).upload(c.id, c.schema, UPLOADED))
            c.seal(91).result()
        else:
            c.write(LARGE, time=0, seal=1).result()
            c.drop().result()
        (part,) = keys(blob, "part/")
        client.gc()  # It makes a checkpoint, which proves later how old the records are.
        blob.now_s = NOW_S - 5  # The store's clock goes back.
        client.gc()
        for since_s, expected in ((after_s - 0.001, [part]), (after_s, [])):
            blob.now_s = NOW_S + since_s
            client.gc()
            assert keys(blob, "part/") == expected


@pytest.mark.parametrize("first", ["source", "clone"])
def test_what_a_collection_and_its_clone_share_goes_with_the_last_of_them(first: str) -> None:
    blob = Dated()
    with opened(blob, orphan_grace_s=GRACE_S) as client:
        source = client.create_or_load("source", key=KEY)
        source.write(LARGE, time=0, seal=1).result()
        (shared,) = keys(blob, "part/")
        clone = client.clone("source", "clone", as_of=0)
        source.write(LARGE, time=1, seal=2).result()
        (of_source,) = {*keys(blob, "part/")} - {shared}
        clone.write(LARGE, time=1, seal=2).result()
        (of_clone,) = {*keys(blob, "part/")} - {shared, of_source}
        dropped, other = (source, clone) if first == "source" else (clone, source)
        for handle, left in ((dropped, {shared, of_clone if first == "source" else of_source}), (other, set[str]())):
            handle.drop().result()
            client.gc()  # It makes a checkpoint, which proves later how old the records are.
            blob.now_s += GRACE_S
            assert client.gc().collections == 1
            client.gc()  # What a clone had in the folder of another one is like an upload that nothing names.
            assert {*keys(blob, "part/")} == left
            if left:
                with other.snapshot(1) as snapshot:
                    assert snapshot.count() == 40_000
                client.maintain()  # Nobody reads it any more.


def test_while_a_destroyed_collection_waits_uploads_of_others_go() -> None:
    blob = Dated()
    with opened(blob, orphan_grace_s=100.0, grace_s=5000.0) as client:
        made = sorted((client.create_or_load(f"c{n}", key=KEY) for n in range(3)), key=lambda each: each.id)
        made[1].write(LARGE, time=0, seal=1).result()
        (waits,) = keys(blob, "part/")
        for each in (made[0], made[2]):
            list(PartWriter(blob, client.engine.follower.find_next_seqno).upload(each.id, each.schema, UPLOADED))
        made[1].drop().result()
        for _ in range(3):
            client.gc()
            blob.now_s += 200
        assert keys(blob, "part/") == [waits]


def test_an_upload_stays_while_there_is_no_room_to_declare_it_void() -> None:
    """Also one of before the first record, which lies below every floor that is ever declared."""
    blob = Dated()
    with opened(blob, orphan_grace_s=100.0) as client:
        c = client.create_or_load("c", key=KEY)
        list(PartWriter(blob, lambda: 0).upload(c.id, c.schema, UPLOADED))
        uploads = keys(blob, "part/")
        client.gc()
        blob.now_s += 200
        blob.full = ("log/",)
        with pytest.raises(StoreFull):
            client.gc()
        assert keys(blob, "part/") == uploads
        blob.full = ()
        client.gc()
        assert keys(blob, "part/") == []


@pytest.mark.usefixtures("small_objects")
def test_a_checkpoint_that_came_late_and_names_what_is_gone_is_deleted_with_its_round() -> None:
    blob = Dated()
    with opened(blob, log_retention_s=1e9) as client:
        c = client.create_or_load("c", key=KEY)
        for time in range(1, 48):
            c.seal(time).result()
            wait_for_checkpoint(client)
            blob.now_s += 100
        states = keys(blob, "state/")
        assert [parse_checkpoint_seqno(key) for key in keys(blob, "checkpoint/")] == [47, 31, 15]
        blob.delete(states[0])
        deleted = client.engine.writer("a test").garbage.delete_leaked(keys(blob, "checkpoint/"))
        assert deleted.keys == (), "only a whole round deletes checkpoints"
        client.gc()
        assert [n for key in keys(blob, "checkpoint/") if (n := parse_checkpoint_seqno(key) or 0) <= 47] == [47, 31]
        assert c.snapshot().count() == 0
        assert client.fsck().is_clean


@pytest.mark.parametrize(
    ("settings", "after_s"),
    [({"grace_s": 0.0}, 240), ({"grace_s": 500.0}, 500), ({"grace_s": 500.0, "orphan_grace_s": 100.0}, 100)],
)
def test_objects_that_nothing_names_go_after_the_grace_period_or_four_minutes(
    sixty: Copy, settings: dict[str, Any], after_s: float
) -> None:
    blob = aged(sixty, {})
    with opened(blob, **settings) as client:
        ages_s = (after_s - 0.001, after_s)
        young, old = (f"state/{client['c'].id}/{47:020d}-{n * 32}.json" for n in "01")
        for key, age_s in zip((young, old), ages_s, strict=True):
            blob.set(key, b"")
            blob.dates[key] = NOW_S - age_s
        assert client.gc(dry_run=True).states == 1
        client.gc()
        assert {young, old} & {*keys(blob)} == {young}


def test_records_that_may_hold_what_was_destroyed_go_after_the_grace_period_whatever_the_retention_says() -> None:
    for age_s, is_gone in ((GRACE_S - 0.001, False), (GRACE_S, True)):
        blob = Dated()
        with opened(blob, **LONG) as client:
            c = client.create_or_load("c", key=KEY)
            for time in range(19):
                c.write([((time, None), time, 1 - 2 * (time % 2))], seal=time + 1).result()
            c.allow_compaction(18).result()
            c.compact()
            destroyed = client.seqno
            for time in range(20, 60):
                c.seal(time).result()
            wait_for_checkpoint(client)
            client.gc()
            assert floor(client) == 0
            blob.now_s = NOW_S + age_s
            client.gc()
            assert floor(client) == is_gone * client.engine.follower.state.control.erased
            assert 19 < client.engine.follower.state.control.erased <= destroyed
