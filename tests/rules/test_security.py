"""What `docs/run/security.md` promises of rights and secrets: policies suffice, readers only read, nothing is
leaked."""

import inspect
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import persist
from persist.blob.protocol import BlobEntry, MemoryBlob
from persist.blob.stores.s3 import S3Blob
from persist.engine.write.part_writer import PartWriter
from tests.support.forks import forked_python
from tests.support.iam import ACTIONS, Call, Gate, Grant, policies_in
from tests.support.paths import ROOT
from tests.support.reads import (
    CLIENT_READS,
    CLIENT_WRITES,
    COLLECTION_READS,
    COLLECTION_WRITES,
    KEY,
    VALUE,
    fill,
    read_everything,
    table,
    writes,
)
from tests.support.servers.fixtures import make_bucket
from tests.support.stepped import WAIT_S
from tests.support.tuned import tuned
from tests.support.watched import KEY as STORED_KEY
from tests.support.watched import WatchedBlob

KMS_KEY = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555"
MONTH_S = 30 * 86400.0


class AgedBlob(S3Blob):
    """A bucket in which all is a month old but what was written to tell the time."""

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        for entry in super().list(prefix, start_after):
            yield entry if entry.key == "gc/clock" else replace(entry, modified_s=entry.modified_s - MONTH_S)


# Least rights.


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, s3_options: dict[str, Any]) -> Iterator[Gate]:
    # So that a small location has checkpoints, a state object at each of them, and a part list.
    monkeypatch.setattr("persist.engine.follow.checkpoint.INTERVAL", 4)
    monkeypatch.setattr("persist.core.log.records.PARTS_INLINE_MAX", 0)
    monkeypatch.setattr("persist.engine.follow.checkpoint.STORED_PENDING_MAX", 0)
    monkeypatch.setattr("persist.engine.follow.directory.INLINE_BYTES_MAX", 500)
    with closing(Gate(s3_options["endpoint_url"])) as gate:
        yield gate


class Place:
    """A location in a new bucket, with policies for it, and options for each role."""

    def __init__(self, gate: Gate, s3_options: dict[str, Any], *, kms: bool = False) -> None:
        self.bucket, self.prefix = make_bucket(s3_options), "some/loc"
        self.url = f"s3://{self.bucket}/{self.prefix}"
        self._options, self._gate_url = s3_options, gate.url
        encryption = {"server_side_encryption": "aws:kms", "sse_kms_key_id": KMS_KEY}
        self._more = encryption if kms else {}
        words = {"BUCKET": self.bucket, "PREFIX": self.prefix, "KEY_ARN": KMS_KEY}
        found = policies_in(ROOT / "examples/operate/policies", words)
        decrypt, encrypt = found["kms"]
        assert (decrypt.sid, encrypt.sid) == ("Decrypt", "Encrypt")
        self.policies: dict[str, list[Grant]] = {
            "READER": [*found["reader"], *([decrypt] if kms else [])],
            "WRITER": [*found["writer"], *([decrypt, encrypt] if kms else [])],
            "COLLECTOR": [*found["writer"], *found["collector"], *([decrypt, encrypt] if kms else [])],
        }
        gate.roles.update(self.policies)

    def options(self, role: str) -> dict[str, Any]:
        return {**self._options, "endpoint_url": self._gate_url, "access_key_id": role, **self._more}


def write_everything(client: persist.Client) -> None:
    """Do all that writes, but collecting garbage."""
    fill(client)
    orders = client.load("orders")
    for time in range(5, 10):
        orders.seal(time).result()
    with pytest.raises(persist.errors.UpdateNotBeyondUpper):
        orders.write(table(0)).result()
    with client.multi_write() as multi:
        multi.write(orders, table(50))
        multi.seal(orders, 51)
    with orders.hold(50), orders.snapshot(50) as snapshot:
        assert snapshot.count()
        orders.allow_compaction(40).result()
    orders.hold(name="consumer").release()
    with client_like(client, mode="exclusive"), pytest.raises(persist.errors.Locked):
        orders.seal(60).result()
    gone = client.create_or_load("gone", key=KEY, value=VALUE)
    gone.write(table(0), seal=1).result()
    gone.drop().result()


def client_like(client: persist.Client, **changed: Any) -> persist.Client:
    return persist.open(client.engine.blob, **changed)


def collect(place: Place) -> None:
    """Collect a month later, when the destroyed, the forgotten and the old may go."""
    bucket = AgedBlob(place.bucket, place.prefix, place.options("COLLECTOR"))
    settings = tuned(background=False, log_retention_records=16)
    with closing(bucket), persist.open(bucket, settings=settings) as client:
        orders = client.load("orders")
        PartWriter(bucket, client.engine.follower.find_next_seqno).upload(orders.id, orders.schema, table(99))
        orders.seal(70).result()
        client.gc()
        for time in range(71, 76):
            orders.seal(time).result()
        client.gc()
        key = next(iter(bucket.list("checkpoint/"))).key
        orders.seal(80).result()
        bucket.delete(key)
        bucket.create(key, b"damaged")
        report = client.fsck(repair=True)
        assert ("damaged", key) in [(problem.kind, problem.blob) for problem in report.problems]
        assert ("delete", key) in [(repair.action, repair.blob) for repair in report.repairs_done]


@pytest.mark.thorough
def test_the_policies_of_the_manual_are_enough_and_no_line_of_them_is_spare(
    gate: Gate, s3_options: dict[str, Any]
) -> None:
    place = Place(gate, s3_options, kms=True)
    lone = persist.Settings(gc_interval_s=1e9)
    with persist.open(place.url, storage_options=place.options("WRITER"), settings=lone) as client:
        write_everything(client)
    # What the refused write had uploaded stays, and nothing else was missing.
    refused = {(ACTIONS[call.operation], key.split("/")[2]) for call in gate.refused for key in call.keys}
    assert refused == {("s3:DeleteObject", "part")}
    gate.refused.clear()

    with persist.open(place.url, storage_options=place.options("COLLECTOR")) as client:
        client.load("orders").drop().result()
        client.load("other").drop().result()
        write_everything(client)
    collect(place)
    with persist.open(place.url, storage_options=place.options("COLLECTOR")) as client:
        client.load("orders").drop().result()
        client.load("other").drop().result()
        fill(client)
    with persist.open(place.url, mode="read", storage_options=place.options("READER")) as client:
        read_everything(client)
    assert gate.refused == []

    for role, policy in place.policies.items():
        calls = gate.of(role)
        if role == "WRITER":
            calls = [call for call in calls if ACTIONS[call.operation] != "s3:DeleteObject"]
        assert gate.allowed(calls, policy)
        for grant in policy:
            others = [other for other in policy if other is not grant]
            assert not gate.allowed(calls, others), f"{role} needs no {grant.action} on {grant.resource}"
    check_within(gate.of(*place.policies), place)


def check_within(calls: list[Call], place: Place) -> None:
    """Assert that every request stays in the location, has the key of something it may hold, and is of a known kind."""
    base = f"{place.prefix}/"
    for call in calls:
        assert call.bucket == place.bucket
        if call.operation == "ListObjectsV2":
            assert (call.method, call.keys) == ("GET", ())
            assert call.query["prefix"].startswith(base)
        else:
            methods = {"GetObject": "GET", "PutObject": "PUT", "DeleteObject": "DELETE", "DeleteObjects": "POST"}
            assert call.method == methods[call.operation]
            assert call.keys
            for key in call.keys:
                assert key.startswith(base)
                assert STORED_KEY.fullmatch(key.removeprefix(base)), key


def test_who_may_only_read_reads_in_any_mode_and_a_writer_replaces_no_record(
    gate: Gate, s3_options: dict[str, Any]
) -> None:
    place = Place(gate, s3_options)
    with persist.open(place.url, storage_options=place.options("COLLECTOR")) as client:
        fill(client)
    with persist.open(place.url, storage_options=place.options("READER")) as client:
        orders = client.load("orders")
        assert orders.snapshot(3).count() > 0
        with pytest.raises(persist.InvalidUsage, match=r"AccessDenied.*s3:PutObject"):
            orders.seal(9).result()
    assert {call.method for call in gate.refused} == {"PUT"}
    bucket = S3Blob(place.bucket, place.prefix, place.options("WRITER"))
    record = bucket.get("log/" + "0" * 20)
    for attempt in (bucket.set, lambda key, _: bucket.delete(key)):
        with pytest.raises(persist.InvalidUsage, match="AccessDenied"):
            attempt("log/" + "0" * 20, b"forged")
    assert not bucket.create("log/" + "0" * 20, b"forged")
    assert bucket.get("log/" + "0" * 20) == record
    bucket.close()


@pytest.mark.thorough
def test_missing_rights_are_not_taken_for_damage(gate: Gate, s3_options: dict[str, Any]) -> None:
    place = Place(gate, s3_options)
    with persist.open(place.url, storage_options=place.options("WRITER")) as client:
        write_everything(client)
    resource = f"arn:aws:s3:::{place.bucket}/{place.prefix}"
    gate.roles["READER"] = [
        *(grant for grant in place.policies["READER"] if grant.action == "s3:ListBucket"),
        *(
            Grant("Part", "s3:GetObject", f"{resource}/{kind}/*", ())
            for kind in ("log", "checkpoint", "directory", "list")
        ),
    ]
    reader = persist.open(place.url, mode="read", storage_options=place.options("READER"))
    with reader, pytest.raises(persist.InvalidUsage, match="AccessDenied"):
        reader.load("orders")


# A client that reads writes nothing.


def test_every_public_operation_is_known_to_read_or_to_write() -> None:
    """A new operation must be sorted into one of these, so that the tests below cover it."""
    for cls, known in (
        (persist.Client, CLIENT_READS | CLIENT_WRITES),
        (persist.Collection, COLLECTION_READS | COLLECTION_WRITES),
    ):
        public = {name for name, _ in inspect.getmembers(cls) if not name.startswith("_")}
        assert public <= known, f"{public - known} neither read nor write, says tests/support/reads.py"


def test_a_client_that_reads_changes_nothing_in_memory() -> None:
    store = MemoryBlob()
    with persist.open(store) as client:
        fill(client)
    watched = WatchedBlob(store, read_only=True)
    with persist.open(watched, mode="read") as client:
        read_everything(client)
        for write in writes(client):
            with pytest.raises(persist.errors.ReadOnly):
                write()
    assert watched.changed() == []
    assert {"get", "list"} == {operation for operation, _ in watched.asked}


def test_a_location_that_does_not_exist_is_not_made_by_reading_it(tmp_path: Path) -> None:
    with persist.open(tmp_path / "nothing", mode="read") as client:
        assert client.collections() == []
        with pytest.raises(persist.errors.CollectionNotFound):
            client.load("orders")
        with pytest.raises(persist.errors.ReadOnly):
            client.create_or_load("orders", key=KEY)
    assert list(tmp_path.iterdir()) == []


def tree(folder: Path) -> list[tuple[str, int, int, int, bytes]]:
    """Return path, mode, owner, time of change and contents of all that is in a folder."""
    found = []
    for path in sorted([folder, *folder.rglob("*")]):
        stat = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found.append((str(path), stat.st_mode, stat.st_uid, stat.st_mtime_ns, data))
    return found


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that its owner can only read, and that belongs to somebody who is not root."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield folder
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o700)


def test_a_folder_that_nobody_may_write_can_be_read(reachable: Path) -> None:
    with persist.open(reachable) as client:
        fill(client)
    for path in [reachable, *reachable.rglob("*")]:
        path.chmod(0o500 if path.is_dir() else 0o400)
        if os.getuid() == 0:
            os.chown(path, 65534, 65534)
    before = tree(reachable)
    code = """if True:
        import os, sys, persist
        from tests.support.reads import fill, read_everything
        with persist.open("memory://warm-up") as client:  # Another user may not be able to read what is imported late.
            fill(client)
        with persist.open("memory://warm-up", mode="read") as client:
            read_everything(client)
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)  # Root may write anywhere.
        assert not os.access(sys.argv[1], os.W_OK)
        with persist.open(sys.argv[1], mode="read") as client:
            read_everything(client)
    """
    done = subprocess.run(
        [*forked_python(), "-c", code, str(reachable)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert tree(reachable) == before


def test_a_client_that_reads_s3_only_gets_and_lists(gate: Gate, s3_options: dict[str, Any]) -> None:
    place = Place(gate, s3_options)
    gate.roles.clear()
    with persist.open(place.url, storage_options=place.options("WRITER")) as client:
        fill(client)
    with persist.open(place.url, mode="read", storage_options=place.options("READER")) as client:
        read_everything(client)
        for write in writes(client):
            with pytest.raises(persist.errors.ReadOnly):
                write()
    calls = gate.of("READER")
    assert {call.method for call in calls} <= {"GET", "HEAD"}
    assert {call.operation for call in calls} == {"GetObject", "ListObjectsV2"}
    check_within(calls, place)


# Secrets.
