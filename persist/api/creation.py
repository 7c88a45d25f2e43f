"""Collections by their names: found, created, written, and listed with what there is to say of each.

The names are in the directory that every client has. What a collection holds is in objects of its own, so it is read
only for the table, and only for the collections that are listed.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from persist.api.collection import Collection
from persist.codecs.types.schema import DIFF, TIME, CollectionSchema
from persist.codecs.updates.inputs import columns_like, is_repeatable, sides_like, with_first
from persist.codecs.updates.tuples import is_named
from persist.core.antichain import END, Antichain, to_time
from persist.core.errors import CollectionExists, CollectionNotFound, InvalidUsage, PersistError
from persist.core.expression.python_functions import add_function
from persist.core.keyed.form import Keyed, form_of
from persist.core.names import check_free_name
from persist.core.rendering import aligned, html_rows, plain
from persist.core.state_rules.contents import CollectionState
from persist.core.timeline import Moment, Retention, retention_times, time_text, timeline_of
from persist.engine.collection.plain_rows import overwrite_steps, plain_events, upsert_steps
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.location.opening import created_or_loaded, handle_on, loaded, target_of_rows
from persist.engine.read.planning.snapshot_plan import record_count
from persist.engine.write.commit_future import CommitFuture
from persist.engine.write.operations import AtCommit
from persist.engine.write.write_options import WriteMode, WriteOptions, choose_mode, sealed_without_time, with_token


class CreatingCalls:
    """The part of `Client` that finds collections, creates them, and writes to what it found or created."""

    engine: Engine

    def load(self, name: str) -> Collection:
        """Return the collection of that name, with the schema it has.

        Raises:
            CollectionNotFound: there is none.
        """
        return Collection(loaded(self.engine, name))

    def create_function(
        self, name: str, function: Callable[..., Any], arguments: Sequence[Any], returns: Any, *, version: str | int
    ) -> None:
        """Let queries and views of this process call a function of Python by a name. Idempotent.

        A view that calls it stores the name and the version, and never the code. So each process that refreshes such a
        view calls this first; without, the refresh raises and changes nothing. Give a function that does something
        else another version, and redefine the views that call it: they keep the version that they have.
        `docs/use/views.md` shows one.

        Args:
            name: as SQL writes it, in any case; no function of DuckDB.
            function: takes a `pa.Array` for each argument, all of one length and with their NULLs, and returns one of
                that length. Each value depends on the arguments of its row alone: views compute only what has changed.
            arguments: the type of each argument, as those of a collection's columns.
            returns: the type of the values.
            version: a text or a whole number. Queries that are made later call the version that was given last.

        Raises:
            InvalidUsage: what is given is no name, no function, or no type; or SQL has a function of that name.
        """
        add_function(name, function, arguments, returns, version)

    def create_or_load(
        self,
        name: str,
        *,
        key: Any = ...,
        value: Any = None,
        like: Any = None,
        timeline: str | None = None,
        retention: Retention | None = None,
        keyed: Keyed | None = None,
    ) -> Collection:
        """Return the collection of that name; create it, empty, if there is none. Idempotent.

        Args:
            name: 1 to 255 characters, no '/', '..' or control characters, and no dot at the beginning.
            key, value: a dict of names to Arrow types, a `pa.Schema`, a `Codec`, or None for no columns at all.
            like: in place of value, what has the columns and their types: a frame, a table, a schema, a dict of
                columns, or a list of dicts. Then key is the list of those that are the key, [] for none.
            timeline: what times are: "s", "ms", "us" or "ns" since 1970-01-01T00:00Z, so that a moment may be given
                wherever the collection is read as of a time; None if they are numbers of another meaning.
            retention: as for `Collection.retain`, for a collection that is made. One that is there keeps its own, which
                must not be another.
            keyed: makes it a keyed collection, which takes events by key (`Collection.upsert`) and no plain updates;
                see `Keyed`.

        Raises:
            SchemaMismatch, CodecMismatch: it exists with another schema, or keyed otherwise; the message shows the
                difference. Or the declaration does not fit the schema.
            ReadOnly: it does not exist, and this client only reads.
        """
        self.engine.check_open("create_or_load")
        check_free_name(name)
        if like is not None:
            key, value = sides_like(like, key, value)
        elif key is ...:
            raise InvalidUsage("create_or_load() needs key=: its columns, or like= with a frame that has them")
        schema = CollectionSchema.of(key, value, timeline)
        retained = None if retention is None else retention_times(retention, timeline_of(schema))
        if keyed is not None and not isinstance(keyed, Keyed):
            raise InvalidUsage(f"keyed={keyed!r} is no declaration: give persist.Keyed(...)")
        form = None if keyed is None else form_of(keyed, schema)
        machine = None if keyed is None else keyed.machine
        contents, both = created_or_loaded(self.engine, name, schema, form, retained)
        return Collection(handle_on(self.engine, contents, both, machine))

    def write(
        self,
        name: str,
        rows: Any,
        *,
        key: Any = ...,
        mode: WriteMode | None = None,
        timeline: Any = ...,
        time: int | Moment | None = None,
        diff: int | None = None,
        token: str | None = None,
        seal: int | Moment | Antichain | None = None,
        allow_future: bool = False,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> CommitFuture:
        """Write rows to the collection of that name; create it, with the columns of the rows, if there is none.

        With a key, rows replace those of their keys, so a call that is repeated changes nothing. One commit creates the
        collection and writes the rows, which this call waits for: if that fails, nothing is created. If two clients
        create it at once, one does, and the rows of the other are written to what that one created.

        Args:
            name: as for `create_or_load`.
            rows: as for `Collection.write`. To create a collection, they must have names and types: a frame, a table,
                dicts. A column that holds nothing but NULL becomes one of strings.
            key: the list of the key columns, [] for none. Needed to create it; otherwise it must agree, if it is given.
            mode: "upsert" replaces the rows of the keys that come (`Collection.upsert`), and needs them in memory;
                "append" adds rows (`Collection.write`); "overwrite" replaces all rows (`Collection.overwrite`); "error"
                refuses to write to a collection that exists. None means "upsert" if key names columns, and otherwise
                "append". Rows with diffs are always appended.
            timeline: of one that is created. If it is left out, "ms", so that times are moments; or None, if the rows
                have times that are plain integers. See `create_or_load`.
            time, diff, token, seal, allow_future, message, metadata: as for `Collection.write`. Without a time, the
                commit gives one, and seals. An upsert and an overwrite seal the times that they write at.

        Returns: a future, as `Collection.write`.

        Raises:
            InvalidUsage: there is no such collection, and key is left out; or what is there has another timeline.
            SchemaMismatch: what is there has another key, or columns that the rows do not fit; see `evolve`.
            DuplicateKeys: the mode is "upsert" or "overwrite", and rows repeat a key.
            CollectionExists: the mode is "error"; or another client created it at once, and rows can be read only once.
            ReadOnly, ClientClosed: this client cannot write.
        """
        self.engine.check_open("write")
        if not isinstance(name, str) and isinstance(rows, str):
            raise InvalidUsage(f"the name comes first: write({rows!r}, rows, key=…)")
        options = WriteOptions(time=time, token=token, allow_future=allow_future, message=message, metadata=metadata)
        columns, rows = with_first(rows)
        handle = target_of_rows(self.engine, name, columns, key=key, timeline=timeline, time=time)
        has_key = key is not ... and bool(key)
        has_diffs = diff is not None or ((has_key or mode is not None) and _has_diffs(columns))
        chosen = choose_mode(mode, has_key=has_key, has_diffs=has_diffs)
        if mode == "error" and handle.create is None:
            raise CollectionExists(name)
        is_empty = getattr(columns, "shape", (1,))[0] == 0 and time is None and seal is None
        if is_empty and (handle.create is not None or handle.contents().upper == 0):
            # There is no row that a commit could seal: but what was created can be read from then on, as others can.
            steps = [handle.dating(allow_future=allow_future).at_commit()]
            future = handle.submit("write", [*with_token(token, [handle.id], steps), *options.notes([handle.id])])
        else:
            future = write_rows(handle, rows, chosen, options, diff=diff, seal=seal)
        if handle.create is not None:
            try:
                future.result()
            except CollectionExists:  # Another client has created it meanwhile.
                if not is_repeatable(rows):
                    raise
                named = {name: getattr(options, name) for name in options.__slots__}
                return self.write(name, rows, key=key, mode=mode, timeline=timeline, diff=diff, seal=seal, **named)
        return future


def _has_diffs(rows: Any) -> bool:
    """Return whether rows say by how much they change the contents: tables with `_diff`, or updates as tuples."""
    first = rows[0] if isinstance(rows, (list, tuple)) and rows else rows
    if isinstance(first, (list, tuple)):
        return isinstance(first, tuple) and len(first) == 3 and not is_named(first)
    return DIFF in (first if isinstance(first, Mapping) else columns_like(first))


def write_rows(
    handle: CollectionHandle,
    rows: Any,
    mode: WriteMode,
    options: WriteOptions,
    *,
    diff: int | None = None,
    seal: int | Moment | Antichain | None = None,
) -> CommitFuture:
    """Write rows to a collection, which the same commit creates if there is none."""
    collection, time, token = Collection(handle), options.time, options.token
    named: dict[str, Any] = {name: getattr(options, name) for name in options.__slots__}
    if mode == "append":
        return collection.write(rows, diff=diff, seal=seal, **named)
    if seal is not None and mode == "overwrite":
        raise InvalidUsage(f"seal={seal!r} is given to an overwrite, which seals just after its time: leave it out")
    if handle.create is None:
        return (
            collection.overwrite(rows, **named) if mode == "overwrite" else collection.upsert(rows, seal=seal, **named)
        )
    for what, moment in (("time", time), ("seal", seal)):
        handle.check_meant(what, moment, allow_future=options.allow_future)
    handle = handle.dating(allow_future=options.allow_future)
    stamp = handle.stamp(time, None)
    is_stream = isinstance(rows, pa.RecordBatchReader) and TIME not in rows.schema.names and token is None
    if mode == "overwrite" or (is_stream and (stamp is None or isinstance(stamp.time, int))):  # In bounded memory.
        steps = overwrite_steps(handle, rows, time, None, token)
    else:
        steps = upsert_steps(handle, plain_events(handle, rows, stamp), token)
    if seal is not None:
        if any(isinstance(step, AtCommit) for step in steps):
            handle.engine.abandon(steps)
            raise sealed_without_time(seal)
        steps.append(handle.seal_step(seal))
    return handle.submit("write", [*with_token(token, [handle.id], steps), *options.notes([handle.id])])


SHOWN_MAX = 50  # Collections in a representation.

COLUMNS = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("since", pa.uint64()),
        pa.field("upper", pa.uint64()),
    ]
)


class Collections(list[str]):
    """Names, sorted: a list like any other, which can also tell more of the collections it names.

    Example: `client.collections("sales.").to_arrow()`.
    """

    def __init__(self, names: list[str], engine: Engine) -> None:
        super().__init__(names)
        self._engine = engine

    def to_arrow(self) -> pa.Table:
        """Return a row for each collection that still exists.

        `rows` is what the diffs of all updates sum to, sealed or not: the number of records, while none is retracted
        more often than it was there; NULL where only reading tells, because of tombstones or events that are not
        resolved. `bytes` is what its parts take, history, keyframes and pending events. `since` and `upper` are
        NULL where the frontier is empty.

        Cost: a GET for each collection that this client has not used yet.
        """
        self._engine.check_open("collections")
        self._engine.follower.refresh()
        rows = []
        for name in self:
            if (id_ := self._engine.follower.id_of(name)) is not None:
                try:
                    contents = self._engine.follower.known(id_, name)
                except CollectionNotFound:
                    continue  # It was destroyed just now.
                count, size = record_count(contents), sum(part.bytes for part in contents.stored_parts)
                cells = (name, count, size, to_time(contents.since), to_time(contents.upper))
                rows.append(dict(zip(COLUMNS.names, cells, strict=True)))
        return pa.Table.from_pylist(rows, schema=COLUMNS)

    def __repr__(self) -> str:
        """Say what this client knows of each, without asking the store for news."""
        head, *rows = (tuple(map(plain, row)) for row in self._shown())
        if not rows:
            return "no collections"
        return "\n".join((*aligned((head, *rows), right=(1,)), *self._left_out()))

    def _repr_html_(self) -> str:
        """Do what the representation does, as a table."""
        head, *rows = self._shown()
        return html_rows(head, [*rows, *((line, "", "", "") for line in self._left_out())])

    def _left_out(self) -> list[str]:
        return [f"… and {len(self) - SHOWN_MAX:,} more"] if len(self) > SHOWN_MAX else []

    def _shown(self) -> list[tuple[str, str, str, str]]:
        """Return the head of a table and a row for each collection: name, rows, what is sealed, comment."""
        entries, ids = self._engine.follower.state.entries, self._engine.follower.state.ids
        rows = [("name", "rows", "sealed before", "comment")]
        for name in self[:SHOWN_MAX]:
            entry = entries.get(ids.get(name) or "")
            contents = None if entry is None else entry.contents
            cells = ("", "", "")
            if contents is not None:
                with suppress(PersistError):
                    cells = _cells_of(contents)
            rows.append((name, *cells))
        return rows


def _cells_of(contents: CollectionState) -> tuple[str, str, str]:
    rows, upper = record_count(contents), contents.upper
    sealed = "for ever" if upper == END else "-" if upper == 0 else time_text(upper, timeline_of(contents.schema))
    return "?" if rows is None else f"{rows:,}", sealed, contents.about.comment
