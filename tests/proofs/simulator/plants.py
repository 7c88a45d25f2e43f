"""Faults that are put into the library on purpose, to see that the simulator finds them; each patches one place."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import persist.compute.index.maintenance
import persist.core.keyed.events
import persist.core.state_rules.collection_rules
import persist.core.state_rules.contents
import persist.core.state_rules.draft
import persist.core.state_rules.state
import persist.engine.collection.commit
import persist.engine.collection.planned_commits
import persist.engine.compact.rewriter
import persist.engine.follow.follower
import persist.engine.upkeep.ages
import persist.engine.upkeep.garbage
import persist.engine.upkeep.references
import persist.engine.write.group_commit
import persist.services.erase.erasure
import persist.services.publish.planning
from persist.blob.errors import Indeterminate, StoreFull
from persist.compute.sql.redefine import RecreatedViews
from persist.core.log import kinds
from persist.core.log.framing import FORMAT
from persist.core.log.keys import make_checkpoint_key, make_record_key
from persist.core.log.records import create_record, encode_record
from persist.core.state_rules.annotations import add_tokens
from persist.core.state_rules.state import State
from persist.engine.collection.plain_rows import make_restore_steps
from persist.engine.follow.checkpoint import read_checkpoint
from persist.engine.follow.log_identity import Past
from persist.engine.read.lookups.part_rows import find_places
from persist.engine.write.commit_future import CommitFuture
from persist.services.erase.derived import list_family

Patch = tuple[Any, str, Any]


def acknowledged_before_the_answer(create: Callable[..., Any]) -> Callable[..., Any]:
    """A record whose create has no clear answer counts as created."""

    def planted(blob: Any, record: Any, clock: Any, **options: Any) -> Any:
        try:
            if blob.create(make_record_key(record.seqno), encode_record(record)):
                return None
        except Indeterminate:
            return None
        return create(blob, record, clock, **options)

    return planted


def acknowledged_without_room(create: Callable[..., Any]) -> Callable[..., Any]:
    """A record that there is no room for counts as created."""

    def planted(*args: Any, **options: Any) -> Any:
        try:
            return create(*args, **options)
        except StoreFull:
            return None

    return planted


def since_passes_holds(with_since: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Compaction goes as far as it is allowed to, whoever reads."""

    def planted(contents: Any) -> Any:
        found = with_since(msgspec.structs.replace(contents, holds={}))
        return msgspec.structs.replace(found, holds=contents.holds)

    return planted


def tags_passed(with_since: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Compaction goes beyond what has a name."""

    def planted(contents: Any) -> Any:
        found = with_since(msgspec.structs.replace(contents, tags={}))
        return msgspec.structs.replace(found, tags=contents.tags)

    return planted


def of_one_alone(related: Callable[..., Any]) -> Callable[..., Any]:
    """Of what is related to a collection only itself is known."""
    return lambda handle: related(handle)[:1]


def tokens_forgotten(remember: Callable[..., Any]) -> Callable[..., Any]:
    """Every other token is not remembered."""

    def planted(before: Any, step: kinds.Tokens, upper: int | None, archives: Any) -> Any:
        kept = [mark for mark in step.tokens if int(mark.token[1:]) % 2]
        return remember(before, msgspec.structs.replace(step, tokens=tuple(kept)), upper, archives)

    return planted


def an_update_lost(resolved: Callable[..., pa.Table]) -> Callable[..., pa.Table]:
    """What many events amount to lacks an update."""

    def planted(prepared: Any, machine: Any, present: pa.Table) -> pa.Table:
        found = resolved(prepared, machine, present)
        return found.slice(0, max(1, found.num_rows - 1)) if found.num_rows > 2 else found

    return planted


def a_collection_left_out(submitted: Callable[..., CommitFuture]) -> Callable[..., CommitFuture]:
    """A block that changes several keyed collections leaves the last one as it is."""

    def planted(self: Any) -> CommitFuture:
        last, plans = self.asks[-1][0].id, self.plans
        if len(plans) > 1:
            self.plans = {**plans, last: replace(plans[last], steps=[])}
        try:
            return submitted(self)
        finally:
            self.plans = plans

    return planted


def marks_for_ever_old(self: Any, age_s: float) -> int:
    """Nothing has to wait for the grace period."""
    seqno: int = self.state.seqno
    return seqno


def what_a_listing_said(self: Any) -> None:
    """A collector that was late believes its listing of checkpoints, and takes those that are gone since for none."""
    checkpoints = [read_checkpoint(self._blob, make_checkpoint_key(mark.seqno)) for mark in self._ages.checkpoints]
    named: set[str] = set().union(*(self._names.list_named(checkpoint) for checkpoint in checkpoints if checkpoint))
    for what in ("directories", "states"):
        listed = self._blob.list(persist.engine.upkeep.references.OBJECTS[what])
        unnamed = (
            (e, persist.engine.upkeep.references.parse_object_seqno(e.key) or 0) for e in listed if e.key not in named
        )
        old = (e for e, n in unnamed if n <= self._ages.checkpoints[0].seqno and self._is_orphan(e, n))
        self._delete_blobs(what, [*old])


def nothing_settled(self: Any, operations: list[Any], state: State, unreadable: Any) -> list[Any]:
    """What a server gave no answer about is committed again, without a look at the log."""
    return operations


def a_row_left_in(found: Callable[..., Any]) -> Callable[..., Any]:
    """Of the rows that a table is to leave out of a file, the last one stays."""

    def planted(*args: Any) -> Any:
        return found(*args)[:-1]

    return planted


# What is patched, and with what: made of what stands there.
PLANTS: Mapping[str, Callable[[], list[Patch]]] = {
    "a commit is acknowledged before its create is known to have happened": lambda: [
        (persist.engine.write.group_commit, "create_record", acknowledged_before_the_answer(create_record))
    ],
    "what there is no room for is acknowledged": lambda: [
        (persist.engine.write.group_commit, "create_record", acknowledged_without_room(create_record))
    ],
    "a restoration goes back less far than is asked": lambda: [
        (
            persist.engine.collection.commit,
            "make_restore_steps",
            lambda handle, then, *rest: make_restore_steps(handle, then + 1, *rest),
        )
    ],
    "since passes what readers hold": lambda: [
        (
            persist.core.state_rules.collection_rules,
            "_advance_since",
            since_passes_holds(persist.core.state_rules.collection_rules._advance_since),
        )
    ],
    "a token is not remembered": lambda: [
        (persist.core.state_rules.collection_rules, "add_tokens", tokens_forgotten(add_tokens))
    ],
    "a write at a sealed time is taken": lambda: [
        (module, "check_beyond_upper", lambda contents, time: None)
        for module in (
            persist.core.state_rules.contents,
            persist.core.state_rules.draft,
            persist.core.state_rules.collection_rules,
        )
        if hasattr(module, "check_beyond_upper")
    ],
    "a collector waits for nobody who reads": lambda: [
        (persist.engine.upkeep.garbage, "is_still_readable", lambda control, dropped: False)
    ],
    "a collector does not wait for the grace period": lambda: [
        (persist.engine.upkeep.ages.Ages, "find_seqno_before", marks_for_ever_old)
    ],
    "a collector asks no clone what it names": lambda: [
        (persist.engine.upkeep.garbage, "find_sharers", lambda state, clones: {})
    ],
    "compaction gives up what a published table needs": lambda: [
        (persist.core.state_rules.contents.Publication, "numbers", property(lambda table: set()))
    ],
    "a published table shows a row that has changed": lambda: [
        (persist.services.publish.planning, "find_places", a_row_left_in(find_places))
    ],
    "a late collector believes what it listed": lambda: [
        (persist.engine.upkeep.garbage._Round, "_collect_objects", what_a_listing_said),
        # It would notice, if the log was truncated meanwhile beyond what it knows.
        (Past, "prove_known", lambda past, state: None),
    ],
    "what a server did not answer is not looked up": lambda: [
        (persist.engine.write.group_commit.GroupCommit, "_resolve_settled", nothing_settled)
    ],
    "a resolution loses an update": lambda: [
        (module, "resolve_to_updates", an_update_lost(persist.core.keyed.events.resolve_to_updates))
        for module in _users_of("resolve_to_updates", persist.core.keyed.events.resolve_to_updates)
    ],
    "a block leaves one of its keyed collections out": lambda: [
        (
            persist.engine.collection.planned_commits._Commit,
            "_submit_plans",
            a_collection_left_out(persist.engine.collection.planned_commits._Commit._submit_plans),
        )
    ],
    "an erasure leaves what the clones of its collection hold": lambda: [
        (persist.services.erase.erasure, "list_family", of_one_alone(list_family))
    ],
    "an index lacks what has changed since": lambda: [
        (persist.compute.index.maintenance, "_make_writes", lambda index, table, names: [])
    ],
    "an erasure leaves the views of its collection as they are": lambda: [
        (persist.services.erase.erasure, "recreate_views", lambda engine, handles: RecreatedViews((), {}, {}, {}, {}))
    ],
    "a client raises the format by any record": lambda: [
        (persist.engine.write.group_commit, "compute_format", lambda state, mutations: FORMAT)
    ],
    "a tag keeps nothing": lambda: [
        (
            persist.core.state_rules.collection_rules,
            "_advance_since",
            tags_passed(persist.core.state_rules.collection_rules._advance_since),
        )
    ],
    "a fenced writer goes on": lambda: [
        (module, "check_writer", lambda *args: None)
        for module in (persist.core.state_rules.state, persist.core.state_rules.draft)
    ],
    "a read does not look whether there is news": lambda: [
        (persist.engine.follow.follower.Follower, "refresh", lambda self: self.state)
    ],
}


def _users_of(name: str, value: Any) -> list[Any]:
    """Return the modules of the library that have imported value by its name."""
    return [m for n, m in [*sys.modules.items()] if n.startswith("persist") and getattr(m, name, None) is value]


@contextmanager
def planted(fault: str) -> Iterator[None]:
    """Put a fault in, by its name, and take it out in the end."""
    patches = PLANTS[fault]()
    assert patches, f"there is no place any more for: {fault}"
    with pytest.MonkeyPatch.context() as patch:
        for place, name, value in patches:
            patch.setattr(place, name, value)
        yield
