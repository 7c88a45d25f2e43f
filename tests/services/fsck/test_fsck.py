"""Examination of a location: damage is found and named, what is healthy is clean, a repair does as it says."""

import json
import random
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from time import sleep
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

import persist
from persist.blob.layers.metered import MeteredBlob
from persist.blob.protocol import Blob, MemoryBlob
from persist.blob.stores.file import FileBlob
from persist.codecs.part.describing import check_part, describe_footer
from persist.codecs.part.file_writer import FileWriter
from persist.codecs.part.part import Part, compute_checksum
from persist.codecs.part.stream import encode_parts
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.updates import to_updates
from persist.core.log import kinds as record_kinds
from persist.core.log import records as commits
from persist.core.log.fields import Words
from persist.core.log.framing import FORMAT, encode_framed, store_framed
from persist.core.log.keys import make_checkpoint_key, make_record_key, parse_checkpoint_seqno, parse_upload_seqno
from persist.core.log.kinds import Mutation
from persist.core.log.records import Record, read_record
from persist.engine.follow.checkpoint import Checkpoint, read_checkpoint, read_newest_checkpoint
from persist.engine.follow.follower import Follower
from persist.engine.follow.state_objects import StateObject
from persist.engine.write.part_writer import PartWriter
from tests.rules.golden.make import FIELDS
from tests.support.checkpoints import wait_for_checkpoint
from tests.support.clocks import DatedBlob, ImpatientClock
from tests.support.parts import commit_parts
from tests.support.paths import GOLDEN
from tests.support.stepped import Stepped
from tests.support.tuned import tuned

KEY = {"k": pa.int64()}
VALUE = {"v": pa.string()}
HOUR, DAY = 3600.0, 86400.0
SETTINGS = tuned(background=False, log_retention_s=3600, hold_linger_s=0, log_retention_records=16)


@pytest.fixture
def dated() -> DatedBlob:
    return DatedBlob(ImpatientClock())


@pytest.fixture(autouse=True)
def _long_lists_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "PARTS_INLINE_MAX", 1)


def opened(blob: Blob, clock: ImpatientClock | None = None) -> persist.Client:
    clock = clock or (blob.clock if isinstance(blob, DatedBlob) else None)
    return persist.open(blob, clock=clock, settings=SETTINGS)


def fsck(blob: Blob, **options: Any) -> persist.FsckReport:
    clock = blob.clock if isinstance(blob, DatedBlob) else None
    return persist.fsck(blob, settings=SETTINGS, clock=clock, **options)


def rows(start: int, count: int, time: int) -> pa.Table:
    keys = range(start, start + count)
    return pa.table({"k": keys, "v": [f"value {k}" for k in keys], "_time": [time] * count, "_diff": [1] * count})


def uploads(blob: Blob, client: persist.Client, handle: persist.Collection, time: int, count: int = 2) -> list[Part]:
    """Upload parts, which no record names yet."""
    writer = PartWriter(blob, client.engine.follower.find_next_seqno)
    updates = [to_updates(rows(1000 * i, 50, time), handle.schema) for i in range(count)]
    return [part for each in updates for part in writer.upload(handle.id, handle.schema, each)]


def busy(blob: Blob, rounds: int = 8) -> None:
    """Leave every kind of blob: inline parts, large ones, lists, state objects, checkpoints."""
    if not isinstance(blob, DatedBlob):
        fill(blob, rounds)
        return
    filled = _filled(rounds)
    blob.clock.sleep(filled.clock.monotonic_s())
    for key, value in everything(filled).items():
        blob.set(key, value)


@cache
def _filled(rounds: int) -> DatedBlob:
    """Fill a store that many tests copy, which is cheaper than to fill one for each."""
    blob = DatedBlob(ImpatientClock())
    fill(blob, rounds)
    return blob


def fill(blob: Blob, rounds: int) -> None:
    with opened(blob) as client:
        for name in ("a", "b", "c"):
            client.create_or_load(name, key=KEY, value=VALUE)
        for time in range(rounds):
            a, b, c = (client.load(name) for name in ("a", "b", "c"))
            a.write([((time, "x"), time, 1)], token=f"token-{time}").result()
            commit_parts(b, uploads(blob, client, b, time)).result()
            c.write(rows(0, 20_000, time) if time % 6 == 0 else rows(0, 10, time)).result()
            for each in (a, b, c):
                each.seal(time + 1).result()
        wait_for_checkpoint(client)


def contents_of(blob: Blob) -> dict[str, list[dict[str, Any]]]:
    with persist.open(blob, mode="read") as client:
        return {name: client.load(name).snapshot(form="diff").to_arrow().to_pylist() for name in client.collections()}


def everything(blob: Blob) -> dict[str, bytes]:
    return {entry.key: blob.get(entry.key) or b"" for entry in blob.list("")}


def keys(blob: Blob, prefix: str) -> list[str]:
    return [entry.key for entry in blob.list(prefix)]


def last_part(blob: Blob, name: str) -> Part:
    follower = Follower(blob, ImpatientClock())
    contents = follower.load(follower.state.ids[name])
    assert contents is not None
    return contents.parts[-1]


def append_record(blob: Blob, *mutations: Mutation, **changed: Any) -> str:
    """Put a record at the end of the log without asking anybody whether it is valid; return its key."""
    state = Follower(blob, ImpatientClock()).state
    fields = {
        "location": state.location,
        "seqno": state.seqno + 1,
        "commit": uuid.uuid4().hex,
        "previous": state.commit,
        "writer": "a test",
        "epoch": None,
        "written_ms": 0,
        "mutations": mutations,
    }
    record = Record(**{**fields, **changed})
    blob.set(make_record_key(record.seqno), encode_framed(record))
    return make_record_key(record.seqno)


# What is healthy.


def healthy(blob: Blob, clock: ImpatientClock | None) -> persist.Client:
    """A location with all that a long life leaves behind; the client that it returns has a read open."""
    busy(blob)
    client = opened(blob, clock)
    gone = client.create_or_load("gone", key=KEY, value=VALUE)
    gone.write(rows(0, 20_000, 0), seal=1).result()
    gone.drop().result()
    a = client.load("a")
    a.snapshot()
    a.hold(2)
    a.hold(3, name="consumer")
    a.allow_compaction(5).result()
    with client.multi_write(token="both") as multi:
        multi.write(a, [((1, "y"), 12, 1)])
        multi.write(client.load("c"), [((1, "y"), 12, 1)])
    if clock is not None:
        clock.sleep(2 * HOUR)
        client.maintain()
    client.gc()
    for time in range(14, 40):
        a.seal(time).result()
    if clock is not None:
        wait_for_checkpoint(client)
        clock.sleep(2 * HOUR)
        client.gc()
    return client


def test_a_healthy_location_is_clean_and_everything_was_looked_at(dated: DatedBlob) -> None:
    with healthy(dated, dated.clock) as client:
        assert read_newest_checkpoint(dated).control.log_floor > 0
        for report in (fsck(dated), client.fsck(), fsck(dated, deep=False)):
            assert report.is_clean, str(report)
            assert not report.unreferenced, str(report)
        report = fsck(dated)
        # Its part lists went with the records that named them.
        assert set(report.checked) == {"log", "checkpoint", "state", "part", "inline"}
        for prefix in ("log", "part", "checkpoint"):
            sizes = [entry.bytes for entry in dated.list(f"{prefix}/")]
            assert report.checked[prefix] == persist.Checked(len(sizes), sum(sizes))
        assert report.seqno == client.engine.follower.state.seqno


def test_a_healthy_folder_is_clean(tmp_path: Path) -> None:
    with healthy(FileBlob(tmp_path, fsync=False), None):
        report = persist.fsck(tmp_path)
        assert report.is_clean, str(report)
        # What destroying left is listed, and is not a problem.
        assert {found.advice for found in report.unreferenced} == {"gc deletes it: its collection was destroyed"}


@pytest.mark.thorough(except_every=9)
@pytest.mark.parametrize("folder", sorted(GOLDEN.glob("format-*/location")), ids=lambda folder: folder.parent.name)
def test_golden_locations_are_clean(folder: Path) -> None:
    report = persist.fsck(folder)
    assert report.is_clean, str(report)
    # One of them was left while its log was being truncated, and before what compaction replaced was deleted.
    kinds = {found.kind for found in report.unreferenced if "compaction has replaced it" not in found.advice}
    assert kinds <= {"record"}, str(report)


def test_a_log_that_was_truncated_in_part_is_read_by_the_schemas_of_the_newest_state(dated: DatedBlob) -> None:
    with persist.open(dated, settings=SETTINGS) as client:
        users = client.create_or_load("users", key=KEY, value=VALUE, keyed=persist.Keyed())
        users.evolve(add={"w": pa.string()})
        for time in range(2, 200):
            users.seal(time).result()
            wait_for_checkpoint(client)  # Or else a slow one stands for the next, and the last is too old.
            if time == 186:  # In records that the log keeps, and before the newest checkpoint.
                users.upsert([(1, ("a", "b"), time)]).result()
        wait_for_checkpoint(client)
        before = {entry.key: dated.get(entry.key) or b"" for entry in dated.list("")}
        dated.clock.sleep(2 * HOUR)
        client.gc()
    # As a collector leaves it that dies among the records, and before there is a checkpoint of where the log begins.
    for key in {entry.key for entry in dated.list("checkpoint/")}:
        dated.delete(key)
    newest = min(key for key in before if key.startswith("checkpoint/"))
    for key in (newest, make_record_key(0), *(key for key in before if not key.startswith(("checkpoint/", "log/")))):
        dated.set(key, before[key])
    assert dated.get(make_record_key(1)) is None
    assert read_newest_checkpoint(dated).control.log_floor == 0
    report = fsck(dated)
    assert report.is_clean, str(report)


def test_a_location_that_does_not_exist_is_empty_and_is_not_made(tmp_path: Path) -> None:
    report = persist.fsck(tmp_path / "nothing", repair=True)
    assert (report.is_empty, report.is_clean, report.seqno) == (True, True, -1)
    assert not (tmp_path / "nothing").exists()


def test_the_examination_of_a_read_client_writes_nothing(dated: DatedBlob) -> None:
    busy(dated)
    metered = MeteredBlob(dated)
    with persist.open(metered, mode="read") as client:
        assert client.fsck().is_clean
        assert client.fsck(repair=True, dry_run=True).is_clean
        with pytest.raises(persist.errors.ReadOnly):
            client.fsck(repair=True)
    counts = metered.get_counts()
    assert [counts[name].requests for name in ("set", "create", "delete")] == [0, 0, 0]


def test_a_dry_run_without_a_repair_is_a_mistake(dated: DatedBlob) -> None:
    with pytest.raises(persist.InvalidUsage, match="dry_run=True goes with repair=True"):
        fsck(dated, dry_run=True)


# Damage of bytes.


def flip(blob: Blob, key: str, other: str) -> None:
    data = bytearray(blob.get(key) or b"")
    data[len(data) // 3] ^= 16
    blob.set(key, bytes(data))


def truncate(blob: Blob, key: str, other: str) -> None:
    blob.set(key, (blob.get(key) or b"")[:-7])


def empty(blob: Blob, key: str, other: str) -> None:
    blob.set(key, b"")


def delete(blob: Blob, key: str, other: str) -> None:
    blob.delete(key)


def exchange(blob: Blob, key: str, other: str) -> None:
    mine, theirs = blob.get(key) or b"", blob.get(other) or b""
    blob.set(key, theirs)
    blob.set(other, mine)


def replace(blob: Blob, key: str, other: str) -> None:
    blob.set(key, blob.get(other) or b"")


DAMAGES: dict[Callable[[Blob, str, str], None], str] = {
    flip: "damaged",
    truncate: "damaged",
    empty: "damaged",
    delete: "missing",
    exchange: "exchanged",
    replace: "exchanged",
}


@pytest.mark.thorough(except_every=7)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("prefix", ["log/", "checkpoint/", "state/", "list/", "part/"])
def test_damage_is_found_named_and_classified(
    dated: DatedBlob, prefix: str, damage: Callable[[Blob, str, str], None]
) -> None:
    busy(dated, 20 if prefix == "state/" else 8)
    found = keys(dated, prefix)
    if prefix == "state/":  # What the newest checkpoint refers to.
        found = [c.base.blob for c in newest(dated).collections if c.base is not None]
    key, other = found[len(found) // 2], found[0]
    assert key != other
    before = everything(dated)
    damage(dated, key, other)
    report = fsck(dated)
    if (damage, prefix) == (delete, "checkpoint/"):
        assert report.is_clean, "older checkpoints come and go"
        return
    concerned = {key, other} if damage is exchange else {key}
    named = {problem.blob for problem in report.problems}
    assert named == concerned, str(report)
    assert {problem.kind for problem in report.problems} == {DAMAGES[damage]}, str(report)
    assert key in str(report)
    if prefix == "part/":
        belongs = any("it holds what belongs to part/" in problem.what for problem in report.problems)
        assert belongs is (DAMAGES[damage] == "exchanged")
        assert "None" not in str(report)
    if prefix in ("part/", "state/"):
        assert {problem.collection for problem in report.problems} <= {"a", "b", "c"}
    for each, data in before.items():
        if data != dated.get(each):
            assert each in concerned


def newest(blob: Blob) -> Checkpoint:
    found = read_checkpoint(blob, keys(blob, "checkpoint/")[0])
    assert found is not None
    return found


def test_a_damaged_part_of_a_keyed_collection_is_one_problem(dated: DatedBlob) -> None:
    with opened(dated) as client:
        users = client.create_or_load("users", key=KEY, value=VALUE, keyed=persist.Keyed())
        users.upsert([(k, "x" * 9) for k in range(20_000)], time=0, seal=1).result()
        users.compact()
    part = last_part(dated, "users").blob
    flip(dated, part, "")
    assert {(problem.kind, problem.blob) for problem in fsck(dated).problems} == {("damaged", part)}


def test_every_byte_of_a_small_location_is_covered() -> None:
    blob = MemoryBlob()
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        commit_parts(c, uploads(blob, client, c, 1)).result()
        for time in range(16):
            c.seal(time).result()
        wait_for_checkpoint(client)
    chance = random.Random(5)
    assert {key.split("/")[0] for key in keys(blob, "")} == {"log", "part", "list", "checkpoint"}
    for key, data in everything(blob).items():
        for at in sorted(chance.sample(range(len(data)), min(len(data), 4))):
            changed = bytearray(data)
            changed[at] ^= 1 << chance.randrange(8)
            blob.set(key, bytes(changed))
            report = fsck(blob)
            assert key in {problem.blob for problem in report.problems}, (key, at, str(report))
        blob.set(key, data)
    assert fsck(blob).is_clean


def test_one_damage_does_not_hide_another(dated: DatedBlob) -> None:
    busy(dated)
    parts, checkpoints = keys(dated, "part/"), keys(dated, "checkpoint/")
    broken = [parts[0], parts[-1], make_record_key(5), make_record_key(40), checkpoints[-1], keys(dated, "list/")[3]]
    for key in broken:
        flip(dated, key, "")
    report = fsck(dated)
    assert {problem.blob for problem in report.problems} == set(broken)


def test_parts_are_examined_even_if_the_record_before_theirs_is_gone() -> None:
    blob = MemoryBlob()
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        c.seal(1).result()
        c.write(rows(0, 20_000, 1)).result()
    [part] = keys(blob, "part/")
    blob.delete(make_record_key(1))
    flip(blob, part, "")
    kinds = {(problem.kind, problem.blob) for problem in fsck(blob).problems}
    assert kinds == {("missing", make_record_key(1)), ("beyond", make_record_key(2)), ("damaged", part)}


def test_missing_records_are_found_wherever_they_are(dated: DatedBlob) -> None:
    busy(dated)
    last = len(keys(dated, "log/")) - 1
    newest_checkpoint = parse_checkpoint_seqno(keys(dated, "checkpoint/")[0])
    assert newest_checkpoint is not None
    for gone in ([0], [7, 8, 9], [newest_checkpoint - 1], [*range(newest_checkpoint - 2, last + 1)]):
        before = {seqno: dated.get(make_record_key(seqno)) or b"" for seqno in gone}
        for seqno in gone:
            dated.delete(make_record_key(seqno))
        problem, *others = fsck(dated).problems
        assert (problem.kind, problem.blob) == ("missing", make_record_key(gone[0]))
        stray = f"the log ends at seqno {gone[0] - 1}, and this checkpoint was made after records that it does not have"
        beyond = [("beyond", make_checkpoint_key(newest_checkpoint), stray)] if gone[-1] == last else []
        assert [(other.kind, other.blob, other.what) for other in others] == beyond
        known = [seqno for seqno in gone if seqno <= newest_checkpoint or gone[-1] < last]
        said = f"the {len(known)} records of seqnos {known[0]} to {known[-1]} are missing, and "
        assert problem.what == said + ("a checkpoint is later" if beyond else "there are later ones")
        for seqno, data in before.items():
            dated.set(make_record_key(seqno), data)
    assert fsck(dated).is_clean


def test_a_record_far_beyond_the_end_is_found_at_once(dated: DatedBlob) -> None:
    busy(dated, 2)
    end = len(keys(dated, "log/"))
    dated.set("log/" + "9" * 20, dated.get(make_record_key(3)) or b"")
    kinds = {(problem.kind, problem.blob) for problem in fsck(dated).problems}
    far = "log/" + "9" * 20
    assert kinds == {("missing", make_record_key(end)), ("exchanged", far), ("beyond", far)}


def test_without_records_a_truncated_location_with_no_readable_checkpoint_says_what_is_missing(
    dated: DatedBlob,
) -> None:
    with healthy(dated, dated.clock):
        pass
    for key in keys(dated, "checkpoint/"):
        flip(dated, key, "")
    report = fsck(dated, repair=True)
    assert make_record_key(0) in {problem.blob for problem in report.problems if problem.kind == "missing"}
    assert report.repairs_planned == ()
    assert all("copy" in problem.advice for problem in report.problems if problem.blob.startswith("checkpoint/"))


# What has the right checksum and is wrong.


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("rows", 49),
        ("time_min", 11),
        ("time_max", 13),
        ("negatives", 1),
        ("diff_sum", 49),
        ("keys", [[k] for k in range(9)]),
        ("keys", [[0], [49]]),
        ("stats", {"k": "nonsense"}),
        ("stats", {"k": [0, 48, 0]}),
        ("stats", {"nothing": [0, 1, 0]}),
        ("stats", {"v": ["value 0", "value 9", 1]}),
    ],
)
def test_a_wrong_descriptor_is_found(dated: DatedBlob, member: str, value: Any) -> None:
    busy(dated)
    with opened(dated) as client:
        handle = client.load("b")
        [part] = uploads(dated, client, handle, 12, 1)
    assert part.rows == 50
    written = member
    if member in ("keys", "stats"):
        written, value = f"{member}_json", msgspec.Raw(msgspec.json.encode(value))
    append_record(dated, record_kinds.Append(handle.id, (msgspec.structs.replace(part, **{written: value}),)))
    [problem] = fsck(dated).problems
    assert (problem.kind, problem.blob, problem.collection) == ("descriptor", part.blob, "b")
    assert {member, "descriptor"} & set(problem.what.split())
    assert fsck(dated, deep=False).is_clean


def test_hints_that_are_left_out_of_a_descriptor_are_no_problem(dated: DatedBlob) -> None:
    busy(dated)
    with opened(dated) as client:
        handle = client.load("b")
        [part] = uploads(dated, client, handle, 12, 1)
    append_record(
        dated,
        record_kinds.Append(
            handle.id, (msgspec.structs.replace(part, keys_json=msgspec.Raw(b"null"), stats_json=msgspec.Raw(b"{}")),)
        ),
    )
    assert fsck(dated).is_clean


def bad_part(table: pa.Table, schema: Any) -> tuple[bytes, Part]:
    """A part that is what table is, with a descriptor that agrees as far as a sorted copy of table can say."""
    writer = FileWriter(table.schema, table, sorted_by=0)
    writer.write(table)
    data = writer.finish()
    times, diffs = table["_time"].to_pylist(), table["_diff"].to_pylist()
    part = Part(
        bytes=len(data),
        rows=len(table),
        memory=1 << 20,
        checksum=compute_checksum(data),
        footer=describe_footer(data),
        time_min=min(*times, 2**63 - 2),
        time_max=min(max(times), 2**63 - 2),
        negatives=sum(diff < 0 for diff in diffs),
        diff_sum=sum(diffs),
    )
    return data, part


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize(
    ("kind", "updates"),
    [
        ("unsorted", [(2, "a", 13, 1), (1, "a", 13, 1)]),
        ("unsorted", [(1, "b", 13, 1), (1, "a", 13, 1)]),
        ("unsorted", [(1, "a", 14, 1), (1, "a", 13, 1)]),
        ("unsorted", [(None, "a", 14, 1), (1, "a", 13, 1)]),
        ("unconsolidated", [(1, "a", 13, 1), (1, "a", 13, 2)]),
        ("unconsolidated", [(None, None, 13, 1), (None, None, 13, -1)]),
        ("values", [(1, "a", 13, 0)]),
        ("values", [(1, "a", 2**63 - 1, 1)]),
        (None, [(1, "a", 13, 1), (1, "a", 14, -1), (1, None, 13, 1), (None, "a", 13, 1)]),
    ],
)
def test_a_part_that_breaks_a_promise_of_its_writer_is_found(
    dated: DatedBlob, kind: str | None, updates: list[tuple[Any, ...]]
) -> None:
    busy(dated)
    with opened(dated) as client:
        handle = client.load("b")
    columns = zip(*updates, strict=True)
    table = pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, handle.schema.arrow, strict=True)], handle.schema.arrow
    )
    data, part = bad_part(table, handle.schema)
    key = f"part/{handle.id}/{60:020d}-{uuid.uuid4().hex}.parquet"
    dated.set(key, data)
    append_record(dated, record_kinds.Append(handle.id, (msgspec.structs.replace(part, blob=key),)))
    append_record(dated, record_kinds.Append(handle.id, (msgspec.structs.replace(part, inline=data),)))
    found = [(problem.kind, problem.blob) for problem in fsck(dated).problems]
    inline = f"inline part {part.checksum}"
    # The second is also counted wrongly, because its record was made without the library.
    assert found == ([] if kind is None else [(kind, key), (kind, inline)])


def test_floats_that_are_not_in_their_one_form_are_found() -> None:
    schema = CollectionSchema.of({"k": pa.list_(pa.float32())}, {"v": pa.float64()})
    good = pa.table([[[1.0, None], [2.0]], [0.0, float("nan")], [0, 0], [1, 1]], schema.arrow)
    assert check_part(*bad_part(good, schema), schema)[0] == ()
    for column, values in ((0, [[-0.0, None], [2.0]]), (1, [-0.0, float("nan")])):
        bad = good.set_column(column, schema.arrow.field(column), pa.array(values, schema.arrow.field(column).type))
        [finding] = check_part(*bad_part(bad, schema), schema)[0]
        assert (finding.kind, repr(schema.arrow.names[column]) in finding.what) == ("values", True)


def oracle(table: pa.Table) -> set[str]:
    """What is wrong with the order of a table of int64, string, and a time, told with plain Python values."""
    last = (2**64, "")
    order = [
        (last[0] if k is None else k, v is None, v or "", t)
        for k, v, t, _ in zip(*(column.to_pylist() for column in table.columns), strict=True)
    ]
    wrong = set()
    if order != sorted(order):
        wrong.add("unsorted")
    if len(set(order)) < len(order):
        wrong.add("unconsolidated")
    if 0 in table["_diff"].to_pylist():
        wrong.add("values")
    return wrong


def test_what_is_said_of_a_part_agrees_with_plain_python() -> None:
    schema = CollectionSchema.of(KEY, VALUE)
    chance = random.Random(11)
    seen: set[str] = set()
    for _ in range(200):
        count = chance.randrange(1, 7)
        updates = [
            (
                chance.choice([None, 1, 2]),
                chance.choice([None, "", "ä", "z"]),
                chance.randrange(3),
                chance.choice([1, 1, -1, 0]),
            )
            for _ in range(count)
        ]
        if chance.random() < 0.7:
            updates.sort(key=lambda u: (u[0] is None, u[0] or 0, u[1] is None, u[1] or "", u[2]))
        columns = zip(*updates, strict=True)
        table = pa.table([pa.array(c, f.type) for c, f in zip(columns, schema.arrow, strict=True)], schema.arrow)
        found = {finding.kind for finding in check_part(*bad_part(table, schema), schema)[0]}
        assert found == oracle(table), updates
        seen |= found or {"nothing"}
    assert seen == {"unsorted", "unconsolidated", "values", "nothing"}


def test_parts_of_every_type_keep_the_promises() -> None:
    for name, (type_, value) in FIELDS.items():
        for key, other in (({"k": type_}, None), ({"i": pa.int32()}, {"v": type_})):
            if other is None and type_ == pa.json_():  # No key has this type.
                continue
            schema = CollectionSchema.of(key, other)
            columns = [pa.array([value, None, value, value], type_)]
            if other is not None:
                columns.insert(0, pa.array([3, 1, 2, 3], pa.int32()))
            table = pa.table([*columns, pa.array([1, 1, 2, 1]), pa.array([1, 2, 3, 4])], schema.arrow)
            for data, part in encode_parts(to_updates(table, schema), schema):
                assert check_part(data, part, schema)[0] == (), name


def test_a_record_that_breaks_a_rule_is_found(dated: DatedBlob) -> None:
    busy(dated)
    with opened(dated) as client:
        handle = client.load("b")
        [late] = uploads(dated, client, handle, 3, 1)
    key = append_record(dated, record_kinds.Append(handle.id, (late,)))
    [problem] = fsck(dated).problems
    assert (problem.kind, problem.blob) == ("rule", key)
    assert problem.what.startswith("it breaks a rule of the log: ")
    assert "upper" in problem.what
    dated.delete(key)
    own = Follower(dated, ImpatientClock()).state.location
    append_record(dated, location="0" * 32)
    what = f"it breaks a rule of the log: it belongs to location {'0' * 32}, and this is {own}"
    assert [(each.kind, each.blob, each.what) for each in fsck(dated).problems] == [("rule", key, what)]


def test_parts_that_only_a_state_that_cannot_be_read_names_are_examined(dated: DatedBlob) -> None:
    busy(dated, 20)
    checkpoint = newest(dated)
    [base] = [each.base.blob for each in checkpoint.collections if each.name == "b" and each.base is not None]
    gap, part = make_record_key(checkpoint.seqno - 1), keys(dated, base.replace("state", "part")[:37])[0]
    dated.delete(gap)
    for key in (base, part):
        flip(dated, key, "")
    assert {(each.kind, each.blob, each.collection) for each in fsck(dated).problems} == {
        ("damaged", base, "b"), ("missing", gap, None), ("damaged", part, "b"),
    }  # fmt: skip


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("what", ["upper", "name", "collection", "control", "location", "commit"])
def test_a_checkpoint_that_says_something_else_than_the_log_is_found(dated: DatedBlob, what: str) -> None:
    busy(dated, 14)
    change = msgspec.structs.replace
    found = newest(dated)
    one, other, *more = sorted(found.collections, key=lambda each: each.base is None)
    if what == "upper":
        assert one.base is not None
        stored = msgspec.json.decode(
            (dated.get(one.base.blob) or b"").rsplit(b',"checksum"', 1)[0] + b"}", type=StateObject
        )
        wrong = change(stored, collection=change(stored.collection, upper_times=(1,)))
        base = store_framed(dated, f"state/{one.id}/{found.seqno:020d}-", wrong)
        found = change(found, collections=(change(one, base=base, pending=()), other, *more))
    elif what == "name":
        found = change(found, collections=(other, *more))
    elif what == "collection":
        found = change(found, collections=(change(other, id=one.id, name=one.name), other, *more))
    elif what == "control":
        found = change(found, control=change(found.control, upload_floor=3))
    elif what == "commit":
        found = change(found, commit="0" * 32)
    else:
        found = change(found, location="0" * 32)
    dated.set(make_checkpoint_key(found.seqno), encode_framed(found))
    report = fsck(dated, repair=True)
    assert {p.kind for p in report.problems} & {"disagrees", "exchanged", "rule", "beyond"}, str(report)
    if what in ("upper", "name", "control", "commit"):
        assert {(p.kind, p.blob) for p in report.problems} == {
            ("beyond" if what == "commit" else "disagrees", make_checkpoint_key(found.seqno))
        }
        assert report.repairs_planned == (), "which of both is right nobody can tell"


def test_a_newer_format_is_reported_and_never_touched(dated: DatedBlob) -> None:
    busy(dated)
    key = make_checkpoint_key(newest(dated).seqno)
    body = (
        (dated.get(key) or b"")
        .rsplit(b',"checksum"', 1)[0]
        .replace(b'"format":%d' % FORMAT, b'"format":%d' % (FORMAT + 1))
    )
    dated.set(key, body + b',"checksum":"' + xxhash.xxh3_128_hexdigest(body).encode() + b'"}\n')
    before = everything(dated)
    report = fsck(dated, repair=True)
    assert [(p.kind, p.blob) for p in report.problems] == [("incompatible", key)]
    assert (report.repairs_planned, report.repairs_done) == ((), ())
    assert everything(dated) == before


def test_a_shallow_examination_reads_no_part_and_sees_what_a_listing_shows(dated: DatedBlob) -> None:
    busy(dated)
    parts = keys(dated, "part/")

    class NoParts(MeteredBlob):
        def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
            assert not key.startswith("part/") or range is not None
            return super().get(key, range)

    flip(dated, parts[0], "")
    report = fsck(NoParts(dated), deep=False)
    assert report.is_clean
    assert report.checked["part"].blobs == len(parts)
    truncate(dated, parts[1], "")
    dated.delete(parts[2])
    found = {(problem.kind, problem.blob) for problem in fsck(NoParts(dated), deep=False).problems}
    assert found == {("damaged", parts[1]), ("missing", parts[2])}


# Repair.


def changes(before: dict[str, bytes], after: dict[str, bytes]) -> set[tuple[str, str]]:
    return {
        ("create" if key not in before else "delete" if key not in after else "replace", key)
        for key in before.keys() | after.keys()
        if before.get(key) != after.get(key)
    }


def steps(repairs: tuple[persist.Repair, ...]) -> set[tuple[str, str]]:
    return {("create" if repair.action == "commit" else repair.action, repair.blob) for repair in repairs}


def with_leaks(blob: DatedBlob) -> dict[str, str]:
    """Plant every kind of unreferenced blob; return what each is."""
    busy(blob)
    blob.clock.sleep(2 * HOUR)
    with opened(blob) as client:
        client.gc()
        handle = client.load("b")
        for time in range(13, 31):
            handle.seal(time).result()
        wait_for_checkpoint(client)
        old = uploads(blob, client, handle, 100, 2)
        [old_list] = [f"list/{handle.id}/{3:020d}-{uuid.uuid4().hex}.json"]
        [young_list] = [f"list/{handle.id}/{client.engine.follower.find_next_seqno():020d}-{uuid.uuid4().hex}.json"]
        state = f"state/{handle.id}/{3:020d}-{uuid.uuid4().hex}.json"
        stranger = f"part/{uuid.uuid4().hex}/{3:020d}-{uuid.uuid4().hex}.parquet"
        for key in (old_list, young_list, state, stranger, make_record_key(2), "notes.txt", "part/other"):
            blob.set(key, b"left behind")
        blob.clock.sleep(2 * HOUR)
        for time in range(31, 49):
            handle.seal(time).result()
        wait_for_checkpoint(client)
        # Old, and begun after all that is known to be old: it cannot be declared void yet.
        current = f"part/{handle.id}/{client.engine.follower.find_next_seqno():020d}-{uuid.uuid4().hex}.parquet"
        blob.set(current, b"left behind")
        blob.clock.sleep(DAY)
        [young] = uploads(blob, client, handle, 50, 1)
    gone = {part.blob: "part" for part in old} | {
        old_list: "list",
        state: "state",
        stranger: "part",
        make_record_key(2): "record",
    }
    stays = {young.blob: "part", current: "part", young_list: "list", "notes.txt": "foreign", "part/other": "foreign"}
    return {**gone, **{key: f"{kind}, stays" for key, kind in stays.items()}}


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("through", ["module", "client"])
def test_a_repair_deletes_the_leaks_it_said_it_would_and_nothing_else(dated: DatedBlob, through: str) -> None:
    leaks = with_leaks(dated)
    rows_before = contents_of(dated)
    report = fsck(dated)
    assert report.is_clean, str(report)
    entries = {entry.key: entry for entry in dated.list("")}
    assert {found.blob: (found.kind, found.bytes) for found in report.unreferenced} == {
        key: (kind.removesuffix(", stays"), entries[key].bytes) for key, kind in leaks.items()
    }
    now_s = dated.clock.wall_ms() / 1000
    ages = {found.blob: found.age_s for found in report.unreferenced}
    assert ages == pytest.approx({key: now_s - entries[key].modified_s for key in ages}, abs=60)
    assert report.repairs_planned == ()
    before = everything(dated)
    dry = fsck(dated, repair=True, dry_run=True)
    assert everything(dated) == before, "a dry run changes nothing"
    assert dry.repairs_done == ()
    at = report.seqno + 2
    assert [(repair.action, repair.blob) for repair in dry.repairs_planned] == [
        *(("replace", "gc/clock"), ("commit", make_record_key(at - 1)), ("commit", make_record_key(at))),
        ("create", make_checkpoint_key(at)),
        *(("delete", key) for key in sorted(key for key, kind in leaks.items() if not kind.endswith("stays"))),
    ]
    if through == "client":
        with opened(dated) as client:
            real = client.fsck(repair=True)
    else:
        real = fsck(dated, repair=True)
    assert real.repairs_planned == dry.repairs_planned
    assert real.repairs_done == dry.repairs_planned
    # The store's clock is a blob without content, so setting it again changes its date only.
    assert changes(before, everything(dated)) == steps(real.repairs_done) - {("replace", "gc/clock")}
    assert contents_of(dated) == rows_before
    again = fsck(dated, repair=True)
    assert again.is_clean
    assert {found.blob for found in again.unreferenced} == {
        key for key, kind in leaks.items() if kind.endswith("stays")
    }


def test_nothing_is_deleted_while_it_is_not_known_what_is_referred_to(dated: DatedBlob) -> None:
    with_leaks(dated)
    floor = read_newest_checkpoint(dated).control.log_floor
    for key in (make_record_key(floor + 3), keys(dated, "checkpoint/")[0]):
        data = dated.get(key) or b""
        flip(dated, key, "")
        report = fsck(dated, repair=True, dry_run=True)
        assert not [
            r
            for r in report.repairs_planned
            if r.blob.startswith(("part/", "state/", "list/")) and r.action == "delete"
        ]
        dated.set(key, data)
    # A damaged part refers to nothing.
    flip(dated, last_part(dated, "b").blob, "")
    report = fsck(dated, repair=True, dry_run=True)
    assert not report.is_clean
    assert [repair for repair in report.repairs_planned if repair.action == "delete"]


def broken_at_the_end(blob: Blob) -> list[str]:
    """Damage the newest checkpoint of a location whose log ends with it."""
    with opened(blob) as client:
        handle = client.load("a")
        while parse_checkpoint_seqno(keys(blob, "checkpoint/")[0]) != client.engine.follower.state.seqno:
            handle.seal((handle.upper.time or 0) + 1).result()
            wait_for_checkpoint(client)
    [key, *_] = keys(blob, "checkpoint/")
    flip(blob, key, "")
    return [key]


def broken_before_the_end(blob: Blob) -> list[str]:
    found = keys(blob, "checkpoint/")[:2]
    for key in found:
        truncate(blob, key, "")
    return found


def broken_state(blob: Blob) -> list[str]:
    [key, *_] = [c.base.blob for c in newest(blob).collections if c.base is not None]
    flip(blob, key, "")
    return [key]


def missing_state(blob: Blob) -> list[str]:
    [key, *_] = [c.base.blob for c in newest(blob).collections if c.base is not None]
    blob.delete(key)
    return [key]


def broken_in_the_middle(blob: Blob) -> list[str]:
    key = keys(blob, "checkpoint/")[2]
    flip(blob, key, "")
    return [key]


BREAKS = [broken_at_the_end, broken_before_the_end, broken_state, missing_state, broken_in_the_middle]


@pytest.mark.thorough(except_every=len(BREAKS))
@pytest.mark.parametrize("breaks", BREAKS, ids=lambda breaks: breaks.__name__)
def test_bad_checkpoints_are_made_again_from_the_log(dated: DatedBlob, breaks: Callable[[Blob], list[str]]) -> None:
    busy(dated, 13)
    expected = contents_of(dated)
    broken = breaks(dated)
    before = everything(dated)
    dry = fsck(dated, repair=True, dry_run=True)
    assert everything(dated) == before, "a dry run changes nothing"
    assert {problem.blob for problem in dry.problems} == set(broken)
    assert all("run with repair" in problem.advice for problem in dry.problems), str(dry)
    real = fsck(dated, repair=True)
    assert real.repairs_done == real.repairs_planned == dry.repairs_planned != ()
    made = f"what the log says up to seqno {dry.seqno}"
    assert {(step.action == "delete", step.why) for step in dry.repairs_planned} <= {
        (False, made), (True, "it cannot be used, and a newer or equal one can"),
    }  # fmt: skip
    gone = [key for key in broken if key.startswith("checkpoint/") and key != make_checkpoint_key(dry.seqno)]
    assert [step.blob for step in dry.repairs_planned if step.action == "delete"] == sorted(gone) or breaks in (
        *(broken_state, missing_state),
    )
    assert changes(before, everything(dated)) == steps(real.repairs_done)
    touched = {key.split("/")[0] for _, key in changes(before, everything(dated))}
    assert touched <= {"checkpoint", "directory", "state"}
    assert fsck(dated).is_clean, str(fsck(dated))
    assert contents_of(dated) == expected
    with opened(dated) as client:
        client.load("a").seal(1000).result()
        wait_for_checkpoint(client)
    assert fsck(dated).is_clean


def test_a_checkpoint_that_is_long_overdue_is_made(dated: DatedBlob) -> None:
    busy(dated, 13)
    for key in keys(dated, "checkpoint/"):
        dated.delete(key)
    assert fsck(dated).is_clean, "it may be on its way"
    dated.clock.sleep(100)
    [problem] = fsck(dated).problems
    assert problem.kind == "overdue"
    report = fsck(dated, repair=True)
    assert {repair.action for repair in report.repairs_done} == {"create", "replace"} or {
        repair.action for repair in report.repairs_done
    } == {"create"}
    assert read_newest_checkpoint(dated).seqno == report.seqno
    assert fsck(dated).is_clean


def test_a_damaged_record_or_part_is_reported_and_never_touched(dated: DatedBlob) -> None:
    busy(dated)
    flip(dated, make_record_key(4), "")
    flip(dated, keys(dated, "part/")[0], "")
    dated.clock.sleep(3 * DAY)
    before = everything(dated)
    report = fsck(dated, repair=True)
    assert {problem.blob for problem in report.problems} == {make_record_key(4), keys(dated, "part/")[0]}
    assert report.repairs_done == ()
    assert everything(dated) == before


def test_what_was_committed_after_the_examination_is_not_deleted(dated: DatedBlob) -> None:
    leaks = with_leaks(dated)
    doomed = {r.blob for r in fsck(dated, repair=True, dry_run=True).repairs_planned if r.action == "delete"}
    with opened(dated) as client:
        handle = client.load("b")
        late, alone, *_ = sorted(key for key, kind in leaks.items() if kind == "part" and handle.id in key)
        data = dated.get(late) or b""
        [(again, part)] = encode_parts(pq.read_table(pa.BufferReader(data)), handle.schema)
        assert again == data
        commit_parts(handle, [msgspec.structs.replace(part, blob=late)]).result()
        before = everything(dated)
        assert client.engine.writer("a test").garbage.delete_leaked([late, alone]).keys == (alone,)
        assert before.keys() - everything(dated).keys() == {alone}, "only what was asked for"
        assert set(client.engine.writer("a test").garbage.delete_leaked(doomed).keys) == doomed - {late, alone}
        assert fsck(dated).is_clean


def test_a_list_is_named_after_the_record_that_names_it_even_if_that_lost_a_race() -> None:
    blob = Stepped(MemoryBlob())
    with opened(blob) as client, opened(blob) as other:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        blob.after("set", "list/", lambda: other.load("c").seal(1).result())
        seqno = commit_parts(c, uploads(blob, client, c, 5)).result()
        record = read_record(blob, seqno)
        assert record is not None
        [append] = record.mutations
        assert isinstance(append, record_kinds.Append)
        assert append.parts_in is not None
        # Or else the list could be collected as one of a record below the floor, while the record is above it.
        assert parse_upload_seqno(append.parts_in.blob) == seqno
        assert blob.is_done


# While others work.


def test_nothing_is_reported_while_writers_write_destroy_and_collect(tmp_path: Path) -> None:
    settings = tuned(background=False, grace_s=0, log_retention_s=3600, log_retention_records=16, hold_linger_s=0)
    stop = threading.Event()
    failures: list[BaseException] = []

    def work(n: int) -> None:
        try:
            with persist.open(tmp_path, storage_options={"fsync": False}, settings=settings) as client:
                round_ = 0
                while not stop.is_set():
                    round_ += 1
                    c = client.create_or_load(f"c{n}-{round_ % 3}", key=KEY, value=VALUE)
                    time = c.upper.time or 0
                    c.write(rows(0, 3000, time), seal=time + 1).result()
                    if round_ % 4 == 0:
                        c.drop().result()
                        client.gc()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    try:
        reports: list[persist.FsckReport] = []
        while not failures and (len(reports) < 6 or reports[-1].seqno < 30):
            reports.append(persist.fsck(tmp_path, settings=settings, deep=len(reports) % 2 == 0))
            sleep(0.02)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    for report in reports:
        assert report.is_clean, str(report)


class Meddling(MemoryBlob):
    """Calls `meddle` once, just before the first listing of everything."""

    meddle: Callable[[], None] | None = None

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[Any]:
        if prefix == "" and self.meddle is not None:
            meddle, self.meddle = self.meddle, None
            meddle()
        return super().list(prefix, start_after)


@pytest.mark.parametrize("deep", [True, False])
def test_a_blob_that_is_committed_or_collected_meanwhile_is_no_finding(deep: bool) -> None:
    blob = Meddling()
    settings = tuned(background=False, grace_s=0, orphan_grace_s=0)
    with persist.open(blob, settings=settings) as client:
        c, gone = (client.create_or_load(name, key=KEY, value=VALUE) for name in ("c", "gone"))
        c.write(rows(0, 20_000, 0)).result()
        gone.write(rows(0, 20_000, 0)).result()

        def meddle() -> None:
            c.write(rows(0, 20_000, 1)).result()
            gone.drop().result()
            assert client.gc().parts == 1

        blob.meddle = meddle
        report = persist.fsck(blob, deep=deep)
        assert report.is_clean, str(report)
        assert report.unreferenced == ()
        assert blob.meddle is None


def test_a_store_that_does_not_answer_ends_the_examination(dated: DatedBlob) -> None:
    busy(dated, 2)

    class Down(DatedBlob):
        def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
            if key.startswith("part/"):
                raise persist.Unavailable("no answer")
            return dated.get(key, range)

        def list(self, prefix: str, start_after: str | None = None) -> Iterator[Any]:
            return dated.list(prefix, start_after)

    with pytest.raises(persist.Unavailable, match="no answer"):
        fsck(Down(dated.clock))


def quiet_and_busy(dated: DatedBlob, minutes: int) -> str:
    """Leave a collection whose state object is older than most of the log; return its id."""
    with opened(dated) as client:
        quiet, busy = (client.create_or_load(name, key=KEY, value=VALUE) for name in ("quiet", "busy"))
        quiet.write(rows(0, 20_000, 0), seal=1).result()
        quiet.write(rows(0, 10, 1), seal=2).result()
        quiet.compact()
        for time in range(60):
            busy.write([((time, "x"), time, 1)], seal=time + 1).result()
            wait_for_checkpoint(client)  # The log begins after the checkpoints that are there, each of its own age.
            dated.clock.sleep(60.0 * minutes)
        client.gc()
        client.gc()
    return quiet.id


@pytest.mark.parametrize("minutes", [0, 10])
def test_a_missing_state_object_is_made_again_from_a_log_that_holds_all_of_it_and_else_not(
    dated: DatedBlob, minutes: int
) -> None:
    id_ = quiet_and_busy(dated, minutes)
    before = contents_of(dated)
    for key in keys(dated, f"state/{id_}/"):
        dated.delete(key)
    with opened(dated) as client:
        for read in (lambda: client.load("quiet"), client.gc):
            with pytest.raises(persist.errors.MissingBlob, match=f"state/{id_}.*persist fsck --repair"):
                read()
    assert (keys(dated, "log/")[0] == make_record_key(0)) == (minutes == 0)
    report = fsck(dated, repair=True)
    if minutes == 0:
        assert report.repairs_done
        assert contents_of(dated) == before
        assert fsck(dated).is_clean
        with opened(dated) as client:
            client.gc()
    else:
        for key in keys(dated, "log/"):
            dated.delete(key)
        assert any(problem.blob.startswith("log/") for problem in fsck(dated).problems)
        assert not report.repairs_done
        assert all("the log does not hold all that it takes" in problem.advice for problem in report.problems)


@pytest.mark.parametrize(
    "lost", [("log", "checkpoint", "directory"), ("log", "checkpoint", "directory", "state", "gc")]
)
def test_a_location_whose_log_is_lost_is_a_problem_and_repair_deletes_nothing(
    lost: tuple[str, ...], tmp_path: Path
) -> None:
    with persist.open(tmp_path / "shop") as client:
        client.write("orders", pa.table({"k": range(50_000)}), key=["k"]).result()
    for folder in lost:
        shutil.rmtree(tmp_path / "shop" / folder, ignore_errors=True)
    before = sorted(tmp_path.rglob("*"))
    settings = tuned(grace_s=0, orphan_grace_s=0)
    for repair in (False, True):
        report = persist.fsck(tmp_path / "shop", repair=repair, settings=settings)
        (problem,) = report.problems
        assert (problem.kind, problem.blob) == ("missing", "log/")
        assert "no record is there" in problem.what
        assert "restore the log" in problem.advice
        assert not report.is_empty
        assert report.problems_left == report.problems
        assert not report.unreferenced, "nobody knows what refers to it"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_is_no_location_is_a_problem(tmp_path: Path) -> None:
    with persist.open(tmp_path / "shop") as client:
        client.create_or_load("orders", key={"k": int})
    (tmp_path / "readme.txt").write_text("mine")
    (problem,) = persist.fsck(tmp_path, repair=True).problems
    assert (problem.kind, problem.blob, problem.advice) == ("missing", "log/", "check the path")
    assert not persist.fsck(tmp_path / "shop").problems


def test_what_an_erasure_still_owes_is_said(dated: DatedBlob) -> None:
    with persist.open(dated, clock=dated.clock) as client:
        owed = {"at_ms": 0, "views": ["0" * 32], "tables": {"1" * 32: {"delta": {}}}}
        made = record_kinds.Create("2" * 32, ".owed." + "2" * 32, CollectionSchema.of({"k": int}, None).to_json())
        said = Words("what an erasure still has to do", {"owed": json.dumps(owed)})
        client.engine.submit("erase", [made, record_kinds.Describe(made.collection, said)], {}).result()
        report = client.fsck()
    assert report.is_clean
    assert report.unfinished == (
        "an erasure has still to refresh views (1), publish tables (1): client.maintain() does it, or the next erase()",
    )
    assert report.unfinished[0] in str(report)
