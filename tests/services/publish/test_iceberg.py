"""A published Iceberg table holds exactly what a snapshot does, for readers that nobody here wrote."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import persist
from tests.blob.conftest import place_of
from tests.services.publish.readers import by_pyiceberg, iceberg_reader, same_rows
from tests.services.publish.test_delta import SETTINGS, client, collect, orders
from tests.support.servers.fixtures import make_bucket

__all__ = ["client"]  # The fixture.
Read = Callable[[str], pa.Table]


@iceberg_reader
def test_what_was_compacted_is_named_as_it_lies_and_what_changed_is_small(client: persist.Client, read: Read) -> None:
    c = orders(client)
    first = c.publish("iceberg")
    assert (first.version, first.files) == (0, 1)
    assert same_rows(read(first.url), c) == 1000
    c.write([((3, ("s3", 0.75)), 1, -1), ((3, ("new", 1.0)), 1, 1), ((5000, ("new", 2.0)), 1, 1)], seal=2).result()
    second = c.publish("iceberg")
    assert (second.version, second.files, second.rows) == (1, 2, 1001)
    assert same_rows(read(second.url), c) == 1001
    c.write([((n, (f"s{n % 7}", n / 4)), 2, -1) for n in (4, 700)], seal=3).result()
    third = c.publish("iceberg")
    assert same_rows(read(third.url), c) == 999
    c.compact()
    assert not c.publish("iceberg").is_new
    assert same_rows(read(c.publish("iceberg", as_of=1).url), c, 1) == 1001
    assert client.fsck(deep=True).is_clean


def test_parts_without_field_ids_are_read_by_a_mapping_of_names(client: persist.Client) -> None:
    """They are of before parts had ids: such a part is made here by writing one anew without them."""
    c = orders(client, 100)
    made = c.publish("iceberg")
    for path in Path(client.url).glob("part/*/*.parquet"):
        table = pq.read_table(path)
        without = pa.schema([field.remove_metadata() for field in table.schema])
        pq.write_table(table.cast(without), path)
        assert all(column.name for column in pq.ParquetFile(path).schema)
    assert sorted(by_pyiceberg(made.url)["id"].to_pylist()) == list(range(100))


def test_a_location_in_memory_is_refused() -> None:
    with persist.open("memory://published") as client:
        c = client.create_or_load("c", key={"k": int}, value=None)
        c.seal(1).result()
        with pytest.raises(persist.InvalidUsage, match="in this process alone"):
            c.publish("iceberg")


ODD = "a b/env=prod+1/é日/(1)[2]/100%/a%20b/a\\b"


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("name", [ODD, "a#b", "a?b"])
@iceberg_reader
def test_a_folder_of_any_name_has_a_table_that_others_read(tmp_path: Path, name: str, read: Read) -> None:
    with persist.open((tmp_path / name).as_uri(), settings=SETTINGS) as client:
        c = orders(client, 50)
        assert same_rows(read(c.publish("iceberg").url), c) == 50
        c.write([((3, ("s3", 0.75)), 1, -1), ((9, ("s2", 2.25)), 1, -1)], seal=2).result()
        assert same_rows(read(c.publish("iceberg").url), c) == 48


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["s3", "fsspec"])
def test_keys_of_any_name_have_a_table_that_others_read(s3_options: dict[str, Any], kind: str) -> None:
    tables = pytest.importorskip("pyiceberg.table")
    place = place_of(kind, Path(), s3_options, make_bucket(s3_options), ODD)
    with persist.open(place.url, storage_options=place.options, settings=SETTINGS) as client:
        c = orders(client, 50)
        c.publish("iceberg")
        c.write([((3, ("s3", 0.75)), 1, -1)], seal=2).result()
        table = tables.StaticTable.from_metadata(c.publish("iceberg").url, properties=for_pyiceberg(s3_options))
        assert same_rows(table.scan().to_arrow(), c) == 49


def for_pyiceberg(s3_options: dict[str, Any]) -> dict[str, str]:
    """Return what pyiceberg calls the options of a store."""
    names = {"endpoint": "endpoint_url", "region": "region"}
    names |= {"access-key-id": "access_key_id", "secret-access-key": "secret_access_key"}
    return {f"s3.{name}": s3_options[option] for name, option in names.items()}


def test_a_location_whose_url_readers_cut_off_or_cannot_open_is_refused(s3_options: dict[str, Any]) -> None:
    url = f"s3://{make_bucket(s3_options)}/a#b"
    with persist.open(url, storage_options=s3_options, settings=SETTINGS) as client:
        c = orders(client, 5)
        with pytest.raises(persist.InvalidUsage, match=r"cut .* off at its '#'"):
            c.publish("iceberg")
        server = client.serve("grpc://127.0.0.1:0", token="reads", store=True, write_token="writes")
        served = persist.open(server.url, storage_options={"token": "writes"}, settings=SETTINGS)
        with served, pytest.raises(persist.InvalidUsage, match="opens the store itself"):
            served["orders"].publish("iceberg")


@iceberg_reader
def test_the_table_of_a_location_that_was_moved_is_refused_until_it_is_published_anew(
    client: persist.Client, tmp_path: Path, read: Read
) -> None:
    c = orders(client, 50)
    c.publish("iceberg")
    c.write([((3, ("s3", 0.75)), 1, -1)], seal=2).result()
    c.publish("iceberg")
    client.close()
    (tmp_path / "location").rename(tmp_path / "moved")
    with persist.open(tmp_path / "moved", settings=SETTINGS) as moved:
        c = moved["orders"]
        for time in (2, 3):  # Its files leave rows out of the parts of a folder that is gone.
            with pytest.raises(
                persist.InvalidUsage, match=r'names its files below .*location/.*unpublish\("iceberg"\)'
            ):
                c.publish("iceberg")
            c.write([((time, (f"s{time}", time / 4)), time, 1)], seal=time + 1).result()
        c.unpublish("iceberg")
        assert same_rows(read(c.publish("iceberg", as_of=1).url), c, 1) == 49


def test_both_tables_of_a_collection_live_side_by_side(client: persist.Client) -> None:
    c = orders(client, 100)
    c.publish("delta")
    made = c.publish("iceberg")
    c.unpublish("delta")
    collect(client)
    assert len(by_pyiceberg(made.url)) == 100
    with persist.open(client.url, settings=SETTINGS) as later:
        assert later.load("orders").unpublish("iceberg")
        assert later.fsck().is_clean
    collect(client)
    left = {path.name for path in (Path(client.url) / "part").rglob("*") if path.is_file()}
    assert left == {part.blob.rpartition("/")[2] for part in c.handle.get_known_state().stored_parts if part.blob}


def test_a_path_that_readers_would_cut_is_no_url(tmp_path: Path) -> None:
    with persist.open(tmp_path / "a#b", settings=SETTINGS) as client:
        assert orders(client).publish("iceberg").url.startswith(f"{tmp_path}/a#b/")
