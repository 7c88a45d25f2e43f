"""Creates and refreshes indexes: the changes of a collection go to all of its indexes, in one commit.

A refresh reads the changes since the index's last time, sorts their columns in its order, and writes them at their own
times, with the next seal and hold. If two clients refresh at once, one is refused, and need not repeat it. An index
that cannot continue, because columns or history are gone, is rebuilt in the commit that removes the old one.

A refresh of a view also refreshes the indexes of its inputs, after its own commit. A client does so in the background,
once there are so many changes that reading them costs more than a commit. Writers do not: each write would be done
twice before it is acknowledged, and readers find missing rows among the changes.
"""

import weakref
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa

from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.inputs import TableStream
from persist.compute.index.indexes import (
    Index,
    check_columns,
    draft_index,
    list_ids,
    load_index,
    load_indexes,
    read_indexed_ids,
)
from persist.core.antichain import encode_frontier
from persist.core.errors import (
    CollectionExists,
    CollectionNotFound,
    HoldMoved,
    HoldNotFound,
    Superseded,
    UpdatesBeyondUpper,
    UpperMismatch,
    ViewRedefined,
)
from persist.core.log import kinds
from persist.core.names import INDEX_HOLD, INDEX_PREFIX, make_index_hold_name
from persist.core.state_rules.collection_rules import ExpectDefinition, ExpectErasures, ExpectUpper
from persist.core.state_rules.contents import CollectionState, get_first_time
from persist.core.state_rules.erasures import count_erasures
from persist.engine.collection.commit import Commit
from persist.engine.collection.reads import snapshot
from persist.engine.location.arrangements import list_arrangements, make_drop_steps
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.location.opening import load_handle_by_id, open_handle
from persist.engine.read.following.changes import read_changes
from persist.engine.read.planning.snapshot_plan import plan_changes_scan
from persist.engine.read.results.snapshot import Snapshot
from persist.engine.write.operations import Step
from persist.engine.write.retrying import commit_with_retry

LAG_ROWS = 10_000  # The number of missing changes after which a client refreshes an index in the background.
LAG_PARTS = 16
CAME_BETWEEN = (UpperMismatch, UpdatesBeyondUpper, HoldMoved, HoldNotFound, CollectionExists, Superseded, ViewRedefined)


def create_index(handle: CollectionHandle, columns: Sequence[str]) -> Index:
    """Create the index of a collection by some columns, or return the existing one."""
    handle.engine.writer("index")
    handle.engine.settle()  # It includes all earlier writes.

    def load_or_build() -> Index:
        """Load or build the index, and refresh it."""
        schema = handle.contents().schema
        names = check_columns(handle, schema, columns)
        requested = [*list_ids(schema, names)]
        present = next((index for index in load_indexes(handle) if [*index.indexed_ids] == requested), None)
        if present is None:
            return build_index(handle, requested)
        refresh_collection_indexes(handle)
        return load_index(handle.engine, present.handle.id) or present

    conflicts = (CollectionExists, Superseded)
    return commit_with_retry(load_or_build, action="index", clock=handle.engine.clock, conflicts=conflicts)


def build_index(handle: CollectionHandle, wanted: Sequence[int], old: Index | None = None) -> Index:
    """Build an index as of the last sealed time, in one commit.

    `old`: the index that the new one replaces, if any.

    Raises CollectionExists: another client has built it.
    """
    drops = [] if old is None else make_drop_steps(handle.engine, [old.contents])[0]
    contents = handle.contents()
    if contents.upper == 0:
        index, create = draft_index(handle, contents.schema, wanted)
        _write_contents(
            handle, index, [*drops, create], None, get_first_time(contents), wanted, count_erasures(contents)
        )
        return index
    with snapshot(handle.newest(), form="diff") as contents_as_of:
        index, create = draft_index(handle, contents_as_of.scan.result_schema, wanted)
        _write_contents(
            handle, index, [*drops, create], contents_as_of, contents_as_of.as_of, wanted, count_erasures(contents)
        )
    return load_index(handle.engine, index.handle.id) or index


def _write_contents(
    handle: CollectionHandle,
    index: Index,
    steps: Sequence[Step],
    held: Snapshot | None,
    as_of: int,
    wanted: Sequence[int],
    erasures: int,
) -> None:
    """Write the contents of an index, with its hold, in one commit."""
    # The hold of an old index is released last. Otherwise since could advance between the two, beyond the new one's
    # hold.
    late = [step for step in steps if isinstance(step, kinds.ReleaseHold)]
    with Commit(handle.engine) as commit:
        commit.add(handle, [ExpectErasures(handle.id, erasures)])
        commit.add(index.handle, [step for step in steps if step not in late])
        if held is not None:
            commit.add(
                index.handle, _make_writes(index, _read_contents(held, as_of), index.map_names(held.scan.result_schema))
            )
            commit.add(index.handle, _make_seal_step(index, as_of))
        hold = kinds.SetHold(handle.id, make_index_hold_name(index.handle.id), as_of, columns=tuple(wanted))
        commit.add(handle, [hold, *late])


def _make_writes(index: Index, tables: Iterable[pa.Table], names: dict[str, str]) -> list[Step]:
    """Return the writes that add updates of a collection to its index; names maps its columns."""
    source_names = {source_names: name for name, source_names in names.items()}
    schema = index.handle.schema

    def updates(_: CollectionSchema | None) -> Iterator[pa.Table]:
        for table in tables:
            columns = [table[source_names[name]] for name in schema.names]
            yield pa.Table.from_arrays([*columns, table["_time"], table["_diff"]], names=schema.arrow.names)

    return index.handle.write_steps(TableStream(updates))


def _read_contents(held: Snapshot, as_of: int) -> Iterator[pa.Table]:
    """Yield the contents of a snapshot as updates at its time."""
    for batch in held.to_batches():
        times = pa.repeat(pa.scalar(as_of, pa.int64()), len(batch))
        yield pa.Table.from_batches([batch]).append_column("_time", times)


def _make_seal_step(index: Index, as_of: int) -> list[Step]:
    """Return the steps that seal an index after a time and give up its earlier times."""
    return [kinds.Seal(index.handle.id, encode_frontier(as_of + 1)), kinds.AllowCompaction(index.handle.id, (as_of,))]


def refresh_indexes(engine: Engine, collections: Iterable[str]) -> None:
    """Refresh those indexes of some collections (by id) that lag far enough.

    Cost: nothing if the known states show no lag; otherwise one commit for each collection.
    """
    for id_ in collections:
        if list_arrangements(engine, id_, [INDEX_PREFIX]):
            refresh_collection_indexes(load_handle_by_id(engine, id_, id_), least_rows=LAG_ROWS)


def refresh_collection_indexes(handle: CollectionHandle, *, least_rows: int = 0) -> None:
    """Refresh the indexes of a collection that lag by enough rows.

    `least_rows`: skip indexes that lack fewer changes, in few parts.
    """
    commit_with_retry(
        partial(_refresh_indexes, handle, least_rows),
        action="refresh",
        clock=handle.engine.clock,
        conflicts=(*CAME_BETWEEN, CollectionNotFound),
        prepare=lambda error: handle.contents(),  # Raises if the collection is gone; an index may have been dropped.
    )


def _refresh_indexes(handle: CollectionHandle, least_rows: int) -> None:
    """Refresh or rebuild the stale indexes of a collection."""
    contents = handle.contents()
    schema = handle.load_schema(contents, None)
    stale = [index for index in load_indexes(handle) if _is_refresh_due(index, contents, least_rows)]
    going_on = [index for index in stale if index.fits(schema) and _can_continue(index, contents)]
    for index in stale:
        if index not in going_on:
            build_index(handle, index.indexed_ids, index)
    if going_on:
        with Commit(handle.engine) as commit:
            for index in going_on:
                _add_new_updates(commit, handle.newest(), contents, index)


def _is_refresh_due(index: Index, contents: CollectionState, least_rows: int) -> bool:
    """Return whether an index lags by enough rows or parts, or has other columns."""
    if index.contents.upper >= contents.upper:
        return not index.fits(contents.schema)
    new = [part for part in contents.history_parts if part.time_max > index.as_of]
    return len(new) > LAG_PARTS or sum(part.rows for part in new) >= least_rows or not index.fits(contents.schema)


def _can_continue(index: Index, contents: CollectionState) -> bool:
    """Return whether the collection still has all changes after the index's time."""
    return make_index_hold_name(index.handle.id) in contents.holds and max(index.as_of, 0) >= contents.since


def _add_new_updates(commit: Commit, handle: CollectionHandle, contents: CollectionState, index: Index) -> None:
    """Add the updates that an index lacks, and a seal, to a commit."""
    id_, index_id = handle.id, index.handle.id
    until = contents.upper
    schema = handle.load_schema(contents, None)
    names = index.map_names(schema)
    commit.add(handle, [ExpectErasures(id_, count_erasures(contents))])
    commit.add(index.handle, [ExpectDefinition(index_id, 1), ExpectUpper(index_id, index.contents.upper_times)])
    scan = plan_changes_scan(handle.fold(contents), schema, index.as_of + 1, until, None)
    reader = handle.engine.reader()
    changed = (read_changes(piece, reader) for piece in scan.cut_into_slices(reader.slice_bytes))
    commit.add(index.handle, _make_writes(index, changed, names))
    commit.add(index.handle, _make_seal_step(index, until - 1))
    hold = make_index_hold_name(index_id)
    commit.add(handle, [kinds.SetHold(id_, hold, until - 1, None, contents.holds[hold].time)])


def keep_indexes_current(engine: Engine) -> None:
    """Let a writing client refresh lagging indexes of the collections that it maintains."""
    engine_ref = weakref.ref(engine)  # The thread that does so must not keep the client alive.

    def look_after(contents: CollectionState) -> bool:
        alive = engine_ref()
        return alive is not None and _maintain_collection(alive, contents)

    engine.writer("index").compaction.also.append(look_after)


def _maintain_collection(engine: Engine, contents: CollectionState) -> bool:
    """Do the due work for a collection; return whether it is an index, which is dropped with its collection."""
    if read_indexed_ids(contents) is not None and contents.view is not None:
        (collection,) = contents.view["inputs"]
        if engine.follower.entry(collection) is None:  # Somebody dropped it, and left its index behind.
            engine.submit("drop_index", [kinds.Destroy(contents.id)], {contents.id: contents.name}).result()
        return True
    if any(hold.startswith(INDEX_HOLD) for hold in contents.holds):
        refresh_collection_indexes(open_handle(engine, contents, contents.schema), least_rows=LAG_ROWS)
    return False
