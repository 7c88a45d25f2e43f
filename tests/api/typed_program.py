"""Forty calls as a user writes them, with the types that an editor shows. mypy checks it as it checks all tests."""

import sys
from typing import Any, assert_type

import pandas as pd
import pyarrow as pa

import persist

EXPECTED = ["customers", "orders", "trial"]


def run(location: str) -> list[str]:
    with persist.open(location) as client:
        future = client.write("orders", {"id": [1, 2], "status": ["new", "new"]}, key=["id"])
        assert_type(future.result(), int)
        assert_type(future.time, int | None)
        orders = client["orders"]
        assert_type(orders, persist.Collection)
        assert_type(client.write("customers", {"name": ["Ada"]}, key=["name"], mode="append").done(), bool)
        first = orders.snapshot()
        assert_type(first.as_of, int)
        assert_type(first.count(), int)
        orders.upsert([{"id": 2, "status": "paid"}]).result()
        orders.delete([1]).result()
        assert_type(orders.count(), int)
        assert_type(len(orders), int)
        assert_type(orders.to_pylist(), list[dict[str, Any]])
        assert_type(orders.get([1, 2]), list[Any])
        frame: pd.DataFrame = orders.to_pandas()
        table: pa.Table = orders.to_arrow()
        found: pa.Table = orders.get(where="status = 'paid'")
        names: list[str] = [*orders.columns, *table.column_names, *frame.columns, *found.column_names]
        batches = [batch.num_rows for batch in orders]
        difference = orders.diff(first.as_of, "now")
        changes = orders.changes(0, "latest", form="transitions")
        kinds: list[persist.Changes] = [difference, changes]
        assert_type([kind.to_pylist() for kind in kinds], list[list[dict[str, Any]]])
        assert_type(str(orders.upper), str)
        assert_type(orders.upper.time, int | None)
        assert_type(orders.since, persist.Antichain)
        assert_type(orders.name, str)
        assert_type(orders.timeline, persist.Timeline | None)
        assert_type(orders.tag("first", first.as_of), int)
        assert_type(orders.tags(), dict[str, int])
        with orders.hold(first.as_of):
            assert_type(orders.snapshot("first").to_pylist(), list[dict[str, Any]])
        orders.restore("first").result()
        orders.untag("first").result()
        assert_type(orders.evolve(add={"note": "string"}), int)
        trial = client.clone("orders", "trial")
        trial.overwrite({"id": [9], "status": ["new"], "note": [None]}).result()
        answer = client.sql("SELECT count(*) AS n FROM orders JOIN trial USING (status)")
        assert_type(answer.to_pylist(), list[dict[str, Any]])
        with client.multi_write() as multi:
            multi.upsert(orders, [{"id": 3, "status": "new", "note": ""}])
            multi.overwrite(trial, {"id": [7], "status": ["new"], "note": ["x"]})
        for progress in orders.subscribe():
            assert_type(progress.upper, persist.Antichain)
            break
        assert_type(list(trial.snapshot().rows()), list[tuple[Any, Any]])
        history: pa.Table = client.history()
        orders.retain("7 days").result()
        orders.seal("now").result()
        orders.compact()
        assert "trial" in client
        assert len(names) == 8
        assert sum(batches) == 1
        assert history.num_rows > 9
        return list(client)


if __name__ == "__main__":
    assert run(sys.argv[1]) == EXPECTED
