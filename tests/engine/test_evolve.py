"""Schemas that change: what users ask for, what they are told, and what is refused."""

import datetime
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from persist.codecs.types.widening import is_wider
from persist.core.log import kinds as record_kinds
from persist.core.settings import Tuning
from tests.support.reads import rows_with
from tests.support.stepped import WAIT_S, Stepped

KEY = {"k": pa.int32()}
VALUE = {"v": pa.int32(), "s": pa.string()}
NOON = datetime.datetime(2020, 1, 1, 12)
QUIET = persist.Settings(background=False, tuning=Tuning(hold_linger_s=0))


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
        yield client


@pytest.fixture
def orders(client: persist.Client) -> persist.Collection:
    orders = client.create_or_load("orders", key=KEY, value=VALUE)
    orders.write([((k, (k, str(k))), 0, 1) for k in range(5)], seal=1).result()
    return orders


def rows(collection: persist.Collection, *args: Any, **options: Any) -> list[dict[str, Any]]:
    table = collection.snapshot(*args, **options).to_arrow()
    return sorted(table.to_pylist(), key=repr)


# What it does.


def test_an_added_column_is_null_or_its_default_in_older_records(orders: persist.Collection) -> None:
    orders.evolve(add={"note": pa.string(), "currency": pa.string()}, defaults={"currency": "EUR"})
    assert rows(orders, 0)[0] == {"k": 0, "v": 0, "s": "0", "note": None, "currency": "EUR"}
    orders.write([((9, (9, "9", "new", "CHF")), 1, 1)], seal=2).result()
    assert rows(orders, where=pc.field("currency") == "CHF")[0]["k"] == 9
    assert orders.snapshot(where=pc.field("currency") == "EUR").count() == 5
    assert orders.snapshot(where=pc.field("note").is_null()).count() == 5
    assert orders.snapshot(columns=["currency"]).to_arrow()["currency"].to_pylist().count("EUR") == 5


def test_rule_17_records_of_before_and_after_cancel(orders: persist.Collection) -> None:
    orders.evolve(add={"note": pa.string()})
    orders.write([((3, (3, "3", None)), 1, -1)], seal=2).result()
    assert [row["k"] for row in rows(orders)] == [0, 1, 2, 4]
    assert orders.changes(1, 2).to_arrow().to_pylist() == [
        {"k": 3, "v": 3, "s": "3", "note": None, "_time": 1, "_diff": -1}
    ]


def test_dropping_a_column_consolidates_what_it_told_apart(orders: persist.Collection) -> None:
    orders.write([((1, (1, "other")), 1, 1)], seal=2).result()
    orders.compact()
    orders.evolve(drop=["s"])
    assert rows(orders, form="diff")[1] == {"k": 1, "v": 1, "_diff": 2}
    assert rows_with(orders.snapshot(form="diff"), [1]).to_pylist() == [{"k": 1, "v": 1, "_diff": 2}]
    assert orders.snapshot().count() == 6
    orders.compact()
    assert rows(orders, form="diff")[1] == {"k": 1, "v": 1, "_diff": 2}


def test_a_name_that_is_used_again_is_another_column(orders: persist.Collection) -> None:
    orders.evolve(drop=["s"])
    orders.evolve(add={"s": pa.string()})
    assert {row["s"] for row in rows(orders)} == {None}


def test_names_can_be_exchanged_and_columns_reordered(client: persist.Client) -> None:
    pairs = client.create_or_load("pairs", key=KEY, value={"a": pa.int64(), "b": pa.int64()})
    pairs.write([((1, (10, 20)), 0, 1)], seal=1).result()
    assert rows_with(pairs.snapshot(), [1]).to_pylist() == [{"k": 1, "a": 10, "b": 20}]
    pairs.evolve(rename={"a": "b", "b": "a"})
    assert rows_with(pairs.snapshot(), [1]).to_pylist() == [{"k": 1, "b": 10, "a": 20}]
    pairs.evolve(reorder=["a", "b"])
    assert list(pairs.snapshot().rows()) == [(1, (20, 10))]


def test_widened_values_stay_what_they_are(client: persist.Client) -> None:
    kinds = {
        "i": (pa.int8(), pa.int64(), -5),
        "u": (pa.uint32(), pa.int64(), 2**32 - 1),
        "f": (pa.float32(), pa.float64(), 0.1),
        "n": (pa.int16(), pa.float32(), 300),
        "d": (pa.decimal128(9, 2), pa.decimal256(40, 5), Decimal("1.25")),
        "m": (pa.int32(), pa.decimal128(12, 2), 7),
        "s": (pa.string(), pa.large_string(), "x"),
        "t": (pa.timestamp("s", "UTC"), pa.timestamp("us", "UTC"), 10),
        "w": (pa.time32("ms"), pa.time64("ns"), 10),
    }
    wide = client.create_or_load("wide", key={"id": pa.uint8()}, value={n: k for n, (k, _, _) in kinds.items()})
    table = pa.table(
        {"id": pa.array([200, 201], pa.uint8()), **{n: pa.array([v, None], k) for n, (k, _, v) in kinds.items()}}
    )
    wide.write(table, time=0, seal=1).result()
    before = wide.snapshot().to_arrow()
    wide.evolve(widen={"id": pa.int16(), **{n: w for n, (_, w, _) in kinds.items()}})
    after = wide.snapshot().to_arrow()
    assert after.schema.types == [pa.int16(), *(w for _, w, _ in kinds.values())]
    for name, (_, kind, _) in kinds.items():
        assert after[name] == before[name].cast(kind)
    assert rows_with(wide.snapshot(), [200])["i"].to_pylist() == [-5]
    wide.compact()
    assert wide.snapshot().to_arrow().sort_by("id") == after.sort_by("id")
    assert not client.fsck().problems


def test_a_read_names_time_and_version_and_gives_the_same(orders: persist.Collection) -> None:
    before = rows(orders, 0)
    assert orders.evolve(add={"note": pa.string()}, rename={"s": "text"}) == 2
    orders.write([((9, (9, "9", "n")), 1, 1)], seal=2).result()
    assert orders.evolve(drop=["text"]) == 3
    assert rows(orders, 0, schema=1) == before
    assert [row["text"] for row in rows(orders, 1, schema=2)] == ["0", "1", "2", "3", "4", "9"]
    assert orders.changes(1, 2, schema=2).to_arrow()["text"].to_pylist() == ["9"]
    orders.compact()
    with pytest.raises(persist.errors.SchemaMismatch, match="'s' of schema version 1 is gone"):
        orders.snapshot(0, schema=1)
    assert orders.snapshot(0, schema=1, columns=["k", "v"]).count() == 5
    for bad in (0, 4, True, "1"):
        with pytest.raises(persist.errors.SchemaMismatch, match="not a version"):
            orders.snapshot(0, schema=bad)  # type: ignore[arg-type]


def test_comments_come_with_columns_and_stay_with_them(orders: persist.Collection) -> None:
    orders.evolve(add={"note": pa.string()}, comments={"note": "free text", "v": "in euros"})
    orders.evolve(rename={"note": "remark"})
    assert {name: about.comment for name, about in orders.about.columns.items()} == {
        "remark": "free text",
        "v": "in euros",
    }
    assert orders.evolve(comments={"v": "in cents"}) == 3
    assert orders.about.columns["v"].comment == "in cents"


def test_a_unit_value_becomes_columns_and_back(client: persist.Client) -> None:
    seen = client.create_or_load("seen", key=KEY)
    seen.write([((1, None), 0, 1)], seal=1).result()
    seen.evolve(add={"n": pa.int64()}, defaults={"n": 1})
    seen.write([((1, 1), 1, -1)], seal=2).result()
    assert rows(seen) == []
    seen.evolve(drop=["n"])
    assert rows(seen, 0) == [{"k": 1}]


def test_the_largest_integer_can_be_a_default(orders: persist.Collection) -> None:
    orders.evolve(add={"n": pa.uint64()}, defaults={"n": 2**64 - 1})
    orders.write([((0, (0, "0", 2**64 - 1)), 1, -1)], seal=2).result()
    assert {row["n"] for row in rows(orders)} == {2**64 - 1}
    assert len(rows(orders)) == 4
    for bad in (2**64, -1):
        with pytest.raises(persist.errors.SchemaMismatch, match="does not fit"):
            orders.evolve(add={"m": pa.uint64()}, defaults={"m": bad})
    with pytest.raises(persist.errors.SchemaMismatch, match="does not fit"):
        orders.evolve(add={"m": pa.float64()}, defaults={"m": 2**64 - 1})


@pytest.mark.parametrize(
    ("kind", "stored", "wider"),
    [
        (pa.time64("ns"), 1, pa.time64("ns")),
        (pa.time64("us"), 1, pa.time64("ns")),
        (pa.timestamp("ns"), 1, pa.timestamp("ns")),
        (pa.timestamp("s"), 2**40, pa.timestamp("ms")),
        (pa.duration("s"), 2**62, pa.duration("s")),
        (pa.duration("s"), 2**40, pa.duration("ms")),
        (pa.date32(), 2**30, pa.date32()),
        (pa.decimal128(5, 2), 314, pa.decimal128(38, 4)),
        (pa.float16(), 1, pa.float32()),
    ],
)
def test_a_default_stays_what_it_is_whatever_changes_next(
    orders: persist.Collection, kind: pa.DataType, stored: int, wider: pa.DataType
) -> None:
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    given = pa.array([stored], width).view(kind)[0] if pa.types.is_temporal(kind) else stored_number(stored, kind)
    orders.evolve(add={"x": kind}, defaults={"x": given})
    orders.evolve(add={"n": pa.int8()})
    assert orders.snapshot(columns=["x"]).to_arrow()["x"].equals(pa.chunked_array([pa.repeat(given, 5)]))
    if wider != kind:
        orders.evolve(widen={"x": wider})
        orders.evolve(drop=["n"])
    expected = pa.chunked_array([pa.repeat(given, 5)]).cast(wider)
    assert orders.snapshot(columns=["x"]).to_arrow()["x"].equals(expected)


def stored_number(stored: int, kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_decimal(kind):
        return pa.scalar(Decimal(stored).scaleb(-2), kind)
    return pa.scalar(float(stored), pa.float32()).cast(kind)


@pytest.mark.parametrize(
    ("before", "default", "after"),
    [
        (pa.timestamp("s"), datetime.datetime(2500, 1, 1), pa.timestamp("ns")),
        (pa.timestamp("ms"), pa.scalar(2**60, pa.timestamp("ms")), pa.timestamp("us")),
        (pa.duration("s"), pa.scalar(2**62, pa.duration("s")), pa.duration("ms")),
    ],
)
def test_a_default_that_has_no_place_in_a_finer_unit_is_said_to_have_none(
    orders: persist.Collection, before: pa.DataType, default: Any, after: pa.DataType
) -> None:
    orders.evolve(add={"x": before}, defaults={"x": default})
    with pytest.raises(persist.errors.SchemaMismatch, match="the default of column 'x' does not fit"):
        orders.evolve(widen={"x": after})
    assert orders.evolve(add={"n": pa.int8()}) == 3


def test_a_record_that_changes_a_default_is_refused(orders: persist.Collection) -> None:
    orders.evolve(add={"x": pa.int32()}, defaults={"x": 7})
    schema = orders.schema.to_json() | {"version": 3}
    for changed in ({}, {"3": 8}):
        with pytest.raises((ValueError, persist.errors.SchemaMismatch), match="keeps the default"):
            orders.handle.submit("evolve", [record_kinds.Evolve(orders.id, {**schema, "defaults": changed})]).result()
    orders.handle.submit("evolve", [record_kinds.Evolve(orders.id, {**schema, "defaults": {"3": 7}})]).result()
    assert {row["x"] for row in rows(orders)} == {7}


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (pa.float32(), float("nan"), "nan"),
        (pa.float64(), float("nan"), "nan"),
        (pa.float16(), float("nan"), "nan"),
        (pa.float32(), float("inf"), "inf"),
        (pa.decimal128(5, 2), 3, "3.00"),
        (pa.decimal128(5, 2), -999, "-999.00"),
        (pa.decimal256(40, 0), 2**70, str(2**70)),
        (pa.decimal128(5, 2), Decimal("1.5"), "1.50"),
    ],
)
def test_a_default_that_fits_is_taken(orders: persist.Collection, kind: pa.DataType, given: Any, expected: str) -> None:
    orders.evolve(add={"x": kind}, defaults={"x": given})
    orders.evolve(add={"n": pa.int8()})
    assert {str(row["x"]) for row in rows(orders)} == {expected}


def test_each_version_is_read_once_however_many_follow(client: persist.Client, orders: persist.Collection) -> None:
    states = []
    for n in range(4):
        orders.evolve(add={f"n{n}": pa.int8()})
        states.append(orders.handle.contents().schema)
    for before, after in pairwise(states):
        assert all(one is other for one, other in zip(before.known, after.known, strict=False))
    with persist.open(client.engine.storage.blob, settings=QUIET) as again:
        assert again["orders"].handle.contents().schema.known[0] is states[0].known[0]


def test_types_are_given_as_for_a_new_collection(orders: persist.Collection) -> None:
    orders.evolve(add={"n": int, "at": "timestamp[us]", "tags": list[str]}, widen={"v": "int64"}, defaults={"n": 7})
    assert [str(kind) for kind in orders.schema.types[1:5]] == ["int64", "string", "int64", "timestamp[us]"]
    assert rows(orders)[0] == {"k": 0, "v": 0, "s": "0", "n": 7, "at": None, "tags": None}


def test_a_default_of_minus_zero_is_zero_as_in_records(orders: persist.Collection) -> None:
    orders.evolve(add={"f": float, "h": pa.float16()}, defaults={"f": -0.0, "h": pa.scalar(-0.0, pa.float16())})
    assert orders.snapshot().aggregate(["f", "h"], {"n": (None, "count")}).to_pylist() == [{"f": 0.0, "h": 0.0, "n": 5}]
    assert "-0.0" not in str(rows(orders))
    orders.write([((3, (3, "3", 0.0, 0.0)), 1, -1)], seal=2).result()
    assert orders.snapshot().aggregate([], {"n": (None, "count")}).to_pylist() == [{"n": 4}]


# Who writes with an older schema.


def test_a_writer_with_an_old_schema_is_lifted_if_columns_were_only_added(
    client: persist.Client, orders: persist.Collection
) -> None:
    old = client.load("orders")
    orders.evolve(add={"note": pa.string()}, defaults={"note": "none"})
    old.write([((7, (7, "7")), 1, 1)]).result()
    orders.write([((8, (8, "8", "mine")), 1, 1)]).result()
    old.write(
        pa.table(
            {
                "k": pa.array(range(100, 30_000), pa.int32()),
                "v": pa.array([0] * 29_900, pa.int32()),
                "s": ["x"] * 29_900,
                "_time": [1] * 29_900,
                "_diff": [1] * 29_900,
            }
        )
    ).result()
    orders.seal(2).result()
    assert [row["note"] for row in rows(old, columns=["k", "note"], where=pc.field("k").isin([7, 8]))] == [
        "none",
        "mine",
    ]
    assert old.snapshot().count() == 29_907
    assert client.create_or_load("orders", key=KEY, value=VALUE).schema.version == 1
    orders.compact()
    assert not client.fsck().problems


def test_a_writer_with_an_old_schema_is_told_the_difference(client: persist.Client, orders: persist.Collection) -> None:
    old = client.load("orders")
    orders.evolve(rename={"s": "text"}, drop=["v"])
    with pytest.raises(persist.errors.SchemaMismatch, match=r": 'v' .int32. was dropped; 's' was renamed to 'text'"):
        old.write([((7, (7, "7")), 1, 1)]).result()
    with pytest.raises(persist.errors.SchemaMismatch, match="load it again"):
        old.overwrite([(1, (1, "x"))], time=1)
    with pytest.raises(persist.errors.SchemaMismatch, match="load it again"):
        old.delete([1], time=1)
    with pytest.raises(persist.errors.SchemaMismatch, match="'text'"):
        client.create_or_load("orders", key=KEY, value=VALUE)
    assert rows(old)[0] == {"k": 0, "text": "0"}
    client.load("orders").overwrite([(1, "one")], time=1).result()
    assert rows(old) == [{"k": 1, "text": "one"}]


def test_writes_with_old_and_new_schemas_in_one_group_are_each_what_they_say(
    client: persist.Client, orders: persist.Collection
) -> None:
    old = client.load("orders")
    orders.evolve(add={"note": pa.string()})
    with client.multi_write() as multi:
        multi.write(old, [((7, (7, "7")), 1, 1)])
        multi.write(orders, [((7, (7, "7", None)), 1, -1), ((8, (8, "8", "n")), 1, 1)])
        multi.seal(orders, 2)
    assert [row["k"] for row in rows(orders)] == [0, 1, 2, 3, 4, 8]


def test_an_evolve_that_another_overtook_tells_both_differences(
    client: persist.Client, orders: persist.Collection
) -> None:
    mine = {"key": {"fields": [["k", "int32"]]}, "value": {"fields": [["v", "int32"]]}, "version": 2, "ids": [0, 1]}
    orders.evolve(add={"note": pa.string()})
    with pytest.raises(
        persist.errors.SchemaMoved, match=r"'s' \(string\) was dropped.* version 2 by now .'note'"
    ) as caught:
        orders.handle.submit("evolve", [record_kinds.Evolve(orders.id, mine)]).result()
    assert (caught.value.expected, caught.value.actual) == (1, 2)
    assert orders.handle.contents().schema.version == 2


@pytest.mark.parametrize(
    "others", [{"rename": {"v": "s", "s": "v"}}, {"add": {"note": pa.string()}}, {"drop": ["s"]}], ids=str
)
@pytest.mark.parametrize("mine", [{"drop": ["v"]}, {"keyed": persist.Keyed()}, {"rename": {"v": "v"}}], ids=str)
def test_an_evolve_through_a_handle_from_before_another_evolve_is_refused(
    client: persist.Client, orders: persist.Collection, others: dict[str, Any], mine: dict[str, Any]
) -> None:
    old = client.load("orders")
    orders.evolve(**others)
    seqno = client.seqno
    with pytest.raises(
        persist.errors.SchemaMoved, match=r"version 1 .*version 2 by now.*Load the collection again"
    ) as caught:
        old.evolve(**mine)
    assert (caught.value.expected, caught.value.actual) == (1, 2)
    told = {"drop": "'v' (int32) was dropped", "keyed": "it becomes keyed", "rename": "nothing"}
    assert caught.value.mine == tuple(told[name] for name in mine)
    assert caught.value.theirs
    assert client.seqno == seqno
    assert old.schema.version == 1
    with pytest.raises(persist.errors.SchemaMoved, match="'note' is not a column of this collection"):
        old.evolve(drop=["note"])  # Of that it cannot be said what it would change.
    assert client.load("orders").evolve(drop=["v"]) == 3


def test_a_handle_has_the_schema_that_it_made_even_if_another_has_come_right_after() -> None:
    blob = persist.MemoryBlob()
    store = Stepped(blob)
    with persist.open(store, settings=QUIET) as client, persist.open(blob, settings=QUIET) as other:
        mine = client.create_or_load("orders", key=KEY, value=VALUE)
        theirs = other.load("orders")

        def overtake() -> None:
            assert other.load("orders").evolve(drop=["note"]) == 3
            assert client.seqno == other.seqno  # This client knows of it before its call returns.

        store.after("create", "log/", overtake)
        assert mine.evolve(add={"note": pa.string()}) == 2
        assert store.is_done
        assert mine.schema.names == ("k", "v", "s", "note")
        assert client.load("orders").schema.version == 3
        with pytest.raises(persist.errors.SchemaMoved, match=r"'note' .string. was dropped"):
            mine.evolve(rename={"v": "n"})
        with pytest.raises(persist.errors.SchemaMoved, match="nothing"):
            theirs.evolve(rename={"v": "n"})


@pytest.mark.parametrize(
    "change", [{"rename": {"v": "v"}}, {"widen": {"v": pa.int32()}}, {"reorder": ["v", "s"]}, {"drop": ()}], ids=str
)
def test_an_evolve_that_changes_nothing_makes_no_version(
    client: persist.Client, orders: persist.Collection, change: dict[str, Any]
) -> None:
    if change != {"drop": ()}:
        seqno = client.seqno
        assert orders.evolve(**change) == 1
        assert client.seqno == seqno
    assert orders.evolve(**change, comments={"v": "a number"}) == 1
    assert orders.about.columns["v"].comment == "a number"
    assert orders.schema == client.load("orders").schema


def test_what_was_said_of_a_column_that_is_dropped_takes_no_room(orders: persist.Collection) -> None:
    orders.describe(columns={"s": "x" * 60_000, "v": {"comment": "kept", "properties": {"unit": "m"}}}).result()
    seen = orders.about
    orders.evolve(drop=["s"], add={"note": pa.string()}, comments={"note": "y" * 60_000})
    assert orders.about.columns == {"v": persist.About("kept", {"unit": "m"}), "note": persist.About("y" * 60_000)}
    with pytest.raises(persist.errors.DescriptionMoved):
        orders.describe("late", expected=seen).result()
    orders.evolve(drop=["note"])
    orders.evolve(add={"s": pa.string()})
    assert set(orders.about.columns) == {"v"}


def test_words_about_a_column_are_about_the_one_seen(client: persist.Client, orders: persist.Collection) -> None:
    old = client.load("orders")
    orders.evolve(rename={"v": "s", "s": "v"}, add={"note": pa.string()})
    for said in (lambda: old.describe(columns={"v": "a number"}), lambda: old.evolve(comments={"v": "a number"})):
        with pytest.raises(
            persist.errors.SchemaMismatch, match=r"'v' of collection 'orders' was replaced by another column.*Load it"
        ):
            said()
    assert old.about.columns == {}
    old.describe(columns={"k": "the key", "note": "there by now"}).result()
    assert set(orders.about.columns) == {"k", "note"}


# Who follows.


def test_a_listen_keeps_its_schema_until_a_column_of_it_is_gone(
    client: persist.Client, orders: persist.Collection
) -> None:
    listen = orders.listen(0)
    orders.evolve(add={"note": pa.string()}, rename={"v": "n"})
    orders.write([((9, (9, "9", "note")), 1, 1)], seal=2).result()
    progress = listen.poll(timeout_s=WAIT_S)
    assert progress is not None
    assert progress.updates.to_pylist() == [{"k": 9, "v": 9, "s": "9", "_time": 1, "_diff": 1}]
    orders.evolve(drop=["s"])
    orders.write([((10, (10, "note")), 2, 1)], seal=3).result()
    with pytest.raises(persist.errors.SchemaMismatch, match=r"'s' of schema version 1 is gone.*begins again"):
        listen.poll(timeout_s=WAIT_S)
    listen.close()
    again = client.load("orders").listen(1)
    progress = again.poll(timeout_s=WAIT_S)
    assert progress is not None
    assert progress.updates.column_names == ["k", "n", "note", "_time", "_diff"]
    again.close()


# What is refused; nothing changes.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "no change"),
        ({"add": {"v": pa.int64()}}, "two columns would be called 'v'"),
        ({"add": {"k": pa.int64()}}, "two columns would be called 'k'"),
        ({"add": {"_time": pa.int64()}}, "_time"),
        ({"add": {"": pa.int64()}}, "not empty"),
        ({"add": {"n": "int"}}, "no type is called that"),
        ({"add": {"n": pa.null()}}, "null"),
        ({"add": ["n"]}, "not a dict"),
        ({"add": {"n": pa.int8()}, "defaults": {"n": 300}}, "default 300 does not fit"),
        ({"add": {"n": pa.int8()}, "defaults": {"n": "x"}}, "default 'x' does not fit"),
        ({"add": {"n": pa.int8()}, "defaults": {"n": 1.5}}, "does not fit"),
        ({"add": {"n": pa.decimal128(5, 2)}, "defaults": {"n": 1000}}, "does not fit"),
        ({"add": {"n": pa.decimal128(5, 2)}, "defaults": {"n": Decimal("0.001")}}, "does not fit"),
        ({"add": {"n": pa.decimal128(5, 2)}, "defaults": {"n": float("nan")}}, "does not fit"),
        ({"add": {"n": pa.int8()}, "defaults": {"n": float("nan")}}, "does not fit"),
        ({"add": {"n": pa.int8()}, "defaults": {"n": pa.scalar(2**62, pa.duration("s"))}}, "does not fit"),
        ({"add": {"n": pa.int8()}, "defaults": {"m": pa.scalar(2**62, pa.duration("s"))}}, "not added"),
        ({"add": {"n": pa.list_(pa.int8())}, "defaults": {"n": [1]}}, "flat"),
        ({"add": {"n": pa.int8()}, "defaults": {"m": 3}}, "not added"),
        ({"defaults": {"v": 3}}, "no change"),
        ({"add": {"n": pa.string()}, "defaults": {"n": "x" * (64 << 10)}}, "65538 bytes as JSON.*at most 65536"),
        ({"add": {"a": pa.string(), "b": pa.string()}, "defaults": dict.fromkeys("ab", "x" * 40_000)}, "80004 bytes"),
        (
            {"add": {"n": pa.float32()}, "defaults": {"n": 1e300}},
            "does not fit column 'n' of type float: it is out of range",
        ),
        ({"add": {"n": pa.bool_()}, "defaults": {"n": pa.scalar(7)}}, "does not fit"),
        ({"add": {"n": pa.float32()}, "defaults": {"n": pa.scalar(1e300)}}, "does not fit"),
        ({"add": {"n": pa.date32()}, "defaults": {"n": NOON}}, "datetime is not what it takes"),
        ({"add": {"n": pa.date32()}, "defaults": {"n": pa.scalar(NOON)}}, "does not fit"),
        ({"add": {"n": pa.timestamp("us")}, "defaults": {"n": NOON.replace(tzinfo=datetime.UTC)}}, "has a time zone"),
        ({"add": {"n": pa.timestamp("us", "UTC")}, "defaults": {"n": NOON}}, "has no time zone"),
        ({"add": {"n": pa.timestamp("us", "UTC")}, "defaults": {"n": pa.scalar(NOON)}}, "does not fit"),
        ({"drop": ["x"]}, "not a column"),
        ({"drop": "v"}, "one string"),
        ({"drop": ["k"]}, "key column 'k'"),
        ({"drop": [["v"]]}, "not a column"),
        ({"drop": [{}], "add": {"n": pa.int8()}}, "not a column"),
        ({"add": {"n": pa.int8()}, "defaults": {1: 2, "z": 2}}, "not added"),
        ({"reorder": 5}, "reorder"),
        ({"reorder": [1, "v"]}, "reorder"),
        ({"reorder": [["v"], "s"]}, "reorder"),
        ({"comments": {"v": "\ud800"}}, "must be a dict of texts"),
        ({"rename": {"v": "\ud800"}}, "lone surrogates"),
        ({"add": {"\ud800": pa.int8()}}, "lone surrogates"),
        ({"drop": ["s"], "message": "\ud800"}, "not a text"),
        ({"drop": ["s"], "metadata": {"a": "\ud800"}}, "not a dict of texts"),
        ({"drop": ["s"], "metadata": {"\ud800": "a"}}, "not a dict of texts"),
        ({"drop": ["v", "v"]}, "twice"),
        ({"drop": ["v"], "rename": {"v": "w"}}, "dropped, and renamed"),
        ({"rename": {"v": "s"}}, "two columns would be called 's'"),
        ({"rename": {"v": "k"}}, "two columns would be called 'k'"),
        ({"rename": {"x": "y"}}, "not a column"),
        ({"rename": {"v": 3}}, "must be a dict"),
        ({"widen": {"v": pa.int16()}}, "does not hold all of its values"),
        ({"widen": {"v": pa.float32()}}, "does not hold all"),
        ({"widen": {"v": pa.string()}}, "does not hold all"),
        ({"widen": {"k": pa.float64()}}, "key column 'k'"),
        ({"widen": {"x": pa.int64()}}, "not a column"),
        ({"widen": {"v": "int46"}}, "no type is called that"),
        ({"add": {"n": pa.field("n", pa.int8(), nullable=False)}}, "not null.*Give the type alone"),
        ({"add": {"n": pa.field("m", pa.int8())}}, "call both alike"),
        ({"reorder": ["s"]}, "reorder"),
        ({"reorder": ["s", "v", "k"]}, "reorder"),
        ({"reorder": "vs"}, "reorder"),
        ({"comments": {"x": "?"}}, "not a column"),
        ({"comments": {"v": 3}}, "must be a dict"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(
    orders: persist.Collection, change: dict[str, Any], message: str
) -> None:
    seqno = orders.handle.engine.follower.refresh().seqno
    with pytest.raises(persist.InvalidUsage, match=message):
        orders.evolve(**change)
    assert orders.handle.engine.follower.refresh().seqno == seqno
    assert (orders.schema.version, orders.handle.contents().earlier) == (1, ())


def test_what_is_no_text_or_no_dict_is_refused_with_what_is_allowed(orders: persist.Collection) -> None:
    for bad in (
        {"comment": "\ud800"},
        {"properties": {"a": "\ud800"}},
        {"properties": {"\ud800": "a"}},
        {"columns": ["v"]},
        {"columns": 5},
        {"columns": {"v": "\ud800"}},
        {"columns": {"v": {"comment": "\ud800"}}},
    ):
        with pytest.raises(persist.InvalidUsage, match=r"text|dict"):
            orders.describe(**bad)
    with pytest.raises(persist.InvalidUsage, match="tag name"):
        orders.untag([])  # type: ignore[arg-type]
    with pytest.raises(persist.InvalidUsage, match="metadata"):
        orders.write([((9, (9, "9")), 1, 1)], metadata={"a": "\ud800"})


def test_a_span_of_thousands_of_digits_is_no_retention(client: persist.Client) -> None:
    timed = client.create_or_load("timed", key=KEY, value=VALUE, timeline="s")
    for digits in (31, 400, 5000):
        with pytest.raises(persist.InvalidUsage, match="retention="):
            timed.retain("9" * digits + " days")
    timed.retain("0007 days").result()
    assert timed.retention is not None
    assert timed.retention.times == 7 * 86_400


def test_times_that_have_no_place_in_a_finer_unit_are_found_before(client: persist.Client) -> None:
    events = client.create_or_load("events", key=KEY, value={"at": pa.timestamp("s"), "long": pa.duration("s")})
    far = pa.table(
        {
            "k": pa.array([1], pa.int32()),
            "at": pa.array([2**40], pa.timestamp("s")),
            "long": pa.array([5], pa.duration("s")),
        }
    )
    events.write(far, time=0, seal=1).result()
    with pytest.raises(persist.errors.SchemaMismatch, match="'at' holds times that"):
        events.evolve(widen={"at": pa.timestamp("ns")})
    assert events.evolve(widen={"at": pa.timestamp("ms"), "long": pa.duration("ns")}) == 2
    assert events.snapshot().to_arrow()["long"].cast(pa.int64()).to_pylist() == [5 * 10**9]


def test_what_a_codec_makes_stays_one_column(client: persist.Client) -> None:
    coded = client.create_or_load("coded", key=persist.Utf8, value=persist.Json)
    with pytest.raises(persist.errors.SchemaMismatch, match="codec 'json'"):
        coded.evolve(add={"n": pa.int64()})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pa.list_(pa.int32()), pa.list_(pa.int64())),
        (pa.struct({"a": pa.int32()}), pa.struct({"a": pa.int64()})),
        (pa.struct({"a": pa.int32()}), pa.struct({"a": pa.int32(), "b": pa.int32()})),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64())),
        (pa.int32(), pa.list_(pa.int32())),
    ],
)
def test_a_column_does_not_become_another_type_as_a_whole(
    client: persist.Client, before: pa.DataType, after: pa.DataType
) -> None:
    nested = client.create_or_load("nested", key=KEY, value={"v": before})
    with pytest.raises(persist.errors.SchemaMismatch, match=r"[Aa]dd a column of"):
        nested.evolve(widen={"v": after})
    assert nested.evolve(rename={"v": "old"}, add={"v": after}) == 2
    assert not pa.types.is_nested(after) or nested.evolve(drop=["old"]) == 3


@pytest.mark.parametrize(
    "schema",
    [
        {"version": 2, "ids": [0, 1, 1]},
        {"version": 2, "ids": [0, 1]},
        {"version": 1, "ids": [0, 1, 2]},
        {"version": 2, "ids": [1, 0, 2]},
        {"version": 2, "ids": [0, 1, 2], "defaults": {"9": 1}},
        {"version": 2, "ids": [0, 1, 2], "defaults": {"1": 3}},
        {"version": 2, "ids": [0, 1, -2]},
        {"version": 2, "ids": [0, 1, 2], "more": 1},
        {"version": 2, "ids": [0, 1, 2], "timeline": "s"},
    ],
)
def test_a_record_that_no_writer_would_make_is_refused(orders: persist.Collection, schema: dict[str, Any]) -> None:
    sides = {"key": {"fields": [["k", "int32"]]}, "value": {"fields": [["v", "int32"], ["s", "string"]]}}
    with pytest.raises((ValueError, persist.Conflict)):
        orders.handle.submit("evolve", [record_kinds.Evolve(orders.id, {**sides, **schema})]).result()
    assert orders.handle.contents().earlier == ()


@pytest.mark.parametrize(
    ("narrow", "wide", "holds"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.int64(), pa.int32(), False),
        (pa.uint32(), pa.int32(), False),
        (pa.uint32(), pa.int64(), True),
        (pa.int8(), pa.uint64(), False),
        (pa.int32(), pa.float64(), True),
        (pa.int64(), pa.float64(), False),
        (pa.uint8(), pa.float16(), True),
        (pa.int16(), pa.float16(), False),
        (pa.float16(), pa.float32(), True),
        (pa.float64(), pa.float32(), False),
        (pa.decimal128(9, 2), pa.decimal128(10, 2), True),
        (pa.decimal128(9, 2), pa.decimal128(10, 4), False),
        (pa.decimal128(9, 2), pa.decimal128(12, 1), False),
        (pa.decimal256(9, 2), pa.decimal128(12, 2), False),
        (pa.int8(), pa.decimal128(3, 0), True),
        (pa.int8(), pa.decimal128(3, 1), False),
        (pa.timestamp("s"), pa.timestamp("ns"), True),
        (pa.timestamp("s"), pa.timestamp("ns", "UTC"), False),
        (pa.timestamp("ns"), pa.timestamp("s"), False),
        (pa.bool_(), pa.int8(), False),
        (pa.string(), pa.binary(), False),
        (pa.list_(pa.int8()), pa.list_(pa.int16()), False),
    ],
)
def test_a_type_is_wider_if_it_holds_every_value(narrow: pa.DataType, wide: pa.DataType, holds: bool) -> None:
    assert is_wider(narrow, wide) == holds


def test_what_may_not_be_null_stays_so_under_another_name(client: persist.Client) -> None:
    strict = client.create_or_load(
        "strict", key=KEY, value=pa.schema([pa.field("v", pa.int8(), nullable=False), ("w", pa.int8())])
    )
    strict.evolve(rename={"v": "n"}, add={"x": pa.int8()})
    assert strict.schema.required == ("n",)
    with pytest.raises(persist.InvalidUsage, match="n"):
        strict.write([((1, (None, 1, 1)), 0, 1)])
    strict.evolve(drop=["n"])
    assert not client.load("strict").schema.required


def test_a_follower_of_several_begins_with_the_newest_schema(
    client: persist.Client, orders: persist.Collection
) -> None:
    stale = client.load("orders")
    orders.evolve(rename={"v": "n"})
    with client.follow({stale: 0}, contents=True) as together:
        assert next(together)[stale].updates.column_names == ["k", "n", "s", "_time", "_diff"]
