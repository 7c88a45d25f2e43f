"""Opens and upgrades locations, and creates, loads and drops their collections by name or id.

A location keeps the number of its format while newer releases write to it (`persist.core.log.framing`), so older and
newer releases can use it at the same time. Some features need a greater number. The first use of such a feature raises
the number, as an `Upgrade` does. Changes that only save requests or bytes wait for `upgrade`.

An upgrade is one record: a process that dies before it has changed nothing. If two clients upgrade at once, the second
record changes nothing. Objects are not rewritten: each has its own number, and this release reads all of them.
"""

import os
import threading
import uuid
import weakref
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, get_type_hints

import msgspec
import pyarrow as pa

from persist.blob.options import check_values
from persist.blob.url import drop_secret_options
from persist.codecs.types.schema import DIFF, TIME, CollectionSchema
from persist.codecs.updates.inputs import select_columns_like, select_sides_like
from persist.core.errors import CollectionExists, CollectionNotFound, InvalidUsage, Locked, SchemaMismatch
from persist.core.keyed.form import check_same_form, find_machine
from persist.core.keyed.machine import Machine
from persist.core.log import kinds
from persist.core.log.fields import KeyedForm, Policy
from persist.core.log.framing import FORMAT, FORMAT_MIN
from persist.core.names import check_free_name, check_name
from persist.core.rendering import Shown, hide_passwords
from persist.core.settings import Location, Settings, open_storage
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.schemas import reconcile_schema
from persist.core.state_rules.state import State
from persist.core.timeline import Timeline, parse_time
from persist.engine.location.arrangements import make_drop_steps
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.location.writer import Mode, OpenOptions
from persist.engine.write.commit_future import CommitFuture
from persist.engine.write.operations import Step
from persist.engine.write.retrying import commit_with_retry
from persist.engine.write.write_options import WriteMode, choose_mode

# By process and origin: the clients that `Origin.open_shared` has opened, as long as something refers to them.
_shared: "weakref.WeakValueDictionary[tuple[int, Hashable], Engine]" = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Origin:
    """The arguments that open a location again in another process: the pickled form of a client.

    Attributes:
        location: a URL or an absolute path; None if the store is an object or the memory of one process.
        storage_options: without secrets (`persist.blob.url.drop_secret_options`): the other process has its own.
    """

    location: str | None
    storage_options: dict[str, Any]
    mode: Mode
    seqno: int | None
    settings: Settings

    @classmethod
    def of(cls, location: Location, storage_options: Mapping[str, Any] | None, options: OpenOptions) -> "Origin":
        """Return the origin of a location that is opened with these arguments."""
        text = None if not isinstance(location, (str, os.PathLike)) else os.fspath(location)
        if text is not None and "://" not in text:
            text = os.path.abspath(text)
        elif text is not None and (text.startswith("memory://") or "?" in text or hide_passwords(text) != text):
            text = None
        plain = {} if text is None else drop_secret_options(text, storage_options)
        return cls(text, plain, options.mode, options.seqno, options.settings)

    def open(self) -> Engine:
        """Open the location in this process."""
        assert self.location is not None
        options = OpenOptions(self.mode, seqno=self.seqno, settings=self.settings)
        return open_engine(self.location, self.storage_options, options)

    def open_shared(self) -> Engine:
        """Return one client for all unpickled objects of this origin, opened if there is none.

        The client is freed with the last object that refers to it.
        """
        options = frozenset(self.storage_options.items())
        name = os.getpid(), (self.location, options, self.mode, self.seqno, self.settings)
        with _shared_lock:
            engine = _shared.get(name)
        if engine is not None and not engine.is_closed:
            return engine
        opened = self.open()
        opened.close_when_dropped()
        with _shared_lock:
            engine = _shared.get(name)
            if engine is None or engine.is_closed:
                _shared[name] = engine = opened
        if engine is not opened:
            opened.close()  # Another thread was faster.
        return engine

    def check(self, what: object) -> "Origin":
        """Return this origin; raise an error if another process cannot open the location with it."""
        if self.location is None:
            raise InvalidUsage(
                f"{what!r} cannot go to another process, because its store is an object of this one: open the location "
                "by a folder or a URL, or pass rows, such as to_arrow()"
            )
        if self.mode == "exclusive":
            raise InvalidUsage(
                f'{what!r} cannot go to another process: in mode="exclusive" one client alone writes. Open another one '
                'there, with mode="read", or pass rows, such as to_arrow()'
            )
        return self


class OnEngine(Protocol):
    """An object of one engine: a client, with its attribute `engine`."""

    @property
    def engine(self) -> Engine:
        """Its engine."""


def open_engine(
    location: Location, storage_options: Mapping[str, Any] | None = None, options: OpenOptions | None = None
) -> Engine:
    """Open a location; see `persist.open` for costs and errors. Close the engine, or use it in a `with`."""
    options = OpenOptions() if options is None else options
    storage = open_storage(location, storage_options, options.settings, options.clock)
    try:
        engine = Engine(storage, options)
        engine.origin = Origin.of(location, storage_options, options)
        return engine
    except BaseException:
        storage.close()
        raise


def read_engine(
    location: Location, storage_options: Mapping[str, Any] | None = None, seqno: int | None = None
) -> Engine:
    """Open a location to read it; with seqno, as of that record of its log."""
    return open_engine(location, storage_options, OpenOptions("read", seqno=seqno))


def describe_origin(engine: Engine, what: object) -> Origin:
    """Return the origin of an engine, for an object that is pickled."""
    assert isinstance(engine.origin, Origin)
    return engine.origin.check(what)


def to_engine(action: str, client: OnEngine | Engine) -> Engine:
    """Return the engine of a user's client; an engine is returned unchanged.

    `action`: the name of the user's call, for errors.
    """
    engine = client if isinstance(client, Engine) else getattr(client, "engine", None)
    if not isinstance(engine, Engine):
        raise InvalidUsage(f"{action}: {client!r:.200} is not a client; give what persist.open() returned")
    return engine


def load_or_create(
    engine: Engine,
    name: str,
    schema: CollectionSchema,
    form: KeyedForm | None = None,
    retention: int | None = None,
) -> tuple[CollectionState, CollectionSchema]:
    """Load the collection of a name, or create it; also return its schema with the passed codecs.

    Args:
        name: any name, even the library's own.
        form: how it resolves events, if it is keyed.
        retention: in times, for a new collection; an existing one must have the same, if it is passed.

    Raises: as `Client.create_or_load`.
    """

    def load_or_create() -> tuple[CollectionState, CollectionSchema]:
        """Load the collection and check its properties, or create it."""
        id_ = engine.find_newest_id(name)
        contents = engine.follower.load(id_) if id_ is not None else None
        if contents is not None:
            if retention not in (None, contents.retention):
                raise InvalidUsage(
                    f"collection {name!r} has the retention {contents.retention}, in times, and {retention} was "
                    "given: leave it out, or change it with retain()"
                )
            sides = reconcile_schema(schema, contents, name)
            check_same_form(form, contents.keyed, name)
            return contents, sides
        id_ = uuid.uuid4().hex
        steps: list[Step] = [kinds.Create(id_, name, schema.to_json(), form)]
        steps += [] if retention is None else [kinds.SetRetention(id_, retention)]
        try:
            engine.submit("create_or_load", steps, {id_: name}).result()
        except Locked as error:
            # Another client may have created it before an exclusive one came: loading needs no lock.
            if engine.find_newest_id(name) is None:
                raise
            raise CollectionExists(name) from error
        return load_or_create()

    # Another client created it in between: load that one.
    return commit_with_retry(load_or_create, action="create_or_load", clock=engine.clock, conflicts=(CollectionExists,))


def find_row_target(
    engine: Engine, name: str, rows: Any, *, key: Any = ..., timeline: Any = ..., time: Any = None
) -> CollectionHandle:
    """Return the target collection of rows; if it does not exist, the handle's next commit creates it.

    That commit fails with CollectionExists if another client has created it meanwhile.

    Args:
        rows: determine the columns and their types; see `select_sides_like`.
        key: the names of its key columns; needed only for a new collection.
        timeline: `...` means the default of a new collection: None if the rows have times that are integers, else "ms".
        time: as for `write`.

    Raises:
        InvalidUsage: it does not exist, and key is left out; or it has another timeline.
        SchemaMismatch: it has other key columns; or the rows' types cannot be stored.
        ReadOnly: this client only reads.
    """
    engine.writer("write")
    check_free_name(name)
    if isinstance(key, str):
        raise InvalidUsage(f"key={key!r} is one text: give the list of the key columns, such as key=[{key!r}]")
    if engine.find_newest_id(name) is None:
        columns = select_columns_like(rows)
        if key is ...:
            names = [column for column in columns if column not in (TIME, DIFF)]
            raise InvalidUsage(
                f"there is no collection {name!r} at {engine.url}: to create it, say which columns are its key, such "
                f"as key=[{next(iter(names), 'id')!r}], or key=[] for none. The columns are {names}"
            )
        sides = select_sides_like(rows, key)
        unit = _choose_timeline(columns, time) if timeline is ... else timeline
        id_, schema = uuid.uuid4().hex, CollectionSchema.of(*sides, unit)
        return CollectionHandle(engine, id_, name, schema, create=kinds.Create(id_, name, schema.to_json(), None))
    handle = load_handle(engine, name)
    if key is not ... and tuple(key) != handle.schema.key_names:
        raise SchemaMismatch(
            f"key={key!r:.200} is not the key of the collection {name!r}, which is {[*handle.schema.key_names]}: give "
            "that key, or use another name"
        )
    if timeline is not ... and timeline != handle.schema.timeline:
        raise InvalidUsage(
            f"timeline={timeline!r} is not that of the collection {name!r}, which is {handle.schema.timeline!r}: leave "
            "timeline out, or use another name"
        )
    return handle


def choose_write_mode(
    handle: CollectionHandle, mode: WriteMode | None, *, names_key: bool, has_diffs: bool
) -> WriteMode:
    """Return the mode in which rows are written to a collection, present or new; see `choose_mode`.

    Only the caller knows whether a plain collection with a key should have one row per key or several. So a call
    without a mode is refused: it would silently duplicate or replace rows.

    `names_key`: whether the caller names key columns.
    """
    chosen = choose_mode(mode, has_key=names_key or handle.keyed is not None, has_diffs=has_diffs)
    key = handle.schema.key_names
    if mode is None and chosen == "append" and key and not has_diffs and handle.contents().view is None:
        raise InvalidUsage(
            f"the collection {handle.name!r} has the key {[*key]}, and may already hold rows of the same keys."
        ).with_remedy("Say {mode:option:upsert} to replace these rows, or {mode:option:append} to add to them.")
    return chosen


def create_row_target(engine: Engine, name: str, rows: Any, **options: Any) -> None:
    """Create a collection for rows, unless a fitting one exists; see `find_row_target`."""
    handle = find_row_target(engine, name, rows, **options)
    if handle.create is not None:
        try:
            handle.submit("create", []).result()
        except CollectionExists:
            find_row_target(engine, name, rows, **options)


def _choose_timeline(columns: Mapping[str, pa.Field], time: Any) -> str | None:
    """Return the timeline of rows: None if their times are integers, otherwise "ms"."""
    named = TIME if time is None else time
    kind = columns[named].type if isinstance(named, str) and named in columns else pa.null()
    is_number = isinstance(parse_time(time, Timeline("ms")), int)
    return None if is_number or pa.types.is_integer(kind) else "ms"


def load_handle(engine: Engine, name: str) -> CollectionHandle:
    """Return the collection of a name, with its schema. Cost: one GET. Raises CollectionNotFound: it does not exist."""
    engine.check_open("load")
    check_name(name)
    engine.wait_for_names(name)
    present_id = engine.follower.find_id(name)
    state = engine.follower.refresh_and_load([] if present_id is None else [present_id], engine.pool)
    id_ = engine.follower.find_id(name)
    if id_ is None:
        error = CollectionNotFound(name, engine.url, state.list_names_in_memory())
        if engine.mode == "read":
            error.remedy = "Check the name. This client only reads: load one that is there."
        raise error
    contents = engine.follower.require(id_, name)
    return open_handle(engine, contents, contents.schema)


def load_handles(engine: Engine, handles_or_names: Sequence[CollectionHandle | str]) -> list[CollectionHandle]:
    """Return new handles for handles and for names. Cost: one GET, and the GETs of all contents in parallel.

    Raises:
        CollectionNotFound: a collection does not exist.
    """
    if names := [named for named in handles_or_names if isinstance(named, str)]:
        engine.wait_for_names(*names)
    with engine.follower.looks.share_look():
        for _ in range(2):  # The second round finds the collections that came with the first round's look.
            ids = [engine.follower.find_id(named) if isinstance(named, str) else named.id for named in handles_or_names]
            engine.follower.refresh_and_load({id_ for id_ in ids if id_ is not None}, engine.pool)
        return [load_handle(engine, named) if isinstance(named, str) else named.newest() for named in handles_or_names]


def load_handle_by_id(engine: Engine, id_: str, name: str) -> CollectionHandle:
    """Return the collection of an id, also if it was renamed; name is for errors. Cost: one GET.

    Raises CollectionNotFound: it was dropped.
    """
    contents = engine.follower.refresh_and_require(id_, name)
    return open_handle(engine, contents, contents.schema)


def open_handle(
    engine: Engine, contents: CollectionState, schema: CollectionSchema, machine: Machine | None = None
) -> CollectionHandle:
    """Return a handle on a collection in some state; a keyed one with its machine, passed or found by name."""
    if contents.keyed is not None:
        if machine is not None and engine.mode != "read":
            engine.writer("create_or_load").resolver.remember_machine(contents.id, machine)
        machine = find_machine(contents.keyed, machine, contents.name)
    return CollectionHandle(engine, contents.id, contents.name, schema, contents.keyed, machine)


def drop(handle: CollectionHandle) -> CommitFuture:
    """Remove a collection with its arrangements; see `Collection.drop`."""
    engine = handle.engine
    engine.follower.refresh()  # Another client may have changed what it reads, or made an index of it.
    return engine.submit("drop", *make_drop_steps(engine, [handle.get_known_state()]))


# The new contents that each format number allows: for people who decide whether to upgrade.
CAME_WITH = {
    7: "checkpoints store what changed in a collection with many parts, and no longer all of it",
    8: "the record of an upgrade itself",
    9: "the directory of very many collections is in pages, which are read when they are needed",
    10: "older tokens of a collection are in archives, and none is forgotten",
    11: "all clients go by a policy in the log; Iceberg readers read tags and earlier times; views store their plans",
    12: "fields inside of structs, lists and maps have numbers, by which they are added, dropped and renamed",
    13: "columns of JSON documents",
    14: "keyed collections with groups of columns that have an order of their own",
}


@dataclass(frozen=True, slots=True)
class UpgradeReport(Shown):
    """The effects of raising the format of a location; print it.

    Attributes:
        before, after: the number of the location's format; equal if there is nothing to do.
        seqno: the record that raised the format; None if there was nothing to do, or this was only a plan.
        brings: for each format number, the features that a location may have from then on.
    """

    before: int
    after: int
    seqno: int | None
    brings: dict[int, str]

    def __str__(self) -> str:
        if self.before == self.after:
            return f"the format is {self.after}, the newest that this release writes: there is nothing to do"
        what = "was raised" if self.seqno is not None else "would be raised"
        lines = [f"the format {what} from {self.before} to {self.after}, by one record; no data is written again"]
        lines += [f"{number}: {text}" for number, text in self.brings.items()]
        lines.append(f"releases that do not know format {self.after} stop with IncompatibleVersion; they lose nothing")
        return "\n".join(lines)


def upgrade(engine: Engine, *, dry_run: bool) -> UpgradeReport:
    """Raise the format of a location to the newest of this release; see `Client.upgrade`."""
    writer = None if dry_run else engine.writer("upgrade")
    state = engine.follower.refresh()
    format_before = state.format if state.seqno >= 0 else FORMAT
    if format_before == FORMAT:
        return UpgradeReport(format_before, FORMAT, None, {})
    brings = {number: text for number, text in CAME_WITH.items() if number > max(format_before, FORMAT_MIN)}
    if writer is None:
        return UpgradeReport(format_before, FORMAT, None, brings)
    seqno = engine.submit("upgrade", [kinds.Upgrade(FORMAT)], {}).result()
    return UpgradeReport(format_before, FORMAT, seqno, brings)


def change_policy(policy: Policy, changes: Mapping[str, int]) -> Policy:
    """Return a policy with some values replaced."""
    check_values(changes, get_type_hints(Policy, include_extras=True))
    return msgspec.structs.replace(policy, **changes)


def set_policy(engine: Engine, changes: Mapping[str, int], *, at_once: bool) -> Policy:
    """Change values of the location's policy; see `Client.set_policy`."""

    def steps(state: State) -> list[Step]:  # Two clients that change other values do not undo each other's.
        policies = state.control.policies or engine.follower.policies
        return [kinds.SetPolicy(change_policy(policies.newest, changes), at_once)]

    engine.submit("set_policy", steps(engine.follower.state), {}, renew=steps).result()
    return engine.follower.policies.newest
