"""Bad input gets a clear error, and nothing changes: every item of that list, through the public API.

Each message must hold the offending value, what is allowed, and what to do. Around each call the whole store is
compared, blob by blob.
"""

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import xxhash

import persist
from persist.blob import Blob, MemoryBlob
from persist.codecs import CollectionSchema
from persist.dataflow import Program, col
from persist.engine import created_or_loaded
from persist.log import FORMAT

ROOT = Path(__file__).parent.parent
KEY = {"k": pa.int64()}
VALUE = {"v": pa.string()}
INT64_MAX = 2**63 - 1
GOOD: dict[str, list[Any]] = {"k": [1], "v": ["a"], "_time": [10], "_diff": [1]}


@pytest.fixture
def orders(client: persist.Client) -> persist.Collection:
    """One record in it, sealed up to 10, compacted up to 5."""
    orders = client.create_or_load("orders", key=KEY, value=VALUE)
    orders.write([((0, "first"), 3, 1)])
    orders.seal(10).result()
    orders.allow_compaction(5).result()
    return orders


def everything(blob: Blob) -> dict[str, bytes | None]:
    """Return all blobs of a store."""
    return {entry.key: blob.get(entry.key) for entry in blob.list("")}


@contextmanager
def refused(blob: Blob, kind: type[Exception], *texts: str) -> Iterator[None]:
    """Assert that the block raises exactly that class with all texts in its message, and changes no blob."""
    before = everything(blob)
    with pytest.raises(kind) as caught:
        yield
    exact = type(caught.value)
    assert exact is kind or (kind is persist.CorruptBlob and exact is persist.MissingBlob)
    missing = [text for text in texts if text not in str(caught.value)]
    assert not missing, f"{missing} not in: {caught.value}"
    assert everything(blob) == before


def table(**changed: Any) -> pa.Table:
    """Return one good update as columns, some of them changed, or left out when None is given."""
    columns = {**GOOD, **changed}
    return pa.table({name: column for name, column in columns.items() if column is not None})


def test_an_update_below_upper_is_rejected(orders: persist.Collection, blob: MemoryBlob) -> None:
    with refused(blob, persist.UpdateNotBeyondUpper, "time 9", "upper=Antichain(10)", "Write at times >= 10"):
        orders.write([((1, "a"), 9, 1)]).result()
    orders.seal(persist.Antichain()).result()
    with refused(blob, persist.UpdateNotBeyondUpper, "time 11", "complete for ever", "another collection"):
        orders.write([((1, "a"), 11, 1)]).result()


@pytest.mark.parametrize(
    ("updates", "texts"),
    [
        (table(v=None), ["'v' (string) is missing", "k: int64, v: string", "Add, drop or rename"]),
        (table(v=None, w=["a"]), ["'v' (string) is missing", "'w' is unexpected", "k: int64, v: string"]),
        (table(extra=[1]), ["'extra' is unexpected", "k: int64, v: string", "Add, drop or rename"]),
        (table(_time=None), ["'_time' (int64) is missing", "Add, drop or rename"]),
        (table(_diff=None), ["'_diff' (int64) is missing", "Add, drop or rename"]),
        (table(k=["x"]), ["column 'k' has type string", "stores int64", "Cast it to int64"]),
        (table(v=[7]), ["column 'v' has type int64", "stores string", "Cast it to string"]),
        (table(_time=[1.5]), ["column '_time' has type double", "stores int64", "Cast it to int64"]),
        (table(_diff=["1"]), ["column '_diff' has type string", "stores int64", "Cast it to int64"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_columns_that_do_not_fit_are_rejected(
    orders: persist.Collection, blob: MemoryBlob, updates: pa.Table, texts: list[str]
) -> None:
    with refused(blob, persist.SchemaMismatch, *texts):
        orders.write(updates)
    with refused(blob, persist.SchemaMismatch, *texts):
        orders.write(updates.to_batches()[0])


@pytest.mark.parametrize(
    ("changed", "texts"),
    [
        ({"_time": pa.array([None], pa.int64())}, ["update 0 has NULL in _time", "needs a time", "Fill it in"]),
        ({"_diff": pa.array([None], pa.int64())}, ["update 0 has NULL in _diff", "needs a time and a diff"]),
        ({"_time": [-1]}, ["update 0 has the time -1", f"from 0 to {INT64_MAX - 1}", "Choose a unit"]),
        ({"_time": [INT64_MAX]}, [f"has the time {INT64_MAX}", f"from 0 to {INT64_MAX - 1}", "Choose a unit"]),
    ],
    ids=str,
)
def test_a_bad_time_or_diff_in_a_table_is_rejected(
    orders: persist.Collection, blob: MemoryBlob, changed: dict[str, Any], texts: list[str]
) -> None:
    with refused(blob, persist.InvalidUpdate, *texts):
        orders.write(table(**changed))


def test_the_second_of_two_updates_is_named_and_the_first_is_not_written(
    orders: persist.Collection, blob: MemoryBlob
) -> None:
    with refused(blob, persist.InvalidUpdate, "update 1 ", "-7"):
        orders.write([((1, "a"), 10, 1), ((2, "b"), -7, 1)])
    bad = pa.table({"k": [1, 2], "v": ["a", "b"], "_time": [10, -7], "_diff": [1, 1]})
    with refused(blob, persist.InvalidUpdate, "update 1 ", "-7"):
        orders.write(bad)


@pytest.mark.parametrize(
    ("update", "texts"),
    [
        (1, ["update 0 is 1", "not a tuple of three", "looks like ((1, 'text'), 0, 1)"]),
        ((1, "a", 10, 1), ["(1, 'a', 10, 1)", "not a tuple of three", "looks like ((1, 'text'), 0, 1)"]),
        (((1,), 10, 1), ["(1,)", "not a tuple of two, (key, value)", "looks like"]),
        ((((1,), "a"), 10, 1), ["the key (1,) is a tuple", "takes the value itself", "looks like"]),
        (((1, "a"), None, 1), ["None for _time", "needs a time and a diff", "Give an int"]),
        (((1, "a"), 10, None), ["None for _diff", "needs a time and a diff", "Give an int"]),
        (((1, "a"), "10", 1), ["'10' (str) for _time", "int64", "Give an int"]),
        (((1, "a"), 10, 1.5), ["1.5 (float) for _diff", "int64", "Give an int"]),
        (((1, "a"), 10, True), ["True (bool) for _diff", "int64", "Give an int"]),
        (((1, "a"), 10, 2**63), [f"{2**63} (int) for _diff", "int64", "Give an int that fits"]),
        (((1, "a"), -1, 1), ["the time -1", f"from 0 to {INT64_MAX - 1}", "Choose a unit"]),
        (((1, "a"), INT64_MAX, 1), [f"the time {INT64_MAX}", f"from 0 to {INT64_MAX - 1}"]),
        ((("x", "a"), 10, 1), ["'x' (str) for key field 'k'", "int64", "Give an int"]),
        (((True, "a"), 10, 1), ["True (bool) for key field 'k'", "int64", "Give an int"]),
        (((2**63, "a"), 10, 1), [f"{2**63} (int) for key field 'k'", "int64", "Give an int"]),
        (((1, 2), 10, 1), ["2 (int) for value field 'v'", "string", "Give a str"]),
        (((1, "\ud800"), 10, 1), ["\\ud800", "value field 'v'", "string"]),
    ],
    ids=repr,
)
def test_a_malformed_tuple_is_rejected(
    orders: persist.Collection, blob: MemoryBlob, update: Any, texts: list[str]
) -> None:
    with refused(blob, persist.InvalidUpdate, *texts):
        orders.write([update])
    with refused(blob, persist.InvalidUpdate, *texts):
        orders.write(each for each in [update])


@pytest.mark.parametrize("updates", [7, None, "abc", b"x"], ids=repr)
def test_what_holds_no_updates_is_rejected(orders: persist.Collection, blob: MemoryBlob, updates: Any) -> None:
    shown = [repr(updates)[:20], type(updates).__name__]
    with refused(blob, persist.InvalidUpdate, *shown, "((key, value), time, diff)", "pyarrow Table"):
        orders.write(updates)


def test_updates_with_diff_0_are_dropped_and_write_nothing(orders: persist.Collection, blob: MemoryBlob) -> None:
    before = everything(blob)
    orders.write([((1, "a"), 10, 0)]).result()
    orders.write([((1, "a"), 3, 0)]).result()  # Dropped, so it is not too late either.
    orders.write(table(_diff=[0])).result()
    orders.write([]).result()
    assert everything(blob) == before
    orders.write([((1, "a"), 10, 0), ((2, "b"), 10, 1)]).result()
    orders.seal(11).result()
    assert sorted(orders.snapshot(10).rows()) == [(0, "first"), (2, "b")]


def test_an_unknown_collection_is_named_with_those_that_exist(
    client: persist.Client, orders: persist.Collection, blob: MemoryBlob
) -> None:
    with refused(blob, persist.CollectionNotFound, "'oders'", "it has 'orders'", "create_or_load"):
        client.load("oders")
    orders.destroy().result()
    with refused(blob, persist.CollectionNotFound, "'orders'", "no collections at all", "create_or_load"):
        orders.write([((1, "a"), 10, 1)]).result()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "it is empty"),
        ("x" * 256, "it has 256 characters"),
        ("a/b", "path separator"),
        ("a\\b", "path separator"),
        ("..", "contains '..'"),
        ("a..b", "contains '..'"),
        (".", "is '.'"),
        ("a\nb", "control character"),
        ("a\x00", "control character"),
        ("a\x7f", "control character"),
        ("a\u2028b", "control character"),
        (" a", "begins or ends with a space"),
        ("\ud800", "not valid Unicode"),
        (None, "it is a NoneType"),
        (7, "it is a int"),
    ],
    ids=repr,
)
def test_a_bad_name_is_rejected(client: persist.Client, blob: MemoryBlob, name: Any, reason: str) -> None:
    shown = repr(name[:80] if isinstance(name, str) else name)
    texts = [shown, reason, "1 to 255 characters", "without '/'"]
    with refused(blob, persist.InvalidUsage, *texts):
        client.create_or_load(name, key=KEY, value=VALUE)
    with refused(blob, persist.InvalidUsage, *texts):
        client.load(name)


def test_the_longest_and_oddest_good_names_are_taken(client: persist.Client) -> None:
    names = ["x" * 255, "a.b", "aux", "ünïcode 漢字 🎈", "*?<>|:\"'", "-rf"]
    for name in names:
        client.create_or_load(name, key=KEY, value=VALUE)
    assert client.collections() == sorted(names)


def test_a_bad_schema_is_rejected(client: persist.Client, blob: MemoryBlob) -> None:
    bad: list[tuple[Any, Any, list[str]]] = [
        ({}, None, ["the key has no fields", "None for no column"]),
        ({"_time": pa.int64()}, None, ["'_time' is not allowed", "Choose another name"]),
        ({"": pa.int64()}, None, ["''", "not empty", "Choose another name"]),
        ({"k": pa.null()}, None, ["key field 'k'", "null"]),
        (KEY, {"k": pa.string()}, ["'k' occurs 2 times", "unique", "Rename"]),
        (7, None, ["the key is 7", "dict of names"]),
    ]
    for key, value, texts in bad:
        with refused(blob, persist.SchemaMismatch, *texts):
            client.create_or_load("new", key=key, value=value)


def test_a_snapshot_below_since_is_refused(orders: persist.Collection, blob: MemoryBlob) -> None:
    calls: list[Callable[[], object]] = [
        lambda: orders.snapshot(4),
        lambda: orders.subscribe(4),
    ]
    for call in calls:
        with refused(blob, persist.AsOfCompacted, "as_of=4", "since=Antichain(5)", "Read at as_of >= 5"):
            call()


def test_changes_that_were_compacted_are_refused(orders: persist.Collection, blob: MemoryBlob) -> None:
    with refused(blob, persist.AsOfCompacted, "from 5 on", "since=Antichain(5)", "from 6 or later"):
        orders.changes(5, 10)
    with refused(blob, persist.AsOfCompacted, "from 5 on", "since=Antichain(5)", "from 6 or later"):
        orders.listen(4)
    assert len(orders.changes(6, 10).to_arrow()) == 0


def test_a_snapshot_that_is_never_sealed_ends_at_the_timeout(orders: persist.Collection, blob: MemoryBlob) -> None:
    for timeout_s, shown in ((0, "0 s"), (0.02, "0.02 s")):
        with refused(
            blob, persist.AsOfNotSealed, "as_of=10", "upper=Antichain(10)", shown, "seal to 11", "longer timeout"
        ):
            orders.snapshot(10, timeout_s=timeout_s)
    with refused(blob, persist.AsOfNotSealed, "changes until 11", "upper=Antichain(10)"):
        orders.changes(6, 11, timeout_s=0)
    with refused(blob, persist.AsOfNotSealed, "as_of=10", "upper=Antichain(10)"):
        orders.subscribe(10, timeout_s=0)


def test_a_time_that_is_none_is_refused(orders: persist.Collection, blob: MemoryBlob) -> None:
    for call in (orders.snapshot, orders.seal, orders.allow_compaction):
        with refused(blob, persist.TagNotFound, "'x' is no time, no moment, and no tag"):
            call("x")
    bad: list[Any] = [-1, 2**63, 1.5, True]
    for time in (*bad, INT64_MAX):
        with refused(blob, persist.InvalidUsage, "as_of", repr(time), str(INT64_MAX - 1)):
            orders.snapshot(time, timeout_s=0)
    for time in (*bad, None):
        for frontier in (orders.seal, orders.allow_compaction):
            with refused(blob, persist.InvalidUsage, repr(time), f"[0, {INT64_MAX}]"):
                frontier(time)
    with refused(blob, persist.InvalidUsage, "changes(9, 6) is backwards", "lower <= upper"):
        orders.changes(9, 6)


def test_bad_columns_filter_or_form_are_refused(orders: persist.Collection, blob: MemoryBlob) -> None:
    with refused(blob, persist.SchemaMismatch, "'z' is no column", "it has ['k', 'v']"):
        orders.snapshot(9, columns=["k", "z"])
    with refused(blob, persist.SchemaMismatch, "columns='k'", "give a list", "['k']"):
        orders.snapshot(9, columns="k")
    with refused(blob, persist.SchemaMismatch, "['k', 'k']", "'k' is there twice"):
        orders.changes(6, 10, columns=["k", "k"])
    with refused(blob, persist.InvalidUsage, "filter='k > 1'", "pyarrow expression", "pyarrow.compute.field"):
        orders.snapshot(9, filter="k > 1")
    with refused(blob, persist.InvalidUsage, "nope", "['k', 'v']"):
        orders.snapshot(9, filter=pc.field("nope") > 1)
    with refused(blob, persist.InvalidUsage, "form='row'", '"rows" or "diff"'):
        orders.snapshot(9, form="row")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "texts"),
    [
        ("nosuch://x/y", ["unknown scheme 'nosuch'", "s3://", "memory://"]),
        ("", ["''", "give a folder or a URL"]),
        ("memory://", ["'memory://'", "memory://name"]),
        ("s3://", ["'s3://' names no bucket", "s3://bucket/prefix"]),
        ("file://host/x", ["file://host/x", "file:///absolute/path"]),
    ],
)
def test_a_url_that_leads_nowhere_is_refused(url: str, texts: list[str]) -> None:
    with refused(MemoryBlob(), persist.InvalidUsage, *texts):
        persist.open(url)


def test_a_mode_or_option_that_does_not_exist_is_refused(blob: MemoryBlob) -> None:
    with refused(blob, persist.InvalidUsage, "mode='w'", '"shared"', '"read"'):
        persist.open(blob, mode="w")  # type: ignore[arg-type]
    with refused(blob, persist.InvalidUsage, "'regoin'", "region"):
        persist.open("s3://bucket/x", storage_options={"regoin": "eu-west-1"})


def test_a_bucket_that_does_not_exist_is_named(s3_options: dict[str, Any]) -> None:
    with pytest.raises(persist.InvalidUsage) as caught:
        persist.open("s3://no-such-bucket-anywhere/x", storage_options=s3_options)
    for text in ("bucket 'no-such-bucket-anywhere' does not exist", "Create the bucket", "correct the URL"):
        assert text in str(caught.value)
    assert s3_options["secret_access_key"] not in str(caught.value)


def run_child(code: str, *args: str, **environment: str) -> str:
    """Run code in a new Python with nothing but this environment, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *args],
        cwd=ROOT,
        env={"PATH": os.environ.get("PATH", ""), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_missing_credentials_are_told_with_what_to_give(moto_url: str, tmp_path: Path) -> None:
    code = """
        import sys, persist
        try:
            persist.open("s3://bucket/x", storage_options={"endpoint_url": sys.argv[1], "region": "us-east-1"})
        except persist.InvalidUsage as error:
            print(error)
    """
    told = run_child(code, moto_url, HOME=str(tmp_path), AWS_EC2_METADATA_DISABLED="true")
    for text in ("s3://bucket/x", "no AWS credentials", "access_key_id", "profile"):
        assert text in told


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that any user can reach and read; `tmp_path` is for its owner only."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


AS_NOBODY = """
    import os, sys, persist
    with persist.open("memory://warm-up") as client:  # Another user may not be able to read what is imported late.
        warm = client.create_or_load("warm", key={"k": __import__("pyarrow").int64()})
        warm.write([((1, None), 0, 1)])
        warm.seal(1).result()
        list(warm.snapshot(0).rows())
    import persist.blob.stores.file, pyarrow as pa
    if os.getuid() == 0:
        os.setuid(65534)  # Root may write anywhere.
"""


def test_a_folder_without_write_permission_is_told(shared_folder: Path) -> None:
    shared_folder.chmod(0o555)
    code = (
        AS_NOBODY
        + """
    for mode in ("shared", "read"):
        with persist.open(sys.argv[1], mode=mode) as client:
            assert client.collections() == []
    try:
        with persist.open(sys.argv[1]) as client:
            client.create_or_load("orders", key={"k": pa.int64()})
    except persist.InvalidUsage as error:
        print(error)
    """
    )
    told = run_child(code, str(shared_folder))
    for text in (str(shared_folder), "ermission", "write"):
        assert text in told
    assert list(shared_folder.iterdir()) == []


def test_a_location_that_may_only_be_read_can_be_read_and_refuses_a_write(shared_folder: Path) -> None:
    with persist.open(shared_folder) as client:
        orders = client.create_or_load("orders", key=KEY, value=VALUE)
        orders.write([((1, "a"), 0, 1)])
        orders.seal(1).result()
    for path in [shared_folder, *shared_folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted((path, path.stat().st_size) for path in shared_folder.rglob("*"))
    code = (
        AS_NOBODY
        + """
    with persist.open(sys.argv[1]) as client:
        orders = client.load("orders")
        assert list(orders.snapshot(0).rows()) == [(1, "a")]
        try:
            orders.write([((2, "b"), 1, 1)]).result()
        except persist.InvalidUsage as error:
            print(error)
    """
    )
    told = run_child(code, str(shared_folder))
    for text in (str(shared_folder), "ermission", "write"):
        assert text in told
    assert sorted((path, path.stat().st_size) for path in shared_folder.rglob("*")) == before
    shared_folder.chmod(0o755)
    for path in shared_folder.rglob("*"):
        path.chmod(0o755)


# Damaged blobs.

Damage = Callable[[bytes], bytes | None]


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def emptied(data: bytes) -> bytes:
    return b""


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def missing(data: bytes) -> None:
    return None


def damage(blob: MemoryBlob, key: str, how: Damage) -> None:
    data = blob.get(key)
    assert data is not None
    damaged = how(data)
    if damaged is None:
        blob.delete(key)
    else:
        blob.set(key, damaged)


def written(commits: int, rows: int = 1) -> MemoryBlob:
    """Return a location with one collection `orders`, and that many records after the one that made it."""
    blob = MemoryBlob()
    with persist.open(blob) as client:
        orders = client.create_or_load("orders", key=KEY, value=VALUE)
        for time in range(commits):
            keys = range(time * rows, (time + 1) * rows)
            update = pa.table({"k": keys, "v": ["a"] * rows, "_time": [time] * rows, "_diff": [1] * rows})
            with client.multi_write() as multi:
                multi.write(orders, update)
                multi.seal(orders, time + 1)
    return blob


def read_all(blob: Blob) -> int:
    with persist.open(blob, mode="read") as reader:
        orders = reader.load("orders")
        return orders.snapshot(timeout_s=0).count() + len(orders.snapshot(timeout_s=0).to_arrow())


@pytest.mark.parametrize("how", [truncated, emptied, flipped, missing])
def test_a_damaged_part_is_named(how: Damage) -> None:
    blob = written(2, rows=20_000)
    key = next(entry.key for entry in blob.list("part/"))
    assert read_all(blob) == 80_000
    damage(blob, key, how)
    # Parquet itself may notice a flipped bit or not: the checksum always does.
    told = "its descriptor says" if how is flipped else "Restore it from a copy"
    with refused(blob, persist.CorruptBlob, key, told, "Restore it from a copy"):
        read_all(blob)


@pytest.mark.parametrize("how", [truncated, emptied, flipped])
@pytest.mark.parametrize("seqno", [0, 1, 3])
def test_a_damaged_record_is_named_to_readers_and_writers(how: Damage, seqno: int) -> None:
    blob = written(3)
    key = f"log/{seqno:020d}"
    damage(blob, key, how)
    with refused(blob, persist.CorruptBlob, key, "checksum", "Restore it from a copy"):
        read_all(blob)
    with refused(blob, persist.CorruptBlob, key, "checksum"):
        persist.open(blob)


def test_a_record_that_is_damaged_under_a_live_client_is_named_and_not_passed(blob: MemoryBlob) -> None:
    with persist.open(blob) as writer, persist.open(blob) as other:
        orders = writer.create_or_load("orders", key=KEY, value=VALUE)
        theirs = other.load("orders")
        orders.seal(1).result()
        key = max(everything(blob))
        damage(blob, key, flipped)
        with refused(blob, persist.CorruptBlob, key):
            _ = theirs.upper
        with refused(blob, persist.CorruptBlob, key):
            theirs.write([((1, "a"), 5, 1)]).result()


def test_a_missing_first_record_is_named() -> None:
    blob = written(5)
    key = f"log/{0:020d}"
    damage(blob, key, missing)
    with refused(blob, persist.CorruptBlob, key):
        read_all(blob)
    with refused(blob, persist.CorruptBlob, key):
        persist.open(blob)


@pytest.mark.parametrize("seqno", [1, 4])
def test_what_comes_before_a_missing_record_is_read_and_nothing_is_written(
    seqno: int, caplog: pytest.LogCaptureFixture
) -> None:
    blob = written(5)
    damage(blob, f"log/{seqno:020d}", missing)
    told = f"from {seqno} to {seqno} are missing"
    with persist.open(blob, mode="read") as reader:
        assert reader.load("orders").upper == persist.Antichain(seqno - 1)
        assert told in caplog.text
    assert seqno == 1 or read_all(blob) == 2 * (seqno - 1)
    with persist.open(blob) as client:
        orders = client.create_or_load("orders", key=KEY, value=VALUE)
        with refused(blob, persist.LogInterrupted, f"ends at seqno {seqno - 1}", told, "restore them from a copy"):
            orders.seal(100).result()


@pytest.mark.parametrize("how", [truncated, emptied, flipped])
def test_a_damaged_checkpoint_is_named(how: Damage) -> None:
    blob = written(40)
    newest = next(entry.key for entry in blob.list("checkpoint/"))
    damage(blob, newest, how)
    with refused(blob, persist.CorruptBlob, newest, "Restore it from a copy"):
        persist.open(blob)


def test_a_missing_checkpoint_loses_nothing() -> None:
    blob = written(40)
    for entry in list(blob.list("checkpoint/")):
        blob.delete(entry.key)
        assert read_all(blob) == 80


@pytest.mark.parametrize("how", [truncated, emptied, flipped, missing])
def test_a_damaged_state_object_is_named(how: Damage) -> None:
    blob = written(70)
    newest = next(entry.key for entry in blob.list("checkpoint/"))
    states = [e.key for e in blob.list("state/") if e.key in (blob.get(newest) or b"").decode()]
    (key,) = states
    damage(blob, key, how)
    with refused(blob, persist.CorruptBlob, key, "estore it from a copy"):
        read_all(blob)


@pytest.mark.parametrize("how", [truncated, emptied, flipped, missing])
def test_a_damaged_part_list_is_named(how: Damage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persist.log.commits.PARTS_INLINE_MAX", 0)
    blob = written(3)
    key = next(entry.key for entry in blob.list("list/"))
    damage(blob, key, how)
    with refused(blob, persist.CorruptBlob, key, "Restore it from a copy"):
        read_all(blob)


def as_format(data: bytes, version: int) -> bytes:
    """Return a record, checkpoint or state object as one of another format version, whole and undamaged."""
    body, tail = data[: data.rindex(b',"checksum":"')], b'"}\n'
    newer = body.replace(b'"format":%d' % FORMAT, b'"format":%d' % version, 1)
    assert newer != body
    return newer + b',"checksum":"' + xxhash.xxh3_128_hexdigest(newer).encode() + tail


@pytest.mark.parametrize(("commits", "folder"), [(3, "log/"), (40, "checkpoint/")])
def test_a_newer_format_version_is_refused_and_left_untouched(commits: int, folder: str) -> None:
    blob = written(commits)
    for entry in list(blob.list(folder)):
        blob.set(entry.key, as_format(blob.get(entry.key) or b"", 99))
    with refused(blob, persist.IncompatibleVersion, folder, "version 99", f"up to {FORMAT}", "Upgrade persist"):
        read_all(blob)
    with refused(blob, persist.IncompatibleVersion, folder, "version 99"), persist.open(blob) as client:
        client.create_or_load("orders", key=KEY, value=VALUE).seal(100).result()


def test_a_newer_record_that_appears_under_a_live_client_is_refused(blob: MemoryBlob) -> None:
    with persist.open(blob) as client:
        orders = client.create_or_load("orders", key=KEY, value=VALUE)
        with persist.open(blob) as newer:
            newer.load("orders").seal(1).result()
        key = max(everything(blob))
        blob.set(key, as_format(blob.get(key) or b"", 3))
        with refused(blob, persist.IncompatibleVersion, key, "version 3"):
            orders.write([((1, "a"), 5, 1)]).result()
        with refused(blob, persist.IncompatibleVersion, key, "version 3"):
            _ = orders.upper


def test_names_that_begin_with_a_dot_are_the_librarys_own(
    client: persist.Client, orders: persist.Collection, blob: MemoryBlob
) -> None:
    with refused(blob, persist.InvalidUsage, "'.mine'", "begin with '.'", "Leave the dot out"):
        client.create_or_load(".mine", key=KEY)
    with refused(blob, persist.InvalidUsage, "'.mine'", "the library keeps for itself"):
        client.rename("orders", ".mine")
    with refused(blob, persist.InvalidUsage, "'.mine'", "the library keeps for itself"):
        orders.rename(".mine").result()
    with refused(blob, persist.InvalidUsage, "'.mine'", "the library keeps for itself"):
        client.create_view(".mine", "SELECT k FROM orders")
    rows = Program("p").using(client).source("orders")
    with refused(blob, persist.InvalidUsage, "'.mine'", "the library keeps for itself"):
        rows.filter(col("k") > 0).persist(".mine", key=["k"])


def test_a_collection_of_the_librarys_own_is_not_renamed(client: persist.Client, blob: MemoryBlob) -> None:
    created_or_loaded(client.engine, ".dataflow x", CollectionSchema.of(KEY, None))
    with refused(blob, persist.InvalidUsage, "'.dataflow x'", "leave it"):
        client.rename(".dataflow x", "mine")


def test_plain_rows_without_a_time_are_told_of_it(orders: persist.Collection, blob: MemoryBlob) -> None:
    with refused(blob, persist.SchemaMismatch, "'_time' (int64) is missing", "give time=…"):
        orders.write(pa.table({"k": [1], "v": ["a"]}))
    with refused(blob, persist.SchemaMismatch, "'v' (string) is missing", "Add, drop or rename"):
        orders.write(pa.table({"k": [1]}))


def test_words_for_times_are_not_advised_as_tags(orders: persist.Collection, blob: MemoryBlob) -> None:
    with refused(blob, persist.TagNotFound, "'now' is no time", "Leave the time out for the latest"):
        orders.snapshot("now")


def test_a_result_is_no_array_of_its_batches(orders: persist.Collection, blob: MemoryBlob) -> None:
    with orders.snapshot(9) as snapshot:
        for use in (pd.DataFrame, np.asarray):
            with refused(blob, persist.InvalidUsage, "Snapshot is no array of NumPy", "to_pandas()"):
                use(snapshot)
        assert pl.DataFrame(snapshot).shape == (1, 2)
        assert pa.table(snapshot).num_rows == 1


def test_positions_beyond_a_dataset_are_refused(orders: persist.Collection, blob: MemoryBlob) -> None:
    with orders.snapshot(9) as snapshot, refused(blob, persist.InvalidUsage, "take([5])", "less than count_rows()"):
        snapshot.dataset().take([5])
