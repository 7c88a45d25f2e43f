"""Compaction: what is due, what it makes of a collection, and what it destroys."""

import base64
import hashlib
import io
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import persist
from persist.blob.errors import Unavailable
from persist.blob.protocol import MemoryBlob
from persist.blob.stores.file import FileBlob
from persist.codecs.part.key_range import KeyRange
from persist.codecs.part.part import Part
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.updates import to_updates
from persist.core.log import kinds
from persist.core.log.fields import Keyframe
from persist.core.settings import Tuning
from persist.core.state_rules.contents import CollectionState
from persist.engine.compact import ErasedRecords, MadeRun, choose_next_work
from persist.engine.compact.compactor import _Attempt
from persist.engine.write.part_writer import PartWriter
from tests.support.clocks import DatedBlob, ImpatientClock
from tests.support.keyframes import contents_of, part_of, snapshots
from tests.support.parts import commit_parts
from tests.support.stepped import WAIT_S
from tests.support.tuned import tuned

KEY, VALUE = {"k": pa.int64()}, {"v": pa.string()}
HOUR = 3600.0
SMALL = Tuning(
    part_bytes=64 << 10, keyframe_rows_min=20, keyframe_fraction=0.5, merge_runs=3, inline_runs=4, inline_bytes=4000
)


def opened(blob: Any, **changed: Any) -> persist.Client:
    clock = blob.clock if isinstance(blob, DatedBlob) else None
    settings = tuned(**{"background": False, "hold_linger_s": 0, "tuning": SMALL, **changed})
    return persist.open(blob, clock=clock, settings=settings)


def state(client: persist.Client, handle: persist.Collection) -> CollectionState:
    contents = client.engine.follower.load(handle.id)
    assert contents is not None
    return contents


@cache
def noise(key: int) -> str:
    return hashlib.sha256(b"%d" % key).hexdigest()[:12]


def text(value: str, key: int) -> str:
    """A value that does not compress away."""
    return f"{value}{noise(key)}"


def rows_at(rows: int, at: int, start: int = 0, diff: int = 1, value: str = "x") -> pa.Table:
    keys = np.arange(start, start + rows)
    return pa.table(
        {
            "k": keys,
            "v": [text(value, k) for k in keys.tolist()],
            "_time": np.full(rows, at),
            "_diff": np.full(rows, diff),
        }
    )


def is_clean(client: persist.Client) -> bool:
    return client.fsck().is_clean


def report_of(read: Sequence[Part], written: Sequence[Part], **done: Any) -> persist.CompactionReport:
    """Return the report of work that has read and written these parts."""
    counts: dict[str, Any] = {
        f"{what}_{did}": sum(1 if what == "parts" else getattr(part, what) for part in parts)
        for did, parts in (("read", read), ("written", written))
        for what in ("parts", "rows", "bytes")
    }
    return persist.CompactionReport(**counts, **done)


class Oracle:
    """Everything that was written, in a list."""

    def __init__(self) -> None:
        self.updates: list[tuple[tuple[int, str], int, int]] = []

    def contents(self, as_of: int) -> dict[Any, int]:
        sums: Counter[Any] = Counter()
        for record, at, diff in self.updates:
            if at <= as_of:
                sums[record] += diff
        return {record: n for record, n in sums.items() if n}

    def changes(self, lower: int, upper: int) -> dict[Any, int]:
        sums: Counter[Any] = Counter()
        for record, at, diff in self.updates:
            if lower <= at < upper:
                sums[record, at] += diff
        return {update: n for update, n in sums.items() if n}


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("seed", range(2))
def test_every_readable_time_reads_the_same_whatever_was_compacted(seed: int) -> None:
    chance, oracle, current = random.Random(seed), Oracle(), dict[int, str]()
    since = upper = 0
    with opened(MemoryBlob()) as client, opened(client.engine.storage.metered._inner) as other:
        handles = [each.create_or_load("c", key=KEY, value=VALUE) for each in (client, other)]
        for _ in range(24):
            updates = []
            for key in chance.sample(range(50), chance.randint(0, 25)):
                at = upper + chance.choice([0, 0, 0, 1, 3])  # Some ahead of the seal: they straddle keyframes.
                if key in current and chance.random() < 0.6:
                    updates.append(((key, current.pop(key)), upper, -1))
                elif key not in current:
                    current[key] = f"v{chance.randrange(5)}"
                    updates.append(((key, current[key]), upper, 1))
                if chance.random() < 0.05:  # A record with any multiplicity, negative ones too.
                    updates.append(((key, "extra"), at, chance.choice([-2, 1, 3])))
            oracle.updates += updates
            handle = chance.choice(handles)
            handle.write(updates, seal=upper + 1).result()
            upper += 1
            if chance.random() < 0.3:
                chance.choice(handles).compact(only_due=chance.random() < 0.7)
            if chance.random() < 0.15:
                since = chance.randint(since, upper - 1)
                handle.allow_compaction(since).result()
            for as_of in {since, upper - 1, chance.randint(since, upper - 1)}:
                snapshot = chance.choice(handles).snapshot(as_of, form="diff")
                assert dict(snapshot.rows()) == oracle.contents(as_of), snapshot.explain()
                assert snapshot.count() == sum(oracle.contents(as_of).values())
                keys_only = chance.choice(handles).snapshot(as_of, form="diff", columns=["v"]).to_arrow()
                by_value = Counter[str]()
                for (_, value), n in oracle.contents(as_of).items():
                    by_value[value] += n
                expected = {value: n for value, n in by_value.items() if n}
                assert {row["v"]: row["_diff"] for row in keys_only.to_pylist()} == expected
            lower = chance.randint(since + 1, upper) if since else chance.randint(0, upper)
            found = {(record, at): n for record, at, n in handle.changes(lower, upper).updates()}
            assert found == oracle.changes(lower, upper)
        assert is_clean(client)
        assert len(state(client, handles[0]).keyframes) > 1


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("seed", range(3))
def test_every_time_reads_the_same_where_few_ranges_of_keys_change_often(seed: int) -> None:
    """Most changes go to a small range of keys that moves on now and then, or grows at the end; a few go anywhere."""
    chance, by_time, current = random.Random(seed), list[dict[int, str]](), dict[int, str]()
    tuning = Tuning(part_bytes=8 << 10, keyframe_rows_min=20, merge_runs=4)
    since = shared = quiet = 0
    with opened(MemoryBlob(), tuning=tuning) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        for at in range(24):
            if at % 8 == 0:
                hot = chance.choice([0, chance.randrange(6000), 5950, 6000 + at])
            changes = [hot + chance.randrange(40) for _ in range(150)] if at else [*range(6000)]
            if chance.random() < 0.2:
                changes.append(chance.randrange(7000))
            updates = []
            for key in dict.fromkeys(changes):
                if key in current:
                    updates.append(((key, current.pop(key)), at, -1))
                if not at or chance.random() < 0.8:
                    current[key] = text(str(at), key)
                    updates.append(((key, current[key]), at, 1))
            by_time.append(dict(current))
            c.write(updates, seal=at + 1).result()
            before = state(client, c).keyframes
            report = c.compact(only_due=chance.random() < 0.5)
            shared += report.parts_shared
            if len(report.keyframes) == 1 and before:
                [newest] = [each for each in state(client, c).keyframes if each.as_of == report.keyframes[0]]
                quiet += len(newest.parts) - report.parts_shared > 1  # One part became several.
            if chance.random() < 0.1:
                since = chance.randint(since, at)
                c.allow_compaction(since).result()
        for as_of in chance.sample(range(since, len(by_time)), 6):
            for snapshot in snapshots(c, as_of):  # By each keyframe, and by none.
                assert sorted(snapshot.rows()) == sorted(by_time[as_of].items()), snapshot.explain()
        assert shared > 10
        assert quiet > 0, "nothing was cut where activity differs"
        assert is_clean(client)


def test_a_large_part_is_cut_between_the_keys_that_change_and_those_that_do_not() -> None:
    with opened(MemoryBlob(), tuning=Tuning(part_bytes=100 << 10, keyframe_rows_min=20)) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)

        def changed(at: int, start: int, old: str, new: str) -> persist.CompactionReport:
            rows = pa.concat_tables([rows_at(5, at, start, -1, old), rows_at(5, at, start, 1, new)])
            c.write(rows, seal=at + 1).result()
            before, report = state(client, c), c.compact()
            after = state(client, c)
            base = {*before.keyframes[-1].parts} if before.keyframes else set()
            kept = base & {*after.keyframes[-1].parts}
            small = [part for part in before.history_parts if part.inline]  # It is read once more, out of the log.
            read = [*small, *(small if base else before.history_parts), *before.list_parts(base - kept)]
            new_parts = after.list_parts(after.numbered.keys() - before.numbered.keys())
            counts = {"parts_shared": len(kept), "keyframes_dropped": len(before.keyframes) + 1 - len(after.keyframes)}
            assert report == report_of(read, new_parts, keyframes=(at,), runs_merged=1, **counts)
            return report

        def parts() -> list[Part]:
            contents = state(client, c)
            return [*contents.list_parts(contents.keyframes[-1].parts)]

        c.write(rows_at(10_000, 0), seal=1).result()
        assert changed(1, 9990, "x", "y").parts_shared == 0
        [whole] = parts()
        assert changed(2, 9990, "y", "z").parts_shared == 0
        quiet, hot = parts()
        schema = CollectionSchema.of(KEY, VALUE)
        before, after = (KeyRange(*bounds) for bounds in ((None, [9990]), ([9990], None)))
        assert before.covers(quiet, schema)
        assert after.may_overlap(hot, schema)
        assert quiet.rows + hot.rows == whole.rows
        assert hot.rows < whole.rows / 16, "up to a thirty-second on either side"
        assert changed(3, 9990, "z", "y").parts_shared == 1
        assert parts()[0] == quiet
        assert changed(4, 4500, "x", "y").parts_shared == 1
        below, middle, above, last = parts()
        assert last == parts()[-1]
        assert min(below.bytes, above.bytes) > 25 << 10 > 5 * middle.bytes
        assert changed(5, 4500, "y", "z").parts_shared == 3
        assert changed(6, 2000, "x", "y").parts_shared == 2, "it is less than two quarters, and takes what is small"
        assert [part.rows for part in parts()] == [below.rows + middle.rows, above.rows, last.rows]
        assert is_clean(client)


def test_a_report_is_a_sentence_and_reports_add_up() -> None:
    one = persist.CompactionReport((3, 7), 2, 1, 1, 4, 50, 6000, 2, 40, 5000, 1, 1)
    assert str(one) == (
        "keyframe as of 3, keyframe as of 7, history up to 2 forgotten, 1 run merged, 1 keyframe dropped, 1 part "
        "shared, 1 time another compaction was faster, read 4 parts (6,000 bytes), wrote 2 parts (5,000 bytes)"
    )
    least = persist.CompactionReport(forgotten=0)
    assert str(least) == "history up to 0 forgotten, read 0 parts (0 bytes), wrote 0 parts (0 bytes)"
    assert str(persist.CompactionReport()) == "nothing to do"
    both = persist.CompactionReport((3, 7, 3, 7), 2, 2, 2, 8, 100, 12_000, 4, 80, 10_000, 2, 2)
    assert (one + one, one + least, least + persist.CompactionReport()) == (both, one, least)


def test_parts_without_a_key_in_common_stay_if_they_are_large_enough() -> None:
    def kept(*parts: Part) -> Any:
        contents = contents_of(*parts)
        return client.engine.writer("a test").compactor._select_disjoint_parts(contents, [*contents.numbered])

    with opened(MemoryBlob(), tuning=Tuning(part_bytes=8000)) as client:
        first, second = part_of(100, 0, 0, keys=(0, 9)), part_of(100, 0, 0, keys=(10, 19))
        assert (kept(first, second), kept(second, first)) == ((0, 1), (1, 0))
        assert kept(first, part_of(100, 0, 0, keys=(9, 19))) is kept(first, part_of(99, 0, 0, keys=(10, 19))) is None
        unknown = msgspec.structs.replace(second, keys_json=msgspec.Raw(b"null"))
        assert kept(first, unknown) is kept(first, msgspec.structs.replace(second, blob="", inline=b"rows")) is None
        attempt = _Attempt(contents_of(first, second))
        attempt.parts = [third := part_of(7, 0, 0, keys=(20, 29)), fourth := part_of(8, 0, 0, keys=(29, 30))]
        assert attempt.list_part_numbers(MadeRun((1, fourth, third), 0)) == (1, -2, -1)
        attempt.check((0, 1, -1), 207)
        for run, diffs in (((0, 1, -1), 206), ((1, 0), 200), ((-1, -2), 15)):
            with pytest.raises(AssertionError, match=r"sum to 207, and those of its sources to 206$|overlap in key"):
                attempt.check(run, diffs)


def test_rows_for_which_a_condition_is_null_are_not_erased() -> None:
    rows = pa.table({"k": [1, 2, 3], "v": ["x", None, "y"]})
    records = ErasedRecords.select_by_condition(pc.field("v") == "x", CollectionSchema.of(KEY, VALUE))
    assert [part["k"].to_pylist() for part in (*records.split(rows), records.drop_erased(rows))] == [
        [1],
        [2, 3],
        [2, 3],
    ]


def test_keys_to_erase_narrow_the_parts_where_a_filter_can_tell() -> None:
    for keys, narrows in (([1, 2], True), ([1, None], False), ([1.0, 2.0], False)):
        rows = pa.table({"k": pa.array([1, 3], pa.array(keys).type)})
        assert len(rows.filter(ErasedRecords(pa.table({"k": keys}), None).filter)) == (1 if narrows else 2)


def test_small_writes_leave_the_log_when_they_reach_the_cap() -> None:
    policy = Tuning(inline_runs=4)
    with opened(MemoryBlob(), tuning=policy) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        for at in range(4):
            assert choose_next_work(state(client, c), policy) is None
            c.write(rows_at(2, at), seal=at + 1).result()
        before, report = state(client, c).parts, c.compact(only_due=True)
        contents = state(client, c)
        assert report == report_of(before, contents.parts, runs_merged=4)
        assert contents.inline_bytes == 0
        assert [part.rows for part in contents.parts] == [8]
        assert c.compact(only_due=True) == persist.CompactionReport()
        assert c.changes(1, 3).to_arrow().num_rows == 4


def test_a_new_keyframe_shares_the_parts_whose_keys_did_not_change() -> None:
    with opened(MemoryBlob()) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        c.write(rows_at(60_000, 0), seal=1).result()
        c.write(pa.concat_tables([rows_at(1, 1, diff=-1), rows_at(1, 1, value="y")]), seal=2).result()
        c.compact()
        [first] = state(client, c).keyframes
        assert len(first.parts) > 3
        edge = 30_000
        c.write(pa.concat_tables([rows_at(5, 2, edge, -1), rows_at(5, 2, edge, value="z")]), seal=3).result()
        c.write(pa.concat_tables([rows_at(5, 2 + 1, 0, 1), rows_at(5, 2 + 1, 0, -1)]), seal=4).result()
        report = c.compact()
        second = state(client, c).keyframes[-1]
        assert report.parts_shared == len(first.parts) - 1 == len(set(first.parts) & set(second.parts))
        assert f"{report.parts_shared} parts shared" in str(report)
        found = c.snapshot(3).to_arrow().sort_by("k")
        letters = "y" + "".join("z" if edge <= k < edge + 5 else "x" for k in range(1, 60_000))
        assert found["v"].to_pylist() == [text(letter, k) for k, letter in enumerate(letters)]
        assert is_clean(client)


def test_large_parts_without_a_key_in_common_are_merged_without_reading_them() -> None:
    """As a log of events does, whose keys grow with time."""
    with opened(MemoryBlob()) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        for at in range(3):
            c.write(rows_at(20_000, at, start=at * 20_000), seal=at + 1).result()
        before = {part.blob for part in state(client, c).parts}
        report = c.compact()
        assert (report.runs_merged, report.rows_read, report.rows_written) == (3, 0, 0)
        assert {part.blob for part in state(client, c).parts} == before
        assert len(state(client, c).history) == 1
        assert c.snapshot().count() == 60_000
        assert c.changes(1, 2).to_arrow().num_rows == 20_000


def holders(blob: MemoryBlob, secret: str) -> Iterator[str]:
    """Yield the keys of blobs that hold a text: in a Parquet file, in rows that are inside JSON, or as it is."""

    def in_parquet(data: bytes) -> bool:
        return secret in str(pq.read_table(io.BytesIO(data)).to_pylist()) or secret.encode() in data

    def in_json(found: Any) -> bool:
        if isinstance(found, dict):
            inline = found.get("inline")
            if isinstance(inline, str):
                data = base64.b64decode(inline)
                # A batch is not compressed, so the text stands in it.
                if in_parquet(data) if "footer" in found else secret.encode() in data:
                    return True
            return any(map(in_json, found.values()))
        return any(map(in_json, found)) if isinstance(found, list) else secret in str(found)

    for entry in blob.list(""):
        data = blob.get(entry.key) or b""
        if (
            in_parquet(data)
            if entry.key.endswith(".parquet")
            else in_json(json.loads(data[: data.rindex(b"}") + 1]))
            if b"}" in data
            else secret.encode() in data
        ):
            yield entry.key


@pytest.mark.parametrize("rows", [3, 20_000], ids=["in the log", "in parts"])
def test_a_deleted_value_is_gone_from_the_store_after_the_grace_period_even_if_nobody_writes(rows: int) -> None:
    dated = DatedBlob(ImpatientClock())
    secret = "hush"
    with opened(dated) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        c.write(rows_at(rows, 0, value=secret), seal=1).result()
        c.write(rows_at(5, 0 + 1, start=10**6), seal=2).result()
        c.compact(only_due=True)
        c.write(rows_at(rows, 2, diff=-1, value=secret), seal=3).result()
        c.allow_compaction(2).result()
        assert [*holders(dated, secret)]
    with opened(dated) as client:  # Another one, that never writes: its maintenance is enough.
        assert client.load("c").snapshot(2).count() == 5
        for _ in range(8):
            dated.clock.sleep(HOUR / 2)
            client.maintain()
        assert [*holders(dated, secret)] == []
        assert client.load("c").snapshot(2).count() == 5
        assert is_clean(client)


def test_an_exclusive_writer_does_not_keep_others_from_compacting() -> None:
    blob = MemoryBlob()
    settings = persist.Settings(background=False, tuning=SMALL)
    with persist.open(blob, mode="exclusive", settings=settings) as writer, opened(blob) as other:
        c = writer.create_or_load("c", key=KEY, value=VALUE)
        c.write(rows_at(50, 0), seal=1).result()
        c.write(rows_at(50, 1, diff=-1), seal=2).result()
        assert other.load("c").compact().keyframes == (1,)
        c.write(rows_at(5, 2), seal=3).result()
        assert c.snapshot().count() == 5


def test_a_client_compacts_in_the_background_unless_told_not_to() -> None:
    blob = MemoryBlob()
    eager = Tuning(keyframe_rows_min=20, merge_runs=3, inline_runs=4, compaction_interval_s=0.05)
    with persist.open(blob, settings=persist.Settings(tuning=eager)) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        for at in range(10):
            c.write(rows_at(30, at, diff=-1 if at % 2 else 1), seal=at + 1).result()
        deadline = time.monotonic() + WAIT_S
        while not state(client, c).keyframes:
            assert time.monotonic() < deadline, "nothing was compacted"
            time.sleep(0.02)
        assert any(thread.name == "persist-upkeep" for thread in threading.enumerate())
    with opened(blob):
        assert all(thread.name != "persist-upkeep" for thread in threading.enumerate())


def test_a_full_disk_ends_a_compaction_and_nothing_is_replaced(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = FileBlob(tmp_path, fsync=False)
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        c.write(rows_at(60_000, 0), seal=1).result()
        c.write(rows_at(30_000, 1, diff=-1), seal=2).result()
        before, stored = state(client, c), {entry.key for entry in blob.list("part/")}
        put, calls = PartWriter.put, 0

        def full(writer: PartWriter, *arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise Unavailable("No space left on device")
            return put(writer, *arguments)

        monkeypatch.setattr(PartWriter, "put", full)
        with pytest.raises(persist.Unavailable, match="No space"):
            c.compact()
        monkeypatch.undo()
        assert calls > 1
        assert state(client, c) == before
        assert {entry.key for entry in blob.list("part/")} == stored
        c.compact()
        assert c.snapshot().count() == 30_000


def test_compaction_ends_when_its_client_is_closed() -> None:
    client = opened(MemoryBlob())
    c = client.create_or_load("c", key=KEY, value=VALUE)
    c.write(rows_at(60_000, 0), seal=1).result()
    c.write(rows_at(30_000, 1, diff=-1), seal=2).result()
    client.engine.writer("a test").compactor.close()
    with pytest.raises(persist.errors.ClientClosed):
        c.compact()
    client.close()


def test_fsck_finds_a_keyframe_that_does_not_say_what_the_history_says() -> None:
    with opened(MemoryBlob()) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        c.write(rows_at(50, 0), seal=1).result()
        c.write(rows_at(20, 1, diff=-1), seal=2).result()
        c.compact()
        c.write(rows_at(10, 2, start=100), seal=3).result()
        assert is_clean(client)
        wrong = pa.concat_tables([rows_at(29, 2, start=20), rows_at(10, 2, start=100)])  # One record is missing.
        parts = PartWriter(client.engine.blob, client.engine.follower.find_next_seqno).upload(c.id, c.schema, wrong)
        step = kinds.Replace(c.id, parts=parts, keyframes=(Keyframe(2, (-1,)),))
        client.engine.writer("a test").committer.submit([step], {c.id: "c"}).result()
        [problem] = client.fsck().problems
        assert (problem.kind, problem.blob) == ("disagrees", parts[0].blob)
        assert "the keyframe as of 2 differs in 1 records from what the keyframe as of 1" in problem.what


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize(("part_bytes", "is_once"), [(64 << 20, True), (1 << 10, False)])
def test_small_runs_that_piled_up_are_merged_once_as_far_as_they_make_one_part(part_bytes: int, is_once: bool) -> None:
    tuning = Tuning(part_bytes=part_bytes, merge_runs=3, inline_bytes=1 << 30, inline_runs=1000)
    with opened(MemoryBlob(), tuning=tuning) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        uploads = PartWriter(client.engine.blob, client.engine.follower.find_next_seqno)
        for at in range(30):
            parts = uploads.upload(c.id, c.schema, to_updates(rows_at(100, at, start=37 * at), c.schema))
            commit_parts(c, parts).result()
        c.seal(30).result()
        rows = c.snapshot().to_arrow().sort_by("k")
        merged = c.compact().runs_merged
        assert merged == 30 if is_once else merged > 30
        assert c.snapshot().to_arrow().sort_by("k").equals(rows)


def test_what_compaction_reads_to_replace_it_leaves_nothing_in_the_caches_of_readers(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        for at in range(40):
            c.write(rows_at(400, at, start=at), seal=at + 1).result()
        report = c.compact()
        assert report.runs_merged > 10
        assert client.engine.caches.indexes._kept.bytes == client.engine.caches.decoded.bytes == 0
