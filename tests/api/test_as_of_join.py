"""A frame gets what its keys held at the times of its rows, as reading each of these times would tell."""

from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import persist
from persist.blob.protocol import MemoryBlob
from tests.support.tiers import examples

QUIET = persist.Settings(background=False)
SEALED = 8
UPDATE = st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.integers(0, SEALED - 1), st.sampled_from([1, 2, -1]))
ROW = st.tuples(st.one_of(st.none(), st.integers(0, 4)), st.one_of(st.none(), st.integers(0, SEALED - 1)))


def model(updates: list[tuple[int, str, int, int]], rows: list[tuple[Any, Any]]) -> list[tuple[Any, Any, Any, Any]]:
    """Return (row, key, time, value) of all that is found, looking at each time by itself."""
    found: list[tuple[Any, Any, Any, Any]] = []
    for number, (key, at) in enumerate(rows):
        values = [] if at is None else sorted({v for k, v, t, _ in updates if k == key and t <= at})
        counts = {v: sum(d for k, w, t, d in updates if (k, w) == (key, v) and t <= at) for v in values}
        if any(count < 0 for count in counts.values()):
            raise persist.errors.NegativeMultiplicity("", -1, at)
        matches: list[str | None] = [v for v in values for _ in range(counts[v])]
        found += [(number, key, at, v) for v in matches or [None]]
    return found


@settings(deadline=None, max_examples=examples(120))
@given(updates=st.lists(UPDATE, max_size=14), rows=st.lists(ROW, max_size=8), keyframe=st.booleans())
def test_each_row_gets_what_the_model_says(
    updates: list[tuple[int, str, int, int]], rows: list[tuple[Any, Any]], keyframe: bool
) -> None:
    frame = pa.table(
        {
            "row": pa.array(range(len(rows)), pa.int64()),
            "who": pa.array([key for key, _ in rows], pa.int64()),
            "at": pa.array([at for _, at in rows], pa.int64()),
        }
    )
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        c = client.create_or_load("c", key={"k": int}, value={"v": str})
        c.write([((k, v), t, d) for k, v, t, d in updates], seal=SEALED).result()
        if keyframe:
            c.compact()
        try:
            expected = model(updates, rows)
        except persist.errors.NegativeMultiplicity:
            with pytest.raises(persist.errors.NegativeMultiplicity):
                c.as_of_join(frame, on=["who"])
            return
        found = c.as_of_join(frame, on=["who"])
    assert found.column_names == ["row", "who", "at", "v"]
    assert found["row"].to_pylist() == [row for row, *_ in expected]
    assert sorted(map(repr, (tuple(row.values()) for row in found.to_pylist()))) == sorted(map(repr, expected))


def test_only_the_history_of_touched_keys_is_read() -> None:
    class Counting(MemoryBlob):
        read = 0

        def get(self, key: str, range: Any = None) -> bytes | None:
            found = super().get(key, range)
            self.read += len(found) if found and key.startswith("part/") else 0
            return found

    blob = Counting()
    with persist.open(blob, settings=QUIET) as client:
        c = client.create_or_load("c", key={"k": int}, value={"v": str})
        for start in range(0, 40_000, 10_000):
            rows = {"k": [*range(start, start + 10_000)], "v": [f"{n * 7919 % 10007:x}" * 3 for n in range(10_000)]}
            c.write(pa.table({**rows, "_time": [0] * 10_000, "_diff": [1] * 10_000})).result()
        c.seal(5).result()
    with persist.open(blob, settings=QUIET) as client:
        before, c = blob.read, client.load("c")
        assert c.as_of_join({"k": [7], "at": [3]})["v"].to_pylist() == [f"{7 * 7919 % 10007:x}" * 3]
        touched = blob.read - before
        c.snapshot(3).to_arrow()
        assert 0 < touched <= (blob.read - before - touched) / 2


def test_moments_of_a_frame_are_rounded_down_to_times() -> None:
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        c = client.create_or_load("c", key={"k": int}, value={"v": str}, timeline="s")
        c.write([((1, "a"), 10, 1), ((1, "a"), 20, -1), ((1, "b"), 20, 1)], seal=persist.Antichain(100)).result()
        at = pd.to_datetime([9.5, 10.0, 19.999, 20.5], unit="s", utc=True)
        assert c.as_of_join(pd.DataFrame({"k": 1, "at": at}))["v"].to_pylist() == [None, "a", "a", "b"]


@pytest.mark.parametrize(
    ("frame", "how", "error", "message"),
    [
        ({"k": [1], "when": [1]}, {}, persist.errors.SchemaMismatch, r"the frame has no column 'at', it has"),
        ({"key": [1], "at": [1]}, {}, persist.errors.SchemaMismatch, r"no column 'k'"),
        ({"k": [1], "at": [1], "v": ["x"]}, {}, persist.errors.SchemaMismatch, "rename it in the frame"),
        ({"k": [1], "at": [1]}, {"on": ["k", "at"]}, persist.InvalidUsage, "names 2 columns, and a key of 'c' has 1"),
        ({"k": [1], "at": [1.5]}, {}, persist.errors.SchemaMismatch, "the time of a row is a whole number"),
        ({"k": [1], "at": [9]}, {"timeout_s": 0}, persist.errors.AsOfNotSealed, "9"),
        (7, {}, persist.InvalidUsage, "7 is not a frame"),
        ({"k": [1, 2], "at": [1]}, {}, persist.errors.SchemaMismatch, "not of one length: 'k' 2, 'at' 1"),
        ([{"k": 1, "at": 1}, {"k": "x", "at": 1}], {}, persist.errors.InvalidUpdate, "column 'k'"),
        ([{"k": 1, "at": 1}, 5], {}, persist.errors.InvalidUpdate, "update 1 is 5"),
        ({"k": [1], "at": pa.array([2**63], pa.uint64())}, {}, persist.errors.InvalidUpdate, f"{2**63} in column 'at'"),
    ],
    ids=repr,
)
def test_what_cannot_be_joined_is_refused(frame: Any, how: Any, error: Any, message: str) -> None:
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        c = client.create_or_load("c", key={"k": int}, value={"v": str})
        c.seal(5).result()
        with pytest.raises(error, match=message):
            c.as_of_join(frame, **how)


def test_the_own_columns_of_a_frame_stay_as_they_are() -> None:
    first = {"k": 1, "at": 11, "x": 0.5, "v": 7, "extra": None}
    rows = [first, {"k": 1, "at": 12, "x": 1.5, "v": None, "extra": 5}]
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        c = client.create_or_load("c", key={"k": int}, value={"v": str, "w": str}, timeline="s")
        c.write([((1, ("a", "b")), 10, 1)], seal=persist.Antichain(100)).result()
        for frame in (rows, iter(rows), pd.DataFrame(rows), pa.Table.from_pylist(rows)):
            found = c.as_of_join(frame, columns=["w"])
            assert found["x"].to_pylist() == [0.5, 1.5]
            assert found["w"].to_pylist() == ["b", "b"]
            assert found["v"].to_pylist() == [7, None]
        for frame in (rows, iter(rows), pd.DataFrame(rows)):
            assert c.as_of_join(frame, columns=["w"])["extra"].to_pylist() == [None, 5]
        mixed = {"k": [1, 1], "at": [11, 12], "x": pd.Series([1, "b"], dtype=object)}
        for frame in (mixed, pd.DataFrame(mixed)):
            with pytest.raises(persist.errors.InvalidUpdate, match="column 'x'"):
                c.as_of_join(frame, columns=["w"])


def test_moments_of_the_hour_that_there_is_twice_are_joined() -> None:
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        c = client.create_or_load("c", key={"k": int}, value={"v": str}, timeline="s")
        first = pd.Timestamp("2026-10-25T00:30:00.7", tz="UTC")
        start = int(first.timestamp())
        c.write([((1, "a"), start, 1), ((1, "b"), start + 3600, 1)], seal=start + 9000).result()
        at = pd.Series([first, first + pd.Timedelta(hours=1)]).dt.tz_convert("Europe/Berlin")
        found = c.as_of_join(pd.DataFrame({"k": [1, 1], "at": at}))
        assert found["v"].to_pylist() == ["a", "a", "b"]
        assert found["at"].type.tz == "Europe/Berlin"


MOMENTS: dict[str, Any] = {
    "text": ["2026-01-02T00:00:00Z", "2026-01-01T00:59:59.9999999999+01:00", None],
    "text in UTC": ["2026-01-02", "2025-12-31 23:59:59.999", None],
    "a dictionary of text": pa.array(["2026-01-02T00:00:00Z", "2025-12-31", None]).dictionary_encode(),
    "a dictionary of moments": pa.array([1_767_312_000_000, 0, None], pa.timestamp("ms", "UTC")).dictionary_encode(),
    "categories": pd.Categorical(["2026-01-02", "2025-12-31", None]),
    "categories of Polars": pl.Series(["2026-01-02", "2025-12-31", None], dtype=pl.Categorical),
    "a view": pa.array(["2026-01-02", "2025-12-31", None], pa.string_view()),
    "numbers with a gap": [1_767_312_000_000.0, 0.0, None],
}


@pytest.mark.parametrize("times", MOMENTS.values(), ids=MOMENTS)
def test_the_times_of_rows_may_be_text_and_categories(times: Any) -> None:
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        c = client.create_or_load("c", key={"k": int}, value={"v": str}, timeline="ms")
        c.write([(1, "a")], time="2026-01-01", seal="2026-02-01").result()
        assert c.as_of_join({"k": [1, 1, 1], "at": times})["v"].to_pylist() == ["a", None, None]
        with pytest.raises(persist.errors.InvalidUpdate, match="the time of row 1: 'soon' is not a moment"):
            c.as_of_join({"k": [1, 1], "at": ["2026-01-01", "soon"]})


def test_a_frame_of_polars_keeps_its_texts_and_lists() -> None:
    columns: dict[str, list[Any]] = {"k": ["a", "b"], "at": [1, 1], "note": ["x", None], "tags": [["x"], ["y", "z"]]}
    frame = pl.DataFrame(columns).with_columns(kind=pl.Series(["m", "n"], dtype=pl.Categorical))
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        c = client.create_or_load("c", key={"k": str}, value={"v": int})
        c.write([("a", 5)], time=0, seal=2).result()
        rows = [{"kind": kind, "v": v} for kind, v in (("m", 5), ("n", None))]
        expected = [{**{name: column[i] for name, column in columns.items()}, **rows[i]} for i in range(2)]
        for given in (frame, frame.lazy(), frame.to_arrow(), [*frame.iter_rows(named=True)]):
            assert c.as_of_join(given).to_pylist() == expected


def test_columns_are_named_by_text() -> None:
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        c = client.create_or_load("c", key={"k": int}, value={"v": str})
        c.seal(1).result()
        odd: Any = 5
        for wrong in ({"on": odd}, {"time": odd}):
            with pytest.raises(persist.InvalidUsage, match="are not names of columns"):
                c.as_of_join({"k": [1], "at": [0]}, **wrong)
