"""What a step knows of a source before it, by the descriptors of its parts alone."""

import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest

import persist
from persist.compute.dataflow.step.reading import Past
from persist.engine.location.collection_handle import CollectionHandle
from tests.compute.dataflow.step.test_stages import QUIET

Update = tuple[tuple[int, int | None], int, int]


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open(f"memory://{uuid.uuid4()}", settings=QUIET) as opened:
        yield opened


def filled(client: persist.Client, *updates: Update) -> CollectionHandle:
    """Return a collection, sealed to 10, with updates of which those of one time are a part."""
    t = client.create_or_load("t", key={"k": pa.int64()}, value={"v": pa.int64()})
    for time in range(10):
        t.write([each for each in updates if each[1] == time], seal=time + 1).result()
    return t.handle


@pytest.mark.parametrize(
    ("negative", "as_of", "until", "was", "stays", "grows"),
    [
        (None, 4, 6, True, True, True),
        (3, 4, 6, False, True, True),
        (4, 4, 6, False, True, True),  # What comes at a time is of the past as of it.
        (5, 4, 6, True, False, False),
        (5, 4, 5, True, True, True),  # Nothing is new.
        (6, 4, 6, True, True, True),  # What comes at the end is taken in later.
        (6, 4, 7, True, False, False),
    ],
)
def test_negative_multiplicities_are_told_of_before_and_of_what_is_new(
    client: persist.Client, negative: int | None, as_of: int, until: int, was: bool, stays: bool, grows: bool
) -> None:
    rows = [((1, 1), 0, 1), ((2, 2), 5, 1), ((3, 3), 6, 1)]
    handle = filled(client, *rows, *([((1, 1), negative, -1)] if negative is not None else []))
    past = Past(handle, as_of, until)
    assert (past.was_positive, past.stays_positive, past.only_grows) == (was, stays, grows)
    assert (past.was_positive, past.stays_positive, past.only_grows) == (was, stays, grows), "the second time"


def test_of_a_keyed_collection_multiplicities_are_positive_and_it_only_grows_where_nothing_happens(
    client: persist.Client,
) -> None:
    t = client.create_or_load("t", key={"k": pa.int64()}, value={"v": pa.int64()}, keyed=persist.Keyed())
    for time in range(6):
        t.upsert([(1, time, time)], seal=time + 1).result()
    past, still = Past(t.handle, 2, 5), Past(t.handle, 4, 5)
    assert (past.was_positive, past.stays_positive, past.only_grows) == (True, True, False)
    assert (still.was_positive, still.stays_positive, still.only_grows) == (True, True, True)


@pytest.mark.parametrize(("null_at", "may_be"), [(None, False), (2, True), (4, True), (5, False)])
def test_nulls_of_a_column_are_told_of_the_past_alone(
    client: persist.Client, null_at: int | None, may_be: bool
) -> None:
    nulls: list[Update] = [] if null_at is None else [((9, None), null_at, 1)]
    past = Past(filled(client, ((1, 1), 0, 1), ((2, 2), 5, 1), *nulls), 4, 6)
    assert (past.may_be_null("v"), past.may_be_null("k")) == (may_be, False)


def test_a_column_of_another_version_of_the_schema_may_be_null(client: persist.Client) -> None:
    filled(client, ((1, 1), 0, 1))
    client.load("t").evolve(add={"w": pa.int64()})
    handle = client.load("t").handle
    past = Past(handle, 4, 6)
    assert (past.may_be_null("w"), past.may_be_null("k")) == (True, True)
