"""Debezium's documented messages, with and without their schema part, and all that may be wrong with them."""

import base64
import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.connect.envelopes import Unreadable
from persist.connect.envelopes.messages import _check_time_of_day, _convert_column, to_decimals
from persist.errors import BadMessage, InvalidUsage
from persist.events import debezium, plain

ANNE = {"id": 1004, "first_name": "Anne", "last_name": "Kretchmar", "email": "annek@noanswer.org"}
MARIE = {**ANNE, "first_name": "Anne Marie"}
MYSQL = {"version": "2.7.0.Final", "connector": "mysql", "name": "mysql-server-1", "db": "inventory"}
CREATE = {"before": None, "after": ANNE, "source": {**MYSQL, "ts_ms": 0, "pos": 154}, "op": "c", "ts_ms": 1465491411815}
UPDATE = {
    "before": ANNE,
    "after": MARIE,
    "source": {**MYSQL, "ts_ms": 7, "pos": 484},
    "op": "u",
    "ts_ms": 1465581029523,
}
DELETE = {
    "before": MARIE,
    "after": None,
    "source": {**MYSQL, "ts_ms": 9, "pos": 805},
    "op": "d",
    "ts_ms": 1465581902461,
}
READ = {**CREATE, "op": "r"}
FIELDS: list[dict[str, Any]] = [
    {"type": "int32", "optional": False, "field": "id"},
    *({"type": "string", "optional": False, "field": name} for name in ("first_name", "last_name", "email")),
]
SCHEMA = pa.schema(
    [("id", pa.int64()), ("first_name", pa.string()), ("last_name", pa.string()), ("email", pa.string())]
)


def envelope_schema(fields: list[dict[str, Any]]) -> dict[str, Any]:
    rows = [{"type": "struct", "fields": fields, "optional": True, "field": name} for name in ("before", "after")]
    ends = [{"type": "string", "optional": False, "field": "op"}, {"type": "int64", "optional": True, "field": "ts_ms"}]
    return {"type": "struct", "fields": [*rows, *ends], "optional": False, "name": "Envelope"}


def with_schema(message: Any, fields: list[dict[str, Any]] = FIELDS) -> dict[str, Any]:
    return {"schema": envelope_schema(fields), "payload": message}


def key_of(number: int) -> str:
    schema = {"type": "struct", "fields": [{"field": "id", "type": "int32"}], "optional": False, "name": "Key"}
    return json.dumps({"schema": schema, "payload": {"id": number}})


def one_column(kind: dict[str, Any], *values: Any, **options: Any) -> pa.Array:
    """Return what values become in a column that a message's schema describes."""
    fields = [{"type": "int32", "field": "id"}, {**kind, "field": "x", "optional": True}]
    messages = [
        json.dumps(with_schema({"before": None, "after": {"id": i, "x": v}, "op": "c"}, fields))
        for i, v in enumerate(values)
    ]
    return debezium(messages, key="id", **options).table["x"].combine_chunks()


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("wrapped", [True, False])
def test_the_documented_events_become_what_they_say(wrapped: bool, indent: int | None) -> None:
    wrap = with_schema if wrapped else lambda message: message
    values = [json.dumps(wrap(message), indent=indent) for message in (READ, CREATE, UPDATE, DELETE)]
    events = debezium(pa.table({"key": [key_of(1004)] * 5, "value": [*values, None]}), schema=SCHEMA)
    gone = dict.fromkeys(ANNE) | {"id": 1004, "_deleted": True}
    live = {"_deleted": False}
    assert events.table.to_pylist() == [{**ANNE, **live}, {**ANNE, **live}, {**MARIE, **live}, gone, gone]
    assert events.rejected.num_rows == 0


def test_events_are_arrow_so_that_they_can_be_written_as_they_are() -> None:
    events = debezium([json.dumps(CREATE)], key="id", schema=SCHEMA)
    assert pa.table(events).equals(events.table)
    assert len(events) == 1


def test_the_schema_part_says_the_types_and_the_key_message_names_the_key() -> None:
    value = json.dumps(with_schema({**CREATE, "after": {**ANNE, "id": 7}}))
    table = debezium(pa.table({"key": [key_of(7)], "value": [value]})).table
    assert table.schema.field("id").type == pa.int32()
    assert table.column_names == ["id", "first_name", "last_name", "email", "_deleted"]


def test_bytes_of_a_kafka_consumer_with_its_other_columns_are_taken() -> None:
    batch = pa.record_batch(
        {
            "topic": ["t", "t"],
            "offset": pa.array([41, 42], pa.int64()),
            "key": pa.array([b'{"id":1004}'] * 2, pa.binary()),
            "value": pa.array([json.dumps(CREATE).encode(), None], pa.binary()),
        }
    )
    table = debezium(batch, schema=SCHEMA, time="offset", metadata={"offset": "offset"}).table
    assert table["_time"].to_pylist() == [41, 42]
    assert table["offset"].to_pylist() == [41, 42]


def test_a_value_without_a_key_column_names_its_key_by_an_option() -> None:
    table = debezium([json.dumps(DELETE)], key=["id"], schema=SCHEMA).table
    assert table.to_pylist() == [dict.fromkeys(ANNE) | {"id": 1004, "_deleted": True}]


def test_a_key_that_is_a_bare_value_is_the_one_column_of_the_key() -> None:
    messages = pa.table(
        {"key": ["1004", '{"schema":{"type":"int32"},"payload":7}'], "value": [json.dumps(CREATE), None]}
    )
    assert debezium(messages, key="id", schema=SCHEMA).table["id"].to_pylist() == [1004, 7]


def test_a_tombstone_may_be_wrapped_or_passed_over() -> None:
    wrapped = '{"schema":null,"payload":null}'
    messages = pa.table({"key": [key_of(1), key_of(2)], "value": [wrapped, None]})
    assert debezium(messages).table.to_pylist() == [{"id": 1, "_deleted": True}, {"id": 2, "_deleted": True}]
    assert len(debezium(messages, tombstones="skip")) == 0


def test_times_and_metadata_come_from_paths_of_the_message() -> None:
    values = [json.dumps(CREATE), json.dumps(DELETE)]
    table = debezium(values, key="id", schema=SCHEMA, time="source.ts_ms", metadata={"pos": "source.pos"}).table
    assert table["_time"].to_pylist() == [0, 9]
    assert table["pos"].to_pylist() == [154, 805], "a deletion has its watermark, too"


def test_a_tombstone_has_no_time_of_its_own() -> None:
    messages = pa.table({"key": [key_of(1)], "value": pa.nulls(1, pa.string())})
    with pytest.raises(BadMessage, match='tombstones="skip"'):
        debezium(messages, time="ts_ms")


def test_an_update_that_changes_the_key_deletes_the_old_one_first() -> None:
    moved = {**UPDATE, "after": {**MARIE, "id": 1005}}
    table = debezium([json.dumps(CREATE), json.dumps(moved)], key="id", schema=SCHEMA, time="ts_ms").table
    assert table.select(["id", "_deleted"]).to_pylist() == [
        {"id": 1004, "_deleted": False},
        {"id": 1004, "_deleted": True},
        {"id": 1005, "_deleted": False},
    ]
    assert table["_time"].to_pylist()[1:] == [UPDATE["ts_ms"]] * 2


def test_where_messages_have_keys_a_changed_key_deletes_nothing_by_itself() -> None:
    moved = {**UPDATE, "after": {**MARIE, "id": 1005}}
    messages = pa.table({"key": [key_of(1005)], "value": [json.dumps(moved)]})
    assert debezium(messages, schema=SCHEMA).table.select(["id", "_deleted"]).to_pylist() == [
        {"id": 1005, "_deleted": False}
    ]


def test_a_row_of_which_a_part_of_the_key_is_not_known_before_deletes_nothing() -> None:
    schema = {"a": int, "b": int, "v": int}
    values = [
        '{"op": "u", "before": {"a": 1, "b": null, "v": 5}, "after": {"a": 2, "b": 3, "v": 5}}',
        '{"op": "u", "before": {"a": 2, "b": 3, "v": 5}, "after": {"a": 2, "b": 4, "v": 5}}',
    ]
    table = debezium(values, key=["a", "b"], schema=schema).table
    assert [(row["a"], row["b"], row["_deleted"]) for row in table.to_pylist()] == [
        (2, 3, False),
        (2, 3, True),
        (2, 4, False),
    ]


def test_the_row_says_the_key_where_the_message_has_none() -> None:
    messages = pa.table({"key": [key_of(1004), None], "value": [json.dumps(CREATE), json.dumps(CREATE)]})
    assert debezium(messages, key="id", schema=SCHEMA).table["id"].to_pylist() == [1004, 1004]


def test_a_decimal_whose_first_byte_is_the_least_one_is_negative() -> None:
    values = pa.array([b"\x80", b"\x7f", None, b"\xff\x7f"], pa.large_binary())
    numbers = to_decimals(values, pa.decimal128(5, 1)).to_pylist()
    assert numbers == [Decimal("-12.8"), Decimal("12.7"), None, Decimal("-12.9")]


def test_what_cannot_be_read_is_said_with_its_column() -> None:
    with pytest.raises(Unreadable, match="in column 'n': "):
        _convert_column("n", lambda column: column.cast(pa.int8()), pa.array([300]))


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_bytes_that_were_left_out_are_told_from_bytes_that_are_there(kind: pa.DataType) -> None:
    schema = pa.schema([("id", pa.int64()), ("blob", kind)])
    left_out = base64.b64encode(b"__debezium_unavailable_value").decode()
    for op, before in (("c", False), ("r", False), ("u", True)):
        with pytest.raises(BadMessage, match="'blob' holds a large value that did not change"):
            message = json.dumps({"op": op, "after": {"id": 1, "blob": left_out}})
            debezium([message], key="id", schema=schema, before=before)
    (row,) = debezium(
        [json.dumps({"op": "c", "after": {"id": 1, "blob": "AQI="}})], key="id", schema=schema
    ).table.to_pylist()
    assert row["blob"] == b"\x01\x02"


MARK = "__debezium_unavailable_value"
PLACEHOLDERS = {  # As UnchangedToastedPlaceholder of the connector makes them: the type in Postgres, and here.
    "text": (pa.string(), MARK),
    "bytea": (pa.binary(), base64.b64encode(MARK.encode()).decode()),
    "bytea, hexadecimal": (pa.string(), MARK.encode().hex()),
    "bytea, base64 as text": (pa.large_string(), base64.b64encode(MARK.encode()).decode()),
    "hstore": (pa.struct([("a", pa.string())]), {MARK: MARK}),
    "hstore as JSON": (pa.string(), json.dumps({MARK: MARK})),
    "text[]": (pa.list_(pa.string()), [MARK]),
    "timestamptz[]": (pa.list_(pa.timestamp("us", "UTC")), [MARK]),
    "bytea[]": (pa.list_(pa.binary()), [base64.b64encode(MARK.encode()).decode()]),
    "uuid[]": (pa.list_(pa.string()), ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),
    "smallint[]": (pa.list_(pa.int16()), list(MARK.encode())),
    "date[]": (pa.list_(pa.int32()), list(MARK.encode())),
    "real[]": (pa.list_(pa.float32()), [float(byte) for byte in MARK.encode()]),
    "numeric(9, 2)[], as numbers": (pa.list_(pa.decimal128(9, 2)), [byte / 100 for byte in MARK.encode()]),
    "numeric(9, 2)[]": (pa.list_(pa.string()), [base64.b64encode(bytes([byte])).decode() for byte in MARK.encode()]),
    "numeric[]": (
        pa.list_(pa.struct([("scale", pa.int32()), ("value", pa.string())])),
        [{"scale": 0, "value": base64.b64encode(bytes([byte])).decode()} for byte in MARK.encode()],
    ),
    "boolean[]": (pa.list_(pa.bool_()), [True] * len(MARK)),
}


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("kind", PLACEHOLDERS)
@pytest.mark.parametrize("shape", ["schema", "shown", "described", "spaced", "unwrapped"])
def test_a_placeholder_leaves_the_value_as_it_is_whatever_its_type(kind: str, shape: str) -> None:
    arrow, placeholder = PLACEHOLDERS[kind]
    if shape == "unwrapped" and kind == "boolean[]":
        return  # A row without an envelope may hold such flags.
    row = {"id": 1, "v": placeholder}
    message: Any = row if shape == "unwrapped" else {"op": "u", "before": None, "after": row, "source": {"lsn": 9}}
    if shape == "described":
        message = with_schema(message, [*FIELDS[:1], {"type": "string", "field": "v"}])
    text = json.dumps(message, indent=1 if shape == "spaced" else None)
    schema = None if shape == "shown" else {"id": pa.int64(), "v": arrow}
    read = plain if shape == "unwrapped" else debezium
    events = read([text], key="id", schema=schema, on_error="collect")
    assert events.table.select(["id", "_deleted", "_unchanged"]).to_pylist() == [
        {"id": 1, "_deleted": False, "_unchanged": ["v"]}
    ]
    if read is plain:
        assert "'v' holds a large value" in plain([text], on_error="collect").rejected["reason"][0].as_py()


def test_what_only_resembles_a_placeholder_is_a_value() -> None:
    numbers = list(MARK.encode())
    values = [numbers[:-1], [*numbers, 1], [2 * byte for byte in numbers], [1] * 28, [95, 95, 100]]
    schema = {"id": pa.int64(), "v": pa.list_(pa.int64()), "t": pa.string()}
    for number, value in enumerate(values):
        row = {"id": number, "v": value, "t": f"see {MARK}", "left out": MARK}
        message = json.dumps({"op": "u", "before": {"id": number, "t": MARK}, "after": row})
        (event,) = debezium([message], key="id", schema=schema).table.to_pylist()
        assert (event["v"], event["t"]) == (value, f"see {MARK}")
    row = {"id": 1, "v": [True] * 28}
    (event,) = plain([json.dumps(row)], key="id").table.to_pylist()
    assert event["v"] == [True] * 28


@pytest.mark.parametrize("read", [debezium, plain])
def test_messages_with_placeholders_are_set_aside_alone_if_that_is_wanted(read: Any) -> None:
    rows = [{"id": 1, "v": "a"}, {"id": 2, "v": MARK}, {"id": 3, "v": "c"}]
    messages = [json.dumps(row if read is plain else {"op": "u", "after": row}) for row in rows]
    events = read(messages, key="id", unchanged="refuse", on_error="collect")
    assert events.table.to_pylist() == [{"id": 1, "v": "a", "_deleted": False}, {"id": 3, "v": "c", "_deleted": False}]
    assert events.rejected["message"].to_pylist() == [1]
    assert "'v' holds a large value" in events.rejected["reason"][0].as_py()
    with pytest.raises(InvalidUsage, match="unchanged='drop' is not one of"):
        read(messages, key="id", unchanged="drop")


@pytest.mark.parametrize("apart", [False, True])
def test_a_change_of_the_key_cannot_leave_values_as_they_are(apart: bool) -> None:
    changes = [({"id": 1}, 9, MARK), ({"id": 2}, 2, MARK), (None, 3, MARK), ({"id": 4}, 8, "v"), ({}, 5, MARK)]
    values = [json.dumps({"op": "u", "before": before, "after": {"id": id_, "v": v}}) for before, id_, v in changes]
    messages = pa.table({"key": [json.dumps({"id": id_}) for _, id_, _ in changes], "value": values})
    events = debezium(messages if apart else values, key="id", on_error="collect")
    assert events.rejected["message"].to_pylist() == [0]
    assert "'v' holds a large value" in events.rejected["reason"][0].as_py()
    kept = [row["id"] for row in events.table.to_pylist() if not row["_deleted"]]
    assert kept == [2, 3, 8, 5]


def test_a_message_with_a_placeholder_says_nothing_about_types() -> None:
    messages = [json.dumps({"op": "u", "after": {"id": 1, "v": v}}) for v in ({MARK: MARK}, {"a": "x"}, [MARK])]
    events = debezium(messages, key="id", on_error="collect")
    assert events.table.select(["id", "v"]).to_pylist() == [{"id": 1, "v": v} for v in (None, {"a": "x"}, None)]
    assert events.table["_unchanged"].to_pylist() == [["v"], None, ["v"]]


def test_the_row_before_a_change_is_there_if_asked_for() -> None:
    values = [json.dumps(message) for message in (CREATE, UPDATE, DELETE)]
    table = debezium(values, key="id", schema=SCHEMA, before=True).table
    rest = {name: value for name, value in ANNE.items() if name != "id"}
    assert table["_before"].to_pylist() == [None, rest, {**rest, "first_name": "Anne Marie"}]


def test_columns_that_the_schema_does_not_have_are_left_out_and_missing_ones_are_null() -> None:
    schema = {"id": pa.int64(), "first_name": pa.string(), "added_later": pa.float64()}
    table = debezium([json.dumps(with_schema(CREATE)), json.dumps(CREATE)], key="id", schema=schema).table
    assert table.to_pylist() == [{"id": 1004, "first_name": "Anne", "added_later": None, "_deleted": False}] * 2


def test_a_table_that_was_altered_gives_messages_of_two_schemas_in_one_batch() -> None:
    altered: list[dict[str, Any]] = [
        *FIELDS,
        {"type": "int64", "optional": True, "field": "added", "name": "io.debezium.time.Timestamp"},
    ]
    values = [
        json.dumps(with_schema(CREATE)),
        json.dumps(with_schema({**UPDATE, "after": {**MARIE, "added": 86_400_000}}, altered)),
        json.dumps(with_schema(CREATE)),
    ]
    table = debezium(values, key="id").table
    assert table["first_name"].to_pylist() == ["Anne", "Anne Marie", "Anne"]
    assert table["added"].to_pylist() == [None, datetime.datetime(1970, 1, 2), None]


@pytest.mark.parametrize("is_list", [False, True])
def test_a_struct_that_was_altered_gives_messages_of_two_schemas_in_one_batch(is_list: bool) -> None:
    def make_message(id_: int, value: dict[str, Any]) -> str:
        struct = {"type": "struct", "fields": [{"type": "int32", "field": name} for name in value]}
        kind = {"type": "array", "items": struct} if is_list else struct
        fields: list[dict[str, Any]] = [{"type": "int32", "field": "id"}, {**kind, "field": "v", "optional": True}]
        row = {"id": id_, "v": [value, None] if is_list else value}
        return json.dumps(with_schema({"before": None, "after": row, "op": "c"}, fields))

    messages = [make_message(1, {"a": 1}), make_message(2, {"b": 2, "a": 1}), make_message(3, {"b": 3})]
    values = debezium(messages, key="id").table["v"].to_pylist()
    structs = [value[0] if is_list else value for value in values]
    assert structs == [{"a": 1, "b": None}, {"a": 1, "b": 2}, {"a": None, "b": 3}]


def test_a_payload_is_found_after_its_schema_though_the_schema_has_the_same_text() -> None:
    fields = [{"type": "string", "field": "id", "optional": True}]
    schema = {"type": "struct", "fields": fields, "optional": True, "default": None}
    texts = [json.dumps({"schema": schema, "payload": None}), json.dumps(with_schema(CREATE))]
    messages = pa.table({"key": [key_of(1), key_of(1004)], "value": texts})
    table = debezium(messages, schema=SCHEMA).table
    assert table.select(["id", "_deleted"]).to_pylist() == [
        {"id": 1, "_deleted": True},
        {"id": 1004, "_deleted": False},
    ]


def test_sorted_members_put_the_payload_before_the_schema() -> None:
    table = debezium([json.dumps(with_schema(m), sort_keys=True) for m in (CREATE, UPDATE)], key="id").table
    assert table["first_name"].to_pylist() == ["Anne", "Anne Marie"]
    assert table.schema.field("id").type == pa.int32()


DAY = 17_425  # 2017-09-16
MICROS = 37_000_123
NOON = datetime.datetime(2018, 6, 20, 13, 37, 3, 123456)
LOGICAL = [
    ("io.debezium.time.Date", "int32", DAY, datetime.date(2017, 9, 16)),
    ("org.apache.kafka.connect.data.Date", "int32", DAY, datetime.date(2017, 9, 16)),
    ("io.debezium.time.Time", "int32", 37_000, datetime.time(0, 0, 37)),
    ("org.apache.kafka.connect.data.Time", "int32", 37_000, datetime.time(0, 0, 37)),
    ("io.debezium.time.MicroTime", "int64", MICROS, datetime.time(0, 0, 37, 123)),
    ("io.debezium.time.NanoTime", "int64", MICROS * 1000, datetime.time(0, 0, 37, 123)),
    ("io.debezium.time.Timestamp", "int64", 1529501823123, NOON.replace(microsecond=123000)),
    ("org.apache.kafka.connect.data.Timestamp", "int64", 1529501823123, NOON.replace(microsecond=123000)),
    ("io.debezium.time.MicroTimestamp", "int64", 1529501823123456, NOON),
    ("io.debezium.time.NanoTimestamp", "int64", 1529501823123456000, NOON),
    ("io.debezium.time.ZonedTimestamp", "string", "2018-06-20T13:37:03.123456Z", NOON.replace(tzinfo=datetime.UTC)),
    (
        "io.debezium.time.ZonedTimestamp",
        "string",
        "2018-06-20T13:37:03Z",
        NOON.replace(microsecond=0, tzinfo=datetime.UTC),
    ),
    ("io.debezium.time.ZonedTime", "string", "10:00:00Z", "10:00:00Z"),
    ("io.debezium.time.MicroDuration", "int64", 5_000_000, datetime.timedelta(seconds=5)),
    ("io.debezium.time.Year", "int32", 2018, 2018),
    ("io.debezium.data.Json", "string", '{"a":1}', '{"a":1}'),
    ("io.debezium.data.Enum", "string", "red", "red"),
    ("io.debezium.data.Uuid", "string", "5a1c", "5a1c"),
    ("io.debezium.data.Bits", "bytes", "AQI=", b"\x01\x02"),
    ("", "boolean", True, True),
    ("", "int16", 7, 7),
    ("", "double", 0.1, 0.1),
    ("", "bytes", "", b""),
]


@pytest.mark.parametrize(("name", "kind", "sent", "meant"), LOGICAL, ids=lambda v: str(v)[-24:])
def test_a_logical_type_is_read_as_debezium_documents_it(name: str, kind: str, sent: Any, meant: Any) -> None:
    column = one_column({"type": kind, "name": name, "version": 1}, None, sent)
    stored = column.cast(pa.time64("us")) if pa.types.is_time(column.type) else column
    stored = stored.cast(pa.timestamp("us")) if column.type == pa.timestamp("ns") else stored
    assert stored.to_pylist() == [None, meant]


def test_a_decimal_is_base64_of_its_unscaled_value_or_a_number() -> None:
    kind = {
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "5", "connect.decimal.precision": "12"},
    }
    column = one_column(kind, "D3J5", None, "AA==", "8I2H")
    assert column.type == pa.decimal128(12, 5)
    assert column.to_pylist() == [Decimal("10.12345"), None, Decimal("0.00000"), Decimal("-10.12345")]
    assert one_column(kind, 10.12345, 7).to_pylist() == [Decimal("10.12345"), Decimal("7.00000")]
    narrow = {"id": pa.int64(), "x": pa.decimal128(7, 5)}
    assert one_column(kind, "D3J5", schema=narrow).to_pylist() == [Decimal("10.12345")]


@given(st.lists(st.none() | st.integers(-(10**30), 10**30), min_size=1, max_size=20))
def test_any_unscaled_value_survives_its_way_through_base64(values: list[int | None]) -> None:
    def sent(value: int) -> str:
        return base64.b64encode(value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)).decode()

    kind = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "0"}}
    column = one_column(kind, *(None if v is None else sent(v) for v in values))
    assert column.to_pylist() == [None if v is None else Decimal(v) for v in values]


def test_decimals_of_any_scale_need_a_type_from_the_caller() -> None:
    fields = [{"type": "int32", "field": "scale"}, {"type": "bytes", "field": "value"}]
    kind = {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal", "fields": fields}
    values = [{"scale": 5, "value": "D3J5"}, None, {"scale": 0, "value": "Bw=="}]
    with pytest.raises(InvalidUsage, match="give it a decimal type in the schema"):
        one_column(kind, *values)
    schema = {"id": pa.int64(), "x": pa.decimal128(20, 6)}
    assert one_column(kind, *values, schema=schema).to_pylist() == [Decimal("10.123450"), None, Decimal("7.000000")]


def test_arrays_and_structs_are_read_with_what_is_in_them() -> None:
    items = {"type": "array", "items": {"type": "int32", "name": "io.debezium.time.Date"}}
    assert one_column(items, [DAY, None], None, []).to_pylist() == [[datetime.date(2017, 9, 16), None], None, []]
    point = [{"type": "double", "field": "x"}, {"type": "bytes", "field": "wkb"}, {"type": "int32", "field": "srid"}]
    kind = {"type": "struct", "name": "io.debezium.data.geometry.Point", "fields": point}
    sent = {"x": 1.5, "wkb": "AQI=", "srid": None}
    assert one_column(kind, sent, None).to_pylist() == [{"x": 1.5, "wkb": b"\x01\x02", "srid": None}, None]


def test_an_array_may_be_null_in_some_messages() -> None:
    kind = {"type": "array", "items": {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}}
    kind["items"]["parameters"] = {"scale": "1"}  # type: ignore[index]
    one = base64.b64encode(b"\x0f").decode()
    assert one_column(kind, None, [one, None], []).to_pylist() == [None, [Decimal("1.5"), None], []]


def test_messages_after_one_whose_schema_cannot_be_read_become_events() -> None:
    bad = json.dumps({"schema": {"type": 7}, "payload": CREATE})
    good = json.dumps(with_schema(CREATE))
    events = debezium([bad, good, bad, good], key="id", schema=SCHEMA, on_error="collect")
    assert events.table.num_rows == 2
    assert events.rejected.num_rows == 2


def test_a_map_is_refused_with_a_way_out() -> None:
    with pytest.raises(InvalidUsage, match=r"hstore\.handling\.mode"):
        one_column({"type": "map", "keys": {"type": "string"}, "values": {"type": "string"}}, {"a": "b"})


@pytest.mark.parametrize(
    ("target", "sent", "logical", "meant"),
    [
        (pa.timestamp("us"), 1529501823123, "io.debezium.time.Timestamp", NOON.replace(microsecond=123000)),
        (pa.timestamp("us"), 1529501823123456, "io.debezium.time.MicroTimestamp", NOON),
        (pa.decimal128(12, 5), "D3J5", "org.apache.kafka.connect.data.Decimal", Decimal("10.12345")),
        (pa.decimal128(12, 2), "39.61", "string", Decimal("39.61")),
        (pa.time64("us"), 37_000, "io.debezium.time.Time", datetime.time(0, 0, 37)),
    ],
)
def test_what_could_be_several_things_is_asked_for_and_not_guessed(
    target: pa.DataType, sent: Any, logical: str, meant: Any
) -> None:
    messages = [json.dumps({"op": "c", "after": {"id": 1, "x": sent}})]
    schema = {"id": pa.int64(), "x": target}
    with pytest.raises(InvalidUsage, match="Say it with types"):
        debezium(messages, key="id", schema=schema)
    assert debezium(messages, key="id", schema=schema, types={"x": logical}).table["x"].to_pylist() == [meant]


def test_decimals_as_numbers_keep_their_digits() -> None:
    messages = ['{"op":"c","after":{"id":1,"x":12345678901234567890.12}}']
    schema = {"id": pa.int64(), "x": pa.decimal128(30, 2)}
    assert debezium(messages, key="id", schema=schema).table["x"].to_pylist() == [Decimal("12345678901234567890.12")]


BAD = [
    ('{"a":', "not a JSON object"),
    ("", "it is empty"),
    ("[]", "not a JSON object"),
    ('{"op":"c","after":{"id":1}} {"op":"c","after":{"id":2}}', "more than one JSON object"),
    ('{"op":"c","after":{"id":1}}\0', "not a JSON object"),
    ('{"op":"c",\0"after":{"id":1}}', "zero byte"),
    ('{"op":"c","after":{"id":1},}', "it is not JSON"),
    ('{"op":"c","after":{"id":1,"id":2}}', "occurs twice"),
    ('{"schema":{"type":5},"payload":{}}', "which Kafka Connect does not write"),
    ('{"schema":{"type":"struct"},"payload":{"op":"c"', "it is not JSON"),
    ("{}", "no op"),
    ('{"op":"x","after":{"id":1}}', 'op "x"'),
    ('{"op":"t"}', "was truncated"),
    ('{"op":"m"}', "a message of the database's log"),
    ('{"op":"c","after":null}', "no row after the change"),
    ('{"op":"c","after":{"id":null}}', "'id' of its key is missing or null"),
    ('{"op":"d","before":null}', "'id' of its key is missing or null"),
    ('{"op":"c","after":{"id":1.5}}', "does not fit int64"),
    ('{"op":"c","after":{"id":9223372036854775808}}', "does not fit int64"),
    ('{"op":"c","after":{"id":true, "first_name":7}}', "where a string is expected"),
    ('{"op":"c","after":{"id":1,"first_name":"__debezium_unavailable_value"}}', "REPLICA IDENTITY FULL"),
    (b'{"op":"c","after":{"id":1,"first_name":"\xff"}}', "not UTF-8"),
    (None, "neither a value nor a key"),
]


@pytest.mark.parametrize(("value", "reason"), BAD, ids=[str(value)[:40] for value, _ in BAD])
def test_a_bad_message_is_named_with_its_reason_and_stops_nothing(value: Any, reason: str) -> None:
    good = json.dumps(CREATE)
    messages = [good, good, value, good]
    with pytest.raises(BadMessage, match="message 2 cannot be read") as raised:
        debezium(messages, key="id", schema=SCHEMA)
    assert reason in raised.value.reason
    events = debezium(messages, key="id", schema=SCHEMA, on_error="collect")
    assert events.table.to_pylist() == [{**ANNE, "_deleted": False}] * 3
    raw = value.encode() if isinstance(value, str) else value
    assert events.rejected.select(["message", "value"]).to_pylist() == [{"message": 2, "value": raw}]


def test_a_bad_key_is_named_and_its_message_is_no_event() -> None:
    messages = pa.table({"key": ['{"id":1}', '{"id":', '{"id":3}'], "value": [None, None, None]})
    messages = messages.set_column(1, "value", pa.nulls(3, pa.string()))
    events = debezium(messages, schema={"id": pa.int64()}, on_error="collect")
    assert events.table["id"].to_pylist() == [1, 3]
    assert events.rejected["message"].to_pylist() == [1]


@given(st.lists(st.sampled_from([0, 0, 0, 1, 2, 3]), max_size=60), st.booleans())
def test_however_good_and_bad_messages_are_mixed_each_becomes_its_own(kinds: list[int], wrapped: bool) -> None:
    def text(number: int, kind: int) -> str:
        row = {**ANNE, "id": number}
        message = [CREATE | {"after": row}, {"op": "t"}, None, CREATE | {"after": {**row, "id": "x"}}][kind]
        if message is None:
            return '{"op":"c","after":{"id":' + str(number)
        return json.dumps(with_schema(message) if wrapped else message)

    messages = [text(number, kind) for number, kind in enumerate(kinds)]
    events = debezium(messages, key="id", schema=SCHEMA, on_error="collect")
    assert events.table["id"].to_pylist() == [number for number, kind in enumerate(kinds) if kind == 0]
    assert events.rejected["message"].to_pylist() == [number for number, kind in enumerate(kinds) if kind]


def test_without_a_schema_text_that_looks_like_a_moment_stays_text() -> None:
    message = {"op": "c", "after": {"id": 1, "at": "2020-01-01T00:00:00", "n": 1}}
    table = debezium([json.dumps(message), '{"op":"c","after":{"id":2,"n":1.5}}'], key="id").table
    assert table.drop_columns("_deleted").to_pylist() == [
        {"id": 1, "at": "2020-01-01T00:00:00", "n": 1.0},
        {"id": 2, "at": None, "n": 1.5},
    ]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "name the key's columns"),
        ({"key": "idd", "schema": SCHEMA}, "'idd' is not in the schema"),
        ({"key": "id", "on_error": "ignore"}, "on_error='ignore' is not one of"),
        ({"key": "id", "tombstones": "keep"}, "tombstones='keep' is not one of"),
        ({"key": "id", "types": {"id": "int"}}, "not a logical type"),
        ({"key": "id", "schema": 5}, "a dict of names and types"),
    ],
)
def test_a_wrong_option_says_what_is_allowed(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidUsage, match=problem):
        debezium([json.dumps(CREATE)], **options)


@pytest.mark.parametrize("messages", [5, "text", [5], pa.table({"a": [1], "b": [2]}), pa.table({"value": [1]})])
def test_what_is_no_messages_is_refused(messages: Any) -> None:
    with pytest.raises(InvalidUsage, match=r"message|bytes or text"):
        debezium(messages, key="id")


def test_no_messages_are_no_events() -> None:
    assert len(debezium([], key="id", schema=SCHEMA)) == 0
    assert debezium([], key="id", schema=SCHEMA).table.column_names[:4] == SCHEMA.names


def test_a_message_key_may_have_null_in_some_of_its_fields() -> None:
    keys = ['{"a": 1, "b": null}', '{"a": null, "b": 2}', '{"a": 1, "b": null}', '{"a": 1, "b": null}']
    values = [
        '{"op": "c", "after": {"a": 1, "b": null, "v": 5}}',
        '{"op": "c", "after": {"a": null, "b": 2, "v": 6}}',
        '{"op": "d", "before": {"a": 1, "b": null, "v": 5}}',
        None,
    ]
    table = debezium(pa.table({"key": keys, "value": values}), schema={"a": int, "b": int, "v": int}).table
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        (1, None, 5, False),
        (None, 2, 6, False),
        (1, None, None, True),
        (1, None, None, True),
    ]


def test_where_rows_alone_tell_the_key_null_in_it_is_refused_because_a_row_may_not_say_it() -> None:
    events = debezium(
        pa.table({"key": ['{"a": null, "b": null}', None], "value": ['{"op": "c", "after": {"a": null}}'] * 2}),
        key=["a", "b"],
        schema={"a": int, "b": int},
        on_error="collect",
    )
    assert events.rejected["reason"].to_pylist() == ["the column 'a' of its key is missing or null"] * 2
    row = '{"op": "d", "before": {"a": 1, "b": null}}'
    with pytest.raises(BadMessage, match="'b' of its key is missing or null"):
        debezium([row], key=["a", "b"], schema={"a": int, "b": int})


@pytest.mark.parametrize(("kind", "ticks"), [(pa.time32, "s"), (pa.time32, "ms"), (pa.time64, "us"), (pa.time64, "ns")])
def test_a_time_of_day_lies_within_one_day(kind: Any, ticks: str) -> None:
    last = 86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[ticks] - 1
    of_day = kind(ticks)
    wire = pa.int32() if pa.types.is_time32(of_day) else pa.int64()
    good = pa.array([0, None, last], wire).cast(of_day)
    assert _check_time_of_day(good) is good
    for wrong in (-1, last + 1):
        with pytest.raises(Unreadable, match="is not within one day"):
            _check_time_of_day(pa.array([0, wrong], wire).cast(of_day))
