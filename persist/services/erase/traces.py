"""Searches the store for traces of erased records, and returns a receipt if there are none.

An object may contain erased values for one of two reasons:

- It is *from before* the erasure. Records of the log, checkpoints and the objects that they name contain the least and
  greatest values of parts. So every such object that is older than the erasure and mentions the collections counts as a
  trace without being read.
- It has *rows*. So every part in the store or in the log is read and searched, even if no state names it.

Texts that must not remain anywhere, such as an address, are searched for in every object: as plain text, in base64, and
in the columns of parts.

The garbage collector decides when an object is deleted (`persist.engine.upkeep.garbage`). This module predicts the
earliest time, from the same dates. The deletion may be sooner if a lease ends early, and later if no collector runs.

Traces outside the store are beyond this search, which `BEYOND` states.
"""

import base64
import hashlib
import io
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from persist.blob.protocol import Blob, BlobEntry
from persist.codecs.order.ordering import sort_indices
from persist.codecs.part.shredding import read_entry
from persist.codecs.types.schema import CollectionSchema
from persist.core.errors import InvalidUsage
from persist.core.keyed.machine import DELETED
from persist.core.log.keys import (
    LISTS,
    PARTS,
    STATES,
    get_second_part,
    is_table_key,
    parse_checkpoint_seqno,
    parse_directory_seqno,
    parse_pages_seqno,
    parse_record_seqno,
    parse_state_collection,
    parse_state_seqno,
    parse_upload_seqno,
)
from persist.core.rendering import Shown, align_columns, format_count, format_moment, strip_control_characters
from persist.core.state_rules.contents import CollectionState, Erasure
from persist.core.state_rules.erasures import count_erasures
from persist.core.state_rules.location import Dropped, is_still_readable
from persist.core.state_rules.state import State
from persist.engine.compact import ErasedRecords, drop_deletions, load_events_schema
from persist.engine.follow.checkpoint import iterate_checkpoints, list_directory_blobs
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.upkeep import Ages, list_checkpoint_marks
from persist.services.erase.derived import WHY, list_family, list_unfollowed
from persist.services.erase.erasure import select_records

BEYOND = (
    "backups and copies of the location, and versions that the store keeps by itself",
    "cache and spill folders of clients, and the memory of those that are running",
    "exports, and what consumers and other programs have received",
    "collections that programs have derived by themselves, but for views: erase from these, too",
)
STORED = (pa.field("_time", pa.int64()), pa.field("_diff", pa.int64()))
_BLOCK = re.compile(rb"(?:[\x80-\xff]*[\x00-\x7f]){2}(.*)", re.DOTALL)
_PARSERS = (parse_record_seqno, parse_checkpoint_seqno, parse_directory_seqno, parse_pages_seqno, parse_state_seqno)
OLD = "it is from before the erasure; gc deletes it when no client can need it for the log"


@dataclass(frozen=True)
class Trace:
    """An object that has erased values, or may have them.

    Attributes:
        key: of the object.
        why: what was found, and the reason why the object still exists.
        until: when the collector may delete it; None if it never does.
        rows: the number of matching rows; None if the object was not searched.
    """

    key: str
    why: str
    until: datetime | None = None
    rows: int | None = None


@dataclass(frozen=True)
class Traces(Shown):
    """The result of a search for erased records: the objects that still contain some, or may.

    `objects` and `bytes` are how many objects were examined, and their sizes together.
    """

    collection: str
    objects: int
    bytes: int
    found: tuple[Trace, ...]
    facts: dict[str, Any]

    @property
    def is_gone(self) -> bool:
        """Whether nothing was found."""
        return not self.found

    def receipt(self) -> dict[str, Any]:
        """Return a receipt, to be stored as JSON, that nothing was found. `receipt_digest` verifies it."""
        if self.found:
            until = max((trace.until for trace in self.found if trace.until is not None), default=None)
            raise InvalidUsage(
                f"{format_count(len(self.found), 'object')} may hold what was erased from {self.collection!r}, such as "
                f"{self.found[0].key} ({self.found[0].why}). Collect garbage with gc "
                f"{'then' if until is None else f'after {until}'}, and search again"
            )
        receipt_facts = {
            **self.facts,
            "searched": {"objects": self.objects, "bytes": self.bytes},
            "not_searched": [*BEYOND],
        }
        return {**receipt_facts, "digest": receipt_digest(receipt_facts)}

    def __str__(self) -> str:
        if self.is_gone:
            looked = f"{format_count(self.objects, 'object')} of {self.bytes:,} bytes"
            return f"nothing of what was erased from {self.collection!r} is left in {looked}"
        alike: dict[tuple[str, str], list[Trace]] = {}
        for trace in self.found:
            until = "-" if trace.until is None else format_moment(trace.until)
            alike.setdefault((until, trace.why), []).append(trace)
        rows = [
            (f"{len(some):,}", until, strip_control_characters(some[0].key), why)
            for (until, why), some in alike.items()
        ]
        table = align_columns([("objects", "until", "such as", "why"), *rows], right={0})
        some = f"{len(self.found):,} of {format_count(self.objects, 'object')}"
        return "\n".join([f"{some}, of {self.bytes:,} bytes in all, may hold what was erased:", *table])


def receipt_digest(receipt: dict[str, Any]) -> str:
    """Return the SHA-256 of a receipt without its digest, as sorted, compact JSON."""
    signed = {name: value for name, value in receipt.items() if name != "digest"}
    text = json.dumps(signed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def find_traces(handle: CollectionHandle, keys: Any = None, where: Any = None, *, texts: Sequence[str] = ()) -> Traces:
    """Search the store for erased values; see `Collection.traces`."""
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) and text for text in texts):
        raise InvalidUsage(f'texts={texts!r:.100} is not a list of texts: give texts=["ada@example.com"]')
    records = None if keys is None and where is None else select_records(handle, keys, where)
    return _Search(handle, records, tuple(texts)).search_all()


class _Search:
    """A search through all objects of a store."""

    def __init__(self, handle: CollectionHandle, records: ErasedRecords | None, texts: tuple[str, ...]) -> None:
        self._handle = handle
        self._engine = handle.engine
        self._blob: Blob = handle.engine.blob
        self._texts = texts
        self._state: State = self._engine.follower.refresh()
        self._family = {relative.id: relative.get_known_state() for relative in list_family(handle)}
        self._records = {
            id_: None if records is None else records.of(contents.schema) for id_, contents in self._family.items()
        }
        if records is not None:
            for contents in self._family.values():
                records.check(contents.schema, repr(contents.name))
        self._erased_at = self._find_last_erasure()
        self._dropped = {key: dropped for dropped in self._state.control.dropped for key in dropped.blobs}
        self._gone = {dropped.collection: dropped for dropped in self._state.control.dropped if dropped.is_destroyed}
        self._named = {key for contents in self._family.values() for key in contents.named_blobs}
        self._ages = Ages(self._state, self._engine.follower.policies, 0.0, ())
        # Those that the newest checkpoint names hold nothing that is gone, however old they are.
        newest = next(iterate_checkpoints(self._blob), None)
        named = set() if newest is None else list_directory_blobs(self._blob, newest.checkpoint)
        self._pages = {key for key in named if parse_pages_seqno(key) is not None}

    def search_all(self) -> Traces:
        """Search all objects of the store; return the traces."""
        entries = [*self._blob.list("")]
        now_s = self._engine.clock.wall_ms() / 1000
        self._ages = replace(self._ages, now_s=now_s, checkpoints=list_checkpoint_marks(entries))
        found_traces = [trace for trace in map(self._search_blob, entries) if trace is not None]
        if not self._texts:  # They are searched for texts, like everything, and for nothing else.
            found_traces += [
                Trace(f"{PARTS}{copied.id}/", f"{copied.name!r}: {WHY}") for copied in list_unfollowed(self._handle)
            ]
        name, size = self._handle.get_known_state().name, sum(entry.bytes for entry in entries)
        return Traces(name, len(entries), size, tuple(found_traces), self._make_facts())

    def _make_facts(self) -> dict[str, Any]:
        """Return the data of a report about the location, the collection and its erasures."""
        state = self._handle.get_known_state()
        return {
            "location": self._blob.url,
            "location_id": self._state.location,
            "seqno": self._state.seqno,
            "at": _to_datetime(self._engine.clock.wall_ms() / 1000).isoformat(),
            "collection": state.name,
            "collection_id": state.id,
            "erasures": [
                {**msgspec.to_builtins(erasure), "at": _to_datetime(erasure.at_ms / 1000).isoformat()}
                for erasure in state.erasures
            ],
        }

    def _find_last_erasure(self) -> int:
        """Return the seqno of the family's last erasure; 0 without one."""
        if not any(contents.erasures for contents in self._family.values()):
            return 0
        control = self._state.control
        seqnos = [seqno for seqno, collection in control.erasures if collection in self._family]
        # If unknown, it was before the last erasure that the log no longer covers.
        return max(seqnos, default=control.erasures[0][0] if control.erasures else control.log_floor)

    def _search_blob(self, entry: BlobEntry) -> Trace | None:
        """Search a blob for erased values; return a trace or None."""
        key = entry.key
        if key.startswith(PARTS):
            return self._search_part(entry)
        if key.startswith("lost/"):
            return Trace(key, "a repair of the log put it aside, and no command deletes it: read it, then delete it")
        seqno, collection = _parse_key(key)
        is_since = self._knows_all_erasures(key, collection) or key in self._pages
        is_of_another = collection is not None and self._is_of_another(collection)
        if seqno is not None and seqno < self._erased_at and not is_since and not is_of_another:
            old_at_s = self._ages.estimate_old_at_s(self._erased_at, self._ages.erase_after_s)
            return Trace(key, OLD, _to_datetime(old_at_s))
        if seqno is None and not self._texts:
            return None
        data = self._blob.get(key)
        rows = 0 if data is None else self._count_rows(data)
        return Trace(key, "it has such rows, written after the erasure or never erased", None, rows) if rows else None

    def _knows_all_erasures(self, key: str, collection: str | None) -> bool:
        """Return whether an object is a state object that was made after the last erasure of its collection."""
        contents = self._family.get(collection or "")
        if contents is None or not key.startswith(STATES):
            return False
        state = msgspec.json.decode(self._blob.get(key) or b"{}", type=_StateObject)
        return bool(state.collection.erasures) and state.collection.erasures[-1].number == count_erasures(contents)

    def _search_part(self, entry: BlobEntry) -> Trace | None:
        """Search a part for erased rows; return a trace or None."""
        key, collection = entry.key, get_second_part(entry.key)
        is_named = key in self._named
        if is_table_key(key, collection):
            contents = self._family.get(collection)
            if contents is not None and self._erased_at and not contents.published:
                return Trace(key, "it belongs to a published table that was given up: erase again")
            return self._find_texts(entry)
        if not key.endswith(".parquet"):
            is_needed = is_named or self._is_of_another(collection)
            return self._find_texts(entry) if is_needed else self._explain_wait(entry, None)
        is_ours = collection in self._family
        is_dropped = collection not in self._state.entries
        if not (is_ours or is_dropped or self._texts):
            return None
        data = self._blob.get(key)
        if data is None:
            return None
        rows = self._count_batch_rows(data, collection)
        if is_named:
            return (
                Trace(key, "it has such rows, written after the erasure or never erased", None, rows) if rows else None
            )
        if is_ours or is_dropped:
            return self._explain_wait(entry, rows) if rows or (is_dropped and self._erased_at) else None
        return Trace(key, "it has such texts", None, rows) if rows else None

    def _is_of_another(self, collection: str) -> bool:
        """Return whether a collection exists that shares no records with the searched one."""
        return collection not in self._family and collection in self._state.entries

    def _find_texts(self, entry: BlobEntry) -> Trace | None:
        """Search a file that is not a part for texts; return a trace or None."""
        data = self._blob.get(entry.key) if self._texts else None
        rows = 0 if data is None else self._count_rows(_unpack_avro(data))
        return Trace(entry.key, "it has such texts", None, rows) if rows else None

    def _explain_wait(self, entry: BlobEntry, rows: int | None) -> Trace:
        """Return a trace with the reason why an unreferenced blob still exists."""
        control = self._state.control
        dropped: Dropped | None = self._dropped.get(entry.key) or self._gone.get(get_second_part(entry.key))
        if dropped is None:
            until_s = entry.modified_s + self._ages.policies.get_orphan_grace_s(parse_upload_seqno(entry.key) or 0)
            return Trace(entry.key, "nothing names it; gc deletes it then", _to_datetime(until_s), rows)
        until_s = self._ages.estimate_old_at_s(dropped.seqno, self._ages.policy.grace_s)
        why = "the erasure, or a compaction, replaced it; gc deletes it then"
        if is_still_readable(control, dropped):
            leases = [control.leases[id_] for id_ in dropped.leases if id_ in control.leases]
            holders = sorted({lease.holder for lease in leases if lease.reads_from < dropped.seqno})
            until_s = max([until_s, *(lease.expires_ms / 1000 for lease in leases)])
            why = f"{', '.join(holders)} may still read it: close these clients, or let them read anew; then gc"
        return Trace(entry.key, why, _to_datetime(until_s), rows)

    def _count_rows(self, data: bytes) -> int:
        """Return the number of erased rows or texts in an object."""
        count = sum(text.encode() in data or _escape_value(text) in data for text in self._texts)
        for inline in _find_inline_parts(data):
            count += self._count_batch_rows(inline.data, inline.collection, inline)
        return count

    def _count_batch_rows(self, data: bytes, collection: str | None, inline: "_Inline | None" = None) -> int:
        """Return the number of a part's rows that were erased or have a text."""
        contents = self._family.get(collection or "")
        records = self._records.get(collection or "")
        rows = 0
        for table in _read_tables(data, contents, inline):
            if records is not None and contents is not None:
                rows += _count_matching(table, records, contents)
            if self._texts:
                rows += sum(_count_mentions(table, text) for text in self._texts)
        if self._texts and not data.startswith(b"PAR1"):
            rows += sum(text.encode() in data for text in self._texts)
        return rows


def _to_datetime(seconds: float) -> datetime:
    """Return a moment in UTC, rounded up to the next second."""
    return datetime.fromtimestamp(int(seconds) + 1, UTC)


def _parse_key(key: str) -> tuple[int | None, str | None]:
    """Return the seqno and the collection in an object's key; None for what the key lacks."""
    if key.startswith(LISTS):
        return parse_upload_seqno(key), get_second_part(key)
    seqnos = (parse(key) for parse in _PARSERS)
    return next((seqno for seqno in seqnos if seqno is not None), None), parse_state_collection(key)


def _unpack_avro(data: bytes) -> bytes:
    """Return the inflated blocks of an Avro file; other bytes unchanged.

    Such a file ends with the sixteen bytes that separate its blocks. A block begins with two numbers of variable
    length: all bytes of a number but its last have the highest bit.
    """
    head, *blocks = data.split(data[-16:]) if data.startswith(b"Obj\x01") else [data]
    if b"deflate" not in head:
        return data
    return head + b"".join(zlib.decompress(block[1], -15) for block in map(_BLOCK.fullmatch, blocks) if block)


def _escape_value(text: str) -> bytes:
    """Return a text as JSON contains it, without its quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1].encode()


class _Erasures(msgspec.Struct, frozen=True):
    """The list of erasures in the state of a collection."""

    erasures: tuple[Erasure, ...] = ()


class _StateObject(msgspec.Struct, frozen=True):
    """The part of a state object that lists erasures."""

    collection: _Erasures = _Erasures()


@dataclass(frozen=True, slots=True)
class _Inline:
    """A part inside of an object, with the id of its collection and the version of its schema.

    `is_of_events`: whether it has events; None if only its rows can show that.
    """

    data: bytes
    collection: str | None
    version: int
    is_of_events: bool | None


def _find_inline_parts(data: bytes) -> Iterator[_Inline]:
    """Yield the inline parts in an object of JSON."""
    try:  # Pages of a directory are one line each.
        walked: Any = msgspec.json.Decoder().decode_lines(data) if data.startswith(b'{"') else None
    except msgspec.DecodeError:
        return
    walked = walked[0] if walked and "persist" in walked[0] else walked
    is_list = isinstance(walked, dict) and walked["persist"] == "parts"
    waiting: list[tuple[str | None, bool | None, Any]] = [(None, None if is_list else False, walked)]
    while waiting:
        collection, is_of_events, value = waiting.pop()
        if isinstance(value, list):
            waiting += [(collection, is_of_events, inner) for inner in value]
        elif isinstance(value, dict):
            named = value.get("collection", value.get("id"))
            collection = named if isinstance(named, str) else collection
            if isinstance(value.get("inline"), str) and value["inline"]:
                yield _Inline(base64.b64decode(value["inline"]), collection, value.get("schema", 1), is_of_events)
            waiting += [(collection, *inner) for name in value for inner in _split_member(value, name, is_of_events)]


def _split_member(value: dict[str, Any], name: str, is_of_events: bool | None) -> list[tuple[bool | None, Any]]:
    """Return the pieces of a member of a JSON object, each with whether the parts in it have events."""
    inner = value[name]
    if name == "pending" or (name == "parts" and value.get("kind") == "pend"):
        return [(True, inner)]
    if name == "parts" and value.get("kind") == "erase" and value.get("events"):
        return [(False, inner[: -value["events"]]), (True, inner[-value["events"] :])]
    return [(is_of_events, inner)]


def _read_tables(data: bytes, contents: CollectionState | None, inline: _Inline | None) -> Iterator[pa.Table]:
    """Yield a part's rows in pieces, under the newest names of the columns if they are known."""
    if data.startswith(b"PAR1"):
        file = pq.ParquetFile(io.BytesIO(data))
        names = _get_present_names(file.schema_arrow, contents)
        for group in range(file.num_row_groups):
            yield file.read_row_group(group).rename_columns(names)
        values = read_entry(file.metadata.metadata or {}, file.num_row_groups)
        for start, size in () if values is None else values.files:
            yield pq.read_table(io.BytesIO(data[start : start + size]))
        return
    for schema, newest in () if contents is None or inline is None else _list_schemas(contents, inline):
        stored = pa.schema([*(schema.arrow.field(name) for name in schema.names), *STORED])
        try:
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(data)), stored)
            batch.validate(full=True)
        except (pa.ArrowException, OSError):
            continue
        now = dict(zip(newest.ids, newest.names, strict=True))
        renamed = [now.get(id_, f"{name} of old") for id_, name in zip(schema.ids, schema.names, strict=True)]
        yield pa.Table.from_batches([batch]).rename_columns([*renamed, "_time", "_diff"])


def _get_present_names(schema: pa.Schema, contents: CollectionState | None) -> list[str]:
    """Return the columns' names under the newest schema."""
    names_by_id: dict[int, str] = {}
    if contents is not None:
        newest = (
            load_events_schema(contents) if contents.keyed is not None and DELETED in schema.names else contents.schema
        )
        names_by_id = dict(zip(newest.ids, newest.names, strict=True))
    names = []
    for field in schema:
        written = (field.metadata or {}).get(b"PARQUET:field_id")
        names.append(names_by_id.get(int(written) - 1, field.name) if written is not None else field.name)
    return names


def _list_schemas(contents: CollectionState, inline: _Inline) -> Iterator[tuple[CollectionSchema, CollectionSchema]]:
    """Yield (written schema, newest version) of an inline part.

    If the part may have updates or events, both kinds of schema are yielded, since columns of events have other ids.
    """
    newest = [contents.schema] if not inline.is_of_events else []
    if contents.keyed is not None and inline.is_of_events is not False:
        newest.append(load_events_schema(contents))
    for schema in newest:
        yield from ((written, schema) for written in schema.known or (schema,) if written.version == inline.version)


def _count_matching(table: pa.Table, records: ErasedRecords, contents: CollectionState) -> int:
    """Return the number of rows that are erased records."""
    columns = records.columns(contents.schema)
    if not {*columns} <= {*table.column_names}:
        return 0
    fields = pa.schema([contents.schema.arrow.field(name) for name in columns])
    try:
        rows = (table if records.where is None else drop_deletions(table, contents)).select(columns).cast(fields)
    except pa.ArrowException:
        return 0
    if records.keys is not None:
        rows = rows.take(sort_indices(rows, columns))
    return len(records.split(rows)[0])


def _count_mentions(table: pa.Table, text: str) -> int:
    """Return the number of cells that contain a text, nested ones included."""
    cells = 0
    waiting = [chunk for column in table.columns for chunk in column.chunks]
    while waiting:
        array = waiting.pop()
        if pa.types.is_dictionary(array.type):
            waiting.append(array.dictionary)
        elif pa.types.is_struct(array.type):
            waiting += array.flatten()
        elif pa.types.is_nested(array.type):
            waiting.append(array.values if not pa.types.is_map(array.type) else array.items)
            waiting += [array.keys] if pa.types.is_map(array.type) else []
        elif pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
            cells += pc.sum(pc.match_substring(array, text)).as_py() or 0
        elif pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
            cells += pc.sum(pc.match_substring(array, text.encode())).as_py() or 0
        elif pa.types.is_fixed_size_binary(array.type):
            waiting.append(array.cast(pa.binary()))
    return cells
