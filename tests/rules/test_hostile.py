"""Whatever callers or storage say, a client touches only its own location, and there only what it may.

Attackers know the format: everything they write here has right checksums.
"""

import base64
import os
import pickle
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

import persist
from persist.blob.protocol import Blob, MemoryBlob
from persist.blob.stores.file import FileBlob
from persist.codecs.part.describing import describe_footer
from persist.codecs.part.part import Part
from persist.core.log import kinds
from persist.core.log.fields import Keyframe
from persist.core.log.framing import BlobRef, decode_framed, encode_framed, store_framed
from persist.core.log.keys import make_checkpoint_key, make_record_key
from persist.core.log.kinds import Mutation
from persist.core.log.records import PartList, Record
from persist.core.state_rules.location import Dropped
from persist.engine.follow.checkpoint import Checkpoint, write_checkpoint
from persist.engine.follow.state_objects import StateObject
from persist.engine.write.part_writer import PartWriter
from tests.support.checkpoints import wait_for_checkpoint
from tests.support.forks import forked_python
from tests.support.iam import Gate
from tests.support.parts import commit_parts
from tests.support.paths import ROOT
from tests.support.reads import KEY, VALUE, table
from tests.support.servers.fixtures import make_bucket
from tests.support.stepped import WAIT_S
from tests.support.tiers import examples
from tests.support.tuned import tuned
from tests.support.watched import KEY as STORED_KEY
from tests.support.watched import WatchedBlob

OTHER = "0123456789abcdef" * 2
DIGITS = "f" * 32
NOW = tuned(grace_s=0, orphan_grace_s=0, background=False, log_retention_records=16)
ESCAPES = ["..", "../../x", "/etc/passwd", "a/../../b", "a//b", "a\\..\\b", "a\0b", "a\nb", "x" * 300]
ODD = ["%2e%2e", "%2e%2e%2fx", "con", "a.tmp-x", "a:b?c*d", "~", "$HOME", "`id`", "\u202egpj.exe", "$(id)", "'; --"]


def everything(blob: Blob) -> Mapping[str, bytes | None]:
    return {entry.key: blob.get(entry.key) for entry in blob.list("")}


# What callers say.


@pytest.mark.parametrize("name", ESCAPES)
def test_names_that_look_like_paths_are_refused(client: persist.Client, blob: MemoryBlob, name: str) -> None:
    orders = client.create_or_load("orders", key=KEY)
    before = everything(blob)
    for call in (
        lambda: client.create_or_load(name, key=KEY),
        lambda: client.load(name),
        lambda: orders.hold(0, name=name),
    ):
        with pytest.raises(persist.InvalidUsage, match=r"name .* is not allowed"):
            call()
    assert everything(blob) == before


def test_no_name_is_ever_part_of_a_key() -> None:
    blob = MemoryBlob()
    with persist.open(blob, mode="exclusive", reentrance_id="../../reentrance") as client:
        for name in ODD:
            odd = client.create_or_load(
                name, key={name: pa.int64()}, value={"../../field": pa.string(), "..": pa.int8()}
            )
            rows = [((k, (f"{k:032}", 0)), 0, 1) for k in range(5_000)]
            odd.write(rows, token=f"../../{ODD.index(name)}", seal=1).result()
            odd.hold(0, name=name)
            assert odd.snapshot(0).count() == 5_000
        client.gc()
    keys = everything(blob).keys()
    assert any(key.startswith("part/") for key in keys)
    assert any(key.startswith("checkpoint/") for key in keys)
    assert all(STORED_KEY.fullmatch(key) for key in keys)


def test_a_hold_cannot_take_the_name_of_a_leased_one(client: persist.Client) -> None:
    orders = client.create_or_load("orders", key=KEY)
    orders.seal(9).result()
    with orders.hold(3):
        (leased,) = client.engine.follower.require(orders.id, "orders").holds
        with pytest.raises(persist.InvalidUsage, match="looks like the id of a lease"):
            orders.hold(5, name=leased)


@pytest.mark.parametrize(
    "url",
    [
        "s3://{bucket}/loc/../other",
        "s3://{bucket}/..",
        "s3://{bucket}/./loc",
        "s3://{bucket}//loc",
        "s3://{bucket}/loc//inner",
        "s3://{bucket}/loc\0",
        "s3://{bucket}/lo\nc",
        "s3://{bucket}/" + "x" * 300,
        "s3://{bucket}/" + "x/" * 300,
        "s3:///loc",
        "s3://../loc",
        "file://host/loc",
        "file://../loc",
        "memory://",
        "/tmp/a\0b",
        "",
    ],
)
def test_urls_that_could_lead_elsewhere_are_refused(url: str, s3_options: dict[str, Any], gate: Gate) -> None:
    url = url.replace("{bucket}", "some-bucket")
    s3_options = {**s3_options, "endpoint_url": gate.url}
    with pytest.raises(persist.InvalidUsage):
        persist.open(url, storage_options=s3_options if url.startswith("s3") else None)
    assert gate.calls == []


@pytest.fixture
def gate(s3_options: dict[str, Any]) -> Iterator[Gate]:
    with closing(Gate(s3_options["endpoint_url"])) as gate:
        yield gate


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("prefix", ["loc/%2e%2e/x", "a\\..\\b", "%2e%2e%2fx", "loc/...", "loc/#x", "lo c+d"])
def test_odd_prefixes_are_taken_literally_on_the_wire(prefix: str, s3_options: dict[str, Any], gate: Gate) -> None:
    bucket = make_bucket(s3_options)
    s3_options = {**s3_options, "endpoint_url": gate.url}
    with persist.open(f"s3://{bucket}/{prefix}", storage_options=s3_options) as client:
        client.create_or_load("orders", key=KEY).seal(1).result()
    for call in gate.calls:
        for where in call.keys or [call.query["prefix"]]:
            assert (call.bucket, where[: len(prefix) + 1]) == (bucket, f"{prefix}/")


def test_a_folder_may_be_reached_through_links_and_none_below_it_is_followed(tmp_path: Path) -> None:
    real, link, outside = tmp_path / "real", tmp_path / "link", tmp_path / "outside"
    real.mkdir()
    outside.mkdir()
    link.symlink_to(real)
    with persist.open(link) as client:
        orders = client.create_or_load("orders", key=KEY, value=VALUE)
        orders.write(table(0), seal=1).result()
    with persist.open(real) as client:
        assert client.collections() == ["orders"]
    for name in ("log", "part", "checkpoint", "state", "gc"):
        inside, moved = real / name, tmp_path / f"moved-{name}"
        if inside.exists():
            inside.rename(moved)
        inside.symlink_to(outside)
        with pytest.raises(persist.InvalidUsage, match="symbolic link"):
            use_all(real)
        assert list(outside.iterdir()) == []
        inside.unlink()
        if moved.exists():
            moved.rename(inside)


def use_all(folder: Path) -> None:
    """Do what needs every folder of a location."""
    with persist.open(folder, settings=NOW) as client:
        orders = client.load("orders")
        assert orders.snapshot(0).count()
        upper = orders.upper.time or 0
        for time in range(upper, upper + 40):
            orders.seal(time).result()
        orders.write(table(upper + 50)).result()
        client.gc()


# What storage says: records.


@dataclass
class Victim:
    """A location that an attacker writes to: one collection with a part and a leased hold, and one destroyed."""

    blob: MemoryBlob
    id: str
    destroyed: str
    part: Part
    hold: str
    lease: str

    def record(self, *mutations: Any, **changed: Any) -> str:
        """Write a record with a right checksum after the last; return its key."""
        seqno = sum(1 for _ in self.blob.list("log/"))
        last = decode_framed(self.blob.get(make_record_key(seqno - 1)) or b"", Record, "")
        fields = {"seqno": seqno, "commit": DIGITS, "previous": last.commit, **changed}
        record = msgspec.structs.replace(last, mutations=mutations, **fields)
        self.blob.set(make_record_key(seqno), encode_framed(record))
        return make_record_key(seqno)

    def newest(self) -> Checkpoint:
        key = next(iter(self.blob.list("checkpoint/"))).key
        return decode_framed(self.blob.get(key) or b"", Checkpoint, key)

    def named(self, key: str) -> Part:
        return msgspec.structs.replace(self.part, blob=key)

    def hostile_keys(self) -> list[str]:
        upload = self.part.blob
        return [
            "../../etc/passwd",
            "/etc/passwd",
            "..",
            make_record_key(0),
            "gc/clock",
            upload.replace(self.id, OTHER),
            f"part/{self.id}/../../{make_record_key(0)}",
            f"{upload}/..",
            upload + "\0",
            f"x/{upload}",
            upload.upper(),
            "part/" + "9" * 2000,
        ]


@pytest.fixture(params=[False, True], ids=["log", "checkpoint"])
def victim(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Victim:
    """With a checkpoint before the attacker's record, or without any."""
    monkeypatch.setattr("persist.engine.follow.checkpoint.INTERVAL", 4 if request.param else 10**6)
    monkeypatch.setattr("persist.engine.follow.checkpoint.STORED_PENDING_MAX", 0)
    blob = MemoryBlob()
    client = persist.open(blob, settings=NOW)
    gone = client.create_or_load("gone", key=KEY)
    orders = client.create_or_load("orders", key=KEY, value=VALUE)
    orders.write(table(0), seal=1).result()
    gone.drop().result()
    orders.hold(0)
    for time in range(2, 6):
        orders.seal(time).result()
    contents = client.engine.follower.require(orders.id, "orders")
    (hold,) = contents.holds
    victim = Victim(blob, orders.id, gone.id, contents.parts[0], hold, contents.holds[hold].lease or "")
    monkeypatch.setattr(client.engine.writer("a test").leases, "close", lambda: None)  # A client that died.
    client.close()
    if request.param:  # The client made some beside its commits, each as late as its thread came to it.
        write_checkpoint(blob, client.engine.follower.state, {})
    assert any(True for _ in blob.list("checkpoint/")) is request.param
    return victim


def check_refused(victim: Victim, before: Mapping[str, bytes | None], *named: str) -> None:
    """Open, read, write and collect: each is refused, naming the blob, and asks only for keys that may be there."""
    uses: list[Callable[[persist.Collection], object]] = [
        lambda c: c.snapshot(0).count(),
        lambda c: c.write([((1, "a"), 99, 1)]).result(),
        lambda c: c.handle.engine.writer("gc").collect_garbage(),
    ]
    for use in uses:
        watched = WatchedBlob(victim.blob)
        with pytest.raises(persist.errors.CorruptBlob) as caught, persist.open(watched, settings=NOW) as client:
            use(client.load("orders"))
        assert any(name in str(caught.value) for name in named), caught.value
        assert all(STORED_KEY.fullmatch(key) for key in watched.keys("get", "set", "create", "delete")), watched.asked
        assert watched.keys("delete") == set()
    after = everything(victim.blob)
    assert {key: after.get(key) for key in before} == before


def test_a_record_that_names_what_is_no_upload_of_its_collection_is_refused(victim: Victim) -> None:
    for key in [*victim.hostile_keys(), ""]:
        before = everything(victim.blob)
        at = victim.record(kinds.Append(victim.id, (victim.named(key),)))
        check_refused(victim, before, at)
        pointer = BlobRef(key, 1, DIGITS)
        victim.blob.delete(at)
        victim.record(kinds.Append(victim.id, (), pointer))
        check_refused(victim, before, at)
        victim.blob.delete(at)


def test_a_part_list_that_names_what_is_no_upload_of_its_collection_is_refused(victim: Victim) -> None:
    location = decode_framed(victim.blob.get(make_record_key(0)) or b"", Record, "").location
    for key in victim.hostile_keys():
        parts = PartList(location=location, collection=victim.id, parts=(victim.named(key),))
        pointer = store_framed(victim.blob, f"list/{victim.id}/{0:020d}-", parts)
        before = everything(victim.blob)
        at = victim.record(kinds.Append(victim.id, (), pointer))
        check_refused(victim, before, at)
        victim.blob.delete(at)


SCHEMA: dict[str, Any] = {"key": {"fields": [["k", "int64"]]}, "value": None}
HUGE = 10**30


def hostile_mutations(victim: Victim) -> dict[str, Sequence[Mutation]]:
    created = [kinds.Create(bad, "fine", SCHEMA) for bad in ("", "../x", "x" * 32, DIGITS[:-1] + "/", DIGITS.upper())]
    named = [kinds.Create(OTHER, bad, SCHEMA) for bad in ["", *ESCAPES, " x", "\x1b[2J", "\ud7ff" * 300]]
    granted = [kinds.GrantLease(bad, "me", 1) for bad in ("", "../x", "x" * 32)]
    shown = [kinds.GrantLease(OTHER, bad, 1) for bad in ("", "a\nb", "\x1b[2J", "x" * 5000)]
    owners = [kinds.OpenWriter("id", bad) for bad in ("", "a\nb", "\x1b[2J")]
    held = [kinds.SetHold(victim.id, bad, 4) for bad in ("", "../x", "a\0b", "x" * 300, OTHER)]
    leased = [kinds.SetHold(victim.id, bad, 4, victim.lease) for bad in ("", "../x", "consumer")]
    timed = [kinds.SetHold(victim.id, "late", bad) for bad in (HUGE, -1, 2**64)]
    moved = [
        frontier(victim.id, bad)
        for frontier in (kinds.Seal, kinds.AllowCompaction)
        for bad in ((HUGE,), (-1,), (9, HUGE))
    ]
    each: list[Mutation] = [*created, *named, *granted, *shown, *owners, *held, *leased, *timed, *moved]
    found: dict[str, Sequence[Mutation]] = {
        f"{n}: {str(mutation)[:80]!r}": [mutation] for n, mutation in enumerate(each)
    }
    other = kinds.GrantLease(OTHER, "me", 1)
    found["the hold of another lease"] = [other, kinds.SetHold(victim.id, victim.hold, 4, OTHER)]
    found["a permanent hold in place of a leased one"] = [kinds.SetHold(victim.id, victim.hold, 4, None, 0)]
    found["the id of a destroyed collection"] = [kinds.Create(victim.destroyed, "again", SCHEMA)]
    found["an id twice"] = [kinds.Create(victim.id, "again", SCHEMA)]
    found["a collection that does not exist"] = [kinds.Seal(OTHER, (9,))]
    found["a release that does not exist"] = [kinds.ReleaseHold("../x", "x")]
    found["after destruction"] = [kinds.Destroy(victim.id), kinds.Seal(victim.id, (9,))]
    found["a lease that does not exist"] = [kinds.SetHold(victim.id, OTHER, 4, OTHER)]
    return found


def test_a_record_that_no_writer_would_make_is_refused(victim: Victim) -> None:
    for what, mutations in hostile_mutations(victim).items():
        before = everything(victim.blob)
        at = victim.record(*mutations)
        try:
            check_refused(victim, before, at, "its entry of collection 'orders'")
        except BaseException as error:
            error.add_note(what)
            raise
        victim.blob.delete(at)


def test_huge_numbers_are_no_trouble(victim: Victim) -> None:
    victim.record(kinds.GrantLease(OTHER, "me", HUGE), kinds.SetHold(victim.id, OTHER, 4, OTHER), written_ms=HUGE)
    with persist.open(victim.blob, settings=NOW) as client:
        orders = client.load("orders")
        assert max(hold.expires_ms or 0 for hold in orders.holds()) == HUGE
        orders.allow_compaction(5).result()
        client.gc()
        assert orders.snapshot(4).count() > 0


# What storage says: checkpoints and state objects.


def changed(value: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(value, **fields)


def directory_at(seqno: int) -> BlobRef:
    return BlobRef(f"directory/{seqno:020d}-{DIGITS}.json", 1, DIGITS)


def hostile_checkpoints(victim: Victim, good: Checkpoint) -> dict[str, Checkpoint]:
    (entry,) = good.collections
    control = good.control

    def with_entry(**fields: Any) -> Checkpoint:
        return msgspec.structs.replace(good, collections=(changed(entry, **fields),))

    def with_control(**fields: Any) -> Checkpoint:
        return msgspec.structs.replace(good, control=changed(control, **fields))

    found = {
        "a floor beyond the log": with_control(log_floor=10**19),
        "a floor below": with_control(log_floor=-1),
        "an upload floor beyond the log": with_control(upload_floor=10**19),
        "a collection that lives, to be deleted": with_control(dropped=(Dropped(0, 0, victim.id),)),
        "a replaced blob elsewhere, to be deleted": with_control(dropped=(Dropped(0, 0, victim.id, (), ("../x",)),)),
        "another's blob, to be deleted": with_control(dropped=(Dropped(0, 0, OTHER, (), (victim.part.blob,)),)),
        "data that was destroyed beyond the log": with_control(erased=10**19),
        "data that was destroyed below": with_control(erased=-1),
        "a folder to be deleted": with_control(dropped=(Dropped(0, 0, ""),)),
        "a path to be deleted": with_control(dropped=(Dropped(0, 0, "../log"),)),
        "a hold of no lease": changed(with_entry(leased=((OTHER, DIGITS),)), control=changed(control, leases={})),
        "a hold that is not an id": with_entry(leased=(("x", OTHER),)),
        "a hold of two leases": with_entry(leased=((OTHER, OTHER), (OTHER, DIGITS))),
        "a collection that is gone and never was": changed(good, gone=(OTHER,)),
        "a collection that is gone and there": changed(good, gone=(victim.id,)),
        "too many directory objects": changed(good, directory=(directory_at(0),) * 65),
        "a directory beyond the log": changed(good, directory=(directory_at(good.seqno + 1),)),
        "a location that is none": changed(good, location="../x"),
        "an id that is a path": with_entry(id="../log"),
        "no id": with_entry(id=""),
        "a name that is a path": with_entry(name="../x"),
        "two of one id": changed(good, collections=(entry, changed(entry, name="more"))),
        "two of one name": changed(good, collections=(entry, changed(entry, id=OTHER))),
        "nothing": with_entry(base=None, pending=()),
        "no beginning": with_entry(base=None, pending=(kinds.Seal(victim.id, (9,)),)),
        "another name at the beginning": with_entry(base=None, pending=(kinds.Create(victim.id, "x", SCHEMA),)),
        "two beginnings": with_entry(pending=(kinds.Create(victim.id, "orders", SCHEMA),)),
        "an end": with_entry(pending=(kinds.Destroy(victim.id),)),
        "another's mutation": with_entry(pending=(kinds.Seal(OTHER, (9,)),)),
    }
    for key in victim.hostile_keys():
        found[f"directory {key[:50]!r}"] = changed(good, directory=(BlobRef(key, 1, DIGITS),))
        found[f"base {key[:50]!r}"] = with_entry(base=BlobRef(key, 1, DIGITS))
        found[f"part {key[:50]!r}"] = with_entry(pending=(kinds.Append(victim.id, (victim.named(key),)),))
        found[f"list {key[:50]!r}"] = with_entry(pending=(kinds.Append(victim.id, (), BlobRef(key, 1, DIGITS)),))
        found[f"unused {key[:50]!r}"] = with_entry(pending=(kinds.Replace(victim.id, unused=(key,)),))
        found[f"replaced {key[:50]!r}"] = with_entry(pending=(kinds.Replace(victim.id, (victim.named(key),)),))
        found[f"to be deleted {key[:50]!r}"] = with_control(dropped=(Dropped(0, 0, victim.id, (), (key,)),))
    return found


@pytest.mark.parametrize("victim", [True], indirect=True, ids=[""])
def test_a_checkpoint_that_no_writer_would_make_is_refused(victim: Victim) -> None:
    good = victim.newest()
    key = make_checkpoint_key(good.seqno)
    for what, bad in hostile_checkpoints(victim, good).items():
        before = {k: v for k, v in everything(victim.blob).items() if k != key}
        victim.blob.set(key, encode_framed(bad))
        try:
            check_refused(victim, before, key)
        except BaseException as error:
            error.add_note(what)
            raise


@pytest.mark.parametrize("victim", [True], indirect=True, ids=[""])
def test_a_live_client_deletes_nothing_on_the_word_of_a_hostile_checkpoint(victim: Victim) -> None:
    """It knows better than the checkpoint, and reads it only to collect garbage."""
    good = victim.newest()
    key = make_checkpoint_key(good.seqno)
    for bad in [*hostile_checkpoints(victim, good).values()][:: 3 if examples(100) < 100 else 1]:
        victim.blob.set(key, encode_framed(good))
        watched = WatchedBlob(victim.blob)
        with persist.open(watched, settings=NOW) as client:
            assert client.load("orders").snapshot(4).count() > 0
            victim.blob.set(key, encode_framed(bad))
            before = {k: v for k, v in everything(victim.blob).items() if k.startswith(("log/", f"part/{victim.id}"))}
            with suppress(persist.errors.CorruptBlob):
                client.gc()
        after = everything(victim.blob)
        assert {k: after.get(k) for k in before} == before
        assert all(STORED_KEY.fullmatch(k) for k in watched.keys("get", "delete"))
        for other in list(victim.blob.list("checkpoint/")):
            victim.blob.delete(other.key)


@pytest.mark.parametrize("victim", [True], indirect=True, ids=[""])
def test_a_state_object_that_no_writer_would_make_is_refused(victim: Victim) -> None:
    good = victim.newest()
    (entry,) = good.collections
    assert entry.base is not None
    stored = decode_framed(victim.blob.get(entry.base.blob) or b"", StateObject, "")
    contents = stored.collection
    bad = {
        "id": changed(contents, id=OTHER),
        "name": changed(contents, name="x"),
        "since": changed(contents, since_times=(HUGE,)),
        "upper": changed(contents, upper_times=(-1,)),
        "hold": changed(contents, holds={"x": changed(next(iter(contents.holds.values())), time=HUGE)}),
        "no bytes": changed(contents, numbered={0: victim.named("")}),
        "no run": changed(contents, history=()),
        "a run twice": changed(contents, history=((0,), (0,))),
        "a part twice": changed(contents, history=((0, 0),)),
        "an empty run": changed(contents, history=((0,), ())),
        "a part that is not there": changed(contents, history=((0,), (1,))),
        "a huge number": changed(contents, history=((0,), (HUGE,))),
        "a number to come": changed(contents, next_number=0),
        "a negative number": changed(contents, numbered={-1: victim.part}, history=((-1,),)),
        "a keyframe of history": changed(contents, keyframes=(Keyframe(0, (0,)),)),
        "a keyframe of nothing": changed(contents, keyframes=(Keyframe(0, (1,)),)),
        "a keyframe beyond upper": changed(contents, keyframes=(Keyframe(5, ()),)),
        "keyframes backwards": changed(contents, keyframes=(Keyframe(2, ()), Keyframe(1, ()))),
        "a huge keyframe": changed(contents, keyframes=(Keyframe(HUGE, ()),)),
        "a keyframe below 0": changed(contents, keyframes=(Keyframe(-1, ()),)),
        "history without a keyframe": changed(contents, history_from=1, numbered={}, history=()),
        "history beyond since": changed(
            contents, history_from=3, numbered={}, history=(), keyframes=(Keyframe(2, ()),)
        ),
        "history below 0": changed(contents, history_from=-1),
    }
    for key in victim.hostile_keys():
        bad[key] = changed(contents, numbered={0: victim.named(key)})
    for what, contents in bad.items():
        base = store_framed(victim.blob, f"state/{victim.id}/{0:020d}-", changed(stored, collection=contents))
        victim.blob.set(
            make_checkpoint_key(good.seqno), encode_framed(changed(good, collections=(changed(entry, base=base),)))
        )
        try:
            check_refused(victim, everything(victim.blob), base.blob)
        except BaseException as error:
            error.add_note(what)
            raise


# What may be deleted.


def test_parts_that_are_offered_again_are_not_deleted_when_that_is_refused(client: persist.Client) -> None:
    """As when a job commits twice what its tasks have uploaded."""
    orders = client.create_or_load("orders", key=KEY, value=VALUE)
    parts = PartWriter(client.engine.blob, client.engine.follower.find_next_seqno).upload(
        orders.id, orders.schema, table(5)
    )
    commit_parts(orders, parts, seal=persist.Antichain(6)).result()
    with pytest.raises(persist.errors.UpdateNotBeyondUpper):
        commit_parts(orders, parts, seal=persist.Antichain(6)).result()
    assert orders.snapshot(5).to_arrow().num_rows == 20_000
    with pytest.raises(persist.PersistError), client.multi_write() as multi:
        multi.write(orders, table(7))
        multi.seal(orders, 1)
    assert [entry.key for entry in client.engine.blob.list("part/")] == [part.blob for part in parts]


def test_parts_with_hostile_names_are_neither_committed_nor_deleted(client: persist.Client, blob: MemoryBlob) -> None:
    orders = client.create_or_load("orders", key=KEY, value=VALUE)
    orders.write(table(0), seal=1).result()
    (part,) = client.engine.follower.require(orders.id, "orders").parts
    before = everything(blob)
    for key in (make_record_key(0), part.blob.replace(orders.id, OTHER), "../x", ""):
        for time in (0, 9):
            with pytest.raises(persist.InvalidUsage, match="these parts cannot be committed"):
                commit_parts(orders, [changed(part, blob=key, time_min=time, time_max=time)])
    assert everything(blob) == before


INNER = ["2", "/inner", "/log/0", "/part", "/list", "/checkpoint/0", "/gc/x"]


def test_neighbours_and_nested_locations_do_not_touch_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one that lies where another one keeps what it collects."""
    monkeypatch.setattr("persist.engine.follow.checkpoint.STORED_PENDING_MAX", 0)
    monkeypatch.setattr("persist.engine.follow.directory.INLINE_BYTES_MAX", 0)
    monkeypatch.setattr("persist.core.log.records.PARTS_INLINE_MAX", 0)
    monkeypatch.setattr("persist.engine.write.part_writer.INLINE_PART_MAX", 0)
    outer = f"{tmp_path}/loc"
    # Those below the outer one first: it must not take theirs for its own when it has nothing yet.
    folders = [f"{outer}{inner}" for inner in INNER]
    for folder in folders:
        life(folder, 12)
    life(outer, 60)
    with persist.open(outer, settings=NOW) as client:
        (dropped,) = client.engine.follower.state.control.dropped
    for kind in ("part", "state", "list"):
        folders.append(f"{outer}/{kind}/{dropped.collection}/x")
        life(folders[-1], 12)
    for path in tmp_path.rglob("*"):
        os.utime(path, (1, 1))  # Old enough for all that may ever go.

    def files(but: str) -> dict[str, bytes]:
        own = re.compile(f"{re.escape(but)}/({STORED_KEY.pattern})")
        paths = (path for path in tmp_path.rglob("*") if path.is_file() and not own.fullmatch(str(path)))
        return {str(path): path.read_bytes() for path in paths}

    for folder in [outer, *folders]:
        before = files(folder)
        with persist.open(folder, settings=NOW) as client:
            assert client.collections() == [name_in(folder)]
            reports = [client.gc(), client.gc()]
        assert files(folder) == before
        for kind in ("collections", "parts", "lists", "states", "directories", "checkpoints", "records"):
            assert folder != outer or sum(getattr(report, kind) for report in reports) > 0, kind
    for folder in [outer, *folders]:
        with persist.open(folder, mode="read") as client:
            assert client.load(name_in(folder)).snapshot(0).count() == 2_000


def name_in(folder: str) -> str:
    return folder[-40:].replace("/", "-").replace("..", "-").strip()


def life(folder: str, commits: int) -> None:
    """Write so that there is garbage of each kind for who collects at once."""
    with persist.open(FileBlob(folder, fsync=False), settings=NOW) as client:
        kept = client.create_or_load(name_in(folder), key=KEY, value=VALUE)
        kept.write(table(0, 2_000), seal=1).result()
        gone = client.create_or_load("gone", key=KEY, value=VALUE)
        gone.write(table(0, 2_000), seal=1).result()
        PartWriter(client.engine.blob, client.engine.follower.find_next_seqno).upload(
            kept.id, kept.schema, table(5, 10)
        )
        for time in range(2, commits):
            kept.seal(time).result()
            wait_for_checkpoint(client)
        gone.drop().result()


# What may be executed.


class Exploit:
    """Unpickles to a command that leaves a mark."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self._mark}",)


READ_AND_TELL = """if True:
    import pickle, sys, persist
    def read(location):
        with persist.open(location, mode="read") as client:
            for name in client.collections():
                snapshot = client.load(name).snapshot(0)
                for take in (snapshot.to_arrow, snapshot.to_pandas, snapshot.to_polars, lambda: list(snapshot.rows())):
                    try:
                        print(name, len(take()))
                    except persist.errors.CorruptBlob as error:
                        print(name, error)
    read(sys.argv[1])  # Imports what is imported late.
    def told(event, args):
        if event in ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork"):
            print("EXECUTED", event, args)
    sys.addaudithook(told)
    read(sys.argv[1])
    sys.audit("os.system", "the hook works")
"""


def test_nothing_that_is_read_is_executed(tmp_path: Path) -> None:
    """Arrow's Python extension types were pickles once, and pandas reads advice from the metadata of a file."""
    location, mark = tmp_path / "loc", tmp_path / "mark"
    payload = pickle.dumps(Exploit(str(mark)))
    with persist.open(location) as client:
        for name, of_type in (("arrow", b"arrow.py_extension_type"), ("pandas", b"pandas.period")):
            evil = client.create_or_load(name, key=KEY)
            fields = [
                pa.field(
                    "k", pa.int64(), metadata={"ARROW:extension:name": of_type, "ARROW:extension:metadata": payload}
                ),
                pa.field("_time", pa.int64(), nullable=False),
                pa.field("_diff", pa.int64(), nullable=False),
            ]
            pandas = (
                b'{"index_columns": ["k"], "columns": [{"name": "k", "pandas_type": "object", "numpy_type": "object"}]}'
            )
            schema = pa.schema(fields, metadata={"pandas": pandas, "pickle": base64.b64encode(payload)})
            sink = pa.BufferOutputStream()
            pq.write_table(pa.table({"k": [1], "_time": [0], "_diff": [1]}, schema=schema), sink)
            data = sink.getvalue().to_pybytes()
            part = Part(
                inline=data,
                bytes=len(data),
                rows=1,
                memory=1 << 20,
                checksum=xxhash.xxh3_128_hexdigest(data),
                footer=describe_footer(data),
                time_min=0,
                time_max=0,
                negatives=0,
                diff_sum=1,
            )
            commit_parts(evil, [part], seal=persist.Antichain(1)).result()
    done = subprocess.run(
        [*forked_python(), "-c", READ_AND_TELL, str(location)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *lines, hook = done.stdout.splitlines()
    assert hook == "EXECUTED os.system ('the hook works',)"
    assert len(lines) == 16
    assert not [line for line in lines if line.startswith("EXECUTED")]
    assert not mark.exists()
