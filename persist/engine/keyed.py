"""Upserts, seals and resolutions of keyed collections: what is read, made, uploaded and committed for them, and again.

With the policy "seal", whoever seals resolves: the events that are pending before the new upper, and those that come
with the seal, become updates in the one record that advances upper. That record is refused if anything it was made of
has changed (`persist.state.keyed_rules`); the loser deletes its parts and looks again. Nothing is claimed meanwhile:
parts that fall out of use stay for the grace period, and a blob that is missing after that is a race that was lost,
too.

What a client asks of one collection is done in call order. Events go straight to the committer, unless a seal of the
same collection is under way: then they come after it. One thread per client resolves (`persist.engine.keyed_queue`).
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.antichain import Antichain
from persist.blob import MissingBlob
from persist.codecs import DIGEST_MODULUS, Part, Stamp, digest_of, opened
from persist.codecs.updates.inputs import as_table
from persist.engine.collection_handle import CollectionHandle
from persist.engine.late_events import REASON, split_late
from persist.errors import (
    Conflict,
    FrontierRegression,
    InvalidUsage,
    LateEvents,
    NotKeyed,
    PendingEvents,
    UpdateNotBeyondUpper,
    UploadExpired,
)
from persist.errors.conflicts import Superseded
from persist.errors.times import with_timeline
from persist.log.records import KeyedForm, Resolve, Seal, TokenMark, Tokens
from persist.read.wanted_keys import keys_alone, wanted_keys
from persist.state.contents import CollectionState
from persist.state.keyed_rules import due
from persist.state.schemas import check_written
from persist.timeline import Moment
from persist.upsert.events import events_schema, lifted_events
from persist.upsert.machine import DELETED, SEQ
from persist.upsert.taking import EventTable, to_events
from persist.write.future import CommitFuture
from persist.write.operations import Step, check_token

SETTLE_S = 60.0
ATTEMPTS_MAX = 1000  # Each of them was lost to somebody else's commit.


@dataclass(frozen=True, slots=True)
class AskedEvents:
    """What somebody wants of a keyed collection as one commit: events, a seal, or both.

    Attributes:
        marks: what makes the collection remember the token: the digest is of all events, late ones among them.
        also: steps of the same commit: what must hold of upper, and notes.
        late: counts the events that are late, by reason, which are left out then; None refuses all if some are.
        late_steps: makes, of the late ones, more steps of the same commit, and tells the names of their collections.
        is_least: the seal asks for end or farther, so that one who sealed farther has done it.
    """

    events: EventTable | None
    end: Antichain | None = None
    token: str | None = None
    also: tuple[Step, ...] = ()
    late: Counter[str] | None = None
    late_steps: Callable[[pa.Table], tuple[list[Step], dict[str, str]]] | None = None
    marks: tuple[Tokens, ...] = ()
    is_least: bool = False

    def against(self, contents: CollectionState) -> "AskedEvents":
        """Return what is asked of contents as they are."""
        return replace(self, end=max(self.end, contents.upper)) if self.is_least and self.end is not None else self


def keyed_form(handle: CollectionHandle) -> KeyedForm:
    """Return how a collection resolves events; raise NotKeyed if it does not."""
    if handle.keyed is None and handle.as_keyed().keyed is not None:
        raise InvalidUsage(f"the collection {handle.name!r} has become keyed since it was loaded: load it again")
    if handle.keyed is None:
        raise NotKeyed(handle.name)
    return handle.keyed


def taken_events(handle: CollectionHandle, data: Any, stamp: Stamp | None) -> EventTable:
    """Return events in any form, checked; see `persist.upsert.taking`."""
    return to_events(data, handle.schema, keyed_form(handle), stamp, handle.timeline, handle.machine)


def taken_keys(handle: CollectionHandle, what: Any, stamp: Stamp | None) -> EventTable:
    """Return events that delete keys, in any form that `Snapshot.get` takes, or rows with what orders events, too."""
    form = keyed_form(handle)
    rows = as_table(opened(what), handle.schema)
    if rows is None or {*rows.column_names} <= {*handle.schema.key_names}:
        rows = wanted_keys(what, keys_alone(handle.schema)).select([*handle.schema.key_names])
    rows = rows.append_column(DELETED, pa.array(np.ones(len(rows), np.bool_)))
    return to_events(rows, handle.schema, form, stamp, handle.timeline, handle.machine)


def submit(handle: CollectionHandle, action: str, asked: AskedEvents) -> CommitFuture:
    """Queue events, and perhaps a seal, as one commit; see `Collection.upsert`."""
    writer = handle.engine.writer(action)
    check_token(asked.token)  # Before anything is uploaded.
    if asked.events is not None and not len(asked.events.table):
        asked = replace(asked, events=None)
    asked = replace(asked, marks=tuple(_token_steps(handle, asked)))
    resolves = asked.end is not None and keyed_form(handle).resolve == "seal"
    is_decided = asked.late is None and not asked.is_least
    if not resolves and is_decided and not writer.keyed.is_busy(handle.id):
        return handle.submit(action, _plain_steps(handle, asked))
    future = writer.committer.new_future()

    def do() -> int:
        seqno, late = _committed(handle, action, asked, _resolving_steps if resolves else _steps_without)
        if asked.late is not None and late is not None:
            asked.late.update(late[REASON].to_pylist())
            future.late = late
        return seqno

    return writer.keyed.submit(handle.id, future, do, 0 if asked.events is None else asked.events.table.nbytes)


def seal(
    handle: CollectionHandle,
    upper: int | Moment | Antichain,
    *,
    expected_upper: int | Moment | Antichain | None = None,
) -> CommitFuture:
    """Seal a collection, whose sealed events are resolved if it is keyed; see `Collection.seal`."""
    expected = [] if expected_upper is None else [handle.expect_step(expected_upper)]
    handle = handle.as_keyed()
    if handle.keyed is not None:
        return submit(handle, "seal", AskedEvents(None, handle.frontier("upper", upper), also=tuple(expected)))
    return handle.submit("seal", [*expected, handle.seal_step(upper)])


def resolve(handle: CollectionHandle) -> bool:
    """Turn the events of a collection up to its upper into updates; return whether there were any."""
    handle.machine_in(handle.contents())
    resolver = handle.engine.writer("resolve").resolver
    return resolver.resolve(handle.id, handle.name, handle.machine)


StepsOf = Callable[[CollectionHandle, CollectionState, AskedEvents], list[Step]]


def _committed(
    handle: CollectionHandle, action: str, asked: AskedEvents, steps_of: StepsOf
) -> tuple[int, pa.Table | None]:
    """Make steps and commit them until that is not lost to somebody else; return the seqno, and what was late."""
    writer = handle.engine.writer(action)
    # Events that this client asked for before are not known yet while they are on their way.
    writer.committer.settle(SETTLE_S)
    writer.compaction.relieve(handle.id)
    contents = handle.known()
    for _ in range(ATTEMPTS_MAX):
        made: list[Part] = []
        try:
            timely, late = _timely(contents, keyed_form(handle), _lifted(contents, asked.against(contents)))
            steps = steps_of(handle, contents, timely)
            made += (part for step in steps if isinstance(step, Resolve) for part in step.parts)
            names = {handle.id: handle.name}
            if asked.late_steps is not None and late is not None:
                more, named = asked.late_steps(late)
                steps, names = [*steps, *more], {**names, **named}
            return handle.engine.submit(action, steps, names).result(), late
        except (Superseded, UploadExpired):
            writer.resolver.discard(made)
            contents = handle.contents()
        except (UpdateNotBeyondUpper, LateEvents):
            writer.resolver.discard(made)
            newest = handle.contents()
            if asked.late is None or newest == contents:
                raise
            contents = newest  # What is late has to be decided anew.
        except (PendingEvents, FrontierRegression) as error:
            # Where nothing waited, events came meanwhile; where upper was asked to be reached, somebody went beyond it.
            writer.resolver.discard(made)
            newest = handle.contents()
            # Nobody is refused on the strength of an old state, which would tell an upper that is past.
            is_behind = isinstance(error, FrontierRegression) and not asked.is_least
            if newest == contents or (is_behind and newest.upper == contents.upper):
                raise
            contents = newest
        except MissingBlob:
            newest = handle.contents()
            if newest == contents:
                raise
            contents = newest
        except (InvalidUsage, Conflict):
            writer.resolver.discard(made)
            raise  # After an indeterminate commit they are left, because the record may yet appear.
    raise Conflict(f"{action} was lost to other writers {ATTEMPTS_MAX} times; nothing of it was applied. Try it again.")


def _lifted(contents: CollectionState, asked: AskedEvents) -> AskedEvents:
    """Return what is asked with its events as the newest schema has them.

    Raises:
        SchemaMismatch: more than additions lies between that and the schema they were given in.
    """
    events = asked.events
    if events is None or events.schema.version == len(contents.earlier) + 1:
        return asked
    check_written(contents, events.schema.version)
    newest = contents.schema
    table = lifted_events(events.table, events.schema, newest)
    return replace(asked, events=EventTable(events_schema(newest, newest.value.fields), table, events.watermarks))


def _timely(contents: CollectionState, form: KeyedForm, asked: AskedEvents) -> tuple[AskedEvents, pa.Table | None]:
    """Return what is asked without the events that are late, and these, each with its reason; late as contents are."""
    if asked.late is None or asked.events is None or asked.token in contents.tokens:
        return asked, None
    kept, late = split_late(asked.events, contents, form)
    return replace(asked, events=kept if len(kept.table) else None), late


def _steps_without(handle: CollectionHandle, contents: CollectionState, asked: AskedEvents) -> list[Step]:
    """Return what commits without resolving anything."""
    return _plain_steps(handle, asked)


def _resolving_steps(handle: CollectionHandle, contents: CollectionState, asked: AskedEvents) -> list[Step]:
    """Return what commits events with a seal, against contents as they are."""
    end = asked.end
    assert end is not None
    if asked.token in contents.tokens:
        return [*asked.marks]  # It was done before, which the committer will find.
    sealing = Seal(handle.id, end.elements)
    before, after = _cut(asked.events, end)
    if before is not None:
        first = pc.min(before["_time"]).as_py()
        if not contents.upper.has_beyond(first):
            raise with_timeline(UpdateNotBeyondUpper(first, contents.upper), contents.timeline)
    if not contents.upper <= end:
        return [*asked.also, sealing]  # Which is refused; but first for what must hold of upper, as in the background.
    resolving: list[Step] = [sealing]
    if before is not None or due(contents, end.elements):
        watermarks = None if asked.events is None or before is None else asked.events.watermarks
        resolver = handle.engine.writer("seal").resolver
        resolving = [resolver.made(contents, contents.schema, handle.machine_in(contents), end, before, watermarks)]
    pending: list[Step] = []
    if after is not None and asked.events is not None:
        # What is told of watermarks is of all these events, and once.
        watermarks = asked.events.watermarks if before is None else None
        pending = [handle.pend_step(EventTable(asked.events.schema, after, watermarks))]
    return [*asked.also, *resolving, *pending, *asked.marks]


def _plain_steps(handle: CollectionHandle, asked: AskedEvents) -> list[Step]:
    pending: list[Step] = [] if asked.events is None else [handle.pend_step(asked.events)]
    sealing = [] if asked.end is None else [Seal(handle.id, asked.end.elements)]
    return [*asked.also, *pending, *sealing, *asked.marks]


def _token_steps(handle: CollectionHandle, asked: AskedEvents) -> list[Tokens]:
    if asked.token is None:
        return []
    if asked.events is None:
        return [Tokens(handle.id, (TokenMark(asked.token, 0, f"{0:016x}"),))]
    first = pc.min(asked.events.table["_time"]).as_py()
    columns = [name for name in asked.events.schema.names if name != SEQ]
    digest = digest_of(asked.events.table, [*columns, "_time"]) % DIGEST_MODULUS
    return [Tokens(handle.id, (TokenMark(asked.token, first, f"{digest:016x}"),))]


def _cut(events: EventTable | None, end: Antichain) -> tuple[pa.Table | None, pa.Table | None]:
    """Return the events before end, and the others."""
    if events is None:
        return None, None
    if end.time is None:
        return events.table, None
    ends = pc.min_max(events.table["_time"]).as_py()
    if ends["max"] < end.time:
        return events.table, None
    if ends["min"] >= end.time:
        return None, events.table
    mask = pc.less(events.table["_time"], end.time)
    return events.table.filter(mask), events.table.filter(pc.invert(mask))
