"""`Client.write`: rows into a collection by its name, which is created from them if there is none."""

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import persist
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.engine.follow.follower import Follower
from tests.support.tuned import tuned

FRAME = pd.DataFrame({"id": [1, 2], "status": ["new", "new"], "amount": [9.5, 3.0]})


def test_a_write_creates_the_collection_with_the_columns_of_the_frame(client: persist.Client) -> None:
    client.write("orders", FRAME, key=["id"]).result()
    orders = client.load("orders")
    assert orders.schema.key_names == ("id",)
    assert orders.schema.value_names == ("status", "amount")
    assert orders.snapshot().to_pandas().to_dict("list") == FRAME.to_dict("list")


def test_a_second_write_replaces_the_rows_of_its_keys_or_says_that_it_adds_to_them(client: persist.Client) -> None:
    for _ in range(2):
        client.write("orders", FRAME, key=["id"]).result()
    assert client["orders"].snapshot().count() == 2
    client.write("orders", FRAME, mode="append").result()
    assert client["orders"].snapshot().count() == 4
    client.write("orders", FRAME, key=["id"]).result()
    assert client["orders"].snapshot().count() == 2


def test_a_write_that_names_no_key_neither_doubles_nor_replaces_rows_in_silence(client: persist.Client) -> None:
    client.write("orders", FRAME, key=["id"], timeline=None, time=0, seal=1).result()
    for rows in (FRAME, FRAME.to_dict("records"), iter(FRAME.to_dict("records"))):
        with pytest.raises(persist.InvalidUsage, match=r"has the key \['id'\].*mode=\"upsert\" .* mode=\"append\" "):
            client.write("orders", rows)
    assert client["orders"].upper.time == 1
    client.write("orders", FRAME.assign(_time=1, _diff=1), seal=2).result()  # Diffs say what becomes of the rows.
    client.write("orders", FRAME, mode="upsert").result()
    assert client["orders"].snapshot().count() == 2


def test_a_write_that_names_no_key_follows_a_collection_without_a_key_and_a_keyed_one(client: persist.Client) -> None:
    client.write("log", FRAME, key=[]).result()
    client.create_or_load("keyed", like=FRAME, key=["id"], keyed=persist.Keyed())
    for _ in range(2):
        client.write("log", FRAME).result()
        client.write("keyed", FRAME).result()
    assert [client[name].snapshot().count() for name in ("log", "keyed")] == [6, 2]


@pytest.mark.parametrize("rows", ["day.csv", Path("day.csv")])
def test_a_path_is_called_one_with_what_reads_it(client: persist.Client, rows: Any) -> None:
    orders = client.create_or_load("orders", like=FRAME, key=["id"])
    calls: list[Callable[[], Any]] = [
        lambda: client.write("new", rows, key=["id"]),
        lambda: client.create_or_load("new", like=rows, key=["id"]),
        *(lambda mode=mode: client.write("orders", rows, mode=mode) for mode in ("append", "upsert", "overwrite")),
        *(
            lambda name=name: getattr(orders, name)(rows).result()
            for name in ("write", "upsert", "overwrite", "update")
        ),
    ]
    for call in calls:
        with pytest.raises(persist.InvalidUsage, match=r"the rows are 'day\.csv', a (text|path)\. .*read_csv\(\)"):
            call()
    assert (client.collections(), orders.upper.time) == (["orders"], 0)


@pytest.mark.parametrize(("mode", "rows"), [("upsert", [2, 2]), ("append", [2, 4]), ("overwrite", [2, 1])])
def test_the_mode_says_what_becomes_of_rows_that_are_there(client: persist.Client, mode: Any, rows: list[int]) -> None:
    for frame, expected in zip((FRAME, FRAME[:1] if mode == "overwrite" else FRAME), rows, strict=True):
        client.write("orders", frame, key=["id"], mode=mode, token=f"of {len(frame)}, {expected}").result()
        assert client["orders"].snapshot().count() == expected


def test_a_write_may_refuse_a_collection_that_exists(client: persist.Client) -> None:
    client.write("orders", FRAME, key=["id"], mode="error").result()
    with pytest.raises(persist.errors.CollectionExists, match="'orders' exists already"):
        client.write("orders", FRAME, key=["id"], mode="error")
    with pytest.raises(persist.InvalidUsage, match="mode='replace' is not a way to write: use \"upsert\""):
        client.write("orders", FRAME, key=["id"], mode="replace")  # type: ignore[arg-type]
    with pytest.raises(persist.InvalidUsage, match=r"the name comes first: write\('orders', rows"):
        client.write(FRAME, "orders")
    with pytest.raises(persist.InvalidUsage, match=r"the name comes first: create_view\('v', 'select \* from orders'"):
        client.create_view("select * from orders", "v")
    with pytest.raises(persist.InvalidUsage, match="query= is a DataFrame: give SQL as text"):
        client.sql(FRAME)
    assert client["orders"].snapshot().count() == 2


def test_a_token_that_did_the_write_passes_a_refused_collection(client: persist.Client) -> None:
    for _ in range(2):
        client.write("orders", FRAME, key=["id"], mode="error", token="load 7").result()
    assert client["orders"].snapshot().count() == 2
    with pytest.raises(persist.errors.CollectionExists):
        client.write("orders", FRAME, key=["id"], mode="error", token="load 8")


NULL_ROWS: dict[str, Any] = {
    "tuples": lambda: [(2, None)],
    "generator": lambda: iter([(2, None)]),
    "dicts": lambda: [{"k": 2, "v": None}],
    "table": lambda: pa.table({"k": [2], "v": pa.array([None], pa.string())}),
}


@pytest.mark.parametrize("keyed", [None, persist.Keyed()], ids=["plain", "keyed"])
@pytest.mark.parametrize("rows", NULL_ROWS.values(), ids=NULL_ROWS)
def test_a_row_never_deletes_its_key(client: persist.Client, rows: Any, keyed: persist.Keyed | None) -> None:
    client.create_or_load("x", key={"k": int}, value={"v": str}, keyed=keyed)
    client.write("x", [(1, "a"), (2, "b")], key=["k"]).result()
    client.write("x", rows(), key=["k"]).result()
    assert client["x"].snapshot().to_arrow().to_pylist() == [{"k": 1, "v": "a"}, {"k": 2, "v": None}]


def test_rows_of_keys_alone_are_written_as_tuples(client: persist.Client) -> None:
    client.create_or_load("pairs", key={"k": int})
    for _ in range(2):
        client.write("pairs", [(1, None), (2, None)], key=["k"]).result()
    assert client["pairs"].snapshot().to_arrow()["k"].to_pylist() == [1, 2]


@pytest.mark.parametrize("mode", [None, "upsert", "append", "overwrite"])
def test_a_column_deleted_is_refused_by_new_and_existing_collections(client: persist.Client, mode: Any) -> None:
    rows = pa.table({"k": [1, 2], "v": ["a", "b"], "_deleted": [False, True]})
    client.create_or_load("there", key={"k": int}, value={"v": str})
    client.create_or_load("keyed", key={"k": int}, value={"v": str}, keyed=persist.Keyed())
    for name in ("new", "there", "keyed"):
        for given in (rows, rows.to_reader(), rows.to_pylist(), iter(rows.to_batches())):
            with pytest.raises(persist.errors.SchemaMismatch, match=r"events, as debezium\(\).*'_deleted'.*upsert\(\)"):
                client.write(name, given, key=["k"], mode=mode)
    later = iter([{"k": 1, "v": "a"}, {"k": 2, "v": "b", "_deleted": True}])
    with pytest.raises(persist.InvalidUsage, match="_deleted"):
        client.write("there", later, key=["k"], mode=mode).result()
    assert client["there"].upper.time == 0  # Nothing was written.
    assert "new" not in client


def test_a_collection_that_has_a_column_deleted_may_be_appended_to(client: persist.Client) -> None:
    client.create_or_load("x", key={"k": int}, value={"_deleted": bool})
    rows = pa.table({"k": [1], "_deleted": [True]})
    client.write("x", rows, mode="append").result()
    assert client["x"].snapshot().count() == 1
    why = r"'x' has a column '_deleted', so rows cannot replace.* overwrite\(\), or rename"
    upserts: list[Callable[[], Any]] = [lambda: client.write("x", rows, key=["k"]), lambda: client["x"].upsert(rows)]
    for upsert in upserts:
        with pytest.raises(persist.errors.SchemaMismatch, match=why):
            upsert().result()
    client.write("x", rows, key=["k"], mode="overwrite").result()
    assert client["x"].snapshot().to_pylist() == [{"k": 1, "_deleted": True}]


STREAMS: dict[str, tuple[dict[str, list[Any]], str | None]] = {
    "NULL": ({"k": [1, None], "v": ["a", "b"]}, r"NULL in the key column 'k'"),
    "two values": ({"k": [1, 1], "v": ["a", "b"]}, r"repeat keys, first of all 1, .* Give each key one value"),
    "twice": ({"k": [1, 1, 2], "v": ["a", "a", "b"]}, None),
}


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize(("columns", "refused"), STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("is_large", [False, True])
def test_a_stream_follows_the_same_rules_whether_its_collection_is_there_or_not(
    columns: dict[str, list[Any]], refused: str | None, is_large: bool
) -> None:
    rows = pa.table(columns)
    if is_large:  # More than is held, so that it is stored first.
        rows = pa.concat_tables([rows, pa.table({"k": range(10, 60_010), "v": ["x" * 50] * 60_000})])
    with persist.open(persist.MemoryBlob(), settings=persist.Settings(memory_budget=16 << 20)) as client:
        for _ in range(2):
            reader = pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=1000))
            if refused is None:
                client.write("x", reader, key=["k"]).result()
                assert client["x"].snapshot().count() == len(rows) - 1
            else:
                with pytest.raises(persist.InvalidUsage, match=refused):
                    client.write("x", reader, key=["k"])
                assert "x" not in client or not client["x"].upper.time
                client.create_or_load("x", key={"k": int}, value={"v": str}, timeline="ms")


@pytest.mark.parametrize("keyed", [None, persist.Keyed(), persist.Keyed(groups={"at": ["v"]})])
def test_the_mode_update_changes_columns_of_a_collection_that_exists(
    client: persist.Client, keyed: persist.Keyed | None
) -> None:
    with pytest.raises(persist.errors.CollectionNotFound, match="'c'"):
        client.write("c", [{"k": 1, "n": 5}], key=["k"], mode="update")
    assert "c" not in client
    c = client.create_or_load("c", key={"k": int}, value={"v": str, "at": int, "n": int}, keyed=keyed)
    c.upsert([(1, ("old", 1, 1)), (2, ("old", 1, 2))]).result()
    client.write("c", [{"k": 1, "n": 5}, {"k": 2, "v": "new", "at": 2}], key=["k"], mode="update").result()
    client.write("c", pa.table({"n": [None], "k": [2]}), mode="update").result()
    assert sorted(c.snapshot().rows()) == [(1, ("old", 1, 5)), (2, ("new", 2, None))]
    bad: list[tuple[Any, dict[str, Any], str]] = [
        ([{"n": 5}], {}, "lacks the key column 'k'"),
        ([{"k": 3, "n": 5}], {}, "no row to update for k=3"),
        ([{"k": 1, "n": 5}], {"key": ["n"]}, "is not the key"),
        ([{"k": 1, "n": 5}], {"seal": 9}, "is given to an update"),
        ([{"k": 1, "n": 5}], {"diff": 1}, "these have diffs"),
        ([{"k": 1, "n": 5, "_deleted": True}], {}, "deletes nothing"),
    ]
    for rows, options, why in bad:
        with pytest.raises(persist.InvalidUsage, match=why):
            client.write("c", rows, mode="update", **options).result()
    with pytest.raises(persist.InvalidUsage, match="'at'"):
        client.write("c", [{"k": 1, "v": "all"}], key=["k"]).result()


def test_a_key_names_each_column_once(client: persist.Client) -> None:
    with pytest.raises(persist.InvalidUsage, match=r"key=\['id', 'id'\] names a column twice"):
        client.write("orders", FRAME, key=["id", "id"])
    assert not [*client.collections()]


def test_an_upsert_needs_a_key(client: persist.Client) -> None:
    with pytest.raises(persist.InvalidUsage, match=r"'x' has no key, by which rows could be replaced.*overwrite\(\)"):
        client.write("x", FRAME, key=[], mode="upsert")


def test_keys_that_are_all_columns_are_written_once(client: persist.Client) -> None:
    for _ in range(2):
        client.write("pairs", {"a": [1, 1], "b": [1, 2]}, key=["a", "b"]).result()
    assert client["pairs"].get([(1, 1), (1, 2)]).__len__() == 2
    with pytest.raises(persist.InvalidUsage, match="None in a tuple may mean"):
        client["pairs"].upsert([((1, 1), None)])


def test_a_first_write_with_a_key_refuses_rows_that_repeat_one_and_creates_nothing(client: persist.Client) -> None:
    twice = {"id": [1, 1], "status": ["new", "paid"]}
    with pytest.raises(persist.errors.DuplicateKeys, match="repeat keys, first of all 1"):
        client.write("orders", twice, key=["id"])
    assert client.collections() == []
    client.write("orders", twice, key=["id"], mode="append").result()
    assert client["orders"].snapshot().count() == 2


def test_updates_with_diffs_are_appended_whatever_the_key(client: persist.Client) -> None:
    for _ in range(2):
        client.write("orders", {"id": [1], "n": [1], "_diff": [1]}, key=["id"]).result()
    client.write("orders", [((1, 1), "2099-12-31", 1)], key=["id"], seal="2100-01-01", allow_future=True).result()
    assert client["orders"].snapshot().count() == 3
    with pytest.raises(persist.InvalidUsage, match="these have diffs"):
        client.write("orders", {"id": [1], "n": [1]}, diff=-1, mode="upsert")


def test_an_upsert_that_creates_takes_times_a_seal_and_a_token(client: persist.Client) -> None:
    for _ in range(2):
        client.write("orders", {"id": [1], "n": [1]}, key=["id"], time=3, seal=7, token="first").result()
    assert client["orders"].upper == 7
    assert client["orders"].snapshot(3).count() == 1
    with pytest.raises(persist.InvalidUsage, match="Leave seal out"):
        client.write("others", {"id": [1]}, key=["id"], seal="now")
    with pytest.raises(persist.InvalidUsage, match="an overwrite, which seals just after its time"):
        client.write("orders", {"id": [1], "n": [1]}, mode="overwrite", seal=9)


@pytest.mark.parametrize(
    "rows",
    [
        pl.from_pandas(FRAME),
        pl.from_pandas(FRAME).lazy(),
        pa.Table.from_pandas(FRAME),
        pa.Table.from_pandas(FRAME).to_batches()[0],
        FRAME.to_dict("list"),
        FRAME.to_dict("records"),
    ],
    ids=["polars", "lazy", "table", "batch", "columns", "dicts"],
)
def test_whatever_has_names_and_types_makes_a_collection(client: persist.Client, rows: Any) -> None:
    client.write("orders", rows, key=["id"]).result()
    assert client["orders"].snapshot().to_pandas().to_dict("list") == FRAME.to_dict("list")


def test_a_stream_makes_a_collection_and_loses_no_row(client: persist.Client) -> None:
    table = pa.Table.from_pandas(FRAME)
    client.write("reader", table.to_reader(), key=["id"]).result()
    client.write("dicts", (row for row in table.to_pylist()), key=["id"]).result()
    client.write("batches", iter(table.to_batches(max_chunksize=1)), key=["id"]).result()
    for name in ("reader", "dicts", "batches"):
        assert client[name].snapshot().to_arrow()["id"].to_pylist() == [1, 2]


def test_a_collection_without_a_key_has_to_be_asked_for(client: persist.Client) -> None:
    with pytest.raises(persist.InvalidUsage, match=r"no collection 'orders'.*key=\['id'\], or key=\[\] for none"):
        client.write("orders", FRAME)
    assert client.collections() == []
    client.write("orders", FRAME, key=[]).result()
    assert client["orders"].schema.key_names == ()


def test_what_has_no_names_makes_no_collection(client: persist.Client) -> None:
    wrong: Any
    with pytest.raises(persist.InvalidUsage, match=r"key='id' is one text: .* key=\['id'\]"):
        client.write("orders", FRAME, key="id")
    for wrong in ([(1, 2.0)], [], iter([]), 7, None):
        with pytest.raises(persist.InvalidUsage, match=r"has no columns with names: give a frame|give a dict"):
            client.write("orders", wrong, key=["id"])
    assert client.collections() == []


def test_times_are_moments_unless_the_writer_counts_them(client: persist.Client) -> None:
    before = datetime.now(UTC)
    client.write("moments", FRAME, key=["id"]).result()
    client.write("named", FRAME, key=["id"], time="2026-01-01", seal="2026-01-02").result()
    client.write("counted", FRAME, key=["id"], time=12, seal=13).result()
    client.write("column", FRAME.assign(at=[3, 4]), key=["id"], time="at", seal=5).result()
    client.write("updates", FRAME.assign(_time=[3, 4], _diff=1), key=["id"], seal=5).result()
    client.write("asked", FRAME, key=["id"], timeline="s").result()
    client.write("none", FRAME, key=["id"], timeline=None).result()
    units = {name: client[name].schema.timeline for name in client.collections()}
    assert units == {
        "asked": "s",
        "column": None,
        "counted": None,
        "moments": "ms",
        "named": "ms",
        "none": None,
        "updates": None,
    }
    upper = client["moments"].upper.time
    assert upper is not None
    assert upper >= int(before.timestamp() * 1000)


def test_what_is_there_keeps_its_key_and_its_timeline(client: persist.Client) -> None:
    client.write("orders", FRAME, key=["id"]).result()
    with pytest.raises(persist.errors.SchemaMismatch, match=r"key=\['status'\] is not the key .* which is \['id'\]"):
        client.write("orders", FRAME, key=["status"])
    with pytest.raises(persist.InvalidUsage, match=r"timeline='s' is not that .* which is 'ms'"):
        client.write("orders", FRAME, timeline="s", mode="append")
    assert client["orders"].snapshot().count() == 2


def test_a_frame_with_other_columns_is_refused_by_their_names(client: persist.Client) -> None:
    client.write("orders", FRAME, key=["id"]).result()
    for rows in (FRAME.assign(note="x"), FRAME.drop(columns="status"), FRAME.assign(amount="much")):
        named = next(iter({*FRAME.columns} ^ {*rows.columns}), "amount")
        with pytest.raises(persist.errors.SchemaMismatch, match=rf"'{named}'.*evolve\("):
            client.write("orders", rows, mode="append")
    client["orders"].evolve(add={"note": str})
    client.write("orders", FRAME.assign(note="x"), mode="append").result()
    assert client["orders"].snapshot().count() == 4


def test_a_frame_without_rows_makes_a_collection_that_can_be_read(client: persist.Client) -> None:
    client.write("orders", FRAME.head(0).astype({"status": "string"}), key=["id"]).result()
    orders = client["orders"]
    assert [str(kind) for kind in orders.schema.arrow.types[:3]] == ["int64", "string", "double"]
    assert orders.snapshot().count() == 0
    client.write("orders", FRAME, key=["id"]).result()
    assert orders.snapshot().count() == 2


def test_a_frame_without_rows_and_types_makes_none(client: persist.Client) -> None:
    with pytest.raises(persist.errors.SchemaMismatch, match="column 'id' has no rows, and no type"):
        client.write("orders", pd.DataFrame({"id": [], "amount": pd.Series([], dtype=float)}, dtype=object), key=["id"])
    assert client.collections() == []


UNTYPED: dict[str, Any] = {
    "mixed": pd.DataFrame({"id": [1, 2], "odd": pd.Series([1, "a"], dtype=object)}),
    "mixed dates": pd.DataFrame(
        {"id": [1, 2], "odd": pd.Series([dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 5)], dtype=object)}
    ),
    "twice": pd.DataFrame([[1, 2, 3]], columns=["id", "odd", "odd"]),
    "wide": pd.DataFrame({"id": [1, 2], "odd": pd.Series([2**70, 1], dtype=object)}),
    "complex": pd.DataFrame({"id": [1], "odd": [complex(1, 2)]}),
    "objects": pd.DataFrame({"id": [1], "odd": pd.Series([object()], dtype=object)}),
    "nested": pd.DataFrame({"id": [1], "odd": [[[1, 2], 3]]}),
    "int128": pl.DataFrame({"id": [1], "odd": pl.Series([2**100], dtype=pl.Int128)}),
    "lazy": pl.DataFrame({"id": [1], "odd": pl.Series([2**100], dtype=pl.Int128)}).lazy(),
    "dicts": [{"id": 1, "odd": 1}, {"id": 2, "odd": "a"}],
    "columns": {"id": [1, 2], "odd": [1, "a"]},
    "stream": iter([{"id": 1, "odd": 1}, {"id": 2, "odd": "a"}]),
}


@pytest.mark.parametrize("rows", UNTYPED.values(), ids=UNTYPED)
def test_a_frame_that_has_no_types_is_refused_by_its_column_and_creates_nothing(
    client: persist.Client, rows: Any
) -> None:
    with pytest.raises(persist.InvalidUsage, match="odd"):
        client.write("orders", rows, key=["id"]).result()
    assert client.collections() == []


@pytest.mark.parametrize("index", ["id", "note", ["id", "note"]], ids=str)
def test_a_named_index_of_pandas_is_a_column_of_what_is_created(client: persist.Client, index: Any) -> None:
    frame = pd.DataFrame({"id": [1, 2], "note": ["a", "b"], "n": [3, 4]})
    client.write("written", frame.set_index(index), key=["id"]).result()
    assert {*client.create_or_load("made", like=frame.set_index(index), key=["id"]).schema.names} >= {"id", "n"}
    assert client["written"].snapshot().to_arrow().select([*frame.columns]).to_pylist() == frame.to_dict("records")


def test_a_first_write_that_fails_creates_nothing() -> None:
    store = UnreliableBlob(persist.MemoryBlob())
    rows = pa.table({"id": range(10)})

    def cut_off() -> Iterator[pa.Table]:
        yield rows
        raise OSError("the source is gone")

    with persist.open(store, settings=tuned(background=False, retry_s=0.05, inline_bytes=0)) as client:
        with pytest.raises(OSError, match="the source is gone"):
            client.write("orders", cut_off(), key=["id"])
        for operation in ("set", "create"):
            store.script_faults(operation, *[Fault.UNAVAILABLE] * 1000)
        with pytest.raises(persist.Unavailable):
            client.write("orders", rows, key=["id"]).result()
        store.clear_faults()
        assert client.collections() == []
        client.write("orders", rows, key=["id"]).result()
        assert (client.seqno, len(client["orders"].snapshot().to_arrow())) == (0, 10)


def test_a_stream_that_another_client_came_before_is_refused_and_not_lost(client: persist.Client) -> None:
    def rows() -> Iterator[pa.Table]:
        yield pa.table({"id": [1]})
        with persist.open(client.engine.storage.blob) as other:
            other.write("orders", pa.table({"id": [7]}), key=["id"]).result()

    with pytest.raises(persist.errors.CollectionExists):
        client.write("orders", rows(), key=["id"])
    client.write("orders", rows(), key=["id"]).result()
    assert sorted(client["orders"].snapshot().to_arrow()["id"].to_pylist()) == [1, 7]


def test_two_clients_that_create_at_once_write_to_one_collection() -> None:
    blob, together = persist.MemoryBlob(), Barrier(2)

    def written(number: int) -> None:
        # The second has a narrower type, which fits what the first one creates, and the other way round.
        rows = pa.table(
            {"id": pa.array([number], pa.int64()), "n": pa.array([number], (pa.int64(), pa.int32())[number])}
        )
        with persist.open(blob) as client:
            for turn in range(10):
                together.wait()
                client.write(f"orders {turn}", rows, key=["id"]).result()

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(written, number) for number in range(2)]:
            done.result()
    with persist.open(blob, mode="read") as reader:
        for turn in range(10):
            assert sorted(reader[f"orders {turn}"].snapshot().to_arrow()["id"].to_pylist()) == [0, 1]


def test_who_only_reads_creates_nothing(client: persist.Client) -> None:
    client.write("orders", FRAME, key=["id"]).result()
    with persist.open(client.engine.storage.blob, mode="read") as reader, pytest.raises(persist.errors.ReadOnly):
        reader.write("others", FRAME, key=["id"])


def test_a_first_write_without_rows_keeps_its_token_its_message_and_its_seal(client: persist.Client) -> None:
    empty = pa.table({"id": pa.array([], pa.int64())})
    client.write("orders", empty, key=["id"], token="load 7", message="no orders yet").result()
    with pytest.raises(persist.errors.TokenReused):
        client.write("orders", pa.table({"id": [1]}), key=["id"], token="load 7").result()
    client.write("orders", empty, key=["id"], token="load 7", message="no orders yet").result()
    assert [row["message"] for row in client.history().to_pylist() if row["message"]] == ["no orders yet"]
    assert client["orders"].snapshot().count() == 0
    client.write("sealed", empty, key=["id"], timeline=None, seal=7).result()
    assert client["sealed"].upper == persist.Antichain(7)


def test_finding_a_collection_by_name_and_its_contents_is_one_look(
    client: persist.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upsert looks once more, for the rows of its keys."""
    looks: list[str] = []
    read_forward = Follower._read_forward

    def counted(follower: Follower) -> None:
        looks.append(threading.current_thread().name)
        read_forward(follower)

    client.write("looked", pa.table({"id": [1], "v": [1]}), key=["id"]).result()
    monkeypatch.setattr(Follower, "_read_forward", counted)
    client.write("looked", pa.table({"id": [1], "v": [2]}), key=["id"]).result()
    assert looks.count(threading.current_thread().name) <= 2
