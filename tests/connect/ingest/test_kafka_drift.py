"""Members of messages that no column takes, and columns that messages lack: found in each message."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persist.connect.ingest.kafka.config import Route
from persist.connect.ingest.kafka.drift import find_drift
from tests.support.tiers import examples

INNER = pa.struct([("x", pa.int64()), ("more", pa.list_(pa.struct([("y", pa.int64())])))])
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("at", INNER)])


def drift(texts: list[str | None], **options: Any) -> tuple[set[str], set[str]]:
    values = pa.chunked_array(
        [pa.array([None if text is None else text.encode() for text in texts], pa.large_binary())]
    )
    return find_drift(Route(topic="t", collection="c", **options), values, SCHEMA)


def row(**more: Any) -> dict[str, Any]:
    return {"id": 1, "v": "a", "at": {"x": 1, "more": [{"y": 2}]}, **more}


def test_one_message_among_many_is_noticed() -> None:
    usual = json.dumps(row())
    inner = json.dumps(row(at={"x": 1, "more": [{"y": 1}, {"y": 1, "z.z": 3}], "q": 1}))
    texts = [usual] * 5000 + [json.dumps(row(late=1)), inner, json.dumps({"id": 1, "at": None}), "no JSON", None]
    assert drift([usual] * 3) == (set(), set())
    assert drift([*texts, *[usual] * 5000]) == ({"late", "at.q", 'at.more.element."z.z"'}, {"v"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, lambda value: {"schema": {}, "payload": value}),
        ({"format": "debezium"}, lambda value: {"before": row(not_this=1), "after": value, "op": "u"}),
        ({"format": "debezium"}, lambda value: {"schema": {}, "payload": {"after": value}}),
        ({"format": "maxwell", "table": "d.t"}, lambda value: {"database": "d", "table": "t", "data": value}),
        ({"format": "canal", "table": "d.t"}, lambda value: {"database": "d", "table": "t", "data": [row(), value]}),
    ],
)
def test_rows_are_found_in_every_envelope(options: dict[str, Any], message: Any) -> None:
    assert drift([json.dumps(message(row(new=1)))], **options) == ({"new"}, set())
    if "table" in options:
        assert drift([json.dumps(message(row(new=1)) | {"table": "other"})], **options) == (set(), set())


VALUES = st.fixed_dictionaries({}, optional={name: st.integers() | st.none() for name in ("id", "v", "w", "x")})


@settings(max_examples=examples(50))
@given(st.lists(VALUES, min_size=1, max_size=5))
def test_names_are_those_of_the_documents(rows: list[dict[str, int | None]]) -> None:
    rows = [value for value in rows if value]
    more = {name for value in rows for name in value} - {*SCHEMA.names}
    less = {name for name in SCHEMA.names if any(name not in value for value in rows)}
    assert drift([json.dumps(value) for value in rows]) == (more, less)
