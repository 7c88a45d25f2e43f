"""Updates in any order become as few runs as their order allows, and always the same updates."""

import io
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist.codecs.part import stream
from persist.codecs.part.key_range import load_comparable_keys
from persist.codecs.part.part import Part
from persist.codecs.part.stream import RunStream
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.updates import to_updates

SCHEMA = CollectionSchema.of({"a": pa.int64(), "b": pa.string()}, {"v": pa.float64()})
Encoded = list[tuple[bytes, Part]]


def updates(rows: list[tuple[Any, ...]]) -> pa.Table:
    return to_updates([(((a, b), v), time, diff) for a, b, v, time, diff in rows], SCHEMA)


def written(rows: list[tuple[Any, ...]], cuts: list[int], schema: CollectionSchema = SCHEMA) -> Encoded:
    stream = RunStream(schema)
    done: Encoded = []
    for start, end in pairwise([0, *cuts, len(rows)]):
        done += stream.add(updates(rows[start:end]))
    return done + stream.finish()


def contents(encoded: Encoded) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for data, _ in encoded:
        for row in pq.read_table(io.BytesIO(data)).to_pylist():
            *record, diff = row.values()
            found[tuple(map(repr, record))] += diff
    return Counter({record: diff for record, diff in found.items() if diff})


def expected(rows: list[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for *record, diff in rows:
        found[tuple(map(repr, record))] += diff
    return Counter({record: diff for record, diff in found.items() if diff})


def made(count: int) -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(3)
    keys = [(int(a), "xyz"[b]) for a, b in zip(rng.integers(0, 60, count), rng.integers(0, 3, count), strict=True)]
    with_null = [(None, b) if (a, b) == (59, "z") else (a, b) for a, b in keys]
    return [(*key, float(rng.integers(3)), int(rng.integers(2)), int(rng.choice([-1, 1]))) for key in with_null]


def by_key(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (row[0] is None, row[0] or 0, row[1])


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_come_sorted_by_key_become_one_run(seed: int) -> None:
    rows = sorted(made(600), key=by_key)
    cuts = sorted(np.random.default_rng(seed).integers(0, 600, 20).tolist())
    encoded = written(rows, cuts)
    assert len(encoded) == 1
    assert contents(encoded) == expected(rows)


def test_where_keys_go_back_a_new_run_begins() -> None:
    rows = sorted(made(300), key=by_key)
    encoded = written([*rows, *rows, *rows], [100, 200, 300, 400, 600])
    assert len(encoded) == 3
    assert contents(encoded) == expected([*rows, *rows, *rows])


def test_rows_in_any_order_are_all_there() -> None:
    rows = made(500)
    assert contents(written(rows, [50, 100, 333])) == expected(rows)


def test_a_key_that_is_too_large_to_hold_back_goes_on_in_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(1, "a", 0.0, 0, 1), *((2, "b", float(n), 0, 1) for n in range(100)), (3, "c", 0.0, 0, 1)]
    assert len(written(rows, [10, 50])) == 1
    monkeypatch.setattr(stream, "HELD_BYTES_MAX", 500)
    encoded = written(rows, [10, 50])
    assert 1 < len(encoded) <= 3
    assert contents(encoded) == expected(rows)


@pytest.mark.parametrize(
    ("keys", "start"),
    [([], 0), ([1], 0), ([1, 1, 2, 2], 2), ([1, 2], 1), ([*range(3000), 3000, 3000], 3000), ([0] + [1] * 9000, 1)],
)
def test_the_rows_of_the_last_key_wait(keys: list[int], start: int) -> None:
    schema = CollectionSchema.of({"k": pa.int64()}, None)
    zeros = np.zeros(len(keys), np.int64)
    rows = pa.table({"k": pa.array(keys, pa.int64()), "_time": np.arange(len(keys)), "_diff": zeros + 1}, schema.arrow)
    assert stream._find_last_key_start(rows, schema) == start
    unit = CollectionSchema.of(None, {"k": pa.int64()})
    assert stream._find_last_key_start(rows, unit) == 0


def test_what_cancels_across_tables_leaves_nothing() -> None:
    rows = [(1, "a", 0.0, 0, 1), (1, "a", 1.0, 0, 1), (1, "a", 0.0, 0, -1), (1, "a", 1.0, 0, -1)]
    assert written(rows, [2]) == []


def test_parts_of_a_run_do_not_overlap() -> None:
    stream = RunStream(SCHEMA, row_group_bytes_max=2000)  # So small that parts end soon.
    rows = [(n // 2, "xy"[n % 2], 0.0, 0, 1) for n in range(20_000)]
    done: Encoded = []
    for start in range(0, len(rows), 3000):
        done += stream.add(updates(rows[start : start + 3000]))
    done += stream.finish()
    assert sum(part.rows for _, part in done) == len(rows)
    keys = [keys for _, part in done if (keys := load_comparable_keys(part, SCHEMA)) is not None]
    assert len(keys) == len(done) > 3
    assert all(one[-1] < other[0] for one, other in pairwise(keys))


def test_a_unit_key_and_nan_and_null_keys_work() -> None:
    unit = CollectionSchema.of(None, {"v": pa.float64()})
    stream = RunStream(unit)
    done: Encoded = []
    for n in range(3):
        done += stream.add(to_updates([((None, float(n)), 0, 1)], unit))
    done += stream.finish()
    assert sum(part.rows for _, part in done) == 3
    floats = CollectionSchema.of({"f": pa.float64()}, None)
    stream = RunStream(floats)
    done = []
    for value in (-1.0, 0.0, float("inf"), float("nan"), None):
        done += stream.add(to_updates([((value, None), 0, 1)], floats))
    done += stream.finish()
    assert [part.rows for _, part in done] == [5]
