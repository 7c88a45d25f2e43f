"""Validates operations that are not in the log yet against a state, in their order."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from persist.core.antichain import decode_frontier, to_antichain
from persist.core.errors import UpdatesBeyondUpper, ViewWritten
from persist.core.log import kinds
from persist.core.log.kinds import Mutation
from persist.core.state_rules.annotations import Remembered, Used, are_tokens_used, is_batch_repeated
from persist.core.state_rules.collection_rules import (
    CollectionStep,
    Condition,
    ExpectDefinition,
    ExpectNothingBeyondUpper,
    Planned,
    PlannedAppend,
    apply_step,
    merge_holds,
)
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.frozen_map import MapChanges
from persist.core.state_rules.location import check_writer
from persist.core.state_rules.state import CollectionEntry, State, StateChanges

DraftStep: TypeAlias = Mutation | Planned | Condition

_ONLY_APPENDS = {PlannedAppend}


class Draft:
    """Validates operations before they are in the log, one after another.

    A draft follows names and frontiers but not parts. So a writer can validate thousands of small operations before
    it encodes their updates into one batch. The checks are the same functions that `apply_record` uses. The contents of
    each collection must be loaded, unless an operation only releases holds on it.

    Args:
        epoch: of the writer, if it opened the location exclusively.
        find_token: returns the earlier use of a token that is not among the newest of its collection.
    """

    def __init__(
        self,
        state: State,
        epoch: int | None = None,
        find_token: Callable[[CollectionState, str], Remembered | None] = lambda contents, token: None,
    ) -> None:
        self._seqno = state.seqno + 1
        self._before = state.entries
        self._find_token = find_token
        self._epoch = epoch
        self._new_tokens: dict[Used, str | None] = {}  # With the digests of what they name.
        self._appended: set[str] = set()  # Collections that operations before this one add updates to.
        # For valid planned appends, by collection and schema: the first time at which an append is valid.
        self._valid_from: dict[tuple[str, int], int] = {}
        self._now = StateChanges(MapChanges(state.entries), MapChanges(state.ids), state.control, _apply_step)

    def extend(self, steps: Sequence[DraftStep]) -> bool:
        """Add all steps of one operation, or none if a step is invalid.

        Returns False if the operation was done before, by its tokens or its batch of a query; then nothing was added.

        Raises InvalidUsage, Conflict: the error that the operation would get as the next record.
        """
        now = self._now
        check_writer(now.control.writer, now.control.epoch, self._epoch, steps)
        if {*map(type, steps)} == _ONLY_APPENDS:
            for step in steps:  # They change nothing that is followed here, so nothing has to be undone.
                assert isinstance(step, PlannedAppend)
                self._check_append(step)
            return True
        tokens = _list_tokens(steps)
        if self._is_done(steps, tokens):
            return False
        draft = StateChanges(MapChanges(now.entries), MapChanges(now.ids), now.control, _apply_step)
        self._check_views(steps)
        for gathered_step in merge_holds(steps):
            if isinstance(gathered_step, ExpectNothingBeyondUpper) and gathered_step.collection in self._appended:
                raise UpdatesBeyondUpper(to_antichain(decode_frontier(gathered_step.upper)), None)
            draft.apply_step(gathered_step, self._seqno, 0)
        self._valid_from.clear()
        now.entries.update(draft.entries)
        now.ids.update(draft.ids)
        now.control = draft.control
        self._new_tokens.update(tokens)
        self._appended.update(step.collection for step in steps if isinstance(step, PlannedAppend))
        return True

    def check_only_operation(self, steps: Sequence[DraftStep]) -> bool:
        """Check the only operation of a record, except for rules that `apply_record` checks.

        This checks the rights of the writer, tokens, batches, views, conditions, and writes before they are encoded.
        `apply_record` checks the mutations, so each is applied once. A condition must come before all changes of its
        collection. Returns False if the operation was done before, by its tokens or its batch. Raises as `extend`.
        """
        check_writer(self._now.control.writer, self._now.control.epoch, self._epoch, steps)
        if self._is_done(steps, _list_tokens(steps)):
            return False
        self._check_views(steps)
        entries: dict[str, CollectionEntry] = {}
        for step in steps:
            if isinstance(step, Planned | Condition):
                if step.collection not in entries:
                    entries[step.collection] = self._now.load_entry(step)
                apply_step(entries[step.collection].contents, step)
        return True

    def _check_append(self, step: PlannedAppend) -> None:
        """Check one append. For later appends to the collection, only times are compared."""
        alike = step.collection, step.schema
        valid_from = self._valid_from.get(alike)
        if valid_from is None or step.time_min < valid_from:
            self._check_views((step,))
            apply_step(self._now.load_entry(step).contents, step)
            self._valid_from[alike] = step.time_min
            self._appended.add(step.collection)

    def _check_views(self, steps: Sequence[DraftStep]) -> None:
        """Raise ViewWritten if steps write or seal a view without an `ExpectDefinition`."""
        written = {step.collection for step in steps if isinstance(step, PlannedAppend | kinds.Seal)}
        for collection in written:
            contents = self._load_contents(collection)
            if contents is None or contents.view is None:
                continue
            if not any(isinstance(step, ExpectDefinition) and step.collection == collection for step in steps):
                raise ViewWritten(contents.name)

    def _is_done(self, steps: Sequence[DraftStep], tokens: dict[Used, str | None]) -> bool:
        """Return whether the log has an operation already, by its batch of a query or by all its tokens."""
        return self._repeats_batch(steps) or (bool(tokens) and self._are_used(tokens))

    def _repeats_batch(self, steps: Sequence[DraftStep]) -> bool:
        """Return whether a streaming query's batch was committed already.

        One record adds a batch to all its collections, so one that has the batch suffices.
        """
        repeated = False
        for mark in steps:
            if isinstance(mark, kinds.Batch) and not mark.again:
                contents = self._load_contents(mark.collection)
                if contents is not None:
                    repeated |= is_batch_repeated(contents.queries, mark)
        return repeated

    def _load_contents(self, collection: str) -> CollectionState | None:
        """Return a collection's state after the accepted operations; None without one."""
        entry = self._now.entries.look_up(collection)
        return None if entry is None else entry.contents

    def _are_used(self, tokens: dict[Used, str | None]) -> bool:
        """Return whether all tokens were used, in the log or this draft."""

        def look_up_token(used: Used) -> tuple[str, Remembered | None, int]:
            """Look up a token: the collection's name, the earlier write, and the number of forgotten tokens."""
            # As the log has them: what operations before this one have added is in `_new_tokens`.
            collection, token = used
            entry = self._before.get(collection)
            contents = None if entry is None else entry.contents
            if contents is None:
                return collection, None, 0
            write = contents.tokens.get(token) or self._find_token(contents, token)
            return contents.name, write, 0 if contents.archives is None else contents.archives.forgotten

        return are_tokens_used(tokens, self._new_tokens, look_up_token)


def _list_tokens(steps: Iterable[DraftStep]) -> dict[Used, str | None]:
    """Return the tokens of steps, with the digests of their writes."""
    marked = [step for step in steps if isinstance(step, kinds.Tokens)]
    return {(step.collection, mark.token): mark.digest for step in marked for mark in step.tokens} if marked else {}


def _apply_step(entry: CollectionEntry, step: CollectionStep) -> CollectionEntry:
    """Apply a step to a collection's entry."""
    if entry.contents is None and isinstance(step, kinds.ReleaseHold):
        return entry
    contents = apply_step(entry.contents, step)
    return entry if contents is entry.contents else msgspec.structs.replace(entry, contents=contents)
