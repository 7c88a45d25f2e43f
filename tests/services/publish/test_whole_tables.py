"""All that is written and served for a table, compared whole with a file, so that nothing in it changes unseen.

To renew the file after a change that is meant, delete it, run this test, and read what `git diff` shows.
"""

import json
import re
from collections.abc import Mapping
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.avro.file import AvroFile
from pyiceberg.io.pyarrow import PyArrowFileIO

import persist
from persist.services.publish import IcebergCatalog, Published, delta
from tests.services.publish.test_delta import SETTINGS
from tests.services.publish.test_iceberg_3 import stored
from tests.support.clocks import ImpatientClock

GOLDEN = Path(__file__).with_name("whole_tables.json")
IDS = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}|\b[0-9]{17,19}\b"
    r'|(?<=pathOrInlineDv": "[0-9]{20})[^"]{20}'
)


def make_rows(time: int, numbers: range, diff: int) -> list[Any]:
    """Return updates of rows, whose first text is NULL."""
    return [((n, (f"t{n}" if n else None, date(2026, 1, 2), None, n)), time, diff) for n in numbers]


def read_delta(table: Published) -> dict[str, Any]:
    """Return the log of a Delta table: the actions of each version, and the rows of checkpoints."""
    log = sorted((Path(table.url) / "_delta_log").iterdir())
    actions = {path.name: [*map(json.loads, path.read_text().splitlines())] for path in log if path.suffix == ".json"}
    checkpoints = {path.name: pq.read_table(path).to_pylist() for path in log if path.suffix == ".parquet"}
    pointers = {path.name: json.loads(path.read_text()) for path in log if not path.suffix}
    return actions | checkpoints | pointers


def read_avro(path: str) -> list[dict[str, Any]]:
    """Return the header and the records of an Avro file, as they are stored."""

    def name(record: Any, fields: Any) -> dict[str, Any]:
        named = dict(zip((each.name for each in fields), record._data, strict=True))
        inner = {each.name: each.field_type.fields for each in fields if each.field_type.is_struct}
        return {key: name(value, inner[key]) if key in inner and value else value for key, value in named.items()}

    with AvroFile(PyArrowFileIO().new_input(path)) as file:
        header = {key: text for key, text in file.header.meta.items() if "schema" not in key}
        return [header, *(name(record, file.schema.fields) for record in file)]


def read_iceberg(table: Published) -> dict[str, Any]:
    """Return the metadata of an Iceberg table, and its manifests."""
    metadata = json.loads(stored(table.url).read_text())
    listed = read_avro(metadata["snapshots"][-1]["manifest-list"])
    files = [read_avro(each["manifest_path"]) for each in listed[1:]]
    return {"metadata": metadata, "manifests": listed, "files": files, "as": str(table)}


def read_catalog(client: persist.Client, version: int) -> dict[str, Any]:
    """Return what a catalog serves of all tables."""
    catalog = IcebergCatalog(client, 0.0, version)
    loaded = {name: catalog.load(("main",), name) for name in ("c", "c@0", "empty")}
    ids = [snapshot["snapshot-id"] for snapshot in loaded["c"].metadata["snapshots"]]
    requests: dict[str, Any] = {"all": {}, "some": {"filter": {"type": "gt", "term": "id", "value": 2}}}
    requests |= {"none": {"filter": {"type": "gt", "term": "id", "value": 9}}}
    requests |= {f"{at}": {"snapshot-id": id_} for at, id_ in enumerate(ids)}
    plans = {name: catalog.plan(("main",), "c", request) for name, request in requests.items()}
    plans |= {"at 0": catalog.plan(("main",), "c@0", {}), "empty": catalog.plan(("main",), "empty", {})}
    return {
        "properties": catalog.properties(("main",)),
        "tables": {name: [each.url, each.metadata] for name, each in loaded.items()},
        "plans": plans,
    }


def scrub(told: Any, location: Path) -> Any:
    """Return JSON with numbers in place of ids, in the order of their appearance, and without sizes of files."""
    numbers = count()
    names: dict[str, str] = {}
    text = json.dumps(told, default=lambda each: {**each} if isinstance(each, Mapping) else repr(each))
    text = text.replace(location.as_posix(), "LOCATION")
    text = re.sub(r'("(?:size|file_size_in_bytes|manifest_length|file-size-in-bytes)": )[1-9][0-9]+', r"\1-1", text)

    def name(found: re.Match[str]) -> str:
        if found[0] not in names:
            names[found[0]] = f"{next(numbers)}"
        return names[found[0]]

    return json.loads(IDS.sub(name, text))


def test_a_table_is_written_and_served_as_the_golden_file_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "CHECKPOINT_EVERY", 2)
    told: dict[str, Any] = {}
    with persist.open(tmp_path / "l", settings=SETTINGS, clock=ImpatientClock()) as client:
        value = {"t": str, "d": pa.date32(), "m": pa.map_(pa.string(), pa.timestamp("us")), "i": pa.int16()}
        c = client.create_or_load("c", key={"id": int}, value=value)
        client.create_or_load("empty", key={"id": int}, value={"l": pa.list_(pa.float64())})
        client.create_or_load("wide", key={"id": pa.uint64()})
        c.write(make_rows(0, range(4), 1), seal=1).result()
        c.compact()
        c.publish("delta", digest=True)
        c.write(make_rows(1, range(0, 4, 2), -1), seal=2).result()
        c.publish("delta", feed=True)
        made = c.publish("delta", feed=True, as_of=0)
        told |= read_delta(made) | {"as": str(made), "published": str(c.published())}
        c.tag("first", 0)
        for version in (2, 3):
            first = c.publish("iceberg", as_of=0, format_version=version, digest=True)
            tables = [read_iceberg(first), read_iceberg(c.publish("iceberg", format_version=version))]
            told |= {f"iceberg {version}, table {at}": table for at, table in enumerate(tables)}
            told |= {f"iceberg {version}, {name}": each for name, each in read_catalog(client, version).items()}
            c.unpublish("iceberg")
    told = scrub(told, tmp_path / "l")
    if not GOLDEN.exists():
        lines = (f"{json.dumps(name)}: {json.dumps(each)}" for name, each in told.items())
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        pytest.fail(f"{GOLDEN.name} is written anew")
    for name, expected in json.loads(GOLDEN.read_text()).items():
        assert told.pop(name) == expected
    assert not told
