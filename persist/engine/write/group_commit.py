"""A group of operations becomes one record of the log, and each caller gets an answer.

For one group:

1. *Validate* each operation in order against a `Draft` of the newest known state. A rejection counts only if that state
   is the newest, so the log is read before a caller gets it. If the group is one operation, `Draft.check` leaves its
   mutations to step 3, which applies them once.
2. *Merge* the accepted operations into the least number of mutations (`persist.engine.write.operations`). A record is
   atomic, so this makes no difference to readers.
3. *Apply* the record to the state, and *create* it at the next seqno. The follower adopts the resulting state, unless
   another record came first. A client that loses the race applies the winner's record and starts again at 1, with the
   same uploads. Each attempt assigns new times, from the state that its record follows. Only the descriptors of parts
   get them, so no part is encoded again.

With a `relay`, another client first tries to commit the group together with others (`persist.engine.write.relay`). This
module settles the operations without an answer.

Every so many records, the pool makes a checkpoint of them (`Checkpointing`), one at a time.

A blob is stored before the record that refers to it, never after. Uploads of rejected operations are deleted; after an
indeterminate commit they are left, because the record may yet appear.
"""

import itertools
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from typing import TypeVar

import msgspec
from msgspec import UNSET

from persist.blob.protocol import Blob, is_remote
from persist.blob.threads import Clock
from persist.codecs.part.part import Part
from persist.core.antichain import decode_frontier
from persist.core.errors import (
    CollectionNotFound,
    Conflict,
    Corruption,
    Indeterminate,
    InvalidUsage,
    MissingBlob,
    PersistError,
    Unavailable,
)
from persist.core.log import kinds
from persist.core.log.framing import FORMAT
from persist.core.log.keys import PARTS, is_upload, make_record_key
from persist.core.log.kinds import BringsParts, Mutation
from persist.core.log.records import Record, Submitted, create_record, read_record, store_part_list
from persist.core.state_rules.draft import Draft
from persist.core.state_rules.location import check_uploaded
from persist.core.state_rules.state import State, apply_record, compute_format
from persist.engine.follow.checkpoint import is_checkpoint_due
from persist.engine.follow.follower import Follower
from persist.engine.write.archiving import add_archiving
from persist.engine.write.checkpointing import Checkpointing
from persist.engine.write.commit_future import Committed
from persist.engine.write.operations import (
    Operation,
    Step,
    Submission,
    Write,
    assign_times,
    is_clock_time,
    merge_operations,
    split_into_records,
)
from persist.engine.write.part_writer import PartWriter
from persist.engine.write.relay import Relay, fail_in_doubt, is_in_doubt, is_plain, list_submissions, may_be_relayed
from persist.engine.write.store_checks import LookBack, StoreProof

COUNTS = ("records", "operations", "repeated", "rejected", "lost_races", "relayed", "in_doubt")

B = TypeVar("B", bound=BringsParts)


class GroupCommit:
    """Commits one group after another; `commit` is called by one thread, the others by any."""

    def __init__(
        self,
        blob: Blob,
        follower: Follower,
        clock: Clock,
        writer_name: str,
        parts: PartWriter,
        pool: Executor,
        deadline_s: float,
    ) -> None:
        self.epoch: int | None = None  # Set once, when the location is opened exclusively.
        self.relay: Relay | None = None  # Set once, before anything is submitted.
        self.appended: Callable[[str], object] = lambda collection: None  # Told of each commit that adds updates.
        self.checkpointing = Checkpointing(blob, follower, pool)
        self._look_back = LookBack(blob, follower, clock, pool)
        self._blob = blob
        self._follower = follower
        self._clock = clock
        self._writer_name = writer_name
        self._parts = parts
        self._deadline_s = deadline_s
        self._proof = StoreProof(blob, clock, deadline_s=deadline_s)
        self._submitter, self._numbers, self._relayed = uuid.uuid4().hex, itertools.count(1), -1
        self._counts = dict.fromkeys(COUNTS, 0)
        if is_remote(blob) and follower.state.seqno >= 0 and follower.past.hole is None:
            newest = follower.get_newest_record()
            if newest is not None:
                self._proof.begin(newest, pool)

    def counts(self) -> dict[str, int]:
        """Return the counters of operations and records, by name.

        records: records of this client. operations: operations in these records, or in earlier ones. repeated:
        operations that an earlier record has. rejected: rejected operations. lost_races: attempts whose slot of the log
        was taken. checkpoints: made checkpoints. relayed: operations that another client committed or rejected for this
        one. in_doubt: operations that another client did not answer.
        """
        return self._counts | {"checkpoints": self.checkpointing.made}

    def abandon(self, steps: Sequence[Step]) -> None:
        """Delete the uploads of steps that will not be submitted."""
        for step in steps:
            if isinstance(step, Write) and isinstance(step.data, Future):
                step.data.add_done_callback(partial(self._discard_upload, step.collection))

    def commit(self, group: list[Operation]) -> None:
        """Resolve the future of every operation of the group."""
        operations = self._relay_first([operation for operation in group if self._is_uploaded(operation)])
        try:
            self._commit_directly(operations)
        except BaseException as error:
            fail_in_doubt(operations, error)
            raise

    def _relay_first(self, operations: list[Operation]) -> list[Operation]:
        """Let another client commit operations, if there is a relay; return the uncommitted ones."""
        relay, location = self.relay, self._follower.state.location
        if relay is None or location is None or not may_be_relayed(operations):
            return operations
        after = max(self._follower.state.seqno, self._relayed)
        to_relay = [
            msgspec.structs.replace(
                operation, submission=Submission(self._submitter, next(self._numbers), after, is_own=True)
            )
            for operation in operations
        ]
        answers = relay.commit(location, to_relay)
        if answers is None:
            return operations
        self._relayed = max((done.seqno for done in answers if isinstance(done, Committed)), default=self._relayed)
        unanswered = [operation for operation, answer in zip(to_relay, answers, strict=True) if answer is None]
        self._counts["relayed"] += len(to_relay) - len(unanswered)
        self._counts["in_doubt"] += len(unanswered)
        if not all(map(is_plain, to_relay)):
            with suppress(PersistError):  # They are committed; the next reader gets the error.
                self._follower.refresh()
        self._follower.looks.require_new_look()
        for operation, answer in zip(to_relay, answers, strict=True):
            if isinstance(answer, PersistError):
                self._reject_operation(operation, answer)
            elif answer is not None:
                operation.future.succeed(*answer)
        return unanswered

    def _commit_directly(self, operations: list[Operation]) -> None:
        """Commit operations in this client, in as few records as possible."""
        submissions = [operation.submission for operation in operations if operation.submission is not None]
        doubtful = [submission.after for submission in submissions if submission.is_own]
        if doubtful:
            self._follower.load_submissions(min(doubtful))
            if not self._look_back.look(self._follower.state):
                self._follower.restart()
        for of_record in split_into_records(operations):
            self._commit_record(of_record)

    def _commit_record(self, operations: list[Operation]) -> None:
        """Commit operations as one record, or reject them."""
        appends: dict[str, tuple[list[Write], list[kinds.Append | kinds.Pend]]] = {}
        is_alone = len(operations) == 1
        while operations:
            self._follower.past.prove(self._follower.state, self._follower.read_clocks())
            state, unreadable = self._load_state(operations)
            if not self._is_store_proven(state):
                continue
            operations = self._resolve_settled(operations, state, unreadable)
            try:
                accepted, done, rejected, times = self._validate(state, operations, unreadable, is_alone=is_alone)
            except MissingBlob:  # Pages of a directory that newer checkpoints do not refer to have been collected.
                if self._follower.restart().entries.shares_base_with(state.entries):
                    raise
                continue
            mutations = self._make_mutations(state, accepted, appends, times)
            is_final = bool(rejected) or (bool(accepted) and not mutations)
            if is_final and self._follower.refresh().seqno != state.seqno:
                continue  # Nobody is refused, and nothing found to change nothing, on the strength of an old state.
            # A record must rule out that another client commits these operations later.
            is_record = bool(mutations) or any(map(is_in_doubt, operations))
            try:
                if is_record:
                    record = self._make_record(state, mutations, list_submissions(operations, accepted))
                    try:
                        # Whatever went wrong before: a record that readers refuse must not enter the log.
                        after = apply_record(state, record)
                    except (InvalidUsage, Conflict):
                        if not is_alone:
                            raise
                        is_alone = False  # The draft finds the error for the caller.
                        continue
                if is_record and not self._create_record(state, record, after):
                    self._follower.refresh()
                    continue
                if not is_record and (accepted or done) and not self._look_back.look(state):
                    self._follower.restart()
                    continue
            except BaseException:
                for operation, _ in rejected:
                    if not is_in_doubt(operation):  # Another client may commit those yet.
                        untried = "it came after others that could not be committed, and was not tried. Try it again."
                        self._reject_or_return(state, operation, unreadable, untried)
                raise
            # Only now: an operation of this record may be the reason.
            for operation, error in rejected:
                self._reject_operation(operation, error)
            for mutation in mutations:
                if isinstance(mutation, kinds.Append | kinds.Resolve):
                    self.appended(mutation.collection)
            self._resolve_accepted(accepted, done, state.seqno + is_record, times)
            break

    def _resolve_accepted(
        self, accepted: list[Operation], done: list[Operation], seqno: int, times: Mapping[str, int]
    ) -> None:
        """Resolve the futures of committed operations."""
        self._counts["operations"] += len(accepted) + len(done)
        self._counts["repeated"] += len(done)
        for operation in done:
            self.abandon(operation.steps)
        for operation in accepted:
            operation.future.succeed(seqno, _select_times(times, operation))
        for operation in done:  # In this record, or in one before.
            operation.future.succeed(seqno, self._find_token_times(operation))

    def _find_token_times(self, operation: Operation) -> dict[str, int]:
        """Return the times that the earlier commit with an operation's token assigned."""
        marks = [step for step in operation.steps if isinstance(step, kinds.Tokens)] if operation.at_commit else []
        times: dict[str, int] = {}
        for marked in marks:
            entry = self._follower.entry(marked.collection)
            contents = None if entry is None else entry.contents
            for mark in marked.tokens if contents is not None else ():
                remembered_write = None if contents is None else self._follower.find_token(contents, mark.token)
                if remembered_write is not None:
                    times[marked.collection] = remembered_write.time_min
        return _select_times(times, operation)

    def _list_record_times(self, seqno: int, operation: Operation) -> dict[str, int]:
        """Return the times that a record assigned to an operation, from its seals; none if the record was truncated."""
        record = read_record(self._blob, seqno) if operation.at_commit else None
        sealed = {
            step.collection: step.upper if isinstance(step, kinds.Seal) else step.end
            for step in (() if record is None else record.mutations)
            if isinstance(step, kinds.Seal | kinds.Resolve)
        }
        return _select_times({id_: decode_frontier(upper) - 1 for id_, upper in sealed.items()}, operation)

    def _resolve_settled(
        self, operations: list[Operation], state: State, unreadable: dict[str, PersistError]
    ) -> list[Operation]:
        """Resolve the operations whose outcome is in the log; return the others."""
        submissions, unsettled = self._follower.submissions, []
        for operation in operations:
            submission = operation.submission
            if submission is None:
                unsettled.append(operation)
            elif not submissions.knows(submission.after):
                missing = f"records after {submission.after} have been truncated before this client read them"
                operation.future.fail(
                    Indeterminate(f"{missing}, and another client may have committed this there. Read back first.")
                )
            elif (seqno := submissions.find_seqno(submission.submitter, submission.number)) is not None:
                self._counts["operations"] += 1
                operation.future.succeed(seqno, self._list_record_times(seqno, operation))
            elif submissions.is_past(submission.submitter, submission.number):
                self._settle_past(state, operation, unreadable)
            else:
                unsettled.append(operation)
        return unsettled

    def _settle_past(self, state: State, operation: Operation, unreadable: dict[str, PersistError]) -> None:
        """Settle an operation that the log lacks, although it has later ones: it was rejected, or changed nothing."""
        accepted, done, _, times = self._validate(state, [operation], unreadable)
        adds = any(isinstance(step, Write) for step in operation.steps)
        if done or (accepted and not adds and not self._make_mutations(state, accepted, {}, times)):
            self._resolve_accepted(accepted, done, state.seqno, times)
            return
        lost = "it was refused while others that came after it were not, and why was lost. Try it again."
        self._reject_or_return(state, operation, unreadable, lost)

    def _reject_or_return(
        self, state: State, operation: Operation, unreadable: dict[str, PersistError], otherwise: str
    ) -> None:
        """Reject an operation with its validation error, or as Unavailable with the text `otherwise`."""
        _, _, rejected, _ = self._validate(state, [operation], unreadable)
        self._reject_operation(operation, rejected[0][1] if rejected else Unavailable(otherwise))

    def _is_store_proven(self, state: State) -> bool:
        """Prove once that the store's create refuses an existing key; return False to begin again.

        This comes before anything is created or acknowledged, so that no record of others is overwritten.
        """
        self._proof.check()
        record = self._proof.find_early_offer()
        if self._proof.is_given or state.seqno < 0:
            return True
        if record is None:
            newest = self._follower.get_newest_record()
            # After a restore in place its slot is free, and to offer it would put it back behind the restored log.
            if not self._follower.past.check_tops(state):
                self._follower.restart()
                self._follower.refresh()
                return False
            if newest is None or self._proof.offer(newest):
                return True
            record = newest
        if not self._follower.is_truncated(record.seqno):
            self._proof.refuse(record.seqno, "It was not tried.")
        # The store took it rightly, because it had been truncated meanwhile: it does not belong there any more.
        with suppress(PersistError):
            self._blob.delete(make_record_key(record.seqno))
        self._follower.restart()
        self._follower.refresh()
        return False

    def _make_record(self, state: State, mutations: tuple[Mutation, ...], marks: tuple[Submitted, ...]) -> Record:
        """Return the record of mutations that follows a state; `marks`: the submissions in it."""
        return Record(
            format=compute_format(state, mutations) if state.location else FORMAT,
            location=state.location or uuid.uuid4().hex,
            seqno=state.seqno + 1,
            commit=uuid.uuid4().hex,
            previous=state.commit,
            writer=self._writer_name,
            epoch=self.epoch,
            written_ms=self._clock.wall_ms(),
            mutations=mutations,
            submitted=marks or UNSET,
        )

    def _create_record(self, state: State, record: Record, after: State) -> bool:
        """Try to create a record as the successor of a state; return whether this succeeded.

        `after`: the result of `apply(state, record)`, which the follower adopts.
        """
        began = self._follower.read_clocks()
        look = self._look_back.begin(state)
        winner = create_record(self._blob, record, self._clock, deadline_s=self._deadline_s)
        past_is_there = look(record if winner is None else None)
        if winner is None and self._was_truncated(record, began, past_is_there=past_is_there):
            # The slot was free because the log was truncated beyond it: this record is not part of the log.
            with suppress(PersistError):  # Garbage collection deletes records below the floor.
                self._blob.delete(make_record_key(record.seqno))
            if not past_is_there:
                self._follower.restart()
            self._follower.refresh()
            return False
        if winner is None and not self._proof.is_given:
            self._proof.offer_own(record)
        if winner is not None:
            self._follower.apply_winner(winner)
            self._counts["lost_races"] += 1
            return False
        self._follower.advance(record, (state, after))
        self._counts["records"] += 1
        if is_checkpoint_due(record.seqno):
            self.checkpointing.begin(record.seqno)
        return True

    def _was_truncated(self, record: Record, began: tuple[float, float], *, past_is_there: bool) -> bool:
        """Return whether a record, created after began, went to a slot that had been truncated before."""
        try:
            was_truncated = self._follower.was_truncated(record, past_is_there=past_is_there)
        except PersistError as error:
            raise Indeterminate(
                f"a record was created at seqno {record.seqno} after so long that its slot may have been truncated "
                f"before, and that could not be found out: {error}. Read back before writing it again."
            ) from error
        if was_truncated and self._follower.is_long_ago(began):
            # Both are possible: it was in the log and was truncated since, or it never was.
            raise Indeterminate(
                f"creating a record at seqno {record.seqno} took so long that the log has been truncated beyond it "
                "meanwhile, so it is unknown whether the record was part of it. Read back before writing it again."
            )
        return was_truncated

    def _is_uploaded(self, operation: Operation) -> bool:
        """Return whether all uploads of an operation succeeded; reject it otherwise."""
        for step in operation.steps:
            if isinstance(step, Write) and (error := step.upload_error()) is not None:
                self._reject_operation(operation, error)
                return False
        return True

    def _load_state(self, operations: list[Operation]) -> tuple[State, dict[str, PersistError]]:
        """Return a state with the contents of all concerned collections, and the errors of unreadable ones."""
        unreadable: dict[str, PersistError] = {}
        ids = {step.collection for operation in operations for step in operation.steps}
        ids |= {step.source for operation in operations for step in operation.steps if isinstance(step, kinds.Clone)}
        ids.discard("")
        while True:
            for id_ in ids:
                try:
                    self._follower.load(id_)
                except Corruption as error:
                    unreadable[id_] = error
            state = self._follower.state
            # To load one, or to refresh in another thread, may go back to a checkpoint: without any contents.
            entries = [state.entries.get(id_) for id_ in ids - unreadable.keys()]
            if not [entry for entry in entries if entry is not None and entry.contents is None]:
                return state, unreadable

    def _make_mutations(
        self,
        state: State,
        accepted: list[Operation],
        appends: dict[str, tuple[list[Write], list[kinds.Append | kinds.Pend]]],
        times: Mapping[str, int],
    ) -> tuple[Mutation, ...]:
        """Return the mutations of the record; `appends` caches encoded writes for attempts after a lost race."""
        first, changes, last = merge_operations(accepted, times)
        mutations: list[Mutation] = [*first]
        for change in changes.values():
            entry = state.entries.get(change.id)
            contents = entry.contents if entry is not None else None
            appended = appends.get(change.id)
            if appended is None or appended[0] != change.writes:
                inline_bytes = contents.inline_bytes if contents is not None else 0
                appends[change.id] = (change.writes, self._parts.encode(change.id, change.writes, inline_bytes))
            encoded = appends[change.id][1]
            if change.id in times:
                encoded = [_stamp_mutation(mutation, times[change.id]) for mutation in encoded]
            for mutation in change.mutations(contents, encoded):
                if isinstance(mutation, BringsParts) and state.location is not None:
                    # For every attempt: garbage collection deletes lists whose names are below the log's floor.
                    mutation = store_part_list(
                        self._blob, state.location, mutation, state.seqno + 1, format=state.format
                    )
                mutations.append(add_archiving(self._blob, self._follower, state, contents, mutation))
        return (*mutations, *last)

    def _reject_operation(self, operation: Operation, error: BaseException) -> None:
        """Fail an operation's future; delete its uploads."""
        self.abandon([step for step in operation.steps if not (isinstance(step, Write) and step.is_kept)])
        if isinstance(error, CollectionNotFound):
            error = CollectionNotFound(operation.names.get(error.name, error.name), self._blob.url, error.known)
        self._counts["rejected"] += 1
        operation.future.fail(error)

    def _validate(
        self,
        state: State,
        operations: list[Operation],
        unreadable: dict[str, PersistError],
        *,
        is_alone: bool = False,
    ) -> tuple[list[Operation], list[Operation], list[tuple[Operation, PersistError]], dict[str, int]]:
        """Sort operations into valid ones, ones that were done before, and invalid ones with errors.

        Also return the times that the commit assigns. An operation that repeats another one of the same group counts as
        done before.

        `is_alone`: there is one operation. If its steps are in the order of mutations, `apply` validates them later.
        """
        draft = Draft(state, self.epoch, self._follower.find_token)
        times = assign_times(operations, partial(_get_upper, state), self._clock.wall_ms())
        accepted: list[Operation] = []
        done: list[Operation] = []
        rejected: list[tuple[Operation, PersistError]] = []
        for operation in operations:
            if unreadable:
                ids = [id_ for step in operation.steps for id_ in _list_concerned(step) if id_ in unreadable]
                if ids:
                    rejected.append((operation, unreadable[ids[0]]))
                    continue
            try:
                if operation.renew is not None:
                    operation = msgspec.structs.replace(operation, steps=tuple(operation.renew(state)))
                if operation.at_commit:
                    self._check_clock(state, operation, times)
                if is_alone and operation.is_in_order:
                    is_new = draft.check_only_operation(operation.plan(times))
                else:
                    for step in operation.steps:
                        # Here, where it costs its own operation only; `apply` would refuse the whole record.
                        if isinstance(step, Write) and isinstance(step.data, Future):
                            check_uploaded(state.control, kinds.Append(step.collection, step.data.result()))
                    is_new = draft.extend(operation.plan(times))
                (accepted if is_new else done).append(operation)
            except MissingBlob as error:
                if not error.key.startswith(PARTS):
                    raise
                rejected.append(
                    (operation, error)
                )  # An archive of tokens; if it was merged meanwhile, all begins again.
            except (InvalidUsage, Conflict, Corruption) as error:
                rejected.append((operation, error))
        return accepted, done, rejected, times

    def _check_clock(self, state: State, operation: Operation, times: Mapping[str, int]) -> None:
        """Raise ClockAhead if a clock that is far ahead assigns the time of an operation without `allow_future`."""
        if any(
            not a.allow_future and is_clock_time(a, times, _get_upper(state, a.collection)) for a in operation.at_commit
        ):
            error = self._follower.clock_check.make_error(state.seqno)
            if error is not None:
                raise error

    def _discard_upload(self, collection: str, upload: "Future[tuple[Part, ...]]") -> None:
        """Delete uploaded parts, unless another attempt has committed them."""
        entry = self._follower.entry(collection)
        if upload.exception() is not None or (entry is not None and entry.contents is None):
            return  # They may be in use, so they are left to garbage collection.
        committed = set() if entry is None or entry.contents is None else entry.contents.named_blobs
        self._parts.discard(
            part for part in upload.result() if part.blob not in committed and is_upload(part.blob, collection)
        )


def _list_concerned(step: Step) -> set[str]:
    """Return the collections whose contents determine whether a step is valid."""
    return {step.collection, step.source if isinstance(step, kinds.Clone) else ""} - {""}


def _get_upper(state: State, collection: str) -> int:
    """Return the upper of a collection; 0 if it is missing or unreadable, which other rules refuse."""
    entry = state.entries.get(collection)
    return 0 if entry is None or entry.contents is None else entry.contents.upper


def _select_times(times: Mapping[str, int], operation: Operation) -> dict[str, int]:
    """Return the assigned times of the collections of an operation."""
    return {
        request.collection: times[request.collection] for request in operation.at_commit if request.collection in times
    }


def _stamp_mutation(mutation: kinds.Append | kinds.Pend, time: int) -> kinds.Append | kinds.Pend:
    """Return a mutation with the time of the commit in its stamped parts."""
    parts = tuple(part.set_time(time) if part.stamped else part for part in mutation.parts)
    return msgspec.structs.replace(mutation, parts=parts)


logger = logging.getLogger(__name__)
