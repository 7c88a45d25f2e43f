"""What the pending events of a keyed collection amount to: read, grouped, held against what their keys hold.

Whoever resolves for good, and whoever reads what is not resolved yet, works it out here; so both come to the same. The
key space is cut so that each slice is resolved within the budget; the keys of an event are in one slice.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec
import pyarrow as pa

from persist.antichain import Antichain
from persist.blob import ByteBoundedLru
from persist.codecs import TIME_MAX, CollectionSchema, Part, SortedKeys, encode_parts
from persist.errors import SchemaMismatch
from persist.log import KeyedForm
from persist.read.lookup import Lookup, Wanted, without_diffs
from persist.read.part_reader import PartReader
from persist.read.plan import snapshot_scan
from persist.read.scan import Scan
from persist.state import CollectionState, among_versions, appended, due, form_in, pending_after
from persist.upsert import Machine, Prepared, described, event_fields, events_schema, prepared, resolved

SLICE_SHARE = 16  # Of the memory budget one slice of events takes this fraction: what they touch is read besides.
LEFTOVER_SHARE = 2  # And this one what has been decoded of waiting parts for the slices that come after it.


def resolved_updates(
    contents: CollectionState,
    schema: CollectionSchema,
    machine: Machine,
    end: Antichain,
    reader: PartReader,
    own: pa.Table | None = None,
    on_keys: Callable[[pa.Table], object] = lambda keys: None,
) -> Iterator[pa.Table]:
    """Yield the updates at times before end that events at times beyond `contents.resolved` amount to.

    Args:
        own: events that are not pending yet, in their order: they arrived after those that are.
        on_keys: is told the keys that have events, each once.

    Returns:
        tables of the columns of the schema, not consolidated; no key is in two of them. Memory: a slice, and own.

    Raises:
        CorruptBlob: a part is missing or damaged.
        PersistError: the machine does not accept an event.
    """
    schema = among_versions(schema, contents)
    form = form_in(contents, schema)
    assert form is not None
    lower, upper = contents.resolved.time, TIME_MAX + 1 if end.time is None else end.time
    if lower is None or lower >= upper:
        return
    events = events_schema(schema, event_fields(schema, form))
    parts = [contents.pending[number] for number in due(contents, end.elements)]
    bytes_max = reader.memory_budget // SLICE_SHARE
    if own is not None and len(own) and sum(part.memory for part in parts) > bytes_max:
        parts += (msgspec.structs.replace(part, inline=data) for data, part in encode_parts(own, events))
        own = None
    scan = Scan(events, tuple(parts), lower, upper, events.names).pruned()
    scan_before = snapshot_scan(contents, schema, lower - 1, None, raw=True) if lower else None
    lookup = None if scan_before is None else Lookup(scan_before, one_per_key=machine.has_one_value)
    slices = scan.slices_within(bytes_max) if scan.parts else [scan]
    waiting = reader.keeping_leftovers(reader.memory_budget // LEFTOVER_SHARE)
    assert own is None or len(slices) == 1, "events that are not cut would be in each slice"
    for each in slices:
        arrived = _arrived(each, events, waiting, own)
        if len(arrived):
            ready = prepared(schema, form, arrived)
            on_keys(ready.keys)
            yield _resolved(ready, schema, machine, lookup, reader)


def folded(
    contents: CollectionState, schema: CollectionSchema, machine: Machine, end: Antichain, reader: PartReader
) -> tuple[Part, ...]:
    """Return the updates before end that are not resolved yet, as parts stored nowhere. Memory: all of them."""
    tables = resolved_updates(contents, schema, machine, end, reader)
    encoded = (each for table in tables for each in encode_parts(table, schema))
    return tuple(msgspec.structs.replace(part, inline=data) for data, part in encoded)


def with_folded(contents: CollectionState, parts: Sequence[Part]) -> CollectionState:
    """Return contents with the parts of `folded` in their history: to read, and never to commit."""
    waiting = pending_after(contents, contents.upper_times)
    after, upper = appended(contents, tuple(parts)), contents.upper_times
    return msgspec.structs.replace(after, resolved_times=upper, pending=waiting)


class Folds:
    """What was folded lately, so that many reads of one state fold once; safe to use from many threads.

    Args:
        bytes_max: of the parts that are kept.
    """

    def __init__(self, bytes_max: int) -> None:
        self._kept = ByteBoundedLru[_Unresolved, tuple[Part, ...]](
            bytes_max, lambda parts: sum(len(part.inline) for part in parts)
        )

    def get(self, contents: CollectionState) -> tuple[Part, ...] | None:
        """Return what was folded of contents; () where nothing has to be, None if that is not known."""
        return self._kept.get(_unresolved(contents)) if due(contents, contents.upper_times) else ()

    def put(self, contents: CollectionState, parts: Sequence[Part]) -> None:
        """Keep what was folded of contents, and forget what has not been asked for longest."""
        self._kept.put(_unresolved(contents), tuple(parts))


_Unresolved = tuple[str, int, Antichain, Antichain, tuple[int, ...]]


def _unresolved(contents: CollectionState) -> _Unresolved:
    """Return what decides what sealed events come to: what is sealed and resolved stays as it is."""
    waiting = due(contents, contents.upper_times)
    return contents.id, len(contents.earlier), contents.resolved, contents.upper, waiting


def machine_needed(machine: Machine | None, form: KeyedForm, collection: str) -> Machine:
    """Return the machine of a collection; raise SchemaMismatch if it is not known here."""
    if machine is None:
        raise SchemaMismatch(
            f"the collection {collection!r} has the machine {described(form.machine)}, which is not known here, and "
            "events are to be resolved: open it with create_or_load(..., keyed=Keyed(machine=...))"
        )
    return machine


def _arrived(scan: Scan, events: CollectionSchema, reader: PartReader, own: pa.Table | None) -> pa.Table:
    """Return the events of a slice in the order in which those of each key arrived."""
    columns = events.arrow.names
    tables = [scan.empty(columns), *scan.updates(reader, columns)] if scan.parts else [scan.empty(columns)]
    if own is not None:
        tables.append(own.select(columns))
    return pa.concat_tables(tables)


def _resolved(
    ready: Prepared, schema: CollectionSchema, machine: Machine, lookup: Lookup | None, reader: PartReader
) -> pa.Table:
    present = schema.arrow.empty_table()
    if lookup is not None:
        wanted = Wanted(len(ready.keys), SortedKeys(ready.keys))
        if machine.has_one_value:
            present = lookup.present(wanted, reader)
        else:
            present = without_diffs(lookup.contents(wanted, "rows", reader), lookup.scan)
    return resolved(ready, machine, present)
