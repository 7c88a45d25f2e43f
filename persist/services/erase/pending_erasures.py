"""The work that remains after the record of an erasure: stored until it is done, so that any client can finish it.

    a hidden collection, which the record of the erasure creates and the commit after the work drops
        name                .owed.<an id>
        properties["owed"]  a `PendingErasures` as JSON

Views that began anew are empty until a refresh; indexes are dropped, and published tables are given up. Once the record
exists, only this collection has their previous definitions. All steps of `complete_erasure` can be repeated, even
concurrently: an existing refresh, index or publication stays as it is. After deleting the files of an abandoned table,
a client publishes it again, and so restores a version that another one has published in between.

An index or a table needs a sealed time that since has not passed. Without one, the work stays until the next seal.
"""

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress

import msgspec

from persist.codecs.types.schema import CollectionSchema
from persist.compute.index import create_index
from persist.compute.sql import ViewsTogether, load_view_by_name
from persist.core.errors import AsOfCompacted, CollectionNotFound, NotConverging, OperatorFailed, PersistError
from persist.core.log import kinds
from persist.core.log.fields import Words
from persist.core.names import OWED_PREFIX
from persist.core.state_rules.contents import CollectionState
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.location.opening import load_handle_by_id
from persist.engine.write.operations import Step
from persist.services.publish import delete_abandoned, make_format, publish

logger = logging.getLogger(__name__)

AT_ONCE = 200  # Collections in one note: their names may be long, and the properties of a collection are bounded.
PATIENCE_S = 60.0  # For so long, others leave an erasure to the process that made it.


class PendingTable(msgspec.Struct, frozen=True, omit_defaults=True):
    """A table to publish again after an erasure."""

    options: dict[str, str] = {}
    digest: bool = False


class PendingErasures(msgspec.Struct, frozen=True, omit_defaults=True):
    """Pending work after erasures, by collection ids.

    Attributes:
        at_ms: the time of the record, by its writer's clock.
        views: the views to refresh, each after its inputs.
        indexes: the columns of the indexes to make again.
        tables: by their format.
    """

    at_ms: int
    views: tuple[str, ...] = ()
    indexes: dict[str, tuple[tuple[str, ...], ...]] = {}
    tables: dict[str, dict[str, PendingTable]] = {}


def make_pending_steps(owed: PendingErasures) -> tuple[list[Step], dict[str, str]]:
    """Return the steps that store pending work, and the names that they create."""
    steps, names = list[Step](), dict[str, str]()
    ids = list(dict.fromkeys((*owed.indexes, *owed.tables)))
    for start in range(0, max(len(owed.views), len(ids)), AT_ONCE):
        some = ids[start : start + AT_ONCE]
        piece = PendingErasures(
            owed.at_ms,
            owed.views[start : start + AT_ONCE],
            {id_: owed.indexes[id_] for id_ in some if id_ in owed.indexes},
            {id_: owed.tables[id_] for id_ in some if id_ in owed.tables},
        )
        id_ = uuid.uuid4().hex
        names[id_] = f"{OWED_PREFIX}{id_}"
        note = Words("what an erasure still has to do", {"owed": msgspec.json.encode(piece).decode()})
        schema = CollectionSchema.of({"k": int}, None).to_json()
        steps += [kinds.Create(id_, names[id_], schema), kinds.Describe(id_, note)]
    return steps, names


def complete_all(engine: Engine) -> None:
    """Do all pending work of erasures; raise the first error at the end."""
    with collect_errors() as attempt:
        engine.follower.refresh()
        for name, id_ in engine.follower.apply_to_state(lambda state: [*state.ids.iterate_prefix(OWED_PREFIX)]):
            with attempt(), suppress(CollectionNotFound):  # Another one has done it.
                complete_erasure(engine, engine.follower.require(id_, name))


@contextmanager
def collect_errors() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Yield a function that makes a context, in which errors are collected; raise the first of them at the end."""
    errors: list[PersistError] = []

    @contextmanager
    def attempt() -> Iterator[None]:
        try:
            yield
        except PersistError as error:
            errors.append(error)

    yield attempt
    if errors:
        raise errors[0]


def complete_old(engine: Engine, contents: CollectionState) -> None:
    """Do the pending work in a hidden collection, unless it is so new that its creator is probably doing it."""
    owed = _decode_owed(contents)
    if engine.clock.wall_ms() - owed.at_ms >= 1000 * PATIENCE_S:
        complete_erasure(engine, contents)


def complete_erasure(engine: Engine, contents: CollectionState) -> None:
    """Do the pending work in a hidden collection, then drop the collection; keep it if something fails.

    What must wait for a seal is stored in a new one.
    """
    owed = _decode_owed(contents)
    indexes = dict[str, tuple[tuple[str, ...], ...]]()
    tables = dict[str, dict[str, PendingTable]]()
    with collect_errors() as attempt:
        views = _load_existing(engine, owed.views)
        if views:
            # A query that fails on some rows raises at the next refresh.
            with (
                attempt(),
                suppress(OperatorFailed, NotConverging),
                ViewsTogether([load_view_by_name(engine, view.name) for view in views], {}) as together,
            ):
                together.refresh()
        for handle in _load_existing(engine, [*owed.indexes]):
            for columns in owed.indexes[handle.id]:
                with attempt():
                    try:
                        create_index(handle, columns)
                    except AsOfCompacted:
                        indexes[handle.id] = (*indexes.get(handle.id, ()), columns)
        for handle in _load_existing(engine, [*owed.tables]):
            with attempt():
                delete_abandoned(handle)
            for table, publication in owed.tables[handle.id].items():
                with attempt():
                    format = make_format(handle, table, publication.options)
                    try:
                        publish(handle, format, None, options=publication.options, digest=publication.digest)
                    except AsOfCompacted:
                        tables.setdefault(handle.id, {})[table] = publication
    waiting = PendingErasures(owed.at_ms, indexes=indexes, tables=tables)
    if waiting == owed:
        return
    steps, names = make_pending_steps(waiting)
    if steps:
        logger.warning("since has passed all sealed times: after the next seal, indexes or tables are made again")
    with suppress(CollectionNotFound):
        engine.submit("erase", [kinds.Destroy(contents.id), *steps], {contents.id: contents.name, **names}).result()


def _decode_owed(contents: CollectionState) -> PendingErasures:
    """Return the pending work that a hidden collection stores."""
    return msgspec.json.decode(contents.about.properties["owed"], type=PendingErasures)


def _load_existing(engine: Engine, ids: Sequence[str]) -> list[CollectionHandle]:
    """Return the collections of ids that still exist."""
    handles = []
    for id_ in ids:
        with suppress(CollectionNotFound):
            handles.append(load_handle_by_id(engine, id_, id_))
    return handles
