"""Events of a key that are equal in time and order: the last to arrive counts, or the greatest value."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import persist
from persist.blob.protocol import MemoryBlob
from persist.events import AppendDistinct, InsertIfAbsent, PerKey
from tests.support.reads import rows_with
from tests.support.resolving import resolve_events
from tests.support.tiers import examples

NAN = float("nan")
POLICIES: list[Any] = ["seal", "background"]
KEY, VALUE = {"k": pa.int64()}, {"at": pa.int64(), "a": pa.float64(), "b": pa.list_(pa.int64()), "gone": pa.bool_()}
SETTINGS = persist.Settings(background=False)


class Row(NamedTuple):
    """An event; one that is gone deletes its key."""

    k: int
    time: int
    at: int | None
    a: float | None
    b: tuple[int, ...] | None
    gone: bool


ROWS = st.builds(
    Row,
    st.integers(0, 1),
    st.integers(0, 2),
    st.sampled_from([None, 0, 1]),
    st.sampled_from([None, -1.0, -0.0, 0.0, 2.5, NAN]),
    st.sampled_from([None, (), (1,), (1, 0), (2,)]),
    st.sampled_from([False, False, True]),
)


def greater(row: Row) -> tuple[Any, ...]:
    """Return what orders events of one time: the watermark, NULL first; deletions first; then values, NULL last."""
    a = (2, 0.0) if row.a is None else (1, 0.0) if row.a != row.a else (0, row.a)
    values = (row.at is None, row.at or 0, a, row.b is None, row.b or ())
    return (row.at is not None, row.at or 0, not row.gone, *values)


def expected(rows: list[Row], *, ordered: bool) -> dict[tuple[int, int], Any]:
    """Return, by key and time, the row that stands after that time."""
    found: dict[tuple[int, int], Any] = {}
    for k in (0, 1):
        stands: Row | None = None
        for time in range(3):
            of_time = [row for row in rows if (row.k, row.time) == (k, time)]
            if of_time:
                best = max(of_time, key=lambda row: greater(row) if ordered else greater(row)[2:])
                if not ordered or stands is None or greater(best)[:2] >= greater(stands)[:2]:
                    stands = best
            found[k, time] = stands
    return found


def shown(row: Any) -> str:
    """Return what is equal for values that are equal as the library has it."""
    return repr((row["at"], None if row["a"] is None else row["a"] + 0.0, row["b"]))


def table(rows: list[Row], *, ordered: bool) -> pa.Table:
    columns: dict[str, Any] = {
        "k": pa.array([row.k for row in rows], pa.int64()),
        "at": pa.array([row.at for row in rows], pa.int64()),
        "a": pa.array([row.a for row in rows], pa.float64()),
        "b": pa.array([None if row.b is None else [*row.b] for row in rows], pa.list_(pa.int64())),
        "gone": pa.array([row.gone for row in rows], pa.bool_()),
        "_time": pa.array([row.time for row in rows], pa.int64()),
    }
    return pa.table(columns if ordered else {**columns, "_deleted": columns["gone"]})


@pytest.mark.thorough
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.data_too_large])
@given(data=st.data(), rows=st.lists(ROWS, min_size=1, max_size=14), ordered=st.booleans())
def test_the_greatest_value_counts_in_whatever_order_and_commits_events_arrive(
    data: Any, rows: list[Row], ordered: bool
) -> None:
    arrivals = [data.draw(st.permutations(rows)), data.draw(st.permutations(rows))]
    wanted = expected(rows, ordered=ordered)
    for arrived, resolve in itertools.product(arrivals, POLICIES):
        cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(rows) - 1)), max_size=4)))
        store = MemoryBlob("ties")
        with persist.open(store, settings=SETTINGS) as one, persist.open(store, settings=SETTINGS) as other:
            form = persist.Keyed(
                order_by=["at"] if ordered else [],
                tombstone="gone" if ordered else None,
                ties="greatest",
                resolve=resolve,
            )
            both = [client.create_or_load("rows", key=KEY, value=VALUE, keyed=form) for client in (one, other)]
            for number, (start, end) in enumerate(itertools.pairwise([0, *cuts, len(rows)])):
                both[number % 2].upsert(table(arrived[start:end], ordered=ordered)).result()
            for end in (1, 3):
                both[0].seal(end).result()
            for (k, time), stands in wanted.items():
                found = rows_with(both[1].snapshot(time), [k]).to_pylist()
                is_there = stands is not None and not stands.gone
                assert [shown(row) for row in found] == (
                    [shown({**stands._asdict(), "b": None if stands.b is None else [*stands.b]})] if is_there else []
                ), (k, time)


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open(MemoryBlob(), settings=SETTINGS) as client:
        yield client


def held_in_order(key: Any, held: list[Any], event: Any) -> list[Any]:
    """Keep one row, which tells the order in which events came."""
    (before,) = held or [""]
    return [before + ("-" if event.value is None else event.value)]


@pytest.mark.parametrize("resolve", POLICIES)
@pytest.mark.parametrize("ties", ["last", "greatest"])
@pytest.mark.parametrize(
    ("machine", "by_arrival", "by_value"),
    [
        (None, "a", "c"),
        (InsertIfAbsent(), "a", "a"),
        (AppendDistinct(), "abc", "abc"),
        (PerKey(held_in_order, name="in order", version=1), "c-ba", "-abc"),
    ],
    ids=["upsert", "insert if absent", "append distinct", "per key"],
)
def test_machines_are_given_ties_in_the_order_that_the_collection_declares(
    client: persist.Client, machine: Any, by_arrival: str, by_value: str, ties: Any, resolve: Any
) -> None:
    if isinstance(machine, PerKey):
        resolve = "seal"  # A user's function may refuse events, so whoever seals resolves them.
    form = persist.Keyed(machine=machine, ties=ties, resolve=resolve)
    things = client.create_or_load("things", key=KEY, value={"v": str}, keyed=form)
    events = [(1, "c", 0), (1, None, 0), (1, "b", 0), (1, "a", 0)]
    for event in events:
        things.transition([event])
    things.seal(1).result()
    found = "".join(sorted(row[1] for row in things.snapshot().rows()))
    if ties == "greatest":
        assert found == by_value
    elif isinstance(machine, InsertIfAbsent):
        assert found == "b", "after the deletion the first that came"
    elif isinstance(machine, AppendDistinct):
        assert found == "ab", "the deletion takes what came before"
    else:
        assert found == by_arrival


def test_a_collection_made_before_there_were_ties_is_last_and_cannot_be_declared_otherwise(
    client: persist.Client,
) -> None:
    things = client.create_or_load("things", key=KEY, value={"v": str}, keyed=persist.Keyed())
    form = things.handle.contents().keyed
    assert form is not None
    assert form.ties == "last"
    with pytest.raises(persist.errors.SchemaMismatch, match="ties is stored as 'last', given as 'greatest'"):
        client.create_or_load("things", key=KEY, value={"v": str}, keyed=persist.Keyed(ties="greatest"))
    with pytest.raises(persist.InvalidUsage, match="ties='least' is not allowed: give 'last' or 'greatest'"):
        persist.Keyed(ties="least")  # type: ignore[arg-type]


def test_no_column_is_dropped_while_values_decide_what_is_sealed_already(client: persist.Client) -> None:
    form, value = persist.Keyed(ties="greatest", resolve="background"), {"a": int, "b": int}
    things = client.create_or_load("things", key=KEY, value=value, keyed=form)
    things.upsert([(1, (2, 1)), (1, (1, 2))], time=0, seal=1).result()
    things.evolve(reorder=["b", "a"])
    assert things.snapshot().to_arrow().to_pylist() == [{"k": 1, "b": 1, "a": 2}], (
        "the older column still decides first"
    )
    with pytest.raises(persist.InvalidUsage, match="no column can be dropped"):
        things.evolve(drop=["a"])
    resolve_events(things)
    things.evolve(drop=["a"])
    assert things.snapshot().to_arrow().to_pylist() == [{"k": 1, "b": 1}]
