"""Which messages are taken, and what a keyed collection without values takes."""

from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.connect.envelopes import rows
from persist.connect.envelopes.messages import Messages
from persist.core.keyed.form import Keyed
from persist.errors import InvalidUpdate


@pytest.mark.parametrize(
    ("messages", "values"),
    [
        (pa.array(["a", "b"]), [b"a", b"b"]),
        (["a", b"b"], [b"a", b"b"]),
        (pa.table({"body": ["a", "b"]}), [b"a", b"b"]),
        (pa.table({"value": ["a"], "key": ["k"], "offset": [7]}), [b"a"]),
    ],
)
def test_messages_are_a_column_a_list_or_a_table_which_may_name_its_only_column_as_it_likes(
    messages: Any, values: list[bytes]
) -> None:
    assert Messages.of(messages).values.to_pylist() == values


def test_messages_of_several_columns_name_that_of_the_bodies() -> None:
    with pytest.raises(persist.InvalidUsage, match="none of them is 'value'"):
        Messages.of(pa.table({"body": ["a"], "offset": [7]}))


def test_a_keyed_collection_without_values_takes_keys_and_no_values(client: persist.Client) -> None:
    keys = client.create_or_load("keys", key={"k": int}, value=None, keyed=Keyed())
    keys.upsert([(1, (), 0), (2, (), 0), (2, None, 1)], seal=2).result()
    assert keys.snapshot().to_arrow()["k"].to_pylist() == [1]
    with pytest.raises(InvalidUpdate, match=r"event 1 is \(4, 5, 2\): without value columns, a value is \(\) or None"):
        keys.upsert([(3, (), 2), (4, 5, 2)])


def test_rows_without_any_column_are_as_many() -> None:
    whole = pa.array([{"a": 1}, {"a": 2}], pa.struct({"a": pa.int64()}))
    assert rows._pick_members(whole, pa.struct([])).to_pylist() == [{}, {}]
    assert rows._pick_members(whole, pa.struct({"a": pa.int64()})) == whole
