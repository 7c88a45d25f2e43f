"""Composites and arrays of a real Postgres: structs and lists here, in the copy and in the log, whatever ALTER TYPE."""

import contextlib
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import psycopg2
import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import Blob, MemoryBlob
from tests.connect.ingest.servers import postgres_programs
from tests.connect.ingest.test_pg_copy import run
from tests.connect.ingest.test_postgres import Database, database, server
from tests.core.keyed.test_crash import Died, MortalBlob

__all__ = ["database", "server"]  # Fixtures.

pytestmark = [
    pytest.mark.outside,
    pytest.mark.skipif(postgres_programs() is None, reason="no Postgres: Debian's package postgresql has one"),
]
TYPES = (
    "CREATE TYPE inner_ AS (x numeric(6, 2), at timestamptz, tags text[], blob bytea)",
    "CREATE DOMAIN inner_domain AS inner_",
    'CREATE TYPE odd AS ("a.b" text, "Q""uote" int, "spa ce" boolean, "ünï" date)',
    "CREATE TYPE outer_ AS (n int, s text, i inner_, many inner_[], d inner_domain, o odd, r int4range)",
    "CREATE DOMAIN outer_domain AS outer_",
    "CREATE TABLE t (id int PRIMARY KEY, v outer_, vs outer_domain[], numbers int[], texts text[])",
)
ODD_TEXTS = [
    "",
    " ",
    ",",
    '"',
    "\\",
    "(",
    ")",
    "a b",
    "NULL",
    "null",
    "{}",
    "(,)",
    '""',
    "\\\\",
    'x"y\\z',
    "\n",
    "é",
    "🙂",
]
INNER = {"x": Decimal("1.50"), "at": None, "tags": ["", "NULL", None, '{"'], "blob": b'\x00\xff"'}


def rows_of_server(database: Database, query: str) -> list[Any]:
    """Return rows of the server by its own JSON, without our parser."""
    return [row for (row,) in database.rows(f"SELECT row_to_json(q) FROM ({query}) q")]


def contents(database: Database, columns: list[str] | None = None) -> list[dict[str, Any]]:
    with persist.open(database.location, mode="read") as client:
        rows: list[dict[str, Any]] = client.load("t").snapshot(columns=columns).to_arrow().sort_by("id").to_pylist()
    return rows


def settle(database: Database, store: Any = None) -> None:
    """Let the slot forget old catalogs, as servers do every 15 seconds."""
    for _ in range(2):
        database.rows("SELECT txid_current()")
        database.connection.cursor().execute("CHECKPOINT")
        run(database, store or database.location)


def insert(database: Database, id_: int, values: str) -> None:
    database.run(f"INSERT INTO t VALUES ({id_}, {values})")


def test_values_of_every_kind_are_the_same_in_the_copy_and_in_the_log(database: Database) -> None:
    inner = r"""ROW(1.5, NULL, '{"",null,NULL,"{\""}', '\x00ff22')::inner_"""
    values = [
        f"ROW(1, 'a', {inner}, ARRAY[{inner}, NULL]::inner_[], {inner}, "
        "ROW('dot', 2, true, '2024-02-29')::odd, '[1,5)'), NULL, '{1,NULL,3}', '{}'",
        "NULL, NULL, NULL, NULL",
        "ROW(NULL, NULL, NULL, NULL, NULL, NULL, NULL), '{}', '{}', ARRAY['', NULL, 'NULL']",
        "ROW(NULL, '', ROW(NULL, '2024-01-01 12:00+02', NULL, NULL)::inner_, '{}', NULL, NULL, 'empty'), "
        "ARRAY[ROW(7, NULL, NULL, NULL, NULL, NULL, NULL)::outer_, NULL]::outer_domain[], NULL, NULL",
    ]
    database.run(*TYPES)
    for id_, value in enumerate(values):
        insert(database, id_, value.replace("null,NULL", '"NULL",NULL'))
    database.ingest()
    for id_, value in enumerate(values, 10):
        insert(database, id_, value.replace("null,NULL", '"NULL",NULL'))
    database.ingest()
    rows = contents(database)
    assert [{**row, "id": row["id"] % 10} for row in rows[4:]] == rows[:4]
    nothing = dict.fromkeys(["n", "s", "i", "many", "d", "o", "r"])
    odd = {"a.b": "dot", 'Q"uote': 2, "spa ce": True, "ünï": rows[0]["v"]["o"]["ünï"]}
    assert str(odd["ünï"]) == "2024-02-29"
    first = {"n": 1, "s": "a", "i": INNER, "many": [INNER, None], "d": INNER, "o": odd, "r": "[1,5)"}
    assert rows[0] == {"id": 0, "v": first, "vs": None, "numbers": [1, None, 3], "texts": []}
    assert rows[1] == {"id": 1, "v": None, "vs": None, "numbers": None, "texts": None}
    assert rows[2] == {"id": 2, "v": nothing, "vs": [], "numbers": [], "texts": ["", None, "NULL"]}
    moment = rows[3]["v"]["i"].pop("at")
    assert moment.isoformat() == "2024-01-01T10:00:00+00:00"
    assert rows[3]["v"] == {**nothing, "s": "", "i": {"x": None, "tags": None, "blob": None}, "many": [], "r": "empty"}
    assert rows[3]["vs"] == [{**nothing, "n": 7}, None]
    with persist.open(database.location, mode="read") as client:
        kind = client["t"].schema.arrow.field("v").type
    assert kind.field("i").type.field("x").type == pa.decimal128(6, 2)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_random_texts_in_composites_and_arrays_come_as_the_server_has_them(database: Database, seed: int) -> None:
    rng = random.Random(seed)

    def text() -> str | None:
        return None if rng.random() < 0.15 else "".join(rng.choices(ODD_TEXTS, k=rng.randint(0, 3)))

    database.run(
        "CREATE TYPE a AS (s text, l text[])",
        "CREATE TYPE b AS (t text, one a, many a[])",
        "CREATE TABLE t (id int PRIMARY KEY, v b, vs b[])",
    )
    cursor = database.connection.cursor()
    leaf = "ROW(%s, %s::text[])::a"
    for id_ in range(60):
        if id_ == 30:
            database.ingest()
        values: list[Any] = [id_]
        for _ in range(2):
            values += [text(), text(), [text(), text()], text(), [text() for _ in range(rng.randint(0, 3))]]
        one = f"ROW(%s, {leaf}, ARRAY[{leaf}, NULL])::b"
        cursor.execute(f"INSERT INTO t VALUES (%s, {one}, ARRAY[{one}, NULL])", values)
    database.ingest()
    assert contents(database) == rows_of_server(database, "SELECT * FROM t ORDER BY id")


STEPS: dict[str, tuple[list[str], str, list[tuple[Any, ...]]]] = {
    "add": (["ADD ATTRIBUTE c int"], "ROW(2, 'two', 3)", [(1, "one", None), (2, "two", 3)]),
    "drop": (["DROP ATTRIBUTE b"], "ROW(2)", [(1,), (2,)]),
    "rename": (["RENAME ATTRIBUTE a TO c"], "ROW(2, 'two')", [(1, "one"), (2, "two")]),
    "exchange": (
        ["RENAME ATTRIBUTE a TO c", "RENAME ATTRIBUTE b TO a", "RENAME ATTRIBUTE c TO b"],
        "ROW(2, 'two')",
        [(1, "one"), (2, "two")],
    ),
    "several": (
        ["ADD ATTRIBUTE c text, ADD ATTRIBUTE d text", "RENAME ATTRIBUTE b TO e", "RENAME ATTRIBUTE a TO b"],
        "ROW(2, 'two', 'x', 'y')",
        [(1, "one", None, None), (2, "two", "x", "y")],
    ),
}
SHAPES: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "column": ("pair", "{}::pair", lambda v: v),
    "array": ("pair[]", "ARRAY[{}::pair, NULL]", lambda v: v and v[0]),
    "nested": ("box_", "ROW('x', {}::pair)::box_", lambda v: v and v["p"]),
    "domain": ("pair_domain", "{}::pair", lambda v: v),
}


@pytest.mark.parametrize("shape", [*SHAPES])
@pytest.mark.parametrize("what", [*STEPS])
def test_attributes_are_followed(database: Database, what: str, shape: str) -> None:
    """Read at once, and read after each step: both values are right."""
    steps, second, expected = STEPS[what]
    type_, form, unwrap = SHAPES[shape]
    database.run(
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE DOMAIN pair_domain AS pair",
        "CREATE TYPE box_ AS (n text, p pair)",
        f"CREATE TABLE t (id int PRIMARY KEY, v {type_})",
        f"CREATE TABLE u (id int, v {type_})",
        "ALTER TABLE u REPLICA IDENTITY FULL",
    )

    def put(id_: int, value: str) -> None:
        for table in "tu":
            database.run(f"INSERT INTO {table} VALUES ({id_}, {form.format(value)}), ({id_ - 9}, NULL)")

    put(0, "ROW(0, 'zero')")
    database.ingest()
    put(1, "ROW(1, 'one')")
    for step in steps:
        database.run(f"ALTER TYPE pair {step}")
    put(2, second)
    database.ingest()
    put(3, second)
    database.run("DELETE FROM t WHERE id = 0", "DELETE FROM u WHERE id = 0")
    database.ingest()
    for table in "tu":
        with persist.open(database.location, mode="read") as client:
            rows = client.load(table).snapshot().to_arrow().sort_by("id").to_pylist()
            assert '"numbers":{' in client.load(table).about.properties["ingest.attributes"]
        found = [unwrap(row["v"]) for row in rows if row["id"] > 0]
        assert [tuple(value.values()) for value in found] == [*expected, expected[-1]]
        assert rows == rows_of_server(database, f"SELECT * FROM {table} ORDER BY id")


def test_a_value_whose_attributes_are_not_known_is_refused(database: Database) -> None:
    """As many attributes as before, others than before: the log does not say which a value has."""
    database.run("CREATE TYPE pair AS (a int, b text)", "CREATE TABLE t (id int PRIMARY KEY, v pair)")
    database.ingest()
    insert(database, 1, "ROW(1, 'one')")
    database.run("ALTER TYPE pair DROP ATTRIBUTE b, ADD ATTRIBUTE c text")
    insert(database, 2, "ROW(2, 'two')")
    with pytest.raises(persist.InvalidUsage, match=r"LSN .*the type of t\.v got other attributes .*copy again, rename"):
        database.ingest()
    with persist.open(database.location) as client:
        client.rename("t", "t-before").result()
    database.ingest()
    assert [row["v"] for row in contents(database)] == [{"a": 1, "c": None}, {"a": 2, "c": "two"}]


def test_attributes_may_come_and_go_again_between_runs(database: Database) -> None:
    database.run("CREATE TYPE pair AS (a int, b text)", "CREATE TABLE t (id int PRIMARY KEY, v pair)")
    database.ingest()
    changes = ["DROP ATTRIBUTE b", "ADD ATTRIBUTE b text", "DROP ATTRIBUTE a", "ADD ATTRIBUTE c int"]
    for id_, (change, value) in enumerate(
        zip(changes, ["ROW(1)", "ROW(1, 'x')", "ROW('x')", "ROW('x', 5)"], strict=True)
    ):
        database.run(f"ALTER TYPE pair {change}")
        insert(database, id_, value)
        database.ingest()
        settle(database)
    assert contents(database) == rows_of_server(database, "SELECT * FROM t ORDER BY id")
    assert contents(database)[-1]["v"] == {"b": "x", "c": 5}


def test_attributes_change_between_the_statements_of_open_transactions(database: Database) -> None:
    """The log has a transaction when it is committed: a value with fewer attributes comes after one with more."""
    database.run("CREATE TYPE pair AS (a int, b text)", "CREATE TABLE t (id int PRIMARY KEY, v pair)")
    database.ingest()
    other = psycopg2.connect(database.url)
    other.cursor().execute("INSERT INTO t VALUES (1, ROW(1, 'one'))")
    database.run("ALTER TYPE pair ADD ATTRIBUTE c int")
    insert(database, 2, "ROW(2, 'two', 2)")
    database.ingest()
    other.cursor().execute("INSERT INTO t VALUES (3, ROW(3, 'three', 3))")
    other.commit()
    other.close()
    settle(database)
    database.run("BEGIN", "INSERT INTO t VALUES (4, ROW(4, 'four', 4))", "ALTER TYPE pair DROP ATTRIBUTE a",
                 "INSERT INTO t VALUES (5, ROW('five', 5))", "COMMIT")  # fmt: skip
    database.ingest()
    assert contents(database) == rows_of_server(database, "SELECT * FROM t ORDER BY id")


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(2, 20))])
def test_whatever_happens_to_a_type_no_value_is_taken_for_another_one(database: Database, seed: int) -> None:
    """Each value says the number of its attribute. What is ambiguous is refused, and that ends it."""
    rng, numbers, last = random.Random(seed), {"a1": 1, "a2": 2}, 2
    columns = ", ".join(f"{name} text" for name in numbers)
    database.run(f"CREATE TYPE pair AS ({columns})", "CREATE TABLE t (id int PRIMARY KEY, v pair)")
    database.ingest()
    sessions = [psycopg2.connect(database.url) for _ in range(2)]
    is_refused = False
    for step in range(60):
        kind = rng.choice(["insert", "insert", "commit", "ingest", "settle"] * 3 + ["add", "drop", "rename"])
        name = rng.choice([*numbers])
        if kind == "insert":
            values = ", ".join(f"'n{numbers[name]}'" for name in numbers)
            rng.choice(sessions).cursor().execute(f"INSERT INTO t VALUES ({step}, ROW({values})::pair)")
        elif kind == "commit":
            rng.choice(sessions).commit()
        elif kind == "add":
            last += 1
            numbers[f"a{last}"] = last
            database.run(f"ALTER TYPE pair ADD ATTRIBUTE a{last} text")
        elif kind == "drop" and len(numbers) > 1:
            del numbers[name]
            database.run(f"ALTER TYPE pair DROP ATTRIBUTE {name}")
        elif kind == "rename":
            numbers = {f"r{step}" if old == name else old: number for old, number in numbers.items()}
            database.run(f"ALTER TYPE pair RENAME ATTRIBUTE {name} TO r{step}")
        elif kind in ("ingest", "settle"):
            for session in sessions if kind == "settle" else ():
                session.commit()
            if is_refused := not is_followed(database, is_settled=kind == "settle"):
                break
    for session in sessions:
        session.commit()
        session.close()
    is_refused = is_refused or not is_followed(database, is_settled=True)
    insert(database, 100, "NULL")  # Changes of types are followed before the next row.
    is_refused = is_refused or not is_followed(database, is_settled=False)
    rows = contents(database)
    for name, text in [pair for row in rows for pair in (row["v"] or {}).items()]:
        assert text is None or name not in numbers or text == f"n{numbers[name]}"
    if not is_refused:
        assert rows == rows_of_server(database, "SELECT * FROM t ORDER BY id")


def is_followed(database: Database, *, is_settled: bool) -> bool:
    """Ingest; return False if a value is ambiguous."""
    try:
        settle(database) if is_settled else database.ingest()
    except persist.InvalidUsage as error:
        if "is not known which" in str(error):
            return False
        raise
    return True


def test_a_column_and_its_type_change_at_once(database: Database) -> None:
    database.run("CREATE TYPE pair AS (a int, b text)", "CREATE TABLE t (id int PRIMARY KEY, v pair, w int[])")
    insert(database, 1, "ROW(1, 'one'), '{1}'")
    database.ingest()
    database.run(
        "ALTER TABLE t RENAME v TO x", "ALTER TABLE t ADD y pair, ALTER w TYPE bigint[]",
        "ALTER TYPE pair ADD ATTRIBUTE c int", "ALTER TYPE pair RENAME ATTRIBUTE a TO d",
        "CREATE TYPE fresh AS (q text)", "ALTER TABLE t ADD z fresh[]",
    )  # fmt: skip
    insert(database, 2, "ROW(2, 'two', 2), '{9999999999}', ROW(3, 'three', 3), ARRAY[ROW('q')::fresh]")
    database.run("ALTER TYPE fresh ADD ATTRIBUTE r text")
    insert(database, 3, "NULL, NULL, NULL, ARRAY[ROW('q', 'r')::fresh]")
    database.ingest()
    assert contents(database) == rows_of_server(database, "SELECT * FROM t ORDER BY id")


def test_long_values_that_are_not_sent_stay_with_their_composites(database: Database) -> None:
    database.run(
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE TABLE t (id int PRIMARY KEY, v pair, vs pair[], n int)",
        "ALTER TABLE t ALTER v SET STORAGE EXTERNAL, ALTER vs SET STORAGE EXTERNAL",
    )
    long = "ROW(1, repeat('x', 9000))::pair"
    database.run(f"INSERT INTO t SELECT g, {long}, ARRAY[{long}], 0 FROM generate_series(1, 3) g")
    database.ingest()
    database.run("UPDATE t SET n = 1 WHERE id = 1", "UPDATE t SET id = 9 WHERE id = 2")
    database.run("ALTER TYPE pair ADD ATTRIBUTE c int", "ALTER TYPE pair RENAME ATTRIBUTE a TO d")
    database.run("UPDATE t SET n = 2 WHERE id = 3")
    database.ingest()
    database.run("ALTER TYPE pair DROP ATTRIBUTE d")
    database.run("UPDATE t SET n = 3")
    database.ingest()
    assert contents(database) == rows_of_server(database, "SELECT * FROM t ORDER BY id")


def test_arrays_and_composites_of_a_key_stay_text(database: Database, caplog: Any) -> None:
    database.run(
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE TABLE t (k pair, l int[], id int, v pair, PRIMARY KEY (k, l))",
        "INSERT INTO t SELECT ROW(g, 'x y'::text)::pair, ARRAY[g], g, ROW(g, 'v'::text)::pair "
        "FROM generate_series(1, 300) g",
    )
    database.ingest(copy_bytes=1000)
    assert "t: these columns are kept as text: k, l" in caplog.text
    database.run("UPDATE t SET v = NULL WHERE id = 7", "UPDATE t SET k = ROW(0, '') WHERE id = 8")
    database.run("ALTER TABLE t RENAME k TO key", "DELETE FROM t WHERE id > 9")
    database.ingest()
    query = "SELECT key::text, l::text, id, v FROM t ORDER BY id"
    assert contents(database) == rows_of_server(database, query)


def test_a_copy_that_is_cut_off_goes_on_after_a_composite_key(database: Database) -> None:
    database.run(
        'CREATE SCHEMA "my Types"',
        'CREATE TYPE "my Types"."Pair" AS (a int, b text)',
        'CREATE DOMAIN key AS "my Types"."Pair"',
        "CREATE TABLE t (k key, l int[], id int, PRIMARY KEY (k, l))",
        'INSERT INTO t SELECT ROW(g % 40, \'x \' || g % 100)::"my Types"."Pair", ARRAY[g], g '
        "FROM generate_series(1, 900) g",
    )
    store = MemoryBlob()
    with pytest.raises((Died, persist.PersistError)):
        run(database, MortalBlob(store, 7, is_after=True))
    run(database, store)
    with persist.open(store, mode="read") as client:
        found = client.load("t").snapshot().to_arrow().sort_by("id").to_pylist()
    assert found == rows_of_server(database, "SELECT k::text, l::text, id FROM t ORDER BY id")


def test_attributes_are_followed_whoever_is_killed_meanwhile(database: Database) -> None:
    database.run("CREATE TYPE pair AS (a int, b text)", "CREATE TABLE t (id int PRIMARY KEY, v pair)")
    insert(database, 0, "ROW(0, 'zero')")
    store, deaths = MemoryBlob(), 0
    run(database, store)
    alter = "ALTER TYPE pair"
    steps = [
        ([f"{alter} RENAME ATTRIBUTE a TO x", f"{alter} RENAME ATTRIBUTE b TO a"], "ROW(1, 'one')"),
        ([f"{alter} ADD ATTRIBUTE b pg_lsn, ADD ATTRIBUTE c int[]"], "ROW(2, 'two', '0/1', '{2}')"),
        ([f"{alter} DROP ATTRIBUTE x"], "ROW('three', '0/2', '{}')"),
    ]
    for id_, (changes, value) in enumerate(steps):
        insert(database, 10 + id_, "NULL")
        database.run(*changes)
        insert(database, 20 + id_, value)
        for dies_at in range(40):
            mortal = MortalBlob(store, dies_at, is_after=bool(dies_at % 2))
            with contextlib.suppress(Died):
                run(database, mortal)
            if not mortal.is_dead:
                break
            deaths += 1
        settle(database, store)
        with persist.open(store, mode="read") as client:
            found = client.load("t").snapshot().to_arrow().sort_by("id").to_pylist()
        assert found == rows_of_server(database, "SELECT * FROM t ORDER BY id")
    assert deaths > 6


class ActingBlob(MortalBlob):
    """Calls a function once, at the n-th change of the store."""

    def __init__(self, inner: Blob, acts_at: int, act: Callable[[], None]) -> None:
        super().__init__(inner, 1 << 30, is_after=True)
        self.acts_at, self.act = acts_at, act

    def _change(self, key: str, do: Callable[[], Any]) -> Any:
        if len(self.changes) == self.acts_at:
            self.act()
        return super()._change(key, do)


def test_attributes_that_change_during_a_copy_let_it_begin_anew(database: Database) -> None:
    long = "(SELECT string_agg(md5(i::text || g), '') FROM generate_series(1, 100) i)"
    database.run(
        "CREATE TYPE pair AS (a int, b text, long text)",
        "CREATE TABLE t (id int PRIMARY KEY, v pair)",
        f"INSERT INTO t SELECT g, ROW(g, '', {long})::pair FROM generate_series(1, 20) g",
    )
    change, refused = "ALTER TYPE pair DROP ATTRIBUTE b, ADD ATTRIBUTE b text", 0
    for acts_at in (5, 8, 11):
        store = MemoryBlob()
        database.run("UPDATE t SET v.b = 'old'")
        try:
            run(database, ActingBlob(store, acts_at, lambda: database.run(change)))
        except persist.InvalidUsage as error:
            refused += "types of the table t got other attributes while it was copied: give the same" in str(error)
        run(database, store)
        with persist.open(store, mode="read") as client:
            found = client.load("t").snapshot().to_arrow().sort_by("id").to_pylist()
        assert found == rows_of_server(database, "SELECT * FROM t ORDER BY id"), acts_at
        database.drop_slot()
    assert refused == 3


@pytest.mark.parametrize("text", ["{{1,2},{3,4}}", "[0:1]={1,2}"])
def test_an_array_that_is_no_list_is_refused_and_may_stay_text(database: Database, text: str) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, v int[])")
    insert(database, 1, f"'{text}'")
    with pytest.raises(persist.InvalidUsage, match=r't\.v .*several dimensions.*by as_text = \["t\.v"\]'):
        database.ingest()
    database.ingest(as_text=["t.v"])
    insert(database, 2, f"'{text}'")
    database.ingest(as_text=["t.v"])
    assert [row["v"] for row in contents(database)] == [text, text]


def test_what_was_text_before_stays_text(database: Database) -> None:
    """As in collections of earlier versions."""
    database.run("CREATE TYPE pair AS (a int, b text)", "CREATE TABLE t (id int PRIMARY KEY, v pair, l int[])")
    insert(database, 1, "ROW(1, 'one'), '{1}'")
    database.ingest(as_text=["t.v", "t.l"])
    with persist.open(database.location) as client:
        client["t"].describe(properties={"ingest.attributes": None}).result()
    database.run("ALTER TYPE pair ADD ATTRIBUTE c int")
    database.run("ALTER TABLE t RENAME v TO x", "ALTER TABLE t ADD y pair")
    insert(database, 2, "ROW(2, 'two', 2), '{2}', ROW(3, 'three', 3)")
    database.ingest()
    insert(database, 3, "NULL, '{3}', NULL")
    database.ingest()
    assert contents(database) == [
        {"id": 1, "x": "(1,one)", "l": "{1}", "y": None},
        {"id": 2, "x": "(2,two,2)", "l": "{2}", "y": {"a": 3, "b": "three", "c": 3}},
        {"id": 3, "x": None, "l": "{3}", "y": None},
    ]
