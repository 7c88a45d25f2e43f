"""A view: a collection that holds the answer of a query at every time, and is brought up to date by `refresh`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from persist.api.collection import Collection
from persist.core.antichain import Antichain
from persist.engine.location.opening import Origin, describe_origin
from persist.engine.write.commit_future import CommitFuture

if TYPE_CHECKING:
    from persist.compute.dataflow.running.refreshed import Policy
    from persist.compute.sql import Definition, LiveView, Start

# These calls raise for a view, because its query alone determines its contents.
WRITES = frozenset(
    {"advance_late_bound", "delete", "erase", "evolve", "late_bound", "late_counts", "overwrite", "restore", "seal"}
    | {"seal_to", "transition", "upsert", "upserts", "write"}
)


class View(Collection):
    """A collection that a query keeps up to date; see `Client.create_view`.

    Only `refresh` writes it, up to the least upper of its inputs. It is read like every other collection.

    Attributes:
        live: its plan and state, for the rest of the package.
    """

    _INTERNAL = frozenset({"live"}) | WRITES

    def __init__(self, live: "LiveView") -> None:
        super().__init__(live.handle)
        self.live = live
        self._adopted = live.handle

    @property
    def sql(self) -> str:
        """The text of the query."""
        return self.definition.sql

    @property
    def definition(self) -> "Definition":
        """The query, its plan and its inputs."""
        return self.live.definition

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of `Program.open` for its refreshes, such as the memory budget."""
        return self.live.options

    @property
    def is_open(self) -> bool:
        """Whether this handle keeps refresh state in memory."""
        return self.live.is_open

    def refresh(
        self, *, policy: "Policy" = "auto", timeout_s: float | None = None, memory_limit: int | None = None
    ) -> Antichain:
        """Refresh the view and the views it reads to their inputs' upper; return it.

        One commit writes all new answers. A refresh reads the changes of the inputs, and their rows for the keys of
        these changes. This handle caches the rows, up to its memory budget, so later refreshes read less.
        `explain_refresh` shows the reads. Safe to call from several processes.

        Args:
            policy: "incremental" refuses to read all of an input; "auto" allows it.
            timeout_s: raise LimitReached after so many seconds.
            memory_limit: the same when this process takes so many bytes more than before. Both limits are tested
                between operators, so one operator may exceed them.

        If the query fails on a row, such as by an overflow, the view stays at its last time. Once the row is retracted,
        it continues at the latest time. The times at which the query fails cannot be read.

        The first refresh computes the answers at all times since the view begins, in several commits. After an
        interruption, the next refresh continues after the last sealed time. Ctrl-C and limits leave the view at its
        last time, and free the memory of the handle.

        Warns:
            persist.sql.InputBehind: the view has no answer, or lacks updates of an input, because another input is not
                sealed as far; the text shows how far.

        Raises:
            LimitReached: it reached a limit. The view stays at its last time.
            WouldRecompute: the policy is "incremental", and an operator, which is named, needs all of an input.
            OperatorFailed: the query fails on a row, which is named, at the latest time.
            NotConverging: a recursion of the query does not end at the latest time.
            CollectionNotFound: the view was dropped.
            SourceLost, OutputConflict: an input cannot be read any more, or another writer wrote the view.
        """
        with self.handle.engine.follower.looks.share_look():
            with self._adopt_new_definition():
                self.live.refresh(policy, timeout_s=timeout_s, memory_limit=memory_limit)
            return self.upper

    def open_state(self) -> Antichain:
        """Refresh the view and keep state in memory for later refreshes; return its upper.

        All inputs are read, as of the last time that the view has sealed. `close()` frees the state. Raises the errors
        of `refresh`.
        """
        with self.handle.engine.follower.looks.share_look():
            with self._adopt_new_definition():
                self.live.open_state()
            return self.upper

    def explain_refresh(self, *, policy: "Policy" = "auto") -> str:
        """Return the reads that `refresh` would do now, with reasons.

        Nothing is written. It costs as much as a refresh without its commit, unless this handle has refreshed before.
        """
        with self.handle.engine.follower.looks.share_look():
            return self.live.explain_refresh(policy)

    def redefine(self, sql: str | None = None, *, start: "Start" = None) -> None:
        """Give the view another query from its upper on; see `docs/use/views.md`.

        The view and the views that depend on it are first refreshed by the old query. The next commit writes the
        definition and no rows. The next refresh beyond that time computes the answer of the new query, and commits the
        difference at that time. The same commit changes the views that depend on it. Sealed times stay as they are.
        Followers of the view see the switch as changes.

        The key stays. Other columns are added and dropped as by `evolve`. An equivalent query changes nothing.

        Args:
            sql: None for its present query.
            start: begin the view at another time, earlier or later, as with `create_view`. A new collection gets the
                name, and the next refresh computes its history. The old history, tags and positions of consumers are
                deleted. No other view may read this one.

        Raises:
            InvalidUsage: the text is not a query; its key has other types; a view reads a column that it lacks; or an
                input cannot be read at that time.
            SchemaMismatch: a column would get a type that is not wider.
            ViewRedefined: another client changed the definition meanwhile.
        """
        with self._adopt_new_definition():
            self.live.redefine(sql, start)

    def explain(self, *, optimise: bool = True) -> str:
        """Return the optimised plan, or the plan as written.

        After a refresh of this handle, it also shows the updates that each operator keeps, and their bytes.
        """
        return self.live.explain(optimise=optimise)

    def close(self) -> None:
        """Free the refresh state. Idempotent; the view can be refreshed again."""
        self.live.close()

    def drop(self) -> CommitFuture:
        """Remove the view; its inputs stay. See `Collection.drop`."""
        self.close()
        return super().drop()

    def __reduce__(self) -> Any:
        return _unpickle_view, (describe_origin(self.handle.engine, self), self.name)

    def __repr__(self) -> str:
        return f"<View {self.name!r}: {self.sql:.100}>"

    @contextmanager
    def _adopt_new_definition(self) -> Iterator[None]:
        """Adopt the newest schema if the view was redefined meanwhile."""
        try:
            yield
        finally:
            if self.live.handle is not self._adopted:
                self.handle = self._adopted = self.live.handle
                self.schema = self.handle.schema


def _unpickle_view(origin: Origin, name: str) -> View:
    from persist.compute.sql import collect_options, load_view_by_name  # Here: the dataflow takes long to load.

    return View(load_view_by_name(origin.open_shared(), name, collect_options(None, None)))
