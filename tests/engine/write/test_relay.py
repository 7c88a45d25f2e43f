"""What is sent to who commits for another client, what comes back, and what is believed of either."""

from typing import Any

import msgspec
import pyarrow as pa
import pytest
import xxhash

from persist.blob.errors import Conflict, Indeterminate, InvalidUsage, PersistError
from persist.codecs.part.part import Part
from persist.codecs.types.schema import CollectionSchema
from persist.core.log import kinds
from persist.core.log.framing import FORMAT
from persist.core.log.records import Submitted
from persist.core.state_rules.collection_rules import ExpectUpper
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.keyed_rules import PlannedPend
from persist.engine.write import relay, relay_messages
from persist.engine.write.commit_future import Committed
from persist.engine.write.operations import Asked, AtCommit, Operation, Step, Submission, Write
from persist.engine.write.relay import fail_in_doubt, is_in_doubt, is_plain, list_submissions, may_be_relayed
from persist.engine.write.relay_messages import (
    REQUEST_BYTES_MAX,
    decode_answers,
    decode_request,
    decode_steps,
    encode_answers,
    encode_request,
)
from persist.errors import SchemaMismatch
from tests.core.state_rules.test_refusals import SCHEMA, part
from tests.engine.write.test_operations import FIELDS, A, B, operation, uploading, write

WHO, OTHER, LOCATION = "1" * 32, "2" * 32, "f" * 32


def asked(number: int, *steps: Step, who: str = WHO, is_own: bool = True) -> Operation:
    return msgspec.structs.replace(operation(*steps), submission=Submission(who, number, 5, is_own))


def known(id_: str) -> CollectionState:
    return CollectionState(id_, "c", FIELDS)


def test_only_so_many_operations_are_sent_which_nobody_has_sent_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "OPERATIONS_MAX", 2)
    one, clone = operation(write(), kinds.Seal(A, (9,))), operation(kinds.Clone(A, "d", B, 0, FIELDS))
    assert [may_be_relayed([one] * count) for count in range(4)] == [False, True, True, False]
    assert not may_be_relayed([one, asked(1, write())])
    assert not may_be_relayed([one, clone])


def test_what_a_client_must_read_itself_is_not_plain() -> None:
    plain: list[Step] = [write(), kinds.Tokens(A, ()), kinds.Seal(A, (1,)), kinds.Note(A), AtCommit(A), Asked(A, 1)]
    assert is_plain(operation(*plain, ExpectUpper(A, (1,)), kinds.Batch(A, "q", 1, "r")))
    events = Write(A, SCHEMA, 0, 1, pa.table({}), events=PlannedPend(A, 0, 0, None))
    for other in (events, kinds.Create(A, "c", FIELDS), kinds.SetHold(A, "h", 1)):
        assert not is_plain(operation(*plain, other))


def test_a_record_says_whose_operations_it_holds_and_which_of_its_own_client_never_come() -> None:
    theirs = [asked(n, write(), who=OTHER, is_own=False) for n in (3, 4, 6)]
    mine = [asked(n, write()) for n in (7, 8, 9)]
    assert list_submissions([], []) == ()
    assert list_submissions([operation(write())], [operation(write())]) == ()
    assert list_submissions(theirs, theirs) == (Submitted(OTHER, 3, 4), Submitted(OTHER, 6, 6))
    assert list_submissions(theirs, theirs[:1]) == (Submitted(OTHER, 3, 3),)
    assert list_submissions(mine, mine) == (Submitted(WHO, 7, 9),)
    assert list_submissions(mine, mine[:1]) == (Submitted(WHO, 7, 7), Submitted(WHO, 10, 9))
    assert list_submissions(mine, []) == (Submitted(WHO, 10, 9),)
    assert list_submissions([*theirs, *mine], [theirs[1], mine[2]]) == (Submitted(OTHER, 4, 4), Submitted(WHO, 9, 9))


def test_what_may_have_been_committed_elsewhere_is_in_doubt_until_it_is_found_out() -> None:
    own, theirs, nobodys = asked(1, write()), asked(1, write(), is_own=False), operation(write())
    told = asked(2, write())
    told.future.succeed(3)
    assert [is_in_doubt(each) for each in (own, theirs, nobodys)] == [True, False, False]
    cause = OSError("the line was cut")
    fail_in_doubt([own, theirs, nobodys, told], cause)
    assert [each.future.done() for each in (own, theirs, nobodys)] == [True, False, False]
    error = own.future.exception()
    assert isinstance(error, Indeterminate)
    assert error.__cause__ is cause
    assert "the line was cut. It may or may not be there" in str(error)
    assert told.future.result() == 3


def sent(*operations: Operation) -> list[list[Step]]:
    """Return the steps of operations as they arrive."""
    request = decode_request(encode_request(LOCATION, operations))
    assert (request.location, request.submitter, request.after) == (LOCATION, WHO, 5)
    assert [each.number for each in request.operations] == [
        each.submission.number for each in operations if each.submission
    ]
    return [decode_steps(each, known) for each in request.operations]


def test_steps_arrive_as_they_were_sent_and_writes_with_their_rows_or_parts() -> None:
    uploaded, _ = uploading(A, part(1, 4), part(2, 6), time_min=4)
    others: list[Step] = [kinds.Seal(A, (9,)), ExpectUpper(A, (1,)), kinds.Tokens(A, ()), AtCommit(A, "ms", 7)]
    [[small, stored, at_commit, *rest], [second]] = sent(
        asked(1, write(time=7), Asked(A, 3), uploaded, write(time=0, at_commit=True), *others),
        asked(3, kinds.Note(A, "x")),
    )
    assert rest == others
    assert second == kinds.Note(A, "x")
    assert isinstance(small, Write)
    assert isinstance(small.data, pa.Table)
    assert small.data.to_pylist() == [{"k": 1, "_time": 7, "_diff": 1}]
    assert (small.time_min, small.is_kept, small.at_commit, small.bytes > 0, small.events) == (
        7,
        True,
        False,
        True,
        None,
    )
    assert isinstance(stored, Write)
    assert stored.upload_error() is None
    assert (stored.data.result(), stored.time_min, stored.bytes) == ((part(1, 4), part(2, 6)), 4, 0)  # type: ignore[union-attr]
    assert isinstance(at_commit, Write)
    assert (at_commit.time_min, at_commit.at_commit) == (0, True)


def test_rows_are_of_the_schema_that_the_collection_has_or_is_given() -> None:
    other = CollectionSchema.of({"k": pa.string()}, None)
    request = decode_request(encode_request(LOCATION, [asked(1, kinds.Create(A, "c", FIELDS), write())]))
    [asking] = request.operations
    assert len(decode_steps(asking, lambda id_: None)) == 2
    assert len(decode_steps(asking, known)) == 2
    with pytest.raises(ValueError, match="another schema than the collection"):
        decode_steps(asking, lambda id_: CollectionState(id_, "c", other.to_json()))
    [alone] = decode_request(encode_request(LOCATION, [asked(1, write())])).operations
    with pytest.raises(ValueError, match="there is no collection aaaa"):
        decode_steps(alone, lambda id_: None)
    events = Write(A, SCHEMA, 7, 1, pa.table({"k": [1], "_time": [7], "_diff": [1]}), events=PlannedPend(A, 7, 7, None))
    [of_events] = decode_request(encode_request(LOCATION, [asked(1, events)])).operations
    with pytest.raises(SchemaMismatch, match="a collection that is not keyed"):
        decode_steps(of_events, known)


def test_times_that_are_not_those_of_the_rows_are_refused() -> None:
    def steps(**wrong: Any) -> list[Step]:
        [asking] = decode_request(encode_request(LOCATION, [asked(1, write(time=7))])).operations
        changed = msgspec.structs.replace(asking.steps[0], **wrong)
        return decode_steps(msgspec.structs.replace(asking, steps=(changed,)), known)

    assert len(steps()) == 1
    for wrong in (6, 8):
        with pytest.raises(ValueError, match="its rows have other times than it states"):
            steps(time_min=wrong)
    with pytest.raises(ValueError, match="it gets the time of its commit, but its rows have times"):
        steps(at_commit=True)
    late: dict[str, tuple[Part, ...]] = {"parts": (part(1, 0), part(2, 3))}
    with pytest.raises(ValueError, match="it gets the time of its commit, but its rows have times"):
        steps(at_commit=True, time_min=0, **late)
    assert len(steps(at_commit=True, time_min=0, parts=(part(1, 0),))) == 1


def packed(body: bytes) -> bytes:
    return xxhash.xxh3_128_digest(body) + body


def test_what_is_no_request_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    good = encode_request(LOCATION, [asked(1, write()), asked(2, write())])
    body = good[16:]
    assert good == packed(body)
    for bad, reason in [
        (b"", "damaged on the way|not understood"),
        (good[:-1], "damaged on the way"),
        (b"\0" * 16 + body, "damaged on the way"),
        (packed(b"{}"), "it is not understood"),
        (packed(b"\xff"), "it is not understood"),
        (packed(b"[" * 100_000), "it is not understood"),
        (
            packed(body.replace(f'"format":{FORMAT}'.encode(), f'"format":{FORMAT + 1}'.encode())),
            "use the same release",
        ),
        (packed(body.replace(b'"number":2', b'"number":1')), "not in the order of their numbers"),
        (packed(body.replace(b'"number":1', b'"number":3')), "not in the order of their numbers"),
        (packed(body.partition(b'"operations":')[0] + b'"operations":[]}'), "it has no operations"),
        (packed(body.replace(b'"after":5', b'"after":-1')), "it is not understood"),
        (packed(body.replace(WHO.encode(), b"x")), "it is not understood"),
    ]:
        with pytest.raises(ValueError, match=reason):
            decode_request(bad)
    decode_request(good)
    monkeypatch.setattr(relay_messages, "REQUEST_BYTES_MAX", len(good))
    decode_request(good)
    monkeypatch.setattr(relay_messages, "REQUEST_BYTES_MAX", len(good) - 1)
    with pytest.raises(ValueError, match="are read"):
        decode_request(good)
    assert REQUEST_BYTES_MAX == 64 << 20


def test_answers_come_back_in_their_order() -> None:
    answers = [Committed(7, {A: 3}), None, Conflict("first"), InvalidUsage("wrong"), Committed(0)]
    back = decode_answers(encode_answers(answers), 5)
    assert (back[0], back[1], back[4]) == (Committed(7, {A: 3}), None, Committed(0, {}))
    assert [(type(each), str(each)) for each in back[2:4]] == [(Conflict, "first"), (InvalidUsage, "wrong")]
    for count in (4, 6):
        with pytest.raises(ValueError, match=f"it has 5 answers to {count} operations"):
            decode_answers(encode_answers(answers), count)


def test_an_error_of_a_kind_that_is_not_known_comes_back_as_the_next_more_general_one() -> None:
    class Odd(PersistError):
        """Of no kind that others know."""

    class OddUsage(InvalidUsage):
        """As above."""

    back = decode_answers(encode_answers([Odd("odd"), OddUsage("usage"), Conflict(object())]), 3)
    assert [type(each) for each in back] == [PersistError, InvalidUsage, Conflict]
    assert [str(each) for each in back[:2]] == ["odd", "usage"]
