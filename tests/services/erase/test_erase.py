"""What `erase` promises: rows are gone at all times and from all objects, and all others read the same."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from persist.blob.errors import StoreFull, Unavailable
from persist.blob.protocol import Blob
from persist.core.log import kinds
from persist.events import Sessions
from persist.services.erase import ErasureReport, receipt_digest
from persist.services.erase.erasure import _list_texts
from persist.services.erase.pending_erasures import PendingErasures, complete_old, make_pending_steps
from tests.services.erase.searching import mentions
from tests.support.checkpoints import wait_for_checkpoint
from tests.support.clocks import DatedBlob, ImpatientClock
from tests.support.servers.fixtures import make_bucket
from tests.support.stepped import Stepped
from tests.support.tuned import tuned

KEY, VALUE = {"id": pa.int64()}, {"email": pa.string(), "amount": pa.float64()}
ADA, HOUR = "ada@example.com", 3600.0
PEOPLE = {3: ADA, 1: "bob@example.com", 2: "zoe@example.com"}


def opened(blob: Blob, **changed: Any) -> persist.Client:
    clock: Any = getattr(blob, "clock", None)
    return persist.open(blob, clock=clock, settings=tuned(**{"background": False, "hold_linger_s": 0, **changed}))


@pytest.fixture
def dated() -> DatedBlob:
    return DatedBlob(ImpatientClock())


@pytest.fixture
def client(dated: DatedBlob) -> Iterator[persist.Client]:
    with opened(dated) as client:
        yield client


def filled(client: persist.Client, name: str = "orders") -> persist.Collection:
    """Return a collection with keyframes, merged history, and small writes in the log; one record is written twice."""
    orders = client.create_or_load(name, key=KEY, value=VALUE)
    for time in range(8):
        rows = [((id_, (email, float(time))), time, 1) for id_, email in PEOPLE.items()]
        rows += [((3, (ADA, 0.5)), time, 2 - time)] if time in (1, 3) else []
        rows += [((id_, (email, float(time - 1))), time, -1) for id_, email in PEOPLE.items() if time]
        orders.write(rows, seal=time + 1).result()
        if time in (3, 5):
            orders.compact()
    return orders


def others(collection: persist.Collection, since: int = 0) -> dict[int, list[Any]]:
    """Return what is there of others than Ada, at each time."""
    end = collection.upper.time or 0
    return {
        time: sorted(collection.snapshot(time, where=pc.field("id") != 3, form="diff").to_arrow().to_pylist(), key=str)
        for time in range(since, end)
    }


def collected(dated: DatedBlob, times: int = 3) -> None:
    """Collect garbage when everybody has gone home, and hours have passed."""
    for _ in range(times):
        dated.clock.sleep(30 * HOUR)
        with opened(dated) as client:
            client.gc()


def test_rule_23_erase_changes_sealed_times_tells_it_and_leaves_nothing_in_any_object(dated: DatedBlob) -> None:
    with opened(dated) as client:
        orders = filled(client)
        before, digests = others(orders), {t: digest_of_others(orders, t) for t in range(8)}
        report = orders.erase([3], reason="request 17")
        assert report.updates == 17
        assert report.seqno == client.seqno
        assert others(orders) == before
        assert all(row["id"] != 3 for t in range(8) for row in orders.snapshot(t, form="diff").to_arrow().to_pylist())
        assert {t: digest_of_others(orders, t) for t in range(8)} == {t: f"{d}-erased-1" for t, d in digests.items()}
        assert all(row["id"] != 3 for row in orders.changes(0, 8).to_arrow().to_pylist())
        (erasure,) = orders.erasures()
        assert (erasure.number, erasure.updates, erasure.reason) == (1, 17, "request 17")
        assert erasure.by
        assert erasure.at_ms
    assert mentions(dated, ADA)
    collected(dated)
    assert mentions(dated, ADA) == []
    with opened(dated) as client:
        assert others(client.load("orders")) == before
        assert client.load("orders").erasures() == [erasure]
        assert not client.fsck().problems


def digest_of_others(orders: persist.Collection, time: int) -> str:
    return orders.snapshot(time, where=pc.field("id") != 3).digest()


@pytest.mark.parametrize("wanted", [{"keys": [3]}, {"where": f"new = '{ADA}'"}])
def test_parts_with_the_same_bytes_under_two_schemas_are_told_apart(client: persist.Client, wanted: Any) -> None:
    users = client.create_or_load("users", key=KEY, value={"old": pa.string()})
    users.write([(3, ADA), (1, "bob")], time=0).result()
    users.evolve(add={"new": pa.string()})
    client.load("users").evolve(drop=["old"])
    client.load("users").write([(3, ADA), (1, "bob")], time=0, seal=1).result()
    parts = client.load("users").handle.contents().numbered.values()
    assert len({part.checksum for part in parts}) < len(parts), "the bytes differ, so this shows nothing"
    client.load("users").erase(**wanted, reason="request 17")
    left = [(1, "bob"), (1, None), *([] if "keys" in wanted else [(3, None)])]
    assert sorted(client.load("users").snapshot().rows(), key=str) == sorted(left, key=str)


def test_nothing_to_erase_makes_no_record(client: persist.Client) -> None:
    orders, seqno = filled(client), client.seqno
    report = orders.erase([99], reason="request 17")
    assert (report.updates, report.seqno, client.seqno, str(report)) == (0, None, seqno, "nothing of 'orders' to erase")
    assert "-erased" not in orders.snapshot().digest()


def test_what_is_written_after_it_is_new_and_stays(client: persist.Client) -> None:
    orders = filled(client)
    orders.erase([3], reason="request 17")
    orders.write([((3, (ADA, 1.0)), 8, 1)], seal=9).result()
    assert [row for row in orders.snapshot().rows() if row[0] == 3] == [(3, (ADA, 1.0))]
    assert [row for row in orders.snapshot(7).rows() if row[0] == 3] == []
    assert orders.erase([3], reason="request 18").updates == 1
    assert orders.snapshot().digest().endswith("-erased-2")


def test_holds_and_tags_stay_and_keep_what_is_left(client: persist.Client) -> None:
    orders = filled(client)
    orders.tag("early", 1)
    with orders.hold(2):
        orders.erase([3], reason="request 17")
        orders.allow_compaction(7).result()
        assert orders.since.time == 1
        assert sorted(row[0] for row in orders.snapshot("early").rows()) == [1, 2]


@pytest.mark.parametrize("resolve", ["seal", "background"])
def test_pending_events_go_and_the_others_keep_their_order(client: persist.Client, resolve: Any) -> None:
    keyed = client.create_or_load("users", key=KEY, value={"email": pa.string()}, keyed=persist.Keyed(resolve=resolve))
    keyed.upsert([(3, ADA, 0), (1, "first", 0)]).result()
    keyed.upsert([(1, "second", 0), (3, None, 1)], seal=1).result()
    keyed.upsert([(2, "third", 1), (3, ADA, 1)]).result()
    keyed.upsert([(2, "fourth", 1)]).result()
    keyed.erase([3], reason="request 17")
    keyed.seal(2).result()
    assert sorted(keyed.snapshot(0).rows()) == [(1, "second")]
    assert sorted(keyed.snapshot(1).rows()) == [(1, "second"), (2, "fourth")]
    keyed.compact()
    assert sorted(keyed.snapshot(1).rows()) == [(1, "second"), (2, "fourth")]


@pytest.mark.parametrize("resolve", ["seal", "background"])
def test_a_condition_erases_whole_keys_of_a_keyed_collection(client: persist.Client, resolve: Any) -> None:
    """Otherwise it would depend on who has resolved what whether an earlier value of the key comes back."""
    keyed = client.create_or_load("users", key=KEY, value={"email": pa.string()}, keyed=persist.Keyed(resolve=resolve))
    keyed.upsert([(3, "before", 0), (1, "bob", 0)], seal=1).result()
    keyed.upsert([(3, ADA, 1)], seal=2).result()
    keyed.upsert([(3, "later", 2), (4, ADA, 2)]).result()
    report = keyed.erase(where=f"email = '{ADA}'", reason="request 17")
    assert (report.keys, report.former_keys) == (2, 1)
    keyed.seal(3).result()
    for time in range(3):
        assert sorted(keyed.snapshot(time).rows()) == [(1, "bob")]


def test_a_condition_counts_for_what_a_machine_makes_of_events(client: persist.Client) -> None:
    spans, sessions = dict.fromkeys(("start", "end", "events"), pa.int64()), Sessions(5)
    visits = client.create_or_load(
        "visits", key=KEY, value=spans, keyed=persist.Keyed(machine=sessions, resolve="background")
    )
    visits.transition([(1, 10, 0), (1, 12, 0), (2, 90, 0)], seal=1).result()
    visits.erase(where="events = 2", reason="request 17")
    assert [*visits.snapshot(0).rows()] == [(2, (90, 90, 1))]


@pytest.mark.parametrize("resolve", ["seal", "background"])
def test_an_event_that_deletes_holds_no_nulls_that_a_condition_would_match(
    client: persist.Client, resolve: Any
) -> None:
    keyed = client.create_or_load("users", key=KEY, value={"email": pa.string()}, keyed=persist.Keyed(resolve=resolve))
    keyed.upsert([(3, ADA, 0), (1, "bob", 0), (2, "zoe", 0)], seal=1).result()
    keyed.upsert([(3, None, 1)]).result()
    assert keyed.erase(where=pc.field("email").is_null(), reason="request 17").seqno is None
    assert keyed.traces(where=pc.field("email").is_null()).is_gone
    assert sorted(keyed.snapshot(0).rows()) == [(1, "bob"), (2, "zoe"), (3, ADA)]


def test_clones_and_what_they_were_cloned_from_lose_the_same(client: persist.Client) -> None:
    orders = filled(client)
    clone = client.clone("orders", "copy", as_of=4)
    second = client.clone("copy", "copy of a copy")
    client.drop("copy").result()
    second.write([((3, (ADA, 77.0)), 5, 1), ((9, ("eve", 1.0)), 5, 1)], seal=6).result()
    report = orders.erase([3], reason="request 17")
    assert report.clones == ("copy of a copy",)
    assert sorted(row[0] for row in second.snapshot().rows()) == [1, 2, 9]
    assert second.snapshot().digest().endswith("-erased-1")
    assert clone.id != second.id


def test_a_clone_whose_columns_do_not_fit_is_named_before_anything_happens(client: persist.Client) -> None:
    orders = filled(client)
    client.clone("orders", "copy").evolve(drop=["email"])
    seqno = client.seqno
    with pytest.raises(persist.InvalidUsage, match=r"rows of 'copy': their columns are .*Erase by keys instead"):
        orders.erase(where=f"email = '{ADA}'", reason="request 17")
    assert client.seqno == seqno
    assert orders.erase([3], reason="request 17").clones == ("copy",)


def test_a_clone_whose_columns_exchanged_their_names_is_named_before_anything_happens(client: persist.Client) -> None:
    value = {"email": pa.string(), "friend": pa.string()}
    source = client.create_or_load("source", key=KEY, value=value)
    source.write([(3, (ADA, "bob")), (1, ("bob", ADA))], time=0, seal=1).result()
    client.clone("source", "copy").evolve(rename={"email": "first"})
    client.load("copy").evolve(rename={"friend": "email"})
    with pytest.raises(persist.InvalidUsage, match=r"rows of 'copy': .* or were renamed. Erase by keys instead"):
        source.erase(where=f"email = '{ADA}'", reason="request 17")
    with pytest.raises(persist.InvalidUsage, match=r"rows of 'copy': .* or were renamed. Erase by keys instead"):
        source.traces(where=f"email = '{ADA}'")
    assert len([*client.load("copy").snapshot().rows()]) == len([*source.snapshot().rows()]) == 2


def test_key_columns_of_a_clone_may_have_other_names_and_types(client: persist.Client) -> None:
    small = client.create_or_load("small", key={"id": pa.int32()}, value={"email": pa.string()})
    small.write([(1, "bob"), (3, ADA)], time=0, seal=1).result()
    client.clone("small", "wide").evolve(rename={"id": "number"}, widen={"id": pa.int64()})
    wide = client.load("wide")
    wide.write([(2**40, "eve")], time=1, seal=2).result()
    assert small.erase([3], reason="request 17").clones == ("wide",)
    assert client.load("wide").erase([2**40, 1], reason="request 18").clones == ("small",)
    assert list(client.load("wide").snapshot().rows()) == list(small.snapshot().rows()) == []


def test_views_begin_anew_with_the_same_definition_and_history(client: persist.Client) -> None:
    orders = filled(client)
    client.create_view("by email", "SELECT email, sum(amount) AS total FROM orders GROUP BY email").refresh()
    view = client.create_view("all", 'SELECT sum(total) AS total FROM "by email"')
    view.refresh()
    client.load("all").describe("of everybody")
    report = orders.erase([3], reason="request 17")
    assert set(report.views) == {"by email", "all"}
    assert client.load("all").comment == "of everybody"
    for time in range(8):
        assert list(client.view("all").snapshot(time).rows()) == [(2.0 * time, None)]
        assert ADA not in str(list(client.view("by email").snapshot(time).rows()))
    orders.write([((1, ("bob@example.com", 1.0)), 8, 1)], seal=9).result()
    again = client.view("all")
    again.refresh()
    assert list(again.snapshot().rows()) == [(15.0, None)]


def test_open_handles_of_views_go_on_after_an_erasure(dated: DatedBlob) -> None:
    with opened(dated) as client, opened(dated) as beside:
        orders = filled(client)
        client.create_view("by email", "SELECT email, sum(amount) AS total FROM orders GROUP BY email").refresh()
        client.create_view("all", 'SELECT sum(total) AS total FROM "by email"').refresh()
        stepping, stateful, plain = beside.view("all"), beside.view("all"), beside.load("all")
        stepping.refresh()
        stateful.open_state()
        orders.erase([3], reason="request 17")
        with pytest.raises(persist.errors.CollectionNotFound, match=r"began anew because records were erased.*load it"):
            plain.snapshot()
        for view in (stepping, stateful):
            view.refresh()
            assert list(view.snapshot(7).rows()) == [(14.0, None)]
            assert (view.id, view) == (client.load("all").id, client.load("all"))
            view.compact()
            view.describe("of everybody").result()
        assert client.load("all").comment == "of everybody"
        client.view("all").drop().result()
        client.create_view("all", "SELECT count(*) AS total FROM orders")
        with pytest.raises(persist.errors.CollectionNotFound, match=r"'all' .* is gone.*load it again"):
            stepping.refresh()


def test_a_view_with_a_tag_refuses_and_is_named(client: persist.Client) -> None:
    orders = filled(client)
    view = client.create_view("all", "SELECT sum(amount) AS total FROM orders")
    view.refresh()
    view.tag("monthly", 3)
    seqno = client.seqno
    with pytest.raises(persist.InvalidUsage, match=r"'all' must begin anew.*the tag 'monthly'"):
        orders.erase([3], reason="request 17")
    with pytest.raises(persist.InvalidUsage, match="is a view"):
        view.erase(where="total > 1", reason="request 17")
    assert client.seqno == seqno
    view.untag("monthly")
    audit = view.hold(3, name="audit")
    with pytest.raises(persist.InvalidUsage, match=r"the hold 'audit' would keep its old"):
        orders.erase([3], reason="request 17")
    audit.release()
    client.create_view("above", 'SELECT total FROM "all"')
    with view.hold(3):  # A lease keeps nothing in the way, nor do holds of views.
        orders.erase([3], reason="request 17")


def test_indexes_and_published_tables_are_made_anew(dated: DatedBlob) -> None:
    """One record has all that the erasure does and still owes."""
    with opened(dated) as client:
        orders = filled(client)
        orders.index("email")
        client.clone("orders", "copy", as_of=4)
        client.create_view("all", "SELECT email, amount FROM orders").refresh()
        client.create_view("late", "SELECT email FROM orders")
        options = {"deletes": "vectors", "feed": "true"}
        orders.publish("delta", feed=True)
        client.load("all").publish("delta", digest=True)
        names = {id_: name for name, id_ in client.engine.follower.refresh().ids.items()}
        report = orders.erase([3], reason="request 17")
        mutations = json.loads(dated.get(f"log/{report.seqno:020d}") or b"")["mutations"]
        ids = {each["name"]: each["collection"] for each in mutations if each["kind"] == "create"}
        names |= {id_: f"new {name[:6].rstrip('.')}" for name, id_ in ids.items()}
        [index_id] = {id_ for id_, name in names.items() if name.startswith(".index.")}
        told = [(m["kind"], names[m["collection"]], m.get("hold", "").partition(" ")[0]) for m in mutations]
        assert sorted(told) == [
            ("create", "new .owed", ""), ("create", "new all", ""), ("create", "new late", ""),
            ("describe", "new .owed", ""),
            ("destroy", names[index_id], ""), ("destroy", "all", ""), ("destroy", "late", ""),
            ("erase", "copy", ""), ("erase", "orders", ""),
            ("hold", "orders", "view"), ("hold", "orders", "view"),
            ("release", "orders", "index"), ("release", "orders", "published"),
            ("release", "orders", "view"), ("release", "orders", "view"),
        ]  # fmt: skip
        [owed] = [json.loads(each["words"]["properties"]["owed"]) for each in mutations if each["kind"] == "describe"]
        assert owed == {
            "at_ms": next(each["at_ms"] for each in mutations if each["kind"] == "erase"),
            "views": [ids["all"]],
            "indexes": {orders.id: [["email"]]},
            "tables": {
                orders.id: {"delta": {"options": options}},
                ids["all"]: {"delta": {"options": {"deletes": "vectors"}, "digest": True}},
            },
        }
        assert report == ErasureReport(
            "orders", 20, report.seqno, ("copy",), report.views, 1, (("all", "delta"), ("orders", "delta"))
        )
        assert sorted(report.views) == ["all", "late"]
        (table,), (index,) = orders.published(), orders.indexes()
        assert (table.version, table.rows) == (0, 2)
        assert (index.columns, index.as_of) == (("email",), 7)
        assert list(orders.snapshot(where=f"email = '{ADA}'").rows()) == []
        assert client.load("all").published()[0].digest == client.load("all").snapshot().digest()


def test_a_report_says_all_that_happened() -> None:
    one, some = ("a",), ("a", "b")
    told: dict[ErasureReport, str] = {
        ErasureReport("x"): "nothing of 'x' to erase",
        ErasureReport("x", unfollowed=some, mentions=one): "nothing of 'x' to erase. What a query gave of such "
        "records may still be in 'a', 'b': erase there, too, or drop it. A has a text of what is erased, and no "
        "erasure changes that: do it yourself",
        ErasureReport("x", 1, 0): "erased 1 update of 'x' from all times",
        ErasureReport("x", 1000, 0, some, one, 1, (("a", "delta"),), keys=1): "erased 1,000 updates of 'x' from all "
        "times, also from 'a', 'b', 1 view begun anew, 1 index made anew, 1 table published anew",
        ErasureReport("x", 2, 0, (), some, 2000, (("a", "b"),) * 2, (), some, some, 1000, 1): "erased 2 updates of "
        "'x' from all times, 2 views begun anew, 2,000 indexes made anew, 2 tables published anew, 1 of 1,000 keys "
        "matched by earlier rows only. The catalog of a, b is known to no client but its program: it names deleted "
        "files until that program publishes again. A, b have a text of what is erased, and no erasure changes that: "
        "do it yourself",
    }
    assert {report: str(report) for report in told} == told


@pytest.mark.parametrize(
    ("keys", "where", "texts"),
    [
        (None, "a = 'it''s' AND b <> 'ab' OR c = 'abc' AND d = 'abc' AND e = 5", ["it's", "abc"]),
        (None, (pc.field("a") == "abc") & (pc.field("b") == "it's") | (pc.field("c") == "ab"), ["abc", "it's"]),
        (
            pa.table({"a": ["abc", None, "ab", "abc"], "b": [1, 2, 3, 4], "c": ["x", "xyz", "", "z"]}),
            None,
            ["abc", "xyz"],
        ),
        (pa.table({"a": [f"{n:04}" for n in range(1001)]}), None, [f"{n:04}" for n in range(1000)]),
    ],
)
def test_texts_of_keys_and_conditions_are_looked_for(keys: Any, where: Any, texts: list[str]) -> None:
    assert _list_texts(keys, where) == texts


@pytest.mark.parametrize(("views", "owners"), [(0, 200), (201, 0), (400, 201), (1, 401)])
def test_what_an_erasure_owes_is_stored_in_pieces_that_have_all_of_it_once(views: int, owners: int) -> None:
    ids = [f"{n}" for n in range(owners)]
    indexes: dict[str, Any] = {id_: (("c",),) for id_ in ids if int(id_) % 2 == 0}
    tables: dict[str, Any] = {id_: {"delta": {}} for id_ in ids if int(id_) % 3 or id_ not in indexes}
    told = [f"v{n}" for n in range(views)]
    steps, names = make_pending_steps(PendingErasures(7, tuple(told), indexes, tables))
    notes = [json.loads(step.words.properties["owed"] or "") for step in steps if isinstance(step, kinds.Describe)]
    assert [note["at_ms"] for note in notes] == [7] * -(-max(views, len({**indexes, **tables})) // 200)
    assert [view for note in notes for view in note.get("views", ())] == told
    assert {id_: each for note in notes for id_, each in note.get("indexes", {}).items()}.keys() == indexes.keys()
    assert {id_: each for note in notes for id_, each in note.get("tables", {}).items()} == tables
    assert [*names.values()] == [f".owed.{step.collection}" for step in steps if isinstance(step, kinds.Create)]


@pytest.mark.parametrize("derives", ["index", "view"])
def test_what_is_derived_may_be_all_that_keeps_history_readable(dated: DatedBlob, derives: str) -> None:
    """Its hold takes the place of one on which since waits, which may not go on between the two."""
    with opened(dated) as client:
        orders = client.create_or_load("orders", key=KEY, value=VALUE)
        orders.write([((id_, ("a", 1.0)), 0, 1) for id_ in (1, 2, 3)], seal=1).result()
        if derives == "index":
            orders.index("email")
        else:
            client.create_view("emails", "SELECT email, count(*) AS n FROM orders GROUP BY email").refresh()
        orders.seal(4).result()
        orders.allow_compaction(3).result()
    with opened(dated) as client:
        orders = client.load("orders")
        assert orders.erase([3], reason="request 17").updates == 1
        assert orders.snapshot(3).count() == 2
        assert len(orders.get(where="email = 'a'")) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"keys": [1], "where": "id = 1", "reason": "x"}, "not both"),
        ({"reason": "x"}, "give keys, or a condition"),
        ({"keys": [1], "reason": " "}, "say why records are erased"),
        ({"where": "nothing = 1", "reason": "x"}, "nothing"),
    ],
)
def test_bad_input_is_refused(client: persist.Client, arguments: dict[str, Any], said: str) -> None:
    orders = filled(client)
    with pytest.raises(persist.InvalidUsage, match=said):
        orders.erase(**arguments)


# Beside others.


def test_a_merge_of_runs_of_many_parts_brings_nothing_back(dated: DatedBlob) -> None:
    """Of a run that keeps its first part, the name stays, and nothing but its parts says that it is another one."""
    store: Any = Stepped(dated)
    many: dict[str, Any] = {"part_bytes": 1, "merge_runs": 2, "background": False}
    with opened(dated, **many) as client, persist.open(store, clock=dated.clock, settings=tuned(**many)) as late:
        orders = client.create_or_load("orders", key=KEY, value=VALUE)
        for time in range(8):
            rows = [((id_, (email * 5_000, 1.0)), time, 1) for id_, email in PEOPLE.items() if time < 7 or id_ < 3]
            orders.write(rows, seal=time + 1).result()
            if time == 3:
                orders.compact()
        erased: list[Any] = []

        def after(parts: int) -> None:
            """Erase when so many parts are stored: a run of many parts is being merged then, and keeps the first."""
            act = (
                (lambda: erased.append(orders.erase([3], reason="request 17")))
                if parts == 1
                else lambda: after(parts - 1)
            )
            store.after("set", "part/", act)

        assert max(map(len, orders.handle.contents().history)) == 3
        after(5)
        report = late.load("orders").compact()
        assert store.is_done
        assert report.superseded
        assert sorted(row[0] for row in orders.snapshot(1).rows()) == [1, 1, 2, 2]


def test_a_compaction_that_was_decided_before_brings_nothing_back(dated: DatedBlob) -> None:
    store: Any = Stepped(dated)
    with opened(dated) as client, persist.open(store, clock=dated.clock, settings=tuned(background=False)) as late:
        orders = filled(client)
        store.after("set", "part/", lambda: orders.erase([3], reason="request 17"))
        report = late.load("orders").compact()
        assert store.is_done
        assert report.superseded
        assert others(orders)
        assert ADA not in str(list(orders.snapshot().rows()))
        assert all(row["id"] != 3 for t in range(8) for row in orders.snapshot(t, form="diff").to_arrow().to_pylist())


def test_a_difference_that_was_worked_out_before_is_made_anew(dated: DatedBlob) -> None:
    store: Any = Stepped(dated)
    with opened(dated) as client, persist.open(store, clock=dated.clock, settings=tuned(background=False)) as late:
        orders = filled(client)
        store.before("create", "log/", lambda: orders.erase([3], reason="request 17"))
        late.load("orders").overwrite([(1, ("bob@example.com", 1.0))]).result()
        assert store.is_done
        assert sorted(row[0] for row in orders.snapshot().rows()) == [1]
        assert all(row["id"] != 3 for row in orders.changes(0, 9).to_arrow().to_pylist())


def test_a_keyframe_made_meanwhile_loses_them_in_the_same_record(dated: DatedBlob) -> None:
    """Or else a sealed time would read otherwise by the keyframe than by history, until a second record."""
    store: Any = Stepped(dated)
    with opened(dated) as client, persist.open(store, clock=dated.clock, settings=tuned(background=False)) as late:
        orders = client.create_or_load("orders", key=KEY, value=VALUE)
        changes = [(time, diff) for time in range(8) for diff in ((-1, 1) if time else (1,))]
        orders.write(
            [
                ((id_, (email, float(time - (diff < 0)))), time, diff)
                for id_, email in PEOPLE.items()
                for time, diff in changes
            ]
        ).result()
        orders.compact()
        assert not orders.handle.contents().keyframes

        def meanwhile() -> None:
            orders.seal(9).result()
            orders.compact()
            assert orders.handle.contents().keyframes

        store.before("create", "log/", meanwhile)
        late.load("orders").erase([3], reason="request 17")
        assert store.is_done
        assert len(orders.handle.contents().erasures) == 1
        assert all(row[0] != 3 for row in orders.snapshot().rows())


def test_a_view_made_meanwhile_begins_anew_too(dated: DatedBlob) -> None:
    store: Any = Stepped(dated)
    with opened(dated) as client, persist.open(store, clock=dated.clock, settings=tuned(background=False)) as late:
        filled(client)
        view = "SELECT email, amount FROM orders"
        store.before("create", "log/", lambda: client.create_view("late", view).refresh())
        late.load("orders").erase([3], reason="request 17")
        assert store.is_done
        assert ADA not in str([list(client.load("late").snapshot(time).rows()) for time in range(8)])


class _Mortal:
    """A store whose client dies before some call: from then on nothing it asks for happens."""

    def __init__(self, inner: Blob, calls: int) -> None:
        self._inner = inner
        self._left = calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._counted(found) if name in ("get", "set", "create", "list", "delete") else found

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                raise Unavailable("the client is dead")
            return call(*given, **named)

        return counted


def prepared() -> DatedBlob:
    blob = DatedBlob(ImpatientClock())
    with opened(blob) as client:
        orders = filled(client)
        orders.index("email")
        client.clone("orders", "copy", as_of=4)
        client.create_view("all", "SELECT email, amount FROM orders").refresh()
        orders.publish("delta")
    return blob


def dies(store: Any, clock: ImpatientClock) -> bool:
    """Erase, and die before a call; return whether it did."""
    settings = tuned(background=False, hold_linger_s=0, retry_s=0.01)
    client: persist.Client | None = None
    try:
        client = persist.open(store, clock=clock, settings=settings)
        client.load("orders").erase([3], reason="request 17")
        client.close()
    except persist.PersistError:
        if client is not None:
            with suppress(persist.PersistError):
                client.close()
        return True
    return False


def after_a_death(calls: int) -> bool:
    blob = prepared()
    died = dies(_Mortal(blob, calls), blob.clock)
    with opened(blob) as client:
        orders = client.load("orders")
        present = [row for t in range(8) for row in orders.snapshot(t, form="diff").to_arrow().to_pylist()]
        assert sum(row["id"] == 3 for row in present) in (0, 10), "all of it is erased, or nothing"
        orders.erase([3], reason="request 17")
        assert others(orders)[7] == [row for row in present if row["id"] != 3][-2:]
        client.view("all").refresh()
        assert ADA not in str([list(client.load("all").snapshot(time).rows()) for time in range(8)])
        assert not client.fsck().problems
    collected(blob)
    assert mentions(blob, ADA) == []
    return died


def test_whoever_calls_again_finishes_what_another_left_when_it_died() -> None:
    assert after_a_death(25)


@pytest.mark.thorough
def test_a_death_before_any_call_to_the_store_leaves_nothing_half_done() -> None:
    calls = 1
    while after_a_death(calls):
        calls += 2
    assert calls > 40


class _Beside(_Mortal):
    """Lets a writer commit before each fifth call of a client that is to die."""

    def __init__(self, inner: Blob, calls: int, write: Callable[[], object]) -> None:
        super().__init__(inner, calls)
        self._write = write
        self._asked = 0

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        counted = super()._counted(call)

        def beside(*given: Any, **named: Any) -> Any:
            self._asked += 1
            if self._asked % 5 == 0 and self._left > 0:
                self._write()
            return counted(*given, **named)

        return beside


def after_a_death_beside_a_writer(calls: int) -> bool:
    """Erase while another client writes, die before a call, have it finished, and ask for the receipt."""
    blob = prepared()
    acknowledged: list[int] = []
    with opened(blob) as client:
        orders, one_at_a_time = client.load("orders"), threading.Lock()

        def write() -> None:
            with one_at_a_time:
                if len(acknowledged) == 12:
                    return
                number = 100 + len(acknowledged)
                updates = [((number, (f"{number}@example.com", 1.0)), 9, 1), ((3, (ADA, float(number))), 9, 1)]
                orders.write(updates).result()
                acknowledged.append(number)
                if number % 3 == 0:
                    orders.compact(only_due=True)

        died = dies(_Beside(blob, calls, write), blob.clock)
        client.load("orders").erase([3], reason="request 17")
        orders.seal(10).result()
        assert sorted(row[0] for row in orders.snapshot(9).rows()) == [1, 2, *acknowledged]
    blob.clock.sleep(120)
    with opened(blob) as client:
        client.maintain()
    collected(blob)
    with opened(blob) as client:
        assert client.load("orders").traces([3], texts=[ADA]).receipt()
        assert not client.fsck().problems
    assert mentions(blob, ADA) == []
    return died


def test_beside_a_writer_a_killed_erasure_is_finished_until_the_receipt() -> None:
    assert after_a_death_beside_a_writer(30)


def test_queries_and_comments_that_say_what_was_erased_are_told(dated: DatedBlob) -> None:
    with opened(dated) as client:
        orders = filled(client)
        client.create_view("of ada", f"SELECT count(*) AS n FROM orders WHERE email = '{ADA}'").refresh()
        client.create_view("again", 'SELECT n FROM "of ada"').refresh()
        client.create_view("others", "SELECT count(*) AS n FROM orders WHERE email <> 'nobody'").refresh()
        client.load("others").describe(comment=f"but {ADA}", properties={"owner": "us", "of": ADA}).result()
        told = ("the query of 'of ada'", "the comment of 'others'", "the property 'of' of 'others'")
        report = orders.erase(where=pc.field("email") == ADA, reason="request 17")
        assert sorted(report.mentions) == sorted(told)
        assert "have a text of what is erased, and no erasure changes that: do it yourself" in str(report)
        assert sorted(orders.erase(where=f"email = '{ADA}'", reason="again").mentions) == sorted(told)
        assert orders.erase(where="email = 'bob@example.com'", reason="request 18").mentions == ()
        assert orders.erase([2], reason="request 19").mentions == ()
        named = client.create_or_load("named", key={"email": str})
        named.write([(ADA, None), ("x", None)], time=0, seal=1).result()
        named.describe(comment=f"that of {ADA}").result()
        assert named.erase([ADA, "x"], reason="request 17").mentions == ("the comment of 'named'",)
        named.describe(comment=f'that of "{ADA}"').result()
        found = named.traces(texts=[f'of "{ADA}"']).found
        assert any(each.rows for each in found), "a quotation mark is stored with a backslash"
        for other in (f'if "{ADA}"', f'of "{ADA}"!'):
            assert not any(each.rows for each in named.traces(texts=[other]).found)


# What is left, and the receipt.


def test_traces_say_what_holds_it_until_when_and_give_a_receipt_when_nothing_does(dated: DatedBlob) -> None:
    with opened(dated) as client:
        orders = filled(client)
        orders.erase([3], reason="request 17")
        found = orders.traces([3], texts=[ADA])
        assert not found.is_gone
        with pytest.raises(persist.InvalidUsage, match="is not a list of texts"):
            orders.traces([3], texts=cast(Any, 5))
        assert {each.key for each in found.found} >= {*mentions(dated, ADA)}
        assert all(each.until is not None for each in found.found)
        with pytest.raises(persist.InvalidUsage, match=r"may hold what was erased from 'orders'"):
            found.receipt()
        latest = max(each.until for each in found.found if each.until is not None)
        assert f"{latest:%Y-%m-%dT%H:%M:%SZ}" in str(found)
    dated.clock.sleep(latest.timestamp() - dated.clock.wall_ms() / 1000 + 1)
    for _ in range(2):
        with opened(dated) as client:
            client.gc()
    with opened(dated) as client:
        found = client.load("orders").traces([3], texts=[ADA])
        assert found.is_gone, str(found)
        receipt = found.receipt()
        assert receipt["digest"] == receipt_digest(receipt)
        assert [each["reason"] for each in receipt["erasures"]] == ["request 17"]
        assert ADA not in str(receipt)
        assert receipt["searched"]["objects"] == found.objects
        assert receipt_digest({**receipt, "seqno": 0}) != receipt["digest"]


def test_what_a_directory_object_says_of_a_collection_goes_where_there_are_many(dated: DatedBlob) -> None:
    with opened(dated) as client:
        filled(client)
        client.create_view("all", "SELECT email FROM orders").refresh()
        for number in range(300):
            client.create_or_load(f"other {number}", key=KEY, value=VALUE)
            wait_for_checkpoint(client)
        client.load("orders").erase([3], reason="request 17")
        assert any(key.startswith("directory/") for key in mentions(dated, ADA))
    collected(dated)
    assert mentions(dated, ADA) == []
    with opened(dated) as client:
        assert client.load("orders").traces([3], texts=[ADA]).is_gone


def test_a_reader_that_may_still_read_it_is_named(dated: DatedBlob) -> None:
    with opened(dated, grace_s=0) as client, opened(dated, grace_s=0) as reader:
        orders = filled(client)
        orders.compact()
        with reader.load("orders").snapshot(3):
            orders.erase([3], reason="request 17")
            named = [each for each in orders.traces([3]).found if re.match(r"\S+ may still read it", each.why)]
        assert {each.until.timestamp() - dated.clock.wall_ms() / 1000 for each in named if each.until} == {601.0}


def test_what_was_written_again_or_never_erased_is_found(client: persist.Client) -> None:
    orders = filled(client)
    assert not orders.traces([3]).is_gone
    assert orders.traces([99]).is_gone
    assert not orders.traces(texts=["bob@example.com"]).is_gone


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_condition_erases_keys_that_matched_at_an_earlier_time(client: persist.Client, is_waiting: bool) -> None:
    users = client.create_or_load("users", key=KEY, value={"email": pa.string()}, keyed=persist.Keyed())
    users.upsert([(9, ADA)], time=0).result()
    report = users.erase(where=f"email = '{ADA}'", reason="request 16")
    assert (report.keys, report.former_keys) == (1, 1), "nothing is sealed yet"
    users.upsert([(1, ADA), (2, ADA), (3, "eve"), (4, ADA)], time=0, seal=1).result()
    users.upsert([(2, "bob"), (3, "eve2"), (4, None)], time=1, seal=2).result()
    if is_waiting:
        users.upsert([(3, ADA)], time=5).result()
    users.compact()
    found = users.traces(where=f"email = '{ADA}'").found
    assert {each.rows for each in found if each.key.startswith("part/")} == {1, 5}
    report = users.erase(where=f"email = '{ADA}'", reason="request 17")
    assert (report.keys, report.former_keys) == ((4, 3) if is_waiting else (3, 2))
    assert f"{report.former_keys} of {report.keys} keys matched by earlier rows only" in str(report)
    assert [*users.snapshot(1).rows()] == ([] if is_waiting else [(3, "eve2")])
    assert not users.traces(where=f"email = '{ADA}'").is_gone
    report = users.erase([3], reason="request 18")
    assert (report.keys, report.former_keys) == (None, 0)


def test_erasures_of_other_collections_withhold_no_receipt(dated: DatedBlob) -> None:
    """The state that an erasure left is still the newest when the log begins after erasures elsewhere."""
    with opened(dated) as client:
        names = ("first", "second", "third")
        every = [filled(client, name) for name in names]
        for each in every:
            each.erase([3], reason="request 17")
    collected(dated, times=4)
    with opened(dated) as client:
        for name in names:
            found = client.load(name).traces([3], texts=[ADA])
            assert found.is_gone, str(found)


def test_a_batch_counts_under_its_own_schema_alone(client: persist.Client) -> None:
    users = client.create_or_load("users", key=KEY, value={"old": pa.string()})
    users.write([(1, ADA)], time=0, seal=1).result()
    users.evolve(add={"new": pa.string()})
    client.load("users").evolve(drop=["old"])
    assert client.load("users").traces(where=f"new = '{ADA}'").is_gone, "that column never held it"
    assert not client.load("users").traces([1]).is_gone
    client.load("users").write([(2, ADA)], time=1, seal=2).result()
    assert not client.load("users").traces(where=f"new = '{ADA}'").is_gone


@pytest.mark.parametrize("name", ["bob", "bob" * 20_000])
def test_pending_events_count_as_events_alone(client: persist.Client, name: str) -> None:
    """Whether they are in the log, or in a part of their own."""
    value = {"email": pa.string(), "deleted": pa.bool_()}
    users = client.create_or_load("users", key=KEY, value=value, keyed=persist.Keyed(resolve="background"))
    users.upsert([(1, (name, False), 0), (3, (ADA, True), 0)]).result()
    assert not users.traces(where=f"email = '{ADA}'").is_gone
    users.erase([3], reason="request 17")
    users.upsert([(4, (ADA, True), 0)]).result()
    (named,) = {each.rows for each in users.traces(where=f"email = '{ADA}'").found if each.rows}
    assert named == 1


def test_erased_bytes_leave_a_folder(tmp_path: Path) -> None:
    """With writers beside it, and without a clock of our own: the graces are nothing, but for that of the log."""
    settings = tuned(background=False, hold_linger_s=0, grace_s=0, orphan_grace_s=0)
    with persist.open(tmp_path, settings=settings) as client, persist.open(tmp_path, settings=settings) as writer:
        orders, beside = filled(client), writer.load("orders")
        for time in range(8, 12):
            beside.write([((1, ("bob@example.com", float(time))), time, 1)], seal=time + 1).result()
            orders.erase([3], reason="request 17")
        orders.compact()
        client.gc()
    with persist.open(tmp_path, settings=settings) as client:
        client.gc()
        left = client.load("orders").traces([3], texts=[ADA])
        assert {each.key.split("/")[0] for each in left.found} <= {"log", "checkpoint", "directory"}


@pytest.mark.thorough
@pytest.mark.parametrize("store", ["folder", "s3"])
def test_under_writers_no_object_holds_it_that_traces_do_not_name(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """On a folder, and on a bucket of moto, or with --rgw of Ceph: no clock is ours, so the log stays for minutes."""
    options = request.getfixturevalue("s3_options") if store == "s3" else None
    url = str(tmp_path) if options is None else f"s3://{make_bucket(options)}/shop"
    settings = tuned(background=False, hold_linger_s=0, grace_s=0, orphan_grace_s=0)

    def entered() -> persist.Client:
        return persist.open(url, settings=settings, storage_options=options)

    with entered() as client:
        orders, stop, failed = filled(client), threading.Event(), list[BaseException]()

        def write(id_: int) -> None:
            try:
                with entered() as writer:
                    beside = writer.load("orders")
                    while not stop.is_set():
                        beside.write([(id_, ("bob@example.com", 1.0))]).result()
                        if id_ == 11:
                            beside.compact(only_due=True)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=write, args=(id_,)) for id_ in (10, 11)]
        for thread in threads:
            thread.start()
        report = orders.erase([3], reason="request 17")
        stop.set()
        for thread in threads:
            thread.join()
        assert not failed
        assert report.updates == 17
        assert all(row[0] != 3 for row in orders.snapshot().rows())
        orders.compact()
        client.gc()
        left = orders.traces([3], texts=[ADA])
        assert {each.key for each in left.found} >= {*mentions(client.engine.blob, ADA)}
        assert all(each.until is not None for each in left.found)
        assert not client.fsck().problems


def owes(client: persist.Client) -> list[str]:
    return [name for name in client.engine.names(".owed.") if name.startswith(".owed.")]


class _DyingWithTheRecord(_Mortal):
    """Lets the record of the erasure through, and nothing after it."""

    def create(self, key: str, data: bytes) -> Any:
        made = self._counted(self._inner.create)(key, data)
        if b'"kind":"erase"' in data:
            self._left = 0
        return made


def after_the_record(blob: DatedBlob) -> None:
    """Erase, and die when the record is there."""
    store: Any = _DyingWithTheRecord(blob, 10**9)
    client = persist.open(store, clock=blob.clock, settings=tuned(background=False, hold_linger_s=0, retry_s=0.01))
    with pytest.raises(persist.PersistError):
        client.load("orders").erase([3], reason="request 17")
    with suppress(persist.PersistError):
        client.close()


def test_a_maintainer_finishes_what_a_killed_erasure_still_owed() -> None:
    blob = prepared()
    with opened(blob) as client:
        client.create_view("total", 'SELECT email, sum(amount) AS total FROM "all" GROUP BY email').refresh()
        client.load("total").index("total")
        client.view("total").publish("delta")
    after_the_record(blob)
    with opened(blob) as client:
        assert client.load("orders").published() == []
        assert owes(client)
        assert client.load("total").upper.time == 0
        client.maintain()
        assert owes(client), "whoever made it may still be at work"
        owed = client.engine.follower.require(client.engine.follower.state.ids[owes(client)[0]], "owed")
        at_ms = json.loads(owed.about.properties["owed"])["at_ms"]
        blob.clock.sleep((at_ms + 60_000 - 0.5) / 1000 - blob.clock.wall_ms() / 1000 - blob.clock.monotonic_s() % 0.001)
        complete_old(client.engine, owed)
        assert owes(client), "not for a minute yet"
        blob.clock.sleep(0.001)
        complete_old(client.engine, owed)
        assert not owes(client)
    with opened(blob) as client:
        client.maintain()
        for name in ("orders", "total"):
            (table,) = client.load(name).published()
            assert (table.table, table.rows) == ("delta", 2)
            assert [index.as_of for index in client.load(name).indexes()] == [7]
        assert sorted(client.load("total").snapshot().rows()) == [("bob@example.com", 7.0), ("zoe@example.com", 7.0)]
        assert not client.fsck().problems
    collected(blob)
    assert mentions(blob, ADA) == []


def test_whoever_erases_again_finishes_it_at_once() -> None:
    blob = prepared()
    after_the_record(blob)
    with opened(blob) as client:
        assert owes(client)
        assert client.load("orders").erase([3], reason="request 17").seqno is None
        assert not owes(client)
        assert [table.rows for table in client.load("orders").published()] == [2]


def test_what_is_derived_waits_for_a_seal_while_since_is_beyond_all_sealed_times() -> None:
    blob = prepared()
    with opened(blob) as client:
        orders, copy = client.load("orders"), client.load("copy")
        copy.index("email")
        client.view("all").drop()
        orders.allow_compaction(50).result()
        report = orders.erase([3], reason="request 17")
        assert (report.indexes, [table for _, table in report.tables]) == (2, ["delta"])
        waiting = owes(client)
        assert (len(waiting), orders.indexes(), orders.published()) == (1, [], [])
        copy.drop_index("email").result()
        blob.clock.sleep(120)
        client.maintain()
        assert owes(client) == waiting
        orders.seal(60).result()
        assert orders.erase([3], reason="request 17").seqno is None
        assert (owes(client), copy.indexes()) == ([], []), "what is done is not done again"
        assert [index.as_of for index in orders.indexes()] == [table.as_of for table in orders.published()] == [59]
        assert not client.fsck().problems


class _Full(DatedBlob):
    """A store that has room for records, and for nothing else, from when an erasure's record is there."""

    refused: tuple[str, ...] = ()
    is_full = False

    def set(self, key: str, value: bytes) -> None:
        self._check(key)
        super().set(key, value)

    def create(self, key: str, value: bytes) -> bool:
        self._check(key)
        created = super().create(key, value)
        self.is_full |= b'"kind":"erase"' in value
        return created

    def _check(self, key: str) -> None:
        if self.is_full and key.startswith(self.refused):
            raise StoreFull(f"cannot write {key}: no room")


def test_an_erasure_whose_checkpoint_fails_is_reported_as_done() -> None:
    blob = _Full(ImpatientClock())
    blob.refused = ("checkpoint/", "state/", "directory/")
    with opened(blob) as client:
        orders = filled(client)
        assert orders.erase([3], reason="request 17").updates == 17
        assert all(row[0] != 3 for row in orders.snapshot().rows())
        untils = {each.until and each.until.timestamp() for each in orders.traces([3]).found if each.key[:4] == "log/"}
        assert untils == {blob.clock.wall_ms() // 1000 + 1 + HOUR}, "from now, as nothing says when it was"


def test_an_error_after_an_erasure_says_what_was_erased() -> None:
    blob = _Full(ImpatientClock())
    blob.refused = ("log/",)
    with opened(blob) as client:
        orders = filled(client)
        client.create_view("all", "SELECT email, amount FROM orders").refresh()
        with pytest.raises(StoreFull) as error:
            orders.erase([3], reason="request 17")
        blob.is_full = False
        assert "erased 17 updates of 'orders' from all times, 1 view begun anew" in error.value.__notes__[0]
        client.maintain()
        blob.clock.sleep(120)
        client.maintain()
        assert not owes(client)
        assert ADA not in str([list(client.load("all").snapshot(time).rows()) for time in range(8)])
