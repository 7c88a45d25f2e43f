"""A view: a collection that holds the answer of a query at every time, and is brought up to date by `refresh`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from persist.api.collection import Collection
from persist.core.antichain import Antichain
from persist.engine.location.opening import Origin, origin_of
from persist.engine.write.commit_future import CommitFuture

if TYPE_CHECKING:
    from persist.compute.dataflow.running.refreshed import Policy
    from persist.compute.sql import Definition, LiveView, Start

# What only raises for a view, whose query alone says what it holds.
WRITES = frozenset(
    {"advance_late_bound", "delete", "erase", "evolve", "late_bound", "late_counts", "overwrite", "restore", "seal"}
    | {"seal_to", "transition", "upsert", "upserts", "write"}
)


class View(Collection):
    """A collection that is derived from others; make it with `Client.create_view` or `Client.view`.

    Its upper follows the least of its inputs'. It is read like every other collection. Nobody else may write it.

    Attributes:
        live: what it is made of, for the rest of the package.
    """

    _INTERNAL = frozenset({"live"}) | WRITES

    def __init__(self, live: "LiveView") -> None:
        super().__init__(live.handle)
        self.live = live
        self._adopted = live.handle

    @property
    def sql(self) -> str:
        """The query, as it was written."""
        return self.definition.sql

    @property
    def definition(self) -> "Definition":
        """The query, its plan, and what it reads."""
        return self.live.definition

    @property
    def options(self) -> Mapping[str, Any]:
        """Those of `Program.open`, for its refreshes: where they keep what they need."""
        return self.live.options

    @property
    def is_open(self) -> bool:
        """Whether this handle keeps in memory what refreshes need, all of it or as far as it was requested."""
        return self.live.is_open

    def refresh(
        self, *, policy: "Policy" = "auto", timeout_s: float | None = None, memory_limit: int | None = None
    ) -> Antichain:
        """Bring the view up to what its inputs have sealed, and the views that it reads with it; return its upper.

        All that is new is one commit. A refresh reads what has changed in the inputs, and what they held for the keys
        of these changes. This handle keeps what it has read, up to its memory budget, so later refreshes read less.
        `explain_refresh` says what will be read. Safe to call from several processes.

        Args:
            policy: "incremental" refuses to read all of an input, whatever that would save later.
            timeout_s: after how many seconds to give up, and memory_limit: at how many bytes that this process takes
                more than before. Both are looked at between operators, so one operator may go beyond them.

        If the query fails on a row, such as by an overflow, the view stays at its last time, until the row is
        retracted: then it goes on at the latest time. The times at which the query fails cannot be read.

        The first refresh computes the answers at all times since the view begins, some at a time: what is sealed stays,
        so a refresh that is interrupted is gone on with by the next one. Ctrl-C and limits leave the view at its last
        time; what the handle has kept in memory is freed.

        Warns:
            persist.sql.InputBehind: the view has no answer, or sees nothing of an input, because another input is not
                sealed further, with by how much.

        Raises:
            LimitReached: it came to a limit. The view stays at its last time.
            WouldRecompute: the policy is "incremental", and an operator, which is named, needs all of an input.
            OperatorFailed: the query fails on a row, which is named, at the latest time.
            NotConverging: a recursion of the query does not come to its end, at the latest time.
            CollectionNotFound: the view was dropped.
            SourceLost, OutputConflict: an input cannot be read any more, or somebody else wrote the view.
            ReadOnly: this client only reads.
        """
        with self.handle.engine.follower.looks.once():
            with self._adopting():
                self.live.refresh(policy, timeout_s=timeout_s, memory_limit=memory_limit)
            return self.upper

    def open_state(self) -> Antichain:
        """Bring the view up to date, and keep in memory what the next refreshes of this handle need; return its upper.

        All of the inputs is read, as of the last time that the view has sealed. `close()` frees the state. Errors are
        those of `refresh`.
        """
        with self.handle.engine.follower.looks.once():
            with self._adopting():
                self.live.open_state()
            return self.upper

    def explain_refresh(self, *, policy: "Policy" = "auto") -> str:
        """Return what `refresh` would read now, and why.

        Nothing is written. Cost: that of the refresh without its commit, unless this handle has refreshed before.
        """
        with self.handle.engine.follower.looks.once():
            return self.live.explain_refresh(policy)

    def redefine(self, sql: str | None = None, *, start: "Start" = None) -> None:
        """Give the view another query, from the time on to which it is sealed; see `docs/use/views.md`.

        It is refreshed first, by its old query, with the views that depend on it. The commit that follows writes the
        definition and no rows. The next refresh that gets beyond that time computes what the new query gives, and
        commits the difference at that time, together with what it makes of the views that depend on it: until then
        everything is as it was, and sealed times stay what they are. Who follows the view sees the switch as changes.

        The key stays. Other columns come and go as by `evolve`. A query that means the same changes nothing.

        Args:
            sql: None for the one that it has.
            start: begin the view at another time, earlier or later, as with `create_view`. The view is made anew under
                its name: it is another collection, whose history is computed by the next refresh. The history that it
                had, its tags and the positions of its consumers are gone. No view may read it.

        Raises:
            InvalidUsage: the query is not one, or cannot be in the place of the view's own: its key has other types, a
                view reads a column that it lacks, or what it reads cannot be read at that time.
            SchemaMismatch: a column would get a type that is not wider.
            ViewRedefined: somebody else gave the view another definition meanwhile.
            ReadOnly: this client only reads.
        """
        with self._adopting():
            self.live.redefine(sql, start)

    def explain(self, *, optimise: bool = True) -> str:
        """Return the plan as it is run; `optimise=False`: as it was written.

        With what was rewritten in this query, and why. After a refresh of this handle, with the updates that each
        operator keeps, and the bytes that they take.
        """
        return self.live.explain(optimise=optimise)

    def close(self) -> None:
        """Free what refreshes keep in memory; idempotent. The view can be refreshed again."""
        self.live.close()

    def drop(self) -> CommitFuture:
        """Remove the view; its inputs stay. See `Collection.drop`."""
        self.close()
        return super().drop()

    def __reduce__(self) -> Any:
        return _reopen, (origin_of(self.handle.engine, self), self.name)

    def __repr__(self) -> str:
        return f"<View {self.name!r}: {self.sql:.100}>"

    @contextmanager
    def _adopting(self) -> Iterator[None]:
        """Go on with the newest schema, if the view turns out to have another definition."""
        try:
            yield
        finally:
            if self.live.handle is not self._adopted:
                self.handle = self._adopted = self.live.handle
                self.schema = self.handle.schema


def _reopen(origin: Origin, name: str) -> View:
    from persist.compute.sql import given_options, live_view  # Here: the dataflow takes long to load.

    return View(live_view(origin.open_shared(), name, given_options(None, None)))
