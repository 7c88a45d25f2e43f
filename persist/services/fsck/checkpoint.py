"""Repairs checkpoints, and a log with objects beyond its end.

To repair checkpoints, a new one replaces the unreadable ones, which are deleted only afterwards.

The new one contains the state of the replay, at its seqno, with a new state object for every collection and a new
directory, so it depends on nothing that may be damaged as well.

Objects beyond the end of the log are set aside, so that the log can continue from there.

    lost/<key>      what lay at <key>

Checkpoints and records are moved: copied, read back, and only then deleted, the last one first. So after an interrupted
repair, the rest still lies beyond the end, and the next repair can set it aside. Objects that only the moved ones name
(parts, part lists, directory and state objects) are copied; the originals become ordinary garbage. Nothing below
`lost/` is ever changed or deleted by this library.

Only the end of the log decides what is set aside, and it is determined again before anything is moved. If a record was
put back there meanwhile, nothing is moved. All clients that were open when the store lost the end of its log must be
closed before: a client that has not noticed the loss could continue to write beyond the end.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec

from persist.blob.errors import Conflict, CorruptBlob, Corruption, IncompatibleVersion
from persist.blob.protocol import Blob, get_at_most
from persist.core.log import kinds
from persist.core.log.framing import BlobRef, encode_framed, make_pointer
from persist.core.log.keys import make_checkpoint_key, make_record_key, parse_checkpoint_seqno
from persist.core.log.kinds import BringsParts
from persist.core.log.records import read_record
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.state import CollectionEntry, State
from persist.engine.follow.checkpoint import (
    build_checkpoint,
    list_directory_blobs,
    load_contents,
    load_state,
    read_checkpoint,
)
from persist.engine.follow.directory import Directory, NewDirectory, store_directory
from persist.engine.follow.state_objects import make_levels
from persist.services.fsck.log import LogExamination
from persist.services.fsck.report import Problem, Repair

_BLOCKING = ("rule", "disagrees", "incompatible")


class CheckpointRepair:
    """The pending repair of a location's checkpoints."""

    def __init__(self, blob: Blob, state: State, bad: Sequence[str], *, makes_one: bool) -> None:
        self._blob = blob
        self._state = state
        self._bad = bad
        self._makes_one = makes_one
        self._key = make_checkpoint_key(state.seqno)
        self._directory: NewDirectory | None = None

    @classmethod
    def of(cls, blob: Blob, log: LogExamination, problems: Sequence[Problem]) -> "CheckpointRepair | None":
        """Return the repair of the checkpoints; None if none is needed, or the examination does not allow one."""
        bad = sorted(key for key in log.bad_checkpoints if _is_bad(blob, key))
        newest_bad = max((parse_checkpoint_seqno(key) or 0 for key in bad), default=-1)
        makes_one = log.newest < newest_bad or any(problem.kind == "overdue" for problem in problems)
        is_blocked = not log.is_complete or any(problem.kind in _BLOCKING for problem in problems)
        if is_blocked or not (bad or makes_one):
            return None
        assert log.state is not None
        return cls(blob, log.state, bad, makes_one=makes_one)

    def plan(self) -> Iterator[Repair]:
        """Yield the steps that `run` would do, and do none of them."""
        if self._makes_one:
            for pointer, data in self._make_objects():
                present = _read_object(self._blob, pointer)
                if present != data:
                    yield self._report(pointer.blob, present is not None)
            yield self._report(self._key, self._key in self._bad)
        for key in self._bad:
            if key != self._key:  # If that is bad, it is made again.
                yield self._delete_checkpoints(key)

    def run(self) -> Iterator[Repair]:
        """Repair the checkpoints; yield each step after it was done."""
        if self._makes_one:
            yield from self._store_checkpoint()
            checkpoint = read_checkpoint(self._blob, self._key)
            if checkpoint is None or _is_bad(self._blob, self._key):
                return  # The new checkpoint cannot be read back: then nothing may be deleted.
        for key in self._bad:
            if key != self._key and _is_bad(self._blob, key):
                self._blob.delete(key)
                yield self._delete_checkpoints(key)

    def _store_checkpoint(self) -> Iterator[Repair]:
        """Store a new checkpoint and its objects; yield each step."""
        state = self._state
        was_bad = _is_bad(self._blob, self._key)  # It may only lack a state object, which is made again here.
        for pointer, data in self._make_objects():
            present = _read_object(self._blob, pointer)
            if present != data:
                self._blob.set(pointer.blob, data)
                yield self._report(pointer.blob, present is not None)
        assert self._directory is not None, "it is made with the objects"
        data = encode_framed(build_checkpoint(state, self._directory))
        if self._blob.create(self._key, data):
            yield self._report(self._key, False)
        elif was_bad:
            self._blob.set(self._key, data)
            yield self._report(self._key, True)

    def _make_objects(self) -> Iterator[tuple[BlobRef, bytes]]:
        """Yield the objects of the new checkpoint, and set `_directory`."""
        state = self._state
        entries: dict[str, CollectionEntry | None] = {}
        assert state.location is not None
        for entry in state.entries.values():
            contents = entry.contents
            assert isinstance(contents, CollectionState), "all contents are known"
            (level,), data = make_levels(state.location, state.seqno, contents, (), format=state.format)
            entries[entry.id] = msgspec.structs.replace(entry, base=level.pointer, levels=(), pending=(), contents=None)
            yield level.pointer, data
        directory = Directory(state.entries.with_changes(entries), state.ids)
        objects: list[tuple[BlobRef, bytes]] = []

        def store(key: str, data: bytes) -> None:
            objects.append((make_pointer(key, data), data))

        self._directory = store_directory(self._blob, state, directory, (), (), store)
        yield from objects

    def _report(self, key: str, is_there: bool) -> Repair:
        """Return the step that stores an object from the replayed state."""
        return Repair("replace" if is_there else "create", key, f"what the log says up to seqno {self._state.seqno}")

    def _delete_checkpoints(self, key: str) -> Repair:
        """Return the step that deletes a checkpoint."""
        return Repair("delete", key, "it cannot be used, and a newer or equal one can")


def _is_bad(blob: Blob, key: str) -> bool:
    """Return whether a checkpoint has a known version, and cannot be read completely."""
    try:
        checkpoint = read_checkpoint(blob, key)
        if checkpoint is not None:
            for entry in load_state(blob, checkpoint).entries.values():
                load_contents(blob, checkpoint.location, entry)
    except IncompatibleVersion:
        return False
    except (Corruption, ValueError, Conflict, AssertionError):
        return True
    return False


def _read_object(blob: Blob, pointer: BlobRef) -> bytes | None:
    """Return an object's bytes; None if it is missing, b"" if it is larger than its pointer says."""
    try:
        return get_at_most(blob, pointer.blob, pointer.bytes)
    except CorruptBlob:
        return b""


LOST = "lost/"


class MoveToLost:
    """The pending move of records and checkpoints beyond the log's end."""

    def __init__(
        self, blob: Blob, state: State, beyond: Iterable[int], named: Iterable[str], checkpoints: Iterable[int] = ()
    ) -> None:
        self._blob = blob
        self._state = state
        self._moved = [make_checkpoint_key(seqno) for seqno in sorted(checkpoints, reverse=True)]
        self._moved += [make_record_key(seqno) for seqno in sorted(beyond, reverse=True)]
        self._copied = sorted(named)

    @classmethod
    def of(cls, blob: Blob, log: LogExamination, inventory: Iterable[str]) -> "MoveToLost | None":
        """Return the objects to move; None if nothing is beyond the end."""
        if not (log.beyond or log.beyond_checkpoints) or log.state is None:
            return None
        still_named = log.state.list_blobs()
        named = {key for seqno in log.beyond for key in _list_record_names(blob, seqno)}
        named |= {key for seqno in log.beyond_checkpoints for key in _list_checkpoint_names(blob, seqno)} - log.named
        return cls(blob, log.state, log.beyond, named.intersection(inventory) - still_named, log.beyond_checkpoints)

    def plan(self) -> Iterator[Repair]:
        """Yield the steps that `run` would do, and do none of them."""
        yield from map(_report_copied, self._copied)
        yield from map(_report_moved, self._moved)

    def run(self) -> Iterator[Repair]:
        """Move the objects; yield each step after it was done."""
        following = read_record(self._blob, self._state.seqno + 1)
        if following is not None and following.previous == self._state.commit:
            return  # The log continues: a missing record has been restored.
        for key in self._copied:
            if self._copy(key):
                yield _report_copied(key)
        for key in self._moved:
            if self._copy(key):
                self._blob.delete(key)
                yield _report_moved(key)

    def _copy(self, key: str) -> bool:
        """Copy a blob to lost/; return False if it is gone."""
        data = self._blob.get(key)
        if data is None:
            return False
        self._blob.create(LOST + key, data)
        if self._blob.get(LOST + key) != data:
            raise CorruptBlob(
                LOST + key, f"it is not what {key} holds, which a repair has to copy there: move it elsewhere"
            )
        return True


def _list_checkpoint_names(blob: Blob, seqno: int) -> Iterator[str]:
    """Yield the keys that a checkpoint refers to, as far as readable."""
    with suppress(Corruption):
        checkpoint = read_checkpoint(blob, make_checkpoint_key(seqno))
        if checkpoint is None:
            return
        yield from list_directory_blobs(blob, checkpoint)
        for entry in load_state(blob, checkpoint).entries.values():
            yield from (pointer.blob for pointer in entry.stored)
            for mutation in entry.pending:
                if isinstance(mutation, BringsParts) and mutation.parts_in is not None:
                    yield mutation.parts_in.blob
            with suppress(Corruption):
                contents = load_contents(blob, checkpoint.location, entry).contents
                yield from contents.named_blobs if contents is not None else ()


def _list_record_names(blob: Blob, seqno: int) -> Iterator[str]:
    """Yield the keys of a record's parts and lists, as far as readable."""
    try:
        record = read_record(blob, seqno)
    except Corruption:
        return
    for mutation in record.mutations if record is not None else ():
        if isinstance(mutation, BringsParts):
            yield from (part.blob for part in mutation.parts if part.blob)
            if mutation.parts_in is not None:
                yield mutation.parts_in.blob
        if isinstance(mutation, kinds.Publish):
            yield from mutation.blobs


def _report_copied(key: str) -> Repair:
    """Return the step that copies a blob to lost/."""
    return Repair("copy", key, f"to {LOST}{key}: only what lies beyond the end of the log names it")


def _report_moved(key: str) -> Repair:
    """Return the step that moves a record or checkpoint to lost/."""
    return Repair("move", key, f"to {LOST}{key}: it lies beyond the end of the log")
