"""Tools for reports get answers to the queries that they send by themselves, and load tests and JDBC run."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from persist.api.serving import Servers
from tests.services.serve.postgres.places import a_server, port_of

psycopg = pytest.importorskip("psycopg")
RECORDED = dict(re.findall(r"^-- (.*)\n((?:(?!-- ).*\n)+)", Path(__file__).with_name("tools.sql").read_text(), re.M))
# A part of each answer.
EXPECTED: dict[str, list[Any]] = {
    "Metabase: tables": [("main", "orders", "TABLE", None, None), ("shop", "items", "TABLE", None, None)],
    "Metabase: fields": [
        ("id", "int8", 0, "main", "orders", False, None, False, False),
        ("id", "int8", 0, "main", "users", True, None, True, False),
    ],
    "Metabase: privileges": [(None, "main", "orders", True, True)],
    "Metabase: indexes": [("main", "users", "id")],
    "Grafana: version": [(1500,)],
    "Grafana: tables": [("orders",), ("shop.items",)],
    "Grafana: columns": [("price", "numeric"), ("moment", "timestamp with time zone")],
    "Superset: databases": [("latest",)],
    "Superset: schemas": [("main",), ("shop",)],
    "DBeaver: session": [("main", "me")],
    "DBeaver: rows": [(1, "new", 9.5)],
}


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with a_server() as (client, servers):
        rows = [{"aid": n, "bid": 1, "abalance": n, "filler": ""} for n in range(1, 100_001)]
        client.write("pgbench_accounts", rows, key=["aid"])
        client.write("pgbench_branches", [{"bid": 1, "bbalance": 0, "filler": ""}], key=["bid"])
        yield servers


@pytest.mark.parametrize("what", RECORDED)
def test_a_tool_gets_an_answer(servers: Servers, what: str) -> None:
    with psycopg.connect(servers.postgres_url + "?user=me", autocommit=True) as connection:
        answer = connection.execute(RECORDED[what]).fetchall()
    assert answer
    for row in EXPECTED.get(what, ()):
        assert row in answer


@pytest.mark.outside
@pytest.mark.parametrize("protocol", ["simple", "extended", "prepared"])
def test_pgbench_reads_over_16_connections(servers: Servers, protocol: str) -> None:
    pgbench = shutil.which("pgbench")
    if pgbench is None:
        pytest.skip("pgbench is not installed: apt install postgresql-contrib")
    command = [pgbench, "-S", "-n", "-c", "16", "-j", "2", "-t", "5", "-M", protocol, servers.postgres_url + "?user=me"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "number of transactions actually processed: 80/80" in done.stdout
    assert "number of failed transactions: 0 (0.000%)" in done.stdout


JDBC = r"""
import java.sql.*;
public class Use {
  public static void main(String[] args) throws Exception {
    try (Connection c = DriverManager.getConnection(args[0], "me", "")) {
      DatabaseMetaData about = c.getMetaData();
      try (ResultSet r = about.getTables(null, "main", "%", new String[] {"TABLE"})) {
        while (r.next()) System.out.println("table " + r.getString("TABLE_NAME"));
      }
      try (ResultSet r = about.getColumns(null, "shop", "items", "%")) {
        while (r.next()) System.out.println("column " + r.getString("COLUMN_NAME") + " " + r.getString("TYPE_NAME"));
      }
      try (ResultSet r = about.getPrimaryKeys(null, "main", "users")) {
        while (r.next()) System.out.println("key " + r.getString("COLUMN_NAME"));
      }
      try (ResultSet r = about.getSchemas()) { while (r.next()) System.out.println("schema " + r.getString(1)); }
      try (ResultSet r = about.getTypeInfo()) { System.out.println("types " + r.next()); }
      about.getIndexInfo(null, "main", "users", false, false).close();
      about.getImportedKeys(null, "main", "users").close();
      about.getSQLKeywords();
      try (PreparedStatement s = c.prepareStatement("SELECT status, amount FROM orders WHERE id = ?")) {
        for (int round = 0; round < 8; round++) {  // After five, the driver prepares it on the server, in binary.
          s.setLong(1, 1);
          try (ResultSet r = s.executeQuery()) { r.next(); System.out.println(r.getString(1) + " " + r.getDouble(2)); }
        }
      }
      c.setAutoCommit(false);
      try (Statement s = c.createStatement()) {
        s.setFetchSize(1000);
        int n = 0;
        try (ResultSet r = s.executeQuery("SELECT aid FROM pgbench_accounts WHERE aid <= 2500")) {
          while (r.next()) n++;
        }
        System.out.println("rows " + n);
      }
      c.rollback();
    }
  }
}
"""


@pytest.mark.outside
def test_the_jdbc_driver_reads(servers: Servers, tmp_path: Path) -> None:
    places = [Path("/usr/share/java"), Path.home() / ".m2/repository/org/postgresql/postgresql"]
    jars = [jar for place in places for jar in place.rglob("postgresql*.jar")]
    java = shutil.which("java")
    if java is None or not jars:
        pytest.skip("the driver is not installed: apt install libpostgresql-jdbc-java default-jre")
    (tmp_path / "Use.java").write_text(JDBC)
    url = f"jdbc:postgresql://127.0.0.1:{port_of(servers)}/latest"
    command = [java, "-cp", str(jars[0]), str(tmp_path / "Use.java"), url]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    expected = {"table orders", "column price numeric", "column moment timestamptz", "key id", "schema shop"}
    assert expected | {"types true", "rows 2500"} <= {*lines}
    assert lines.count("new 9.5") == 8
