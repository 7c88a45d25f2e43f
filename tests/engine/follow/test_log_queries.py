"""What the records of the log tell: who did what."""

from typing import Any

import msgspec
import pytest

from persist.blob.protocol import MemoryBlob
from persist.core.log import kinds
from persist.core.log.fields import TokenMark
from persist.core.log.keys import make_record_key
from persist.core.log.kinds import Mutation
from persist.core.log.records import encode_record, read_record
from persist.engine.follow.log_queries import log_table
from persist.errors import InvalidUsage
from tests.core.state_rules.test_refusals import part
from tests.engine.follow.test_directory import SCHEMA, Writer

ID, OTHER = "0" * 32, "1" * 32


class Log(Writer):
    """A log of two collections, in which several writers commit."""

    def __init__(self) -> None:
        super().__init__(MemoryBlob())
        self.commit(kinds.Create(ID, "c", SCHEMA), kinds.Create(OTHER, "other", SCHEMA))
        self.parts = 0

    def by(self, writer: str, *mutations: Mutation, **more: Any) -> int:
        """Commit as a writer, at a moment of its own; return the seqno."""
        seqno = self.follower.state.seqno + 1
        super().commit(*mutations)
        record = read_record(self.blob, seqno)
        assert record is not None
        fields = {"writer": writer, "written_ms": 1000 * seqno} | more
        self.blob.set(make_record_key(seqno), encode_record(msgspec.structs.replace(record, **fields)))
        return seqno

    def append(
        self, writer: str, *times: tuple[int, int], rows: int = 1, tokens: tuple[str, ...] = (), **more: Any
    ) -> int:
        """Append a part for each (first, last) of times."""
        parts = []
        for first, last in times:
            self.parts += 1
            parts.append(msgspec.structs.replace(part(self.parts, 0), time_min=first, time_max=last, rows=rows))
        marks = tuple(TokenMark(token, 0) for token in tokens)
        return self.by(writer, kinds.Append(ID, tuple(parts)), *([kinds.Tokens(ID, marks)] if marks else []), **more)


def test_the_table_of_records_has_those_that_are_asked_for_and_says_who_did_what() -> None:
    log = Log()
    both = log.by(
        "one",
        *(
            mutation
            for id_ in (ID, OTHER)
            for mutation in (kinds.Note(id_, "why", {"b": "2", "a": "1"}), kinds.Seal(id_, (4,)))
        ),
    )
    log.append("two", (5, 5), (6, 6), rows=3)
    log.by("three", kinds.Note(OTHER, "", {"x": "y"}), kinds.Note(OTHER, "first"), kinds.Note(OTHER, "second"))

    def table(last: int | None, collection: str | None = None) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = log_table(log.blob, log.follower.state, last, collection, map).to_pylist()
        return rows

    rows = table(None)
    assert [row["seqno"] for row in rows] == [0, 1, 2, 3]
    assert [[row["seqno"] for row in table(last)] for last in (1, 3, 4, 9)] == [
        [3],
        [1, 2, 3],
        [0, 1, 2, 3],
        [0, 1, 2, 3],
    ]
    assert [row["seqno"] for row in table(None, ID)] == [0, 1, 2]
    assert [row["seqno"] for row in table(2, ID)] == [2]
    shown = {
        name: rows[both][name] for name in ("writer", "operations", "collections", "updates", "message", "metadata")
    }
    assert shown == {
        "writer": "one",
        "operations": ["seal", "seal"],
        "collections": ["c", "other"],
        "updates": 0,
        "message": "why",
        "metadata": [("b", "2"), ("a", "1")],
    }
    assert rows[both]["moment"].timestamp() == both
    assert (rows[2]["updates"], rows[2]["bytes"]) == (6, 2 * part(1, 0).bytes)
    assert (rows[3]["message"], rows[3]["metadata"]) == ("first\nsecond", [("x", "y")])
    [only] = [row for row in table(None, OTHER) if row["seqno"] == both]
    assert (only["operations"], only["collections"]) == (["seal"], ["other"])
    log.by("one", kinds.TruncateLog(2))
    assert [row["seqno"] for row in table(None)] == [2, 3, 4]
    assert [row["seqno"] for row in table(4)] == [2, 3, 4]
    log.blob.delete(make_record_key(3))  # As if the log was truncated meanwhile.
    assert [row["seqno"] for row in table(None)] == [2, 4]
    for bad in (0, -1, True, "3", 1.5):
        with pytest.raises(InvalidUsage, match="is not a number of records"):
            table(bad)  # type: ignore[arg-type]
