"""Offsets of queries, as checkpoints keep them."""

import json

import pytest

from persist.compute.tasks.stream_hold import Offset, Position


@pytest.mark.parametrize(
    "position",
    [
        Position(3, None, 4, "x"),
        Position(3, None, None, "none"),
        Position(None, 0, 7, "x"),
        Position(None, 1, None, "x"),
    ],
)
def test_an_offset_survives_json(position: Position) -> None:
    for offset in (Offset("l", "c", position), Offset("l", "c")):
        assert Offset.of(json.loads(json.dumps(offset.to_json()))) == offset
