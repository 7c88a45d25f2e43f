"""Requests to commit operations, and answers, as bytes; see `persist.engine.write.relay`.

    message = checksum (16 bytes, xxh3_128 of the rest, most significant byte first), JSON request = {"format",
    "location", "submitter", "after", "operations": [{"number", "names", "steps": [step, …]}, …]}
    step    = a mutation of the log (docs/inside/format.md) | write | condition
    write   = {"kind": "write", "collection", "schema", "rows" | "parts", "time_min", "events"?, "at_commit"?}
            | {"kind": "at_commit", "collection", "timeline"?, "time"?} (for all writes of a collection without a time)
    answers = {"format", "answers": [{"seqno", "times"?} | {"error"} | {}, …]}
    error   = see `persist.blob.written_errors`

The rows of a small write (`persist.engine.write.sent_rows`) are in base64. The receiver encodes them once, together
with other writes. The asking client stores larger writes itself and sends only their descriptors.

The receiver checks rows like a user's, and steps against the state like all others. It cannot compare the contents of
parts with their descriptors without reading them, so it trusts clients that may commit, as any client that may write to
the store.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import msgspec
import pyarrow as pa
import xxhash

from persist.blob.errors import PersistError
from persist.codecs.part.part import Part
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.small import SmallUpdates, gather_updates
from persist.core.errors import SchemaMismatch
from persist.core.keyed.events import list_event_fields, make_event_schema
from persist.core.log import kinds
from persist.core.log.fields import Watermarks
from persist.core.log.framing import FORMAT, get_decoder
from persist.core.log.kinds import KINDS, Mutation
from persist.core.state_rules.collection_rules import Condition
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.keyed_rules import PlannedPend
from persist.core.state_rules.schemas import load_schema_version
from persist.core.written_errors import ERRORS
from persist.engine.write.commit_future import Committed
from persist.engine.write.operations import Asked, AtCommit, Operation, Step, Write
from persist.engine.write.relay import Answer
from persist.engine.write.sent_rows import check_sent_rows, decode_rows, encode_rows

REQUEST_BYTES_MAX = 64 << 20
CHECKSUM_BYTES = 16


class _Write(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="write"
):
    """The message form of a `Write`. `events`: (time_max, watermarks) if it adds events."""

    collection: str
    schema: dict[str, Any]
    time_min: int
    rows: bytes = b""
    parts: tuple[Part, ...] = ()
    events: tuple[int, Watermarks | None] | None = None
    at_commit: bool = False


if TYPE_CHECKING:
    Sent: TypeAlias = _Write | Condition | Mutation | AtCommit
else:
    Sent = reduce(
        or_, (_Write, AtCommit, *Condition.__subclasses__(), *(kind for kind in KINDS.values() if kind.is_sent))
    )
Id = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


class Asking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One operation of a request."""

    number: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 2)]
    names: dict[str, str]
    steps: tuple[Sent, ...]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to commit operations, in their order; see `persist.engine.write.operations.Submission`."""

    format: int
    location: Id
    submitter: Id
    after: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    operations: tuple[Asking, ...]


class _Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The message form of an answer: a seqno with assigned times, an error, or neither."""

    seqno: int | None = None
    times: dict[str, int] = {}
    error: dict[str, Any] | None = None


class _Answers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The message with the answers to a request, in the order of its operations."""

    format: int
    answers: tuple[_Answer, ...]


T = TypeVar("T", Request, _Answers)


def encode_request(location: str, operations: Sequence[Operation]) -> bytes:
    """Encode the request for operations with submissions of one client."""
    ids = [operation.submission for operation in operations if operation.submission is not None]
    assert len(ids) == len(operations) > 0, "what is asked for has an id"
    requests = tuple(
        Asking(
            id_.number,
            operation.names,
            tuple(
                _encode_write(step) if isinstance(step, Write) else step
                for step in operation.steps
                if not isinstance(step, Asked)
            ),
        )
        for id_, operation in zip(ids, operations, strict=True)
    )
    return _encode_message(Request(FORMAT, location, ids[0].submitter, ids[0].after, requests))


def decode_request(data: bytes) -> Request:
    """Decode a request; raise ValueError if it is invalid, has another format, or rows larger than their bytes."""
    request = _decode_message(data, Request)
    for write in (step for asking in request.operations for step in asking.steps if isinstance(step, _Write)):
        if not write.parts:
            check_sent_rows(write.rows)
    numbers = [asking.number for asking in request.operations]
    if not numbers or any(late <= early for early, late in pairwise(numbers)):
        raise ValueError("it has no operations, or they are not in the order of their numbers")
    return request


def encode_answers(answers: Sequence[Answer]) -> bytes:
    """Encode answers in the order of the operations."""
    return _encode_message(_Answers(FORMAT, tuple(map(_encode_answer, answers))))


def decode_answers(data: bytes, count: int) -> list[Answer]:
    """Decode the answers to so many operations; raise ValueError if they are invalid."""
    answers = _decode_message(data, _Answers).answers
    if len(answers) != count:
        raise ValueError(f"it has {len(answers)} answers to {count} operations")
    return [_decode_answer(answer) for answer in answers]


def _decode_answer(answer: _Answer) -> Answer:
    if answer.error is not None:
        return ERRORS.decode_error(answer.error)
    return None if answer.seqno is None else Committed(answer.seqno, answer.times)


def decode_steps(asking: Asking, contents_of: Callable[[str], CollectionState | None]) -> list[Step]:
    """Decode the steps of an operation, with the checks that need no log.

    `contents_of` returns the known state of a collection by id, or None.
    """
    creations = {step.collection: step for step in asking.steps if isinstance(step, kinds.Create)}
    return [
        _decode_write(step, creations.get(step.collection), contents_of(step.collection))
        if isinstance(step, _Write)
        else step
        for step in asking.steps
    ]


def _encode_answer(answer: Answer) -> _Answer:
    if isinstance(answer, PersistError):
        return _Answer(error=ERRORS.encode_error(answer))
    return _Answer() if answer is None else _Answer(answer.seqno, dict(answer.times))


def _encode_message(value: Request | _Answers) -> bytes:
    body = msgspec.json.encode(value)
    return xxhash.xxh3_128_digest(body) + body


def _decode_message(data: bytes, kind: type[T]) -> T:
    """Decode a message; raise ValueError for another format."""
    if len(data) > REQUEST_BYTES_MAX:
        raise ValueError(f"a request has {len(data)} bytes, and at most {REQUEST_BYTES_MAX} are read")
    body = data[CHECKSUM_BYTES:]
    if xxhash.xxh3_128_digest(body) != data[:CHECKSUM_BYTES]:
        raise ValueError("its checksum does not match: it was damaged on the way")
    try:
        message = get_decoder(kind).decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"it is not understood: {error}") from error
    if message.format != FORMAT:
        raise ValueError(f"it is of format {message.format}, and this is {FORMAT}: use the same release on both sides")
    return message


def _encode_write(write: Write) -> _Write:
    """Return the message form of a write, with its rows encoded."""
    events = None if write.events is None else (write.events.time_max, write.events.watermarks)
    schema = write.schema.to_json()
    if isinstance(write.data, Future):
        parts = write.data.result()
        return _Write(write.collection, schema, write.time_min, b"", parts, events, write.at_commit)
    table = gather_updates([write.data], write.schema) if isinstance(write.data, SmallUpdates) else write.data
    return _Write(write.collection, schema, write.time_min, encode_rows(table), (), events, write.at_commit)


def _decode_write(step: _Write, create: kinds.Create | None, contents: CollectionState | None) -> Write:
    """Return a received write, with its rows checked."""
    schema = _load_schema(step, create, contents)
    planned = None
    if step.events is not None:
        planned = PlannedPend(step.collection, step.time_min, *step.events, schema.version)
    data: pa.Table | Future[tuple[Part, ...]]
    if step.parts:
        data = Future()
        data.set_result(step.parts)
    else:
        data = decode_rows(step.rows, schema)
        times = data["_time"].to_numpy()
        if len(times) == 0 or int(times.min()) != step.time_min or (planned and int(times.max()) != planned.time_max):
            raise ValueError("its rows have other times than it states")
    latest = max(part.time_max for part in step.parts) if step.parts else int(times.max())
    if step.at_commit and latest:
        raise ValueError("it gets the time of its commit, but its rows have times")
    # The sender keeps its stored parts until it knows the outcome.
    size = len(step.rows)
    return Write(step.collection, schema, step.time_min, size, data, True, planned, at_commit=step.at_commit)


def _load_schema(step: _Write, create: kinds.Create | None, contents: CollectionState | None) -> CollectionSchema:
    """Return the schema of a write's rows, which must equal the sent one."""
    schema = CollectionSchema.from_json(step.schema)
    form, base = None, schema
    if contents is not None:
        form, base = contents.keyed, load_schema_version(contents, schema.version)
    elif create is not None:
        form, base = create.keyed, CollectionSchema.from_json(create.schema)
    else:
        raise ValueError(f"there is no collection {step.collection}")
    if step.events is not None:
        if form is None:
            raise SchemaMismatch("events were sent for a collection that is not keyed: load the collection again")
        fields = list_event_fields(base, form) if base.version == 1 else base.value.fields
        base = make_event_schema(base, fields)
    if base.to_json() != step.schema:
        raise ValueError("its rows have another schema than the collection")
    return base
