"""What upserts refuse: each with an error of its own, and nothing half applied."""

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import persist
from persist.core.keyed.events import lift_events
from persist.core.keyed.intake import to_events
from persist.dataflow import Program, col
from persist.engine.location import engine
from persist.events import AppendDistinct, InsertIfAbsent

KEY, VALUE = {"k": pa.int64()}, {"at": pa.int64(), "v": pa.string(), "gone": pa.bool_()}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[persist.Client]:
    with persist.open(tmp_path) as client:
        yield client


def keyed(client: persist.Client, name: str = "users", **declared: Any) -> persist.Collection:
    return client.create_or_load(name, key=KEY, value=VALUE, keyed=persist.Keyed(**declared))


@pytest.mark.parametrize(
    ("events", "error", "says"),
    [
        ([(None, (1, "a", None), 0)], persist.errors.InvalidUpdate, "NULL in the key column 'k'"),
        (
            [(1, (1, "a", None), 0), (2, (1, "a", None))],
            persist.errors.InvalidUpdate,
            r"looks like \(key, value, time\), where None",
        ),
        ([(1, ("x", "a", None), 0)], persist.errors.InvalidUpdate, "update 0|at"),
        ("text", persist.errors.InvalidUpdate, "the rows are 'text', a text"),
        (pa.table({"k": [1], "_time": [0]}), persist.errors.SchemaMismatch, "missing"),
        (
            pa.table({"k": [1], "at": [1], "v": ["a"], "gone": [None], "_time": [0], "_diff": [1]}),
            persist.errors.SchemaMismatch,
            "_diff",
        ),
        (
            pa.table({"k": [1], "at": [1], "v": ["a"], "gone": [None], "_time": [0], "_deleted": ["yes"]}),
            persist.errors.SchemaMismatch,
            "_deleted",
        ),
        (
            pa.table({"k": [1, 2], "at": [1, None], "gone": [None, None], "_time": [0, 0], "_deleted": [False, True]}),
            persist.errors.SchemaMismatch,
            "'v' .*missing",
        ),
        ([(1, (1, "a", None), -1)], persist.errors.InvalidUpdate, "-1"),
    ],
)
def test_events_that_do_not_fit_are_refused_at_once(client: persist.Client, events: Any, error: Any, says: str) -> None:
    users = keyed(client)
    with pytest.raises(error, match=says):
        users.upsert(events)
    assert users.handle.contents().pending == {}


@pytest.mark.parametrize("missing", ["k", "at", "gone"])
def test_events_without_key_watermark_or_tombstone_are_refused(client: persist.Client, missing: str) -> None:
    users = keyed(client, order_by=["at"], tombstone="gone")
    events = pa.table({"k": [1], "at": [1], "v": ["a"], "gone": [False], "_time": [0]}).drop_columns([missing])
    with pytest.raises(persist.errors.SchemaMismatch, match=rf"'{missing}' .*is missing"):
        users.upsert(events)
    assert users.handle.contents().pending == {}


@pytest.mark.parametrize(
    ("declared", "error", "says"),
    [
        ({"order_by": "at"}, persist.InvalidUsage, "list of columns"),
        ({"order_by": ["nowhere"]}, persist.errors.SchemaMismatch, "nowhere"),
        ({"order_by": ["k"]}, persist.errors.SchemaMismatch, "'k'"),
        ({"order_by": ["at", "at"]}, persist.errors.SchemaMismatch, "twice"),
        ({"tombstone": ["gone", "v"]}, persist.InvalidUsage, "one column"),
        ({"tombstone": "nowhere"}, persist.errors.SchemaMismatch, "nowhere"),
        ({"tombstone": "gone", "tombstone_value": "x"}, persist.errors.SchemaMismatch, "strings"),
        ({"tombstone_value": "x"}, persist.InvalidUsage, "tombstone="),
        ({"late_bound": 3}, persist.InvalidUsage, "order_by"),
        ({"late_bound": "x", "order_by": ["at"]}, persist.InvalidUsage, "not a value of the first column of order_by"),
        ({"late_bound": persist.Behind(-1), "order_by": ["at"]}, persist.InvalidUsage, "negative"),
        ({"late_bound": 3, "order_by": ["v"]}, persist.errors.SchemaMismatch, "string"),
        ({"late_bound": pa.scalar(None, pa.int64()), "order_by": ["at"]}, persist.InvalidUsage, "NULL: give a value"),
        ({"resolve": "later"}, persist.InvalidUsage, "give .seal. or .background."),
        ({"machine": object()}, persist.InvalidUsage, "machine"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused(
    client: persist.Client, declared: dict[str, Any], error: Any, says: str
) -> None:
    with pytest.raises(error, match=says):
        keyed(client, **declared)
    assert list(client.collections()) == []


def test_a_nested_watermark_and_a_collection_without_keys_are_refused(client: persist.Client) -> None:
    with pytest.raises(persist.errors.SchemaMismatch, match="flat"):
        client.create_or_load("x", key=KEY, value={"at": pa.list_(pa.int64())}, keyed=persist.Keyed(order_by=["at"]))
    with pytest.raises(persist.errors.SchemaMismatch, match="key"):
        client.create_or_load("x", key=None, value=VALUE, keyed=persist.Keyed())
    with pytest.raises(persist.errors.SchemaMismatch, match="_deleted"):
        client.create_or_load("x", key=KEY, value={"_deleted": pa.bool_()}, keyed=persist.Keyed())


def test_another_declaration_of_an_existing_collection_is_refused(client: persist.Client) -> None:
    keyed(client, order_by=["at"], tombstone="gone")
    assert keyed(client, order_by=["at"], tombstone="gone").upper.time == 0
    gone = "tombstone is stored as 'gone', given as None"
    differences: list[tuple[dict[str, Any], str]] = [
        ({"order_by": ["at"]}, f"given: {gone}. The same"),
        ({"order_by": ["at", "v"], "tombstone": "gone"}, "order_by is stored as ('at',), given as ('at', 'v'). The"),
        ({}, f"order_by is stored as ('at',), given as (); {gone}. The"),
        (
            {"machine": AppendDistinct(["v"]), "order_by": ["at"], "tombstone": "gone"},
            "machine is stored as 'upsert' version 1, given as 'append-distinct' version 1, by=['v']. The",
        ),
    ]
    for other, said in differences:
        with pytest.raises(persist.errors.SchemaMismatch, match=re.escape(said)):
            keyed(client, **other)
    with pytest.raises(persist.errors.SchemaMismatch, match="stored as keyed, and given as not keyed: that cannot"):
        client.create_or_load("users", key=KEY, value=VALUE)
    with pytest.raises(persist.errors.SchemaMismatch, match="'k'"):
        form = persist.Keyed(order_by=["at"], tombstone="gone")
        client.create_or_load("users", key={"k": pa.string()}, value=VALUE, keyed=form)
    plain = client.create_or_load("plain", key=KEY, value=VALUE)
    with pytest.raises(persist.errors.NotKeyed, match="write"):
        plain.transition([(1, None, 0)])
    with pytest.raises(persist.errors.SchemaMismatch, match="stored as not keyed, and given as keyed: that cannot"):
        keyed(client, "plain")


def test_plain_writes_are_refused_in_all_their_forms(client: persist.Client) -> None:
    users = keyed(client)
    row = (1, (1, "a", None))
    with pytest.raises(persist.errors.KeyedCollection, match="upsert"):
        users.write([(row, 0, 1)])
    with pytest.raises(persist.InvalidUsage, match="keyed"), client.multi_write() as multi:
        multi.write(users, [(row, 0, 1)])
    users.upsert([(*row, 3)]).result()
    with client.multi_write() as multi:
        multi.seal(users, 3)
    assert users.upper.time == 3


def test_events_at_sealed_times_are_refused_whole_or_collected(client: persist.Client) -> None:
    users = keyed(client)
    users.upsert([(1, (1, "a", None), 0)], seal=5).result()
    batch = [(2, (1, "late", None), 4), (3, (1, "timely", None), 5)]
    for seal in (None, 6):
        with pytest.raises(persist.errors.UpdateNotBeyondUpper):
            users.upsert(batch, seal=seal).result()
    assert users.handle.contents().pending == {}
    future = users.upsert(batch, seal=6, late="collect")
    future.result()
    assert future.late is not None
    assert [(row["k"], row["_reason"]) for row in future.late.to_pylist()] == [(2, "sealed")]
    assert users.late_counts == {"sealed": 1}
    assert users.snapshot().count() == 2
    with pytest.raises(persist.InvalidUsage, match="late="):
        users.upsert(batch, late="drop")  # type: ignore[arg-type]


@pytest.mark.parametrize("resolve", ["seal", "background"])
def test_events_below_the_late_bound_are_refused_or_collected_and_the_bound_moves_on(
    client: persist.Client, resolve: Any
) -> None:
    users = keyed(client, order_by=["at"], tombstone="gone", late_bound=persist.Behind(10), resolve=resolve)
    assert users.late_bound is None
    users.upsert([(1, (100, "a", None), 0)]).result()
    assert users.late_bound == 90
    batch = [(2, (89, "late", None), 1), (3, (90, "timely", None), 1)]
    for seal in (None, 2):
        with pytest.raises(persist.errors.LateEvents, match=r"89.*90"):
            users.upsert(batch, seal=seal).result()
    future = users.upsert(batch, seal=2, late="collect")
    future.result()
    assert future.late is not None
    assert [(row["k"], row["_reason"]) for row in future.late.to_pylist()] == [(2, "late")]
    assert users.snapshot().count() == 2
    users.advance_late_bound(95).result()
    users.advance_late_bound(91).result()
    assert users.late_bound == 95


def test_events_that_were_late_belong_to_their_token_too(client: persist.Client) -> None:
    users = keyed(client)
    users.upsert([(1, (1, "a", None), 0)], seal=5).result()
    batch = [(2, (1, "late", None), 4), (3, (1, "timely", None), 5)]
    first = users.upsert(batch, token="t", seal=6, late="collect")
    again = users.upsert(batch, token="t", seal=6, late="collect")
    assert (first.exception(), again.exception()) == (None, None)
    assert first.late is not None
    assert again.late is None  # It was done before.
    assert users.late_counts == {"sealed": 1}
    all_late = users.upsert(batch, token="u", late="collect")
    all_late.result()
    assert all_late.late is not None
    assert len(all_late.late) == 2
    with pytest.raises(persist.errors.TokenReused):
        users.upsert(batch[:1], token="t", late="collect").result()


def test_a_deletion_that_a_late_row_would_undo_is_refused(client: persist.Client) -> None:
    with pytest.raises(persist.errors.InvalidUpdate, match="tombstone"):
        keyed(client, "a", order_by=["at"]).upsert([(1, None, 0)])
    with pytest.raises(persist.errors.InvalidUpdate, match="by which events are ordered"):
        keyed(client, "b", order_by=["at"], tombstone="gone").upsert([(1, None, 0)])
    with pytest.raises(persist.errors.InvalidUpdate, match="NULL"):
        keyed(client, "c", tombstone="v").upsert([(1, None, 0)])


def test_keys_are_deleted_by_themselves_or_with_their_watermark(client: persist.Client) -> None:
    users, ordered = keyed(client), keyed(client, "ordered", order_by=["at"], tombstone="gone")
    for each in (users, ordered):
        each.upsert([(k, (k, "a", None), 0) for k in range(4)], seal=1).result()
    users.delete([1, 2, 7], time=1)
    users.delete(pa.table({"k": [3]}), time=1)
    users.seal(2).result()
    assert users.snapshot().to_arrow()["k"].to_pylist() == [0]
    with pytest.raises(persist.errors.InvalidUpdate, match="by which events are ordered"):
        ordered.delete([1], time=1)
    ordered.delete([{"k": 1, "at": 5}, {"k": 2, "at": 1}], time=1)
    ordered.seal(2).result()
    assert ordered.snapshot().to_arrow()["k"].to_pylist() == [0, 2, 3]


def test_an_upsert_that_is_tried_again_with_its_token_happens_once(client: persist.Client, tmp_path: Path) -> None:
    users = keyed(client)
    users.upsert([(1, (1, "a", None), 0)], token="t", seal=1).result()
    users.upsert([(1, (1, "b", None), 1)], token="u").result()
    with persist.open(tmp_path) as other:
        again = other.load("users")
        again.upsert([(1, (1, "a", None), 0)], token="t", seal=1).result()
        again.upsert([(1, (1, "b", None), 1)], token="u").result()
        with pytest.raises(persist.errors.TokenReused):
            again.upsert([(1, (1, "other", None), 0)], token="t", seal=1).result()
        assert len(again.handle.contents().pending) == 1
        again.seal(2).result()
        assert [row["v"] for row in again.snapshot().to_arrow().to_pylist()] == ["b"]


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"options": {"at": object()}}, "cannot be written as JSON"),
        ({"options": {"by": (1, 2)}}, "are not the same when read back from JSON"),
        *(({"name": name}, "has a name of 1 to 128 printable") for name in ("", "x" * 129, "a\n")),
        ({"version": -1}, "printable characters and a version, not"),
        *(
            ({"event_fields": lambda *_, name=name: (pa.field(name, pa.int64()),)}, f"field '{name}' means something")
            for name in ("_seq", "_deleted", "k", "_time", "_diff")
        ),
        ({"name": "x" * 128}, ""),
        ({"name": "x", "version": 0}, ""),
    ],
)
def test_a_machine_that_cannot_be_stored_is_refused(client: persist.Client, members: dict[str, Any], says: str) -> None:
    machine = type("Odd", (InsertIfAbsent,), members)()
    with pytest.raises(persist.InvalidUsage, match=says) if says else nullcontext():
        keyed(client, machine=machine)


def test_events_at_the_time_of_their_commit_get_one_and_those_of_an_older_schema_are_read_by_the_newest(
    client: persist.Client,
) -> None:
    users = keyed(client)
    form = users.handle.contents().keyed
    assert form is not None
    events = to_events([(1, (1, "a", None), 0)], users.schema, form, None, None)
    placed = msgspec.structs.replace(events, at_commit=True).set_time(5)
    assert (placed.at_commit, placed.table["_time"].to_pylist()) == (False, [5])
    old = users.schema
    users.evolve(add={"more": pa.string()})
    newest = users.handle.contents().schema
    assert lift_events(events.table, old, old) is events.table
    assert lift_events(events.table, old, newest)["more"].to_pylist() == [None]


def sink_of_a_program(client: persist.Client) -> None:
    program = Program("p", dimensions=1).using(client)
    program.source("rows").map(id=col("id"), _unchanged=col("id")).persist("new", key=["id"])
    with program.open(client) as running:
        running.step()


def test_no_new_column_has_the_name_that_lists_unchanged_columns(client: persist.Client) -> None:
    frame = pa.table({"id": [1], "_unchanged": pa.array([["v"]], pa.list_(pa.string()))})
    rows = client.create_or_load("rows", key={"id": int}, value=None)
    rows.write([{"id": 1}]).result()
    creations: list[Callable[[], object]] = [
        lambda: client.create_or_load("new", key={"id": int}, value={"_unchanged": int}),
        lambda: client.create_or_load("new", key={"id": int}, value={"_unchanged": int}, keyed=persist.Keyed()),
        lambda: client.write("new", frame, key=["id"]),
        lambda: client.sql("CREATE TABLE new (id BIGINT PRIMARY KEY, _unchanged BIGINT)"),
        lambda: client.create_or_load("new", key=["id"], like=frame),
        lambda: client.sql("CREATE TABLE new AS SELECT id, 'a' AS _unchanged FROM rows"),
        lambda: client.create_view("new", "SELECT id, 'a' AS _unchanged FROM rows"),
        lambda: client.sql("CREATE VIEW new AS SELECT id AS _unchanged FROM rows"),
        lambda: sink_of_a_program(client),
        lambda: rows.evolve(add={"_unchanged": int}),
        lambda: rows.evolve(rename={"id": "_unchanged"}),
        lambda: client.sql("ALTER TABLE rows RENAME COLUMN id TO _unchanged"),
    ]
    for create in creations:
        with pytest.raises(persist.errors.SchemaMismatch, match="'_unchanged' means something else"):
            create()
    assert "new" not in client


def test_a_column_of_that_name_from_an_earlier_version_is_a_column(
    client: persist.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "check_new_names", lambda names: None)  # Earlier versions had no such check.
    client.create_or_load("old", key={"id": int}, value={"_unchanged": str}, keyed=persist.Keyed())
    monkeypatch.undo()
    old = client.create_or_load("old", key={"id": int}, value={"_unchanged": str}, keyed=persist.Keyed())
    old.upsert([{"id": 1, "_unchanged": "a"}], time=0, seal=1).result()
    old.evolve(add={"v": int})
    old.upsert([{"id": 2, "_unchanged": "b", "v": 1}], time=1, seal=2).result()
    with old.snapshot() as snapshot:
        assert snapshot.to_pylist() == [{"id": 1, "_unchanged": "a", "v": None}, {"id": 2, "_unchanged": "b", "v": 1}]


def test_a_machine_refuses_events_that_leave_columns_as_they_are(client: persist.Client) -> None:
    keyed = persist.Keyed(machine=InsertIfAbsent())
    rows = client.create_or_load("rows", key={"id": int}, value={"v": str}, keyed=keyed)
    event = pa.table({"id": [1], "v": [None], "_unchanged": pa.array([["v"]], pa.list_(pa.string()))})
    with pytest.raises(
        persist.errors.SchemaMismatch, match=r'needs whole events: read the messages with unchanged="refuse"'
    ):
        rows.transition(event, time=0)
