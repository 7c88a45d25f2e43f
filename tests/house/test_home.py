"""What a user of Python does first, and what it gives: frontiers, what is not sealed, pandas frames."""

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import persist
from persist import Antichain
from persist.tools.cli.main import main


def test_a_frontier_compares_with_integers() -> None:
    assert Antichain(5) == 5
    assert Antichain(5) != 6
    assert Antichain(5) in {5}
    assert 5 in {Antichain(5)}
    assert Antichain(5) > 4
    assert Antichain(5) >= 5
    assert Antichain(5) < 6
    assert 6 > Antichain(5) >= np.int64(5)
    assert Antichain(5) > -1
    assert Antichain() > 2**70
    assert not Antichain() <= 2**63
    assert Antichain() != 7
    mixed: list[Any] = [Antichain(), 3, Antichain(2), 1]
    assert sorted(mixed) == [1, 2, 3, Antichain()]


@pytest.mark.parametrize("other", ["5", 5.0, None, True, [5]])
def test_a_frontier_compares_with_nothing_else(other: Any) -> None:
    assert Antichain(5) != other
    compare: Any
    for compare in (lambda: Antichain(5) < other, lambda: other >= Antichain(5), lambda: Antichain(5) >= other):
        with pytest.raises(TypeError, match="not supported between"):
            compare()


def write_keys(orders: persist.Collection, *times: int) -> None:
    orders.write([((time, "x"), time, 1) for time in times]).result()


def keys(result: Any) -> list[int]:
    return sorted(result.to_arrow()["k"].to_pylist())


def test_frontiers_are_bounds_of_changes(orders: persist.Collection) -> None:
    write_keys(orders, 0, 1, 2, 3)
    orders.seal(3).result()
    assert keys(orders.changes(orders.since, orders.upper)) == [0, 1, 2]
    assert keys(orders.changes(1)) == [1, 2]
    assert keys(orders.changes(orders.upper)) == []
    orders.seal(Antichain()).result()
    assert keys(orders.changes(2, Antichain())) == keys(orders.changes(2)) == [2, 3]
    assert keys(orders.changes(orders.upper)) == []


def test_changes_that_are_not_sealed_say_so_in_the_words_of_changes(orders: persist.Collection) -> None:
    write_keys(orders, 3, 7)
    orders.seal(5).result()
    with pytest.raises(persist.errors.AsOfNotSealed) as caught:
        orders.changes(0, 8)
    assert str(caught.value) == (
        "changes until 8 are not complete, because upper=5: times before 5 are sealed. "
        "Not sealed yet are at most 2 updates at times 5 to 7: sealing to 8 makes all of that readable. "
        "Ask for changes until 5 (the default), seal to 8 or later, or wait for it with timeout_s=."
    )


def test_upper_as_the_time_of_a_snapshot_is_told_what_was_meant(orders: persist.Collection) -> None:
    orders.seal(11).result()
    with pytest.raises(persist.InvalidUsage, match=r"as_of Antichain\(11\) is a frontier.* Give 10, the last time"):
        orders.snapshot(as_of=orders.upper)  # type: ignore[arg-type]
    with pytest.raises(persist.InvalidUsage, match="is a frontier"):
        orders.listen(Antichain())  # type: ignore[arg-type]


def test_a_frontier_as_the_time_of_a_snapshot_says_when_nothing_or_everything_is_sealed(
    orders: persist.Collection,
) -> None:
    with pytest.raises(persist.InvalidUsage, match=r"nothing is sealed yet.* once that is sealed"):
        orders.snapshot(as_of=orders.upper)  # type: ignore[arg-type]
    orders.seal(Antichain()).result()
    with pytest.raises(persist.InvalidUsage, match=r"all times are sealed for ever.* or leave as_of out"):
        orders.snapshot(as_of=orders.upper)  # type: ignore[arg-type]


def test_a_frontier_as_the_time_of_a_snapshot_is_told_in_moments_with_a_timeline(client: persist.Client) -> None:
    logins = client.create_or_load("logins", key={"user": str}, timeline="s")
    logins.seal("2026-01-02").result()
    with pytest.raises(persist.InvalidUsage, match=r"Give 1767311999 \(2026-01-01T23:59:59Z\), the last time"):
        logins.snapshot(as_of=logins.upper)  # type: ignore[arg-type]


def test_a_hold_is_taken_at_a_frontier(orders: persist.Collection) -> None:
    orders.seal(11).result()
    orders.allow_compaction(4).result()
    assert orders.hold(orders.since).time == 4


def test_listening_from_the_very_first_time_on_omits_nothing(orders: persist.Collection) -> None:
    write_keys(orders, 0, 1)
    orders.seal(2).result()
    with orders.listen() as listen:
        assert next(listen).updates["k"].to_pylist() == [0, 1]
        orders.allow_compaction(1).result()
        orders.seal(3).result()
        assert next(listen).upper == 3
    with pytest.raises(persist.errors.AsOfCompacted, match="changes from 0 on"):
        orders.listen()


def test_a_snapshot_where_nothing_is_sealed_fails_at_once_and_says_what_is_there(orders: persist.Collection) -> None:
    with pytest.raises(persist.errors.AsOfNotSealed, match=r"The collection is empty. Write, then seal\(\)"):
        orders.snapshot(timeout_s=None)
    orders.write([((k, "x"), 10 + k % 2, 1) for k in range(1204)]).result()
    for read in (orders.snapshot, orders.subscribe):
        with pytest.raises(persist.errors.AsOfNotSealed) as caught:
            read(timeout_s=None)
        assert str(caught.value) == (
            "nothing is sealed yet, so there is no latest time to read. Not sealed yet are 1,204 updates at times 10 "
            "to 11: sealing to 12 makes all of that readable."
        )


def test_what_is_not_sealed_shows_wherever_one_looks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with persist.open(tmp_path) as client:
        orders = client.create_or_load("orders", key={"k": pa.int64()})
        assert orders.unsealed is None
        assert repr(orders).endswith(", nothing sealed>")
        orders.write([((3, None), 3, 1), ((4, None), 4, 1)]).result()
        assert repr(orders).endswith(", nothing sealed, 2 updates at times 3 to 4 not sealed>")
        orders.seal(4).result()
        orders.write([((9, None), 9, 1)]).result()
        assert orders.unsealed == persist.Unsealed(3, 4, 9, is_exact=False)
        assert repr(orders).endswith(", sealed before 4, at most 3 updates at times 4 to 9 not sealed>")
        assert "unsealed  at most 3 updates at times 4 to 9" in str(orders.snapshot().explain())
        assert main(["ls", str(tmp_path)]) == 0
        assert capsys.readouterr().out.splitlines()[1].split()[-1] == "3"
        orders.seal(Antichain()).result()
        assert repr(orders).endswith(", complete for ever>")
        assert "unsealed" not in str(orders.snapshot().explain())


BIG = 2**53 + 1


@pytest.fixture
def wide(client: persist.Client) -> persist.Collection:
    """Integers and booleans that pandas would change, at the top and inside of other values, each with a NULL."""
    value = {
        "n": pa.int64(),
        "u": pa.uint64(),
        "b": pa.bool_(),
        "full": pa.int64(),
        "f": pa.float64(),
        "l": pa.list_(pa.int64()),
        "s": pa.struct([("x", pa.int64())]),
        "m": pa.map_(pa.string(), pa.int64()),
    }
    wide = client.create_or_load("wide", key={"k": pa.int64()}, value=value)
    rows = [
        (BIG, 2**64 - 1, True, BIG, 1.5, [BIG, None], {"x": BIG}, [("a", BIG), ("b", None)]),
        (None, None, None, 2, None, None, {"x": None}, None),
    ]
    wide.write([((k, row), 1, 1) for k, row in enumerate(rows)], seal=2).result()
    return wide


def test_to_pandas_changes_no_value(wide: persist.Collection) -> None:
    import pandas as pd

    frame = wide.snapshot().to_pandas().sort_values("k", ignore_index=True)
    assert list(frame.columns) == ["k", "n", "u", "b", "full", "f", "l", "s", "m"]
    assert [str(frame[c].dtype) for c in frame][:6] == ["int64", "Int64", "UInt64", "boolean", "int64", "float64"]
    assert frame["n"][0] == BIG
    assert frame["n"][1] is pd.NA
    assert frame["u"][0] == 2**64 - 1
    assert frame["full"].tolist() == [BIG, 2]
    assert frame["l"].tolist() == [[BIG, None], None]
    assert frame["s"].tolist() == [{"x": BIG}, {"x": None}]
    assert frame["m"].tolist() == [[("a", BIG), ("b", None)], None]
    assert len(wide.snapshot(columns=["n"]).to_pandas()) == 2


def test_to_pandas_takes_a_backend_and_further_options(wide: persist.Collection) -> None:
    import pandas as pd

    snapshot = wide.snapshot(columns=["n", "b", "f"])
    arrow = snapshot.to_pandas(dtype_backend="pyarrow")
    assert all(isinstance(dtype, pd.ArrowDtype) for dtype in arrow.dtypes)
    nullable = snapshot.to_pandas(dtype_backend="numpy_nullable")
    assert [str(dtype) for dtype in nullable.dtypes] == ["Int64", "boolean", "Float64"]
    mapped = snapshot.to_pandas(types_mapper={pa.int64(): pd.ArrowDtype(pa.int64())}.get)
    assert [str(dtype) for dtype in mapped.dtypes] == ["int64[pyarrow]", "boolean", "float64"]
    assert sorted(map(str, snapshot.to_pandas(integer_object_nulls=True)["n"])) == [str(BIG), "None"]
    with pytest.raises(persist.InvalidUsage, match="dtype_backend='numpy' is not a backend: give \"numpy_nullable\""):
        snapshot.to_pandas(dtype_backend="numpy")  # type: ignore[arg-type]
    with pytest.raises(persist.InvalidUsage, match="give one of them"):
        snapshot.to_pandas(dtype_backend="pyarrow", types_mapper=lambda t: None)
    with pytest.raises(persist.InvalidUsage, match="unexpected keyword argument 'colour'"):
        snapshot.to_pandas(colour="red")


@pytest.mark.parametrize("options", [{}, {"integer_object_nulls": True}], ids=str)
def test_numpy_nullable_changes_no_integer_inside_of_a_value(wide: persist.Collection, options: dict[str, Any]) -> None:
    snapshot = wide.snapshot(columns=["k", "n", "l", "s", "m"])
    frame = snapshot.to_pandas(dtype_backend="numpy_nullable", **options).sort_values("k", ignore_index=True)
    assert [str(frame[c].dtype) for c in frame] == ["Int64", "Int64", "object", "object", "object"]
    assert [*frame["l"][0]] == [BIG, None]
    assert frame["s"].tolist() == [{"x": BIG}, {"x": None}]
    assert frame["m"].tolist() == [[("a", BIG), ("b", None)], None]
    dicts = snapshot.to_pandas(maps_as_pydicts="strict").sort_values("k", ignore_index=True)
    assert dicts["m"].tolist() == [{"a": BIG, "b": None}, None]


@pytest.mark.parametrize(
    "options",
    [{"zero_copy_only": True}, {"maps_as_pydicts": "x"}, {"coerce_temporal_nanoseconds": True}, {"colour": "red"}],
    ids=str,
)
def test_what_arrow_cannot_do_with_options_of_to_pandas_is_an_invalid_usage(
    client: persist.Client, options: dict[str, Any]
) -> None:
    value = {"t": pa.timestamp("us"), "m": pa.map_(pa.string(), pa.int64()), "n": pa.int64()}
    c = client.create_or_load("options", key={"k": pa.int64()}, value=value)
    c.write([((1, (datetime(9000, 1, 1), [("a", None)], None)), 1, 1)], seal=2).result()
    for backend in (None, "numpy_nullable"):
        with pytest.raises(persist.InvalidUsage, match=r"to_pandas\(\) takes the options of pyarrow"):
            c.snapshot().to_pandas(dtype_backend=backend, **options)
    with pytest.raises(persist.InvalidUsage, match="unexpected keyword argument 'colour'"):
        c.snapshot(columns=["n"]).to_pandas(colour="red")
