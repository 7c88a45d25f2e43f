"""Groups of columns with an order of their own: late, partial and deleting events, against a model of a few lines."""

import itertools
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from persist import errors
from persist.core.keyed.form import check_same_form
from persist.core.log.fields import GroupForm, KeyedForm, MachineForm
from persist.events import InsertIfAbsent

NAMES = ("a", "b", "g_1", "c", "d", "g_2", "g_3")


def grouped(client: persist.Client, names: tuple[str, ...], groups: dict[Any, list[str]]) -> persist.Collection:
    return client.create_or_load(
        "t", key={"k": int}, value=dict.fromkeys(names, int), keyed=persist.Keyed(groups=groups)
    )


def rows_of(collection: persist.Collection) -> list[Any]:
    return sorted(collection.snapshot().rows())


def next_time(collection: persist.Collection) -> int:
    upper = collection.upper.time
    assert upper is not None, "it is not complete"
    return upper + 1


def test_each_group_of_whole_rows_has_its_own_order(client: persist.Client) -> None:
    """The first example of Paimon's page on sequence groups."""
    t = grouped(client, NAMES[:6], {"g_1": ["a", "b"], "g_2": ["c", "d"]})
    t.upsert([(1, (1, 1, 1, 1, 1, 1))]).result()
    t.upsert([(1, (2, 2, 2, 2, 2, None))]).result()
    assert rows_of(t) == [(1, (2, 2, 2, 1, 1, 1))], "g_2 is NULL: c and d stay"
    t.upsert([(1, (3, 3, 1, 3, 3, 3))]).result()
    assert rows_of(t) == [(1, (2, 2, 2, 3, 3, 3))], "g_1 is smaller: a and b stay"


def test_a_group_may_be_ordered_by_several_columns(client: persist.Client) -> None:
    """The second example of Paimon's page on sequence groups."""
    t = grouped(client, NAMES, {"g_1": ["a", "b"], ("g_2", "g_3"): ["c", "d"]})
    t.upsert([(1, (1, 1, 1, 1, 1, 1, 1))]).result()
    t.upsert([(1, (2, 2, 2, 2, 2, 1, None))]).result()
    assert rows_of(t) == [(1, (2, 2, 2, 1, 1, 1, 1))]
    t.upsert([(1, (3, 3, 1, 3, 3, 3, 1))]).result()
    assert rows_of(t) == [(1, (2, 2, 2, 3, 3, 3, 1))]


def test_partial_rows_complete_each_other(client: persist.Client) -> None:
    """The example of Paimon's page on partial updates; the columns that a row lacks are not in it."""
    t = client.create_or_load("t", key={"k": int}, value={"price": float, "n": int, "text": str}, keyed=persist.Keyed())
    for row in ({"price": 23.0, "n": 10}, {"text": "This is a book"}, {"price": 25.2}):
        t.update([{"k": 1, **row}], missing="insert").result()
    assert rows_of(t) == [(1, (25.2, 10, "This is a book"))]


def test_a_declaration_is_checked_and_stored(client: persist.Client) -> None:
    value = {"a": int, "b": str, "at": int, "gone": bool, "list": pa.list_(pa.int64())}
    bad: list[tuple[dict[str, Any], str]] = [
        ({"groups": {"at": ["none"]}}, "'none', which is not a value column"),
        ({"groups": {"list": ["a"]}}, "only flat columns"),
        ({"groups": {"at": ["a"], "b": ["a"]}}, "a column has one order"),
        ({"groups": {"at": ["a"]}, "order_by": ["at"]}, "a column has one order"),
        ({"groups": {"at": ["gone"]}, "tombstone": "gone"}, "a column has one order"),
        ({"groups": {(): ["a"]}}, "without an ordering column"),
        ({"groups": {"at": "a"}}, "is not a dict"),
        ({"groups": ["at"]}, "is not a dict"),
        ({"groups": {"at": None}}, "is not a dict"),
        ({"groups": {"at": [1]}}, "is not a dict"),
        ({"groups": {1: ["a"]}}, "is not a dict"),
        ({"groups": {"at": ["a"]}, "machine": InsertIfAbsent()}, "groups= is for upserts"),
    ]
    for options, why in bad:
        with pytest.raises(persist.InvalidUsage, match=why):
            client.create_or_load("bad", key={"k": int}, value=value, keyed=persist.Keyed(**options))
    never_null = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("at", pa.int64())])
    with pytest.raises(persist.InvalidUsage, match="not null by the schema"):
        client.create_or_load("bad", key={"k": int}, value=never_null, keyed=persist.Keyed(groups={"at": ["a"]}))
    keyed = persist.Keyed(groups={"at": ["a", "b"]})
    t = client.create_or_load("t", key={"k": int}, value=value, keyed=keyed)
    client.create_or_load("t", key={"k": int}, value=value, keyed=keyed)
    with pytest.raises(errors.SchemaMismatch, match="groups is stored as"):
        client.create_or_load("t", key={"k": int}, value=value, keyed=persist.Keyed(groups={"at": ["b"]}))
    for row in ({"k": 1, "a": 1, "at": 1}, {"k": 1, "at": 1}):
        with pytest.raises(errors.SchemaMismatch, match="a row has some of the columns"):
            t.update([row])
    with pytest.raises(errors.InvalidUpdate, match=r"orders events by \['at'\] and has no tombstone column"):
        t.upsert([(1, None)], time=0)


def test_groups_follow_the_names_of_their_columns(client: persist.Client) -> None:
    t = grouped(client, NAMES[:6], {"g_1": ["a", "b"], "g_2": ["c", "d"]})
    t.upsert([(1, (1, 1, 5, 1, 1, 5))]).result()
    t.upsert([(1, (2, 2, 6, 2, 2, 4))], time=next_time(t)).result()
    t.evolve(rename={"g_1": "version", "a": "first"}, drop=["b"], add={"e": pa.int64()})
    t = client.load("t")
    t.update([{"k": 1, "first": 0, "version": 5}, {"k": 1, "c": 7, "d": 7, "g_2": 7}, {"k": 1, "e": 9}]).result()
    t.update([{"k": 1, "first": 8, "version": 8}], time=next_time(t) + 4).result()
    assert t.snapshot().to_pylist() == [{"k": 1, "first": 8, "version": 8, "c": 7, "d": 7, "g_2": 7, "e": None}], (
        "the later row had no e"
    )
    with pytest.raises(errors.SchemaMismatch, match="'version' is the order of a group"):
        t.evolve(drop=["version"])


def test_the_order_in_which_groups_are_declared_means_nothing(client: persist.Client) -> None:
    value = dict.fromkeys(NAMES, int)
    declarations: list[dict[Any, Any]] = [
        {"g_1": ["a", "b"], ("g_3", "g_2"): ["c", "d"]},
        {("g_3", "g_2"): ["d", "c"], "g_1": {"b", "a"}},
        {"g_1": dict.fromkeys(["b", "a"]), ("g_3", "g_2"): ("c", "d")},
    ]
    for number, groups in enumerate(declarations):
        for name in ("t", f"t_{number}"):
            client.create_or_load(name, key={"k": int}, value=value, keyed=persist.Keyed(groups=groups))
    forms = [client.load(f"t_{number}").handle.keyed for number in range(3)]
    assert forms == [forms[0]] * 3, "one is stored for all"
    with pytest.raises(errors.SchemaMismatch, match="groups is stored as"):
        grouped(client, NAMES, {"g_1": ["a", "b"], ("g_2", "g_3"): ["c", "d"]})


def test_a_declaration_that_was_stored_in_another_order_still_fits() -> None:
    given = KeyedForm(MachineForm("upsert", 1), groups=(GroupForm(("p",), ("a", "b")), GroupForm(("q",), ("c",))))
    stored = KeyedForm(MachineForm("upsert", 1), groups=(GroupForm(("q",), ("c",)), GroupForm(("p",), ("b", "a"))))
    check_same_form(given, stored, "t")


def unchanged(*rows: dict[str, Any], names: list[Any]) -> pa.Table:
    table = pa.Table.from_pylist([*rows])
    return table.append_column("_unchanged", pa.array(names, pa.list_(pa.string())))


@pytest.mark.parametrize("resolve", ["seal", "background"])
def test_a_column_of_a_group_may_stay_as_it_is(client: persist.Client, resolve: Any) -> None:
    value = {"at": int, "big": str, "n": int, "other": int, "gone": bool}
    keyed = persist.Keyed(groups={"at": ["big", "n"]}, resolve=resolve, tombstone="gone")
    t = client.create_or_load("t", key={"k": int}, value=value, keyed=keyed)
    first = {"k": 1, "at": 1, "big": "LARGE", "n": 1, "other": 1, "gone": False}
    t.upsert([first, {**first, "k": 2}, {**first, "k": 3}, {**first, "k": 4}]).result()
    next_row = {**first, "at": 2, "big": None, "n": 2}
    t.upsert(
        unchanged(
            next_row,
            {**next_row, "k": 2, "at": None, "big": "NEW"},
            {**next_row, "k": 3, "at": 0, "other": 3},
            {**next_row, "k": 4, "gone": True},
            names=[["big"], ["at"], ["big"], ["big"]],
        )
    ).result()
    t.upsert(unchanged({**next_row, "at": 3, "n": 3}, names=[["big"]])).result()
    t.update([{"k": 4, "gone": False}], missing="insert").result()
    rows = sorted(t.snapshot().to_pylist(), key=lambda row: row["k"])
    assert [(row["at"], row["big"], row["n"], row["other"]) for row in rows] == [
        (3, "LARGE", 3, 1),
        (1, "NEW", 2, 1),
        (1, "LARGE", 1, 3),
        (2, None, None, None),
    ], "big stays; the order of the row stays; the group is late; the group was deleted"


def test_a_late_event_tells_the_columns_that_it_leaves_as_they_are(client: persist.Client) -> None:
    t = client.create_or_load("t", key={"k": int}, value={"big": str, "n": int}, keyed=persist.Keyed())
    t.upsert([{"k": 1, "big": "LARGE", "n": 1}, {"k": 2, "big": "LARGE", "n": 1}], time=0, seal=1).result()
    events = unchanged({"k": 1, "big": None, "n": 2}, {"k": 2, "big": None, "n": 3}, names=[["big"], None])
    timely = unchanged({"k": 3, "big": "A", "n": 2}, names=[None]).append_column("_time", pa.array([1]))
    late = pa.concat_tables([events.append_column("_time", pa.array([0, 0])), timely], promote_options="default")
    future = t.upsert(late, seal=2, late="collect")
    future.result()
    assert future.late is not None
    assert future.late["_unchanged"].to_pylist() == [["big"], None]
    t.upsert(future.late.drop_columns(["_reason", "_time"]), time=2, seal=3).result()
    assert rows_of(t) == [(1, ("LARGE", 2)), (2, (None, 3)), (3, ("A", 2))], "set aside, and given again"


def test_what_cannot_stay_as_it_is_is_refused(client: persist.Client) -> None:
    t = grouped(client, ("a", "p", "q"), {("p", "q"): ["a"]})
    row = {"k": 1, "a": 1, "p": 1, "q": 1}
    t.upsert([row]).result()
    for data, why in (
        (unchanged(row, names=[["q"]]), r"some of the columns \['p', 'q'\], which are one order"),
        (pa.Table.from_pylist([{**row, "_unchanged": "a"}]), "'_unchanged' has type string"),
        (pa.Table.from_pylist([{**row, "_unchanged": 1}]), "'_unchanged' has type int64"),
        (pa.Table.from_pylist([{**row, "_unchanged": [1]}]), "'_unchanged' has type list"),
    ):
        with pytest.raises(errors.SchemaMismatch, match=why):
            t.upsert(data)
    writes: list[Any] = [t.update, lambda rows: client.write("t", rows, mode="update")]
    for write in writes:
        with pytest.raises(errors.SchemaMismatch, match="an update leaves the columns as they are"):
            write(unchanged(row, names=[["a"]]))


def test_an_order_that_stays_as_it_is_is_not_late(client: persist.Client) -> None:
    keyed = persist.Keyed(order_by=["at"], late_bound=5)
    t = client.create_or_load("t", key={"k": int}, value={"at": int, "v": str}, keyed=keyed)
    t.upsert([(1, (7, "old")), (2, (8, "old"))]).result()
    t.upsert(unchanged({"k": 1, "at": None, "v": "new"}, names=[["at"]])).result()
    rows = unchanged({"k": 2, "at": None, "v": "newer"}, {"k": 1, "at": 2, "v": "late"}, names=[["at"], None])
    future = t.upsert(rows, late="collect")
    future.result()
    assert future.late is not None
    assert future.late["v"].to_pylist() == ["late"]
    t.seal(next_time(t)).result()
    assert rows_of(t) == [(1, (7, "new")), (2, (8, "newer"))]


@pytest.mark.parametrize("delete", ["where", "sql", "overwrite", "block", "key"])
def test_a_row_that_goes_loses_the_values_of_its_groups(client: persist.Client, delete: str) -> None:
    t = client.create_or_load("t", key={"k": int}, value=VALUE, keyed=persist.Keyed(**KEYED))
    whole = {"x": 1, "ts": 1, "gone": False, "p": 5, "a": 1, "q": 5, "r": 0, "b": "old", "c": [1]}
    t.upsert([{"k": 1, **whole}, {"k": 2, **whole}]).result()
    if delete == "where":
        t.delete(where=pc.field("k") == 1).result()
    elif delete == "sql":
        client.sql("DELETE FROM t WHERE k = 1")
    elif delete == "overwrite":
        t.overwrite([{"k": 2, **whole}]).result()
    elif delete == "block":
        with client.multi_write() as multi:
            multi.delete(t, where=pc.field("k") == 1)
    else:
        t.upsert([{"k": 1, **dict.fromkeys(VALUE), "ts": 2, "gone": True}]).result()
    t.update([{"k": 1, "ts": 3}, {"k": 1, "p": 4, "a": 9}], missing="insert").result()
    row = next(row for row in t.snapshot().to_pylist() if row["k"] == 1)
    assert row == {"k": 1, **dict.fromkeys(VALUE), "ts": 3, "gone": row["gone"], "p": 5, "q": 5, "r": 0}
    assert client.fsck().is_clean


@pytest.mark.parametrize("resolve", ["seal", "background"])
def test_a_partial_deletion_of_a_key_without_a_row_obeys_the_policy(client: persist.Client, resolve: Any) -> None:
    value = pa.schema([pa.field("v", pa.string(), nullable=False), pa.field("gone", pa.bool_())])
    t = client.create_or_load("t", key={"k": int}, value=value, keyed=persist.Keyed(tombstone="gone", resolve=resolve))
    t.upsert([{"k": 1, "v": "a", "gone": False}]).result()
    with pytest.raises(persist.InvalidUsage, match="no row to update for k=8"):
        t.update([{"k": 8, "gone": True}]).result()
    with pytest.raises(errors.SchemaMismatch, match="a row lacks 'v'"):
        t.update([{"k": 8, "gone": True}], missing="insert")
    t.update([{"k": 8, "gone": True}], missing="ignore").result()
    t.update([{"k": 9, "v": "b", "gone": True}], missing="insert").result()
    t.update([{"k": 1, "gone": True}]).result()
    t.update([{"k": 1, "gone": True}]).result()  # It may come again: the key has a tombstone.
    assert rows_of(t) == []
    assert client.fsck().is_clean
    with pytest.raises(persist.InvalidUsage, match="no row to update for k=8"):
        t.update([{"k": 8, "gone": False}]).result()


KEYED: dict[str, Any] = {"order_by": ["ts"], "tombstone": "gone", "groups": {"p": ["a"], ("q", "r"): ["b", "c"]}}
VALUE = {"x": int, "ts": int, "gone": bool, "p": int, "a": int, "q": int, "r": int, "b": str, "c": pa.list_(pa.int64())}
FIRST, GROUPS = ("x", "ts", "gone"), {("p",): ("p", "a"), ("q", "r"): ("q", "r", "b", "c")}


def test_a_tombstone_ends_the_groups_that_are_not_later(client: persist.Client) -> None:
    t = client.create_or_load("t", key={"k": int}, value=VALUE, keyed=persist.Keyed(**KEYED))
    whole = {"x": 1, "ts": 1, "gone": False, "p": 5, "a": 1, "q": 5, "r": 0, "b": "old", "c": [1]}
    t.upsert([{"k": k, **whole} for k in (1, 2, 3)]).result()
    gone = {**dict.fromkeys(VALUE), "ts": 2, "gone": True}
    t.upsert([{"k": 1, **gone}, {"k": 2, **gone, "p": 4, "q": 6, "r": 0}, {"k": 3, **gone, "ts": 0, "p": 9}]).result()
    assert [row["k"] for row in t.snapshot().to_pylist()] == [3], "the deletion of 3 is late, but not in its group"
    late, later = {"q": 4, "r": 0, "b": "late", "c": None}, {"p": 7, "a": 7}
    t.update([{"k": 1, **later}, {"k": 1, **late}, {"k": 2, **late}], missing="insert").result()
    assert [row["k"] for row in t.snapshot().to_pylist()] == [3], "groups alone bring nothing back"
    with pytest.raises(persist.InvalidUsage, match="no row to update for k=1"):
        t.update([{"k": 1, "ts": 3, "x": 3}]).result()
    t.update([{"k": 1, "ts": 3, "x": 3}, {"k": 2, "ts": 3}], missing="insert").result()
    names = ("k", "x", "ts", "p", "a", "q", "b", "c")
    rows = sorted(t.snapshot().to_pylist(), key=lambda row: row["k"])
    assert [tuple(row[name] for name in names) for row in rows] == [
        (1, 3, 3, 7, 7, 5, None, None), (2, None, 3, 5, 1, 6, None, None), (3, 1, 1, 9, None, 5, "old", [1])
    ]  # fmt: skip


def order_of(row: dict[str, Any], names: Any) -> tuple[Any, ...]:
    return tuple((row[name] is not None, row[name] or 0) for name in names)


def fold(rows: dict[int, dict[str, Any]], event: dict[str, Any], policy: str) -> None:
    """Apply the next event to the rows by key; the policy of a whole event is "whole"."""
    old, deletes = rows.get(event["k"]), bool(event.get("gone"))
    if old is None and policy == "ignore":
        return
    row = dict.fromkeys(VALUE, None) if old is None else dict(old)
    concerns = old is None or policy == "whole" or any(name in event for name in FIRST) or len(event) == 1
    is_late = old is not None and "ts" in event and order_of(event, ["ts"]) < order_of(old, ["ts"])
    ended = False
    if concerns and not is_late:
        if policy == "whole" or deletes or (old is not None and not old["gone"]):
            row |= {name: event[name] for name in FIRST if name in event}
            ended = deletes
        elif policy == "insert":
            row |= {"x": event.get("x"), "gone": False, "ts": event.get("ts", row["ts"])}
    for order, names in GROUPS.items():
        has = order[0] in event
        if has and order_of(event, order) >= order_of(row, order):
            row |= {name: None if deletes and name not in order else event[name] for name in names}
        if ended and (not has or all(event[name] is None for name in order)):
            row |= {name: None for name in names if name not in order}
    rows[event["k"]] = row


class Model:
    """All events in the order in which they count, resolved up to a time."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self._waiting: list[tuple[int, tuple[Any, ...], int, dict[str, Any], str]] = []
        self._arrivals = itertools.count()
        self.history: dict[int, list[Any]] = {}
        self.upper = 0

    def add(self, event: dict[str, Any], time: int, policy: str) -> None:
        order = (True,) if "ts" not in event else (False, *order_of(event, ["ts"]))
        self._waiting.append((time, order, next(self._arrivals), event, policy))

    def seal(self, upper: int) -> None:
        for time in range(self.upper, upper):
            for _, _, _, event, policy in sorted(e for e in self._waiting if e[0] == time):
                fold(self.rows, event, policy)
            self.history[time] = self.live()
        self._waiting = [event for event in self._waiting if event[0] >= upper]
        self.upper = max(self.upper, upper)

    def live(self) -> list[Any]:
        live = [{"k": k, **row} for k, row in sorted(self.rows.items()) if not row["gone"]]
        return [{**row, "gone": None} for row in live]


MARKS = [None, 0, 1, 2, 3]


def make_event(random: Random, *, is_whole: bool) -> dict[str, Any]:
    """Return an event of one of two keys, with all columns or some."""
    first: dict[str, Any] = {"x": random.randrange(100), "ts": random.randrange(4), "gone": random.random() < 0.3}
    p = {"p": random.choice(MARKS), "a": random.choice([None, random.randrange(100)])}
    q = {
        "q": random.choice(MARKS),
        "r": random.choice(MARKS),
        "b": random.choice("xyz"),
        "c": random.choice([None, [1]]),
    }
    if not is_whole:
        some: list[dict[str, Any]] = [{}, {"x": 7}, {"ts": random.choice(MARKS)}, {"x": 8, "ts": 2}]
        some.append({"ts": random.randrange(4), "gone": True})
        first, p, q = random.choice(some), random.choice([p, {}]), random.choice([q, {}])
    return {"k": random.randrange(2), **first, **p, **q}


@pytest.mark.thorough(except_every=10)
@pytest.mark.parametrize("seed", range(30))
def test_whole_and_partial_events_of_groups_are_what_the_model_says(seed: int) -> None:
    """`tests.core.keyed.test_resolving` has many more of them, without clients."""
    random, model, blob = Random(seed), Model(), persist.MemoryBlob()
    resolve: Any = random.choice(["seal", "background"])
    missing: Any
    for _ in range(5):  # Each time another client goes on.
        with persist.open(blob) as client:
            keyed = persist.Keyed(**KEYED, resolve=resolve)
            orders = client.create_or_load("orders", key={"k": int}, value=VALUE, keyed=keyed)
            start, missing = model.upper, random.choice(["insert", "ignore"])
            for _ in range(random.randrange(3)):
                event, later = make_event(random, is_whole=True), random.randrange(3)
                orders.upsert([{**event, "_time": start + later}]).result()
                model.add(event, start + later, "whole")
            whole, partial = (make_event(random, is_whole=is_whole) for is_whole in (True, False))
            with client.multi_write() as multi:  # The upserts of a block and its updates are of one order of arrival.
                multi.upsert(orders, [whole], time=start)
                multi.update(orders, [partial], time=start, missing=missing)
                multi.seal(orders, start + 1)
            model.add(whole, start, "whole")
            model.add(partial, start, missing)
            model.seal(start + 1)
            partial = make_event(random, is_whole=False)
            orders.update([{**partial, "_time": start + 2}], missing=missing).result()
            model.add(partial, start + 2, missing)
            model.seal(start + 3)
            if random.random() < 0.5:
                orders.compact()
            for time, expected in model.history.items():
                rows = orders.snapshot(time).to_pylist()
                assert [{**row, "gone": None} for row in sorted(rows, key=lambda row: row["k"])] == expected, time
