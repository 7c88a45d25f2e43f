"""Messages of connectors, through machines, into keyed collections: the parts fit together."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.errors import BeforeDiffers
from persist.events import Checked, History, debezium

SCHEMA = {"id": pa.int64(), "name": pa.string(), "lsn": pa.int64()}
ANNE, MARIE = {"id": 1, "name": "Anne"}, {"id": 1, "name": "Anne Marie"}


def message(op: str, before: Any, after: Any, lsn: int) -> str:
    return json.dumps({"op": op, "before": before, "after": after, "source": {"lsn": lsn}, "ts_ms": lsn})


MESSAGES = [message("c", None, ANNE, 1), message("u", ANNE, MARIE, 2), message("d", MARIE, None, 3)]


def test_a_stream_of_debezium_is_upserted_with_its_position_as_watermark(tmp_path: Path) -> None:
    value = {"name": pa.string(), "lsn": pa.int64(), "gone": pa.bool_()}
    keyed = persist.Keyed(order_by=["lsn"], tombstone="gone")
    with persist.open(tmp_path) as client:
        users = client.create_or_load("users", key={"id": pa.int64()}, value=value, keyed=keyed)
        for time, several in ((1, MESSAGES[:2]), (2, MESSAGES[2:]), (3, MESSAGES[:1])):
            events = debezium(several, key="id", schema={**SCHEMA, "gone": pa.bool_()}, metadata={"lsn": "source.lsn"})
            users.upsert(events, time=time, seal=time + 1).result()
        assert users.snapshot(1, columns=["name"]).to_arrow()["name"].to_pylist() == ["Anne Marie"]
        assert users.snapshot(2).count() == 0
        assert users.snapshot(3).count() == 0, "what comes again, late, brings nothing back"


def test_changes_are_checked_against_the_row_before_them(tmp_path: Path) -> None:
    with persist.open(tmp_path) as client:
        key, value = {"id": pa.int64()}, {"name": pa.string()}
        client.create_or_load("users", key=key, value=value, keyed=persist.Keyed(machine=Checked()))
        users = client.load("users")
        events = debezium(MESSAGES, key="id", schema={**key, **value}, time="ts_ms", before=True)
        users.transition(events, seal=4).result()
        assert [*users.snapshot(2).rows()] == [(1, "Anne Marie")]
        assert users.snapshot(3).count() == 0
        wrong = debezium(MESSAGES[1:2], key="id", schema={**key, **value}, before=True)
        with pytest.raises(BeforeDiffers):
            users.transition(wrong, time=5, seal=6).result()


def test_histories_are_opened_again_by_what_is_stored_of_them(tmp_path: Path) -> None:
    value = {"name": pa.string(), "valid_from": pa.int64(), "valid_to": pa.int64()}
    with persist.open(tmp_path) as client:
        keyed = persist.Keyed(machine=History())
        client.create_or_load("users", key={"id": pa.int64()}, value=value, keyed=keyed)
    with persist.open(tmp_path) as client:
        users = client.load("users")
        users.transition([(1, "a", 1), (1, "b", 4), (1, None, 6)], seal=9).result()
        assert sorted(users.snapshot(8).rows()) == [(1, ("a", 1, 4)), (1, ("b", 4, 6))]
        assert sorted(users.snapshot(5).rows()) == [(1, ("a", 1, 4)), (1, ("b", 4, None))]
        assert not client.fsck().problems
