"""What the records of the log tell: whose updates are not sealed, when upper last moved, and who did what."""

from typing import Any

import msgspec
import pytest

from persist.blob.layers.metered import MeteredBlob
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.blob.protocol import MemoryBlob
from persist.core.antichain import Antichain
from persist.core.errors import UnsealedWrites
from persist.core.log import kinds
from persist.core.log.fields import TokenMark
from persist.core.log.keys import make_record_key
from persist.core.log.kinds import Mutation
from persist.core.log.records import encode_record, read_record
from persist.engine.follow import log_queries
from persist.engine.follow.follower import Follower
from persist.engine.follow.log_queries import find_last_move_ms, log_table, say_whose
from persist.errors import InvalidUsage, UpdatesBeyondUpper
from tests.core.state_rules.test_refusals import part
from tests.engine.follow.test_directory import SCHEMA, Writer
from tests.support.clocks import ImpatientClock

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

    def told(self, own: str = "") -> tuple[UnsealedWrites, ...]:
        follower = Follower(self.blob, ImpatientClock())
        follower.load(ID)
        error = UpdatesBeyondUpper(Antichain(5), 9)
        metered = MeteredBlob(self.blob)
        say_whose(error, metered, follower.state, ID, own)
        self.reads = metered.get_counts()["get"].requests
        return error.writes


def test_the_error_of_who_is_refused_says_whose_the_updates_are_that_are_not_sealed() -> None:
    log = Log()
    log.append("early", (0, 4))
    first = log.append("one", (3, 6), (0, 4), rows=2, tokens=("a",))
    log.by("early", kinds.Seal(ID, (5,)))
    log.by("other", kinds.Append(OTHER))
    second = log.append("two", (7, 7), rows=3)
    third = log.append("one", (5, 9), rows=4, tokens=("b", "c"))
    assert log.told(own="two") == (
        UnsealedWrites("one", False, None, 6, 5, 9, third, 1000 * third, ("b", "c", "a")),
        UnsealedWrites("two", True, None, 3, 7, 7, second, 1000 * second),
    )
    assert first < second < third
    assert log.reads == third - first + 1, "none before the first of theirs"


def test_only_so_many_of_the_last_records_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    log.append("one", (0, 0))
    log.append("two", (0, 0))
    log.by("three", kinds.Append(OTHER))
    for looked_at, writers in ((1, []), (2, ["two"]), (3, ["two", "one"])):
        monkeypatch.setattr(log_queries, "RECORDS_MAX", looked_at)
        assert [each.writer for each in log.told()] == writers


def test_what_the_store_does_not_tell_any_more_is_left_out() -> None:
    log = Log()
    log.append("one", (0, 0))
    log.append("two", (0, 0))
    follower, store = Follower(log.blob, ImpatientClock()), UnreliableBlob(log.blob)
    follower.load(ID)
    for what in ("unavailable", "gone"):
        error = UpdatesBeyondUpper(Antichain(0), 0)
        store.script_faults("get", *([Fault.NONE, Fault.UNAVAILABLE] if what == "unavailable" else []))
        if what == "gone":
            log.blob.delete(make_record_key(1))
        say_whose(error, store, follower.state, ID)
        assert [each.writer for each in error.writes] == ["two"]


def test_nothing_is_said_of_updates_that_are_sealed_or_not_in_the_log() -> None:
    log = Log()
    assert log.told() == ()
    log.append("one", (0, 0))
    asked = UpdatesBeyondUpper(Antichain(0), None)
    say_whose(asked, log.blob, log.follower.state, ID)
    assert asked.writes == ()
    say_whose(asked := UpdatesBeyondUpper(Antichain(0), 0), log.blob, log.follower.state, "9" * 32)
    assert asked.writes == ()
    log.by("one", kinds.Seal(ID, (1,)))
    assert log.told() == ()
    log.append("one", (3, 3))
    log.by("one", kinds.Seal(ID, ()))
    assert log.told() == ()


def test_upper_was_moved_by_the_last_seal_of_that_collection() -> None:
    log = Log()
    log.by("one", kinds.Seal(ID, (1,)))
    moved = log.by("one", kinds.Seal(ID, (2,)))
    other = log.by("one", kinds.Seal(OTHER, (2,)))
    log.append("one", (3, 3))
    records = {seqno: read_record(log.blob, seqno) for seqno in range(log.follower.state.seqno + 1)}
    assert find_last_move_ms(records, ID) == 1000 * moved  # type: ignore[arg-type]
    assert find_last_move_ms(records, OTHER) == 1000 * other  # type: ignore[arg-type]
    assert find_last_move_ms({}, ID) is None


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
