"""Late events of a keyed collection in a collection of their own, by the commit that leaves them out.

    key columns of the keyed collection | columns of its events, late_deleted, late_time, late_reason

It is plain, and made when there is something for it. Each commit adds what it left out at the upper of the moment, and
seals that. `late_time` is the time that an event had; `late_reason` is "sealed", or "late" for the late bound.
"""

from collections.abc import Callable

import pyarrow as pa

from persist.codecs import CollectionSchema, Stamp
from persist.engine import REASON, Engine, created_or_loaded
from persist.errors import SchemaMismatch, UpdateNotBeyondUpper
from persist.log import KeyedForm, kinds
from persist.names import check_free_name
from persist.upsert import DELETED, event_fields
from persist.write import Step

LATE_BYTES_MAX = 64 << 20  # Of one batch: more of it is no exception, and says that something else is wrong.
_RENAMED = {DELETED: "late_deleted", "_time": "late_time", REASON: "late_reason"}
_ADDED = {"late_deleted": pa.bool_(), "late_time": pa.int64(), "late_reason": pa.string()}

LateSteps = Callable[[pa.Table], tuple[list[Step], dict[str, str]]]


def late_steps(engine: Engine, schema: CollectionSchema, form: KeyedForm, name: str) -> LateSteps:
    """Return what makes, of late events, the steps that add them to the collection of that name, and its name by id.

    Raises, when it is called:
        SchemaMismatch: there is a collection of that name with other columns.
        UpdateNotBeyondUpper: that is complete for ever.
    """

    def steps(late: pa.Table) -> tuple[list[Step], dict[str, str]]:
        key = {field.name: field.type for field in schema.key.fields}
        value = {field.name: field.type for field in event_fields(schema, form)}
        if taken := [each for each in _ADDED if each in key or each in value]:
            raise SchemaMismatch(f"late events have a column {taken[0]!r} of their own: rename that of the collection")
        check_free_name(name)
        contents, columns = created_or_loaded(engine, name, CollectionSchema.of(key, {**value, **_ADDED}))
        upper = contents.upper
        if upper.time is None:
            raise UpdateNotBeyondUpper(0, upper)
        rows = late.rename_columns([_RENAMED.get(each, each) for each in late.column_names])
        rows = rows.append_column("_diff", pa.repeat(pa.scalar(1, pa.int64()), len(rows)))
        adding = engine.writer("upsert").write_step(contents.id, columns, rows, Stamp(upper.time))
        added: list[Step] = [] if adding is None else [adding]
        return [*added, kinds.Seal(contents.id, (upper.time + 1,))], {contents.id: name}

    return steps
