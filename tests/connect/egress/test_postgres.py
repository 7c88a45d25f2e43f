"""Collections into tables of a real Postgres: each time as a whole, exactly once, whoever is cut off when."""

import datetime
import subprocess
import sys
import threading
from collections.abc import Sequence
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import persist
from persist.connect import Piece
from persist.connect.egress.postgres import PostgresConfig, PostgresSink
from persist.errors import SinkMoved, TargetUnavailable
from persist.tools.cli.main import main
from tests.connect.egress.target import Target
from tests.connect.ingest.servers import postgres_programs
from tests.support.tiers import examples

pytestmark = [
    pytest.mark.outside,
    pytest.mark.skipif(postgres_programs() is None, reason="no Postgres: Debian's package postgresql has one"),
]
ORDERS: dict[str, Any] = {"key": {"id": pa.int64()}, "value": {"status": pa.string()}}


def made(client: persist.Client, name: str = "orders", **options: Any) -> persist.Collection:
    return client.create_or_load(name, **{**ORDERS, "keyed": persist.Keyed(), **options})


def upserted(collection: persist.Collection, time: int, **values: str | None) -> None:
    """Let rows of keys, which are numbers after a letter, become these at a time; None deletes."""
    collection.upsert([(int(key[1:]), value, time) for key, value in values.items()], seal=time + 1).result()


def test_the_contents_come_first_and_then_each_change(target: Target) -> None:
    with persist.open(target.location) as client:
        orders = made(client)
        upserted(orders, 0, k1="new", k2="", k3="gone")
        upserted(orders, 1, k3=None)
        first = target.egress("orders", location=client)
        assert (first.rows, first.commits, first.uppers) == (2, 1, {"orders": 2})
        assert target.rows("SELECT id, status FROM orders ORDER BY 1") == [(1, "new"), (2, "")]
        upserted(orders, 2, k1="paid", k4="new")
        upserted(orders, 3, k2=None, k1="sent")
        upserted(orders, 4, k4=None, k5="new")
        upserted(orders, 5, k5=None)
        second = target.egress("orders", location=client)
        assert (second.rows, second.commits) == (7, 1)
        assert target.rows("SELECT id, status FROM orders ORDER BY 1") == [(1, "sent")]
        assert target.rows("SELECT name, upper FROM persist_positions") == [("orders", 6)]
        assert target.egress("orders", location=client).commits == 0


def test_a_view_is_sent_and_a_collection_without_a_key_by_a_view_that_counts_its_rows(target: Target) -> None:
    with persist.open(target.location) as client:
        log = client.create_or_load("log", key=None, value={"line": pa.string(), "level": pa.int64()})
        log.write([((None, ("x", 1)), 0, 2), ((None, ("y", 2)), 0, 1)], seal=1).result()
        with pytest.raises(persist.InvalidUsage, match=r"'log' has no key.*GROUP BY ALL"):
            target.egress("log", location=client)
        counted = client.create_view("counted", "SELECT line, level, count(*) AS n FROM log GROUP BY ALL")
        counted.refresh()
        target.egress("counted", location=client)
        log.write([((None, ("x", 1)), 1, -1), ((None, ("y", 2)), 1, -1), ((None, ("", 1)), 1, -3)], seal=2).result()
        counted.refresh()
        assert target.rows("SELECT * FROM counted ORDER BY 2") == [("x", 1, 2), ("y", 2, 1)]
        target.egress("counted", location=client)
        assert target.rows("SELECT * FROM counted ORDER BY 1") == [("", 1, -3), ("x", 1, 1)]


def test_collections_of_a_sink_move_together(target: Target) -> None:
    with persist.open(target.location) as client:
        a, b = made(client, "a"), made(client, "b")
        target.egress("a", "b", location=client)
        for time in range(5):
            with client.multi_write() as multi:
                for each in (a, b):
                    multi.upsert(each, [(1, str(time))], time=time)
                    multi.seal(each, time + 1)
        done = target.egress("a", "b", location=client, batch_rows=3)
        assert done.commits == 4  # Of 3 updates at most, unless one time has more.
        assert target.rows("SELECT count(DISTINCT moved_at), min(upper), max(upper) FROM persist_positions") == [
            (1, 5, 5)
        ]
        upserted(a, 5, k1="alone")
        target.egress("a", "b", location=client)
        assert target.rows("SELECT status FROM a UNION ALL SELECT status FROM b") == [("alone",), ("4",)]


class Bank:
    """Accounts whose balances add up at each time, and the transfers between them."""

    NAMES = ("accounts", "transfers")

    def __init__(self, client: persist.Client) -> None:
        self.accounts = made(client, "accounts", value={"balance": pa.int64()})
        self.transfers = made(client, "transfers")
        self.client = client
        self.balances = dict.fromkeys(range(10), 100)
        self.time = 0
        self._sealed(dict.fromkeys(self.balances, 100))

    def transfer(self, amount: int) -> None:
        a, b = self.time % 10, (self.time * 7 + 3) % 10
        self.balances[a] -= amount
        self.balances[b] += amount
        self._sealed({a: self.balances[a], b: self.balances[b]})

    def _sealed(self, changed: dict[int, int]) -> None:
        more = {"note": None} if "note" in self.accounts.columns else {}
        rows = [{"id": key, "balance": balance, **more} for key, balance in changed.items()]
        with self.client.multi_write() as multi:
            multi.upsert(self.accounts, rows, time=self.time)
            multi.upsert(self.transfers, [(self.time, str(changed))], time=self.time)
            for each in (self.accounts, self.transfers):
                multi.seal(each, self.time + 1)
        self.time += 1

    def check(self, target: Target) -> None:
        """Check that the target has nothing yet, or all of the time that it says."""
        if target.rows("SELECT to_regclass('accounts')") != [(None,)]:
            [[upper]] = target.rows("SELECT DISTINCT upper FROM persist_positions")
            assert target.rows("SELECT sum(balance) FROM accounts") == [(1000,)]
            assert target.rows("SELECT count(*) FROM transfers") == [(upper,)]


@pytest.mark.thorough(except_every=8)
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.thorough)])
def test_wherever_the_target_is_cut_off_it_goes_on_from_there(target: Target, every: int) -> None:
    with persist.open(target.location) as client:
        bank = Bank(client)
        cuts = 0
        for stage in range(3):
            for statement in range(1 + stage, 100, every):
                bank.transfer(statement)
                sink = target.cut_off(statement, *bank.NAMES)
                try:
                    persist.egress(client, sink, once=True)
                    break
                except TargetUnavailable:
                    cuts += 1
                finally:
                    bank.check(target)
            if stage == 1:
                bank.accounts.evolve(add={"note": pa.string()})
        assert cuts > 30 // every
        assert target.rows("SELECT id, balance, note FROM accounts ORDER BY 1") == [
            (key, balance, None) for key, balance in bank.balances.items()
        ]
        assert target.rows("SELECT count(*) FROM transfers") == [(bank.time,)]


def test_a_collection_that_joins_later_is_seen_at_the_point_at_which_the_others_are(target: Target) -> None:
    with persist.open(target.location) as client:
        bank = Bank(client)
        target.egress("accounts", location=client)
        for statement in range(1, 100, 4):
            bank.transfer(statement)
            try:
                persist.egress(client, target.cut_off(statement, *bank.NAMES), once=True)
                break
            except TargetUnavailable:
                if target.rows("SELECT to_regclass('transfers')") != [(None,)]:
                    bank.check(target)
        bank.check(target)
        assert target.rows("SELECT count(*) FROM transfers") == [(bank.time,)]


def test_if_it_is_not_known_whether_a_commit_happened_the_target_tells(target: Target) -> None:
    class Unheard(PostgresSink):
        def take(self, step: Sequence[Piece]) -> Sequence[Piece]:
            super().take(step)
            raise TargetUnavailable("the answer was lost")

    with persist.open(target.location) as client:
        bank = Bank(client)
        for amount in range(6):
            bank.transfer(amount)
            with pytest.raises(TargetUnavailable):
                persist.egress(client, Unheard(PostgresConfig(**target.config(*bank.NAMES))), once=True)
        target.egress(*bank.NAMES, location=client)
        bank.check(target)


def test_a_copy_goes_on_with_the_keys_that_are_not_there_yet(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("persist.connect.egress.feed"), "SLICE_BYTES", 1000)

    class Slow(PostgresSink):
        left = 4

        def take(self, step: Sequence[Piece]) -> Sequence[Piece]:
            taken = super().take(step)
            self.left -= 1
            if not self.left:
                raise TargetUnavailable("enough")
            return taken

    with persist.open(target.location) as client:
        orders = made(client)
        for part in range(10):
            orders.upsert([(key, "x" * 100) for key in range(part * 100, part * 100 + 100)], time=0).result()
        orders.seal(1).result()
        with pytest.raises(TargetUnavailable, match="enough"):
            persist.egress(client, Slow(PostgresConfig(**target.config("orders"))), once=True)
        [[copy]] = target.rows("SELECT relname FROM pg_class WHERE relname LIKE 'persist_copy_%'")
        [[before]] = target.rows(f"SELECT count(*) FROM {copy}")
        assert 0 < before < 1000
        upserted(orders, 1, k0="changed")
        orders.allow_compaction(1).result()
        orders.compact()
        done = target.egress("orders", location=client)
        assert done.rows == 1000 - before + 1
        assert target.rows("SELECT count(*), count(*) FILTER (WHERE status = 'changed') FROM orders") == [(1000, 1)]


def test_history_waits_for_the_sink_until_it_is_dropped(target: Target) -> None:
    with persist.open(target.location) as client:
        orders = made(client)
        upserted(orders, 0, k1="a")
        target.egress("orders")
        for time in range(1, 4):
            upserted(orders, time, k1=str(time))
        orders.allow_compaction(3).result()
        assert (orders.since, [hold.name for hold in orders.holds()]) == (persist.Antichain(0), ["warehouse"])
        target.egress("orders")
        assert orders.since == persist.Antichain(3)
        done = persist.egress(client, target.config("orders"), drop=True)
        assert (done.dropped, orders.holds()) == (("orders",), [])
        assert target.rows("SELECT count(*) FROM persist_positions") == [(0,)]
        with pytest.raises(persist.InvalidUsage, match=r"public\.orders has rows that this sink has not sent"):
            target.egress("orders", location=client)
        target.run("TRUNCATE orders")
        assert target.egress("orders", location=client).rows == 1


def test_history_that_is_gone_is_told_with_what_to_do(target: Target) -> None:
    with persist.open(target.location) as client:
        orders = made(client)
        upserted(orders, 0, k1="a")
        target.egress("orders", location=client)
        orders.hold(name="warehouse").release()
        upserted(orders, 1, k1="b")
        orders.allow_compaction(1).result()
        with pytest.raises(persist.errors.HoldNotFound) as error:
            target.egress("orders", location=client)
        assert "give the sink up by --drop" in error.value.__notes__[0]


def test_a_collection_that_is_complete_for_ever_lets_the_hold_go(target: Target) -> None:
    with persist.open(target.location) as client:
        orders = made(client)
        upserted(orders, 0, k1="a")
        orders.seal(persist.Antichain()).result()
        assert persist.egress(client, target.config("orders")).uppers == {"orders": None}
        assert "warehouse" not in {hold.name for hold in orders.holds()}
        assert target.egress("orders", location=client).commits == 0


def test_a_collection_that_was_dropped_is_told(target: Target) -> None:
    with persist.open(target.location) as client:
        orders = made(client)
        upserted(orders, 0, k1="a")
        stop = threading.Event()
        problems: list[BaseException] = []

        def follow() -> None:
            try:
                persist.egress(target.location, target.config("orders"), stop=stop)
            except persist.PersistError as error:
                problems.append(error)

        target.egress("orders", location=client)
        thread = threading.Thread(target=follow)
        thread.start()
        orders.drop().result()
        thread.join()
        assert "no collection 'orders'" in str(problems[0])


def test_a_target_that_is_lost_while_it_is_followed_is_found_again(
    target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    with persist.open(target.location) as client:
        orders = made(client)
        stop = threading.Event()
        thread = threading.Thread(
            target=persist.egress, args=(client, target.config("orders")), kwargs={"stop": stop}, daemon=True
        )
        target.egress("orders", location=client)
        thread.start()
        try:
            for time in range(3):
                upserted(orders, time, k1=str(time))
                while target.rows("SELECT status FROM orders") != [(str(time),)]:
                    assert thread.is_alive()
                ours = "FROM pg_stat_activity WHERE application_name = 'persist egress'"
                assert len(target.rows(f"SELECT pg_terminate_backend(pid, 10000) {ours}")) == 1
        finally:
            stop.set()
            thread.join()
    assert "does not answer" in caplog.text
    assert "it is tried again" in caplog.text


def test_columns_follow_the_collection(target: Target) -> None:
    with persist.open(target.location) as client:
        orders = made(client, value={"a": pa.int32(), "b": pa.string(), "c": pa.string()})
        orders.upsert([(1, (1, "b", "c"))], time=0, seal=1).result()
        target.egress("orders", location=client)
        orders.evolve(add={"d": pa.date32()}, drop=["c"], rename={"a": "b", "b": "a"}, widen={"a": pa.int64()})
        orders = client.load("orders")
        orders.upsert([{"id": 2, "a": "x", "b": 2**40, "d": datetime.date(2026, 11, 26)}], time=1, seal=2).result()
        target.egress("orders", location=client)
        assert target.rows("SELECT id, a, b, d FROM orders ORDER BY 1") == [
            (1, "b", 1, None),
            (2, "x", 2**40, datetime.date(2026, 11, 26)),
        ]


def test_a_key_with_several_rows_is_refused_before_anything_is_sent(target: Target) -> None:
    with persist.open(target.location) as client:
        plain = made(client, keyed=None)
        plain.write([((1, "a"), 0, 1)], seal=1).result()
        target.egress("orders", location=client)
        plain.write([((1, "b"), 1, 1), ((2, "c"), 1, 1)], seal=2).result()
        with pytest.raises(persist.InvalidUsage, match=r"a row already with id=1.*GROUP BY ALL"):
            target.egress("orders", location=client)
        assert target.rows("SELECT * FROM orders") == [(1, "a")]
        with pytest.raises(persist.InvalidUsage, match=r"is duplicated.*GROUP BY ALL"):
            target.egress("orders", location=client, tables={"orders": "other"}, name="other")


def test_a_null_key_is_refused(target: Target) -> None:
    with persist.open(target.location) as client:
        plain = made(client, keyed=None)
        plain.write([((None, "a"), 0, 1)], seal=1).result()
        with pytest.raises(persist.InvalidUsage, match="A key of a table cannot be NULL"):
            target.egress("orders", location=client)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("id bigint PRIMARY KEY", r"has no column 'status': ALTER TABLE .* ADD COLUMN \"status\" text"),
        ("id int PRIMARY KEY, status text", "the column 'id' of the table public.orders is integer"),
        ("id bigint, status text", r"no unique index on just \(id\)"),
        ("id bigint, status text, UNIQUE (id, status)", r"no unique index on just \(id\)"),
        ("id bigint PRIMARY KEY, status text, n int NOT NULL", "has a column 'n' that 'orders' has not"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(target: Target, table: str, message: str) -> None:
    target.run(f"CREATE TABLE orders ({table})")
    with persist.open(target.location) as client:
        upserted(made(client), 0, k1="a")
        with pytest.raises(persist.InvalidUsage, match=message):
            target.egress("orders", location=client)


def test_a_table_that_is_there_keeps_what_it_has_besides(target: Target) -> None:
    target.run(
        "CREATE SCHEMA shop",
        "CREATE TABLE shop.orders (note text DEFAULT 'x', id numeric PRIMARY KEY, status varchar(5))",
    )
    with persist.open(target.location) as client:
        orders = made(client)
        upserted(orders, 0, k1="a", k2="b")
        target.egress("orders", location=client, tables={"orders": "shop.orders"})
        target.run("UPDATE shop.orders SET note = 'mine'")
        upserted(orders, 1, k1="c", k3="d")
        target.egress("orders", location=client, tables={"orders": "shop.orders"})
        assert target.rows("SELECT * FROM shop.orders ORDER BY 2") == [
            ("mine", 1, "c"),
            ("mine", 2, "b"),
            ("x", 3, "d"),
        ]
        upserted(orders, 2, k1="too long")
        with pytest.raises(persist.InvalidUsage, match=r"too long for type character varying\(5\)"):
            target.egress("orders", location=client, tables={"orders": "shop.orders"})


def test_of_two_that_feed_one_target_one_is_told(target: Target) -> None:
    with persist.open(target.location) as client:
        orders = made(client)
        upserted(orders, 0, k1="a")
        target.egress("orders", location=client)

        class Late(PostgresSink):
            def take(self, step: Sequence[Piece]) -> Sequence[Piece]:
                target.egress("orders", location=client)  # The other one.
                return super().take(step)

        upserted(orders, 1, k1="b")
        with pytest.raises(SinkMoved, match="another process sends 'orders' as 'warehouse', and was first"):
            persist.egress(client, Late(PostgresConfig(**target.config("orders"))), once=True)
        assert target.rows("SELECT * FROM orders") == [(1, "b")]


def test_every_type_of_the_table_of_types_arrives_as_it_says(target: Target) -> None:
    at = datetime.datetime(2026, 11, 26, 12, 30, 0, 1)
    values: dict[str, tuple[pa.DataType, Any, Any]] = {
        "bool": (pa.bool_(), True, True),
        "i8": (pa.int8(), -1, -1),
        "u32": (pa.uint32(), 2**32 - 1, 2**32 - 1),
        "u64": (pa.uint64(), 2**64 - 1, Decimal(2**64 - 1)),
        "f32": (pa.float32(), 0.5, 0.5),
        "f64": (pa.float64(), 1e300, 1e300),
        "inf": (pa.float64(), float("-inf"), float("-inf")),
        "number": (pa.decimal128(10, 2), Decimal("1.50"), Decimal("1.50")),
        "text": (pa.string(), 'a "b",\n\\', 'a "b",\n\\'),
        "empty": (pa.string(), "", ""),
        "bytes": (pa.binary(), b"\x00\xff", "00ff"),
        "none": (pa.binary(), b"", ""),
        "day": (pa.date32(), datetime.date(2026, 11, 26), datetime.date(2026, 11, 26)),
        "time": (pa.time64("us"), datetime.time(12, 30), datetime.time(12, 30)),
        "at": (pa.timestamp("us"), at, at),
        "moment": (pa.timestamp("ms", "UTC"), at.replace(microsecond=0), "2026-11-26 12:30:00+00"),
        "took": (pa.duration("ms"), datetime.timedelta(days=1, milliseconds=5), datetime.timedelta(1, 0, 5000)),
        "list": (pa.list_(pa.int64()), [1, None], [1, None]),
        "struct": (pa.struct({"a": pa.string()}), {"a": "x"}, {"a": "x"}),
    }
    with persist.open(target.location) as client:
        wide = client.create_or_load(
            "wide", key={"id": pa.int64()}, value={name: kind for name, (kind, _, _) in values.items()}
        )
        row = {"id": 1, **{name: value for name, (_, value, _) in values.items()}}
        nulls = {"id": 2, **dict.fromkeys(values)}
        schema = pa.schema([("id", pa.int64()), *[(name, kind) for name, (kind, _, _) in values.items()]])
        wide.write(pa.Table.from_pylist([row], schema), time=0, seal=1).result()
        target.egress("wide", location=client)
        wide.write(pa.Table.from_pylist([{**row, "id": 3}, nulls], schema), time=1, seal=2).result()
        target.egress("wide", location=client)
    names = ", ".join(
        {
            "bytes": "encode(bytes, 'hex')",
            "none": "encode(none, 'hex')",
            "moment": "(moment AT TIME ZONE 'UTC')::text || '+00'",
        }.get(n, f'"{n}"')
        for n in values
    )
    copied, empty, followed = target.rows(f"SELECT {names} FROM wide ORDER BY id")
    assert copied == followed == tuple(expected for _, _, expected in values.values())
    assert set(empty) == {None}


def test_a_value_with_more_digits_than_postgres_has_is_told(target: Target) -> None:
    with persist.open(target.location) as client:
        wide = client.create_or_load("wide", key={"id": pa.int64()}, value={"at": pa.timestamp("ns")})
        rows = pa.table({"id": [1], "at": pa.array([1], pa.timestamp("ns"))})
        wide.write(rows, time=0, seal=1).result()
        with pytest.raises(persist.InvalidUsage, match=r"a value of the column wide\.at does not fit timestamp"):
            target.egress("wide", location=client)


def test_after_any_changes_the_target_has_what_the_collection_has(target: Target) -> None:
    steps = st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.none() | st.sampled_from(["", "a", "b"])), max_size=4), max_size=6
    )

    @given(steps, st.integers(1, 5))
    @settings(max_examples=examples(60), deadline=None)
    def check(changes: list[list[tuple[int, str | None]]], limit: int) -> None:
        target.run("DROP TABLE IF EXISTS orders, persist_positions")
        with persist.open(persist.MemoryBlob()) as client:
            orders = made(client)
            model: dict[int, str] = {}
            for time, events in enumerate(changes):
                last = dict(events)
                model = {key: value for key, value in {**model, **last}.items() if value is not None}
                orders.upsert([*last.items()], time=time, seal=time + 1).result()
                if time % 2:
                    target.egress("orders", location=client, batch_rows=limit)
            target.egress("orders", location=client, batch_rows=limit)
            assert target.rows("SELECT id, status FROM orders ORDER BY 1") == sorted(model.items())

    check()


def test_a_password_is_in_no_message(tmp_path: Path) -> None:
    with persist.open(str(tmp_path / "location")) as client:
        made(client)
        for url in ("postgresql://me:hunter2@127.0.0.1:1/db", "postgresql://127.0.0.1:1/db?user=me&password=hunter2"):
            with pytest.raises(persist.Unavailable, match="does not answer") as error:
                persist.egress(client, {"sink": url, "collections": ["orders"]}, once=True)
            assert "hunter2" not in str(error.value)


def test_what_came_in_goes_out_the_same(target: Target) -> None:
    target.run(
        "CREATE SCHEMA back",
        "CREATE TABLE t (id int PRIMARY KEY, a text, b numeric(8, 2), c timestamptz, d bool, e bytea, f float8, "
        "g date)",
        "INSERT INTO t SELECT g, md5(g::text), g / 7.0, now(), g % 2 = 0, decode(md5(g::text), 'hex'), g / 3.0, "
        "'2026-01-01'::date + g FROM generate_series(1, 500) g",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    source = {"source": target.url, "publication": "p"}
    out = {"tables": {"t": "back.t"}}
    persist.ingest(target.location, source, once=True)
    target.egress("t", **out)
    target.run("UPDATE t SET a = NULL, b = -b WHERE id % 3 = 0", "DELETE FROM t WHERE id % 5 = 0")
    target.run("INSERT INTO t VALUES (0, '')", "UPDATE t SET id = id + 1000 WHERE id % 7 = 0")
    persist.ingest(target.location, source, once=True)
    target.egress("t", **out)
    assert target.rows("SELECT count(*) FROM back.t") == target.rows("SELECT count(*) FROM t")
    assert target.rows("(TABLE t EXCEPT TABLE back.t) UNION ALL (TABLE back.t EXCEPT TABLE t)") == []
    target.rows(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
    )


def test_the_command_sends_what_is_new_and_says_so(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "warehouse.toml"
    config.write_text(f'sink = "{target.url}"\ncollections = ["orders"]\n')
    with persist.open(target.location) as client:
        upserted(made(client), 0, k1="a")
    where = target.url.split("?")[0].rpartition("/")[2]
    assert main(["egress", target.location, str(config), "--once"]) == 0
    assert capsys.readouterr().out.replace(where, "db").startswith("sent 1 row to postgres://")
    assert main(["egress", target.location, target.url, "--collection", "orders", "--once"]) == 0
    assert capsys.readouterr().out.startswith("nothing is new for postgres://")
    assert main(["egress", target.location, str(config), "--drop"]) == 0
    assert capsys.readouterr().out.startswith("gave up 1 hold of postgres://")
    assert main(["egress", target.location, str(config), "--collection", "orders", "--collection", "orders"]) == 2
    config.write_text(f'sink = "{target.url}"\ncolections = ["orders"]\n')
    assert main(["egress", target.location, str(config), "--once"]) == 2
    assert "no option 'colections' of this sink, did you mean 'collections'" in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.costly("it starts and kills processes of the command line")
@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.thorough)])
def test_whoever_is_killed_a_reader_of_the_target_always_sees_the_whole_bank(target: Target, kills: int) -> None:
    stop, sums, ahead = threading.Event(), set[Any](), threading.Event()

    def read() -> None:
        import psycopg2

        connection = psycopg2.connect(target.url)
        connection.autocommit = True
        with connection.cursor() as cursor:
            while not stop.is_set():
                cursor.execute("SELECT to_regclass('accounts')")
                if cursor.fetchone() != (None,):
                    cursor.execute("SELECT sum(balance), (SELECT count(*) FROM transfers) FROM accounts")
                    total, count = cursor.fetchone()
                    sums.add(total)
                    if count >= wanted:
                        ahead.set()
        connection.close()

    wanted = 1
    with persist.open(target.location) as client:
        bank = Bank(client)
        reader = threading.Thread(target=read)
        reader.start()
        try:
            for _ in range(kills):
                ahead.clear()
                command = [sys.executable, "-m", "persist", "egress", target.location, target.url]
                process = subprocess.Popen([*command, *(f"--collection={name}" for name in bank.NAMES)])
                wanted = bank.time + 3
                while not ahead.is_set() and process.poll() is None:
                    bank.transfer(bank.time)
                process.kill()
                process.wait()
        finally:
            stop.set()
            reader.join()
    persist.egress(target.location, {"sink": target.url, "collections": [*bank.NAMES]}, once=True)
    assert sums == {1000}
    bank.check(target)
    assert target.rows("SELECT count(*) FROM transfers") == [(bank.time,)]


def test_an_added_column_has_its_default_in_the_rows_that_are_there(target: Target) -> None:
    at = datetime.datetime(2026, 11, 26, 12, 30, tzinfo=datetime.UTC)
    values: dict[str, tuple[pa.DataType, Any, Any]] = {
        "text": (pa.string(), "it's \\ %s NO", "it's \\ %s NO"),
        "number": (pa.float64(), 0.1, 0.1),
        "flag": (pa.bool_(), False, False),
        "sum": (pa.decimal128(10, 2), Decimal("1.50"), Decimal("1.50")),
        "moment": (pa.timestamp("us", "UTC"), at, at),
        "took": (pa.duration("ms"), datetime.timedelta(milliseconds=5), datetime.timedelta(milliseconds=5)),
        "list": (pa.list_(pa.int64()), None, None),
    }
    with persist.open(target.location) as client:
        orders = made(client)
        upserted(orders, 0, k1="new", k2="new")
        target.egress("orders", location=client)
        added = {name: kind for name, (kind, _, _) in values.items()}
        orders.evolve(add=added, defaults={name: default for name, (_, default, _) in values.items()})
        nulls = {"id": 3, "status": "new", **dict.fromkeys(values)}
        client.load("orders").upsert([nulls], time=1, seal=2).result()
        target.egress("orders", location=client)
    first, second, third = target.rows(f"SELECT {', '.join(values)} FROM orders ORDER BY id")
    assert first == second == tuple(expected for _, _, expected in values.values())
    assert set(third) == {None}


@pytest.mark.parametrize(
    ("kind", "bits"), [(pa.date32(), 32), (pa.timestamp("us"), 64), (pa.timestamp("us", "UTC"), 64)], ids=str
)
def test_infinities_stay_and_other_far_moments_are_refused(target: Target, kind: pa.DataType, bits: int) -> None:
    number, end = pa.int32() if bits == 32 else pa.int64(), 2 ** (bits - 1) - 1
    day = 1 if bits == 32 else 86_400_000_000
    with persist.open(target.location) as client:
        wide = client.create_or_load("wide", key={"id": pa.int64()}, value={"x": kind}, keyed=persist.Keyed())
        values = pa.array([end, -end, None, -719_162 * day, 2_932_897 * day], number).view(kind)
        wide.upsert(pa.table({"id": [*range(5)], "x": values}), time=0, seal=1).result()
        target.egress("wide", location=client)
        texts = [text for (text,) in target.rows("SELECT x::text FROM wide ORDER BY id")]
        assert [text and text[:10] for text in texts] == ["infinity", "-infinity", None, "0001-01-01", "10000-01-0"]
        wide.upsert(pa.table({"id": [1], "x": pa.array([-719_163 * day], number).view(kind)}), time=1, seal=2).result()
        with pytest.raises(persist.InvalidUsage, match=r"wide\.x does not fit .*before the year 1 or after 29999"):
            target.egress("wide", location=client)


@pytest.mark.parametrize("value", [[1.0, float("nan")], [float("inf")]])
def test_values_that_json_cannot_hold_are_refused(target: Target, value: list[float]) -> None:
    with persist.open(target.location) as client:
        wide = client.create_or_load("wide", key={"id": pa.int64()}, value={"x": pa.list_(pa.float64())})
        wide.write([(1, None), (2, value)], time=0, seal=1).result()
        with pytest.raises(persist.InvalidUsage, match=r"wide\.x.*NaN or an infinity"):
            target.egress("wide", location=client)


@pytest.mark.parametrize("changes", [{"rename": {"at.city": "at.town"}}, {"drop": ["at.city"]}])
def test_fields_inside_that_are_renamed_or_dropped_are_told(target: Target, changes: dict[str, Any]) -> None:
    """Rows that do not change would keep the field."""
    with persist.open(target.location) as client:
        inner = pa.struct({"zip": pa.int16(), "city": pa.string()})
        made(client, "users", value={"at": inner})
        client.load("users").upsert([(1, {"city": "Oslo", "zip": 1})], time=0, seal=1).result()
        target.egress("users", location=client)
        client.load("users").evolve(add={"at.land": pa.string()}, widen={"at.zip": pa.int32()})
        client.load("users").upsert([(2, {"city": "Riga", "zip": 2, "land": "LV"})], time=1, seal=2).result()
        target.egress("users", location=client)
        assert target.rows("SELECT at ->> 'zip', at ->> 'land' FROM users ORDER BY id") == [("1", None), ("2", "LV")]
        client.load("users").evolve(widen={"at.zip": pa.int64()}, **changes)
        client.load("users").upsert([(2, None)], time=2, seal=3).result()
        with pytest.raises(persist.InvalidUsage, match=r"the field at\.(city|town) of 'users' was renamed, dropped"):
            target.egress("users", location=client)
