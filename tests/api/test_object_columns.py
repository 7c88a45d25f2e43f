"""Object columns of frames hold Python values: these are stored as what they are, or refused with the column's name."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob

DAY, MOMENT = date(2026, 1, 1), datetime(2026, 1, 1, 13, tzinfo=UTC)
MIXED: dict[str, list[Any]] = {
    "a date first": [DAY, MOMENT],
    "a moment first": [MOMENT, DAY],
    "no zone": [MOMENT, datetime(2026, 1, 1, 14)],
}


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open(MemoryBlob(), settings=persist.Settings(background=False)) as client:
        yield client


def forms(values: list[Any]) -> list[Any]:
    array = np.empty(len(values), object)
    array[:] = values
    ids = [*range(len(values))]
    series = pd.Series(values, dtype=object)
    return [pd.DataFrame({"id": ids, "v": series}), {"id": ids, "v": array}, {"id": ids, "v": series}]


@pytest.mark.parametrize("form", range(3), ids=["frame", "array", "series"])
@pytest.mark.parametrize("stored", [pa.date32(), pa.timestamp("us", "UTC")], ids=str)
@pytest.mark.parametrize("values", MIXED.values(), ids=MIXED)
def test_a_mixture_of_moments_is_refused(
    client: persist.Client, values: list[Any], stored: pa.DataType, form: int
) -> None:
    c = client.create_or_load("c", key={"id": int}, value={"v": stored})
    with pytest.raises(persist.errors.InvalidUpdate, match=r"update [01] has datetime\.date.* for column 'v'"):
        c.write(forms(values)[form], time=0)


@pytest.mark.parametrize("form", range(3), ids=["frame", "array", "series"])
def test_the_times_of_rows_are_no_mixture_either(client: persist.Client, form: int) -> None:
    c = client.create_or_load("c", key={"id": int}, timeline="s")
    for values in MIXED.values():
        with pytest.raises(persist.errors.InvalidUpdate, match=r"update [01] has datetime\.date.* for column 'v'"):
            c.write(forms(values)[form], time="v")


@pytest.mark.parametrize("form", range(3), ids=["frame", "array", "series"])
@pytest.mark.parametrize(
    ("stored", "values"),
    [
        (pa.date32(), [DAY, None]),
        (pa.timestamp("us", "UTC"), [None, MOMENT]),
        (pa.string(), ["a", None]),
        (pa.float64(), [1, 2.5]),
        (pa.list_(pa.int64()), [[1], None]),
    ],
    ids=str,
)
def test_object_columns_of_one_kind_are_stored(
    client: persist.Client, stored: pa.DataType, values: list[Any], form: int
) -> None:
    c = client.create_or_load("c", key={"id": int}, value={"v": stored})
    c.write(forms(values)[form], time=0, seal=1).result()
    assert [row[1] for row in sorted(c.snapshot().rows(), key=lambda row: row[0])] == values


@pytest.mark.parametrize("least", [-(2**63) - 1, 2**64])
@pytest.mark.parametrize("form", range(3), ids=["frame", "array", "series"])
def test_integers_beyond_64_bits_are_refused_with_their_row(client: persist.Client, least: int, form: int) -> None:
    c = client.create_or_load("c", key={"id": int}, value={"v": int})
    with pytest.raises(persist.errors.InvalidUpdate, match=r"update 1 has .* for column 'v'"):
        c.write(forms([0, least])[form], time=0)


def test_objects_of_polars_are_refused() -> None:
    frame = pl.DataFrame({"id": [1], "v": [b"hello"]}, schema={"id": pl.Int64, "v": pl.Object})
    with persist.open(MemoryBlob(), settings=persist.Settings(background=False)) as client:
        c = client.create_or_load("c", key={"id": int}, value={"v": bytes})
        for given in (frame, [frame], iter([frame]), {"id": [1], "v": frame["v"]}, frame.lazy()):
            with pytest.raises(persist.errors.SchemaMismatch, match="column 'v' is of Polars' type Object"):
                c.write(given, time=0)
        assert c.upper == persist.Antichain(0)


@pytest.fixture
def orders(client: persist.Client) -> persist.Collection:
    orders = client.create_or_load("orders", key={"k": int}, value={"amount": float})
    orders.write([(1, 2.0)], time=0, seal=1).result()
    client.create_or_load("clicks", key={"k": int}, timeline="s").seal(persist.Antichain(1)).result()
    return orders


def table(**columns: Any) -> pa.Table:
    return pa.table({"k": [1], "amount": [1.0], "_time": [5], "_diff": [1], **columns})


def test_a_reader_is_not_advised_to_create_a_collection() -> None:
    store = MemoryBlob()
    with persist.open(store) as client:
        client.create_or_load("orders", key={"k": int})
        with pytest.raises(
            persist.errors.CollectionNotFound, match=r"it has 'orders'\. Check the name, or make it with create_or_load"
        ):
            client.load("ordes")
    for blob, has in ((store, "it has 'orders'."), (MemoryBlob(), "it has no collections at all: is the URL right")):
        with persist.open(blob, mode="read") as reader:
            with pytest.raises(persist.errors.CollectionNotFound, match=has) as caught:
                reader.load("ordes")
            assert str(caught.value).endswith("This client only reads: load one that is there.")
            assert "reate" not in str(caught.value)


@pytest.mark.parametrize("value", ["Infinity", "-Infinity", "NaN", "sNaN", "1E+30", "1E+999999", "1.5"])
def test_a_decimal_that_is_no_integer_of_64_bits_is_refused(client: persist.Client, value: str) -> None:
    c = client.create_or_load("c", key={"k": int})
    with pytest.raises(persist.errors.InvalidUpdate, match=r"update 0 has .* for key field 'k' of type int64"):
        c.write([(Decimal(value), None)], time=0)


def test_a_time_beyond_63_bits_in_dicts_is_refused(client: persist.Client) -> None:
    for timeline in (None, "s"):
        c = client.create_or_load(f"c{timeline}", key={"k": int}, timeline=timeline)
        with pytest.raises(persist.PersistError, match=r"9223372036854775808|'at'"):
            c.write([{"k": 1, "at": 2**63}], time="at")
