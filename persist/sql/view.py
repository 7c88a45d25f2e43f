"""A view: a collection that holds the answer of a query at every time, and is brought up to date by `refresh`."""

import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from os import PathLike
from types import MappingProxyType
from typing import Any

from persist.antichain import Antichain
from persist.client import Client
from persist.collection import Collection
from persist.dataflow.errors import NotConverging, OperatorFailed
from persist.dataflow.program import Program
from persist.dataflow.report import OperatorReport
from persist.dataflow.running import Options, Running
from persist.engine import CollectionHandle
from persist.errors import (
    CollectionExists,
    HoldMoved,
    HoldNotFound,
    InvalidUsage,
    SchemaMismatch,
    SchemaMoved,
    UpperMismatch,
    ViewRedefined,
)
from persist.names import check_free_name
from persist.read.record_count import record_count
from persist.sql.compile import asked_key
from persist.sql.definition import Definition
from persist.sql.draft import Catalog, drafted
from persist.sql.graph import ViewProgram, by_id, definition_of, sizes_of, views_for
from persist.sql.growth import UnboundedState, unbounded
from persist.sql.reasons import reasons
from persist.sql.redefine import dependents_of, redefinition
from persist.state.contents import definition_number
from persist.write.future import CommitFuture

FAILURES = (OperatorFailed, NotConverging)  # By what the rows are, so they may be over when rows are retracted.
TRIES = 5  # While others redefine views, or refresh them.


class View(Collection):
    """A collection that is derived from others; make it with `Client.create_view` or `Client.view`.

    Its upper follows the least of its inputs'. It is read like every other collection. Nobody else may write it.

    Attributes:
        definition: the query, its plan, and what it reads.
        client: what it was made with.
        options: of `Program.open`, for its refreshes: where they keep what they need.
    """

    def __init__(
        self,
        handle: CollectionHandle,
        client: Client,
        definition: Definition,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(handle)
        self.definition = definition
        self.client = client
        self.options = options
        self._running: Running | None = None
        self._numbers: dict[str, int] = {}  # Of the definitions that are run, by id of their views.
        self._lock = threading.Lock()

    @property
    def sql(self) -> str:
        """The query, as it was written."""
        return self.definition.sql

    def refresh(self) -> Antichain:
        """Bring the view up to what its inputs have sealed, and the views that it reads with it; return its upper.

        All that is new is one commit. The first refresh reads the inputs as of the last time that the view has sealed;
        later ones of this handle take in what is new only. Safe to call from several processes.

        If the query fails on a row, such as by an overflow, the view stays at its last time, until the row is
        retracted: then it goes on at the latest time. The times at which the query fails cannot be read.

        Raises:
            OperatorFailed: the query fails on a row, which is named, at the latest time.
            NotConverging: a recursion of the query does not come to its end, at the latest time.
            CollectionNotFound: the view was destroyed.
            SourceLost, OutputConflict: an input cannot be read any more, or somebody else wrote the view.
            ReadOnly: this client only reads.
        """
        self.handle.engine.writer("refresh")
        with self._lock:
            for left in reversed(range(TRIES)):
                try:
                    self._refresh()
                except (ViewRedefined, HoldNotFound):
                    if not left or not self._has_moved_on():
                        raise
                else:
                    if not self._has_moved_on():
                        break
                self._stop()  # Somebody gave it, or a view below it, another definition: begin again with that.
        return self.upper

    def _refresh(self) -> None:
        try:
            if self._running is None:
                views = views_for(self.client, {self.id: self.name})
                self._numbers = {each.collection.id: each.definition.number for each in views}
                self._adopt(views[-1].definition)
                self._running = ViewProgram(self.client, views).open(self.client, **self.options)
            self._running.run()
        except FAILURES as error:
            self._stop()
            self._healed(error)
        except BaseException:
            self._stop()
            raise

    def _has_moved_on(self) -> bool:
        """Return whether a view of the program has another definition by now, as far as this client knows.

        Raises:
            CollectionNotFound: one was destroyed.
        """
        follower = self.client.engine.follower
        return any(definition_number(follower.known(id_, id_)) != number for id_, number in self._numbers.items())

    def _adopt(self, definition: Definition) -> None:
        if definition.number != self.definition.number:
            self.definition = definition
            self.handle = self.handle.newest()
            self.schema = self.handle.schema

    @property
    def is_open(self) -> bool:
        """Whether this handle keeps in memory what refreshes need, so that the next one reads what is new only."""
        return self._running is not None

    def program(self) -> Program:
        """Return the program that a refresh runs: of the view and of the views that it reads."""
        return self._program()

    def redefine(self, sql: str) -> None:
        """Give the view another query, from the time on to which it is sealed; see `docs/views.md`.

        It is refreshed first, by its old query, with the views that depend on it. The commit that follows writes the
        definition and no rows. The next refresh that gets beyond that time computes what the new query gives, and
        commits the difference at that time, together with what it makes of the views that depend on it: until then
        everything is as it was, and sealed times stay what they are. Who follows the view sees the switch as changes.

        The key stays. Other columns come and go as by `evolve`. A query that means the same changes nothing.

        Raises:
            InvalidUsage: the query is not one, or cannot be in the place of the view's own: its key has other types, a
                view reads a column that it lacks, or what it reads cannot be read at that time.
            SchemaMismatch: a column would get a type that is not wider.
            ViewRedefined: somebody else gave the view another definition meanwhile.
            ReadOnly: this client only reads.
        """
        self.handle.engine.writer("redefine")
        for left in reversed(range(TRIES)):
            self._refresh_all()
            found = redefinition(self.client, self, sql)
            if found is None:
                return
            try:
                self.client.engine.submit("redefine", found.steps, dict(found.names)).result()
            except (UpperMismatch, HoldMoved, SchemaMoved):
                if not left:
                    raise
            else:
                break
        with self._lock:
            self._stop()
            self._adopt(definition_of(by_id(self.client, self.id, self.name)) or self.definition)

    def _refresh_all(self) -> None:
        """Bring the view, and all that depend on it, to one time; what fails stays where it is."""
        views = [self, *(load_view(self.client, each.name) for each in dependents_of(self.client, self))]
        with suppress(*FAILURES, SchemaMismatch), ViewsTogether(views, self.options) as together:
            together.refresh()

    def _healed(self, failure: OperatorFailed | NotConverging) -> None:
        """Go on where the query does not fail any more; raise the failure if it does at the latest time, too."""
        try:
            with self._program().open(self.client, jump=True, **self.options) as running:
                running.run()
        except FAILURES:
            raise failure from None

    def explain(self, *, optimise: bool = True) -> str:
        """Return the plan as it is run; `optimise=False`: as it was written.

        With what was rewritten in this query, and why. After a refresh of this handle, with the updates that each
        operator keeps, and the bytes that they take.
        """
        shown = self._program().explain(optimise=optimise)
        why = reasons(self.definition.plan, sizes_of(self.client, self.definition)) if optimise else []
        with self._lock:
            state = [] if self._running is None else self._running.state()
        return "\n".join(
            [
                shown,
                *(f"rewritten: {each}" for each in why),
                *_told(self.definition),
                *(f"state of {title}: {rows:,} updates, {size:,} bytes" for title, rows, size in state),
            ]
        )

    def rehearse(self) -> list[OperatorReport]:
        """Compute the view from what its inputs hold, write nothing, and return what its operators did and keep.

        This is what the first refresh of a handle does, and what it then keeps in memory. A client that only reads may.
        """
        views = views_for(self.client, {self.id: self.name})
        with ViewProgram(self.client, views, is_rehearsal=True).open(self.client, **self.options) as running:
            running.run()
            return running.operators()

    def operators(self) -> list[OperatorReport]:
        """Return what the operators of this handle keep and did since its first refresh; nothing before that."""
        with self._lock:
            return [] if self._running is None else self._running.operators()

    def close(self) -> None:
        """Free what refreshes keep in memory; idempotent. The view can be refreshed again."""
        with self._lock:
            self._stop()

    def destroy(self) -> CommitFuture:
        """Remove the view; its inputs stay. See `Collection.destroy`."""
        self.close()
        return super().destroy()

    def __repr__(self) -> str:
        return f"<View {self.name!r}: {self.sql:.100}>"

    def _program(self) -> ViewProgram:
        return ViewProgram(self.client, views_for(self.client, {self.id: self.name}))

    def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.close()


def _told(definition: Definition) -> list[str]:
    """Return what to say of the definitions that a view had."""
    before = definition.earlier
    if not before:
        return []
    now = f"definition {definition.number} holds from {definition.since} on"
    numbers = range(definition.number - len(before), definition.number)
    return [now, *(f"definition {n}, from {was.since} on: {was.sql}" for n, was in zip(numbers, before, strict=True))]


class ViewsTogether:
    """Several views that are refreshed as one: what they read is read once, and all of them move in one commit.

    Make it with `persist.sql.open_together`; close it, or use it in a `with`. Not for use from several threads at once.
    """

    def __init__(self, views: Sequence[View], options: Mapping[str, Any]) -> None:
        if not views or len({id(each.client) for each in views}) > 1:
            raise InvalidUsage(f"open_together: {list(views)!r} are not views of one client")
        self._views = list(views)
        self._options = options
        self._running: Running | None = None

    def refresh(self) -> None:
        """Bring all views up to what their inputs have sealed, in one commit; errors are those of `View.refresh`."""
        client = self._views[0].client
        client.engine.writer("refresh")
        for left in reversed(range(TRIES)):
            try:
                if self._running is None:
                    wanted = {each.id: each.name for each in self._views}
                    self._running = ViewProgram(client, views_for(client, wanted)).open(client, **self._options)
                self._running.run()
                return
            except ViewRedefined:
                self.close()
                if not left:
                    raise
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Free what refreshes keep in memory; idempotent."""
        running, self._running = self._running, None
        if running is not None:
            running.close()

    def __enter__(self) -> "ViewsTogether":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def open_together(
    views: Sequence[View], *, memory_budget: int | None = None, spill_folder: str | PathLike[str] | None = None
) -> ViewsTogether:
    """Refresh several views as one; see `ViewsTogether`. Each can be refreshed alone another time.

    Args:
        memory_budget, spill_folder: of what they keep together, whatever each was opened with; see `Client.view`.
    """
    return ViewsTogether(views, _options(memory_budget, spill_folder))


def _options(memory_budget: int | None, spill_folder: str | PathLike[str] | None) -> dict[str, Any]:
    every = {"memory_budget": memory_budget, "spill_folder": spill_folder}
    given = {name: value for name, value in every.items() if value is not None}
    Options.of(given)
    return given


def _records(client: Client, collection: str) -> int:
    """Return how many records a collection has; of one for which only reading tells that, how many updates."""
    contents = client.load(collection).handle.contents()
    count = record_count(contents)
    return sum(part.rows for part in contents.parts) if count is None else count


def load_view(
    client: Client, name: str, *, memory_budget: int | None = None, spill_folder: str | PathLike[str] | None = None
) -> View:
    """Return the view of a name; see `Client.view`."""
    options = _options(memory_budget, spill_folder)
    collection = client.load(name)
    definition = definition_of(collection)
    if definition is None:
        raise InvalidUsage(f"collection {name!r} is no view: it is written by its users. Load it with load()")
    return View(collection.handle, client, definition, options)


def create_view(
    client: Client,
    name: str,
    sql: str,
    *,
    key: Sequence[str] | None = None,
    memory_budget: int | None = None,
    spill_folder: str | PathLike[str] | None = None,
) -> View:
    """Return a view, which is created if there is none; see `Client.create_view`."""
    check_free_name(name)
    options = _options(memory_budget, spill_folder)
    while True:
        if name in client.collections():
            return _existing(client, name, sql, key, options)
        try:
            return _created(client, name, sql, key, options)
        except CollectionExists:
            continue  # Another client created it in between.


def _existing(client: Client, name: str, sql: str, key: Sequence[str] | None, options: Mapping[str, Any]) -> View:
    found = load_view(client, name, **options)
    if found.sql.strip() != sql.strip() or (key is not None and found.definition.key != asked_key(key)):
        raise InvalidUsage(
            f"there is a view {name!r} with another definition: {found.sql!r:.300}. Choose another name, destroy it, "
            "or give it this one with redefine()"
        )
    return found


def _created(client: Client, name: str, sql: str, key: Sequence[str] | None, options: Mapping[str, Any]) -> View:
    draft = drafted(Catalog(client), name, sql, key)
    for each in unbounded(draft.definition.plan, partial(_records, client)):
        warnings.warn(f"view {name!r}: {each}.", UnboundedState, stacklevel=4)  # Of whoever calls the client.
    client.engine.submit("create_view", draft.steps, dict(draft.names)).result()
    handle = CollectionHandle(client.engine, draft.made.id, name, draft.made.schema)
    return View(handle, client, draft.definition, options)
