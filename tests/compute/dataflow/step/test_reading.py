"""What a step reads of a collection by keys, one look after the other, is exactly what the keys ask for."""

import random
import uuid

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from persist.compute.dataflow.step.keys import Condition, TouchedKeys
from persist.compute.dataflow.step.reading import Reading
from persist.compute.dataflow.step.tasks import Found
from persist.compute.dataflow.step.touched import Brought, Term
from persist.compute.index import paths_of
from persist.compute.tasks.stream_source import CollectionAddress
from persist.engine.collection.reads import snapshot

ROWS, VALUES = 4000, 200


@pytest.mark.parametrize("seed", range(6))
def test_look_ups_of_a_step_give_each_record_once_whichever_were_made_before(seed: int) -> None:
    chance = random.Random(seed)
    with persist.open(f"memory://{uuid.uuid4()}", settings=persist.Settings(background=False)) as client:
        kinds = {"a": pa.int64(), "n": pa.int64()}
        collection = client.create_or_load("c", key=kinds, value={"b": pa.int64()})
        values = [(chance.randrange(VALUES), chance.randrange(VALUES)) for _ in range(ROWS)]
        rows = pa.table({"a": [a for a, _ in values], "n": range(ROWS), "b": [b for _, b in values]})
        collection.write(rows, time=0, seal=1).result()
        collection.index("b")
        handle = client.load("c").handle
        with snapshot(handle, 0, columns=["a", "n", "b"], form="diff") as contents:
            paths = paths_of(handle, handle.folded(handle.known()), contents.scan.given, 0, ["a", "n", "b"])
            address = CollectionAddress(handle.engine.url, {}, "c")
            reading = Reading(address, handle, contents.scan, None, 0, rows.schema, paths)
            found = Found(client.engine.reader())
            looked_up = 0
            for _ in range(20):
                need, known = set[Term](), dict[Brought, TouchedKeys]()
                for number, name in enumerate(chance.choice([["a"], ["b"], ["a", "b"], ["b", "a"]])):
                    keys = pa.table({name: chance.sample(range(9), chance.randrange(1, 6))})
                    known[Brought(number)] = TouchedKeys((keys,))
                    need.add(Term((name,), Brought(number)))
                slices, _ = reading.sliced(frozenset(need), known, 1)
                condition = Condition.of(frozenset(need), known)
                assert condition is not None
                given = [condition.kept(table) for piece in slices.slices for table in found.tables(piece)]
                got = pa.concat_tables(table.select(["a", "n", "b", "_diff"]) for table in given)
                assert pc.sum(got["_diff"]).as_py() == len(got) == len(condition.kept(rows))
                assert got.select(rows.column_names).sort_by("n").equals(condition.kept(rows))
                looked_up += sum(piece.keys is not None for piece in slices.slices)
                if chance.random() < 0.7:  # Otherwise it was only planned.
                    reading.read.extend(
                        piece
                        for piece in slices.slices
                        if piece.keys is not None and not any(piece is one for one in reading.read)
                    )
            assert looked_up > 20
