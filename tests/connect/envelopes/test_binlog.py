"""Maxwell's and Canal's documented messages."""

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.connect.envelopes.binlog import to_arrow_type
from persist.errors import BadMessage, InvalidUsage
from persist.events import canal, maxwell

HEAD = {"database": "test", "table": "e", "ts": 1477053217, "xid": 23396, "commit": True, "server_id": 23042}
ROW = {"id": 1, "m": 4.2341, "c": "2016-10-21 05:33:37.523000", "comment": "I am a creature of light."}
LATER = {**ROW, "m": 5.444, "c": "2016-10-21 05:33:54.631000"}
INSERT = {**HEAD, "type": "insert", "data": ROW}
UPDATE = {**HEAD, "type": "update", "ts": 1477053234, "data": LATER, "old": {"m": 4.2341, "c": ROW["c"]}}
DELETE = {**HEAD, "type": "delete", "data": LATER}
TYPES = {"id": pa.int64(), "m": pa.float64(), "c": pa.timestamp("us"), "comment": pa.string()}
C1, C2 = datetime.datetime(2016, 10, 21, 5, 33, 37, 523000), datetime.datetime(2016, 10, 21, 5, 33, 54, 631000)

SCOOTER = {"id": "111", "name": "scooter", "description": "Big 2-wheel scooter", "weight": "5.18"}
CANAL: dict[str, Any] = {
    "data": [SCOOTER],
    "database": "inventory",
    "es": 1589373560000,
    "id": 9,
    "isDdl": False,
    "mysqlType": {"id": "INTEGER", "name": "VARCHAR(255)", "description": "VARCHAR(512)", "weight": "DOUBLE"},
    "old": [{"weight": "5.15"}],
    "pkNames": ["id"],
    "sql": "",
    "sqlType": {"id": 4, "name": 12, "description": 12, "weight": 7},
    "table": "products",
    "ts": 1589373560798,
    "type": "UPDATE",
}


def texts(*messages: Any) -> list[str]:
    return [json.dumps(message) for message in messages]


def test_maxwells_documented_messages_become_what_they_say() -> None:
    table = maxwell(texts(INSERT, UPDATE, DELETE), key="id", schema=TYPES, time="ts").table
    assert table.to_pylist() == [
        {**ROW, "c": C1, "_time": 1477053217, "_deleted": False},
        {**LATER, "c": C2, "_time": 1477053234, "_deleted": False},
        {"id": 1, "m": None, "c": None, "comment": None, "_time": 1477053217, "_deleted": True},
    ]


def test_maxwells_bootstrap_is_inserts_between_two_messages_that_say_nothing() -> None:
    ends = [{**HEAD, "type": f"bootstrap-{what}", "data": {}} for what in ("start", "complete")]
    messages = texts(ends[0], {**INSERT, "type": "bootstrap-insert"}, ends[1])
    assert maxwell(messages, key="id").table["id"].to_pylist() == [1]


def test_maxwell_may_name_the_columns_of_the_key() -> None:
    named = {**INSERT, "primary_key": [1, ROW["c"]], "primary_key_columns": ["id", "c"]}
    assert maxwell(texts(named)).table.column_names[:2] == ["id", "c"]
    with pytest.raises(InvalidUsage, match="primary_key_columns"):
        maxwell(texts(INSERT))


def test_an_update_of_the_key_deletes_the_old_one_first() -> None:
    moved = {**UPDATE, "data": {**LATER, "id": 2}, "old": {"id": 1}}
    table = maxwell(texts(INSERT, moved), key="id", metadata={"xid": "xid"}).table
    assert table.select(["id", "_deleted", "xid"]).to_pylist() == [
        {"id": 1, "_deleted": False, "xid": 23396},
        {"id": 1, "_deleted": True, "xid": 23396},
        {"id": 2, "_deleted": False, "xid": 23396},
    ]


def test_messages_of_other_tables_are_passed_over_whatever_their_columns_are() -> None:
    other = {**INSERT, "table": "f", "data": {"id": "text", "m": []}}
    messages = texts(INSERT, other, {**HEAD, "type": "table-alter", "table": "f", "def": {}})
    for name in ("e", "test.e"):
        assert maxwell(messages, key="id", schema=TYPES, table=name).table["id"].to_pylist() == [1]
    with pytest.raises(InvalidUsage, match=r"of the tables test\.e, test\.f"):
        maxwell(messages, key="id")


def test_a_message_that_names_no_table_is_of_none() -> None:
    nowhere = {key: value for key, value in INSERT.items() if key not in ("table", "database")}
    later = {**INSERT, "data": {**ROW, "id": 2}}
    assert maxwell(texts(nowhere, later), key="id", schema=TYPES, table="e").table["id"].to_pylist() == [2]


class _Array:
    """What another library may give: nothing of PyArrow's."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        return self._batch.__arrow_c_array__()


def test_messages_may_come_as_tables_and_batches_one_after_the_other() -> None:
    some = [pa.table({"value": texts({**INSERT, "data": {**ROW, "id": at}})}) for at in range(3)]
    [batch] = some[1].to_batches()
    reader = pa.RecordBatchReader.from_batches(batch.schema, [batch])
    for given in ([some[0], batch, some[2]], [batch], [some[2]], batch, reader, _Array(batch)):
        wanted = [0, 1, 2] if isinstance(given, list) and len(given) == 3 else [2 if given == [some[2]] else 1]
        assert maxwell(given, key="id", schema=TYPES).table["id"].to_pylist() == wanted


def test_a_text_that_is_no_base64_is_shown() -> None:
    schema = {"id": pa.int64(), "b": pa.binary()}
    for text in ("AQ", "A=Q=", "====", "AQ*="):
        messages = texts(*({**INSERT, "data": {"id": at, "b": b}} for at, b in enumerate((None, text))))
        with pytest.raises(BadMessage, match="is not base64"):
            maxwell(messages, key="id", schema=schema)


def test_bytes_of_maxwell_are_base64() -> None:
    message = {**INSERT, "data": {"id": 1, "b": "AQI="}}
    table = maxwell(texts(message), key="id", schema={"id": pa.int64(), "b": pa.binary()}).table
    assert table["b"].to_pylist() == [b"\x01\x02"]


def test_tinyints_may_be_booleans() -> None:
    messages = texts(*({**INSERT, "data": {"id": i, "b": b}} for i, b in enumerate((0, 1, None))))
    schema = {"id": pa.int64(), "b": pa.bool_()}
    assert maxwell(messages, key="id", schema=schema).table["b"].to_pylist() == [False, True, None]
    two = texts({**INSERT, "data": {"id": 1, "b": 2}})
    with pytest.raises(BadMessage, match="other than 0 and 1"):
        maxwell(two, key="id", schema=schema)


def test_canals_documented_message_becomes_what_it_says() -> None:
    events = canal(texts(CANAL), time="es")
    assert events.table.to_pylist() == [
        {
            "id": 111,
            "name": "scooter",
            "description": "Big 2-wheel scooter",
            "weight": 5.18,
            "_time": 1589373560000,
            "_deleted": False,
        }
    ]


def test_each_row_of_a_message_of_canal_is_an_event() -> None:
    second = {**SCOOTER, "id": "112", "weight": None}
    insert = {**CANAL, "type": "INSERT", "old": None, "data": [SCOOTER, second]}
    moved = {**CANAL, "data": [SCOOTER, {**second, "id": "113"}], "old": [{"weight": "1"}, {"id": "112"}]}
    delete = {**CANAL, "type": "DELETE", "old": None, "data": [SCOOTER, {**second, "id": "113"}]}
    table = canal(texts(insert, moved, delete)).table
    assert [(row["id"], row["_deleted"]) for row in table.to_pylist()] == [
        (111, False),
        (112, False),
        (111, False),
        (112, True),
        (113, False),
        (111, True),
        (113, True),
    ]


def test_what_changes_no_rows_is_refused_and_a_watermark_is_not() -> None:
    ddl = {**CANAL, "type": "CREATE", "isDdl": True, "data": None, "sql": "create table x (id int)"}
    watermark = {**CANAL, "type": "TIDB_WATERMARK", "data": None}
    events = canal(texts(CANAL, ddl, watermark, CANAL | {"data": None}), on_error="collect")
    assert len(events) == 1
    reasons = events.rejected["reason"].to_pylist()
    assert events.rejected["message"].to_pylist() == [1, 3]
    assert "'CREATE'" in reasons[0]
    assert "no rows" in reasons[1]


def test_old_rows_that_are_not_as_many_as_rows_are_refused() -> None:
    with pytest.raises(BadMessage, match="not as many"):
        canal(texts({**CANAL, "old": [{}, {}]}))


def test_text_of_canal_is_read_as_the_types_of_mysql() -> None:
    kinds = {
        "id": "bigint(20) unsigned",
        "price": "decimal(10,2)",
        "at": "datetime(6)",
        "day": "date",
        "flag": "tinyint(1)",
        "blob": "varbinary(16)",
        "span": "time",
    }
    row = {
        "id": "18446744073709551615",
        "price": "-3.50",
        "at": "2020-02-03 04:05:06.789000",
        "day": "2020-02-03",
        "flag": "1",
        "blob": "a\u00e9\u0000",
        "span": "-101:00:00",
    }
    (event,) = canal(texts({**CANAL, "mysqlType": kinds, "data": [row], "old": None})).table.to_pylist()
    assert event == {
        "id": 2**64 - 1,
        "price": Decimal("-3.50"),
        "at": datetime.datetime(2020, 2, 3, 4, 5, 6, 789000),
        "day": datetime.date(2020, 2, 3),
        "flag": 1,
        "blob": b"a\xe9\x00",
        "span": "-101:00:00",
        "_deleted": False,
    }


def test_a_schema_overrules_the_types_of_mysql_and_its_zero_dates_are_bad() -> None:
    schema = {"id": pa.string(), "weight": pa.decimal128(6, 3)}
    assert canal(texts(CANAL), schema=schema).table["weight"].to_pylist() == [Decimal("5.180")]
    zero = {**CANAL, "data": [{"id": "1", "weight": "0000-00-00"}], "old": None}
    with pytest.raises(BadMessage, match="0000-00-00"):
        canal(texts(zero), schema={"id": pa.int64(), "weight": pa.date32()})


def test_messages_without_a_type_or_value_are_named() -> None:
    events = maxwell(["{}", None, *texts(INSERT)], key="id", on_error="collect")
    assert events.rejected["message"].to_pylist() == [0, 1]
    assert len(events) == 1


@pytest.mark.parametrize(
    ("mysql", "arrow"),
    [
        ("int(11)", pa.int32()),
        ("INT UNSIGNED", pa.uint32()),
        ("decimal", pa.decimal128(38, 18)),
        ("decimal(5)", pa.decimal128(5, 0)),
        ("decimal(38,2)", pa.decimal128(38, 2)),
        ("decimal(39,2)", pa.decimal256(39, 2)),
        ("decimal(65,30)", pa.decimal256(65, 30)),
        ("enum('a(b','c')", pa.string()),
        ("longblob", pa.binary()),
        ("year", pa.int16()),
        ("", pa.string()),
    ],
)
def test_types_of_mysql_have_types_of_arrow(mysql: str, arrow: pa.DataType) -> None:
    assert to_arrow_type(mysql) == arrow


def test_a_column_that_is_null_in_all_messages_of_a_call_refuses_none_of_them() -> None:
    row = {"id": 1, "note": None, "tags": [None], "at": {"city": None}}
    table = maxwell(texts({**INSERT, "data": row}, {**DELETE, "data": row}), key="id").table
    assert table.to_pylist() == [
        {**row, "_deleted": False},
        {"id": 1, "note": None, "tags": None, "at": None, "_deleted": True},
    ]
    assert table.schema.field("note").type == pa.null()


def test_events_with_a_column_that_is_null_in_all_of_them_are_upserted() -> None:
    with persist.open("memory://null-columns") as client:
        notes = client.create_or_load("notes", key={"id": int}, value={"note": str}, keyed=persist.Keyed())
        notes.upsert(maxwell(texts({**INSERT, "data": {"id": 1, "note": None}}), key="id"), time=0, seal=1).result()
        assert notes.snapshot().to_arrow().to_pylist() == [{"id": 1, "note": None}]


def test_canals_empty_list_of_old_rows_says_that_there_are_none() -> None:
    insert = {**CANAL, "type": "INSERT", "old": []}
    assert canal(texts(insert, CANAL)).table["weight"].to_pylist() == [5.18, 5.18]


def test_canals_decimals_without_a_precision_keep_their_digits() -> None:
    typed = {**CANAL, "mysqlType": {**CANAL["mysqlType"], "weight": "decimal"}}
    assert canal(texts(typed)).table["weight"].to_pylist() == [Decimal("5.18")]


def test_the_rows_that_canal_sends_first_are_there() -> None:
    table = canal(texts({**CANAL, "type": "INIT", "old": None}, {**CANAL, "type": "DELETE", "old": None})).table
    assert table["_deleted"].to_pylist() == [False, True]


@pytest.mark.parametrize("kind", [pa.int64(), "int64", int, pa.field("id", pa.int64())])
def test_a_schema_of_messages_is_given_as_that_of_a_collection_is(kind: Any) -> None:
    assert maxwell(texts(INSERT), key="id", schema={"id": kind}).table.schema.field("id").type == pa.int64()


def test_what_is_no_schema_of_messages_is_named() -> None:
    for schema in ("id", {"id": "integre"}, {"id": object}):
        with pytest.raises(InvalidUsage, match="schema"):
            maxwell(texts(INSERT), key="id", schema=schema)
