"""Views over the transfers of a ledger, one on the other, and what DuckDB says that they must hold at every time."""

from collections import Counter
from typing import Any

import duckdb

import persist
from persist import View
from tests.compute.dataflow.ledger import moves_of
from tests.compute.sql.oracle import comparable

VIEWS = {
    "totals": "SELECT account, count(*) AS n, sum(amount) AS total FROM moves GROUP BY account",
    "largest": "SELECT id, account, amount FROM moves ORDER BY amount DESC, id LIMIT 5",
    "shares": "SELECT m.id, m.amount, t.total, rank() OVER (PARTITION BY m.account ORDER BY m.amount) AS place"
    " FROM moves m JOIN totals t USING (account)",
    "above": "SELECT s.id, s.place FROM shares s WHERE s.amount > (SELECT avg(amount) FROM largest)"
    " OR s.id IN (SELECT id FROM largest)",
}


def views_of(client: persist.Client) -> list[View]:
    """Return the views, which are created where there are none; the last one depends on all others."""
    moves_of(client)
    return [client.create_view(name, sql) for name, sql in VIEWS.items()]


def held(collection: persist.Collection, time: int, columns: list[str]) -> Counter[Any]:
    rows = collection.snapshot(time).to_arrow().to_pylist()
    return Counter(tuple(comparable(row[name]) for name in columns) for row in rows)


def check(client: persist.Client, upper: int) -> None:
    """Raise AssertionError unless all views hold what DuckDB makes of the transfers at every time that can be read."""
    moves = moves_of(client)
    for time in range(moves.since.time or 0, upper):
        with duckdb.connect(":memory:") as connection:
            connection.register("moves", moves.snapshot(time).to_arrow())
            for name, sql in VIEWS.items():
                connection.execute(f"CREATE VIEW {name} AS {sql}")
                view = client.load(name)
                if time < (view.since.time or 0):
                    continue
                asked = connection.execute(f"SELECT * FROM {name}")
                columns = [each[0] for each in asked.description]
                want = Counter(tuple(map(comparable, row)) for row in asked.fetchall())
                assert held(view, time, columns) == want, (name, time)
