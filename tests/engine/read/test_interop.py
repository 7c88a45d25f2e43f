"""Other libraries read a result without reading all of it, and get what reading all of it gives."""

import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import duckdb
import numpy as np
import polars as pl
import polars.testing
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pytest

import persist
from persist.blob.errors import InvalidUsage
from persist.blob.protocol import MemoryBlob
from tests.support.forks import forked_python

ROWS = 200_000
QUIET = persist.Settings(background=False)
KEPT = pc.field("k") >= ROWS - 10


class CountingBlob(MemoryBlob):
    """A store that counts the bytes that are read of parts."""

    read = 0

    def copied(self) -> "CountingBlob":
        copied = CountingBlob()
        copied._values, copied._keys = {**self._values}, [*self._keys]
        return copied

    def get(self, key: str, range: Any = None) -> bytes | None:
        found = super().get(key, range)
        self.read += len(found) if found and key.startswith("part/") else 0
        return found


@cache
def texts() -> pa.Array:
    """Return texts that hardly compress, so that a part is large enough to be read in pieces."""
    noise = np.random.default_rng(1).integers(0, 2**62, ROWS)
    return pa.array([f"{number:x} {number * 7 % 2**61:x} {key}" for key, number in enumerate(noise.tolist())])


@pytest.fixture
def blob() -> CountingBlob:
    return stored().copied()


@cache
def stored() -> CountingBlob:
    blob = CountingBlob()
    keys = np.arange(ROWS)
    columns = {"k": keys, "n": keys % 7, "text": texts(), "x": keys / 2}
    table = pa.table({**columns, "_time": np.ones(ROWS, np.int64), "_diff": np.ones(ROWS, np.int64)})
    with persist.open(blob, settings=QUIET) as client:
        c = client.create_or_load("c", key={"k": int}, value={"n": int, "text": str, "x": float})
        for start in range(0, ROWS, ROWS // 4):  # Four parts, of which each has keys of its own.
            c.write(table.slice(start, ROWS // 4)).result()
        c.seal(2).result()
        gone = table.slice(5, 1).set_column(5, "_diff", pa.array([-1])).set_column(4, "_time", pa.array([2]))
        c.write(gone, seal=3).result()
    return blob


@pytest.fixture
def collection(blob: CountingBlob) -> Iterator[persist.Collection]:
    with persist.open(blob, settings=QUIET) as client:
        yield client.load("c")


def bytes_for(blob: CountingBlob, read: Callable[[persist.Snapshot], object]) -> int:
    """Return how many bytes of parts a fresh client reads for something."""
    with persist.open(blob, settings=QUIET) as client:
        snapshot = client.load("c").snapshot(as_of=1)
        before = blob.read
        read(snapshot)
        return blob.read - before


def test_a_result_is_iterated_measured_and_looked_into(collection: persist.Collection) -> None:
    snapshot = collection.snapshot()
    assert len(snapshot) == snapshot.count() == ROWS - 1
    assert sum(batch.num_rows for batch in snapshot) == ROWS - 1
    assert [len(snapshot.head()), len(snapshot.head(0)), len(snapshot.head(10 * ROWS))] == [5, 0, ROWS - 1]
    assert all(len(chunk) for column in snapshot.to_arrow().columns for chunk in column.chunks)
    few = collection.snapshot(where=pc.field("k") < 2, columns=["k", "n"])
    assert few.to_pylist() == [{"k": 0, "n": 0}, {"k": 1, "n": 1}]
    none = collection.snapshot(where=pc.field("k") < 0)
    assert none.to_arrow().equals(none.schema.empty_table())
    assert none
    changes = collection.changes(2, 3)
    assert [len(changes), changes.to_pylist()[0]["_diff"], next(iter(changes)).num_rows] == [1, -1, 1]
    assert len(collection.snapshot(form="diff")) == ROWS - 1
    with pytest.raises(InvalidUsage, match=r"head\(-1\) is not a number of rows"):
        snapshot.head(-1)


@pytest.mark.parametrize(
    "limited",
    [lambda frame: frame.head(10), lambda frame: frame.limit(10), lambda frame: frame.slice(0, 10)],
    ids=["head", "limit", "slice"],
)
def test_a_filter_after_a_limit_is_of_the_limited_rows(limited: Callable[[Any], Any]) -> None:
    with persist.open(MemoryBlob()) as client:
        c = client.create_or_load("c", key={"id": int}, value={"name": str})
        c.write([((key, str(key)), 0, 1) for key in range(100)], seal=1).result()
        for result in (c.snapshot(), c.snapshot(form="diff"), c.changes(0, 1)):
            kept = limited(result.lazy()).filter(pl.col("id") > 5)
            polars.testing.assert_frame_equal(kept.collect(), limited(result.to_polars()).filter(pl.col("id") > 5))
            assert kept.select("name").collect()["name"].to_list() == ["6", "7", "8", "9"]
            assert kept.head(2).collect()["id"].to_list() == [6, 7]
            first = limited(result.lazy().filter(pl.col("id") > 5)).filter(pl.col("id") % 2 == 0)
            assert first.collect()["id"].to_list() == [6, 8, 10, 12, 14]
            later = result.lazy().slice(20, 10).filter(pl.col("id") > 25)
            assert later.collect()["id"].to_list() == [26, 27, 28, 29]


def test_not_a_number_passes_a_predicate_as_polars_says() -> None:
    with persist.open(MemoryBlob()) as client:
        c = client.create_or_load("c", key={"x": float})
        c.write([((float("nan"), None), 0, 1), ((1.0, None), 0, 1)], seal=1).result()
        assert len(c.snapshot().lazy().filter(pl.col("x") > 0.5).collect()) == 2


def test_a_lazy_frame_reads_only_parts_that_may_match_and_stops_when_it_has_enough(blob: CountingBlob) -> None:
    everything = bytes_for(blob, lambda s: s.to_polars())
    assert 0 < bytes_for(blob, lambda s: s.lazy().filter(pl.col("k") < 9).collect()) < everything / 3
    assert bytes_for(blob, lambda s: s.lazy().filter(pl.col("k") < 0).collect()) == 0


def test_a_dataset_gives_what_the_table_gives(collection: persist.Collection, blob: CountingBlob) -> None:
    dataset, whole = collection.snapshot().dataset(), collection.snapshot().to_arrow()
    assert isinstance(dataset, pyarrow.dataset.Dataset)
    assert dataset.schema == whole.schema
    assert dataset.to_table(["n"], filter=KEPT).equals(whole.filter(KEPT).select(["n"]))
    assert dataset.filter(KEPT).count_rows() == 10
    assert dataset.count_rows() == ROWS - 1
    assert dataset.head(2).num_rows == 2
    doubled = dataset.to_table({"twice": pc.multiply(pc.field("n"), 2)}, filter=KEPT)
    assert doubled["twice"].to_pylist() == [2 * n for n in whole.filter(KEPT)["n"].to_pylist()]
    changes = collection.changes(0, 3).dataset()
    assert changes.to_table(["k"], filter=pc.field("_diff") < 0)["k"].to_pylist() == [5]
    everything = bytes_for(blob, lambda s: s.to_arrow())
    assert 0 < bytes_for(blob, lambda s: s.dataset().to_table(filter=KEPT)) < everything / 3
    with pytest.raises(InvalidUsage, match="no fragments"):
        next(dataset.get_fragments())


INHERITED = """
import persist, pyarrow.compute as pc, pyarrow.dataset as ds
from persist.blob.errors import InvalidUsage

def refused(use):
    try:
        use()
    except (InvalidUsage, FileNotFoundError) as error:
        assert "to_table()" in str(error), error
    else:
        raise AssertionError("it was not refused")

with persist.open("memory://x") as client:
    c = client.create_or_load("c", key={"id": int}, value={"k": int})
    c.write([((key, key % 3), 0, 1) for key in range(100)], seal=1).result()
    for result in (c.snapshot(), c.changes(0, 1)):
        D, whole = result.dataset(), result.to_arrow()
        falling = [("id", "descending")]
        assert D.sort_by(falling).to_table().equals(whole.sort_by(falling))
        assert D.take([3, 1]).equals(whole.take([3, 1]))
        joined = D.join(D, "id", right_suffix="_r").to_table()
        assert joined.sort_by("id").equals(whole.join(whole, "id", right_suffix="_r").sort_by("id"))
        assert D.join(ds.InMemoryDataset(whole), "id", right_suffix="_r").to_table().num_rows == 100
        other = whole.select(["id", "k"]).rename_columns(["id", "other"])
        assert D.join_asof(ds.InMemoryDataset(other), "id", [], 0).to_table().num_rows == 100
        assert D.partition_expression.equals(pc.scalar(True))
        assert ds.Scanner.from_batches(D.to_batches()).to_table().equals(whole)
        union = ds.UnionDataset(D.schema, [D])
        assert union.schema == whole.schema
        refused(union.to_table)
        refused(union.count_rows)
        refused(lambda: ds.dataset([D]).to_table())
        refused(lambda: ds.Scanner.from_dataset(D).to_table())
        refused(lambda: ds.Scanner.from_dataset(D).head(1))
        refused(lambda: ds.Scanner.from_dataset(D, filter=pc.field("id") > 5).count_rows())
        refused(lambda: ds.InMemoryDataset(whole).join(D, "id", right_suffix="_r"))
        for name in dir(D):
            try:
                found = getattr(D, name)
                repr(found)
                if callable(found) and name not in ("__class__", "__init_subclass__", "__subclasshook__"):
                    found()
            except (InvalidUsage, FileNotFoundError, TypeError, AttributeError):
                pass
        refused(lambda: D.children)
        refused(D.get_fragments)
        refused(D._get_fragments)
print("whole")
"""


@pytest.mark.thorough  # A new process asks for each member.
def test_no_member_that_a_dataset_inherits_ends_the_process() -> None:
    done = subprocess.run([*forked_python(), "-c", INHERITED], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


def test_a_dataset_can_be_written_and_scanned_by_polars(collection: persist.Collection, tmp_path: Any) -> None:
    few = collection.snapshot(where=KEPT)
    pyarrow.dataset.write_dataset(few.dataset(), tmp_path, format="parquet")
    assert pyarrow.dataset.dataset(tmp_path).to_table().equals(few.to_arrow())
    lazy = pl.scan_pyarrow_dataset(few.dataset()).filter(pl.col("k") == ROWS - 1).select("n")
    assert lazy.collect()["n"].to_list() == [(ROWS - 1) % 7]


def test_duckdb_pushes_columns_and_filters_down(collection: persist.Collection, blob: CountingBlob) -> None:
    connection = duckdb.connect()
    relation = collection.snapshot().duckdb(connection, "c")
    assert relation.aggregate("count(*)").fetchall() == [(ROWS - 1,)]
    query = f"SELECT n FROM c WHERE k >= {ROWS - 10} ORDER BY k"
    assert connection.sql(query).fetchall() == [(k % 7,) for k in range(ROWS - 10, ROWS)]
    plan = connection.sql(query).explain()
    assert f'"k" >= {ROWS - 10}' in plan
    assert "Projections: k, n " in plan
    assert "─ Filter ─" not in plan
    everything = bytes_for(blob, lambda s: s.to_arrow())
    narrow = bytes_for(blob, lambda s: s.duckdb(duckdb.connect(), "c").filter("k < 9").fetchall())
    assert 0 < narrow < everything / 3
    assert bytes_for(blob, lambda s: s.duckdb(duckdb.connect(), "c").filter("k < 0").fetchall()) == 0
    with pytest.raises(InvalidUsage, match=r"give duckdb\.connect\(\)"):
        collection.snapshot().duckdb("c", "c")


@pytest.mark.parametrize("kind", [pa.duration("s"), pa.list_(pa.duration("s"))], ids=str)
def test_what_polars_cannot_hold_is_refused_rather_than_wrapped(kind: pa.DataType) -> None:
    is_list = pa.types.is_list(kind)
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        c = client.create_or_load("c", key={"k": int}, value={"v": kind})
        for time, value in enumerate([1000, 2**60]):
            c.write(
                pa.table({"k": [1], "v": pa.array([[value] if is_list else value], kind)}), time=time, seal=time + 1
            )
        first = c.snapshot(0)
        for frame in (first.to_polars(), first.lazy().collect()):
            seconds = frame["v"].explode() if is_list else frame["v"]
            assert seconds.dt.total_seconds().to_list() == [1000]
        for call in (c.snapshot(1).to_polars, c.snapshot(1).lazy().collect):
            with pytest.raises(Exception, match="does not fit Polars"):
                call()


def test_values_that_a_frame_cannot_hold_are_refused_by_one_kind_of_error() -> None:
    struct = pa.struct([("n", pa.int64()), ("at", pa.timestamp("us"))])
    values = {"d": pa.list_(pa.decimal256(50, 2)), "s": struct}
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        c = client.create_or_load("c", key={"k": int}, value=values)
        moment = pa.array([{"n": None, "at": 2**62}], pa.struct([("n", pa.int64()), ("at", pa.int64())])).cast(struct)
        c.write(pa.table({"k": [1], "d": pa.array([[1]], values["d"]), "s": moment})).result()
        with pytest.raises(InvalidUsage, match="to_pandas"):
            c.to_pandas()
        for call in (c.to_polars, c.snapshot().lazy):
            with pytest.raises(InvalidUsage, match="Polars has no decimal256"):
                call()


def test_moments_that_python_cannot_hold_are_read_otherwise() -> None:
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        c = client.create_or_load("c", key={"k": int}, timeline="s")
        c.write([((1, None), 10**17, 1)], seal=persist.Antichain(10**17 + 1), allow_future=True).result()
        changes = c.changes(0, times="timestamp")
        for call in (changes.to_pylist, changes.to_polars):
            with pytest.raises(InvalidUsage, match='times="int"'):
                call()
        assert changes.to_arrow()["_time"].cast(pa.int64()).to_pylist() == [10**17]
        assert c.changes(0, times="int").to_pylist() == [{"k": 1, "_time": 10**17, "_diff": 1}]


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize(
    "call",
    [
        lambda dataset: dataset.to_table(["m"]),
        lambda dataset: dataset.to_table(["n", "n"]),
        lambda dataset: dataset.to_table("n"),
        lambda dataset: dataset.head(1, columns=["m"]),
        lambda dataset: dataset.to_table(filter=pc.field("m") > 1),
        lambda dataset: dataset.to_table({"double": pc.field("m") * 2}),
        lambda dataset: dataset.filter(pc.field("n") > "a"),
        lambda dataset: dataset.count_rows(pc.field("m") > 1),
        lambda dataset: dataset.sort_by("m"),
        lambda dataset: dataset.sort_by([("n", "ascending"), ("m", "descending")]),
    ],
)
def test_what_does_not_fit_the_columns_of_a_dataset_is_an_error_of_ours(
    collection: persist.Collection, call: Callable[[Any], Any]
) -> None:
    with pytest.raises(InvalidUsage):
        call(collection.snapshot().dataset())


@pytest.mark.parametrize("indices", [[0, 3], [-1], [1.5], ["x"]])
def test_positions_that_no_row_has_are_refused(indices: list[Any]) -> None:
    with persist.open("memory://positions") as client:
        t = client.create_or_load("t", key={"k": int})
        t.write([((k, None), 0, 1) for k in range(3)], seal=1).result()
        dataset = t.snapshot().dataset()
        assert dataset.take([2, 0, 2])["k"].to_pylist() == [2, 0, 2]
        with pytest.raises(persist.InvalidUsage, match=r"take\(.*is not possible.*less than count_rows"):
            dataset.take(indices)
        t.drop().result()


def test_updates_of_a_dataset_are_filtered_before_they_are_read_and_transitions_after(client: persist.Client) -> None:
    t = client.create_or_load("filtered", key={"k": int}, value={"v": int})
    t.write([((1, 1), 0, 1), ((2, 2), 0, 1)], seal=1).result()
    t.write([((1, 1), 1, -1), ((1, 5), 1, 1), ((2, 2), 1, -1), ((2, 1), 1, 1)], seal=2).result()
    updates, moves = (t.changes(1, 2, form=form).dataset() for form in ("updates", "transitions"))
    assert updates.to_table(filter=pc.field("v") < 2).num_rows == 2
    assert updates.to_table(filter=pc.field("_diff") < 0).num_rows == 2, "no read can tell these by what it filters"
    named = next(name for name in moves.schema.names if moves.schema.field(name).type == pa.int64() and name == "v")
    assert moves.to_table(filter=pc.field(named) < 2).num_rows == 1
    assert moves.to_table().num_rows == 2


def test_columns_that_a_result_has_not_are_refused_before_anything_is_read(client: persist.Client) -> None:
    t = client.create_or_load("columns", key={"k": int}, value={"v": int})
    t.write([((1, 2), 0, 1)], seal=1).result()
    dataset = t.snapshot().dataset()
    assert dataset.to_table().column_names == ["k", "v"]
    assert dataset.to_table(columns=["v"]).to_pydict() == {"v": [2]}
    assert dataset.to_table(columns={"w": pc.field("v") + 1}).to_pydict() == {"w": [3]}
    for columns, said in (
        (["w"], "no column 'w'"),
        (["v", "k", "v"], "'v' is requested twice"),
        ("v", "neither a list"),
    ):
        with pytest.raises(persist.InvalidUsage, match=said):
            dataset.to_table(columns=columns)
    with pytest.raises(persist.InvalidUsage):
        dataset.to_table(columns={"w": pc.field("nowhere")})
