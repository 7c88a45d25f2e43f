"""Parts may be the same bytes and mean different rows: in collections with other names, and under other versions."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import persist
from tests.support.reads import rows_with

INT = pa.int64()
QUIET = persist.Settings(background=False)


def columns(rows: int, value: int) -> pa.Table:
    zeros = np.zeros(rows, np.int64)
    return pa.table({"k": np.arange(rows), "a": np.full(rows, value), "_time": zeros, "_diff": zeros + 1})


@pytest.mark.parametrize(
    "others",
    [
        ({"key": {"k": INT}, "value": {"b": INT, "a": INT}}),
        ({"key": {"k": INT}, "value": {"x": INT, "y": INT}}),
        ({"key": {"k": INT, "a": INT}, "value": {"b": INT}}),
    ],
    ids=["names exchanged", "other names", "another key"],
)
def test_collections_whose_parts_are_the_same_bytes_are_kept_apart(others: dict[str, Any]) -> None:
    blob = persist.MemoryBlob()
    with persist.open(blob, settings=QUIET) as client:
        one = client.create_or_load("one", key={"k": INT}, value={"a": INT, "b": INT})
        other = client.create_or_load("other", **others)
        rows = [(n, 10 + n, 20 + n) for n in range(5)]
        for collection in (one, other):
            table = pa.table(dict(zip(collection.schema.names, zip(*rows, strict=True), strict=True)))
            collection.write(table, time=0, seal=1).result()
        expected = {c.name: [dict(zip(c.schema.names, row, strict=True)) for row in rows] for c in (one, other)}
        keys = {c.name: [row[: len(c.schema.key_names)] for row in rows[2:3]] for c in (one, other)}
        for fresh in (client, persist.open(blob, settings=QUIET)):
            for name in ("one", "other", "one"):
                c = fresh.load(name)
                assert c.snapshot().to_arrow().to_pylist() == expected[name]
                wanted = [key[0] if len(key) == 1 else key for key in keys[name]]
                assert rows_with(c.snapshot(), wanted).to_pylist() == expected[name][2:3]
                last = c.schema.value_names[-1]
                found = rows_with(c.snapshot(columns=[last]), wanted)
                assert found[last].to_pylist() == [expected[name][2][last]]
            if fresh is not client:
                fresh.close()


def test_keys_are_looked_up_in_parts_of_the_same_bytes_and_different_versions_again_and_again() -> None:
    with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
        t = client.create_or_load("t", key={"k": INT}, value={"a": INT})
        t.write(columns(5000, 10)).result()
        t.evolve(drop=["a"])
        t.evolve(add={"a": INT})
        t.write(columns(5000, 10)).result()
        t.seal(1).result()
        for _ in range(3):
            assert sorted(rows_with(t.snapshot(), [1])["a"].to_pylist(), key=str) == [10, None]
        t.delete([1], time=1).result()
        assert t.snapshot(1).count() == 2 * 4999
        assert rows_with(t.snapshot(1), [1]).num_rows == 0


@pytest.mark.thorough
def test_slices_of_parts_of_the_same_bytes_and_different_versions_are_kept_apart() -> None:
    rows, blob = 250_000, persist.MemoryBlob()
    settings = persist.Settings(background=False, memory_budget=32 << 20)
    expected = {10: rows, None: rows}

    def by_value(t: persist.Collection) -> dict[Any, int]:
        table = t.snapshot().aggregate(["a"], {"n": (None, "count")})
        return dict(zip(table["a"].to_pylist(), table["n"].to_pylist(), strict=True))

    with persist.open(blob, settings=settings) as client:
        t = client.create_or_load("t", key={"k": INT}, value={"a": INT})
        t.write(columns(rows, 10)).result()
        t.evolve(drop=["a"])
        t.evolve(add={"a": INT})
        t.write(columns(rows, 10)).result()
        t.write([((rows, 1), 0, 1), ((rows, 1), 1, -1)], seal=2).result()  # So that something has to be merged.
        assert len(t.snapshot(form="diff").to_arrow()) == 2 * rows
        assert by_value(t) == expected
        t.compact()
        assert client.fsck().is_clean
    with persist.open(blob, settings=settings) as client:
        t = client.load("t")
        assert by_value(t) == expected
        assert len(t.snapshot(form="diff").to_arrow()) == 2 * rows
