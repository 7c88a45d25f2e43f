"""Setting aside what lies beyond the end of the log, so that the log can go on from there.

    lost/<key>      what lay at <key>

Checkpoints and records are moved: copied, read back, and only then deleted, the last one first, so that a repair that
is interrupted leaves a location in which the rest still lies beyond the end and can be set aside by the next one. What
only these name (parts, part lists, directory and state objects) is copied; where it lay it is garbage like any other,
and goes by its rules. Nothing below `lost/` is ever changed or deleted by this library.

Only the end of the log decides what is set aside, and it is looked at again before anything is moved. If a record was
put back there in between, nothing is done. Clients that were open during the roll-back must be closed before: one that
has not noticed it could go on writing beyond the end.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress

from persist.blob import Blob, CorruptBlob, Corruption
from persist.fsck.log import LogExamination
from persist.fsck.report import Repair
from persist.log import BlobRef, BringsParts, checkpoint_key, kinds, read_record, record_key
from persist.replica import checkpoint_state, load_contents, read_checkpoint
from persist.state import State

LOST = "lost/"


class SettingAside:
    """What is to be done about records and checkpoints beyond the end of the log of one location."""

    def __init__(
        self, blob: Blob, state: State, beyond: Iterable[int], named: Iterable[str], checkpoints: Iterable[int] = ()
    ) -> None:
        self._blob = blob
        self._state = state
        self._moved = [checkpoint_key(seqno) for seqno in sorted(checkpoints, reverse=True)]
        self._moved += [record_key(seqno) for seqno in sorted(beyond, reverse=True)]
        self._copied = sorted(named)

    @classmethod
    def of(cls, blob: Blob, log: LogExamination, inventory: Iterable[str]) -> "SettingAside | None":
        """Return what is to be done, given the keys of all blobs; None if nothing lies beyond the end."""
        if not (log.beyond or log.beyond_checkpoints) or log.state is None:
            return None
        kept = log.state.named_blobs()
        named = {key for seqno in log.beyond for key in _named_by_record(blob, seqno)}
        named |= {key for seqno in log.beyond_checkpoints for key in _named_by_checkpoint(blob, seqno)} - log.named
        return cls(blob, log.state, log.beyond, named.intersection(inventory) - kept, log.beyond_checkpoints)

    def plan(self) -> Iterator[Repair]:
        """Yield what `run` will do."""
        yield from map(_copied, self._copied)
        yield from map(_moved, self._moved)

    def run(self) -> Iterator[Repair]:
        """Do it; yield each thing that was done."""
        following = read_record(self._blob, self._state.seqno + 1)
        if following is not None and following.previous == self._state.commit:
            return  # The log goes on: somebody has restored what was missing.
        for key in self._copied:
            if self._copy(key):
                yield _copied(key)
        for key in self._moved:
            if self._copy(key):
                self._blob.delete(key)
                yield _moved(key)

    def _copy(self, key: str) -> bool:
        """Copy a blob to where lost ones go; return False if it is not there any more."""
        data = self._blob.get(key)
        if data is None:
            return False
        self._blob.create(LOST + key, data)
        if self._blob.get(LOST + key) != data:
            raise CorruptBlob(
                LOST + key, f"it is not what {key} holds, which was to be copied there: move it elsewhere"
            )
        return True


def _named_by_checkpoint(blob: Blob, seqno: int) -> Iterator[str]:
    """Yield the keys of all that a checkpoint refers to, as far as that can be read."""
    with suppress(Corruption):
        checkpoint = read_checkpoint(blob, checkpoint_key(seqno))
        if checkpoint is None:
            return
        yield from (pointer.blob for pointer in checkpoint.directory)
        for entry in checkpoint_state(blob, checkpoint).entries.values():
            if isinstance(entry.base, BlobRef):
                yield entry.base.blob
            for mutation in entry.pending:
                if isinstance(mutation, BringsParts) and mutation.parts_in is not None:
                    yield mutation.parts_in.blob
            with suppress(Corruption):
                contents = load_contents(blob, checkpoint.location, entry).contents
                yield from contents.named_blobs if contents is not None else ()


def _named_by_record(blob: Blob, seqno: int) -> Iterator[str]:
    """Yield the keys of the parts and lists that a record brings, as far as it can be read."""
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


def _copied(key: str) -> Repair:
    return Repair("copy", key, f"to {LOST}{key}: only what lies beyond the end of the log names it")


def _moved(key: str) -> Repair:
    return Repair("move", key, f"to {LOST}{key}: it lies beyond the end of the log")
