"""Commits whose steps depend on the contents: they are planned, uploaded and committed, again after conflicts.

With the policy "seal", a seal of a keyed collection resolves it. The pending events before the new upper, and the
events with the seal, become updates in the one record that advances upper. That record is refused if any of its inputs
has changed (`persist.core.state_rules.keyed_rules`). The loser deletes its parts and plans again. No claim is needed
meanwhile: deleted parts stay for the grace period, and a blob that is missing after that also means a lost race.

A client's requests to one collection are committed in call order. Events go straight to the committer; if a seal of the
same collection is under way, they follow it. One thread per client resolves (`persist.engine.location.resolver`).

Events without a time get the time of the commit. A commit that resolves them needs this time before it is written. So
the time is chosen with the plan, from its contents, and chosen again if these have changed by then.

Several collections go into one record (`submit_all`). Each is planned from its own contents. If one of them has
changed, the record is refused whole, so all of them are right or nothing happened. Differences to the contents of plain
collections (`persist.engine.collection.plain_rows`) are planned in the same way. If there is nothing else, the caller's
thread plans them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from persist.blob.errors import MissingBlob
from persist.codecs.order.digest import DIGEST_MODULUS
from persist.codecs.types.schema import TIME_MAX
from persist.core.antichain import Antichain, encode_frontier, to_antichain
from persist.core.errors import (
    ClientClosed,
    Conflict,
    FrontierRegression,
    InvalidUsage,
    LateEvents,
    PendingEvents,
    PersistError,
    SchemaMismatch,
    Superseded,
    UpdateNotBeyondUpper,
    UpdatesBeyondUpper,
    UploadExpired,
    UpperMismatch,
    attach_timeline,
)
from persist.core.keyed.events import lift_events, make_event_schema
from persist.core.keyed.intake import EventTable
from persist.core.log import kinds
from persist.core.log.fields import TokenMark
from persist.core.state_rules.collection_rules import ExpectErasures
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.erasures import count_erasures
from persist.core.state_rules.keyed_rules import list_due_parts
from persist.core.state_rules.schemas import check_writable_version
from persist.core.timeline import Moment
from persist.engine.collection.keyed_events import AskedEvents, Asks, compute_events_digest, get_keyed_form
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.location.resolver import REASON, split_late
from persist.engine.write.commit_future import CommitFuture, Committed
from persist.engine.write.operations import AtCommit, Step, Write, choose_common_times
from persist.engine.write.retrying import commit_with_retry
from persist.engine.write.write_options import add_token, check_token

SETTLE_S = 60.0

T = TypeVar("T")


def submit(handle: CollectionHandle, action: str, request: AskedEvents) -> CommitFuture:
    """Queue events, and perhaps a seal, as one commit; see `Collection.upsert`."""
    return submit_all(handle.engine, action, [(handle, request)])


def submit_all(
    engine: Engine,
    action: str,
    asks: Asks,
    beside: Sequence[Step] = (),
    names: Mapping[str, str] | None = None,
) -> CommitFuture:
    """Queue requests to keyed collections, and other steps, as one atomic commit.

    Args:
        beside: steps that come first. Their uploads stay until the commit is done or finally refused.
        names: the names of the collections that these steps concern, by id.
    """
    names = dict(names or {})
    names |= {handle.id: handle.name for handle, _ in asks if handle.id not in names}
    if asks and all(request.plain is not None for _, request in asks):
        return _Commit(engine, action, asks, beside, names).run()
    writer, asks = engine.writer(action), [(handle, _prepare_request(handle, request)) for handle, request in asks]
    ids = [handle.id for handle, _ in asks]
    commit = _Commit(engine, action, asks, beside, names)
    if any(request.at_commit and request.end is not None for _, request in asks):
        engine.abandon(beside)
        raise InvalidUsage(
            "a seal is given with events that have no time: the commit gives them one, and seals just after it. Leave "
            "the seal out, or give them times, too."
        )
    is_decided = not any(request.late is not None or request.is_least for _, request in asks)
    if is_decided and not any(map(writer.keyed.is_busy, ids)) and not any(_needs_resolution(*ask) for ask in asks):
        return engine.submit(
            action, [*beside, *(step for ask in asks for step in _make_plain_steps(*ask))], commit.names
        )
    future = writer.make_future()
    size = sum(request.events.table.nbytes for _, request in asks if request.events is not None)
    try:
        return writer.keyed.submit(ids, future, lambda: commit.commit_with_retries(future), size)
    except ClientClosed:
        engine.abandon(beside)
        raise


def _prepare_request(handle: CollectionHandle, request: AskedEvents) -> AskedEvents:
    """Check a request before it is planned, and add the step of its token."""
    check_token(request.token)  # Before anything is uploaded.
    if request.events is not None and not len(request.events.table):
        request = msgspec.structs.replace(request, events=None)
    if request.events is not None and request.events.is_partial and not request.events.at_commit:
        last = pc.max(request.events.table["_time"]).as_py()
        if request.end is None or last >= request.end:
            raise InvalidUsage(
                f"some events of {handle.name!r} lack columns, so their commit must resolve them, and the last is at "
                f"{last}: seal beyond that in the same commit, or leave out time and seal"
            )
    return msgspec.structs.replace(request, marks=tuple(_make_token_steps(handle, request)))


def _needs_resolution(handle: CollectionHandle, request: AskedEvents) -> bool:
    """Return whether a request resolves events with its commit."""
    if request.change is not None or request.plain is not None:
        return True
    if request.events is not None and request.events.is_partial:
        return True
    return (request.end is not None or request.at_commit) and get_keyed_form(handle).resolve == "seal"


def commit_seal(
    handle: CollectionHandle,
    upper: int | Moment | Antichain,
    *,
    expected_upper: int | Moment | Antichain | None = None,
) -> CommitFuture:
    """Seal a collection, whose sealed events are resolved if it is keyed; see `Collection.seal`."""
    expected = [] if expected_upper is None else [handle.expect_step(expected_upper)]
    handle = handle.as_keyed()
    if handle.keyed is not None:
        return submit(handle, "seal", AskedEvents(None, handle.frontier("upper", upper), also=tuple(expected)))
    return handle.submit("seal", [*expected, handle.seal_step(upper)])


@dataclass(frozen=True, slots=True)
class _Planned:
    """The planned steps of one collection, computed from some of its contents.

    Attributes:
        names: the names of the collections that the steps change, by id.
        late: the late events that were left out.
    """

    contents: CollectionState
    steps: list[Step]
    names: dict[str, str]
    late: pa.Table | None


_REFUSED = (InvalidUsage, Conflict, MissingBlob)  # Nothing of such a commit is in the log, nor will be.
# Errors that may disappear with the newest state.
_LOST = (
    Superseded,
    UploadExpired,
    UpdateNotBeyondUpper,
    UpdatesBeyondUpper,
    UpperMismatch,
    LateEvents,
    PendingEvents,
    FrontierRegression,
    MissingBlob,
)


@dataclass(slots=True)
class _Commit:
    """Commits requests to several collections together with other steps.

    A plan is made for each collection from its contents. If the record is refused because some of them have changed,
    these are planned again, and the plans of the others stay. Nothing that a plan has stored is deleted before that.

    Attributes:
        contents: the contents that the present plans are based on, by collection.
        times: the times that the commit assigns, as far as plans need them.
    """

    engine: Engine
    action: str
    asks: Asks
    beside: Sequence[Step]
    names: dict[str, str]
    contents: dict[str, CollectionState] = field(default_factory=dict)
    plans: dict[str, _Planned] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)

    def commit_with_retries(self, future: CommitFuture) -> Committed:
        """Plan and commit, again after lost races; return the commit. Late events are passed to `future`."""
        writer = self.engine.writer(self.action)
        # Earlier events of this client that are not committed yet are unknown here.
        writer.committer.settle(SETTLE_S)
        for handle, _ in self.asks:
            writer.compaction.merge_small_runs(handle.id)
        committed = self._with_retry(lambda: self._submit().get_commit())
        self._report_late(future)
        return committed

    def run(self) -> CommitFuture:
        """Plan and commit in this thread, again after each lost race; return the future of the last commit.

        The future is resolved, unless this thread may not wait: then there is one attempt. Errors of planning are
        raised.
        """
        last: CommitFuture | None = None

        def commit() -> CommitFuture:
            """Submit once; raise the error of a lost race."""
            nonlocal last
            if last is not None:
                last.exception()  # This attempt deals with it.
            last = self._submit()
            error = last.peek_error()
            if isinstance(error, _LOST):
                raise error
            return last

        may_wait = self.engine.writer(self.action).committer.may_wait()
        try:
            last = self._with_retry(commit if may_wait else self._submit)
        except _LOST as error:
            if last is None or error is not last.peek_error():
                raise
        last.add_done_callback(self._drop_if_refused)
        return last

    def _with_retry(self, commit: Callable[[], T]) -> T:
        """Call `commit`, again after conflicts; drop all plans if it is refused."""
        self.contents = {handle.id: handle.get_known_state() for handle, _ in self.asks}
        try:
            return commit_with_retry(
                commit, action=self.action, clock=self.engine.clock, conflicts=_LOST, prepare=self._drop_outdated_plans
            )
        except _REFUSED:
            self._drop_plans()
            raise  # After an indeterminate commit all is left, because the record may yet appear.

    def _drop_outdated_plans(self, error: PersistError) -> None:
        """Drop the plans of contents that have changed; raise error if no other plan can succeed."""
        newest = {handle.id: handle.contents() for handle, _ in self.asks}
        is_late = any(map(self._must_choose_again, self.times.items()))
        if not is_late and not self._may_succeed(error, self.contents, newest):
            raise error
        moved = [] if is_late else [id_ for id_ in self.plans if newest[id_] != self.contents[id_]]
        if is_late:
            self.times = {}
        self._discard([self.plans.pop(id_) for id_ in moved or [*self.plans]])
        self.contents = newest

    def _drop_plans(self) -> None:
        """Delete the uploads of all plans and of the other steps."""
        self._discard(self.plans.values())
        self.engine.abandon(self.beside)

    def _drop_if_refused(self, future: Future[int]) -> None:
        """Delete all uploads if the commit of a future was refused."""
        if isinstance(Future.exception(future), _REFUSED):  # This look does not count as one of the caller.
            self._drop_plans()

    def _submit(self) -> CommitFuture:
        """Make the missing plans, and submit all plans with the other steps."""
        self.times = self.times or self._assign_times()
        for handle, request in self.asks:
            if handle.id not in self.plans:
                contents = self.contents.get(handle.id) or handle.get_known_state()
                self.plans[handle.id] = _plan_commit(handle, contents, request, self.times.get(handle.id))
        return self._submit_plans()

    def _assign_times(self) -> dict[str, int]:
        """Return the times that the commit assigns to requests without one, if some of them are resolved with it."""
        if all(request.plain is not None or not request.at_commit for _, request in self.asks):
            return {}
        asks = [step for step in self.beside if isinstance(step, AtCommit)]
        asks += [handle.commit_time_step() for handle, request in self.asks if request.at_commit]
        uppers = {request.collection: self._get_upper(request.collection) for request in asks}
        return choose_common_times(
            {request.collection: request for request in asks}, uppers, self.engine.clock.wall_ms()
        )

    def _get_upper(self, collection: str) -> int:
        """Return the upper of a collection; 0 if it does not exist."""
        contents = self.engine.follower.load(collection)
        return 0 if contents is None else contents.upper

    def _must_choose_again(self, chosen: tuple[str, int]) -> bool:
        """Return whether upper has passed a chosen time, and a later time exists."""
        collection, time = chosen
        return time < self._get_upper(collection) <= TIME_MAX

    def _submit_plans(self) -> CommitFuture:
        """Submit all plans and the other steps as one commit."""
        times, names = self.times, self.names
        # Differences to the earlier contents come first, and check that these are still there.
        first, last = list[Step](), list[Step]()
        for handle, request in self.asks:
            plan = self.plans[handle.id]
            (last if request.plain is None else first).extend(plan.steps)
            names = names | plan.names
        steps = [*first, *self.beside, *last]
        if times:
            steps = [
                msgspec.structs.replace(step, time=times[step.collection]) if isinstance(step, AtCommit) else step
                for step in steps
            ]
        # Kept when the record is refused: the next attempt may need it again.
        marked_steps = [
            msgspec.structs.replace(step, is_kept=True) if isinstance(step, Write) else step for step in steps
        ]
        return self.engine.submit(self.action, marked_steps, names)

    def _may_succeed(
        self, error: BaseException, before: Mapping[str, CollectionState], newest: Mapping[str, CollectionState]
    ) -> bool:
        """Return whether a refused commit may succeed on the newest contents."""
        if isinstance(error, UploadExpired):
            return not any(isinstance(step, Write) and isinstance(step.data, Future) for step in self.beside)
        if isinstance(error, Superseded):
            return True
        if newest == before:
            return False  # A condition among the steps beside does not hold, and will not.
        if isinstance(error, FrontierRegression | UpdateNotBeyondUpper | LateEvents):
            # Late events must be found again, and a refused caller gets the newest upper.
            decides = any(request.late is not None or request.is_least for _, request in self.asks)
            return decides or any(newest[id_].upper != before[id_].upper for id_ in before)
        return True

    def _discard(self, plans: Iterable[_Planned]) -> None:
        """Delete the uploads of plans that will not be committed."""
        writer = self.engine.writer(self.action)
        for plan in plans:
            for step in plan.steps:
                if isinstance(step, kinds.Resolve):
                    writer.resolver.discard(step.parts)
            self.engine.abandon(plan.steps)

    def _report_late(self, future: CommitFuture) -> None:
        """Pass the late events of upserts to their callers."""
        for handle, request in self.asks:
            late = self.plans[handle.id].late
            if request.late is not None and late is not None:
                request.late.update(late[REASON].to_pylist())
                future.late = late


def _plan_commit(
    handle: CollectionHandle, contents: CollectionState, request: AskedEvents, time: int | None
) -> _Planned:
    """Plan the steps of a request against some contents."""
    if request.plain is not None:
        return _Planned(contents, add_token(request.token, [handle.id], request.plain.steps()), {}, None)
    if time is not None:
        request = request.at(time)
    timely, late = _split_late_events(handle, contents, _lift_events(contents, request.bind_to(contents)))
    resolves = _needs_resolution(handle, request)
    steps = _make_resolving_steps(handle, contents, timely) if resolves else _make_plain_steps(handle, timely)
    if time is not None:
        steps.append(handle.commit_time_step(time))
    if request.late_steps is None or late is None:
        return _Planned(contents, steps, {}, late)
    more, named = request.late_steps(late)
    return _Planned(contents, [*steps, *more], named, late)


def _lift_events(contents: CollectionState, request: AskedEvents) -> AskedEvents:
    """Return the request with its events converted to the newest schema."""
    events = request.events
    if events is None or events.schema.version == len(contents.earlier) + 1:
        return request
    if events.is_partial:
        raise SchemaMismatch(
            f"the rows lack columns, and {contents.name!r} has another schema version than their handle: "
            "load the collection again, and write the rows by the new handle"
        )
    check_writable_version(contents, events.schema.version)
    newest = contents.schema
    table = lift_events(events.table, events.schema, newest)
    lifted = msgspec.structs.replace(events, schema=make_event_schema(newest, newest.value.fields), table=table)
    return msgspec.structs.replace(request, events=lifted)


def _split_late_events(
    handle: CollectionHandle, contents: CollectionState, request: AskedEvents
) -> tuple[AskedEvents, pa.Table | None]:
    """Return the request without the events that are late for these contents, and the late ones with reasons."""
    if request.late is None or request.events is None or handle.remembers_token(contents, request.token):
        return request, None
    timely_events, late = split_late(request.events, contents, get_keyed_form(handle))
    return msgspec.structs.replace(request, events=timely_events if len(timely_events.table) else None), late


def _make_resolving_steps(handle: CollectionHandle, contents: CollectionState, request: AskedEvents) -> list[Step]:
    """Return the steps that commit events with a seal, for these contents."""
    end = request.end
    assert end is not None
    if handle.remembers_token(contents, request.token):
        return [*request.marks]  # It was done before, which the committer will find.
    sealing = kinds.Seal(handle.id, encode_frontier(end))
    due_events, after = _split_events(request.events, end)
    first = [] if due_events is None else [pc.min(due_events["_time"]).as_py()]
    if request.change is not None:
        first.append(request.change.time or 0)
    if first and min(first) < contents.upper:
        error = UpdateNotBeyondUpper(min(first), to_antichain(contents.upper))
        raise attach_timeline(error, contents.timeline)
    if end < contents.upper:
        return [*request.also, sealing]  # It is refused, but first for its conditions on upper, as in the background.
    resolving: list[Step] = [sealing]
    change = None if request.change is None else partial(request.change.updates, handle)
    if due_events is not None or change is not None or list_due_parts(contents, end):
        watermarks = None if request.events is None or due_events is None else request.events.watermarks
        resolver = handle.engine.writer("seal").resolver
        machine = handle.load_machine(contents)
        resolution = resolver.make_resolution(contents, contents.schema, machine, end, due_events, watermarks, change)
        resolving = [ExpectErasures(handle.id, count_erasures(contents)), resolution]
    pending: list[Step] = []
    if after is not None and request.events is not None:
        # The watermarks of all these events, once.
        watermarks = request.events.watermarks if due_events is None else None
        pending = [handle.make_pend_step(msgspec.structs.replace(request.events, table=after, watermarks=watermarks))]
    return [*request.also, *resolving, *pending, *request.marks]


def _make_plain_steps(handle: CollectionHandle, request: AskedEvents) -> list[Step]:
    """Return the steps of a request that resolves nothing."""
    pending: list[Step] = [] if request.events is None else [handle.make_pend_step(request.events)]
    sealing: list[Step] = [] if request.end is None else [kinds.Seal(handle.id, encode_frontier(request.end))]
    if request.at_commit:
        sealing = [handle.commit_time_step()]
    return [*request.also, *pending, *sealing, *request.marks]


def _make_token_steps(handle: CollectionHandle, request: AskedEvents) -> list[kinds.Tokens]:
    """Return the step that stores the request's token in the collection."""
    if request.token is None or request.plain is not None:  # Its steps are known only with its plan.
        return []
    if request.events is None:
        digest = 0 if request.change is None else request.change.digest % DIGEST_MODULUS
        first = 0 if request.change is None else request.change.time or 0
        return [kinds.Tokens(handle.id, (TokenMark(request.token, first, f"{digest:016x}"),))]
    first = pc.min(request.events.table["_time"]).as_py()
    return [
        kinds.Tokens(handle.id, (TokenMark(request.token, first, f"{compute_events_digest(request.events):016x}"),))
    ]


def _split_events(events: EventTable | None, end: int) -> tuple[pa.Table | None, pa.Table | None]:
    """Return the events before end, and the others."""
    if events is None:
        return None, None
    ends = pc.min_max(events.table["_time"]).as_py()
    if ends["max"] < end:
        return events.table, None
    if ends["min"] >= end:
        return None, events.table
    mask = pc.less(events.table["_time"], end)
    return events.table.filter(mask), events.table.filter(pc.invert(mask))
