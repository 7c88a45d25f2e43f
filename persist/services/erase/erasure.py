"""Erases records: finds what an erasure concerns, and commits the one record that erases.

| what | how it follows |
|---|---|
| the collection | its parts are exchanged (`persist.engine.compact.eraser`), those with pending events, too |
| its clones, what it was cloned from, and their clones | the same, whether they still share parts or not |
| indexes of all of these | they are dropped, and made again after that |
| views that depend on any of them | they begin anew (`persist.compute.sql.redefine`), and are refreshed after that |
| published tables of any of them | they are given up, their files deleted, and they are published anew after that |

All of it except the last steps is one record of the log. The record erases all earlier commits; later ones are new
data, which stays. If the record missed a part, it could remove the insertion of a row while another client commits the
deletion: this would leave a negative multiplicity that contains erased data. So the committing thread checks the writes
since the plan, for each state that the record may follow (`_ErasureAttempts.renew_steps`). At first, it reads only
inline parts, no blobs. If a blob, a compaction or a derived collection was added meanwhile, the record is given up, and
the next attempt makes a new plan. After `BRIEF_ATTEMPTS`, the committing thread also reads blobs, while other commits
of this client wait, so constant writers cannot delay an erasure for ever.

An attempt refreshes the log once. With many writers and a distant store, each refresh takes long, so an attempt with
ten refreshes would be superseded by every compaction.

The record also stores the steps that follow it (`persist.services.erase.pending_erasures`). If the process dies before
these are done, the next call does them, or the upkeep of any client.
"""

import itertools
import logging
import re
from collections.abc import Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist.blob.errors import MissingBlob
from persist.codecs.part.printing import print_filter
from persist.compute.index import list_indexed_columns
from persist.compute.sql import load_dependents, recreate_views
from persist.core.closing import note_on_error
from persist.core.errors import AsOfCompacted, CollectionNotFound, InvalidUsage, PersistError, Superseded, UploadExpired
from persist.core.log import kinds
from persist.core.names import INDEX_PREFIX, make_published_hold_name
from persist.core.progress import report_work
from persist.core.rendering import Shown, format_count
from persist.core.state_rules.collection_rules import ExpectDerived, ExpectErasures, list_derived_holds
from persist.core.state_rules.contents import CollectionState, Publication
from persist.core.state_rules.erasures import check_reason, count_erasures
from persist.core.state_rules.state import State
from persist.engine.collection.reads import snapshot
from persist.engine.compact import ErasedRecords, PartEraser
from persist.engine.follow.checkpoint import write_checkpoint
from persist.engine.location.arrangements import list_arrangements, make_drop_steps
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.read.lookups.requested_keys import find_distinct_keys
from persist.engine.read.results.snapshot import build_filter
from persist.engine.write.operations import Step
from persist.engine.write.retrying import commit_with_retry
from persist.services.erase.derived import find_relatives, list_family, list_longer_views, list_unfollowed
from persist.services.erase.pending_erasures import PendingErasures, PendingTable, complete_all, make_pending_steps
from persist.services.publish import REPLACES, delete_abandoned

logger = logging.getLogger(__name__)

BRIEF_ATTEMPTS = 5
TEXT_CHARS_MIN = 3
TEXTS_MAX = 1000  # The limit for each key column, of texts to find in queries and comments.
REPLACED_MAX = 10  # Tables that a catalog may still have in place of one.


@dataclass(frozen=True)
class ErasureReport(Shown):
    """The result of an erasure.

    Attributes:
        collection: the name of the collection.
        updates: how many updates and pending events were erased from it and its clones.
        seqno: of the record that erased; None if there was nothing to erase.
        clones: the other collections from which records were erased.
        views: the views that began anew.
        indexes: how many indexes were made again.
        tables: the tables that were published again, as (collection, format).
        unfollowed: collections with results of queries on such records, which stay unchanged: clones of views,
            everything derived from these, and views that can be read at earlier times than their inputs.
        untold: tables in a program's own catalog, by their names there: the catalog still names deleted files, until
            that program publishes again.
        mentions: places that still contain a text of the keys or the condition, because an erasure does not read them:
            queries, comments and properties.
        keys: how many keys of a keyed collection a condition erased; None in other cases.
        former_keys: how many of these keys did not match in the contents when the erasure began, but in deleted or
        replaced rows or in pending events.
    """

    collection: str
    updates: int = 0
    seqno: int | None = None
    clones: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    indexes: int = 0
    tables: tuple[tuple[str, str], ...] = ()
    unfollowed: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()
    mentions: tuple[str, ...] = ()
    keys: int | None = None
    former_keys: int = 0

    def __str__(self) -> str:
        notes = f". {format_mentions(self.mentions)}" if self.mentions else ""
        if self.unfollowed:
            listed = ", ".join(map(repr, self.unfollowed))
            notes = f". What a query gave of such records may still be in {listed}: erase there, too, or drop it{notes}"
        if self.seqno is None:
            return f"nothing of {self.collection!r} to erase{notes}"
        also = [f"also from {', '.join(map(repr, self.clones))}"] if self.clones else []
        also += [f"{format_count(len(self.views), 'view')} begun anew"] if self.views else []
        also += [f"{self.indexes:,} index{'' if self.indexes == 1 else 'es'} made anew"] if self.indexes else []
        also += [f"{format_count(len(self.tables), 'table')} published anew"] if self.tables else []
        if self.former_keys:
            also.append(f"{self.former_keys:,} of {format_count(self.keys or 0, 'key')} matched by earlier rows only")
        done = ", ".join(
            [f"erased {format_count(self.updates, 'update')} of {self.collection!r} from all times", *also]
        )
        if self.untold:
            tables = ", ".join(self.untold)
            done += f". The catalog of {tables} is known to no client but its program: it names deleted files until "
            done += "that program publishes again"
        return done + notes


def select_records(handle: CollectionHandle, keys: Any, where: Any) -> ErasedRecords:
    """Return the selection of records by keys or by a condition."""
    if (keys is None) == (where is None):
        raise InvalidUsage("erase: give keys, or a condition as where=, and not both")
    schema = handle.contents().schema
    if keys is not None:
        if not schema.key_names:
            raise InvalidUsage(f"collection {handle.name!r} has no key columns: erase by a condition, where=")
        return ErasedRecords(find_distinct_keys(keys, schema), None)
    return ErasedRecords.select_by_condition(build_filter(schema, where), schema)


def erase(handle: CollectionHandle, keys: Any = None, where: Any = None, *, reason: str) -> ErasureReport:
    """Erase records of a collection from all times; see `Collection.erase`."""
    engine = handle.engine
    writer = engine.writer("erase")
    check_reason(reason)
    contents = handle.contents()
    if contents.view is not None:
        raise InvalidUsage(f"{handle.name!r} is a view: erase from its inputs, and it is computed anew")
    writer.committer.check_may_wait()
    engine.settle()
    records = select_records(handle, keys, where)
    present_keys: int | None = None
    if records.where is not None:  # The result of its events counts as well.
        for relative in list_family(handle):
            if relative.keyed is not None:
                writer.resolver.resolve(relative.id, relative.name, relative.machine)
        if contents.keyed is not None:
            present_keys = _count_present_keys(handle, records.where)
    with report_work("erase", handle.name, unit="records of the log") as done, ExitStack() as stack:
        work = _ErasureAttempts(handle, records, reason, stack)
        attempts = itertools.count()

        def erase_once() -> ErasureReport:
            reads_blobs = next(attempts) >= BRIEF_ATTEMPTS
            with engine.follower.looks.share_look():
                prepared = work.plan_erasure()
            if prepared is None:
                return ErasureReport(handle.name)
            renew = partial(work.renew_steps, prepared, reads_blobs=reads_blobs)
            seqno = engine.submit("erase", prepared.steps, dict(prepared.names), renew).result()
            done(1)
            report = _make_report(handle.name, prepared, work.note_commit(), seqno)
            if present_keys is None:
                return report
            keys = work.count_keys()
            return replace(report, keys=keys, former_keys=max(keys - present_keys, 0))

        def prepare(error: PersistError) -> None:
            work.discard_expired(error)
            handle.contents()  # Raises if it is the collection itself that was dropped.

        conflicts = (Superseded, UploadExpired, CollectionNotFound, MissingBlob, AsOfCompacted)
        report = commit_with_retry(erase_once, action="erase", clock=engine.clock, conflicts=conflicts, prepare=prepare)
    after = "What failed comes after erasures: the next erase() does it, or client.maintain()."
    with note_on_error(lambda: f"{report}. {after}"):
        if report.seqno is not None:
            _write_checkpoint(engine)
        complete_all(engine)
        for relative in list_family(handle):
            delete_abandoned(relative)
        unerased = {copied.name for copied in list_unfollowed(handle)} | {*list_longer_views(list_family(handle))} - {
            *report.views
        }
        return replace(report, unfollowed=tuple(sorted(unerased)), mentions=find_mentions(handle, keys, where))


def _count_present_keys(handle: CollectionHandle, where: pc.Expression) -> int:
    """Return how many keys of a keyed collection have a row for which a condition is true."""
    if handle.contents().upper == 0:
        return 0
    with snapshot(handle, columns=[*handle.schema.key_names], where=where, form="diff") as present:
        return sum(len(batch) for batch in present.to_batches())


def _write_checkpoint(engine: Engine) -> None:
    """Write a checkpoint, from whose age follows when older blobs may be deleted.

    If this fails, the next checkpoint of any client serves instead.
    """
    try:
        write_checkpoint(engine.blob, *engine.follower.get_recent_records())
    except PersistError as error:
        logger.warning("the checkpoint after an erasure was not made: %s", error)


def find_mentions(handle: CollectionHandle, keys: Any, where: Any) -> tuple[str, ...]:
    """Return places with texts of the keys or condition. No erasure changes these.

    Those are queries, comments and properties of the collection, its relatives, and the views that depend on them.
    """
    texts = _list_texts(None if keys is None else find_distinct_keys(keys, handle.get_known_state().schema), where)
    family = list_family(handle) if texts else []
    views = {view.id: view for relative in family for view in load_dependents(handle.engine, relative)}
    places: list[str] = []
    for contents in (collection.get_known_state() for collection in (*family, *views.values())):
        about, name = contents.about, contents.name
        texts_by_place = {"the query": str((contents.view or {}).get("sql")), "the comment": about.comment}
        texts_by_place |= {f"the property {key!r}": value for key, value in about.properties.items()}
        texts_by_place |= {"a comment on a column": "\n".join(column.comment for column in about.columns.values())}
        places += [
            f"{what} of {name!r}" for what, content in texts_by_place.items() if any(text in content for text in texts)
        ]
    return tuple(places)


def format_mentions(places: Sequence[str]) -> str:
    """Return a sentence that lists places."""
    listed = ", ".join(places)
    has = "have" if len(places) > 1 else "has"
    return (
        f"{listed[0].upper()}{listed[1:]} {has} a text of what is erased, and no erasure changes that: do it yourself"
    )


def _list_texts(keys: pa.Table | None, where: Any) -> list[str]:
    """Return the texts in keys or a condition, of at least `TEXT_CHARS_MIN` characters."""
    if keys is None:
        # A condition of Arrow has its texts in double quotes.
        is_text = isinstance(where, str)
        written = where if is_text else print_filter(where)
        quoted = re.findall(r"'((?:[^']|'')*)'" if is_text else r'"([^"]*)"', written)
        texts = [text.replace("''", "'") for text in quoted]
    else:
        columns = [column for column in keys.columns if pa.types.is_string(column.type)]
        texts = [text for column in columns for text in column.slice(0, TEXTS_MAX).to_pylist() if text]
    return [text for text in dict.fromkeys(texts) if len(text) >= TEXT_CHARS_MIN]


@dataclass(frozen=True)
class _PreparedErasure:
    """The record of an erasure, and the work after it.

    Attributes:
        seqno: of the state for which it was planned.
        relatives: the ids of all collections that share records with this one, including views.
        erased: by id of a collection, what is erased from it.
        tables, indexed: by name of a collection, the published tables and the columns of indexes to make again.
        views: by name of a view, whether it was ever refreshed.
    """

    seqno: int
    relatives: Set[str]
    family: Set[str]
    steps: Sequence[Step]
    names: Mapping[str, str]
    own: str
    erased: Mapping[str, kinds.Erase]
    tables: Mapping[str, Mapping[str, Publication]]
    indexed: Mapping[str, Sequence[tuple[str, ...]]]
    views: Mapping[str, bool]


class _ErasureAttempts:
    """The state of an erasure between attempts to commit it."""

    def __init__(self, handle: CollectionHandle, records: ErasedRecords, reason: str, stack: ExitStack) -> None:
        self._handle = handle
        self._records = records
        self._reason = reason
        self._erasers: dict[str, PartEraser] = {}
        stack.callback(self._discard)
        self._stop = Event()
        self._erased: Mapping[str, kinds.Erase] = {}  # The record's mutation of each collection.

    def plan_erasure(self) -> _PreparedErasure | None:
        """Return the planned record for the newest state; None if there is nothing to erase."""
        engine = self._handle.engine
        seqno, relatives = engine.follower.refresh().seqno, list_family(self._handle)
        ids = engine.follower.apply_to_state(lambda state: find_relatives(state, self._handle.id))
        concerned: list[tuple[CollectionHandle, CollectionState, kinds.Erase]] = []
        steps: list[Step] = []
        names, dropped_names = dict[str, str](), dict[str, str]()
        for handle in relatives:
            step, contents = self._make_erase_step(handle)
            names[handle.id] = contents.name
            steps.append(ExpectErasures(handle.id, count_erasures(contents)))
            if step is not None:
                concerned.append((handle, contents, step))
        if not concerned:
            return None
        handles = [handle for handle, _, _ in concerned]
        views = recreate_views(engine, handles)
        indexed: dict[str, Sequence[tuple[str, ...]]] = {**views.indexed}
        tables: dict[str, Mapping[str, Publication]] = {**views.published}
        for handle, contents, step in concerned:
            steps.append(ExpectDerived(handle.id, list_derived_holds(contents)))
            steps.append(step)
            tables[contents.name] = contents.tables
            hold_names = (name for name in map(make_published_hold_name, contents.published) if name in contents.holds)
            steps += (kinds.ReleaseHold(handle.id, name) for name in hold_names)
            drops, drop_names = make_drop_steps(engine, list_arrangements(engine, handle.id, [INDEX_PREFIX]))
            steps += drops
            dropped_names |= drop_names
            indexed[contents.name] = list_indexed_columns(handle)
        creations = [step for step in views.steps if isinstance(step, kinds.Create)]
        by_name = {name: id_ for id_, name in names.items()} | {step.name: step.collection for step in creations}
        owing, owed_names = make_pending_steps(
            PendingErasures(
                engine.clock.wall_ms(),
                tuple(by_name[name] for name, was_refreshed in views.views.items() if was_refreshed),
                {by_name[name]: tuple(columns) for name, columns in indexed.items() if columns},
                {
                    by_name[name]: {t: _make_pending_table(published) for t, published in publications.items()}
                    for name, publications in tables.items()
                    if publications
                },
            )
        )
        return _PreparedErasure(
            seqno,
            ids,
            {handle.id for handle in relatives},
            _move_releases((*steps, *views.steps, *owing)),
            {**dropped_names, **names, **views.names, **owed_names},
            self._handle.id,
            {handle.id: step for handle, _, step in concerned},
            tables,
            indexed,
            views.views,
        )

    def _make_erase_step(self, handle: CollectionHandle) -> tuple[kinds.Erase | None, CollectionState]:
        """Return the step that erases from one collection, and its contents."""
        engine = handle.engine
        writer = engine.writer("erase")
        if handle.id not in self._erasers:
            maker = writer.make_local_part_maker(self._stop)
            part_writer = writer.part_writer()
            self._erasers[handle.id] = PartEraser(handle.id, self._records, maker, part_writer, engine.reader)
        eraser, by, at_ms = self._erasers[handle.id], writer.committer.writer_name, engine.clock.wall_ms()
        while True:
            contents = handle.contents()
            try:
                return eraser.step(contents, by=by, at_ms=at_ms, reason=self._reason), contents
            except MissingBlob as error:
                if handle.needs(error.key):
                    raise

    def renew_steps(self, made: _PreparedErasure, state: State, *, reads_blobs: bool) -> Sequence[Step]:
        """Return the steps of the record, adapted to a newer state: they also erase updates since the plan.

        Args:
            reads_blobs: whether parts that are blobs may be read; otherwise only inline parts.

        Raises:
            Superseded: the plan must be made again.
        """
        self._erased = made.erased
        if state.seqno <= made.seqno:
            return made.steps
        if find_relatives(state, self._handle.id) != made.relatives:
            raise Superseded(f"{self._handle.name!r} was cloned, or a clone was dropped, meanwhile: try again")
        erased: dict[str, kinds.Erase] = {}
        planned = next(iter(made.erased.values()))  # All say by whom and when.
        for id_ in made.family:
            entry = state.entries.get(id_)
            assert entry is not None, "relatives that a state has"
            assert entry.contents is not None, "the record has a condition on each relative"
            step = self._erasers[id_].step(
                entry.contents, by=planned.by, at_ms=planned.at_ms, reason=self._reason, reads_blobs=reads_blobs
            )
            if (step is None) != (id_ not in made.erased):
                raise Superseded(f"other records of {entry.name!r} match by now: try again")
            if step is not None:
                erased[id_] = step
        self._erased = erased
        return [erased[step.collection] if isinstance(step, kinds.Erase) else step for step in made.steps]

    def count_keys(self) -> int:
        """Return how many keys of the collection a condition has selected."""
        return self._erasers[self._handle.id].selected_keys

    def discard_expired(self, error: BaseException) -> None:
        """Delete the new parts if the record failed because they are too old."""
        if isinstance(error, UploadExpired):  # The uploaded parts may be deleted by now.
            for eraser in self._erasers.values():
                eraser.discard()

    def note_commit(self) -> Mapping[str, kinds.Erase]:
        """Keep the parts that the record names; return the erasures by collection id."""
        for id_, eraser in self._erasers.items():
            eraser.note_commit(self._erased.get(id_))
        return self._erased

    def _discard(self) -> None:
        """Delete the new parts that no record names."""
        for eraser in self._erasers.values():
            eraser.discard()


def _move_releases(steps: Sequence[Step]) -> Sequence[Step]:
    """Return steps with the releases of holds last, so that since does not advance too early.

    If a new hold replaces another one, since could otherwise advance between the two, beyond the time that the new hold
    protects.
    """
    destroyed = {step.collection for step in steps if isinstance(step, kinds.Destroy)}
    late = [step for step in steps if isinstance(step, kinds.ReleaseHold) and step.collection not in destroyed]
    return (*(step for step in steps if step not in late), *late)


def _make_pending_table(publication: Publication) -> PendingTable:
    """Return a published table as pending work."""
    options = {**publication.options}
    if "identifier" in options:  # The catalog has this table, or one before it that it replaced.
        options[REPLACES] = " ".join([*options.get(REPLACES, "").split(), publication.id][-REPLACED_MAX:])
    return PendingTable(options, digest=bool(publication.digest))


def _make_report(name: str, made: _PreparedErasure, erased: Mapping[str, kinds.Erase], seqno: int) -> ErasureReport:
    """Return the report of an erasure that was committed at seqno."""
    relatives = {made.names[id_] for id_ in erased if id_ != made.own}
    options = [table.options for tables in made.tables.values() for table in tables.values()]
    untold = [table["identifier"] for table in options if "identifier" in table and "catalog" not in table]
    return ErasureReport(
        name,
        sum(step.updates for step in erased.values()),
        seqno,
        tuple(sorted(relatives)),
        tuple(made.views),
        sum(map(len, made.indexed.values())),
        tuple((name, table) for name, tables in made.tables.items() for table in tables),
        untold=tuple(dict.fromkeys(untold)),
    )
