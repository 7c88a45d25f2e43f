"""Drivers and tools that people use connect, read types as they are, and write in blocks."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from persist.api.serving import Servers
from tests.services.serve.postgres.places import ITEMS, a_server, port_of

psycopg = pytest.importorskip("psycopg")
ROWS = [tuple(row.values()) for row in ITEMS.to_pylist()]


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with a_server(write=True) as (_, servers):
        yield servers


@pytest.mark.parametrize("binary", [False, True])
def test_psycopg_reads_and_writes_with_parameters(servers: Servers, binary: bool) -> None:
    with psycopg.connect(servers.postgres_url + "?user=me", autocommit=True) as connection:
        cursor = connection.cursor(binary=binary)
        assert cursor.execute("SELECT * FROM shop.items ORDER BY k").fetchall() == ROWS
        assert cursor.execute("SELECT id FROM orders WHERE id = %s AND status = %s", (1, "new")).fetchall() == [(1,)]
        assert cursor.execute("SELECT id FROM orders WHERE id = ANY(%s) ORDER BY id", ([1, 2],)).fetchall() == [
            (1,),
            (2,),
        ]
        assert cursor.execute("SELECT %s::numeric", (Decimal("123456789.0001"),)).fetchone() == (
            Decimal("123456789.0001"),
        )
        cursor.execute("INSERT INTO orders VALUES (%s, %s, %s)", (10, "it's", 1.5))
        assert cursor.rowcount == 1
        assert cursor.execute("SELECT status FROM orders WHERE id = 10").fetchall() == [("it's",)]
        cursor.execute("DELETE FROM orders WHERE id = 10")


@pytest.mark.parametrize("binary", [False, True])
def test_maps_are_json(servers: Servers, binary: bool) -> None:
    texts, numbers = "map {'b': [1, NULL], 'a': NULL}", "map {1: map {'x': 2.50}}"
    query = (
        f"SELECT * FROM (VALUES (0, {texts}, {numbers}), (1, map {{}}, NULL), (2, NULL, map {{7: NULL}})) t(k, m, n) "
        "WHERE k >= %s ORDER BY k"
    )
    rows = [(0, {"b": [1, None], "a": None}, [[1, {"x": 2.5}]]), (1, {}, None), (2, None, [[7, None]])]
    with psycopg.connect(servers.postgres_url + "?user=me", autocommit=True) as connection:
        for first in range(4):
            assert connection.cursor(binary=binary).execute(query, (first,)).fetchall() == rows[first:]


def test_psycopg_copies_in_all_formats(servers: Servers) -> None:
    with psycopg.connect(servers.postgres_url + "?user=me", autocommit=True) as connection:
        cursor = connection.cursor()
        with cursor.copy(
            "COPY (SELECT k, price, moment, raw, day FROM shop.items ORDER BY k) TO STDOUT (FORMAT BINARY)"
        ) as copy:
            copy.set_types(["int8", "numeric", "timestamptz", "bytea", "date"])
            assert list(copy.rows()) == [(row[0], row[1], row[2], row[4], row[5]) for row in ROWS]
        with cursor.copy("COPY (SELECT k, codes FROM shop.items ORDER BY k) TO STDOUT (FORMAT csv, HEADER)") as copy:
            assert b"".join(copy) == b'k,codes\n1,"[1, 2]"\n2,\n'
        with cursor.copy("COPY (SELECT '\\.' AS x) TO STDOUT (FORMAT csv)") as copy:
            assert b"".join(copy) == b'"\\."\n'
        with cursor.copy("COPY shop.items (k, price) TO STDOUT") as copy:
            assert sorted(b"".join(copy).splitlines()) == [b"1\t12.30", b"2\t\\N"]
        with cursor.copy("COPY (SELECT 1 WHERE false) TO STDOUT (FORMAT BINARY)") as copy:
            assert list(copy.rows()) == []


def test_psycopg_reads_through_a_cursor_of_the_server(servers: Servers) -> None:
    with psycopg.connect(servers.postgres_url + "?user=me") as connection, connection.cursor("named") as cursor:
        cursor.execute("SELECT i FROM range(25) t(i)")
        assert len(cursor.fetchmany(10)) == 10
        assert [row[0] for row in cursor.fetchall()] == [*range(10, 25)]


def test_psycopg2_reads_and_iterates(servers: Servers) -> None:
    psycopg2 = pytest.importorskip("psycopg2")
    connection = psycopg2.connect(servers.postgres_url + "?user=me")
    cursor = connection.cursor()
    cursor.execute("SELECT k, price, day FROM shop.items ORDER BY k")
    assert cursor.fetchall() == [(row[0], row[1], row[5]) for row in ROWS]
    cursor.execute("SELECT id FROM orders WHERE id IN %s AND status LIKE %s", ((1, 2), "%n%"))
    assert cursor.fetchall() == [(1,)]
    named = connection.cursor("rows")
    named.itersize = 7
    named.execute("SELECT i FROM range(30) t(i)")
    assert len([*named]) == 30
    connection.close()


def test_asyncpg_learns_the_types_of_parameters(servers: Servers) -> None:
    asyncpg = pytest.importorskip("asyncpg")

    async def use() -> list[Any]:
        connection = await asyncpg.connect(servers.postgres_url, user="me")
        answers = [
            [
                tuple(row)
                for row in await connection.fetch("SELECT k, price, moment, raw, day FROM shop.items ORDER BY k")
            ],
            await connection.fetchval("SELECT id FROM orders WHERE id = $1 AND status = $2", 1, "new"),
            await connection.fetchval("SELECT $1::numeric", Decimal("123456789.0001")),
            len(await connection.fetch("SELECT * FROM orders LIMIT $1", 1)),
        ]
        async with connection.transaction():
            answers.append(await connection.execute("INSERT INTO orders VALUES ($1, $2, $3)", 11, "a", 2.5))
        answers.append(await connection.execute("DELETE FROM orders WHERE id = $1", 11))
        async with connection.transaction():
            answers.append(len([row async for row in connection.cursor("SELECT i FROM range(120) t(i)")]))
        await connection.reset()
        await connection.close()
        return answers

    rows = [(row[0], row[1], row[2], row[4], row[5]) for row in ROWS]
    assert asyncio.run(use()) == [rows, 1, Decimal("123456789.0001"), 1, "INSERT 0 1", "DELETE 1", 120]


def test_pg8000_reads_with_parameters(servers: Servers) -> None:
    pg8000 = pytest.importorskip("pg8000.native")
    connection = pg8000.Connection("me", host="127.0.0.1", port=port_of(servers), database="latest")
    assert connection.run("SELECT * FROM shop.items ORDER BY k") == [*map(list, ROWS)]
    assert connection.run("SELECT id FROM orders WHERE id = :id", id=1) == [[1]]
    connection.close()


def test_sqlalchemy_reflects_tables(servers: Servers) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    url = servers.postgres_url.replace("postgresql://", "postgresql+psycopg://me@")
    engine = sqlalchemy.create_engine(url)
    inspector = sqlalchemy.inspect(engine)
    assert {"main", "shop"} <= {*inspector.get_schema_names()}
    assert inspector.get_table_names() == ["orders", "users"]
    columns = inspector.get_columns("orders")
    assert [(column["name"], str(column["type"])) for column in columns] == [
        ("id", "BIGINT"),
        ("status", "TEXT"),
        ("amount", "DOUBLE PRECISION"),
    ]
    assert inspector.get_pk_constraint("users")["constrained_columns"] == ["id"]
    assert (inspector.get_indexes("users"), inspector.get_foreign_keys("orders"), inspector.get_view_names()) == (
        [],
        [],
        [],
    )
    items = sqlalchemy.Table("items", sqlalchemy.MetaData(), schema="shop", autoload_with=engine)
    with engine.begin() as connection:
        query = sqlalchemy.select(items.c.price).where(items.c.k == 1)
        assert connection.execute(query).fetchall() == [(Decimal("12.30"),)]
    engine.dispose()


def test_adbc_reads_arrow_tables(servers: Servers) -> None:
    adbc = pytest.importorskip("adbc_driver_postgresql.dbapi")
    with adbc.connect(servers.postgres_url + "?user=me") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT k, moment, raw, day FROM shop.items ORDER BY k")
        assert [tuple(row.values()) for row in cursor.fetch_arrow_table().to_pylist()] == [
            (row[0], row[2], row[4], row[5]) for row in ROWS
        ]
        cursor.execute("SELECT id FROM orders WHERE id = $1", (1,))
        assert cursor.fetchall() == [(1,)]


@pytest.mark.outside
@pytest.mark.parametrize(
    "command", [r"\d", r"\d orders", r"\d+ users", r"\dt", r"\dv", r"\dn", r"\l", r"\df", r"\du", r"\di", r"\dp"]
)
def test_psql_describes(servers: Servers, command: str) -> None:
    psql = shutil.which("psql")
    if psql is None:
        pytest.skip("psql is not installed: apt install postgresql-client")
    done = subprocess.run([psql, servers.postgres_url + "?user=me", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr.replace("Did not find any relations.\n", "")) == (0, "")
    shown = {
        r"\d": "orders",
        r"\d orders": "double precision",
        r"\d+ users": '"users_pkey" PRIMARY KEY',
        r"\dn": "shop",
    }
    assert shown.get(command, "") in done.stdout
