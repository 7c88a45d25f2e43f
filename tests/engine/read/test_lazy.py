"""What Polars asks of a lazy frame: columns, conditions and numbers of rows, and what of these the read takes over."""

from collections.abc import Callable, Iterator, Sequence
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from persist.engine.read.results.frames import make_lazy_frame, push_down, to_milliseconds

polars = pytest.importorskip("polars")
c = polars.col

TABLE = pa.table(
    {
        "k": pa.array([1, 2, 3, None, 5, 6], pa.int64()),
        "s": pa.array(["a", "b", None, "d", "e", "f"]),
        "f": pa.array([0.5, None, 2.0, 3.0, 4.0, 5.0]),
        "d": pa.array([date(2026, 1, n) for n in range(1, 7)]),
        "b": pa.array([True, False, None, True, True, False]),
        "t": pa.array([10] * 6, pa.timestamp("s")),
    }
)
PUSHED: list[tuple[Any, pc.Expression | None]] = [
    (c("k") == 3, pc.field("k") == 3),
    (c("k") != 3, pc.field("k") != 3),
    (c("k") < 3, pc.field("k") < 3),
    (c("k") <= 3, pc.field("k") <= 3),
    (c("k") > 3, pc.field("k") > 3),
    (c("k") >= 3, pc.field("k") >= 3),
    (c("s") == "b", pc.field("s") == "b"),
    (c("d") > date(2026, 1, 3), pc.field("d") > date(2026, 1, 3)),
    (c("k").is_null(), pc.field("k").is_null()),
    (c("k").is_not_null(), pc.field("k").is_valid()),
    ((c("k") > 1) & (c("k") < 5), (pc.field("k") > 1) & (pc.field("k") < 5)),
    ((c("k") == 1) | (c("s") == "d"), (pc.field("k") == 1) | (pc.field("s") == "d")),
    ((c("k") > 1) & (c("f") < 4.0), pc.field("k") > 1),  # Of several conditions, those that can be.
    ((c("f") < 4.0) & (c("k") > 1) & (c("k") < 6), (pc.field("k") > 1) & (pc.field("k") < 6)),
    ((c("k") == 1) | (c("f") < 4.0), None),
    (c("f") < 4.0, None),  # Floats are compared in another way.
    (c("k") == 1.5, None),
    (c("k") == 2**70, None),
    (c("k") + 1 == 3, None),
    (c("k") == c("k"), None),
    (c("k").map_batches(lambda ks: ks == 1, return_dtype=polars.Boolean), None),
]


@pytest.mark.parametrize(("predicate", "wanted"), PUSHED, ids=map(str, range(len(PUSHED))))
def test_conditions_that_mean_the_same_are_taken_over(predicate: Any, wanted: pc.Expression | None) -> None:
    pushed = push_down(polars, predicate, TABLE.schema)
    if wanted is None:
        assert pushed is None
        return
    assert pushed is not None
    frame = polars.from_arrow(to_milliseconds(TABLE))
    passed = frame.filter(predicate)["d"].to_list()
    assert TABLE.filter(pushed)["d"].to_pylist() == TABLE.filter(wanted)["d"].to_pylist()
    assert {*passed} <= {*TABLE.filter(pushed)["d"].to_pylist()}, "no row may be missing"


Source = Callable[..., Iterator[Any]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> tuple[Source, list[Any]]:
    """Return what Polars calls for rows, and what that asks the read for, which gives two rows at a time."""
    asked: list[Any] = []

    def narrowed(names: Sequence[str] | None, filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        asked.append((names, None if filter is None else str(filter)))
        table = TABLE if filter is None else TABLE.filter(filter)
        return iter((table if names is None else table.select(names)).to_batches(2))

    monkeypatch.setattr("polars.io.plugins.register_io_source", lambda source, **_: source)
    return make_lazy_frame(polars, TABLE.schema, narrowed), asked


def rows(source: Source, *arguments: Any) -> list[tuple[Any, ...]]:
    return [row for frame in source(*arguments) for row in frame.rows()]


def test_only_the_columns_that_are_needed_are_read(asked: tuple[Source, list[Any]]) -> None:
    source, reads = asked
    assert rows(source, ["s", "k"], None, None, None)[:2] == [("a", 1), ("b", 2)]
    assert rows(source, ["s"], c("k") >= 5, None, None) == [("e",), ("f",)]
    assert len(rows(source, None, c("k") >= 5, None, None)[0]) == 6
    assert reads == [(["s", "k"], None), (["s", "k"], "(k >= 5)"), (None, "(k >= 5)")]


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 6, 9])
def test_rows_are_counted_before_they_are_filtered(asked: tuple[Source, list[Any]], limit: int) -> None:
    source, reads = asked
    assert rows(source, ["d"], None, limit, None) == [(date(2026, 1, n + 1),) for n in range(min(limit, 6))]
    wanted = [(k,) for k in (1, 2, 3, None, 5, 6)[:limit] if k is not None and k > 2]
    assert rows(source, ["k"], c("k") > 2, limit, None) == wanted
    assert reads[1] == (["k"], None), "a row that is left out by the read would not be counted"


def test_no_more_is_read_than_the_rows_that_are_asked_for() -> None:
    given: list[int] = []

    def narrowed(names: Any, filter: Any) -> Iterator[pa.RecordBatch]:
        for at, batch in enumerate(TABLE.to_batches(2)):
            given.append(at)
            yield batch

    frame = make_lazy_frame(polars, TABLE.schema, narrowed)
    assert frame.head(3).collect()["d"].to_list() == [date(2026, 1, n) for n in (1, 2, 3)]
    assert given == [0, 1]


def test_moments_in_seconds_are_in_milliseconds_at_whatever_depth() -> None:
    inner = pa.list_(pa.timestamp("s", "UTC"))
    table = pa.table({"a": pa.array([[10]], inner), "b": pa.array([5], pa.duration("s")), "c": [1]})
    made = to_milliseconds(table)
    assert made.schema.types == [pa.list_(pa.timestamp("ms", "UTC")), pa.duration("ms"), pa.int64()]
    assert to_milliseconds(made) is made
