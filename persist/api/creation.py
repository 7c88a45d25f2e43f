"""Collections by their names: found, created, written and listed.

Every client has the directory of the names. The state of a collection is in objects of its own. So only the table of a
list reads states, and only of the listed collections.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from persist.api.collection import Collection, write_rows
from persist.codecs.types.schema import DIFF, CollectionSchema
from persist.codecs.updates.inputs import DELETED, is_repeatable, peek_columns, select_columns_like, select_sides_like
from persist.codecs.updates.tuples import is_named_tuple, is_record, to_dict
from persist.core.antichain import END, Antichain, to_time
from persist.core.errors import CollectionExists, CollectionNotFound, InvalidUsage, PersistError
from persist.core.expression.python_functions import add_function
from persist.core.keyed.form import Keyed, build_form
from persist.core.keyed.intake import make_deletion_error
from persist.core.names import check_free_name
from persist.core.rendering import align_columns, render_html_rows, strip_control_characters
from persist.core.state_rules.contents import CollectionState
from persist.core.timeline import Moment, Retention, read_timeline, show_time, to_retention_times
from persist.engine.location.engine import Engine
from persist.engine.location.opening import choose_write_mode, find_row_target, load_handle, load_or_create, open_handle
from persist.engine.read.planning.snapshot_plan import count_records
from persist.engine.write.commit_future import CommitFuture
from persist.engine.write.write_options import WriteMode, WriteOptions, add_token


class CreatingCalls:
    """The part of `Client` that loads, creates and writes collections."""

    engine: Engine

    def load(self, name: str) -> Collection:
        """Return the collection of that name, with the schema it has. Raises CollectionNotFound: there is none."""
        return Collection(load_handle(self.engine, name))

    def create_function(
        self, name: str, function: Callable[..., Any], arguments: Sequence[Any], returns: Any, *, version: str | int
    ) -> None:
        """Register a Python function for queries and views of this process. Idempotent.

        A view that calls the function stores its name and version, and never the code. So each process that refreshes
        such a view must register the function first; otherwise the refresh raises and changes nothing. A changed
        function needs another version; views keep their version until they are redefined. `docs/use/views.md` shows
        one.

        Args:
            name: the name in SQL, in any case; DuckDB must not have a function of that name.
            function: takes a `pa.Array` for each argument, all of one length and with their NULLs, and returns one of
                that length. Each value depends on the arguments of its row alone: views compute only what has changed.
            arguments: the type of each argument, as `create_or_load` takes types of columns.
            returns: the type of the values.
            version: a text or a whole number. Later queries call the newest version.

        Raises:
            InvalidUsage: the name, the function or a type is not valid, or SQL has a function of that name.
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
        """Return the collection of a name; create an empty one if necessary. Idempotent.

        Args:
            name: 1 to 255 characters, no '/', '..' or control characters, and no dot at the beginning.
            key, value: a dict of names to Arrow types, a `pa.Schema`, a `Codec`, or None for no columns at all.
            like: in place of value, an object with all columns and types: a frame, a table, a schema, a dict of
                columns, or a list of dicts. Then key lists the key columns, [] for none.
            timeline: the unit of times: "s", "ms", "us" or "ns" since 1970-01-01T00:00Z. Then moments can be used as
                times. None if times are numbers of another meaning.
            retention: as for `Collection.retain`, for a new collection. If an existing collection has another one, that
                is an error.
            keyed: makes it a keyed collection, which takes events by key (`Collection.upsert`) and no plain updates;
                see `Keyed`.

        Raises:
            SchemaMismatch, CodecMismatch: the collection exists with another schema or declaration, and the message
                shows the difference; or `keyed` does not fit the schema.
        """
        self.engine.check_open("create_or_load")
        check_free_name(name)
        if like is not None:
            key, value = select_sides_like(like, key, value)
        elif key is ...:
            raise InvalidUsage("create_or_load() needs key=: its columns, or like= with a frame that has them")
        schema = CollectionSchema.of(key, value, timeline)
        retained = None if retention is None else to_retention_times(retention, read_timeline(schema))
        if keyed is not None and not isinstance(keyed, Keyed):
            raise InvalidUsage(f"keyed={keyed!r} is not a declaration: give persist.Keyed(...)")
        form = None if keyed is None else build_form(keyed, schema)
        machine = None if keyed is None else keyed.machine
        contents, newest = load_or_create(self.engine, name, schema, form, retained)
        return Collection(open_handle(self.engine, contents, newest, machine))

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
        """Write rows to a collection; create it by the rows' columns if necessary.

        With a key, rows replace the rows of their keys, so a repeated call changes nothing. One commit creates the
        collection and writes the rows, which this call waits for: if that fails, nothing is created. If two clients
        create it at once, one succeeds, and the other one writes its rows to that collection.

        Args:
            rows: as for `Collection.write`. To create a collection, they must have names and types: a frame, a table,
                dicts. A column with only NULLs gets strings as its type. No row deletes: None in a tuple is NULL, and a
                column `_deleted` is refused. A collection with such a column can only be appended to, or overwritten.
            key: the list of the key columns, [] for none. Creating needs it; otherwise it must agree, if it is set.
            mode: "upsert" replaces the rows of the same keys (`Collection.upsert`), and needs them in memory. "append"
                adds rows (`Collection.write`). "overwrite" replaces all rows (`Collection.overwrite`). "update" changes
                the columns that rows have (`Collection.update`), and creates nothing. "error" refuses to write to a
                collection that exists, unless the token did so. None means "upsert" if key names columns or the
                collection is keyed, and "append" if the collection has no key; otherwise it is refused. Rows with diffs
                are always appended.
            timeline: of a new collection. The default is "ms", so that times are moments; or None, if the rows have
                times that are plain integers. See `create_or_load`.
            time, diff, token, seal, allow_future, message, metadata: as for `Collection.write`. Without a time, the
                commit chooses one, and seals it. Upserts, updates and overwrites seal the times that they write at.

        Returns: a future, as `Collection.write`.

        Raises:
            InvalidUsage: key is left out, and the collection is missing, or has a key and mode is left out. Or the
                collection has another timeline; or as `update`.
            CollectionNotFound: the mode is "update", and the collection is missing.
            SchemaMismatch: the collection has another key, or columns that the rows do not fit; see `evolve`.
            DuplicateKeys: the mode is "upsert" or "overwrite", and rows repeat a key.
            CollectionExists: the mode is "error"; or another client created it at once, and rows can be read only once.
        """
        self.engine.check_open("write")
        if not isinstance(name, str) and isinstance(rows, str):
            raise InvalidUsage(f"the name comes first: write({rows!r}, rows, key=…)")
        options = WriteOptions(time=time, token=token, allow_future=allow_future, message=message, metadata=metadata)
        columns, rows = peek_columns(rows)
        if mode == "update" and self.engine.find_newest_id(name) is None:
            load_handle(self.engine, name)  # It raises CollectionNotFound.
        with self.engine.follower.looks.share_look():
            handle = find_row_target(self.engine, name, columns, key=key, timeline=timeline, time=time)
        names = _name_columns(columns)
        if DELETED in names and DELETED not in (handle.schema.names if handle.create is None else ()):
            raise make_deletion_error()
        has_diffs = diff is not None or DIFF in names or _are_updates(columns)
        chosen = choose_write_mode(handle, mode, names_key=key is not ... and bool(key), has_diffs=has_diffs)
        if mode == "error" and handle.create is None and not handle.remembers_token(handle.contents(), token):
            raise CollectionExists(name)
        is_empty = getattr(columns, "shape", (1,))[0] == 0 and time is None and seal is None
        if is_empty and (handle.create is not None or handle.contents().upper == 0):
            # Without a row, the commit seals a time all the same, so that a new collection can be read.
            steps = [handle.with_future_times(allow_future=allow_future).commit_time_step()]
            future = handle.submit("write", [*add_token(token, [handle.id], steps), *options.make_notes([handle.id])])
        else:
            future = write_rows(handle, rows, chosen, options, diff=diff, seal=seal)
        if handle.create is not None:
            try:
                future.result()
            except CollectionExists:  # Another client has created it meanwhile.
                if not is_repeatable(rows):
                    raise
                arguments = options.to_arguments()
                return self.write(name, rows, key=key, mode=mode, timeline=timeline, diff=diff, seal=seal, **arguments)
        return future


def _name_columns(rows: Any) -> Iterable[str]:
    """Return the column names of rows; () for tuples."""
    is_list = isinstance(rows, (list, tuple))
    first = rows[0] if is_list and rows else rows
    if is_record(first, None):
        return to_dict(first)
    return () if is_list and not hasattr(first, "columns") else select_columns_like(first)


def _are_updates(rows: Any) -> bool:
    """Return whether rows are tuples with times and diffs."""
    first = rows[0] if isinstance(rows, (list, tuple)) and rows else None
    return isinstance(first, tuple) and len(first) == 3 and not is_named_tuple(first)


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
    """Sorted collection names: a list that can become a table."""

    def __init__(self, names: list[str], engine: Engine) -> None:
        super().__init__(names)
        self._engine = engine

    def to_arrow(self) -> pa.Table:
        """Return a table with a row for each existing collection.

        `rows` is the sum of the diffs of all updates, sealed or not: the number of records, if no record is retracted
        too often. It is NULL for collections with tombstones or unresolved events, where only a read could count.
        `bytes` is the size of its parts, for history, keyframes and pending events. `since` and `upper` are NULL where
        the frontier is empty.

        Cost: a GET for each collection that this client has not used yet.
        """
        self._engine.check_open("collections")
        self._engine.follower.refresh()
        rows = []
        for name in self:
            if (id_ := self._engine.follower.find_id(name)) is not None:
                try:
                    contents = self._engine.follower.require(id_, name)
                except CollectionNotFound:
                    continue  # It was destroyed just now.
                count, size = count_records(contents), sum(part.bytes for part in contents.stored_parts)
                cells = (name, count, size, to_time(contents.since), to_time(contents.upper))
                rows.append(dict(zip(COLUMNS.names, cells, strict=True)))
        return pa.Table.from_pylist(rows, schema=COLUMNS)

    def __repr__(self) -> str:
        """Say what this client knows of each, without asking the store for news."""
        head, *rows = (tuple(map(strip_control_characters, row)) for row in self._list_rows())
        if not rows:
            return "no collections"
        return "\n".join((*align_columns((head, *rows), right=(1,)), *self._format_omitted()))

    def _repr_html_(self) -> str:
        """Return the table as HTML."""
        head, *rows = self._list_rows()
        return render_html_rows(head, [*rows, *((line, "", "", "") for line in self._format_omitted())])

    def _format_omitted(self) -> list[str]:
        """Return a line with the number of names that are not shown, if there are any."""
        return [f"… and {len(self) - SHOWN_MAX:,} more"] if len(self) > SHOWN_MAX else []

    def _list_rows(self) -> list[tuple[str, str, str, str]]:
        """Return the heading and a row for each shown collection, from the known state."""
        entries, ids = self._engine.follower.state.entries, self._engine.follower.state.ids
        rows = [("name", "rows", "sealed before", "comment")]
        for name in self[:SHOWN_MAX]:
            entry = entries.get(ids.get(name) or "")
            contents = None if entry is None else entry.contents
            cells = ("", "", "")
            if contents is not None:
                with suppress(PersistError):
                    cells = _format_collection(contents)
            rows.append((name, *cells))
        return rows


def _format_collection(contents: CollectionState) -> tuple[str, str, str]:
    """Return the rows, sealed time and comment of a collection as text."""
    rows, upper = count_records(contents), contents.upper
    sealed = "for ever" if upper == END else "-" if upper == 0 else show_time(upper, read_timeline(contents.schema))
    return "?" if rows is None else f"{rows:,}", sealed, contents.about.comment
