"""A client reads its own writes, all that it was asked for before; from the store, as everybody else does."""

import numpy as np
import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from tests.support.reads import rows_with

QUIET = persist.Settings(background=False)
KEY, VALUE = {"k": pa.int64()}, {"v": pa.string()}
ROWS = 20_000


def table(time: int = 0) -> pa.Table:
    keys = np.arange(ROWS)
    columns = {"k": keys, "v": [f"value {key}" for key in keys.tolist()]}
    return pa.table(columns | {"_time": np.full(ROWS, time), "_diff": np.ones(ROWS, np.int64)})


def test_a_follower_in_the_same_client_sees_damage_of_the_store() -> None:
    store = MemoryBlob()
    with persist.open(store, settings=QUIET) as client:
        source = client.create_or_load("c", key=KEY, value=VALUE)
        source.seal(1).result()
        with source.listen(0) as listen:
            source.write(table(time=1), seal=2).result()
            (part,) = (entry.key for entry in store.list("part/"))
            store.delete(part)
            with pytest.raises(persist.errors.CorruptBlob, match=part):
                listen.poll()


def test_what_was_written_before_an_evolution_is_read_by_the_new_schema() -> None:
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        source = client.create_or_load("c", key=KEY, value=VALUE)
        source.write(table(), seal=1).result()
        source.evolve(add={"note": pa.string()}, rename={"v": "w"})
        rows = client.load("c").snapshot().to_arrow().sort_by("k")
        assert rows.column_names == ["k", "w", "note"]
        assert rows["note"].null_count == ROWS
        assert rows["w"][5].as_py() == "value 5"


@pytest.mark.parametrize("rows", [1, ROWS])
def test_a_read_begins_after_all_that_the_client_was_asked_to_write(rows: int) -> None:
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        plain = client.create_or_load("plain", key=KEY, value=VALUE)
        keyed = client.create_or_load("keyed", key=KEY, value=VALUE, keyed=persist.Keyed())
        for round_ in range(3):
            plain.write(table().drop_columns(["_time", "_diff"]).slice(0, rows))
            assert plain.snapshot().count() == (round_ + 1) * rows
            keyed.upsert([(round_, "new")])
            assert len(rows_with(keyed.snapshot(), [round_])) == 1
            assert len(keyed.changes(0).to_arrow()) == round_ + 1


def test_a_read_of_what_is_not_sealed_says_so_at_once() -> None:
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        source = client.create_or_load("c", key=KEY, value=VALUE)
        source.write([(1, "a")]).result()
        with pytest.raises(persist.errors.AsOfNotSealed, match="not before upper") as caught:
            source.snapshot(1)
        assert (caught.value.as_of, caught.value.timeout_s) == (1, 0.0)
