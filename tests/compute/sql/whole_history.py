"""What a collection holds at all of its times, as something to compare."""

from collections import Counter
from typing import Any

import pyarrow as pa

from persist.api.collection import Collection
from tests.compute.sql.oracle import comparable


def held(collection: Collection) -> tuple[Any, Counter[tuple[Any, ...]]]:
    """Return what a collection holds at all times."""
    since = collection.since.time or 0
    then = collection.snapshot(since, form="diff").to_arrow()
    tables = [then.append_column("_time", pa.array([since] * len(then)))]
    upper = collection.upper.time or 0
    if since + 1 < upper:
        tables.append(collection.changes(since + 1, upper).to_arrow())
    found: Counter[tuple[Any, ...]] = Counter()
    for table in tables:
        for row in table.to_pylist():
            diff = row.pop("_diff")
            found[tuple(sorted((name, comparable(value)) for name, value in row.items()))] += diff
    return (since, upper), Counter({record: count for record, count in found.items() if count})
