"""Iceberg's format 3: deletion vectors, nanoseconds, row lineage; read by others, and decoded by pyroaring."""

import json
import struct
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyroaring
import pytest
from pyiceberg.avro.file import AvroFile
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS
from pyiceberg.table import StaticTable

import persist
from persist.services.serve.iceberg import serve_catalog
from tests.services.publish.readers import by_pyiceberg, iceberg_reader, same_rows
from tests.services.publish.test_catalog import rows_of
from tests.services.publish.test_delta import SETTINGS, client, orders, random_steps
from tests.services.publish.test_iceberg import Read

__all__ = ["client"]  # The fixture.


def stored(url: str) -> Path:
    """Return the path of a file that metadata name by its URL."""
    return Path(unquote(urlsplit(url).path)) if url.startswith("file:") else Path(url)


def entries(url: str) -> list[dict[str, Any]]:
    """Return the entries of all manifests of the newest snapshot, as Avro has them."""
    metadata = json.loads(stored(url).read_text())
    io, found = PyArrowFileIO(), []
    with AvroFile(io.new_input(metadata["snapshots"][-1]["manifest-list"])) as manifests:
        names = [field.name for field in MANIFEST_LIST_FILE_SCHEMAS[3].fields]
        listed = [dict(zip(names, record._data, strict=True)) for record in manifests]
    for manifest in listed:
        assert (manifest["first_row_id"] is not None) == (manifest["content"] == 0)
        with AvroFile(io.new_input(manifest["manifest_path"])) as file:
            names = [field.name for field in file.schema.find_type("data_file").fields]
            found += [
                {"sequence": record._data[2], **dict(zip(names, record._data[4]._data, strict=True))} for record in file
            ]
    return found


def decoded(entry: dict[str, Any]) -> list[int]:
    """Return the rows of a deletion vector by the specifications of Iceberg, Puffin and Roaring alone."""
    data = stored(entry["file_path"]).read_bytes()
    assert len(data) == entry["file_size_in_bytes"]
    assert (data[:4], data[-4:], data[-8:-4]) == (b"PFA1", b"PFA1", bytes(4))
    (length,) = struct.unpack("<i", data[-12:-8])
    footer = data[-12 - length : -12]
    assert data[-16 - length : -12 - length] == b"PFA1"
    [blob] = [blob for blob in json.loads(footer)["blobs"] if blob["offset"] == entry["content_offset"]]
    assert blob["type"] == "deletion-vector-v1"
    assert blob["length"] == entry["content_size_in_bytes"]
    assert blob["properties"] == {
        "referenced-data-file": entry["referenced_data_file"],
        "cardinality": str(entry["record_count"]),
    }
    content = data[blob["offset"] : blob["offset"] + blob["length"]]
    (size,), (checksum,) = struct.unpack(">I", content[:4]), struct.unpack(">I", content[-4:])
    vector = content[4:-4]
    assert (size, checksum, vector[:4]) == (len(vector), zlib.crc32(vector), b"\xd1\xd3\x39\x64")
    return [*pyroaring.BitMap64.deserialize(vector[4:])]


@pytest.mark.thorough(except_every=2)
@iceberg_reader
def test_rows_are_left_out_by_vectors_in_one_file(client: persist.Client, read: Read) -> None:
    c = orders(client)
    c.publish("iceberg", format_version=3)
    c.write([((n, ("more", 1.0)), 1, 1) for n in range(1000, 2000)], seal=2).result()
    first = c.publish("iceberg")  # It stays at version 3, and has two files.
    assert same_rows(read(first.url), c) == 2000
    gone = [((n, (f"s{n % 7}", n / 4)), 2, -1) for n in (3, 4, 700)] + [((1999, ("more", 1.0)), 2, -1)]
    c.write(gone, seal=3).result()
    second = c.publish("iceberg")
    assert same_rows(read(second.url), c) == 1996
    vectors = [entry for entry in entries(second.url) if entry["content"] == 1]
    assert {entry["file_format"].lower() for entry in vectors} == {"puffin"}
    assert len({entry["file_path"] for entry in vectors}) == 1
    data = {entry["file_path"]: entry for entry in entries(second.url) if entry["content"] == 0}
    assert {entry["referenced_data_file"] for entry in vectors} <= {*data}
    assert sorted(map(decoded, vectors)) == [[3, 4, 700], [999]]
    c.write([((5, ("s5", 1.25)), 3, -1)], seal=4).result()
    third = c.publish("iceberg")
    assert same_rows(read(third.url), c) == 1995
    assert sorted(decoded(entry) for entry in entries(third.url) if entry["content"] == 1) == [[3, 4, 5, 700], [999]]
    assert client.fsck(deep=True).is_clean


def test_rows_keep_their_ids_while_their_file_stays(client: persist.Client) -> None:
    c = orders(client)
    first = c.publish("iceberg", format_version=3)
    before = {entry["file_path"]: entry for entry in entries(first.url) if entry["content"] == 0}
    c.write([((3, ("s3", 0.75)), 1, -1), ((3, ("new", 1.0)), 1, 1)], seal=2).result()
    second = c.publish("iceberg")
    after = {entry["file_path"]: entry for entry in entries(second.url) if entry["content"] == 0}
    assert all(after[path]["first_row_id"] == entry["first_row_id"] for path, entry in before.items())
    ranges = sorted((entry["first_row_id"], entry["record_count"]) for entry in after.values())
    assert all(start + rows <= following for (start, rows), (following, _) in pairwise(ranges))
    metadata = [json.loads(stored(version.url).read_text()) for version in (first, second)]
    for one in metadata:
        [snapshot] = one["snapshots"]
        assert one["format-version"] == 3
        assert one["next-row-id"] == snapshot["first-row-id"] + snapshot["added-rows"]
    assert max(start + rows for start, rows in ranges) <= metadata[1]["next-row-id"]
    assert metadata[1]["snapshots"][0]["first-row-id"] >= metadata[0]["next-row-id"]
    # Rows of a file count as changed no earlier than they were.
    assert max(entry["sequence"] for entry in after.values()) == 2


def test_a_table_of_version_2_becomes_one_of_version_3_and_never_back(client: persist.Client) -> None:
    c = orders(client)
    c.publish("iceberg")
    c.write([((3, ("s3", 0.75)), 1, -1)], seal=2).result()
    assert [entry.data_file.file_format for entry in deletes_of(c.publish("iceberg").url)] == ["PARQUET"]
    upgraded = c.publish("iceberg", format_version=3)
    assert upgraded.is_new
    assert same_rows(by_pyiceberg(upgraded.url), c) == 999  # Position deletes from before stay.
    c.write([((4, ("s4", 1.0)), 2, -1)], seal=3).result()
    newest = c.publish("iceberg")
    assert same_rows(by_pyiceberg(newest.url), c) == 998
    assert [entry.data_file.file_format for entry in deletes_of(newest.url)] == ["PUFFIN"]
    with pytest.raises(persist.InvalidUsage, match="no table goes back to version 2"):
        c.publish("iceberg", format_version=2)


def deletes_of(url: str) -> list[Any]:
    """Return the entries of delete files, as pyiceberg reads them."""
    snapshot, io = StaticTable.from_metadata(url).current_snapshot(), PyArrowFileIO()
    assert snapshot is not None
    manifests = [manifest for manifest in snapshot.manifests(io) if int(manifest.content)]
    return [entry for manifest in manifests for entry in manifest.fetch_manifest_entry(io)]


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_nanoseconds_are_read_whole(client: persist.Client, zone: str | None) -> None:
    kind = pa.timestamp("ns", zone)
    c = client.create_or_load("c", key={"k": int}, value={"at": kind, "many": pa.list_(kind)})
    moments = [1_700_000_000_123_456_789, -1, 0]
    columns = [pa.array(moments, pa.int64()).cast(kind), pa.array([[n] for n in moments], pa.list_(pa.int64()))]
    rows = pa.table({"k": [1, 2, 3], "at": columns[0], "many": columns[1].cast(pa.list_(kind))})
    c.write(rows, time=0, seal=1).result()
    with pytest.raises(persist.InvalidUsage, match="format_version=3"):
        c.publish("iceberg")
    url = c.publish("iceberg", format_version=3).url
    names = [field["type"] for field in json.loads(stored(url).read_text())["schemas"][0]["fields"]]
    assert names[1] == ("timestamp_ns" if zone is None else "timestamptz_ns")
    read = by_pyiceberg(url)
    assert read["at"].cast(pa.int64()).to_pylist() == moments


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2))
def test_random_versions_equal_their_snapshots(client: persist.Client, seed: int) -> None:
    c = orders(client, 300)
    c.publish("iceberg", format_version=3)
    for as_of in random_steps(client, c, seed):
        assert same_rows(by_pyiceberg(c.publish("iceberg", as_of=as_of).url), c, as_of) >= 0


@pytest.mark.parametrize("planning", ["client", "server"])
def test_a_catalog_serves_version_3_with_its_tags(tmp_path: Path, planning: str) -> None:
    with persist.open(tmp_path / "a location + é (1)", settings=SETTINGS) as client:
        c = client.create_or_load("orders", key={"id": int}, value={"status": str})
        c.write([((n, "new"), 0, 1) for n in range(100)], seal=1).result()
        options: dict[str, Any] = {"token": None, "insecure": False, "publish_interval_s": 0.0, "format_version": 3}
        with serve_catalog(client, "127.0.0.1:0", **options) as url:
            catalog = load_catalog("persist", type="rest", uri=url, **{"scan-planning-mode": planning})
            assert len(rows_of(catalog.load_table("main.orders"))) == 100
            c.tag("before", 0)
            c.write([((n, "new"), 1, -1) for n in (7, 9)], seal=2).result()
            table = catalog.load_table("main.orders")
            assert table.metadata.format_version == 3
            assert len(rows_of(table)) == 98
            before = table.metadata.refs["before"].snapshot_id
            assert len(rows_of(table, snapshot_id=before)) == 100
            c.write([((8, "new"), 2, -1)], seal=3).result()
            assert len(rows_of(catalog.load_table("main.orders"))) == 97


def test_a_catalog_of_pyiceberg_takes_version_2_only(client: persist.Client, tmp_path: Path) -> None:
    catalog = InMemoryCatalog("mine", warehouse=tmp_path.as_uri())
    catalog.create_namespace("shop")
    c = orders(client)
    c.publish("iceberg", catalog=catalog, identifier="shop.orders")
    with pytest.raises(persist.InvalidUsage, match="take no new versions"):
        c.publish("iceberg", catalog=catalog, identifier="shop.orders", format_version=3)
    with pytest.raises(persist.InvalidUsage, match="is 2 or 3"):
        c.publish("iceberg", format_version=4)
