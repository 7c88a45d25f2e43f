"""What a collection held for some keys is what a filter leaves of all that it held, however it is found."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import persist
from persist.compute.dataflow.ports.past import LISTED_MAX, Past, _make_pruning_filter
from persist.compute.dataflow.updates.batch import Keys, Layout, find_distinct_columns, to_batch
from persist.compute.dataflow.updates.times import Ints
from persist.compute.dataflow.updates.words import Domain
from persist.core.errors import WouldRecompute
from tests.compute.index.always import indexes_that_always_pay
from tests.compute.sql.two_ways import requests_by_key

COLUMNS = pa.schema({"k": pa.int64(), "l": pa.string(), "a": pa.int64(), "f": pa.float64()})
VALUES: dict[str, list[Any]] = {
    "k": [*range(8)],
    "l": ["x", "y", "", "longer"],
    "a": [*range(5), None],
    "f": [0.0, -0.0, float("nan"), 1.5, None],
}


def filled(client: persist.Client, chance: random.Random) -> persist.Collection:
    """Return a collection with some parts, rows of several multiplicities, and a keyframe in its middle."""
    rows = client.create_or_load("rows", key={"k": int, "l": str}, value={"a": int, "f": float})
    for time in range(6):
        updates = [
            (
                (
                    (chance.choice(VALUES["k"]), chance.choice(VALUES["l"])),
                    (chance.choice(VALUES["a"]), chance.choice(VALUES["f"])),
                ),
                time,
                chance.choice([1, 1, 2, -1]),
            )
            for _ in range(chance.choice([1, 40]))
        ]
        rows.write(updates, seal=time + 1).result()
        if time == 3:
            rows.compact()
    return rows


def summed(updates: Ints) -> set[tuple[int, ...]]:
    """Return updates as records with their multiplicities."""
    return {tuple(row) for row in np.delete(to_batch(updates, Layout(len(COLUMNS), 0, 1))[1:], -2, axis=0).T.tolist()}


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("seed", range(6))
def test_contents_for_keys_are_what_a_filter_leaves_of_all_contents(client: persist.Client, seed: int) -> None:
    chance = random.Random(seed)
    rows = filled(client, chance)
    if seed % 2:
        rows.index(*chance.choice([("a",), ("a", "k"), ("f",)]))
        rows.write([(((1, "x"), (2, 1.5)), 6, 1)], seal=7).result()
    as_of, domain = chance.choice([3, 5, (rows.upper.time or 0) - 1]), Domain()
    past = Past("p", "rows", rows.handle, COLUMNS, domain, as_of)
    with requests_by_key(), indexes_that_always_pay():
        everything = past.read(None)
        for _ in range(12):
            names = chance.sample(COLUMNS.names, chance.choice([1, 1, 2, 3]))
            requested = [[chance.choice([*VALUES[name]]) for _ in range(chance.choice([1, 2, 9]))] for name in names]
            count = min(map(len, requested))
            words = [
                domain.encode(pa.array(one[:count], COLUMNS.field(name).type))
                for name, one in zip(names, requested, strict=True)
            ]
            places = tuple(COLUMNS.names.index(name) for name in names)
            keys = Keys(places, find_distinct_columns(np.array(words)))
            own = everything.take(places, axis=0).T.tolist()
            wanted = {tuple(key) for key in keys.words.T.tolist()}
            flags = np.array([tuple(key) in wanted for key in own], np.bool_)
            assert summed(past.read(keys)) == summed(everything[:, flags]), names
    assert {reading.columns is None for reading in past.readings} == {False, True}


def test_a_collection_that_is_small_is_read_whole_and_once(client: persist.Client) -> None:
    rows = filled(client, random.Random(1))
    past = Past("p", "rows", rows.handle, COLUMNS, Domain(), 5)
    for key in (1, 2):
        past.read(Keys((0,), np.array([[key]])))
    assert [reading.columns for reading in past.readings] == [None]


def test_requests_read_only_keys_that_no_earlier_request_has_read(client: persist.Client) -> None:
    rows, domain = filled(client, random.Random(1)), Domain()
    past = Past("p", "rows", rows.handle, COLUMNS, domain, 5)
    (text,) = domain.encode(pa.array(["x"])).tolist()
    with requests_by_key():
        everything = past.read(None)
        for columns, words in [((0,), [[1, 2]]), ((0,), [[2]]), ((1, 0), [[text], [1]]), ((0,), [[2, 3, 4]])]:
            keys = Keys(columns, np.array(words))
            assert summed(past.read(keys)) == summed(everything[:, keys.selects(everything)])
    assert [(reading.columns, reading.keys) for reading in past.readings[1:]] == [(("k",), 2), (("k",), 2)]


def test_records_beyond_a_share_of_the_memory_budget_are_not_cached(
    client: persist.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persist.compute.dataflow.ports.past.KEPT_SHARE", 1 << 40)
    past = Past("p", "rows", filled(client, random.Random(1)).handle, COLUMNS, Domain(), 5)
    with requests_by_key():
        first, second = (past.read(Keys((0,), np.array([[1, 2]]))) for _ in range(2))
    assert summed(first) == summed(second) != set()
    assert [reading.keys for reading in past.readings] == [2, 2]


@pytest.mark.parametrize(("requested", "count"), [([1, 2], 4), ([1], 1), ([1, 6], 2)])
def test_a_good_part_of_changed_keys_is_read_with_the_others(
    client: persist.Client, requested: list[int], count: int
) -> None:
    past = Past("p", "rows", filled(client, random.Random(1)).handle, COLUMNS, Domain(), 5)
    with requests_by_key():
        everything = past.read(None)
        past.changes = np.array([[1, 2, 3, 4]] * (len(COLUMNS) + 2))
        for words in (requested, [1], [2, 3, 5]):
            keys = Keys((0,), np.array([words]))
            assert summed(past.read(keys)) == summed(everything[:, keys.selects(everything)])
    assert past.readings[1].keys == count


def test_records_of_two_earlier_requests_are_not_taken_for_all(client: persist.Client) -> None:
    rows, domain = filled(client, random.Random(1)), Domain()
    past = Past("p", "rows", rows.handle, COLUMNS, domain, 5)
    text = domain.encode(pa.array(["x"]))[0]
    with requests_by_key():
        everything = past.read(None)
        for columns, words in [((1, 0), [[text], [1]]), ((0,), [[2]]), ((1, 0), [[text, text], [1, 2]])]:
            keys = Keys(columns, np.array(words))
            assert summed(past.read(keys)) == summed(everything[:, keys.selects(everything)])


def test_who_refuses_to_read_everything_names_the_source(client: persist.Client) -> None:
    rows = filled(client, random.Random(1))
    past = Past("the program", "read rows", rows.handle, COLUMNS, Domain(), 5)
    past.refuses = True
    past.read(None)  # It is small.
    with requests_by_key(), pytest.raises(WouldRecompute, match="all of read rows is needed"):
        past.read(None)


@pytest.mark.parametrize("count", [0, 1, LISTED_MAX, LISTED_MAX + 1])
@pytest.mark.parametrize("has_null", [False, True])
def test_rows_with_some_values_pass_and_few_others(count: int, has_null: bool) -> None:
    if not count and not has_null:
        return
    values = pa.array([*range(0, 2 * count, 2), *([None] if has_null else [])], pa.int64())
    table = pa.table({"x": pa.array([*range(-2, 2 * count + 2), None], pa.int64())})
    found = _make_pruning_filter(pa.table({"x": values}))
    assert found is not None
    listed = [*range(0, 2 * count, 2)] if count <= LISTED_MAX else [*range(2 * count - 1)]
    assert table.filter(found)["x"].to_pylist() == [*listed, *([None] if has_null else [])]


def test_floats_do_not_prune() -> None:
    assert _make_pruning_filter(pa.table({"f": [0.5]})) is None, "Arrow does not compare them as keys are compared"
