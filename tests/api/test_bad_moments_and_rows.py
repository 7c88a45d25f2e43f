"""What is refused at home in Python says why and what to do, and changes nothing."""

from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
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


Call = Callable[[persist.Client], object]
BAD: dict[str, tuple[Call, str]] = {
    "a moment without a timeline": (
        lambda c: c.load("orders").seal("2026-11-21"),
        "the collection 'orders' has no timeline by which a moment would be one. Give a number, or create one with",
    ),
    "a moment without a zone": (
        lambda c: c.load("clicks").seal(datetime(2026, 11, 21)),
        r"has no time zone, so it may be any of many moments. Give one, such as",
    ),
    "a moment that the unit cannot hold": (
        lambda c: c.load("clicks").write([(1, None)], time="2026-11-21T00:00:00.5Z"),
        "lies between two times of a timeline in s, .* and .*: give one of them",
    ),
    "a filter on an unknown column": (
        lambda c: c.load("orders").delete(where=pc.field("amoumt") > 5, time=9),
        "did you mean 'amount'",
    ),
    "a _time of float in a table": (
        lambda c: c.load("orders").write(table(_time=[1.5])),
        "column '_time' has type double, and the collection stores int64, one for every update. Cast it",
    ),
    "a _time of float in a tuple": (
        lambda c: c.load("orders").write([((1, 1.0), 1.5, 1)]),
        r"update 0 has 1.5 \(float\) for _time of type int64: float is not what it takes. Give an int that",
    ),
    "a _time that is None": (
        lambda c: c.load("orders").write([((1, 1.0), None, 1)]),
        "update 0 has None for _time: every update needs a time and a diff. Give an int.$",
    ),
    "changes that are not sealed": (
        lambda c: c.load("orders").changes(0, 9, timeout_s=0),
        "^changes until 9 are not complete, .* Ask for changes until 1 ",
    ),
    "one bad column of a frame": (
        lambda c: c.load("orders").write(pd.DataFrame({"k": [1, "x"], "amount": [1.0, 2.0]}), time=9),
        r"update 1 has 'x' \(str\) for column 'k' of type int64",
    ),
    "columns that are missing": (
        lambda c: c.load("orders").write(pd.DataFrame({"k": [1]}), time=9),
        "'amount' .*is missing",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_said_and_nothing_changes(
    client: persist.Client, orders: persist.Collection, call: Call, message: str
) -> None:
    before = client.seqno
    with pytest.raises(persist.InvalidUsage, match=message) as caught:
        call(client)
    for never in ("unknown: []", "or None for NULL" if "_time" in message else "\0", "record batches"):
        assert never not in str(caught.value)
    if "changes" in message:
        assert "as_of" not in str(caught.value)
    assert client.seqno == before


def test_an_overwrite_beside_what_is_not_sealed_says_how_far_that_goes(
    client: persist.Client, orders: persist.Collection
) -> None:
    orders.write([(7, 7.0)], time=5).result()
    before = client.seqno
    calls: list[Callable[[], object]] = [
        lambda: orders.overwrite([(1, 1.0)], time=9),
        lambda: orders.delete([1], time=9),
    ]
    for call in calls:
        with pytest.raises(
            persist.errors.UpdatesBeyondUpper,
            match=r"^1 update at time 5 beyond .* finish and seal to 6, or .* at time 6 or",
        ):
            call()
    assert client.seqno == before


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
