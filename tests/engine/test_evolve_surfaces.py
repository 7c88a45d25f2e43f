"""Every way of reading knows of schemas that changed: each gives what a collection gives that was always like that."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.codecs.part.decoding import decode_part
from persist.core.log import kinds
from persist.core.state_rules.collection_rules import apply_step, check_contents
from tests.support.reads import rows_with

QUIET = persist.Settings(background=False)
ROWS = 5_000
FULL = {"unit": pa.string(), "n": pa.int64(), "city": pa.large_string()}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[persist.Collection, persist.Collection]]:
    """The same contents twice: in a collection that evolved between its parts, and in one that did not."""
    with persist.open(str(tmp_path_factory.mktemp("both")), settings=QUIET) as client:
        evolved = client.create_or_load(
            "evolved", key={"id": pa.int32()}, value={"town": pa.string(), "n": pa.int16(), "old": pa.string()}
        )
        plain = client.create_or_load("plain", key={"key": pa.int64()}, value=FULL)
        first = {"town": [["Bern", "Rom"][k % 2] for k in range(ROWS)], "n": [k % 100 for k in range(ROWS)]}
        rows = pa.table({"id": pa.array(range(ROWS), pa.int32()), **first, "old": ["x"] * ROWS})
        evolved.write(rows.set_column(2, "n", rows["n"].cast(pa.int16())), time=0, seal=1).result()
        evolved.evolve(
            rename={"id": "key", "town": "city"}, widen={"id": pa.int64(), "n": pa.int64(), "town": pa.large_string()}
        )
        evolved.evolve(add={"unit": pa.string()}, defaults={"unit": "kg"}, drop=["old"])
        evolved.evolve(reorder=["unit", "n", "city"])
        plain.write(
            pa.table({"key": range(ROWS), "unit": ["kg"] * ROWS, "n": first["n"], "city": first["town"]}),
            time=0,
            seal=1,
        ).result()
        for each in (evolved, plain):
            each.write([((3, ("kg", 3, "Rom")), 1, -1), ((3, ("g", 3, "Rom")), 1, 1)], seal=2).result()
        yield evolved, plain


def same(both: tuple[persist.Collection, persist.Collection], read: Any) -> None:
    evolved, plain = (read(each) for each in both)
    if isinstance(evolved, pa.Table):
        order = [(name, "ascending") for name in evolved.column_names]
        evolved, plain = evolved.combine_chunks().sort_by(order), plain.combine_chunks().sort_by(order)
    assert evolved == plain


@pytest.mark.parametrize("as_of", [0, 1])
def test_aggregates_are_the_same(both: tuple[persist.Collection, persist.Collection], as_of: int) -> None:
    wanted = {"total": ("n", "sum"), "most": ("n", "max"), "count": (None, "count")}
    same(both, lambda c: c.snapshot(as_of).aggregate(["city", "unit"], {k: wanted[k] for k in ("total", "count")}))
    same(both, lambda c: c.snapshot(as_of, where=pc.field("unit") == "g").count())


def test_look_ups_are_the_same(both: tuple[persist.Collection, persist.Collection]) -> None:
    keys = pa.table({"key": pa.array([3, 4, 99_999], pa.int64())})
    same(both, lambda c: c.snapshot().get(keys))
    same(both, lambda c: rows_with(c.snapshot(0), [3, 4]))


def test_frames_and_datasets_are_the_same(both: tuple[persist.Collection, persist.Collection]) -> None:
    same(both, lambda c: c.snapshot().to_pandas().sort_values("key").to_dict("list"))
    same(both, lambda c: sorted(c.snapshot().to_polars().rows()))
    same(both, lambda c: sorted(c.snapshot().rows()))
    same(both, lambda c: c.snapshot().digest())


def test_as_of_joins_are_the_same(both: tuple[persist.Collection, persist.Collection]) -> None:
    same(both, lambda c: c.as_of_join({"key": [3, 3, 5], "at": [0, 1, 1]}))


def test_changes_and_subscriptions_are_the_same(both: tuple[persist.Collection, persist.Collection]) -> None:
    same(both, lambda c: c.changes(1, 2).to_arrow())
    same(both, lambda c: c.changes(0, 2, columns=["unit"]).to_arrow())

    def subscribed(c: persist.Collection) -> pa.Table:
        with c.subscribe(1) as steps:
            return next(steps).updates

    same(both, subscribed)


@pytest.mark.parametrize("fault", [Fault.HAPPENED_BUT_FAILED, Fault.NOT_HAPPENED_DOUBTFUL, Fault.UNAVAILABLE])
def test_an_evolve_whose_answer_was_lost_happens_once(fault: Fault) -> None:
    inner = persist.MemoryBlob()
    blob = UnreliableBlob(inner)
    with persist.open(blob, settings=QUIET) as client:
        rows = client.create_or_load("rows", key={"k": pa.int64()}, value={"v": pa.int64()})
        rows.write([((1, 1), 0, 1)], seal=1).result()
        blob.script_faults("create", fault)
        assert rows.evolve(add={"n": pa.int64()}) == 2
        assert blob.faults[fault] == 1
    with persist.open(inner, settings=QUIET) as other:
        assert other["rows"].schema.version == 2
        assert list(other["rows"].snapshot().rows()) == [(1, (1, None))]


def test_a_part_of_a_version_that_there_is_not_is_refused_by_the_log_and_by_readers() -> None:
    with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
        rows = client.create_or_load("rows", key={"k": pa.int64()}, value={"v": pa.int64()})
        rows.write([((1, 1), 0, 1)], seal=1).result()
        contents = rows.handle.contents()
        (part,) = contents.parts
        late = msgspec.structs.replace(part, schema=2, time_min=1, time_max=1)
        with pytest.raises(ValueError, match="schema version 2"):
            apply_step(contents, kinds.Append(rows.id, (late,)))
        forged = msgspec.structs.replace(contents, numbered={0: msgspec.structs.replace(part, schema=2)})
        with pytest.raises(ValueError, match="later schema version"):
            check_contents(forged)
        with pytest.raises(persist.errors.CorruptBlob, match="schema version 2"):
            decode_part(part.inline, msgspec.structs.replace(part, schema=2), rows.schema)
