"""Examines the log by replaying it: records, part lists, checkpoints and state objects.

Records are read one after the other and applied, beginning at seqno 0 or at the oldest checkpoint from which all
records are there. When the replay reaches the seqno of a checkpoint, both states must be equal. After a record that is
missing or cannot be applied, the replay continues from the next checkpoint; records in between are verified, but not
applied. If there is no next checkpoint, and only a missing or invalid record stops the replay, the log ends there, and
later records lie beyond its end.

Others write and collect garbage meanwhile. So a missing object is a problem only if it is still needed after the log
has been read to its end again: see `LogExamination.finish`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from persist.blob.errors import Conflict, CorruptBlob, Corruption, MissingBlob
from persist.blob.protocol import Blob
from persist.codecs.part.part import Part
from persist.core.log import kinds
from persist.core.log.framing import BlobRef
from persist.core.log.keys import list_checkpoints, list_records, make_checkpoint_key, make_record_key
from persist.core.log.kinds import BringsParts, Mutation
from persist.core.log.records import load_part_list, read_record
from persist.core.state_rules.collection_rules import check_contents
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.state import CollectionEntry, DoesNotFollow, State, apply_record
from persist.engine.follow.checkpoint import (
    Checkpoint,
    list_checkpoints_beyond_log,
    list_directory_blobs,
    load_base,
    load_state,
    read_checkpoint,
)
from persist.engine.follow.directory import KnownLevels
from persist.services.fsck.report import Findings


@dataclass(frozen=True, slots=True)
class LoosePart:
    """A part that only a record or an old checkpoint names. `is_events`: whether its rows are events."""

    collection: str
    part: Part
    is_events: bool


class LogExamination:
    """Replays the log of one location.

    Attributes:
        state: after the replay, with every readable collection; None without a state to begin from.
        at: the seqno of the next record to read.
        floor: the first seqno that the newest readable checkpoint still needs.
        newest: the seqno of the newest checkpoint from which everything could be read; -1 if there is none.
        named: the keys of part lists and state objects that records or checkpoints refer to.
        loose: parts that may be missing from `state`, because damage prevented a record from being applied.
        created, evolved: by id of a collection, the mutation that created it, and the later versions of its schema.
        beyond, beyond_checkpoints: seqnos beyond the end of the log; known when the examination is finished.
    """

    def __init__(self, blob: Blob, findings: Findings) -> None:
        self._blob = blob
        self._findings = findings
        self.state: State | None = None
        self.at = 0
        self.floor = 0
        self.newest = -1
        self.bad_checkpoints: set[str] = set()
        self.named: set[str] = set()
        self.loose: list[LoosePart] = []
        self.created: dict[str, kinds.Makes] = {}
        self.evolved: dict[str, list[dict[str, Any]]] = {}
        self.beyond: tuple[int, ...] = ()
        self.beyond_checkpoints: tuple[int, ...] = ()
        self._doubtful: list[int] = []  # Checkpoints whose records are not there, and that nothing is read from.
        self._unapplied: list[int] = []
        self._strange: dict[int, str] = {}  # Records that were made after others than are there.
        self._broken: set[int] = set()  # Seqnos of records that are there, and that cannot be believed or applied.
        self._waiting: list[int] = []
        self._examined: set[int] = set()
        self._gaps: list[tuple[int, int]] = []
        self._missing_lists: list[tuple[int, MissingBlob]] = []
        self._levels = KnownLevels()
        self._bases: dict[str, tuple[tuple[BlobRef, ...], CollectionState | None]] = {}

    @property
    def is_complete(self) -> bool:
        """Whether `state` is complete and at the end of the log."""
        state = self.state
        return (
            state is not None
            and state.seqno == self.at - 1
            and all(entry.contents is not None for entry in state.entries.values())
        )

    def run(self) -> None:
        """Read the whole log and all checkpoints."""
        self._list_checkpoints()
        self.floor = self.at = self._read_floor()
        if self.floor == 0:
            self.state = State()
        self.follow()

    def follow(self) -> None:
        """Read new records up to the log's end. Cost: a GET for each, a LIST, two GETs."""
        while True:
            self._examine_checkpoints()
            if self._examine_record():
                self.at += 1
                continue
            self._list_checkpoints()
            later = [seqno for seqno, _ in islice(list_records(self._blob, self.at), 1)]
            later += [seqno + 1 for seqno in self._waiting if seqno >= self.at][:1]
            following = min(later, default=None)
            # The record was created since, or a concurrent listing skipped it.
            if following is not None and self._examine_record():
                self.at += 1
            elif following is not None:
                self._gaps.append((self.at, following))
                self.at = following
            else:
                self._examine_checkpoints()  # Those that were made since.
                return

    def finish(self) -> None:
        """Add problems that depend on where the log ends."""
        floor = self.floor if self.state is None else max(self.floor, self.state.control.log_floor)
        for start, end in self._gaps:
            if (start := max(start, floor)) < end:
                what = f"the {end - start} records of seqnos {start} to {end - 1} are missing, and there are later ones"
                self._findings.add("missing", make_record_key(start), what)
        for seqno, error in self._missing_lists:
            if seqno >= floor:
                self._findings.add_corruption(error)
        end = -1 if self.state is None else self.state.seqno
        for seqno, why in self._strange.items():
            if seqno <= end or end + 1 in self._broken:
                self._findings.add("rule", make_record_key(seqno), f"it breaks a rule of the log: {why}")
        if self.state is not None:
            if end + 1 not in self._broken:
                self._find_beyond(end)
            _examine_state(self.state, self._findings)

    def _find_beyond(self, end: int) -> None:
        """Note records beyond the log's end, after a gap."""
        self.beyond = tuple(seqno for seqno in self._unapplied if seqno > end)
        still = list_checkpoints_beyond_log(self._blob) if self._doubtful else []
        self.beyond_checkpoints = tuple(seqno for seqno in self._doubtful if seqno in still)
        last = max(self.beyond_checkpoints, default=end)
        if last > end and not self.beyond:
            what = f"the {last - end} records of seqnos {end + 1} to {last} are missing, and a checkpoint is later"
            self._findings.add("missing", make_record_key(end + 1), what)
        for seqno in self.beyond_checkpoints:
            what = f"the log ends at seqno {end}, and this checkpoint was made after records that it does not have"
            self._findings.add("beyond", make_checkpoint_key(seqno), what)
        if self.beyond:
            first, last = self.beyond[0], self.beyond[-1]
            what = (
                f"the log ends at seqno {end}, and {len(self.beyond)} records from {first} to {last} lie beyond that, "
                "made after others than are there"
            )
            self._findings.add("beyond", make_record_key(first), what)

    # Records.

    def _examine_record(self) -> bool:
        """Read and apply the record at `at`; return whether there is one."""
        seqno, key = self.at, make_record_key(self.at)
        try:
            record = read_record(self._blob, seqno)
        except Corruption as error:
            if isinstance(error, CorruptBlob) and error.key != key:
                self.named.add(error.key)
            if isinstance(error, MissingBlob):
                self._missing_lists.append((seqno, error))
            else:
                self._findings.add_corruption(error)
            self._broken.add(seqno)
            self._unapplied.append(seqno)
            return True
        if record is None:
            return False
        self._note_mutations(record.mutations)
        is_applied = False
        if self.state is not None and self.state.seqno == seqno - 1:
            try:
                self.state = apply_record(self.state, record)
                is_applied = True
            except DoesNotFollow as error:
                self._strange[seqno] = str(error)
            except (ValueError, Conflict, AssertionError) as error:
                self._findings.add("rule", key, f"it breaks a rule of the log: {error}")
                self._broken.add(seqno)
        if not is_applied:
            self._unapplied.append(seqno)
        self._note_loose(record.mutations, self.state if is_applied else None)
        return True

    def _note_loose(self, mutations: Iterable[Mutation], state: State | None) -> None:
        """Note the parts that mutations append to collections whose contents are unknown."""
        for mutation in mutations:
            if isinstance(mutation, BringsParts):
                entry = state.entries.get(mutation.collection) if state is not None else None
                if state is None or (entry is not None and entry.contents is None):
                    first_event = 0 if isinstance(mutation, kinds.Pend) else len(mutation.parts)
                    first_event -= mutation.events if isinstance(mutation, kinds.Erase) else 0
                    self.loose += [
                        LoosePart(mutation.collection, part, n >= first_event) for n, part in enumerate(mutation.parts)
                    ]

    def _note_mutations(self, mutations: Iterable[Mutation]) -> None:
        """Note the part lists, creations and schemas in mutations, for later checks."""
        for mutation in mutations:
            if isinstance(mutation, BringsParts) and mutation.parts_in is not None:
                self.named.add(mutation.parts_in.blob)
            if isinstance(mutation, kinds.Makes):
                self.created[mutation.collection] = mutation
            elif isinstance(mutation, kinds.Evolve | kinds.Redefine) and mutation.schema is not None:
                self.evolved.setdefault(mutation.collection, []).append(mutation.schema)

    # Checkpoints.

    def _list_checkpoints(self) -> None:
        """Find checkpoints that are not examined yet."""
        listed = {seqno for seqno, _ in list_checkpoints(self._blob)}
        self._doubtful = list_checkpoints_beyond_log(self._blob)
        self._waiting = sorted(listed - self._examined - {*self._doubtful})

    def _read_floor(self) -> int:
        """Return the log floor of the newest readable checkpoint; 0 without one."""
        for seqno in reversed(self._waiting):
            try:
                checkpoint = read_checkpoint(self._blob, make_checkpoint_key(seqno))
            except Corruption:
                continue  # It will be looked at again.
            if checkpoint is not None:
                return checkpoint.control.log_floor
        return 0

    def _examine_checkpoints(self) -> None:
        """Examine the checkpoints with seqnos before `at`."""
        while self._waiting and self._waiting[0] < self.at:
            seqno = self._waiting.pop(0)
            self._examined.add(seqno)
            key = make_checkpoint_key(seqno)
            try:
                checkpoint = read_checkpoint(self._blob, key)
            except Corruption as error:
                self.bad_checkpoints.add(key)
                self._findings.add_corruption(error)
                continue
            if checkpoint is not None:  # Or else it was collected meanwhile.
                self._examine_checkpoint(checkpoint)

    def _examine_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Examine one checkpoint: its objects, and its state against the log."""
        seqno, key = checkpoint.seqno, make_checkpoint_key(checkpoint.seqno)
        self.named.update(pointer.blob for pointer in checkpoint.directory)
        try:
            checkpointed = load_state(self._blob, checkpoint, self._levels)
            self.named |= list_directory_blobs(self._blob, checkpoint, self._levels)
        except Corruption as error:
            # Perhaps the checkpoint was collected meanwhile, and its directory after it.
            if not isinstance(error, MissingBlob) or self._blob.get(key) is not None:
                self.bad_checkpoints.add(key)
                self._findings.add_corruption(error)
            return
        if {entry.name: id_ for id_, entry in checkpointed.entries.iterate_all()} != dict(
            checkpointed.ids.iterate_all()
        ):
            self._findings.add("rule", key, "its collections have other names than those by which they are found")
            self.bad_checkpoints.add(key)
        for _, entry in checkpointed.entries.iterate_all():
            self._note_mutations(entry.pending)
            self.named.update(pointer.blob for pointer in entry.stored)
            contents = self._load_contents(checkpointed, entry)
            if contents is not None:
                # Like a state that was replayed: so that records are applied to the contents, and checked.
                checkpointed = checkpointed.replace_entry(
                    msgspec.structs.replace(entry, base=contents, levels=(), pending=(), contents=contents)
                )
            else:
                self.bad_checkpoints.add(key)
                self._note_loose(entry.pending, None)
        if key not in self.bad_checkpoints:
            self.newest = max(self.newest, seqno)
        if self.state is not None and self.state.seqno == seqno:
            self._compare_checkpoint(checkpoint, checkpointed)
        elif self.state is None or self.state.seqno < seqno:
            for id_, previous in self.state.entries.items() if self.state is not None else ():
                if (
                    previous.contents is not None
                    and id_ in checkpointed.entries
                    and checkpointed.entries[id_].contents is None
                ):
                    self.loose += [LoosePart(id_, part, False) for part in previous.contents.parts]
                    self.loose += [LoosePart(id_, part, True) for part in previous.contents.pending.values()]
            self.state = checkpointed

    def _load_contents(self, checkpointed: State, entry: CollectionEntry) -> CollectionState | None:
        """Return a collection's contents in a checkpoint; None if unreadable."""
        assert checkpointed.location is not None
        key = make_checkpoint_key(checkpointed.seqno)
        try:
            base = None
            if entry.stored:
                base = self._load_base(checkpointed.location, entry)
                if base is None:
                    return None
            pending = tuple(load_part_list(self._blob, checkpointed.location, mutation) for mutation in entry.pending)
            return msgspec.structs.replace(entry, pending=pending).attach_contents(base).contents
        except Corruption as error:
            if not isinstance(error, MissingBlob) or self._blob.get(key) is not None:
                self._findings.add_corruption(error, collection=entry.name)
            return None
        except (ValueError, Conflict, AssertionError) as error:
            self._findings.add(
                "rule", key, f"what it says of this collection breaks a rule: {error}", collection=entry.name
            )
            return None

    def _load_base(self, location: str, entry: CollectionEntry) -> CollectionState | None:
        """Return the stored base of an entry, or add a problem."""
        previous = self._bases.get(entry.id)
        if previous is None or previous[0] != entry.stored:
            self._bases[entry.id] = (entry.stored, None)
            base = load_base(self._blob, location, entry, self._levels)
            self._bases[entry.id] = (entry.stored, base)
        return self._bases[entry.id][1]

    def _compare_checkpoint(self, checkpoint: Checkpoint, checkpointed: State) -> None:
        """Add the differences between a checkpoint and the replayed state."""
        state, key = self.state, make_checkpoint_key(checkpoint.seqno)
        assert state is not None

        def add_difference(what: str, collection: str | None = None) -> None:
            self._findings.add("disagrees", key, f"{what} than the log up to it", collection=collection)

        if checkpointed.location != state.location:
            add_difference("it names another location")
        if checkpointed.commit != state.commit:
            add_difference("it was made after another commit")
        if checkpointed.control != state.control:
            add_difference(f"it says something else of {_list_differences(checkpointed.control, state.control)}")
        if checkpointed.ids != state.ids or len(checkpointed.entries) != len(state.entries):
            add_difference("it has other collections")
        for id_, entry in checkpointed.entries.items():
            current = state.entries.get(id_)
            if current is not None and current.leased != entry.leased:
                add_difference("it says something else of the leases of its holds", entry.name)
            # Before format 6, a source of which a clone has no part was left out.
            if current is not None and not set(current.folders).issuperset(entry.folders):
                add_difference("it says something else of where its parts lie", entry.name)
            if current is None or entry.contents is None:
                continue
            if current.contents is None:  # It could not be read before, and now it can.
                self.state = state = state.replace_entry(entry)
                continue
            if entry.contents != current.contents:
                add_difference(
                    f"it says something else of {_list_differences(entry.contents, current.contents)}", entry.name
                )
            elif entry.id in self._bases and self._bases[id_][1] == current.contents:
                self._bases[id_] = (self._bases[id_][0], current.contents)  # So that there is one of them in memory.


def _examine_state(state: State, findings: Findings) -> None:
    """Add a problem for each invariant that a state breaks. The state may come from a checkpoint alone."""
    key = make_record_key(state.seqno)
    for entry in state.entries.values():
        if not state.control.leases.keys() >= set(entry.readers):
            findings.add("rule", key, "it has holds that live by leases that are gone", collection=entry.name)
        contents = entry.contents
        if contents is None:
            continue
        if dict(entry.leased) != {hold: h.lease for hold, h in contents.holds.items() if h.lease is not None}:
            what = "the holds that live by leases are not noted both in the directory and with the collection"
            findings.add("rule", key, what, collection=entry.name)
        times_by_name = {**{hold: h.time for hold, h in contents.holds.items()}, **contents.tags}
        passed = sorted(hold for hold, time in times_by_name.items() if time < contents.since)
        if passed:
            findings.add("rule", key, f"since has passed the holds {passed}", collection=entry.name)
        inline = sum(len(part.inline) for part in contents.stored_parts)
        if inline != contents.inline_bytes:
            what = f"inline_bytes is {contents.inline_bytes}, and the inline parts have {inline} bytes"
            findings.add("rule", key, what, collection=entry.name)
        try:
            check_contents(contents)
        except ValueError as error:
            findings.add("rule", key, str(error), collection=entry.name)


def _list_differences(one: msgspec.Struct, other: msgspec.Struct) -> str:
    """Return the names of the members that differ, separated by commas."""
    names = [name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name)]
    return ", ".join(names)
