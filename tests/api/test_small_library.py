"""A small and typed library: collections that read like snapshots, completion, representations, pickles, slips."""

import gc
import json
import pickle
import shutil
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import persist
from persist.engine.location.opening import Origin
from persist.engine.location.writer import OpenOptions
from tests.api import typed_program
from tests.support.paths import ROOT

ROWS = [{"id": 1, "status": "new"}, {"id": 2, "status": "paid"}]


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open(persist.MemoryBlob()) as opened:
        opened.write("orders", ROWS, key=["id"]).result()
        yield opened


@pytest.fixture
def orders(client: persist.Client) -> persist.Collection:
    return client["orders"]


def test_a_program_that_uses_the_library_has_types_and_runs(tmp_path: Path) -> None:
    assert typed_program.run(str(tmp_path / "shop")) == typed_program.EXPECTED


@pytest.mark.outside
def test_pyright_finds_nothing_in_the_same_program(tmp_path: Path) -> None:
    pyright = shutil.which("basedpyright")
    if pyright is None:
        pytest.skip("not installed: pip install basedpyright")
    shutil.copy(str(typed_program.__file__), tmp_path)
    # Pyright's own standard. Its strict mode refuses each name of pyarrow, which comes without types.
    config = {"typeCheckingMode": "standard", "extraPaths": [str(ROOT)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    command = [pyright, "--project", str(tmp_path), "--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["0 errors, 0 warnings, 0 notes"]), done.stdout


def test_a_collection_reads_like_a_snapshot_of_the_latest(orders: persist.Collection) -> None:
    assert orders.to_pylist() == orders.to_arrow().to_pylist() == orders.to_polars().to_dicts() == ROWS
    assert (orders.count(), sum(batch.num_rows for batch in orders)) == (2, 2)
    assert pl.DataFrame(orders).to_dicts() == pa.table(orders).to_pylist() == ROWS
    assert duckdb.from_arrow(orders).fetchall() == [(1, "new"), (2, "paid")]
    with pytest.raises(persist.InvalidUsage, match="use to_pandas"):
        pd.DataFrame(orders)


def test_a_loop_over_a_client_gives_the_names(client: persist.Client) -> None:
    client.write("customers", ROWS, key=["id"]).result()
    assert list(client) == ["customers", "orders"]


def test_a_collection_is_written_into_another_one(client: persist.Client, orders: persist.Collection) -> None:
    client.write("copy", orders, key=["id"]).result()
    assert client["copy"].to_pylist() == ROWS


def test_what_differs_is_read_in_the_ways_of_changes(orders: persist.Collection) -> None:
    found = orders.diff(0, "now")
    assert isinstance(found, persist.Changes)
    assert found.schema.names == ["id", "status", "_change", "_old_status"] == [*found.to_pandas().columns]
    assert len(found) == found.to_polars().height == 2
    assert repr(found).startswith("Difference(")
    assert orders.diff("now", 0).to_pylist()[0] == {
        **dict.fromkeys(("status",)),
        "id": 1,
        "_change": "delete",
        "_old_status": "new",
    }


INTERNALS = {
    *("engine", "handle", "live", "scan", "slices", "iterate_unsummed", "by_index", "find_by_index", "succeed", "fail"),
    *("set_result", "set_exception", "read_narrowed", "transitions", "_INTERNAL"),
}


def test_completion_shows_what_users_call(client: persist.Client, orders: persist.Collection) -> None:
    view = client.create_view("paid", "SELECT * FROM orders WHERE status = 'paid'")
    shown: dict[str, set[str]] = {}
    for thing in (client, orders, view, orders.snapshot(), orders.changes(0), orders.seal("now"), orders.listen()):
        shown[type(thing).__name__] = {*dir(thing)}
        assert not {*dir(thing)} & INTERNALS
        assert all(hasattr(thing, name) for name in dir(thing) if not name.startswith("_") and name != "late_bound")
    assert {"write", "upsert", "overwrite", "delete", "seal"} <= shown["Collection"] - shown["View"]
    assert {"refresh", "snapshot", "to_pandas"} <= shown["View"]
    assert {"result", "time", "done"} <= shown["CommitFuture"]


def test_what_is_printed_says_what_it_is(client: persist.Client, orders: persist.Collection) -> None:
    assert repr(orders.schema).splitlines() == [
        "CollectionSchema, version 1, times in ms",
        "  id      int64  key",
        "  status  string",
    ]
    future = orders.seal("now")
    future.result()
    assert repr(future) == f"<CommitFuture: durable, seqno {future.result():,}>"
    lost = orders.seal("2001-01-01")
    with pytest.raises(persist.errors.FrontierRegression):
        lost.result()
    assert repr(lost).startswith("<CommitFuture: FrontierRegression(")
    done = client.sql("UPDATE orders SET status = 'paid'")
    assert repr(done).startswith("Outcome(collection='orders', rows=")


def test_an_error_that_was_printed_is_still_on_the_ledger() -> None:
    client = persist.open(persist.MemoryBlob())
    client.write("orders", ROWS, key=["id"]).result()
    lost = client["orders"].seal("2001-01-01")
    while not lost.done():
        pass
    assert "FrontierRegression" in repr(lost)
    with pytest.raises(persist.errors.FrontierRegression):
        client.close()


def count(thing: Any) -> list[Any]:
    if isinstance(thing, persist.Client):
        return list(thing)
    if isinstance(thing, persist.View):
        return [thing.name, thing.sql, len(thing)]
    return [type(thing).__name__, len(thing)]


@pytest.mark.thorough
def test_another_process_takes_a_client_a_collection_a_view_and_a_snapshot(tmp_path: Path) -> None:
    with persist.open(tmp_path / "shop") as client:
        client.write("orders", ROWS, key=["id"]).result()
        orders, sql = client["orders"], "SELECT * FROM orders WHERE status = 'paid'"
        view = client.create_view("paid", sql)
        view.refresh()
        snapshot = orders.snapshot(where="status = 'new'", columns=["id"])
        orders.upsert([{"id": 3, "status": "new"}]).result()
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            answers = [*pool.map(count, (client, orders, view, snapshot))]
        assert answers == [["orders", "paid"], ["Collection", 3], ["paid", sql, 1], ["Snapshot", 1]]


SECRET = "hidden"


@pytest.mark.parametrize(
    ("url", "plain", "secret"),
    [
        (
            "s3://bucket/shop",
            {"endpoint_url": "http://127.0.0.1:1", "server_side_encryption": "aws:kms", "sse_kms_key_id": "arn:key"},
            {"access_key_id": SECRET, "secret_access_key": SECRET, "session_token": SECRET, "sse_customer_key": SECRET},
        ),
        (
            "az://container/shop",
            {"account_name": "shop", "location_mode": "primary"},
            {"account_key": SECRET, "signature": SECRET, "bearer": SECRET, "pwd": SECRET, "headers": {"x": SECRET}},
        ),
        ("gs://bucket", {"project": "p"}, {"token": SECRET, "endpoint_url": f"http://user:{SECRET}@host"}),
        ("grpc://host:1", {"timeout_s": 3.0, "certificate": "public"}, {"token": SECRET}),
        ("shop", {"fsync": False, "file_mode": "600"}, {}),
    ],
)
def test_a_pickle_has_all_options_but_secrets(
    url: str, plain: dict[str, Any], secret: dict[str, Any], client: persist.Client
) -> None:
    made = Origin.of(url, plain | secret, _options(client))
    assert made.storage_options == plain
    assert SECRET.encode() not in pickle.dumps(made)


@pytest.mark.parametrize("url", ["memory://shop", "s3://user:hidden@bucket/shop", "https://host/shop?sig=hidden"])
def test_a_location_that_is_no_url_for_others_is_not_pickled(url: str, client: persist.Client) -> None:
    assert Origin.of(url, None, _options(client)).location is None


def test_unpickled_objects_of_one_location_share_a_client(tmp_path: Path) -> None:
    with persist.open(tmp_path / "shop") as client:
        client.write("orders", ROWS, key=["id"]).result()
        pickled = [pickle.dumps(thing) for thing in (client["orders"], client["orders"], client["orders"].snapshot())]
        own = pickle.dumps(client)
    with warnings.catch_warnings(action="error"):
        first, second, snapshot = map(pickle.loads, pickled)
        engine = first.handle.engine
        assert second.handle.engine is engine
        assert snapshot.count() == len(second)
        with pickle.loads(own) as other:
            assert other.engine is not engine
        engine.close()
        again = pickle.loads(pickled[0])
        assert len(again) == len(ROWS), "a closed client is not shared"
        dropped = weakref.ref(again.handle.engine)
        del first, second, snapshot, engine, again
        gc.collect()
    assert dropped() is None


def _options(client: persist.Client) -> OpenOptions:
    return OpenOptions("read", settings=client.engine.settings)


@pytest.mark.parametrize("what", ["client", "collection", "snapshot"])
def test_what_no_other_process_can_open_says_what_to_pass(client: persist.Client, what: str, tmp_path: Path) -> None:
    things: dict[str, Any] = {"client": client, "collection": client["orders"], "snapshot": client["orders"].snapshot()}
    with pytest.raises(persist.InvalidUsage, match="cannot go to another process, because its store is an object"):
        pickle.dumps(things[what])
    with (
        persist.open(tmp_path / "shop", mode="exclusive") as alone,
        pytest.raises(persist.InvalidUsage, match='mode="exclusive" one client alone writes'),
    ):
        pickle.dumps(alone)


SLIPS: dict[str, Any] = {
    r"add=\['z'\] is not a dict by name of column: give one, such as add=\{'note': 'string'\}": lambda o: o.evolve(
        add=["z"]
    ),
    r"'true' is True for every row: leave it out": lambda o: o.snapshot(where="true"),
    r"'false' is False for every row": lambda o: o.delete(where="false"),
    r"as_of 1.5 is a float: give a whole number of ms": lambda o: o.snapshot(1.5),
    r"Collection has no `in`: use get\(\[1\]\)": lambda o: 1 in o,
    r"Snapshot has no `in`: use get\(\[1\]\)": lambda o: 1 in o.snapshot(),
    r"Changes has no `in`: use to_pylist\(\)": lambda o: 1 in o.changes(0),
    "Collection is not an array of NumPy": np.asarray,
    r"as_of 'whenever' is|'whenever' is not a time": lambda o: o.snapshot("whenever"),
}


@pytest.mark.parametrize("message", SLIPS)
def test_a_slip_is_answered_by_what_to_write(orders: persist.Collection, message: str) -> None:
    with pytest.raises(persist.InvalidUsage, match=message):
        SLIPS[message](orders)
