"""Sums of integers are exact where they are stored, and numbers of the usual kind where people read them."""

from collections.abc import Iterator
from decimal import Decimal

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import persist


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open(persist.MemoryBlob()) as opened:
        rows = pd.DataFrame({"id": [1, 2, 3], "status": ["a", "a", "b"], "n": [1, 2, 2**62]})
        opened.write("orders", rows, key=["id"]).result()
        opened.create_view("totals", "SELECT status, sum(n) AS total FROM orders GROUP BY status").refresh()
        yield opened


def test_a_sum_in_a_view_is_an_integer_where_it_is_read(client: persist.Client) -> None:
    totals, wanted = client["totals"], [3, 2**62]
    assert totals.snapshot().to_arrow().schema.field("total").type == pa.decimal128(38, 0)
    assert totals.to_pandas()["total"].dtype == "int64"
    assert totals.snapshot().to_pandas(dtype_backend="numpy_nullable")["total"].dtype == "Int64"
    assert totals.snapshot().to_polars()["total"].dtype == pl.Int64
    dicts = [row["total"] for row in totals.snapshot().to_pylist()]
    tuples = [total for _, total in totals.snapshot().rows()]
    asked = [total for _, total in totals.get(["a", "b"])]
    framed = totals.get(pd.DataFrame({"status": ["a", "b"]}))["total"]
    assert totals.get(pl.DataFrame({"status": ["a", "b"]}))["total"].dtype == pl.Int64
    assert (dicts, tuples, asked, framed.tolist(), framed.dtype) == (wanted, wanted, wanted, wanted, "int64")
    assert {type(number) for number in (*dicts, *tuples, *asked)} == {int}


def test_the_sum_of_a_query_is_an_integer_too(client: persist.Client) -> None:
    answer = client.sql("SELECT sum(n) AS total FROM orders WHERE id < 3").to_pandas()
    assert (answer["total"].dtype, answer["total"].tolist()) == ("int64", [3])


def test_a_sum_that_no_int64_holds_stays_as_it_is_stored(client: persist.Client) -> None:
    client.write("orders", [(4, ("b", 2**62)), (5, ("b", 2**62))], mode="append").result()
    client.view("totals").refresh()
    totals = client["totals"].snapshot()
    assert totals.to_pandas()["total"].tolist() == [Decimal(3), Decimal(3 * 2**62)]
    assert totals.to_polars()["total"].dtype == pl.Decimal(38, 0)


def test_who_asks_for_the_stored_types_gets_them(client: persist.Client) -> None:
    totals = client["totals"].snapshot()
    assert totals.to_pandas(dtype_backend="pyarrow")["total"].dtype == pd.ArrowDtype(pa.decimal128(38, 0))
    assert totals.to_pandas(types_mapper=pd.ArrowDtype)["total"].dtype == pd.ArrowDtype(pa.decimal128(38, 0))


def test_what_was_read_as_integers_can_be_written_and_looked_up(client: persist.Client) -> None:
    kind = pa.decimal128(38, 0)
    sums = client.create_or_load("sums", key={"total": kind}, value={"twice": kind})
    sums.write([(3, 6), (None, 0), (2**62, 2**63 - 1)]).result()
    frame = sums.to_pandas()
    assert frame["total"].dtype == "Int64"
    sums.overwrite(frame).result()
    sums.overwrite(list(sums.snapshot().rows())).result()
    assert sums.snapshot().count() == 3
    assert sums.get([3]) == [(3, 6)]
    assert sums.get(frame[["total"]])["twice"].tolist() == frame["twice"].tolist()


def test_integers_fit_a_decimal_only_if_it_holds_all_of_them(client: persist.Client) -> None:
    client.create_or_load("wide", key={"n": pa.decimal128(22, 2)}).write(pa.table({"n": [2**63 - 1]})).result()
    assert client["wide"].snapshot().to_arrow()["n"].to_pylist() == [Decimal(2**63 - 1)]
    narrow = client.create_or_load("narrow", key={"n": pa.decimal128(10, 2)})
    narrow.write(pa.table({"n": [1]})).result()
    assert narrow.snapshot().to_arrow()["n"].to_pylist() == [1]
    with pytest.raises(persist.InvalidUsage, match="n"):
        narrow.write(pa.table({"n": [10**9]}))
