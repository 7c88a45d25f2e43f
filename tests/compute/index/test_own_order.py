"""Records found by the first columns of a key: what a filter finds, whatever the parts are and hold."""

import random
import uuid

import pyarrow as pa

import persist
from persist.codecs.order.sums import consolidate
from persist.compute.index import own_path
from persist.compute.index.lookups import among
from persist.engine.collection.reads import snapshot


def test_first_key_columns_find_what_a_filter_finds() -> None:
    chance = random.Random(4)
    with persist.open(f"memory://{uuid.uuid4()}", settings=persist.Settings(background=False)) as client:
        made = client.create_or_load("t", key={"a": int, "b": str, "c": float}, value={"v": int})
        for time in range(4):
            rows = [
                ((chance.choice([None, *range(30)]), chance.choice("xyz"), chance.random()), chance.randrange(9))
                for _ in range(200)
            ]
            made.write([(row, time, chance.choice([1, 1, -1])) for row in rows], seal=time + 1).result()
        for columns in (["a", "b", "v"], ["b", "a", "c", "v"]):
            for as_of in range(4):
                with snapshot(made.handle, as_of, columns=columns, form="diff") as held:
                    everything = held.to_arrow()
                    for count, keys in (
                        (1, pa.table({"a": [3, None, 77, 8]})),
                        (2, pa.table({"a": [3, 9], "b": ["x", "z"]})),
                    ):
                        path = own_path(held.scan, count)
                        assert path is not None
                        keys = keys.cast(pa.schema([*zip(path.columns, path.contents.schema.key_types, strict=True)]))
                        found = path.records(keys, made.handle.engine.reader()).select([*columns, "_diff"])
                        wanted = among(everything.select([*columns, "_diff"]), keys)
                        assert consolidate(found, columns).equals(consolidate(wanted, columns)), (columns, as_of, count)
                        assert len(found)
                    assert own_path(held.scan, 3) is None
                    assert own_path(held.scan, 0) is None
