"""Committing through another client: which operations may be sent, requests and answers as bytes, and doubt.

The committer of a client that has a `Relay` offers it each group first. The other client validates and commits the
operations together with those of others. It answers each operation with its seqno, or with the error that rejected it.
An operation without an answer may or may not be in the log, now or later. The log tells
(`persist.engine.follow.log_queries`). What the log does not hold is committed here, in a record which says that the
operation will not come in another way.

    message = checksum (16 bytes, xxh3_128 of the rest, most significant byte first), JSON
    request = {"format", "location", "submitter", "after", "operations": [{"number", "names", "steps": [step, …]}, …]}
    step    = a mutation of the log (docs/inside/format.md) | write | condition
    write   = {"kind": "write", "collection", "schema", "rows" | "parts", "time_min", "events"?, "at_commit"?}
            | {"kind": "at_commit", "collection", "timeline"?, "time"?} (for all of a collection that has no time)
    answers = {"format", "answers": [{"seqno", "times"?} | {"error"} | {}, …]}
    error   = {"kind": name of the class, "args": [value, …], "more": {attribute: value}} | {"kind", "text"}
    value   = null | bool | int | float | text | [value, …] (a tuple) | {"frontier": [time, …]}
            | {"unsealed": [the fields of an UnsealedWrites]} | {"items": [[key, value], …]} (a dict)

The rows of a small write are one record batch of Arrow (see below), in base64, so that they are encoded
once, with those of others. The asking client stores larger writes itself and sends only their descriptors. An error
that holds other values, or whose kind is not known here, is sent as its text and the next more general kind. Only
classes of this package are made from an error, from values of these types: nothing that is read is executed.

A client believes a request as little as it can: it checks rows as if a user had given them, and steps against the
state like all others. It cannot check whether parts hold what their descriptors say without reading them. Clients that
may commit are trusted with that, as is every client that may write to the store.

Rejected: to let a server answer for what it has merely taken (it may die before it commits); to make one record of each
doubtful operation's own (a group is in doubt together, and is settled together).

Rows on their way are one record batch of Arrow, without its schema and without compression.
What is sent is believed only after its head has been read, which is before Arrow allocates anything: a compressed batch
of kilobytes would become gigabytes, so would a batch whose columns say that they are longer than the bytes that
came with them, or share them. The head is a flatbuffer (Message.fbs of Arrow, version 1.0):

    0xFFFFFFFF, length of the head (int32), head, body
    head         = offset of a Message
    Message      = {0: version, 1: kind of its header (uint8; 3 is a record batch), 2: header, …}
    RecordBatch  = {0: rows (int64), 1: columns, nested ones too, each (length int64, NULLs int64), 2: buffers,
                    3: compression, …}
    a table      = offset back to its (bytes, bytes of the table, offset of field 0, 1, …; 0 where there is none)
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import astuple
from functools import reduce
from importlib import import_module
from itertools import groupby, pairwise
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeAlias, TypeVar

import msgspec
import pyarrow as pa
import xxhash

from persist.blob.errors import Conflict, Indeterminate, InvalidUsage, PersistError
from persist.codecs.part.part import Part
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.small import SmallUpdates, gathered
from persist.codecs.updates.updates import to_updates
from persist.core.antichain import Antichain
from persist.core.errors import SchemaMismatch, Superseded, UnsealedWrites
from persist.core.keyed.events import event_fields, events_schema
from persist.core.log import kinds
from persist.core.log.fields import Watermarks
from persist.core.log.framing import FORMAT, decoder_of
from persist.core.log.kinds import KINDS, Mutation
from persist.core.log.records import Submitted
from persist.core.state_rules.collection_rules import Condition
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.keyed_rules import PlannedPend
from persist.core.state_rules.schemas import version_of
from persist.engine.write.commit_future import Committed
from persist.engine.write.operations import Asked, AtCommit, Operation, Step, Write

RECORD_BATCH = 3
ROW_BYTES_MIN = 16  # Each row has a time and a diff of 8 bytes.
VALUES_PER_BYTE_MAX = 8  # No value has less than a bit.


def sent_rows(table: pa.Table) -> bytes:
    """Return the rows of a table as they are sent."""
    (batch,) = table.combine_chunks().to_batches()
    data: bytes = batch.serialize().to_pybytes()
    return data


def check_sent_rows(data: bytes) -> None:
    """Raise ValueError if rows would take more memory than they have bytes. Cost: their head is read."""
    try:
        rows, lengths, buffers, is_compressed = _read_head(data)
    except (struct.error, ValueError) as error:
        raise ValueError(f"its rows are no record batch of Arrow: {error}") from error
    if is_compressed:
        raise ValueError("its rows are compressed: send a record batch without compression")
    if not 0 <= rows * ROW_BYTES_MIN <= len(data):
        raise ValueError(f"its rows are said to be {rows:,}, which {len(data):,} bytes cannot hold")
    if min(buffers, default=0) < 0 or sum(buffers) > len(data):
        raise ValueError(f"its columns share bytes: they say {sum(buffers):,} of {len(data):,} that came")
    if not all(0 <= length <= VALUES_PER_BYTE_MAX * len(data) for length in lengths):
        raise ValueError(f"a column of its rows is said to have more values than {len(data):,} bytes can hold")


def rows_from(data: bytes, schema: CollectionSchema) -> pa.Table:
    """Return rows that were sent, checked as if a user had given them. Raises ValueError, or InvalidUsage."""
    check_sent_rows(data)
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema.arrow)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise ValueError(f"its rows are no batch of the collection's schema: {error}") from error
    return to_updates(pa.Table.from_batches([batch]), schema)


def _read_head(data: bytes) -> tuple[int, Sequence[int], Sequence[int], bool]:
    """Return how many rows there are, the lengths of columns and of buffers, and whether these are compressed."""
    mark, length = struct.unpack_from("<Ii", data)
    if mark != 0xFFFFFFFF or not 0 < length <= len(data) - 8:
        raise ValueError("it has no head")
    head = data[8 : 8 + length]
    message = _at(head, 0)
    kind = _field(head, message, 1)
    if kind is None or head[kind] != RECORD_BATCH:
        raise ValueError("it is another message")
    batch = _at(head, _needed(_field(head, message, 2)))
    (rows,) = struct.unpack_from("<q", head, field) if (field := _field(head, batch, 0)) is not None else (0,)
    lengths = _pairs(head, _needed(_field(head, batch, 1)))[::2]
    buffers = _pairs(head, _needed(_field(head, batch, 2)))[1::2]
    return rows, lengths, buffers, _field(head, batch, 3) is not None


def _pairs(head: bytes, place: int) -> Sequence[int]:
    """Return the numbers of a vector of pairs of int64, one after the other."""
    vector = _at(head, place)
    (count,) = struct.unpack_from("<I", head, vector)
    if count * 16 > len(head):
        raise ValueError("its head is cut off")
    return struct.unpack_from(f"<{2 * count}q", head, vector + 4)


def _at(head: bytes, place: int) -> int:
    """Return where the offset that stands at a place leads."""
    (offset,) = struct.unpack_from("<I", head, place)
    return int(place + offset)


def _field(head: bytes, table: int, number: int) -> int | None:
    """Return where a field of a table is; None if the table lacks it."""
    (back,) = struct.unpack_from("<i", head, table)
    fields = table - back
    if not 0 <= fields <= len(head):
        raise ValueError("its head is damaged")
    (size,) = struct.unpack_from("<H", head, fields)
    entry = 4 + 2 * number
    (offset,) = struct.unpack_from("<H", head, fields + entry) if entry + 2 <= size else (0,)
    place = table + offset if offset else None
    if place is not None and place >= len(head):
        raise ValueError("its head is damaged")
    return place


def _needed(place: int | None) -> int:
    if place is None:
        raise ValueError("its head lacks something")
    return place


Answer = Committed | PersistError | None

OPERATIONS_MAX = 1000  # That one request holds.
_PLAIN = kinds.Tokens | kinds.Seal | kinds.Note | kinds.Batch | Condition | Asked | AtCommit


class Relay(Protocol):
    """A way to another client that commits for this one; for one thread at a time."""

    def commit(self, location: str, operations: Sequence[Operation]) -> Sequence[Answer] | None:
        """Have operations committed, in this order, each with its submission.

        Returns:
            None if nobody has been asked. Or for each: the seqno of its commit; the error with which it was rejected,
            so that it never will be committed; None if that is not known.
        """
        ...


def may_be_relayed(operations: Sequence[Operation]) -> bool:
    """Whether another client may be asked to commit these.

    Not if a client has asked this one: in the log it looks for its own id, and each operation has one.
    """
    steps = (step for operation in operations for step in operation.steps)
    return (
        0 < len(operations) <= OPERATIONS_MAX
        and all(operation.submission is None for operation in operations)
        and all(step.is_sent for step in steps if isinstance(step, Mutation))
    )


def is_plain(operation: Operation) -> bool:
    """Whether a client goes on as well without having read the record that holds this."""
    return all(isinstance(step, _PLAIN) or (isinstance(step, Write) and not step.events) for step in operation.steps)


def submitted(operations: Iterable[Operation], accepted: Iterable[Operation]) -> tuple[Submitted, ...]:
    """Return what the record of the accepted operations says of submissions.

    It also says that those of the client's own operations that were not accepted will never come.
    """
    held: dict[str, list[int]] = {}
    for operation in accepted:
        if operation.submission is not None:
            held.setdefault(operation.submission.submitter, []).append(operation.submission.number)
    marks = [Submitted(who, first, last) for who, numbers in held.items() for first, last in _ranges(numbers)]
    submissions = [operation.submission for operation in operations]
    own = [submission for submission in submissions if submission is not None and submission.is_own]
    last = max(own, key=lambda submission: submission.number, default=None)
    if last is not None and last.number not in held.get(last.submitter, ()):
        marks.append(Submitted(last.submitter, last.number + 1, last.number))
    return tuple(marks)


def _ranges(numbers: Iterable[int]) -> Iterable[tuple[int, int]]:
    for _, run in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        consecutive = [number for _, number in run]
        yield consecutive[0], consecutive[-1]


def is_in_doubt(operation: Operation) -> bool:
    """Whether another client was asked to commit this for the present one, and may do so yet."""
    return operation.submission is not None and operation.submission.is_own


def doubt(operations: Iterable[Operation], error: BaseException) -> None:
    """Fail those that another client may have committed, or may commit yet, because that was not found out."""
    for operation in operations:
        if is_in_doubt(operation) and not operation.future.done():
            unknown_outcome = Indeterminate(
                f"another process was asked to commit this and gave no answer, and what became of it could not be "
                f"found out: {error}. It may or may not be there. Read back before writing it again."
            )
            unknown_outcome.__cause__ = error
            operation.future.fail(unknown_outcome)


REQUEST_BYTES_MAX = 64 << 20
CHECKSUM_BYTES = 16


class _Write(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="write"
):
    """A `Write`; events are (time_max, watermarks) if it adds some to a keyed collection."""

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
    """Ask for operations, in their order; see `persist.engine.write.operations.Submission`."""

    format: int
    location: Id
    submitter: Id
    after: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    operations: tuple[Asking, ...]


class _Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    seqno: int | None = None
    times: dict[str, int] = {}
    error: dict[str, Any] | None = None


class _Answers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    answers: tuple[_Answer, ...]


T = TypeVar("T", Request, _Answers)


def request_bytes(location: str, operations: Sequence[Operation]) -> bytes:
    """Return the request for operations that have submissions of one client."""
    ids = [operation.submission for operation in operations if operation.submission is not None]
    assert len(ids) == len(operations) > 0, "what is asked for has an id"
    asked = tuple(
        Asking(
            id_.number,
            operation.names,
            tuple(
                _sent_write(step) if isinstance(step, Write) else step
                for step in operation.steps
                if not isinstance(step, Asked)
            ),
        )
        for id_, operation in zip(ids, operations, strict=True)
    )
    return _message(Request(FORMAT, location, ids[0].submitter, ids[0].after, asked))


def request_from(data: bytes) -> Request:
    """Return a request. Raises ValueError if it is none, of another format, or has rows larger than they look."""
    request = _read(data, Request)
    for write in (step for asking in request.operations for step in asking.steps if isinstance(step, _Write)):
        if not write.parts:
            check_sent_rows(write.rows)
    numbers = [asking.number for asking in request.operations]
    if not numbers or any(late <= early for early, late in pairwise(numbers)):
        raise ValueError("its operations are none, or not in the order of their numbers")
    return request


def answers_bytes(answers: Sequence[Answer]) -> bytes:
    """Return answers in the order of the operations."""
    return _message(_Answers(FORMAT, tuple(map(_answer, answers))))


def answers_from(data: bytes, count: int) -> list[Answer]:
    """Return the answers to so many operations. Raises ValueError if these are none."""
    answers = _read(data, _Answers).answers
    if len(answers) != count:
        raise ValueError(f"it has {len(answers)} answers, and {count} were asked for")
    return [_answer_from(answer) for answer in answers]


def _answer_from(answer: _Answer) -> Answer:
    if answer.error is not None:
        return error_from_json(answer.error)
    return None if answer.seqno is None else Committed(answer.seqno, answer.times)


def steps_from(asking: Asking, contents_of: Callable[[str], CollectionState | None]) -> list[Step]:
    """Return the steps of an operation, checked as far as they can be by themselves.

    Args:
        contents_of: returns a collection as it is known here, None if it is not.

    Raises:
        ValueError: a step is none that a client would send.
        InvalidUsage: rows do not fit.
    """
    made = {step.collection: step for step in asking.steps if isinstance(step, kinds.Create)}
    return [
        _write(step, made.get(step.collection), contents_of(step.collection)) if isinstance(step, _Write) else step
        for step in asking.steps
    ]


def _answer(answer: Answer) -> _Answer:
    if isinstance(answer, PersistError):
        return _Answer(error=error_to_json(answer))
    return _Answer() if answer is None else _Answer(answer.seqno, dict(answer.times))


def _message(value: Request | _Answers) -> bytes:
    body = msgspec.json.encode(value)
    return xxhash.xxh3_128_digest(body) + body


def _read(data: bytes, kind: type[T]) -> T:
    if len(data) > REQUEST_BYTES_MAX:
        raise ValueError(f"a request has {len(data)} bytes, and at most {REQUEST_BYTES_MAX} are read")
    body = data[CHECKSUM_BYTES:]
    if xxhash.xxh3_128_digest(body) != data[:CHECKSUM_BYTES]:
        raise ValueError("its checksum is another one: it was damaged on the way")
    try:
        message = decoder_of(kind).decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"it is not understood: {error}") from error
    if message.format != FORMAT:
        raise ValueError(f"it is of format {message.format}, and this is {FORMAT}: use the same release on both sides")
    return message


def _sent_write(write: Write) -> _Write:
    events = None if write.events is None else (write.events.time_max, write.events.watermarks)
    schema = write.schema.to_json()
    if isinstance(write.data, Future):
        parts = write.data.result()
        return _Write(write.collection, schema, write.time_min, b"", parts, events, write.at_commit)
    table = gathered([write.data], write.schema) if isinstance(write.data, SmallUpdates) else write.data
    return _Write(write.collection, schema, write.time_min, sent_rows(table), (), events, write.at_commit)


def _write(step: _Write, create: kinds.Create | None, contents: CollectionState | None) -> Write:
    schema = _schema(step, create, contents)
    planned = None
    if step.events is not None:
        planned = PlannedPend(step.collection, step.time_min, *step.events, schema.version)
    data: pa.Table | Future[tuple[Part, ...]]
    if step.parts:
        data = Future()
        data.set_result(step.parts)
    else:
        data = rows_from(step.rows, schema)
        times = data["_time"].to_numpy()
        if len(times) == 0 or int(times.min()) != step.time_min or (planned and int(times.max()) != planned.time_max):
            raise ValueError("its times are not those that it says")
    latest = max(part.time_max for part in step.parts) if step.parts else int(times.max())
    if step.at_commit and latest:
        raise ValueError("it gets the time of its commit, and has others already")
    # Whoever asks keeps what it has stored until it knows what became of it.
    size = len(step.rows)
    return Write(step.collection, schema, step.time_min, size, data, True, planned, at_commit=step.at_commit)


def _schema(step: _Write, create: kinds.Create | None, contents: CollectionState | None) -> CollectionSchema:
    """Return the schema that the rows of a write have, which must be the one that they are sent with.

    Raises:
        ValueError: it is another one, or the collection is not known here.
    """
    given = CollectionSchema.from_json(step.schema)
    form, base = None, given
    if contents is not None:
        form, base = contents.keyed, version_of(contents, given.version)
    elif create is not None:
        form, base = create.keyed, CollectionSchema.from_json(create.schema)
    else:
        raise ValueError(f"there is no collection {step.collection}")
    if step.events is not None:
        if form is None:
            raise SchemaMismatch("events were sent for a collection that is not keyed: load the collection again")
        fields = event_fields(base, form) if base.version == 1 else base.value.fields
        base = events_schema(base, fields)
    if base.to_json() != step.schema:
        raise ValueError("its rows have another schema than the collection")
    return base


_all = import_module("persist.core.errors")
_KINDS: dict[str, type[PersistError]] = {name: getattr(_all, name) for name in _all.__all__} | {
    "Superseded": Superseded
}
_GENERAL = (InvalidUsage, Conflict)
_SCALARS = (type(None), bool, int, float, str)


def error_to_json(error: PersistError) -> dict[str, Any]:
    """Return what `error_from_json` makes an equal error of."""
    kind = type(error)
    if _KINDS.get(kind.__name__) is kind:
        try:
            more = {name: _value_to_json(value) for name, value in vars(error).items() if not name.startswith("__")}
            written = {"kind": kind.__name__, "args": [*map(_value_to_json, error.args)], "more": more}
            error_from_json(written)
            return written
        except (TypeError, ValueError):
            pass
    general = next((base.__name__ for base in _GENERAL if isinstance(error, base)), "PersistError")
    return {"kind": general, "text": str(error)}


def error_from_json(written: dict[str, Any]) -> PersistError:
    """Return an error. Raises ValueError if what is written is none."""
    match written:
        case {"kind": str(kind), "text": str(text), **rest} if kind in _KINDS and not rest:
            return _KINDS[kind](text)
        case {"kind": str(kind), "args": list(args), "more": dict(more), **rest} if kind in _KINDS and not rest:
            try:
                error = _KINDS[kind](*map(_value_from, args))
                vars(error).update({name: _value_from(value) for name, value in more.items()})
            except (TypeError, AttributeError) as cause:
                raise ValueError(f"an error of kind {kind} is not made of what it says: {cause}") from cause
            return error
    raise ValueError(f"{written!r:.200} is not an error that is known here")


def _value_to_json(value: Any) -> Any:
    if isinstance(value, Antichain):
        return {"frontier": [*value.elements]}
    if isinstance(value, UnsealedWrites):
        return {"unsealed": [_value_to_json(item) for item in astuple(value)]}
    if isinstance(value, tuple | list):
        return [_value_to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {"items": [[_value_to_json(key), _value_to_json(held)] for key, held in value.items()]}
    if type(value) not in _SCALARS:
        raise TypeError(f"{type(value)} has no written form")
    return value


def _value_from(value: Any) -> Any:
    match value:
        case {"frontier": list(times), **rest} if not rest and len(times) <= 1:
            return Antichain(*times)
        case {"unsealed": list(given), **rest} if not rest:
            return UnsealedWrites(*map(_value_from, given))
        case {"items": list(items), **rest} if not rest:
            return {_value_from(key): _value_from(held) for key, held in items}
        case list():
            return tuple(map(_value_from, value))
        case dict():
            raise ValueError(f"{value!r:.200} is no value of an error")
    return value
