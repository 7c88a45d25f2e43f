"""Repair of checkpoints: a new one in place of those that cannot be read, and only then these are deleted.

The new one is made from the state that the examination replayed, at its seqno, with a new state object for every
collection and a new directory, so that it relies on nothing that may be damaged, too.
"""

from collections.abc import Iterator, Sequence

from persist.blob import Blob, Conflict, CorruptBlob, Corruption, IncompatibleVersion, get_at_most
from persist.fsck.log import LogExamination
from persist.fsck.report import Problem, Repair
from persist.log import BlobRef, checkpoint_key, checkpoint_seqno, encode_framed, encoded_object, state_prefix
from persist.replica import (
    Directory,
    NewDirectory,
    StateObject,
    checkpoint_of,
    checkpoint_state,
    load_contents,
    new_directory,
    read_checkpoint,
)
from persist.state import CollectionEntry, CollectionState, State

_BLOCKING = ("rule", "disagrees", "incompatible")


class Renewal:
    """What is to be done about the checkpoints of one location."""

    def __init__(self, blob: Blob, state: State, bad: Sequence[str], *, makes_one: bool) -> None:
        self._blob = blob
        self._state = state
        self._bad = bad
        self._makes_one = makes_one
        self._key = checkpoint_key(state.seqno)
        self._directory: NewDirectory | None = None

    @classmethod
    def of(cls, blob: Blob, log: LogExamination, problems: Sequence[Problem]) -> "Renewal | None":
        """Return what is to be done; None if there is nothing, or not enough is known to do it."""
        bad = sorted(key for key in log.bad_checkpoints if _is_bad(blob, key))
        newest_bad = max((checkpoint_seqno(key) or 0 for key in bad), default=-1)
        makes_one = log.newest < newest_bad or any(problem.kind == "overdue" for problem in problems)
        is_blocked = not log.is_complete or any(problem.kind in _BLOCKING for problem in problems)
        if is_blocked or not (bad or makes_one):
            return None
        assert log.state is not None
        return cls(blob, log.state, bad, makes_one=makes_one)

    def plan(self) -> Iterator[Repair]:
        """Yield what `run` will do."""
        if self._makes_one:
            for pointer, data in self._objects():
                present = _present(self._blob, pointer)
                if present != data:
                    yield self._made(pointer.blob, present is not None)
            yield self._made(self._key, self._key in self._bad)
        for key in self._bad:
            if not (self._makes_one and key == self._key):
                yield self._deleted(key)

    def run(self) -> Iterator[Repair]:
        """Do it; yield each thing that was done."""
        if self._makes_one:
            yield from self._make()
            made = read_checkpoint(self._blob, self._key)
            if made is None or _is_bad(self._blob, self._key):
                return  # What was written cannot be read: then nothing may be deleted.
        for key in self._bad:
            if key != self._key and _is_bad(self._blob, key):
                self._blob.delete(key)
                yield self._deleted(key)

    def _make(self) -> Iterator[Repair]:
        state = self._state
        assert state.location is not None
        assert state.commit is not None
        was_bad = _is_bad(self._blob, self._key)  # It may only lack a state object, which is made again here.
        for pointer, data in self._objects():
            present = _present(self._blob, pointer)
            if present != data:
                self._blob.set(pointer.blob, data)
                yield self._made(pointer.blob, present is not None)
        assert self._directory is not None, "it is made with the objects"
        data = encode_framed(checkpoint_of(state.location, state.seqno, state.commit, state.control, self._directory))
        if self._blob.create(self._key, data):
            yield self._made(self._key, False)
        elif was_bad:
            self._blob.set(self._key, data)
            yield self._made(self._key, True)

    def _objects(self) -> Iterator[tuple[BlobRef, bytes]]:
        """Yield what the new checkpoint needs besides itself, and set `_directory`."""
        state = self._state
        entries: dict[str, CollectionEntry | None] = {}
        assert state.location is not None
        for entry in state.entries.values():
            contents = entry.contents
            assert isinstance(contents, CollectionState), "all contents are known"
            stored = StateObject(location=state.location, collection=contents)
            pointer, data = encoded_object(state_prefix(entry.id, state.seqno), stored)
            entries[entry.id] = CollectionEntry(entry.id, entry.name, pointer, leased=entry.leased)
            yield pointer, data
        directory = Directory(state.entries.with_changes(entries), state.ids)
        self._directory = new_directory(state.location, state.seqno, directory, ())
        if self._directory.made is not None:
            yield self._directory.made

    def _made(self, key: str, is_there: bool) -> Repair:
        return Repair("replace" if is_there else "create", key, f"what the log says up to seqno {self._state.seqno}")

    def _deleted(self, key: str) -> Repair:
        return Repair("delete", key, "it cannot be used, and a newer or equal one can")


def _is_bad(blob: Blob, key: str) -> bool:
    """Whether there is a checkpoint from which not everything can be read, though its version is known."""
    try:
        checkpoint = read_checkpoint(blob, key)
        if checkpoint is not None:
            for entry in checkpoint_state(blob, checkpoint).entries.values():
                load_contents(blob, checkpoint.location, entry)
    except IncompatibleVersion:
        return False
    except (Corruption, ValueError, Conflict, AssertionError):
        return True
    return False


def _present(blob: Blob, pointer: BlobRef) -> bytes | None:
    """Return what is where pointer says, as far as it can be what belongs there; None if there is nothing."""
    try:
        return get_at_most(blob, pointer.blob, pointer.bytes)
    except CorruptBlob:
        return b""
