"""Fields inside of structs, lists and maps are added, dropped, renamed and widened by their paths."""

import uuid
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import persist
from persist.codecs.types.schema import CollectionSchema
from persist.core.log import kinds

CITY = pa.struct([("city", pa.string()), ("n", pa.int32())])
VALUE = {"address": CITY, "items": pa.list_(CITY), "places": pa.map_(CITY, CITY), "a.b": pa.int8()}
ROWS = [
    {
        "id": 1,
        "address": {"city": "x", "n": 1},
        "items": [{"city": "y", "n": 2}, None],
        "places": [({"city": "k", "n": 3}, {"city": "z", "n": 4})],
        "a.b": 5,
    },
    {"id": 2, "address": None, "items": None, "places": None, "a.b": None},
]


@pytest.fixture
def client() -> Any:
    with persist.open(persist.MemoryBlob(), settings=persist.Settings(background=False)) as client:
        yield client


@pytest.fixture
def orders(client: persist.Client) -> persist.Collection:
    orders = client.create_or_load("orders", key={"id": pa.int64()}, value=VALUE)
    fields = [orders.schema.arrow.field(name) for name in orders.schema.names]
    orders.write(pa.Table.from_pylist(ROWS, schema=pa.schema(fields)), time=0, seal=1).result()
    return orders


def test_fields_change_at_any_depth_in_old_rows_too(orders: persist.Collection) -> None:
    orders.evolve(
        add={"address.zip": pa.string(), "places.value.geo": pa.list_(pa.float64())},
        rename={"items.element.city": "items.element.town", "places.key.city": "places.key.town"},
        widen={"items.element.n": pa.float64()},
        drop=["places.value.n"],
    )
    assert orders.snapshot(0).to_pylist() == [
        {
            "id": 1,
            "address": {"city": "x", "n": 1, "zip": None},
            "items": [{"town": "y", "n": 2.0}, None],
            "places": [({"town": "k", "n": 3}, {"city": "z", "geo": None})],
            "a.b": 5,
        },
        {"id": 2, "address": None, "items": None, "places": None, "a.b": None},
    ]


def test_a_field_of_a_name_that_was_dropped_is_another_field(orders: persist.Collection) -> None:
    orders.evolve(drop=["address.n"], add={"address.n": pa.int32()})
    orders.evolve(drop=["items.element.n"])
    orders.evolve(add={"items.element.n": pa.int32()})
    row = orders.snapshot(0).to_pylist()[0]
    assert (row["address"], row["items"]) == ({"city": "x", "n": None}, [{"city": "y", "n": None}, None])
    orders.compact()
    assert orders.snapshot(0).to_pylist()[0] == row


def test_a_reader_of_an_earlier_version_is_told_that_a_dropped_field_is_gone(orders: persist.Collection) -> None:
    orders.evolve(drop=["address.n"])
    assert orders.snapshot(0, schema=1).to_pylist() == ROWS
    orders.write([((3, ({"city": "new"}, None, None, None)), 1, 1)], seal=2).result()
    with pytest.raises(persist.errors.SchemaMismatch, match=r"'address\.n'.* is gone"):
        orders.snapshot(1, schema=1).to_arrow()


def test_a_client_that_does_not_know_a_new_field_goes_on_writing(client: persist.Client, orders: Any) -> None:
    older = client.load("orders")
    orders.evolve(add={"address.zip": pa.string()})
    older.write([((3, ({"city": "old", "n": 7}, None, None, None)), 1, 1)], seal=2).result()
    assert orders.snapshot(1).to_pylist()[2]["address"] == {"city": "old", "n": 7, "zip": None}
    orders.evolve(rename={"address.zip": "address.code"})
    older.write([((4, ({"city": "old", "n": 7}, None, None, None)), 2, 1)], seal=3).result()
    orders.evolve(rename={"address.city": "address.town"})
    future = older.write([((5, ({"city": "old", "n": 7}, None, None, None)), 3, 1)])
    with pytest.raises(persist.errors.SchemaMismatch, match=r"'city' was renamed to 'address\.town'"):
        future.result()


def test_records_of_before_and_after_cancel(orders: persist.Collection) -> None:
    orders.evolve(add={"address.zip": pa.string()}, drop=["address.n"], widen={"items.element.n": pa.int64()})
    row = orders.snapshot(0).to_arrow().slice(0, 1)
    orders.write(row.append_column("_time", pa.array([1])).append_column("_diff", pa.array([-1])), seal=2).result()
    assert [row["id"] for row in orders.snapshot(1).to_pylist()] == [2]


def test_nothing_is_written_again_and_a_new_field_gets_a_new_id_in_parts(tmp_path: Any) -> None:
    with persist.open(tmp_path, settings=persist.Settings(background=False)) as client:
        orders = client.create_or_load("orders", key={"id": pa.int64()}, value={"address": CITY})
        orders.write([((n, {"city": "x" * 99, "n": n}), 0, 1) for n in range(20_000)], seal=1).result()
        parts = {*tmp_path.glob("part/**/*")}
        orders.evolve(drop=["address.n"])
        orders.evolve(add={"address.n": pa.int32()}, rename={"address.city": "address.town"})
        assert {*tmp_path.glob("part/**/*")} == parts
        orders.compact()
        orders.write([((n, {"town": "y" * 99, "n": n}), 1, 1) for n in range(20_000)], seal=2).result()
        (new,) = [path for path in {*tmp_path.glob("part/**/*")} - parts if path.is_file()][:1]
        inner = pq.read_schema(new).field("address").type
        first = 1_000_000_000 + 2**15
        ids = {field.name: int(field.metadata[b"PARQUET:field_id"]) for field in inner}
        assert ids == {"town": first, "n": first + 2}


def test_columns_that_have_dots_in_their_names_stay_columns(orders: persist.Collection) -> None:
    orders.evolve(widen={"a.b": pa.int64()}, add={'"c.d"': pa.int8()}, defaults={'"c.d"': 3})
    orders.evolve(rename={"a.b": '"x.y"', "address.n": 'address."q.r"'})
    orders.evolve(add={'address."say ""hi"""': pa.int8()})
    assert orders.snapshot(0).to_pylist()[0] == {
        "id": 1,
        "address": {"city": "x", "q.r": 1, 'say "hi"': None},
        "items": [{"city": "y", "n": 2}, None],
        "places": [({"city": "k", "n": 3}, {"city": "z", "n": 4})],
        "x.y": 5,
        "c.d": 3,
    }
    orders.evolve(drop=["x.y", 'address."q.r"'])
    assert "x.y" not in orders.schema.names


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"add": {"adress.zip": pa.int8()}}, r"no column 'adress', did you mean 'address'.*'\"adress\.zip\"'"),
        ({"add": {"id.x": pa.int8()}}, "id is of type int64, and only a struct gets fields"),
        ({"add": {"items.x": pa.int8()}}, "items is of type list.*only a struct"),
        ({"add": {"address.city": pa.int8()}}, "two fields of 'address' would be called 'city'"),
        ({"add": {"address.city.x": pa.int8()}}, "address.city is of type string"),
        ({"add": {"places.key.x": pa.int8()}}, r"'places\.key' is in a key, whose fields cannot be added or dropped"),
        ({"add": {"a..b": pa.int8()}}, "not a path"),
        ({"add": {'"a.b': pa.int8()}}, "not a path"),
        ({"add": {"address.x": pa.int8()}, "defaults": {"address.x": 1}}, "inside of a column has no default"),
        ({"drop": ["address.zip"]}, r"'address' is of type struct.*which has \['city', 'n'\]"),
        ({"drop": ["id.x"]}, "'id' is of type int64, which has no fields inside"),
        ({"drop": ["address.city", "address.city"]}, "drop= names address.city twice"),
        ({"add": {"address.zip": "int64", '"address".zip': "int32"}}, "add= names address.zip twice"),
        ({"drop": ["address.city", "address.n"]}, "'address' would have no field any more"),
        ({"drop": ["items.element"]}, "no field of a struct"),
        ({"drop": ["places.key.n"]}, "is in a key"),
        ({"drop": ["address.n"], "widen": {"address.n": pa.int64()}}, "dropped, and changed besides"),
        ({"drop": ["address"], "add": {"address.x": pa.int8()}}, "dropped, and"),
        ({"rename": {"address.city": "city"}}, "would move a field.*'address.city'"),
        ({"rename": {"address.city": "items.element.x"}}, "would move a field"),
        ({"rename": {"address.city": "address.n"}}, "two fields of 'address' would be called 'n'"),
        ({"rename": {"items.element": "items.item"}}, "no field of a struct"),
        ({"rename": {"address": "x.y"}}, "would move a column.*'\"x.y\"'"),
        ({"widen": {"address.n": pa.int16()}}, r"field 'address\.n' is of type int32, and int16 does not hold"),
        ({"widen": {"items.element": CITY, "address": pa.struct([("x", pa.string())])}}, "by its path"),
        ({"widen": {"items.element": pa.struct([("x", pa.string()), ("y", pa.int64())])}}, "by their paths"),
        ({"widen": {"places.key.n": pa.int64()}}, r"key field 'places\.key\.n'"),
    ],
)
def test_a_path_that_leads_nowhere_and_a_change_that_cannot_be_made_are_refused(
    orders: persist.Collection, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(persist.errors.SchemaMismatch, match=message):
        orders.evolve(**change)
    assert (orders.schema.version, orders.snapshot(0).to_pylist()) == (1, ROWS)


def test_fields_of_keys_are_renamed_and_else_stay(client: persist.Client) -> None:
    keyed = client.create_or_load("keyed", key={"k": CITY}, value={"v": pa.int8()})
    keyed.write([(({"city": "x", "n": 1}, 1), 0, 1)], seal=1).result()
    for change in ({"add": {"k.x": pa.int8()}}, {"drop": ["k.n"]}, {"widen": {"k.n": pa.int64()}}):
        with pytest.raises(persist.errors.SchemaMismatch, match="key"):
            keyed.evolve(**change)
    keyed.evolve(rename={"k.n": "k.m"})
    assert keyed.get([{"city": "x", "m": 1}]) == [({"city": "x", "m": 1}, 1)]


def test_a_time_inside_that_a_finer_unit_cannot_hold_keeps_its_unit(client: persist.Client) -> None:
    struct = pa.struct([("at", pa.timestamp("s"))])
    far = client.create_or_load("far", key={"k": pa.int8()}, value={"v": pa.list_(struct)})
    at = pa.array([[{"at": 2**40}]], pa.list_(struct))
    far.write(pa.table({"k": pa.array([1], pa.int8()), "v": at}), time=0, seal=1).result()
    with pytest.raises(persist.errors.SchemaMismatch, match="holds times that"):
        far.evolve(widen={"v.element.at": pa.timestamp("ns")})
    assert far.evolve(widen={"v.element.at": pa.timestamp("ms")}) == 2


def test_events_that_wait_become_the_new_fields(client: persist.Client) -> None:
    users = client.create_or_load("users", key={"id": int}, value={"v": CITY}, keyed=persist.Keyed())
    users.upsert([(1, {"city": "x", "n": 1}, 0)]).result()
    users.evolve(add={"v.zip": pa.int8()}, drop=["v.n"])
    users.seal(1).result()
    assert users.snapshot(0).to_pylist() == [{"id": 1, "v": {"city": "x", "zip": None}}]


def test_an_index_does_not_give_the_values_of_a_dropped_field(client: persist.Client, orders: Any) -> None:
    orders.index("a.b")
    orders.evolve(drop=["address.n"], add={"address.n": pa.int32()})
    where = pc.field("a.b") == 5
    assert orders.snapshot(0, where=where).to_pylist()[0]["address"] == {"city": "x", "n": None}
    orders.index("a.b")
    assert orders.snapshot(0, where=where).to_pylist()[0]["address"] == {"city": "x", "n": None}


def test_a_clone_and_a_view_follow(client: persist.Client, orders: persist.Collection) -> None:
    view = client.create_view("towns", "SELECT id, address.city AS city FROM orders")
    orders.evolve(add={"address.zip": pa.string()}, rename={"address.city": "address.town"})
    clone = client.clone("orders", "copy")
    orders.write([((3, ({"town": "new", "n": 7, "zip": "9"}, None, None, None)), 1, 1)], seal=2).result()
    view.refresh()
    assert sorted(view.snapshot().to_pylist(), key=str) == [
        {"id": 1, "city": "x"},
        {"id": 2, "city": None},
        {"id": 3, "city": "new"},
    ]
    assert clone.snapshot().to_pylist() == orders.snapshot(0).to_pylist()
    assert client.sql("SELECT address.zip AS zip FROM orders WHERE address.town = 'new'").to_pylist() == [{"zip": "9"}]
    with pytest.raises(persist.errors.PersistError, match="towns"):
        orders.evolve(drop=["address.n"])


@pytest.mark.parametrize(
    "inner", [{"1": [0]}, {"1": [0, 0]}, {"1": [0, -1]}, {"0": [0]}, {"7": [0, 1]}, {"1": "01"}, [1]]
)
def test_numbers_that_do_not_fit_are_refused(inner: Any) -> None:
    schema = CollectionSchema.of({"k": pa.int8()}, {"v": CITY}).to_json()
    assert CollectionSchema.from_json({**schema, "inner": {"1": [4, 2]}}).shapes[1] == (CITY, (4, 2))
    with pytest.raises(ValueError, match="number"):
        CollectionSchema.from_json({**schema, "inner": inner})


def test_only_numbers_inside_of_columns_raise_the_format(orders: persist.Collection) -> None:
    orders.evolve(add={"n": pa.int8()})
    assert kinds.Evolve("0" * 32, orders.schema.to_json()).format_needed < 12
    orders.evolve(add={"address.zip": pa.string()})
    assert orders.schema.to_json()["inner"] == {"1": [0, 1, 2]}
    assert kinds.Evolve("0" * 32, orders.schema.to_json()).format_needed == 12


def test_a_wider_float_without_a_value_is_read_with_the_older_schema() -> None:
    with persist.open(f"memory://{uuid.uuid4().hex}") as client:
        value = {"s": pa.struct([("v", pa.float32())]), "l": pa.list_(pa.float32()), "f": pa.float32()}
        rows = client.create_or_load("rows", key={"id": pa.int64()}, value=value)
        rows.write([((1, (None, [], None)), 0, 1), ((2, ({"v": None}, None, None)), 0, 1)], seal=1).result()
        rows.evolve(widen={"s.v": pa.float64(), "l.element": pa.float64(), "f": pa.float64()})
        assert rows.snapshot(schema=1).to_arrow()["f"].null_count == 2
