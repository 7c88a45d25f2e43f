"""Streams of changes as Debezium, Maxwell and Canal document them, and Avro, become the tables that they describe.

Each stream inserts, updates, deletes, and changes a key. The expected results are written by hand.
"""

import base64
import io
import json
import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import persist
from persist.connect.ingest.kafka.config import Route
from persist.connect.ingest.kafka.drift import find_drift
from tests.connect.ingest.brokers import Cluster, registry
from tests.connect.ingest.test_kafka import cluster, held, reasons, taken, topic
from tests.support.tiers import examples

__all__ = ["cluster", "topic"]  # Fixtures.


def debezium_message(op: str, before: Any, after: Any) -> dict[str, Any]:
    source = {"version": "2.7.0.Final", "connector": "postgresql", "name": "shop", "ts_ms": 1, "db": "shop"}
    return {"before": before, "after": after, "source": {**source, "table": "products"}, "op": op, "ts_ms": 2}


SCOOTER = {"id": 101, "name": "scooter", "weight": 3.14, "added": 20780}
HAMMER = {"id": 104, "name": "hammer", "weight": 0.75, "added": None}
DEBEZIUM = [
    ({"id": 101}, debezium_message("r", None, SCOOTER)),
    ({"id": 104}, debezium_message("c", None, HAMMER)),
    ({"id": 101}, debezium_message("u", SCOOTER, {**SCOOTER, "weight": 5.17})),
    ({"id": 104}, debezium_message("d", HAMMER, None)),
    ({"id": 104}, None),
    ({"id": 101}, debezium_message("d", {**SCOOTER, "weight": 5.17}, None)),
    ({"id": 101}, None),
    ({"id": 111}, debezium_message("c", None, {**SCOOTER, "id": 111, "weight": 5.17})),
]
LAST = {"id": 111, "name": "scooter", "weight": 5.17, "added": date(2026, 11, 23)}
COLUMNS = {"id": "int32", "name": "string", "weight": "float64", "added": "date32"}


def described(message: Any, fields: list[dict[str, Any]]) -> Any:
    row = {"type": "struct", "fields": fields, "optional": True}
    members = [{**row, "field": "before"}, {**row, "field": "after"}, {"type": "string", "field": "op"}]
    return {"schema": {"type": "struct", "fields": members}, "payload": message}


FIELDS: list[dict[str, Any]] = [
    {"type": "int32", "field": "id"},
    {"type": "string", "field": "name"},
    {"type": "double", "field": "weight", "optional": True},
    {"type": "int32", "field": "added", "name": "io.debezium.time.Date", "optional": True},
]


@pytest.mark.parametrize("with_schema", [False, True])
def test_changes_of_debezium(client: Any, cluster: Cluster, topic: str, with_schema: bool) -> None:
    messages = [
        (key, described(value, FIELDS) if with_schema and value is not None else value) for key, value in DEBEZIUM
    ]
    cluster.send(topic, *messages)
    told = {} if with_schema else {"columns": COLUMNS}  # A schema part tells the types.
    taken(client, cluster, topic, format="debezium", key=["id"], batch_rows=1, **told)
    assert (held(client), reasons(client)) == ([LAST], [])
    assert [sorted(row["id"] for row in held(client, as_of=time)) for time in range(8)] == [
        [101], [101, 104], [101, 104], [101], [101], [], [], [111],
    ]  # fmt: skip
    assert held(client, as_of=2)[0]["weight"] == 5.17


def maxwell_message(kind: str, data: Any, table: str = "products", **more: Any) -> dict[str, Any]:
    head = {"database": "shop", "table": table, "type": kind, "ts": 1596684883, "xid": 7125, "commit": True}
    return {**head, "data": data, "primary_key_columns": ["id"], **more}


MAXWELL = [
    maxwell_message("bootstrap-start", {}),
    maxwell_message("bootstrap-insert", {"id": 101, "name": "scooter", "weight": 3.14}),
    maxwell_message("bootstrap-complete", {}),
    maxwell_message("insert", {"id": 104, "name": "hammer", "weight": 0.75}),
    maxwell_message("insert", {"id": 1, "text": "a"}, table="notes"),
    maxwell_message("update", {"id": 104, "name": "hammer", "weight": 0.8}, old={"weight": 0.75}),
    maxwell_message("update", {"id": 111, "name": "scooter", "weight": 3.14}, old={"id": 101}),
    maxwell_message("insert", {"id": 2, "text": "b"}, table="notes"),
    maxwell_message("delete", {"id": 104, "name": "hammer", "weight": 0.8}),
    maxwell_message("delete", {"id": 1, "text": "a"}, table="notes"),
    maxwell_message("table-alter", None, sql="ALTER TABLE products ADD x int"),
]


def canal_message(kind: str, *rows: Any, table: str = "products", old: Any = None, ddl: bool = False) -> dict[str, Any]:
    types = {"id": "int(11)", "name": "varchar(255)", "weight": "double"}
    head = {"database": "shop", "table": table, "type": kind, "isDdl": ddl, "es": 1589373560000, "ts": 1589373560798}
    return {**head, "id": 9, "pkNames": ["id"], "mysqlType": types, "data": [*rows] or None, "old": old, "sql": ""}


CANAL_ROWS = (("101", "scooter", "3.14"), ("104", "hammer", "0.75"))
CANAL = [
    canal_message("INSERT", *({"id": i, "name": n, "weight": w} for i, n, w in CANAL_ROWS)),
    canal_message("INSERT", {"id": "1", "text": "a"}, {"id": "2", "text": "b"}, table="notes"),
    canal_message("UPDATE", {"id": "104", "name": "hammer", "weight": "0.8"}, old=[{"weight": "0.75"}]),
    canal_message("UPDATE", {"id": "111", "name": "scooter", "weight": "3.14"}, old=[{"id": "101"}]),
    canal_message("DELETE", {"id": "104", "name": "hammer", "weight": "0.8"}),
    canal_message("DELETE", {"id": "1", "text": "a"}, table="notes"),
    canal_message("ALTER", ddl=True),
]  # fmt: skip


@pytest.mark.parametrize(("form", "messages"), [("maxwell", MAXWELL), ("canal", CANAL)])
def test_two_tables_in_one_stream(client: Any, cluster: Cluster, topic: str, form: str, messages: list[Any]) -> None:
    cluster.send(topic, *messages, b"no json")
    tables = {
        "products": {"id": "int32", "name": "string", "weight": "float64"},
        "notes": {"id": "int32", "text": "string"},
    }
    into = [
        {"topic": topic, "collection": name, "format": form, "table": f"shop.{name}", "key": ["id"], "columns": columns}
        for name, columns in tables.items()
    ]
    persist.ingest(client, {"source": f"kafka://{cluster.address}", "into": into, "name": "cdc"}, once=True)
    assert held(client, "products") == [{"id": 111, "name": "scooter", "weight": 3.14}]
    assert held(client, "notes") == [{"id": 2, "text": "b"}]
    count = len(messages)
    assert [at for at, _ in reasons(client, "cdc")] == [count - 1, count]  # Each once: a statement, and no JSON.
    assert "table-alter" in reasons(client, "cdc")[0][1] or "ALTER" in reasons(client, "cdc")[0][1]


def framed(number: int, schema: Any, value: Any) -> bytes:
    fastavro = pytest.importorskip("fastavro")
    out = io.BytesIO()
    out.write(b"\0" + struct.pack(">i", number))
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "ratio", "type": ["null", "double"]},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "before", "type": "State"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "raw", "type": "bytes"},
        {"name": "any", "type": ["null", "long", "string"]},
    ],
}
NOON = datetime(2026, 11, 23, 12, 0, 0, 7, tzinfo=UTC)
FIRST = {
    "id": 1, "price": Decimal("12.50"), "at": NOON, "day": date(2026, 11, 23), "ratio": float("inf"), "state": "NEW",
    "before": "PAID", "tags": ["a", "b"], "raw": b"\x00\xff", "any": 7,
}  # fmt: skip


def test_avro_has_the_types_of_its_schema(client: Any, cluster: Cluster, topic: str) -> None:
    newer = {**ORDER, "fields": [*ORDER["fields"], {"name": "more", "type": "int"}]}
    cluster.send(topic, framed(1, ORDER, FIRST), framed(1, ORDER, {**FIRST, "id": 2, "ratio": 0.5, "any": "x"}))
    cluster.send(topic, framed(2, newer, {**FIRST, "id": 3, "day": None, "ratio": None, "more": 1}))
    cluster.send(topic, b"\0\0\0\0\x09x", b"\0\0", framed(1, ORDER, FIRST)[:9])
    with registry({1: ORDER, 2: newer}, password="hunter2") as url:
        taken(client, cluster, topic, key=["id"], registry=url)
    found = held(client)
    assert [row["id"] for row in found] == [1, 2, 3]
    wanted = {**FIRST, "at": NOON.replace(tzinfo=None), "any": "7"}
    assert {name: found[0][name] for name in ORDER_NAMES} == wanted
    assert [(row["ratio"], row["any"], row["more"]) for row in found[1:]] == [(0.5, "x", None), (None, "7", 1)]
    unknown, short, cut = reasons(client)
    assert unknown == (3, "the registry has no schema 9")
    assert short == (4, "it begins like Avro, and is too short to name a schema")
    assert cut[1].startswith("it is not Avro of schema 1: ")


def test_a_float_of_an_avro_union_is_never_null(client: Any, cluster: Cluster, topic: str) -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": {"type": "array", "items": "double"}}]}
    schema = {
        "type": "record",
        "name": "Row",
        "fields": [{"name": "id", "type": "int"}, {"name": "any", "type": ["null", "double", "boolean", inner]}],
    }
    values = [float("nan"), float("-inf"), 0.5, {"x": [float("nan"), 1.0]}, None]
    cluster.send(topic, *(framed(1, schema, {"id": at, "any": value}) for at, value in enumerate(values)))
    with registry({1: schema}) as url:
        taken(client, cluster, topic, key=["id"], registry=url)
    assert [row["any"] for row in held(client)] == ["nan", "-inf", "0.5", '{"x":["nan",1.0]}', None]


ORDER_NAMES = [field["name"] for field in ORDER["fields"]]


def test_debezium_in_avro(client: Any, cluster: Cluster, topic: str) -> None:
    row = {
        "type": "record",
        "name": "Value",
        "fields": [
            {"name": "id", "type": "int"},
            {"name": "at", "type": {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}},
            {"name": "weight", "type": ["null", "double"], "default": None},
        ],
    }
    envelope = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", row]},
            {"name": "after", "type": ["null", "Value"]},
            {"name": "op", "type": "string"},
        ],
    }
    key = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]}
    one = {"id": 1, "at": 1_795_000_000_000_007, "weight": float("nan")}
    two = {**one, "id": 2, "weight": 0.5}
    keys = [framed(1, key, {"id": id_}) for id_ in (1, 2)]
    changes = [(keys[0], None, one, "c"), (keys[1], None, two, "c"), (keys[0], one, None, "d")]
    messages = [(k, framed(2, envelope, {"before": b, "after": a, "op": op})) for k, b, a, op in changes]
    options = {"key": ["id"], "format": "debezium"}
    cluster.send(topic, *messages[:2])
    with registry({1: key, 2: envelope}) as url:
        first = taken(client, cluster, topic, registry=url, **options).uppers["rows"]
    cluster.send(topic, messages[2], (keys[0], None))
    with registry({1: key, 2: envelope}) as url:
        taken(client, cluster, topic, registry=url, **options)
    at = datetime.fromtimestamp(1_795_000_000, UTC).replace(tzinfo=None, microsecond=7)
    assert held(client) == [{"id": 2, "at": at, "weight": 0.5}]
    assert [(row["id"], str(row["weight"])) for row in held(client, as_of=first - 1)] == [(1, "nan"), (2, "0.5")]


def test_a_registry_that_does_not_let_in_is_told(client: Any, cluster: Cluster, topic: str) -> None:
    cluster.send(topic, framed(1, ORDER, FIRST))
    refused = pytest.raises(persist.InvalidUsage, match="does not let this user in: 401")
    with registry({1: ORDER}, password="x") as url, refused:
        taken(client, cluster, topic, key=["id"], registry=url.replace("me:x@", ""))
    with pytest.raises(persist.Unavailable, match=r"the registry .* does not answer") as error:
        taken(client, cluster, topic, key=["id"], registry=url)
    assert "x@" not in str(error.value)


def test_bytes_in_json_are_base64(client: Any, cluster: Cluster, topic: str) -> None:
    cluster.send(topic, {"id": 1, "raw": base64.b64encode(b"\x00\xff").decode()})
    taken(client, cluster, topic, key=["id"], columns={"id": "int64", "raw": "binary"})
    assert held(client) == [{"id": 1, "raw": b"\x00\xff"}]


def test_where_a_message_was_can_be_kept(client: Any, cluster: Cluster, topic: str) -> None:
    cluster.send(topic, json.dumps({"id": 1, "meta": {"lsn": 7}}).encode(), at_ms=1_000)
    taken(
        client, cluster, topic, key=["id"], columns={"id": "int64", "lsn": "int64"},
        metadata={"part": "partition", "at": "offset", "sent": "timestamp", "lsn": "meta.lsn"},
    )  # fmt: skip
    assert held(client) == [{"id": 1, "lsn": 7, "part": 0, "at": 0, "sent": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}]


# What the fixtures of Flink and Paimon tell, in each of the forms: nine products, and what becomes of them.
NAMES = {
    101: ("scooter", "Small 2-wheel scooter", 3.14), 102: ("car battery", "12V car battery", 8.1),
    103: ("12-pack drill bits", "12-pack of drill bits with sizes ranging from #40 to #3", 0.8),
    104: ("hammer", "12oz carpenter's hammer", 0.75), 105: ("hammer", "14oz carpenter's hammer", 0.875),
    106: ("hammer", "16oz carpenter's hammer", 1.0), 107: ("rocks", "box of assorted rocks", 5.3),
    108: ("jacket", "water resistent black wind breaker", 0.1), 109: ("spare tire", "24 inch spare tire", 22.2),
}  # fmt: skip
CHANGES: list[tuple[int, Any]] = [
    *NAMES.items(),
    (106, ("hammer", "18oz carpenter hammer", 1.0)), (107, ("rocks", "box of assorted rocks", 5.1)),
    (110, ("jacket", "water resistent white wind breaker", 0.2)), (111, ("scooter", "Big 2-wheel scooter ", 5.18)),
    (110, ("jacket", "new water resistent white wind breaker", 0.5)), (111, ("scooter", "Big 2-wheel scooter ", 5.17)),
    (111, None), (101, ("scooter", "Small 2-wheel scooter", 5.17)), (102, ("car battery", "12V car battery", 5.17)),
    (102, None), (103, None),
]  # fmt: skip
PRODUCTS = {
    101: ("scooter", "Small 2-wheel scooter", 5.17), 104: NAMES[104], 105: NAMES[105],
    106: ("hammer", "18oz carpenter hammer", 1.0), 107: ("rocks", "box of assorted rocks", 5.1), 108: NAMES[108],
    109: NAMES[109], 110: ("jacket", "new water resistent white wind breaker", 0.5),
}  # fmt: skip
ROW = ("name", "description", "weight")


def told(form: str) -> Iterator[Any]:
    """Yield the changes as a form has them."""
    there: dict[int, Any] = {}
    for number, (id_, row) in enumerate(CHANGES):
        old, new = (None if r is None else {"id": id_, **dict(zip(ROW, r, strict=True))} for r in (there.get(id_), row))
        there[id_] = row
        kind = "delete" if new is None else "insert" if old is None else "update"
        least = {name: value for name, value in (old or {}).items() if new is not None and new[name] != value}
        if form == "debezium":
            yield {"id": id_}, debezium_message(kind[0].replace("i", "c"), old, new)
        elif form == "maxwell":
            head = {"database": "test", "table": "product", "ts": 1596684883, "xid": number, "type": kind}
            yield {**head, "data": new or old, **({"old": least} if least else {})}
        else:
            text = {name: str(value) for name, value in (new or old or {}).items()}
            types = {"id": "INTEGER", "name": "VARCHAR(255)", "description": "VARCHAR(512)", "weight": "FLOAT"}
            head = {"database": "test", "table": "product", "es": number, "ts": number, "isDdl": False, "sql": ""}
            was = [{name: str(value) for name, value in least.items()}] if least else None
            yield {**head, "type": kind.upper(), "data": [text], "old": was, "mysqlType": types, "pkNames": ["id"]}


@pytest.mark.parametrize("form", ["debezium", "maxwell", "canal"])
def test_the_products_of_flink_and_paimon_come_to_what_they_expect(
    client: Any, cluster: Cluster, topic: str, form: str
) -> None:
    columns = {"id": "int32", "name": "string", "description": "string", "weight": "float64"}
    messages = [*told(form)]
    more = {} if form == "debezium" else {"table": "test.product"}
    for some in (messages[:13], messages[13:]):
        cluster.send(topic, *some)
        taken(client, cluster, topic, format=form, key=["id"], columns=columns, **more)
    found = {row["id"]: tuple(row[name] for name in ROW) for row in held(client)}
    assert (found, reasons(client)) == (PRODUCTS, [])


@pytest.mark.parametrize(
    "message", [{"id": 1, "a": None}, {"id": 1, "a": []}, {"id": 1, "a": {}}, {"id": 1, "a": {"b": None}}]
)
def test_messages_that_tell_no_type_ask_for_it(client: Any, cluster: Cluster, topic: str, message: Any) -> None:
    cluster.send(topic, (None, message))
    with pytest.raises(
        persist.InvalidUsage, match=r"the first 1 message of .* the column 'a', and no value .*columns ="
    ):
        taken(client, cluster, topic, key=["id"])
    cluster.send(topic, (None, {"id": 2, "a": {"b": 1}} if isinstance(message["a"], dict) else {"id": 2, "a": [1]}))
    taken(client, cluster, topic, key=["id"])
    assert len(held(client)) == 2


@pytest.mark.parametrize("form", ["json", "debezium"])
def test_members_that_no_column_takes_and_columns_that_a_row_lacks_are_warned_of_once(
    client: Any, cluster: Cluster, topic: str, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "at": {"x": 1, "y": 2}, "more": 3},
        {"id": 2, "at": None, "name": "a", "more": 4},
    ]
    for row in rows:
        cluster.send(topic, ({"id": row["id"]}, row if form == "json" else debezium_message("c", None, row)))
    columns = {"id": "int32", "name": "string", "at": "struct<x: int64>"}
    taken(client, cluster, topic, format=form, key=["id"], keyed=True, batch_rows=1, columns=columns)
    assert held(client) == [{"id": 1, "at": {"x": 1}, "name": None}, {"id": 2, "at": None, "name": "a"}]
    warned = [record.getMessage().partition(" have ")[2] for record in caplog.records]
    assert warned == [
        "members that no column takes: they are left out: at.y, more",
        "rows without these columns, which are NULL there: name",
    ]


@pytest.mark.parametrize("form", ["json", "debezium"])
def test_members_become_columns_if_drift_adds_them(client: Any, cluster: Cluster, topic: str, form: str) -> None:
    columns = {"id": "int32", "at": "struct<x: int64>", "body": "json"}
    options: dict[str, Any] = {"format": form, "key": ["id"], "keyed": True, "columns": columns, "drift": "add"}
    rows: list[dict[str, Any]] = [
        {"id": 1, "at": {"x": 1}, "body": "[1]"},
        {"id": 2, "at": {"x": 1, "y": {"z": 2}}, "more": 3, "a.b": "q", "later": None, "_time": 5, "_deleted": 7},
        {"id": 3, "at": {"x": None, "y": {"z": 4, "w": [1.5]}}, "later": [True]},
        {"id": 4, "odd": 1, "new": {"x": 1}},
        {"id": 5, "odd": "text"},
        {"id": 6, "new": {"x": 2, "y": 3}},
    ]
    for some in (rows[:1], rows[1:2], rows[2:3], rows[3:]):
        for row in some:
            cluster.send(topic, ({"id": row["id"]}, row if form == "json" else debezium_message("c", None, row)))
        taken(client, cluster, topic, **options)
    none = {"body": None, "more": None, "a.b": None, "later": None, "odd": None, "new": None}
    assert held(client)[:3] == [
        {"id": 1, "at": {"x": 1, "y": None}, **none, "body": "[1]"},
        {"id": 2, "at": {"x": 1, "y": {"z": 2, "w": None}}, **none, "more": 3, "a.b": "q"},
        {"id": 3, "at": {"x": None, "y": {"z": 4, "w": [1.5]}}, **none, "later": [True]},
    ]
    news = [(4, 1, {"x": 1, "y": None}), (6, None, {"x": 2, "y": 3})]
    assert [(row["id"], row["odd"], row["new"]) for row in held(client)[3:]] == news
    assert ["odd" in reason for _, reason in reasons(client)] == [True]  # Of the message that contradicts the first.


INNER = pa.struct([("x", pa.int64()), ("more", pa.list_(pa.struct([("y", pa.int64())])))])
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("at", INNER)])


def drift(texts: list[str | None], **options: Any) -> tuple[set[str], set[str]]:
    values = pa.chunked_array(
        [pa.array([None if text is None else text.encode() for text in texts], pa.large_binary())]
    )
    return find_drift(Route(topic="t", collection="c", **options), values, SCHEMA)


def row(**more: Any) -> dict[str, Any]:
    return {"id": 1, "v": "a", "at": {"x": 1, "more": [{"y": 2}]}, **more}


def test_one_message_among_many_is_noticed() -> None:
    usual = json.dumps(row())
    inner = json.dumps(row(at={"x": 1, "more": [{"y": 1}, {"y": 1, "z.z": 3}], "q": 1}))
    texts = [usual] * 5000 + [json.dumps(row(late=1)), inner, json.dumps({"id": 1, "at": None}), "no JSON", None]
    assert drift([usual] * 3) == (set(), set())
    assert drift([*texts, *[usual] * 5000]) == ({"late", "at.q", 'at.more.element."z.z"'}, {"v"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, lambda value: {"schema": {}, "payload": value}),
        ({"format": "debezium"}, lambda value: {"before": row(not_this=1), "after": value, "op": "u"}),
        ({"format": "debezium"}, lambda value: {"schema": {}, "payload": {"after": value}}),
        ({"format": "maxwell", "table": "d.t"}, lambda value: {"database": "d", "table": "t", "data": value}),
        ({"format": "canal", "table": "d.t"}, lambda value: {"database": "d", "table": "t", "data": [row(), value]}),
    ],
)
def test_rows_are_found_in_every_envelope(options: dict[str, Any], message: Any) -> None:
    assert drift([json.dumps(message(row(new=1)))], **options) == ({"new"}, set())
    if "table" in options:
        assert drift([json.dumps(message(row(new=1)) | {"table": "other"})], **options) == (set(), set())


VALUES = st.fixed_dictionaries({}, optional={name: st.integers() | st.none() for name in ("id", "v", "w", "x")})


@settings(max_examples=examples(50))
@given(st.lists(VALUES, min_size=1, max_size=5))
def test_names_are_those_of_the_documents(rows: list[dict[str, int | None]]) -> None:
    rows = [value for value in rows if value]
    more = {name for value in rows for name in value} - {*SCHEMA.names}
    less = {name for name in SCHEMA.names if any(name not in value for value in rows)}
    assert drift([json.dumps(value) for value in rows]) == (more, less)
