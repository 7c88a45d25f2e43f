"""What the rows of a DataFrame mean as events, without a Spark session."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.updates import Stamp
from persist.connect.spark.uploads import EventRows
from persist.core.keyed.machine import Machine, Touched
from persist.errors import InvalidUpdate


class Latest:
    """A machine of a user's own, whose events must say when they were."""

    name, version, has_one_value = "latest", 1, True
    options: Mapping[str, Any] = MappingProxyType({})

    def event_fields(self, schema: CollectionSchema) -> tuple[pa.Field, ...]:
        return (pa.field("at", pa.int64(), nullable=False),)

    def step(self, touched: Touched) -> pa.Table:
        return touched.schema.arrow.empty_table()


def test_a_machine_of_a_users_own_gets_no_event_without_what_it_needs(client: persist.Client) -> None:
    machine: Machine = Latest()
    users = client.create_or_load("users", key={"k": int}, value={"v": int}, keyed=persist.Keyed(machine=machine))
    form = users.handle.keyed
    assert form is not None
    rows = EventRows(users.schema, form, Stamp(1), machine)
    assert len(rows(pa.table({"k": [1], "at": [2]})).table) == 1
    with pytest.raises(InvalidUpdate, match="event 1 has NULL in 'at'"):
        rows(pa.table({"k": [1, 2], "at": [2, None]}))
