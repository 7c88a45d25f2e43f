"""Which events of a keyed collection are late: at a time that is sealed, or with a watermark below the late bound."""

from typing import Literal

import numpy as np
import pyarrow as pa

from persist.codecs import boolean_array, combined, int64_values
from persist.log import KeyedForm
from persist.state import CollectionState
from persist.upsert import SEQ, EventTable, watermark_below, watermarks_of

Late = Literal["raise", "collect"]
REASON = "_reason"


def split_late(events: EventTable, contents: CollectionState, form: KeyedForm) -> tuple[EventTable, pa.Table | None]:
    """Return the events that are in time, as contents are, and those that are late, if there are any.

    Returns:
        the second without `_seq` and `_diff`, and with `_reason`: "sealed", or "late" for the late bound.
    """
    table, upper = events.table, contents.upper.time
    times = int64_values(combined(table["_time"]))
    is_sealed = np.ones(len(times), np.bool_) if upper is None else times < upper
    is_late = np.zeros(len(times), np.bool_)
    if form.order_by and contents.late_bound is not None:
        is_late = watermark_below(table[form.order_by[0]], contents.late_bound)
    wrong = boolean_array(is_sealed | is_late)
    if not (is_sealed | is_late).any():
        return events, None
    kept = table.filter(boolean_array(~(is_sealed | is_late)))
    reasons = pa.array(np.where(is_sealed, "sealed", "late"), pa.string()).filter(wrong)
    late = table.filter(wrong).drop_columns([SEQ, "_diff"]).append_column(REASON, reasons)
    marks = watermarks_of(kept[form.order_by[0]]) if form.order_by and len(kept) else None
    return EventTable(events.schema, kept, marks), late
