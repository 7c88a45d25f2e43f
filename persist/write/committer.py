"""Group commit: one thread per client that turns what callers asked for into records of the log, in call order.

While one PUT is in flight, callers queue up operations; the next record carries all of them. For one group:

1. *Validate* each operation in order against a `Draft` of the newest known state. A rejection counts only if that
   state is the newest there is, so the log is read before one is handed out.
2. *Merge* what was accepted into the least number of mutations (`persist.write.operations`). Readers cannot tell,
   because a record is atomic.
3. *Create* the record at the next seqno. Whoever loses the race applies the winner's record and starts again at 1,
   with the same uploads.

A caller that issues many operations without waiting for any would get a record for every few of them, because a commit
to a local folder takes less time than a few calls. When several operations are queued up and nobody waits for one, a
group therefore stays open for `LINGER_S`.

Large writes are encoded and uploaded by a pool as soon as they are asked for; small ones are encoded here. What is
asked for and not yet durable is bounded by the memory budget: beyond it, callers wait.

With a `relay`, another client is asked first to commit a group with those of others (`persist.write.relay`); what it
does not answer is settled here.

A blob is stored before the record that refers to it, never after. Uploads of rejected operations are deleted; after
an indeterminate commit they are left, because the record may yet appear.
"""

import collections
import itertools
import logging
import os
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from msgspec import UNSET

from persist.blob import Blob
from persist.blob.clock import Clock
from persist.codecs import CollectionSchema, Part, Stamp
from persist.errors import (
    ClientClosed,
    CollectionNotFound,
    Conflict,
    CorruptBlob,
    Corruption,
    Indeterminate,
    InvalidUsage,
    PersistError,
    Unavailable,
    UpdatesBeyondUpper,
)
from persist.log.commits import create_record
from persist.log.keys import is_upload, record_key, record_seqno
from persist.log.part_lists import move_out
from persist.log.records import Append, BringsParts, Mutation, Pend, Record, Replace, Resolve, Submitted
from persist.replica.checkpoint import checkpoint_due, write_checkpoint
from persist.replica.follower import Follower
from persist.replica.unsealed_writes import say_whose
from persist.state.collection_rules import ExpectNothingBeyondUpper
from persist.state.draft import Draft
from persist.state.location import check_uploaded
from persist.state.state import State, apply
from persist.upsert.taking import EventTable
from persist.write.future import CommitFuture, UnobservedErrors
from persist.write.hand_over import HandOver
from persist.write.operations import Operation, Step, Submission, Write, merge
from persist.write.part_writer import MEMORY_BUDGET, PartWriter
from persist.write.proof import StoreProof
from persist.write.relay import Relay, doubt, is_in_doubt, is_plain, may_be_relayed, submitted
from persist.write.write_steps import WriteSteps

GROUP_BYTES_MAX = 16 << 20
LINGER_S = 0.01
COUNTS = ("records", "operations", "repeated", "rejected", "lost_races", "checkpoints", "relayed", "in_doubt")

logger = logging.getLogger(__name__)
B = TypeVar("B", bound=BringsParts)


class Committer:
    """Owns the thread that commits; every method may be called from any thread."""

    def __init__(
        self,
        blob: Blob,
        follower: Follower,
        pool: Executor,
        clock: Clock,
        writer_name: str,
        memory_budget: int = MEMORY_BUDGET,
        hand_over: HandOver | None = None,
    ) -> None:
        self.epoch: int | None = None  # Set once, by whoever opened the location exclusively.
        self._blob = blob
        self._follower = follower
        self._pool = pool
        self._clock = clock
        self.writer_name = writer_name
        self._proof = StoreProof(blob, clock)
        self._parts = PartWriter(blob, follower.next_seqno, memory_budget, hand_over)
        self._write_steps = WriteSteps(self._parts, pool)
        self._in_flight_bytes_max = memory_budget
        self.unobserved = UnobservedErrors(blob.url)
        self.appended: Callable[[str], object] = lambda collection: None  # Told of each commit that adds updates.
        self._changed = threading.Condition()
        self._asked: collections.deque[Operation] = collections.deque()
        self.relay: Relay | None = None  # Set once, before anything is submitted.
        self._submitter, self._numbers, self._relayed = uuid.uuid4().hex, itertools.count(1), -1
        self._counts = dict.fromkeys(COUNTS, 0)
        self._hurry = threading.Event()
        self._in_flight_bytes = 0
        self._closed = False
        self._pid = os.getpid()
        self._submitted = self._resolved = 0
        self._committing: tuple[str, ...] = ()  # What people call the collections of the group under way.
        self._ended: list[Callable[[], object]] = []
        self._checkpointing = threading.Lock()
        self._checkpoint_from: int | None = None
        self._thread = threading.Thread(target=self._run, name="persist-committer", daemon=True)
        self._thread.start()

    def write_step(
        self,
        collection: str,
        schema: CollectionSchema,
        updates: Any,
        stamp: Stamp | None = None,
        *,
        digest_by: Sequence[str] = (),
    ) -> Write | None:
        """Return the step that adds updates; see `WriteSteps.of`."""
        return self._write_steps.of(collection, schema, updates, stamp, by=digest_by)

    def held_or_stored(
        self,
        collection: str,
        schema: CollectionSchema,
        updates: Any,
        stamp: Stamp | None,
        *,
        digest_by: Sequence[str] = (),
    ) -> tuple[pa.Table | tuple[Part, ...], int]:
        """Return updates in memory or as parts, and their digest; see `WriteSteps.held_or_stored`."""
        return self._write_steps.held_or_stored(collection, schema, updates, stamp, by=digest_by)

    def submit(
        self, steps: Sequence[Step], names: dict[str, str], submission: Submission | None = None
    ) -> CommitFuture:
        """Queue an operation; return at once, or as soon as there is room for it.

        Args:
            submission: by what id another client asks for it.

        Raises:
            ClientClosed: `close` was called before.
        """
        size = sum(step.bytes for step in steps if isinstance(step, Write))
        operation = Operation(tuple(steps), names, CommitFuture(self.unobserved, self._waited_for), size, submission)
        with self._changed:
            # In a future's callback there is no waiting: the thread that makes room is the one that would wait.
            if not self._is_own_thread():
                self._changed.wait_for(lambda: self._closed or self._has_room(operation.bytes))
            if self._closed:
                raise ClientClosed("a write")
            self._in_flight_bytes += operation.bytes
            self._submitted += 1
            self._asked.append(operation)
            self._changed.notify_all()
        return operation.future

    def new_future(self) -> CommitFuture:
        """Return the future of a commit that is still to be made of other commits; who makes it resolves it."""
        return CommitFuture(self.unobserved, self._waited_for)

    def events_step(self, collection: str, events: EventTable) -> Write:
        """Return the step that adds events; see `WriteSteps.of_events`."""
        return self._write_steps.of_events(collection, events)

    def counts(self) -> dict[str, int]:
        """Return what became of what was asked for.

        Records made, the operations they or an earlier record hold, those among them that were done before, those
        rejected, attempts that found their slot of the log taken, and checkpoints made. Of operations, besides: those
        that another client committed or rejected for this one, and those that it was asked for and did not answer.
        """
        return dict(self._counts)

    def abandon(self, steps: Sequence[Step]) -> None:
        """Delete what has been uploaded for steps that will not be submitted after all."""
        for step in steps:
            if isinstance(step, Write) and isinstance(step.data, Future):
                step.data.add_done_callback(partial(self._discard_upload, step.collection))

    def close(self) -> None:
        """Finish what was asked for and end the thread; idempotent."""
        self.request_stop()
        if not self._is_own_thread():  # A future's callback may close its client.
            self._thread.join()

    def request_stop(self) -> None:
        """Take no more operations, and let the thread end after those it has."""
        with self._changed:
            self._closed = True
            self._hurry.set()
            self._changed.notify_all()

    def pending(self) -> tuple[int, tuple[str, ...]]:
        """Return how many operations are not done yet, and the names of their collections."""
        with self._changed:
            asked = {name for operation in self._asked for name in operation.names.values()}
            return self._submitted - self._resolved, tuple(sorted(asked.union(self._committing)))

    def settle(self, timeout_s: float) -> bool:
        """Wait until all that was asked for by now is done; return False if it is not after timeout_s."""
        with self._changed:
            wanted = self._submitted
            if self._resolved < wanted:
                self._hurry.set()
            return self._changed.wait_for(lambda: self._resolved >= wanted, timeout_s)

    def when_ended(self, call: Callable[[], object]) -> None:
        """Have the thread call something when it ends, after `request_stop`; now, if it has ended."""
        with self._changed:
            if self._thread.is_alive():
                self._ended.append(call)
                return
        call()

    def may_wait(self) -> bool:
        """Whether the calling thread may wait for a commit: not in a future's callback."""
        return not self._is_own_thread()

    def check_may_wait(self) -> None:
        """Raise InvalidUsage in a future's callback; to be called before a lock is taken that is kept for a commit."""
        if self._is_own_thread():
            raise InvalidUsage(
                "a future's callback waits for another commit, which would wait for the callback. Do it in another "
                "thread, or await it."
            )

    def _waited_for(self) -> None:
        self.check_may_wait()
        if os.getpid() != self._pid:
            raise InvalidUsage(
                f"process {os.getpid()} waits for a commit that process {self._pid} asked for, and the thread that "
                "makes it did not come along with the fork. Wait for it there; open a new client in each process."
            )
        self._hurry.set()

    def _is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _has_room(self, wanted_bytes: int) -> bool:
        return self._in_flight_bytes == 0 or self._in_flight_bytes + wanted_bytes <= self._in_flight_bytes_max

    def _run(self) -> None:
        # Nothing of a group may be left here during the wait for the next: not its futures, callbacks, their client.
        while self._commit_next():
            pass
        with self._changed:
            ended, self._ended = self._ended, []
        for call in ended:
            call()

    def _commit_next(self) -> bool:
        """Commit the next group; return False when there is none any more."""
        group = self._next_group()
        try:
            self._commit(group)
        except BaseException as error:  # Whatever it is, the callers must hear of it and the thread live on.
            for operation in group:
                if not operation.future.done():
                    operation.future.fail(error)
        with self._changed:
            self._in_flight_bytes -= sum(operation.bytes for operation in group)
            self._resolved += len(group)
            self._committing = ()
            self._changed.notify_all()
        return bool(group)

    def _next_group(self) -> list[Operation]:
        """Wait for operations and return those to commit together; none when the client was closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._asked or self._closed)
            if not self._asked:
                return []
            first = self._asked[0]
            pipelined = len(self._asked) > 1
        wait(first.uploads)
        if pipelined:
            self._hurry.wait(LINGER_S)
        self._hurry.clear()
        group: list[Operation] = []
        group_bytes = 0
        with self._changed:
            # What is ready must not wait for an upload that was asked for later.
            while self._asked and group_bytes <= GROUP_BYTES_MAX and self._asked[0].is_ready:
                if group and (group[0].is_alone or self._asked[0].is_alone):
                    break
                group.append(self._asked.popleft())
                group_bytes += group[-1].bytes
            self._committing = tuple({name for operation in group for name in operation.names.values()})
        return group

    def _commit(self, group: list[Operation]) -> None:
        """Resolve the future of every operation of the group."""
        operations = self._relayed_first(self._with_failed_uploads_rejected(group))
        try:
            self._commit_here(operations)
        except BaseException as error:
            doubt(operations, error)
            raise

    def _relayed_first(self, operations: list[Operation]) -> list[Operation]:
        """Have another client commit operations, if there is one; return those that are left to do."""
        relay, location = self.relay, self._follower.state.location
        if relay is None or location is None or not may_be_relayed(operations):
            return operations
        after = max(self._follower.state.seqno, self._relayed)
        asked = [
            replace(each, submission=Submission(self._submitter, next(self._numbers), after, is_own=True))
            for each in operations
        ]
        answers = relay.commit(location, asked)
        if answers is None:
            return operations
        self._relayed = max((each for each in answers if isinstance(each, int)), default=self._relayed)
        left = [each for each, answer in zip(asked, answers, strict=True) if answer is None]
        self._counts["relayed"] += len(asked) - len(left)
        self._counts["in_doubt"] += len(left)
        if not all(map(is_plain, asked)):
            with suppress(PersistError):  # They are committed; whoever reads what they did hears of it.
                self._follower.refresh()
        for operation, answer in zip(asked, answers, strict=True):
            if isinstance(answer, PersistError):
                self._reject(operation, answer)
            elif answer is not None:
                operation.future.succeed(answer)
        return left

    def _commit_here(self, operations: list[Operation]) -> None:
        doubtful = [each.submission.after for each in operations if each.submission is not None and is_in_doubt(each)]
        if doubtful:
            self._follower.catch_up(min(doubtful))
        appends: dict[str, tuple[list[Write], list[Append | Pend]]] = {}
        while operations:
            self._follower.prove()
            state, unreadable = self._state_for(operations)
            if not self._is_store_proven(state):
                continue
            operations = self._unsettled(operations, state, unreadable)
            accepted, done, rejected = self._validate(state, operations, unreadable)
            mutations = self._mutations(state, accepted, appends)
            is_final = bool(rejected) or (bool(accepted) and not mutations)
            if is_final and self._follower.refresh().seqno != state.seqno:
                continue  # Nobody is refused, and nothing found to change nothing, on the strength of an old state.
            # What may come in another way must not, before anybody is told what became of it.
            is_record = bool(mutations) or any(map(is_in_doubt, operations))
            try:
                if is_record and not self._create(state, mutations, submitted(operations, accepted)):
                    self._follower.refresh()  # Where many race, the next slot has been taken meanwhile, too.
                    continue
            except BaseException:
                self._reject_without(state, rejected, unreadable)
                raise
            # Only now: what refuses them may be what was asked for before them, and is true only with this record.
            for operation, error in rejected:
                self._reject(operation, error)
            for mutation in mutations:
                if isinstance(mutation, Append | Resolve):
                    self.appended(mutation.collection)
            self._succeed(accepted, done, state.seqno + is_record)
            break

    def _succeed(self, accepted: list[Operation], done: list[Operation], seqno: int) -> None:
        self._counts["operations"] += len(accepted) + len(done)
        self._counts["repeated"] += len(done)
        for operation in done:
            self.abandon(operation.steps)
        for operation in (*accepted, *done):
            operation.future.succeed(seqno)

    def _unsettled(
        self, operations: list[Operation], state: State, unreadable: dict[str, PersistError]
    ) -> list[Operation]:
        """Resolve operations of which the log says what became of them; return the others."""
        known, left = self._follower.submissions, []
        for operation in operations:
            asked = operation.submission
            if asked is None:
                left.append(operation)
            elif not known.knows(asked.after):
                missing = f"records after {asked.after} have been truncated before this client read them"
                operation.future.fail(
                    Indeterminate(f"{missing}, and another client may have committed this there. Read back first.")
                )
            elif (seqno := known.seqno_of(asked.submitter, asked.number)) is not None:
                self._counts["operations"] += 1
                operation.future.succeed(seqno)
            elif known.is_past(asked.submitter, asked.number):
                self._settle_past(state, operation, unreadable)
            else:
                left.append(operation)
        return left

    def _settle_past(self, state: State, operation: Operation, unreadable: dict[str, PersistError]) -> None:
        """Answer an operation that is not in the log, while later ones are: it was rejected, or had nothing to do."""
        accepted, done, alone = self._validate(state, [operation], unreadable)
        adds = any(isinstance(step, Write) for step in operation.steps)
        if done or (accepted and not adds and not self._mutations(state, accepted, {})):
            self._succeed(accepted, done, state.seqno)
            return
        lost = Unavailable("it was refused while others that came after it were not, and why was lost. Try it again.")
        self._reject(operation, alone[0][1] if alone else lost)

    def _reject_without(
        self,
        state: State,
        rejected: list[tuple[Operation, PersistError]],
        unreadable: dict[str, PersistError],
    ) -> None:
        """Reject operations of a group whose record was not confirmed, with what state alone has against each.

        Those that another client may commit yet are left out.
        """
        for operation, _ in rejected:
            if is_in_doubt(operation):
                continue
            _, _, alone = self._validate(state, [operation], unreadable)
            error = Unavailable("it came after others that could not be committed, and was not tried. Try it again.")
            self._reject(operation, alone[0][1] if alone else error)

    def _is_store_proven(self, state: State) -> bool:
        """Have the store show that it refuses what exists, unless it has or the log is empty; False: begin again.

        Before anything is created, or found to have been done before: so no record of others is overwritten.
        """
        self._proof.check()
        if self._proof.is_given or state.seqno < 0:
            return True
        newest = self._follower.newest_record()
        if newest is None or self._proof.offer(newest):
            return True
        if not self._follower.is_truncated(newest.seqno):
            self._proof.refuse(newest.seqno, "It was not tried.")
        # The store took it rightly, because it had been truncated meanwhile: it does not belong there any more.
        with suppress(PersistError):
            self._blob.delete(record_key(newest.seqno))
        self._follower.restart()
        self._follower.refresh()
        return False

    def _create(self, state: State, mutations: tuple[Mutation, ...], marks: tuple[Submitted, ...]) -> bool:
        """Try to be the record that follows state; return whether this was it."""
        record = Record(
            location=state.location or uuid.uuid4().hex,
            seqno=state.seqno + 1,
            commit=uuid.uuid4().hex,
            previous=state.commit,
            writer=self.writer_name,
            epoch=self.epoch,
            written_ms=self._clock.wall_ms(),
            mutations=mutations,
            submitted=marks or UNSET,
        )
        # Whatever went wrong before, a record that readers would refuse must not enter the log.
        after = apply(state, record)
        began = self._follower.now()
        winner = create_record(self._blob, record, self._clock)
        if winner is None and self._was_truncated(record, began):
            # The slot was free because its record is no longer needed: this one is not part of the log.
            with suppress(PersistError):  # What stays below the floor is collected sooner or later.
                self._blob.delete(record_key(record.seqno))
            self._follower.refresh()
            return False
        if winner is None and not self._proof.is_given:
            self._proof.offer_own(record)
        self._follower.advance(winner or record, (state, after) if winner is None else None)
        self._counts["records" if winner is None else "lost_races"] += 1
        if winner is None and checkpoint_due(record.seqno):
            self._start_checkpoint(record.seqno)
        return winner is None

    def _was_truncated(self, record: Record, began: tuple[float, float]) -> bool:
        """Return whether a record, created after began, went to a slot that had been truncated before."""
        try:
            was_truncated = self._follower.was_truncated(record)
        except PersistError as error:
            raise Indeterminate(
                f"a record was created at seqno {record.seqno} after so long that its slot may have been truncated "
                f"before, and that could not be found out: {error}. Read back before writing it again."
            ) from error
        if was_truncated and self._follower.is_long_ago(began):
            # Both are possible: it was in the log and was truncated since, or it never was.
            raise Indeterminate(
                f"creating a record at seqno {record.seqno} took so long that the log has been truncated beyond it "
                "meanwhile, so it cannot be told whether the record was part of it. Read back before writing it again."
            )
        return was_truncated

    def _with_failed_uploads_rejected(self, group: list[Operation]) -> list[Operation]:
        uploaded = []
        for operation in group:
            failed = (step.upload_error() for step in operation.steps if isinstance(step, Write))
            error = next((error for error in failed if error is not None), None)
            if error is None:
                uploaded.append(operation)
            else:
                self._reject(operation, error)
        return uploaded

    def _state_for(self, operations: list[Operation]) -> tuple[State, dict[str, PersistError]]:
        """Return a state with the contents of all collections concerned, and why some could not be read."""
        unreadable: dict[str, PersistError] = {}
        wanted = {step.collection for operation in operations for step in operation.steps} - {""}
        while wanted:
            for id_ in wanted:
                try:
                    self._follower.load(id_)
                except Corruption as error:
                    unreadable[id_] = error
            state = self._follower.state
            # To load one, or to refresh in another thread, may go back to a checkpoint: without any contents.
            loaded = (state.entries.get(id_) for id_ in wanted - unreadable.keys())
            if all(entry is None or entry.contents is not None for entry in loaded):
                return state, unreadable
        return self._follower.state, unreadable

    def _mutations(
        self, state: State, accepted: list[Operation], appends: dict[str, tuple[list[Write], list[Append | Pend]]]
    ) -> tuple[Mutation, ...]:
        """Return what the record must say; appends keeps what was encoded for an attempt that lost the race."""
        first, changes, last = merge(accepted)
        mutations: list[Mutation] = [*first]
        for change in changes.values():
            entry = state.entries.get(change.id)
            contents = entry.contents if entry is not None else None
            known = appends.get(change.id)
            if known is None or known[0] != change.writes:
                inline_bytes = contents.inline_bytes if contents is not None else 0
                appends[change.id] = (change.writes, self._parts.encoded(change.id, change.writes, inline_bytes))
            encoded = appends[change.id][1]
            if state.location is not None:
                # For every attempt: a list whose name is below the log's floor is collected, whoever names it.
                move = partial(_moved_out, self._blob, state.location, state.seqno + 1)
                encoded, change.replaces = move(encoded), move(change.replaces)
                change.resolves = move(change.resolves)
            mutations += change.mutations(contents, encoded)
        return (*mutations, *last)

    def _reject(self, operation: Operation, error: BaseException) -> None:
        self.abandon([step for step in operation.steps if not (isinstance(step, Write) and step.is_kept)])
        if isinstance(error, CollectionNotFound):
            error = CollectionNotFound(operation.names.get(error.name, error.name), self._blob.url, error.known)
        if isinstance(error, UpdatesBeyondUpper):
            self._say_whose(operation, error)
        self._counts["rejected"] += 1
        operation.future.fail(error)

    def _say_whose(self, operation: Operation, error: UpdatesBeyondUpper) -> None:
        for step in operation.steps:
            if isinstance(step, ExpectNothingBeyondUpper) and not error.writes:
                say_whose(error, self._blob, self._follower.state, step.collection, self.writer_name)

    def _discard_upload(self, collection: str, upload: "Future[tuple[Part, ...]]") -> None:
        """Delete parts, except those that were committed nevertheless, such as by a commit that was tried again."""
        entry = self._follower.state.entries.get(collection)
        if upload.exception() is not None or (entry is not None and entry.contents is None):
            return  # Nobody knows whether they are in use, so they are left to garbage collection.
        committed = set() if entry is None or entry.contents is None else {p.blob for p in entry.contents.stored_parts}
        self._parts.discard(
            part for part in upload.result() if part.blob not in committed and is_upload(part.blob, collection)
        )

    @property
    def checkpoint_from(self) -> int | None:
        """The least seqno of the checkpoint that this client is making, None if it makes none."""
        return self._checkpoint_from

    def _start_checkpoint(self, seqno: int) -> None:
        if self._checkpointing.acquire(blocking=False):
            self._checkpoint_from = seqno
            try:
                self._pool.submit(self._checkpoint)
            except RuntimeError:  # The client was closed by a callback: the next one makes it.
                self._end_checkpoint()

    def _checkpoint(self) -> None:
        """Make a checkpoint. One that fails is no caller's concern: the next one serves as well."""
        state, recent, levels = self._follower.recent()
        try:
            self._follower.prove_now()
            self._counts["checkpoints"] += write_checkpoint(self._blob, state, recent, levels)
        except PersistError as error:
            logger.warning("the checkpoint at seqno %d was not made: %s", state.seqno, error)
            seqno = record_seqno(error.key) if isinstance(error, CorruptBlob) else None
            if seqno is not None:
                with suppress(PersistError):  # Whoever asks for something next is told.
                    self._follower.doubt(seqno)
        finally:
            self._end_checkpoint()

    def _end_checkpoint(self) -> None:
        self._checkpoint_from = None
        self._checkpointing.release()

    def _validate(
        self, state: State, operations: list[Operation], unreadable: dict[str, PersistError]
    ) -> tuple[list[Operation], list[Operation], list[tuple[Operation, PersistError]]]:
        """Return the operations that may follow state in this order, those done before, and the others with the reason.

        One that repeats another of the same group counts as done, too: it is once the group is.
        """
        draft = Draft(state, self.epoch)
        accepted: list[Operation] = []
        done: list[Operation] = []
        rejected: list[tuple[Operation, PersistError]] = []
        for operation in operations:
            broken = [unreadable[step.collection] for step in operation.steps if step.collection in unreadable]
            try:
                if broken:
                    raise broken[0]
                for step in operation.steps:
                    # Here, where it costs its own operation only; `apply` would refuse the whole record.
                    if isinstance(step, Write) and isinstance(step.data, Future):
                        check_uploaded(state.control, Append(step.collection, step.data.result()))
                    elif isinstance(step, Replace | Resolve):
                        check_uploaded(state.control, step)
                (accepted if draft.extend(operation.plan()) else done).append(operation)
            except (InvalidUsage, Conflict, Corruption) as error:
                rejected.append((operation, error))
        return accepted, done, rejected


def _moved_out(blob: Blob, location: str, seqno: int, mutations: Sequence[B]) -> list[B]:
    return [move_out(blob, location, each, seqno) for each in mutations]
