"""Conditions on values inside of JSON documents: those stored beside the documents, against documents that are parsed.

Documents of about 500 bytes with twelve values, as an event of a shop has. Both sides return the ids of a third of the
rows, of one row, and of none. The first peer is the same collection in whose parts no values are stored; the second is
DuckDB over a Parquet file of the same columns.
"""

import json
import random
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import persist
from benchmarks.harness import Measure, Row, Side
from benchmarks.ours import QUIET
from benchmarks.workspace import Workspace
from persist.codecs.part import shredding

ROWS = 1_000_000
CONDITIONS = {
    "a third of the rows": "payload->>'$.user.country' = 'de'",
    "one row": "payload->>'$.order' = 'o-4711'",
    "no row, which statistics tell": "payload->>'$.order' = 'p'",
}


def documents(work: Workspace) -> list[Row]:
    """Filter by values of documents."""
    rows = max(10_000, round(ROWS * work.scale))
    with persist.open(str(work.folder / "documents"), settings=QUIET) as client:
        stored, parsed = (_filled(client, name, rows) for name in ("stored", "parsed"))
        file = work.folder / "documents.parquet"
        pq.write_table(stored.snapshot().to_arrow(), file, compression="zstd", compression_level=1)
        return [_measure(work, stored, parsed, file, what, where, rows) for what, where in CONDITIONS.items()]


def _measure(
    work: Workspace, ours: persist.Collection, parsed: persist.Collection, file: Path, what: str, where: str, rows: int
) -> Row:
    def read(collection: persist.Collection) -> pa.Table:
        return collection.snapshot(where=where, columns=["id"]).to_arrow()

    def by_duckdb() -> pa.Table:
        left, _, right = where.partition(" = ")
        return duckdb.sql(f"SELECT id FROM '{file}' WHERE ({left}) = {right}").to_arrow_table()

    assert len(read(ours)) == len(read(parsed)) == len(by_duckdb())
    theirs = [Side(lambda: read(parsed), "documents parsed"), Side(by_duckdb, "DuckDB over Parquet")]
    return Measure(
        f"a condition on a value of {rows:,} documents, that finds {what}",
        "the same with no values stored; DuckDB over Parquet",
        ">= 10",
        Side(lambda: read(ours)),
        theirs,
    ).run(work.rounds, work.memory_of, work.clock)


def _filled(client: persist.Client, name: str, rows: int) -> persist.Collection:
    found = client.create_or_load(name, key={"id": int}, value={"payload": persist.JSON})
    numbers = random.Random(7)
    texts = [_document(numbers, at) for at in range(rows)]
    with pytest.MonkeyPatch.context() as patched:
        if name == "parsed":
            patched.setattr(shredding, "ROWS_MIN", rows + 1)
        found.write(pa.table({"id": range(rows), "payload": texts}), time=0, seal=1).result()
    return found


def _document(numbers: random.Random, at: int) -> str:
    return json.dumps(
        {
            "order": f"o-{at}",
            "kind": numbers.choice(["view", "click", "order", "return"]),
            "at": f"2026-11-{numbers.randrange(1, 31):02}T{numbers.randrange(24):02}:00:00Z",
            "user": {
                "id": numbers.randrange(100_000),
                "country": numbers.choice(["de", "fr", "us"]),
                "new": at % 7 == 0,
            },
            "amount": round(numbers.random() * 1000, 2),
            "page": {"url": f"https://shop.example/items/{numbers.randrange(10_000)}", "language": "en"},
            "items": [{"sku": f"s-{numbers.randrange(9999)}", "count": numbers.randrange(9)} for _ in range(3)],
            "agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Safari/537.36",
            "session": numbers.randbytes(16).hex(),
        }
    )
