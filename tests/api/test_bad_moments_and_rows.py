"""What is refused at home in Python says why and what to do, and changes nothing."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open(MemoryBlob(), settings=persist.Settings(background=False)) as client:
        yield client


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
