"""Corners of reading: no columns, large multiplicities, zeros and NaN in filters, and when to stop waiting."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.codecs.order.sums import consolidate
from tests.support.keyframes import add_keyframe, snapshots
from tests.support.stepped import WAIT_S


def sealed(client: persist.Client, key: Any, value: Any, updates: list[Any]) -> persist.Collection:
    collection = client.create_or_load("c", key=key, value=value)
    collection.write(updates)
    collection.seal(10).result()
    return collection


def test_a_collection_without_columns_still_has_rows(client: persist.Client) -> None:
    unit = sealed(client, None, None, [((None, None), 0, 3), ((None, None), 1, -1)])
    assert unit.snapshot(0).count() == unit.snapshot(0).to_arrow().num_rows == 3
    assert list(unit.snapshot(1).rows()) == [(None, None)] * 2
    assert [batch.num_rows for batch in unit.snapshot(1).to_batches()] == [2]
    assert list(unit.snapshot(1, form="diff").rows()) == [((None, None), 2)]


def test_no_columns_may_be_asked_for(client: persist.Client) -> None:
    numbers = sealed(client, {"k": pa.int64()}, None, [((i, None), 0, 2) for i in range(5)])
    assert numbers.snapshot(0, columns=[]).to_arrow().num_rows == 10


def test_rows_of_large_multiplicity_come_in_batches_and_absurd_ones_are_refused(client: persist.Client) -> None:
    numbers = sealed(client, {"k": pa.int64()}, None, [((1, None), 0, 3_000_000), ((2, None), 0, 1)])
    batches = list(numbers.snapshot(0).to_batches())
    assert sum(batch.num_rows for batch in batches) == 3_000_001
    assert max(batch.num_rows for batch in batches) <= 128 * 1024
    assert pc.sum(numbers.snapshot(0).to_arrow()["k"]).as_py() == 3_000_002
    other = client.create_or_load("other", key={"k": pa.int64()}, value=None)
    other.write([((1, None), 0, 10**14)])
    other.seal(1).result()
    with pytest.raises(persist.InvalidUsage, match="multiplicity 100000000000000"):
        other.snapshot(0).to_arrow()
    assert other.snapshot(0, form="diff").to_arrow()["_diff"].to_pylist() == [10**14]


@pytest.mark.parametrize(
    "filter",
    [pc.field(2) == 4, (pc.field("k") > 1) & pc.field(2).is_valid(), pc.field((0, 1)) == 4, pc.field(2).isin([4])],
    ids=str,
)
def test_a_filter_by_position_is_refused_wherever_a_filter_is_taken(
    client: persist.Client, filter: pc.Expression
) -> None:
    c = sealed(client, {"k": int}, {"a": str, "n": int}, [((i, ("x", i % 5)), 0, 1) for i in range(30)])
    rows = pa.table({"k": [1], "a": ["x"], "n": [4]})
    dataset = c.snapshot(0).dataset()
    uses: list[Callable[[], object]] = [
        lambda: c.snapshot(0, where=filter),
        lambda: c.changes(0, 5, where=filter),
        lambda: c.delete(where=filter, time=10),
        lambda: c.overwrite(rows, time=10, where=filter),
        lambda: dataset.to_table(filter=filter),
        lambda: dataset.filter(filter),
        lambda: c.changes(0, 5).dataset().count_rows(filter),
    ]
    for use in uses:
        with pytest.raises(persist.InvalidUsage, match="by its position; write its name"):
            use()
    assert c.snapshot(0, where=pc.field("n") == 4).count() == 6
    assert c.changes(0).dataset().count_rows((pc.field("_time") == 0) & (pc.field("n") == 4)) == 6


def test_the_word_for_a_position_may_be_a_name_or_a_text(client: persist.Client) -> None:
    c = sealed(client, {"FieldPath(1)": str}, None, [(("FieldPath(0)", None), 0, 1), (("x", None), 0, 1)])
    named = pc.field("FieldPath(1)")
    for filter in (named == "FieldPath(0)", named.isin(['"', "FieldPath(0)"])):
        assert c.snapshot(0, where=filter).count() == 1


@pytest.mark.parametrize("values", [[0.0], [0.0, None], [-0.0, 1.0], [1.0, 2.0], [float("nan"), 0.0]])
@pytest.mark.parametrize(
    "filter",
    [
        pc.field("k").isin([0.0]),
        pc.field("k").isin([0.0, 7.0]),
        ~(pc.field("k") < float("nan")),
        pc.field("k") == 0.0,
        ~(pc.field("k") == float("nan")),
        ~(pc.field("k") <= pc.divide(pc.scalar(0.0), pc.scalar(0.0))),
        pc.field("k").isin([float(i) for i in range(40)]),
    ],
    ids=str,
)
def test_a_filter_finds_the_same_when_it_is_pushed_down_as_when_it_is_applied_last(
    client: persist.Client, values: list[float | None], filter: pc.Expression
) -> None:
    floats = sealed(client, {"k": pa.float64()}, None, [((v, None), 0, 1) for v in values])
    expected = floats.snapshot(0).to_arrow().filter(filter)
    assert floats.snapshot(0, where=filter).to_arrow().num_rows == expected.num_rows


def test_bad_requests_are_refused_before_anything_is_waited_for(client: persist.Client) -> None:
    numbers = sealed(client, {"k": pa.int64()}, None, [])
    for wrong in ({"columns": ["nope"]}, {"form": "pivot"}, {"where": pc.field("nope") > 1}, {"columns": 5}):
        with pytest.raises(persist.InvalidUsage):
            numbers.snapshot(5000, timeout_s=None, **wrong)
    for timeout_s in (float("nan"), -1, "x"):
        with pytest.raises(persist.InvalidUsage, match="timeout_s="):
            numbers.snapshot(5000, timeout_s=timeout_s)  # type: ignore[arg-type]


def test_any_kind_of_integer_is_a_time(client: persist.Client) -> None:
    numbers = sealed(client, {"k": pa.int64()}, None, [((1, None), 0, 1)])
    numbers.seal(np.int64(20)).result()  # type: ignore[arg-type]
    assert numbers.snapshot(np.int64(19)).count() == 1  # type: ignore[arg-type]
    with pytest.raises(persist.InvalidUsage, match="as_of True is not an integer"):
        numbers.snapshot(True)


def test_those_who_wait_hear_of_it_when_the_client_is_closed() -> None:
    client = persist.open(MemoryBlob())
    numbers = sealed(client, {"k": pa.int64()}, None, [])
    listen = numbers.listen(9)
    heard: list[BaseException] = []

    def wait(call: Any) -> None:
        try:
            call()
        except persist.errors.ClientClosed as error:
            heard.append(error)

    waits = [lambda: next(listen), lambda: numbers.snapshot(5000, timeout_s=None)]
    threads = [threading.Thread(target=wait, args=(call,)) for call in waits]
    for thread in threads:
        thread.start()
    client.close()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(heard) == 2


def test_a_reader_that_was_closed_says_so_when_it_is_asked_to_write() -> None:
    blob = MemoryBlob()
    with persist.open(blob) as writer:
        sealed(writer, {"k": pa.int64()}, None, [])
    reader = persist.open(blob, mode="read")
    numbers = reader.load("c")
    reader.close()
    with pytest.raises(persist.errors.ClientClosed):
        numbers.seal(20)


def test_a_multi_write_is_used_once_and_only_in_its_block(client: persist.Client) -> None:
    numbers = sealed(client, {"k": pa.int64()}, None, [])
    multi = client.multi_write()
    with pytest.raises(persist.InvalidUsage, match="only inside its `with` block"):
        multi.write(numbers, [((1, None), 10, 1)])
    with multi:
        multi.write(numbers, [((1, None), 10, 1)])
    with pytest.raises(persist.InvalidUsage, match="was used already"), multi:
        pass
    numbers.seal(11).result()
    assert numbers.snapshot(10).count() == 1


@pytest.mark.parametrize("location", [None, 123, b"path"])
def test_what_is_no_location_is_refused(location: Any) -> None:
    with pytest.raises(persist.InvalidUsage):
        persist.open(location)


@pytest.mark.parametrize("how", ["at once", "apart", "compacted"])
def test_a_negative_multiplicity_is_refused_as_rows_however_it_is_stored(client: persist.Client, how: str) -> None:
    """Although another key has a record that looks like it, if only the value is asked for."""
    updates = [((1, "x"), 0, -1), ((2, "x"), 0, 1), *(((k, "y"), 0, 1) for k in range(10, 20))]
    c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.string()})
    for each in [updates] if how == "at once" else [updates[:1], updates[1:]]:
        c.write(each).result()
    c.seal(1).result()
    if how == "compacted":
        assert c.compact().keyframes == (0,)
    with pytest.raises(persist.errors.NegativeMultiplicity):
        c.snapshot(0, columns=["v"]).to_arrow()
    found = c.snapshot(0, columns=["v"], form="diff").to_arrow().to_pydict()
    assert found == {"v": ["y"], "_diff": [10]}


def test_a_negative_multiplicity_of_a_keyframe_that_later_updates_make_up_for_is_counted_once(
    client: persist.Client,
) -> None:
    c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.string()})
    c.write([((1, "x"), 0, -1), *(((k, "y"), 0, 1) for k in range(2, 20))], seal=1).result()
    add_keyframe(c, 0)
    c.write([((1, "x"), 1, 2)], seal=2).result()
    expected = [(1, "x"), *((k, "y") for k in range(2, 20))]
    for snapshot in snapshots(c, 1):
        assert sorted(snapshot.rows()) == expected
    assert sorted(c.snapshot(1).rows()) == expected


@pytest.mark.parametrize("columns", [("k", "v"), ("v",)])
def test_what_is_read_unsummed_sums_up_to_the_contents_by_every_plan(
    client: persist.Client, columns: tuple[str, ...]
) -> None:
    c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.string()})
    c.write([((k, str(k % 3)), 0, 1) for k in range(20)], seal=1).result()
    for time, gone in ((1, range(4)), (2, range(4, 7)), (3, range(7, 19))):  # At last, more has gone than is left.
        c.write([*(((k, str(k % 3)), time, -1) for k in gone), ((1, "z"), time, 2)], seal=time + 1).result()
    add_keyframe(c, 1)
    add_keyframe(c, 2, pieces=3)
    for as_of in range(4):
        for snapshot in snapshots(c, as_of, columns=columns, form="diff"):
            found = pa.concat_tables([snapshot.scan.empty([*columns, "_diff"]), *snapshot.iterate_unsummed()])
            contents = c.snapshot(as_of, columns=columns, form="diff").to_arrow()
            assert consolidate(found, columns).equals(consolidate(contents, columns))


def test_what_was_sealed_between_the_look_and_the_refusal_is_read(
    client: persist.Client, blob: MemoryBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = client.create_or_load("c", key={"k": int}, value=None)
    follower = late.handle.engine.follower

    def looked_too_early(look: Callable[[], object], timeout_s: float | None) -> None:
        assert look() is None
        with persist.open(blob) as other:
            other.load("c").write([((1, None), 0, 1)], seal=1).result()
        follower.refresh()

    monkeypatch.setattr(follower, "wait_for", looked_too_early)
    assert late.snapshot().count() == 1


def test_a_digest_is_of_values_and_tells_what_was_erased(client: persist.Client) -> None:
    wide, narrow = (
        client.create_or_load(name, key={"k": int}, value={"n": t}) for name, t in (("w", int), ("n", pa.int8()))
    )
    for collection in (wide, narrow):
        collection.write([((k, k), 0, 1) for k in range(5)], seal=1).result()
    narrow.evolve(widen={"n": pa.int64()})
    narrow.write([((3, 3), 1, -1), ((3, 300), 1, 1)], seal=2).result()
    wide.write([((3, 3), 1, -1), ((3, 300), 1, 1)], seal=2).result()
    for at in (0, 1):
        assert narrow.snapshot(at).digest() == wide.snapshot(at).digest()
    assert narrow.snapshot(0).digest() != narrow.snapshot(1).digest()
    assert "erased" not in wide.snapshot(1).digest()
    wide.erase([1], reason="request 17")
    assert wide.snapshot(1).digest().endswith("-erased-1")
