"""Resolves the events of keyed collections: finds late events, and runs one client's resolutions in a thread.

A resolution consists of stored updates that replace events, ready to be committed. It is valid only for the contents
from which it was made; otherwise its record is refused, and its parts must be deleted. One thread runs a client's
requests to keyed collections that need look-ups, in call order (`KeyedQueue`). Maintenance calls `Resolver.resolve_due`
for collections with resolve="background".
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Literal

import msgspec
import numpy as np
import pyarrow as pa

from persist.blob.errors import Conflict, InvalidUsage, MissingBlob
from persist.blob.threads import Clock
from persist.codecs.order.arrays import get_int64_values, make_boolean_array
from persist.codecs.order.ordering import combine_chunks
from persist.codecs.part.part import Part
from persist.codecs.types.schema import CollectionSchema
from persist.core.antichain import encode_frontier
from persist.core.errors import ClientClosed, Locked, Superseded, UploadExpired
from persist.core.keyed.events import list_unchanged, mark_lacking
from persist.core.keyed.form import find_machine
from persist.core.keyed.intake import EventTable, bound_watermarks, mark_below
from persist.core.keyed.machine import GIVEN, SEQ, Machine
from persist.core.log import kinds
from persist.core.log.fields import KeyedForm, Watermarks
from persist.core.state_rules.collection_rules import ExpectErasures, apply_step
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.erasures import count_erasures
from persist.core.state_rules.keyed_rules import UNCHANGED, get_keyed_form, list_due_parts, list_unused_after_resolve
from persist.engine.follow.follower import Follower
from persist.engine.read.keyed.resolution import Purging, require_machine, resolve_events
from persist.engine.read.parts.reader import PartReader
from persist.engine.write.commit_future import CommitFuture, Committed
from persist.engine.write.operations import Step
from persist.engine.write.part_writer import PartWriter
from persist.engine.write.retrying import commit_with_retry

Late = Literal["raise", "collect"]
REASON = "_reason"


def split_late(events: EventTable, contents: CollectionState, form: KeyedForm) -> tuple[EventTable, pa.Table | None]:
    """Split events into timely ones and late ones (None without any), for some contents.

    Returns:
        the late ones without `_seq` and `_diff`, and with `_reason`: "sealed", or "late" for the late bound.
        `_unchanged` lists the columns that partial ones do not change.
    """
    table = events.table
    times = get_int64_values(combine_chunks(table["_time"]))
    is_sealed = times < contents.upper
    is_late = np.zeros(len(times), np.bool_)
    if form.order_by and contents.late_bound is not None:
        is_late = mark_below(table[form.order_by[0]], contents.late_bound)
        if events.is_partial:
            is_late &= ~mark_lacking(table, contents.schema, form.order_by[0])
    wrong = make_boolean_array(is_sealed | is_late)
    if not (is_sealed | is_late).any():
        return events, None
    timely_rows = table.filter(make_boolean_array(~(is_sealed | is_late)))
    reasons = pa.array(np.where(is_sealed, "sealed", "late"), pa.string()).filter(wrong)
    late = table.filter(wrong).drop_columns([SEQ, "_diff"])
    if events.is_partial:
        late = late.append_column(UNCHANGED, list_unchanged(late, contents.schema)).drop_columns([GIVEN])
    late = late.append_column(REASON, reasons)
    marks = None
    if form.order_by and len(timely_rows):
        ordered_rows = timely_rows
        if events.is_partial:
            lacks = mark_lacking(timely_rows, contents.schema, form.order_by[0])
            ordered_rows = timely_rows.filter(make_boolean_array(~lacks))
        marks = bound_watermarks(ordered_rows[form.order_by[0]])
    return msgspec.structs.replace(events, table=timely_rows, watermarks=marks), late


class KeyedQueue:
    """Runs one client's requests to keyed collections, in call order for each of them.

    Its thread plans and commits, and then runs the callbacks of futures. A callback that reads, or waits for a future,
    depends on the earlier requests. So the thread runs these first, inside the callback.

    Args:
        bytes_max: the most bytes of queued and running events; beyond it, callers wait.
        may_wait: whether the calling thread may wait for a commit.
    """

    def __init__(self, bytes_max: int, may_wait: Callable[[], bool]) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._queued: Counter[str] = Counter()
        self._bytes_max = bytes_max
        self._may_wait = may_wait
        self._bytes = 0
        self._submitted = self._done = 0
        self._pool: ThreadPoolExecutor | None = None
        self._is_closed = False
        self._jobs: deque[Callable[[], Callable[[], object]]] = deque()
        # Only the thread looks at these: itself, whether it is in a job, and what resolves the futures of jobs done.
        self._thread: threading.Thread | None = None
        self._is_in_job = False
        self._resolutions: deque[Callable[[], object]] = deque()

    def is_busy(self, collection: str) -> bool:
        """Return whether a job of a collection is queued or running."""
        with self._lock:
            return collection in self._queued

    def is_in_job(self) -> bool:
        """Whether the caller runs within a submitted job, and not in the callback of a future."""
        return self._is_own_thread() and self._is_in_job

    def submit(
        self, collections: Sequence[str], future: CommitFuture, do: Callable[[], Committed], size: int
    ) -> CommitFuture:
        """Run `do` after earlier jobs of the collections; resolve future with the result. `size`: bytes of events."""
        with self._lock:
            # A future's callback must not wait here: its thread is the one that makes room.
            if self._may_wait() and not self._is_own_thread():
                self._changed.wait_for(lambda: not self._bytes or self._bytes + size <= self._bytes_max)
            if self._is_closed:
                raise ClientClosed("a write")
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, "persist-resolver")
            self._queued.update(collections)
            self._bytes += size
            self._submitted += 1
            self._jobs.append(partial(self._run_job, collections, future, do, size))
            self._pool.submit(self._run_next_job)
        return future

    def settle(self) -> None:
        """Wait until all submitted jobs are done."""
        with self._lock:
            last = self._submitted
            if self._done >= last:
                return
            if not self._is_own_thread():
                self._changed.wait_for(lambda: self._done >= last)
        while not self._is_in_job and self._done < last:
            self._run_next()

    def prepare_wait(self) -> None:
        """In a callback that is about to wait for a future, run all submitted jobs."""
        if self._is_own_thread() and not self._is_in_job:
            self.settle()
            self._resolve_futures()

    def close(self) -> None:
        """Finish the submitted jobs, and end the thread; idempotent."""
        with self._lock:
            self._is_closed = True
            pool = self._pool
        self.prepare_wait()  # A future's callback may close its client.
        if pool is not None:
            pool.shutdown(wait=self._may_wait() and not self._is_own_thread())

    def _is_own_thread(self) -> bool:
        """Return whether the caller runs in the thread of this queue."""
        return threading.current_thread() is self._thread

    def _run_next_job(self) -> None:
        """Run the next job, and resolve its future."""
        self._thread = threading.current_thread()
        self._run_next()
        self._resolve_futures()

    def _run_next(self) -> None:
        """Run the first queued job, and keep the function that resolves its future."""
        if self._jobs:  # A callback may have been faster.
            self._is_in_job = True
            try:
                self._resolutions.append(self._jobs.popleft()())
            finally:
                self._is_in_job = False

    def _resolve_futures(self) -> None:
        """Resolve the futures of all jobs that are done."""
        while self._resolutions:
            self._resolutions.popleft()()

    def _run_job(
        self, collections: Sequence[str], future: CommitFuture, do: Callable[[], Committed], size: int
    ) -> Callable[[], object]:
        """Run a job, and return a function that resolves its future."""
        resolution: Callable[[], object]
        try:
            resolution = partial(future.succeed, *do())
        except BaseException as error:  # Whatever it is, the caller must get the error and the thread must go on.
            resolution = partial(future.fail, error)
        # Before the future resolves: who has waited for it finds nothing under way.
        with self._lock:
            self._queued -= Counter(collections)  # This drops collections of which none is left.
            self._bytes -= size
            self._done += 1
            self._changed.notify_all()
        return resolution


Submit = Callable[[Sequence[Step], dict[str, str]], CommitFuture]


class Resolver:
    """Resolves collections of one client; every method may be called from any thread.

    Args:
        submit: commits steps.
        part_writer, reader: stores parts; returns a reader of parts, for one read.
        clock: sleeps between attempts to commit.
    """

    def __init__(
        self,
        follower: Follower,
        submit: Submit,
        part_writer: PartWriter,
        reader: Callable[[], PartReader],
        clock: Clock,
    ) -> None:
        self._follower = follower
        self._submit = submit
        self._part_writer = part_writer
        self._reader = reader
        self._clock = clock
        self._given: dict[str, Machine] = {}
        self._purging = Purging()

    def remember_machine(self, collection: str, machine: Machine) -> None:
        """Remember the machine that a user gave for a collection, for maintenance."""
        self._given[collection] = machine

    def make_resolution(
        self,
        contents: CollectionState,
        schema: CollectionSchema,
        machine: Machine,
        end: int,
        own_events: pa.Table | None = None,
        watermarks: Watermarks | None = None,
        change: Callable[[CollectionState], Iterator[pa.Table]] | None = None,
    ) -> kinds.Resolve:
        """Resolve the pending events before `end`; return the resolution, whose updates are stored.

        It also resolves `own_events`, which the same commit adds, and removes unneeded tombstones. Memory: a slice of
        the events, and own_events.

        `change`: makes further updates from the contents after the resolution.
        """
        writer, reader = self._part_writer, self._reader()
        stored: list[Part] = []
        inline_bytes = contents.inline_bytes
        purged = self._purging.find_purged(contents, schema, end, reader)
        on_keys = (lambda keys: None) if purged is None else purged.keep_tombstones
        updates = resolve_events(contents, schema, machine, end, reader, own_events, on_keys)
        purged_tables = iter(()) if purged is None else (purged.updates(schema) for _ in range(1))
        pending, unused = list_due_parts(contents, end), list_unused_after_resolve(contents, end)

        def resolution() -> kinds.Resolve:
            start, until = encode_frontier(contents.resolved), encode_frontier(end)
            return kinds.Resolve(
                contents.id, start, until, pending, tuple(stored), watermarks=watermarks, unused=unused
            )

        def iterate_changes() -> Iterator[pa.Table]:
            if change is not None:  # Only now, when all updates of the events are stored.
                yield from change(apply_step(contents, resolution()))

        try:
            for table in chain(updates, purged_tables, iterate_changes()):
                if not len(table):
                    continue
                new_parts = writer.store_parts(contents.id, table, schema, inline_bytes)
                if machine.has_one_value:
                    new_parts = [part.mark_single() for part in new_parts]
                stored += new_parts
                inline_bytes += sum(len(part.inline) for part in new_parts)
                self._purging.count_resolved(contents.id, len(table))
        except BaseException:
            writer.discard(stored)
            raise
        return resolution()

    def discard(self, parts: Sequence[Part]) -> None:
        """Delete the parts of a resolution that was refused."""
        if parts:
            self._part_writer.discard(parts)

    def resolve(self, id_: str, name: str, user_machine: Machine | None) -> bool:
        """Turn the events of a collection up to its upper into updates; return whether there were any.

        `user_machine`: the user's machine, if it is not a built-in one.
        """

        def resolve_once() -> bool:
            """Resolve once, with the newest contents; return whether there was anything to do."""
            contents = self._follower.refresh_and_require(id_, name)
            if not list_due_parts(contents, contents.upper):
                return False
            machine = require_machine(
                find_machine(get_keyed_form(contents), user_machine, name), get_keyed_form(contents), name
            )
            resolution_parts: tuple[Part, ...] = ()
            try:
                step = self.make_resolution(contents, contents.schema, machine, contents.upper)
                resolution_parts = step.parts
                self._submit([ExpectErasures(id_, count_erasures(contents)), step], {id_: name}).result()
                return True
            except (InvalidUsage, Conflict):
                self.discard(resolution_parts)
                raise
            except MissingBlob as error:
                if self._follower.refresh_and_require(id_, name) == contents:
                    raise
                raise Superseded("parts that this resolution read were replaced and deleted meanwhile") from error

        return commit_with_retry(resolve_once, action="seal", clock=self._clock, conflicts=(Superseded, UploadExpired))

    def resolve_due(self, contents: CollectionState) -> bool:
        """Resolve a collection's sealed events, as maintenance does, if its machine is known here.

        Return whether work remains. If another client has the location exclusively, only that client resolves.
        """
        if (
            contents.keyed is None
            or contents.keyed.resolve != "background"
            or not list_due_parts(contents, contents.upper)
        ):
            return False
        machine = self._given.get(contents.id)
        if find_machine(contents.keyed, machine, contents.name) is not None:
            with suppress(Locked):
                self.resolve(contents.id, contents.name, machine)
                return False
        return True
