"""An index: what is read by it, how it is kept, and what it follows; answers are those of the collection without it."""

import pickle
import re
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from persist.compute.index import load_indexes, plan_paths
from persist.compute.index.lookups import find_by_index
from persist.core.expression.filters import parse_where
from persist.core.log import kinds
from persist.core.state_rules.erasures import count_erasures
from persist.engine.collection.reads import snapshot
from persist.errors import ColumnsNeeded, InvalidUsage, SchemaMismatch
from persist.sql import Wanted, plan_views
from persist.tools.reports.surveys import format_hold
from tests.compute.index.always import QUIET, indexes_that_always_pay
from tests.support.stepped import Stepped

ROWS = 120_000


@pytest.fixture
def facts(client: persist.Client) -> persist.Collection:
    """Return a collection that has been sealed to 1, of which nothing but an index can be read in part by d."""
    return made_facts(client)


@pytest.fixture(scope="module")
def indexed() -> Iterator[tuple[persist.Client, persist.Collection, persist.Collection]]:
    """A client, such a collection with an index by d and changes after it began, and one without an index."""
    with persist.open(f"memory://{uuid.uuid4()}", settings=QUIET) as client:
        facts, same = made_facts(client), made_facts(client, "same")
        facts.index("d")
        for each in (facts, same):
            each.upsert([(5, (7919, 1)), (7, None)], time=1, seal=2).result()
        yield client, facts, same


def made_facts(client: persist.Client, name: str = "facts") -> persist.Collection:
    facts = client.create_or_load(name, key={"id": int}, value={"d": int, "amount": int})
    ids = range(ROWS)
    table = pa.table({"id": ids, "d": [n * 7919 % 20_000 for n in ids], "amount": [n % 100 for n in ids]})
    facts.write(table, time=0, seal=1).result()
    return facts


def plain(collection: persist.Collection, where: str, as_of: Any = None) -> list[dict[str, Any]]:
    """Return what a collection holds where a condition holds, without an index."""
    with snapshot(collection.handle, as_of, where=where) as contents:
        return by_all(contents.to_arrow())


def by_all(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.sort_by([(name, "ascending") for name in sorted(table.column_names)]).to_pylist()
    return rows


def bytes_read(client: persist.Client) -> int:
    return int(client.metrics().store["get"].bytes)


def test_a_look_up_by_an_index_reads_a_small_part_of_what_there_is(client: persist.Client) -> None:
    chance = np.random.default_rng(1)
    rows = {"id": np.arange(400_000), "d": chance.integers(0, 40_000, 400_000), "n": chance.integers(0, 99, 400_000)}
    client.write("facts", pa.table(rows), key=["id"], timeline=None, time=0, seal=1).result()
    facts = client.load("facts")
    facts.index("d")
    read = []
    for look_up in (facts_by_index, plain):
        with persist.open(client.url, mode="read") as reader:
            begun = bytes_read(reader)
            found = look_up(reader.load("facts"), "d = 7919")
            read.append(bytes_read(reader) - begun)
            assert {row["d"] for row in found} == {7919}
            assert len(found) == int((rows["d"] == 7919).sum())
    assert 2 * read[0] < read[1]


WHERES = {
    "d = 7919": True,
    "d in (5, 7, 19999)": True,
    "d between 100 and 300": True,
    f"d in {tuple(range(100, 140))}": True,
    "d >= 19900": True,
    "d < 10 or d > 19990": True,
    "d = 7919 and amount > 50": True,
    "d is null": False,  # Statistics say that there are none.
    "not d <> 12": True,
    "amount = 5": False,
    "d > 50": False,
    "d = 5 or amount = 5": False,
}


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("where", WHERES)
def test_what_reads_by_a_condition_uses_an_index_where_that_reads_much_less(
    indexed: tuple[persist.Client, persist.Collection, persist.Collection], where: str
) -> None:
    client, facts, same = indexed
    as_of = [*WHERES].index(where) % 2
    wanted = plain(same, where, as_of)
    with facts.snapshot(as_of, where=where) as contents, facts.snapshot(as_of) as all_:
        assert (contents.explain().index == ("d",)) == WHERES[where]
        assert ("index     d: " in str(contents.explain())) == WHERES[where]
        assert by_all(contents.to_arrow()) == by_all(facts.get(where=where, as_of=as_of)) == wanted
        assert contents.count() == len(wanted)
        condition = parse_where(where, facts.schema)
        assert by_all(all_.dataset().to_table(filter=condition)) == wanted
    with client.sql(f"SELECT * FROM facts WHERE {where}", as_of=as_of) as answer:
        assert by_all(answer.to_arrow()) == wanted
        told = answer.explain()
        assert told.startswith(f'{len(wanted):,} rows of\n"facts": snapshot as of {as_of}')
        if " or " not in where and "not" not in where:  # DuckDB does not hand all of these down.
            assert ("index     d: " in told) == WHERES[where]


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize(
    ("where", "columns"),
    [
        ("a = 3", 1),
        ("a = 3 and b between 5 and 6", 1),
        ("a in (1, 3) and b = 7", 1),
        ("b = 7", 0),
        ("a = 3 and b is null", 1),
    ],
)
def test_conditions_on_the_first_columns_of_an_index_will_do(client: persist.Client, where: str, columns: int) -> None:
    things = client.create_or_load("things", key={"id": int}, value={"a": int, "b": int, "note": str})
    ids = range(60_000)
    rows = {"id": ids, "a": [n % 40 for n in ids], "b": [n % 97 or None for n in ids], "note": ["x"] * len(ids)}
    things.write(pa.table(rows), time=0, seal=1).result()
    things.index("a", "b")
    with things.snapshot(where=where, columns=["note", "id"]) as contents:
        assert (contents.explain().index is not None) == bool(columns)
        assert sorted(contents.to_arrow()["id"].to_pylist()) == sorted(row["id"] for row in plain(things, where))


def test_floats_beyond_all_bounds_are_found_in_an_index(client: persist.Client) -> None:
    rows = client.create_or_load("rows", key={"id": int}, value={"x": float})
    values = [float("nan"), float("inf"), float("-inf"), None, 1.5, -2.0, 0.0]
    ids = range(70_000)
    rows.write(
        pa.table({"id": ids, "x": [values[n % 7] if n % 100 < 7 else float(n) for n in ids]}), time=0, seal=1
    ).result()
    rows.index("x")
    conditions = ["x > 1e300", "x < -1", "not (x >= 5)", "not (x <= 69990)", "x is null", "not x < 69999", "x = 1.5"]
    for where in conditions:
        with rows.snapshot(where=where) as contents:
            found = sorted(contents.to_arrow()["id"].to_pylist())
            assert found == sorted(row["id"] for row in plain(rows, where)), where
    nan = pc.is_nan(pc.field("x"))
    with rows.snapshot(where=nan) as contents, snapshot(rows.handle, where=nan) as wanted:
        assert len(contents) == len(wanted) > 0


def test_negative_multiplicities_are_refused_and_shown_by_an_index_as_without(client: persist.Client) -> None:
    rows = client.create_or_load("rows", key={"id": int}, value={"d": int})
    rows.write([((1, 5), 0, -1), ((2, 5), 0, 2), ((3, 6), 0, 1)], seal=1).result()
    rows.index("d")
    with indexes_that_always_pay():
        with pytest.raises(persist.errors.NegativeMultiplicity):
            rows.get(where="d = 5")
        with rows.snapshot(where="d = 5", form="diff") as contents:
            assert contents.explain().index == ("d",)
            assert {row["id"]: row["_diff"] for row in contents.to_arrow().to_pylist()} == {1: -1, 2: 2}
            assert contents.count() == 1
        assert len(rows.get(where="d = 6")) == 1


def test_an_open_snapshot_uses_no_index_that_was_made_after_an_erasure(facts: persist.Collection) -> None:
    facts.index("d")
    with facts.snapshot(where="d = 7919") as before:
        assert before.explain().index == ("d",)
        facts.erase(where="d = 7919", reason="a test")
        facts.index("d")
        assert before.explain().index is None
    with facts.snapshot(where="d = 7919") as after:
        assert after.explain().index == ("d",)
        assert len(after) == 0


@pytest.mark.parametrize("where", ["x = -0.0", "x IN (-0.0, 0.0)", "x IN (1.5, 1.5, -0.0)", "x = -0.0 AND d = 1"])
def test_a_zero_with_a_sign_is_found_in_an_index_and_in_what_it_lacks(client: persist.Client, where: str) -> None:
    rows = client.create_or_load("rows", key={"id": int}, value={"x": float, "d": int})
    rows.write([((1, (0.0, 1)), 0, 1), ((2, (-0.0, 1)), 0, 2), ((3, (1.5, 1)), 0, 1)], seal=1).result()
    rows.index("x")
    rows.index("x", "d")
    rows.write([((4, (0.0, 1)), 1, 1), ((5, (-0.0, 1)), 1, 1), ((1, (0.0, 1)), 1, -1)], seal=2).result()
    with indexes_that_always_pay():
        for as_of in (0, 1):
            assert by_all(rows.get(where=where, as_of=as_of)) == plain(rows, where, as_of)


def facts_by_index(facts: persist.Collection, where: str) -> list[dict[str, Any]]:
    return by_all(facts.get(where=where))


def test_an_open_snapshot_uses_no_index_of_times_that_its_state_does_not_know(facts: persist.Collection) -> None:
    facts.index("d")
    contents = facts.handle.get_known_state()
    assert plan_paths(facts.handle, contents, facts.schema, 0, ["id", "d"])
    with facts.snapshot(0, where="d = 7919") as before:
        facts.write([((1_000_000, (7919, 1)), 1, 1)], seal=2).result()
        facts.index("d")
        assert plan_paths(facts.handle, facts.handle.get_known_state(), facts.schema, 0, ["id", "d"])
        assert not plan_paths(facts.handle, contents, facts.schema, 0, ["id", "d"])
        assert 1_000_000 not in before.to_arrow()["id"].to_pylist()


VALUES: dict[str, tuple[pa.DataType, list[Any], str]] = {
    "texts": (pa.string(), ["a", "b", "", "a" * 200, None], "x = 'a'"),
    "long texts": (pa.large_string(), ["a", "b", "", "a" * 200, None], f"x in ('{'a' * 200}', 'b')"),
    "floats": (pa.float64(), [0.0, 1.5, float("nan"), float("inf"), None], "x = 0"),
    "small": (pa.int8(), [-128, 127, 0, 5, None], "x = -128"),
    "large": (pa.uint64(), [2**63 - 1, 0, 7, 8, None], "x = 7"),
    "decimals": (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-2.00"), Decimal(0), None], "x = 1.5"),
    "booleans": (pa.bool_(), [True, False, None], "x = true"),
    "moments": (pa.timestamp("us", "UTC"), [datetime(2026, 1, n, tzinfo=UTC) for n in (1, 2, 3)], "x = '2026-01-02'"),
}  # fmt: skip


@pytest.mark.parametrize("kind", VALUES)
def test_columns_of_all_flat_types_are_looked_up_by(client: persist.Client, kind: str) -> None:
    column, values, where = VALUES[kind]
    things = client.create_or_load("things", key={"id": pa.int64()}, value={"x": column, "y": pa.string()})
    things.write([(n, (value, str(n))) for n, value in enumerate(values * 3)], time=0, seal=1).result()
    things.index("x")
    things.write([(100, (values[1], "new"))], time=1, seal=2).result()
    with indexes_that_always_pay():
        for as_of in (0, 1):
            found = things.get(where=where, as_of=as_of)
            assert 0 < len(found) < 3 * len(values)
            assert by_all(found) == plain(things, where, as_of)


def test_collections_of_any_shape_have_indexes_of_several_columns(client: persist.Client) -> None:
    bag = client.create_or_load("bag", key=None, value={"a": int, "b": str})
    keys = client.create_or_load("keys", key={"a": int, "b": str, "c": int})
    bag.write([(None, (n % 3, "x")) for n in range(9)], time=0, seal=1).result()
    keys.write([((n % 3, f"b{n % 2}", n), None) for n in range(12)], time=0, seal=1).result()
    for collection, columns in ((bag, ("a",)), (bag, ("b", "a")), (keys, ("c",)), (keys, ("b", "a"))):
        collection.index(*columns)
    with indexes_that_always_pay():
        assert len(bag.get(where="a = 1")) == 3
        assert by_all(keys.get(where="a = 1 and b = 'b0'")) == plain(keys, "a = 1 and b = 'b0'")
        assert by_all(keys.get(where="c = 5")) == plain(keys, "c = 5")
    assert [index.columns for index in keys.indexes()] == [("b", "a"), ("c",)]


def test_keyed_collections_have_indexes(client: persist.Client) -> None:
    users = client.create_or_load("users", key={"id": int}, value={"city": str, "n": int}, keyed=persist.Keyed())
    users.upsert([(1, ("oslo", 1), 0), (2, ("rome", 1), 0), (3, ("rome", 1), 0)], seal=1).result()
    users.index("city")
    users.upsert([(2, ("oslo", 2), 1), (3, None, 1), (1, ("rome", 0), 1)], seal=2).result()
    with indexes_that_always_pay():
        for as_of in (0, 1):
            for city in ("oslo", "rome"):
                assert by_all(users.get(where=f"city = '{city}'", as_of=as_of)) == plain(
                    users, f"city = '{city}'", as_of
                )
    assert users.index("city").as_of == 1
    with indexes_that_always_pay():
        assert by_all(users.get(where="city = 'rome'")) == plain(users, "city = 'rome'")


def test_an_index_of_what_nothing_is_sealed_of_begins_with_the_first_seal(client: persist.Client) -> None:
    orders = client.create_or_load("orders", key={"id": int}, value={"c": int})
    assert orders.index("c").as_of == -1
    with pytest.raises(persist.errors.AsOfNotSealed):
        orders.get(where="c = 1")
    orders.write([(1, 1), (2, 2)], time=0, seal=1).result()
    assert orders.index("c").as_of == 0
    orders.seal(persist.Antichain()).result()
    assert orders.index("c").as_of == 2**63 - 2
    with indexes_that_always_pay():
        assert by_all(orders.get(where="c = 1")) == [{"id": 1, "c": 1}]


def test_an_index_follows_columns_that_change(facts: persist.Collection) -> None:
    facts.index("d")
    facts.evolve(rename={"d": "dim"})
    with indexes_that_always_pay():
        assert by_all(facts.get(where="dim = 7919")) == plain(facts, "dim = 7919")
        assert facts.indexes()[0].columns == ("dim",)
        with pytest.raises(ColumnsNeeded, match=r"'dim' is what an index looks up by.*drop_index"):
            facts.evolve(drop=["dim"])
        facts.write([(ROWS, (7919, 1))], time=1, seal=2).result()
        facts.evolve(add={"note": str}, drop=["amount"], widen={})
        facts.write([(ROWS + 1, (7919, "new"))], time=2, seal=3).result()
        for _ in range(2):  # By an index that is older than the columns, and by one that was made anew.
            assert len(facts.get(where="dim = 7919")) == ROWS // 20_000 + 2
            assert by_all(facts.get(where="dim = 7919")) == plain(facts, "dim = 7919")
            facts.index("dim")
        facts.drop_index("dim").result()
        facts.index("note")
        facts.evolve(add={"later": str})
        facts.index("dim")  # The other one lacks a column, and is passed over.
        for where, columns in (("dim = 7919", ("dim",)), (None, None)):
            with facts.snapshot(where=where) as contents:
                assert contents.explain().index == columns
        facts.drop_index("dim").result()
        facts.evolve(drop=["dim"])


def test_a_collection_can_be_dropped_whose_index_others_made_anew(
    client: persist.Client, facts: persist.Collection
) -> None:
    facts.index("d")
    with persist.open(client.engine.blob, settings=QUIET) as other:
        theirs = other.load("facts")
        theirs.drop_index("d").result()
        theirs.index("d")
        facts.drop().result()
    assert list(client.collections()) == []


def test_dropping_an_index_changes_no_answer_and_dropping_the_collection_drops_its_indexes(
    client: persist.Client, facts: persist.Collection
) -> None:
    facts.index("d")
    facts.index("amount", "d")
    told = "collection 'facts' has no index by {}; it has {}: name the columns of one"
    with pytest.raises(InvalidUsage, match=re.escape(told.format(["amount"], [["d"], ["amount", "d"]]))):
        facts.drop_index("amount")
    found = facts.get(where="d = 7919")
    facts.drop_index("d").result()
    assert by_all(facts.get(where="d = 7919")) == by_all(found)
    assert [index.columns for index in facts.indexes()] == [("amount", "d")]
    facts.drop_index("amount", "d").result()
    with pytest.raises(InvalidUsage, match=re.escape(told.format(["d"], "none"))):
        facts.drop_index("d")
    facts.index("amount", "d")
    assert client.collections() == ["facts"]
    assert any(hold.name and hold.name.startswith("index ") for hold in facts.holds())
    facts.drop().result()
    assert client.engine.names(".") == []
    assert client.fsck().problems == ()


@pytest.mark.parametrize("anew", ["begins anew", "is replaced"])
def test_a_view_that_is_made_anew_leaves_no_index_behind(
    anew: str, client: persist.Client, facts: persist.Collection
) -> None:
    view = client.create_view("v", "SELECT d, count(*) AS n FROM facts GROUP BY d", key=["d"])
    view.refresh()
    view.index("n")
    if anew == "begins anew":
        view.redefine(None, start="now")
    else:
        plan_views(client, {"v": Wanted("SELECT d, sum(amount) AS n FROM facts GROUP BY d", ("d",))}).commit()
    assert client.engine.names(".") == []
    assert format_hold(f"index {view.id}", {view.id: ".index." + facts.id + ".1", facts.id: "facts"}) == "index facts"


def test_an_index_whose_collection_is_gone_is_cleared_away(client: persist.Client, facts: persist.Collection) -> None:
    facts.index("d")
    compaction = client.engine.writer("maintain").compaction
    compaction.sweep(destroys=False)
    client.engine.submit("drop", [kinds.Destroy(facts.id)], {facts.id: "facts"}).result()
    assert len(client.engine.names(".index.")) == 1
    compaction.sweep(destroys=False)
    assert client.engine.names(".") == []


def test_an_index_keeps_only_what_its_next_refresh_needs(client: persist.Client, facts: persist.Collection) -> None:
    facts.index("d")
    facts.write([(1, (5, 5))], time=1, seal=3).result()
    facts.allow_compaction(2).result()
    assert facts.since == persist.Antichain(0)
    facts.index("d")
    assert facts.since == persist.Antichain(2)
    assert load_indexes(facts.handle)[0].contents.since == persist.Antichain(2)
    client.maintain()
    with indexes_that_always_pay():
        assert by_all(facts.get(where="d = 5")) == plain(facts, "d = 5")


@pytest.mark.parametrize("by", ["client", "view"])
def test_clients_and_views_refresh_indexes_that_are_far_behind(
    client: persist.Client, facts: persist.Collection, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    facts.index("d")
    view = client.create_view("v", "SELECT d, count(*) AS n FROM facts GROUP BY d")
    view.refresh()
    for time, (rows, parts, is_due) in enumerate(((3, 1, False), (2, 1, True), (3, 0, True)), 1):
        before = facts.indexes()[0].as_of
        monkeypatch.setattr("persist.compute.index.maintenance.LAG_ROWS", rows)
        monkeypatch.setattr("persist.compute.index.maintenance.LAG_PARTS", parts)
        facts.write([((1, (5, 5)), time, 1), ((2, (5, 5)), time, 1)], seal=time + 1).result()
        client.maintain() if by == "client" else view.refresh()
        assert facts.indexes()[0].as_of == (time if is_due else before)


def test_of_two_that_make_or_refresh_an_index_at_once_one_does(facts: persist.Collection) -> None:
    with persist.open(facts.handle.engine.url, settings=QUIET) as other:
        theirs = other.load("facts")
        assert facts.index("d").as_of == theirs.index("d").as_of == 0
        assert len(theirs.indexes()) == 1
        facts.write([(1, (5, 5))], time=1, seal=2).result()
        assert theirs.index("d").as_of == facts.index("d").as_of == 1
        theirs.drop_index("d").result()
        assert facts.index("d").as_of == 1


def test_a_look_up_goes_on_without_an_index_whose_parts_are_gone(facts: persist.Collection) -> None:
    facts.index("d")
    blob = facts.handle.engine.blob
    for part in load_indexes(facts.handle)[0].contents.parts:
        blob.delete(part.blob)
    with indexes_that_always_pay():
        assert by_all(facts.get(where="d = 7919")) == plain(facts, "d = 7919")


def test_other_processes_look_up_by_what_they_are_sent(facts: persist.Collection) -> None:
    """By an index that is older or newer than the read, until its parts are gone."""
    index, keys = facts.index("d"), pa.table({"d": [7919]})
    facts.write([((ROWS, (7919, 5)), 1, 1), ((1, (7919, 1)), 1, -1), ((2, (5, 5)), 1, 1)], seal=2).result()
    reader = facts.handle.engine.reader()
    for as_of, is_refreshed in ((0, False), (1, False), (0, True), (1, True)):
        if is_refreshed:
            facts.index("d")
        (path,) = plan_paths(facts.handle, facts.handle.get_known_state(), facts.schema, as_of, ["id", "d"])
        assert (path.columns, path.is_ahead) == (("d",), is_refreshed and as_of == 0)
        assert (path.changes is None) == (as_of == is_refreshed)
        more = path.estimate_bytes(keys) - replace(path, changes=None).estimate_bytes(keys)
        assert more == (0 if path.changes is None else path.changes.memory)
        sent = pickle.loads(pickle.dumps(path))
        found = Counter[int]()
        for table in sent.find_records(keys, reader):
            assert table.column_names == ["id", "d", "_diff"]
            for row in table.to_pylist():
                found[row["id"]] += row["_diff"] if row["d"] == 7919 else 1000
        assert {n: diff for n, diff in found.items() if diff} == {
            row["id"]: 1 for row in plain(facts, "d = 7919", as_of)
        }
    assert index.rows == ROWS
    for key in [part.blob for part in load_indexes(facts.handle)[0].contents.parts if part.blob]:
        facts.handle.engine.blob.delete(key)
    with pytest.raises(persist.errors.LeaseExpired):
        list(path.find_records(keys, reader))


def test_an_index_is_used_if_it_reads_less_than_half_and_not_too_much(
    facts: persist.Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts.index("d")
    erasures = count_erasures(facts.handle.get_known_state())
    with facts.snapshot(where="d < 10 or d > 19990") as contents:
        scan = contents.scan
    plan = find_by_index(facts.handle, erasures, scan, scan.memory)
    assert plan is not None
    assert (plan.memory, len(plan.ranges)) == (sum(part.memory for part in plan.ranges), 2)
    assert 15 * plan.memory < scan.memory
    pays = scan.memory // plan.memory
    for most, changed, pays_, least, is_used in (
        (plan.memory, 0, 2, 1, True),
        (plan.memory - 1, 0, 2, 1, False),
        (scan.memory, 1, 2, 1, False),
        (scan.memory, 0, pays, 1, True),
        (scan.memory, 0, pays + 1, 1, False),
        (scan.memory, 0, 2, scan.memory // 2, True),
        (scan.memory, 0, 2, scan.memory // 2 + 1, False),
    ):
        monkeypatch.setattr("persist.compute.index.lookups.PAYS", pays_)
        monkeypatch.setattr("persist.compute.index.lookups.LEAST_BYTES", least)
        found = find_by_index(facts.handle, erasures + changed, scan, most)
        assert (found is not None) == is_used, (most, changed, pays_, least)
    for none in (replace(scan, filter=None), replace(scan, columns=())):
        assert find_by_index(facts.handle, erasures, none, scan.memory) is None


def test_what_cannot_be_an_index_is_refused(client: persist.Client) -> None:
    orders = client.create_or_load("orders", key={"id": int}, value={"tags": pa.list_(pa.string()), "c": int})
    with pytest.raises(InvalidUsage, match=r"'tags' is of type list.* which has no order"):
        orders.index("tags")
    with pytest.raises(InvalidUsage, match="in the order of"):
        orders.index("id")
    with pytest.raises(InvalidUsage, match="was given no column"):
        orders.index()
    with pytest.raises(SchemaMismatch, match="'cc' is not a column"):
        orders.index("cc")
    with pytest.raises(SchemaMismatch, match="'c' is there twice"):
        orders.index("c", "c")
    with pytest.raises(InvalidUsage, match="takes keys, such as"):
        orders.get()  # type: ignore[call-overload]
    with pytest.raises(InvalidUsage, match="takes keys, such as"):
        orders.get([1], where="c = 1")  # type: ignore[call-overload]
    orders.index("c")  # A list beside it is held as it is.
    orders.write([(1, (["a"], 5))], time=0, seal=1).result()
    with indexes_that_always_pay():
        assert orders.get(where="c = 5").to_pylist() == [{"id": 1, "tags": ["a"], "c": 5}]
    index = client.load(load_indexes(orders.handle)[0].handle.name)
    with pytest.raises(InvalidUsage, match="library's own"):
        index.index("id")
    with persist.open(client.url, mode="read") as reader, pytest.raises(persist.errors.ReadOnly):
        reader.load("orders").index("c")


def test_an_index_that_is_not_made_leaves_nothing(facts: persist.Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the process dies")

    with monkeypatch.context() as patched:
        patched.setattr("persist.compute.index.maintenance._make_seal_step", fail)
        with pytest.raises(RuntimeError):
            facts.index("d")
    assert facts.indexes() == []
    assert all(hold.name is None for hold in facts.holds())
    assert facts.index("d").rows == ROWS


def test_an_index_is_made_anew_though_it_alone_keeps_history_readable(client: persist.Client) -> None:
    orders = client.create_or_load("orders", key={"id": int}, value={"c": int})
    orders.write([((1, 5), 3, 1)]).result()
    orders.index("c")
    orders.allow_compaction(2).result()
    orders.evolve(add={"note": pa.string()})
    client.maintain()
    client.load("orders").seal(4).result()
    with indexes_that_always_pay():
        assert client.load("orders").get(where="c = 5").to_pylist() == [{"id": 1, "c": 5, "note": None}]


def test_an_index_that_another_client_makes_goes_with_a_view_that_is_made_anew() -> None:
    blob = Stepped(persist.MemoryBlob())
    with persist.open(blob) as client, persist.open(blob) as other:
        flights = client.create_or_load("flights", key={"id": int}, value={"delay": int})
        flights.write([(1, 30), (2, 0)]).result()
        client.create_view("late", "SELECT id, delay FROM flights WHERE delay > 15")
        blob.before("create", "log/", lambda: other["late"].index("delay"))
        client.view("late").redefine(start="now")
        assert blob.is_done
        client.engine.follower.refresh()
        names = client.engine.follower.apply_to_state(
            lambda state: [name for name, _ in state.ids.iterate_prefix(".index.")]
        )
        assert names == []
        assert "late" in client
