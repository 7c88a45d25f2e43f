"""What 100 commits a minute cost in a month on S3, with maintenance, against deltalake and pyiceberg.

    python -m benchmarks.cost [--commits N]

Each side appends 100 rows and waits, N times, to one table on a moto server, which counts the requests. Once for each
100 commits it maintains the table by its own means. Prices are those of S3 in us-east-1. A catalog's own price is not
counted for Iceberg, and neither are polls of readers. Listings have pages of 1,000 keys.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import boto3
import pyarrow as pa

import persist
from benchmarks.ours import QUIET
from tests.support.servers import moto_s3

COMMITS = 300
ROWS = 100
EVERY = 100  # Commits between two rounds of maintenance: one minute.
A_MONTH = 30 * 24 * 60 * 100  # Commits.
PRICES = {"write": 0.005e-3, "read": 0.0004e-3}  # Dollars for a PUT, POST or LIST, and for a GET or HEAD.
SECRET = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}


def classify(method: str, path: str, query: str) -> str:
    """Return the price class of a request."""
    if method == "DELETE" or (method == "POST" and "delete" in query):
        return "delete"
    is_listing = method == "GET" and path.strip("/").count("/") == 0
    return "write" if method in ("PUT", "POST", "COPY") or is_listing else "read"


def rows(number: int) -> pa.Table:
    """Return the rows of a commit."""
    keys = pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())
    return pa.table({"id": keys, "name": keys.cast(pa.string())})


Side = tuple[Callable[[pa.Table], object], Callable[[], object]]


@contextmanager
def persisted(endpoint: str) -> Iterator[Side]:
    """Yield a function that appends rows, and one that maintains the location."""
    options = {"endpoint_url": endpoint, "access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}
    with persist.open("s3://ours/t", storage_options=options, settings=QUIET) as client:
        table = client.create_or_load("t", key={"id": pa.int64()}, value={"name": pa.string()})
        yield lambda some: client.write("t", some, mode="append").result(), client.maintain
        assert table.snapshot().count() > 0


@contextmanager
def delta(endpoint: str) -> Iterator[Side]:
    """Yield the same for a Delta table, with the maintenance of deltalake."""
    from deltalake import DeltaTable, write_deltalake

    names = {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
    options = names | {name.upper(): value for name, value in SECRET.items()} | {"conditional_put": "etag"}
    write_deltalake("s3://delta/t", rows(0).slice(0, 0), storage_options=options)
    table = DeltaTable("s3://delta/t", storage_options=options)

    def maintain() -> None:
        table.update_incremental()
        table.optimize.compact()
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        table.cleanup_metadata()

    yield lambda some: write_deltalake(table, some, mode="append"), maintain


@contextmanager
def iceberg(endpoint: str) -> Iterator[Side]:
    """Yield the same for an Iceberg table. pyiceberg expires snapshots, and cannot merge files."""
    from pyiceberg.catalog.sql import SqlCatalog

    with tempfile.TemporaryDirectory() as folder:
        store = {"s3.endpoint": endpoint, "s3.region": "us-east-1"}
        keys = {"s3.access-key-id": "test", "s3.secret-access-key": "test"}
        catalog = SqlCatalog("c", uri=f"sqlite:///{folder}/catalog.db", warehouse="s3://iceberg/t", **store, **keys)
        catalog.create_namespace("b")
        table: Any = catalog.create_table("b.t", schema=rows(0).schema)
        table.transaction().set_properties({"commit.manifest-merge.enabled": "true"}).commit_transaction()
        yield table.append, lambda: table.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()


SIDES = {"ours": persisted, "delta": delta, "iceberg": iceberg}


def measure(name: str, endpoint: str, seen: Counter[str], commits: int) -> str:
    """Return the line of one side: requests for each commit, and dollars for a month."""
    s3 = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **SECRET)
    s3.create_bucket(Bucket=name)
    with SIDES[name](endpoint) as (append, maintain):
        seen.clear()
        done = Counter[str]()
        for number in range(1, commits + 1):
            append(rows(number))
            if number % EVERY == 0:
                before = Counter(seen)
                maintain()
                done += seen - before
        counts = Counter(seen)
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=name)
    sizes = [entry["Size"] for page in pages for entry in page.get("Contents", ())]
    dollars = sum(counts[kind] * price for kind, price in PRICES.items()) * A_MONTH / commits
    each = " | ".join(f"{counts[kind] / commits:.2f}" for kind in ("write", "read", "delete"))
    upkeep = sum(done[kind] * price for kind, price in PRICES.items()) * A_MONTH / commits
    return f"| {name} | {each} | {dollars:,.0f} | {upkeep:,.0f} | {len(sizes)} | {sum(sizes) / commits:,.0f} |"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=COMMITS)
    commits = parser.parse_args().commits
    seen = Counter[str]()
    print("| | writes and listings for each commit | reads | deletions | dollars a month | of these, upkeep |", end="")
    print(" objects at the end | bytes for each commit |\n|---|---|---|---|---|---|---|---|")
    with moto_s3.running(lambda *request: seen.update([classify(*request)]), page_keys=1000) as endpoint:
        for name in SIDES:
            print(measure(name, endpoint, seen, commits), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
