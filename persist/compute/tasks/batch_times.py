"""The times of a batch, the seal after it, and the treatment of late updates and events.

Rows without times all get the time of the commit, which seals them. With times of their own they seal

    "max"          to beyond the largest time of the batch
    "watermark"    up to the largest time minus a delay
    "none"         nothing; another client seals

Tasks leave out updates that are late by what was sealed when they were planned (`LateFilter`). If another writer seals
after that, before the commit, parts with late updates are rewritten. The committer reads and writes them in pieces,
within the memory budget of a client.

Late events of a keyed collection may go to a collection of their own, by the commit that leaves them out:

    key columns of the keyed collection | columns of its events, late_deleted, late_time, late_reason

It is plain, and created with the first late event. Each commit adds its late events at the upper of that collection,
and seals it. `late_time` is the time that an event had; `late_reason` is "sealed", or "late" for the late bound; for a
partial event it also names the unchanged columns, as in "late; unchanged: a, b".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.part.part import Part
from persist.codecs.types.schema import TIME_MAX, CollectionSchema
from persist.codecs.updates.updates import Stamp
from persist.compute.tasks.planned_write import Target, Uploads
from persist.core.antichain import END, Antichain, encode_frontier
from persist.core.errors import InvalidUsage, SchemaMismatch, UpdateNotBeyondUpper
from persist.core.keyed.events import list_event_fields
from persist.core.keyed.machine import DELETED
from persist.core.log import kinds
from persist.core.log.fields import KeyedForm
from persist.core.names import check_free_name, check_printable_text
from persist.core.state_rules.keyed_rules import UNCHANGED
from persist.engine.location.engine import Engine
from persist.engine.location.opening import load_or_create
from persist.engine.location.resolver import REASON
from persist.engine.read.planning.scan import Scan
from persist.engine.write.operations import Step
from persist.engine.write.part_writer import open_run

Sealing = Literal["max", "none", "watermark"]
Late = Literal["error", "drop", "collect"]


@dataclass(frozen=True)
class BatchTimes:
    """The times of a batch's rows, and the seal after it.

    `is_plain`: whether rows come without times, so that all rows of a batch get one time.
    `delay`: how far behind the largest time a watermark is.
    """

    is_plain: bool
    seal: Sealing = "max"
    delay: int = 0
    late: Late = "error"
    late_collection: str | None = None
    allow_future: bool = False

    @classmethod
    def of(
        cls,
        is_plain: bool,
        seal: str | None,
        watermark: int | None,
        late: str | None,
        late_collection: str | None = None,
        *,
        is_keyed: bool = False,
        allow_future: bool = False,
    ) -> "BatchTimes":
        """Return the times by a user's options. Raises InvalidUsage if these contradict.

        `is_keyed`: whether the rows are events of a keyed collection, some of which may be late even without times.
        """
        of_times = (("seal", seal), ("watermark", watermark), ("late", None if is_keyed else late))
        if is_plain and (given_options := [name for name, value in of_times if value]):
            raise InvalidUsage(
                f"{', '.join(given_options)} goes with rows that have times, and these get one for each batch, "
                "which is sealed with it. Leave it out, or give the rows times: a column _time, or the option time."
            )
        if seal is not None and watermark is not None:
            raise InvalidUsage("seal and watermark both say what is sealed after a batch: give one of them")
        check_choice("seal", seal, ("max", "none"))
        check_late(late, late_collection, is_keyed=is_keyed)
        how = "watermark" if watermark is not None else seal or "max"
        return cls(
            is_plain, cast(Sealing, how), watermark or 0, cast(Late, late or "error"), late_collection, allow_future
        )

    def find_seal(self, latest: int | None) -> int | None:
        """Return the upper to seal to after a batch with this largest time; None not to seal."""
        if latest is None or self.seal == "none":
            return None
        is_beyond = self.is_plain or self.seal == "max"
        return latest + 1 if is_beyond else max(latest - self.delay, 0)


def check_late(late: str | None, late_collection: str | None, *, is_keyed: bool) -> None:
    """Raise InvalidUsage if the options for late events or updates contradict each other."""
    check_choice("late", late, ("error", "drop", "collect"))
    if late == "collect" and not is_keyed:
        raise InvalidUsage(
            'late="collect" goes with events for a keyed collection; late updates of others can be dropped, by '
            'late="drop", or end the query'
        )
    if (late == "collect") != (late_collection is not None):
        raise InvalidUsage(
            f"late={late!r} and the late collection {late_collection!r} go together: to collect late events, give both "
            'late="collect" and the name of a collection for them'
        )
    if late_collection is not None:
        check_printable_text("the late collection", late_collection)


def check_choice(name: str, value: str | None, allowed: tuple[str, ...]) -> None:
    """Raise InvalidUsage if a value is not one of the allowed ones."""
    if value is not None and value not in allowed:
        raise InvalidUsage(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}")


@dataclass
class LateFilter:
    """Drops updates before the time `lower`, and counts them."""

    lower: int | None
    count: int = 0

    def drop_late(self, table: pa.Table) -> pa.Table:
        """Return the updates of a table that are not late."""
        if self.lower is None:
            return table
        is_kept = pc.greater_equal(table["_time"], self.lower)
        on_time = table if pc.all(is_kept).as_py() else table.filter(is_kept)
        self.count += len(table) - len(on_time)
        return on_time


def store_timely_parts(engine: Engine, target: Target, parts: Sequence[Part], lower: int) -> list[Part]:
    """Upload the updates of parts at times from lower on; return their new parts."""
    schema, reader = target.schema, engine.reader()
    columns = [*schema.names, "_time", "_diff"]
    with target.open_writer() as writer, Uploads(writer, target.id) as uploads:
        for part in parts:
            stream = open_run(reader.memory_budget, schema, sources=(part,))
            scan = Scan(schema, (part,), lower, TIME_MAX + 1, schema.names)
            for piece in scan.cut_into_slices(reader.rewrite_slice_bytes):
                for table in piece.updates(reader, columns):
                    uploads.add(stream.add(pa.Table.from_arrays(table.columns, schema=schema.arrow)))
            uploads.add(stream.finish())
        return list(uploads.finish())


LATE_BYTES_MAX = 64 << 20  # In one batch: more is not an exception but a sign of another fault.
_RENAMED = {DELETED: "late_deleted", "_time": "late_time", REASON: "late_reason"}
_ADDED = {"late_deleted": pa.bool_(), "late_time": pa.int64(), "late_reason": pa.string()}

LateSteps = Callable[[pa.Table], tuple[list[Step], dict[str, str]]]


def make_late_step_builder(engine: Engine, schema: CollectionSchema, form: KeyedForm, name: str) -> LateSteps:
    """Return a function that builds the steps for late events.

    Raises, when the returned function is called:
        SchemaMismatch: there is a collection of that name with other columns.
        UpdateNotBeyondUpper: that collection is complete for ever.
    """

    def steps(late: pa.Table) -> tuple[list[Step], dict[str, str]]:
        """Return the steps that add late events to their collection, which is created if needed."""
        key = {field.name: field.type for field in schema.key.fields}
        value = {field.name: field.type for field in list_event_fields(schema, form)}
        if taken_names := [column for column in _ADDED if column in key or column in value]:
            raise SchemaMismatch(
                f"late events have a column {taken_names[0]!r} of their own: rename the collection's column"
            )
        check_free_name(name)
        contents, columns = load_or_create(engine, name, CollectionSchema.of(key, {**value, **_ADDED}))
        upper = contents.upper
        if upper == END:
            raise UpdateNotBeyondUpper(0, Antichain())
        if UNCHANGED in late.column_names:  # The collection may be older than that column.
            names = pc.binary_join(late[UNCHANGED], ", ")
            texts = pc.binary_join_element_wise(late[REASON], "; unchanged: ", names, "")
            at = late.schema.get_field_index(REASON)
            late = late.set_column(at, REASON, pc.coalesce(texts, late[REASON])).drop_columns([UNCHANGED])
        rows = late.rename_columns([_RENAMED.get(column, column) for column in late.column_names])
        rows = rows.append_column("_diff", pa.repeat(pa.scalar(1, pa.int64()), len(rows)))
        adding = engine.writer("upsert").write_step(contents.id, columns, rows, Stamp(upper))
        added: list[Step] = [] if adding is None else [adding]
        return [*added, kinds.Seal(contents.id, encode_frontier(upper + 1))], {contents.id: name}

    return steps
