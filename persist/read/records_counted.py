"""How many records a collection holds, as far as its descriptors tell: what is read of it may be less."""

from persist.codecs import TIME_MAX
from persist.read.scan import Scan
from persist.state import CollectionState, due
from persist.upsert import dead_filter


def record_count(contents: CollectionState) -> int | None:
    """Return what all diffs sum to, sealed or not: the number of records, while no multiplicity is negative.

    None where only reading tells: parts may hold tombstones, which nobody is shown, or sealed events are not resolved.
    """
    base = contents.parts_of(contents.keyframes[0].parts) if contents.history_from else ()
    parts = (*base, *contents.history_parts)
    form = contents.keyed
    if form is not None and due(contents, contents.upper_times):
        return None
    if form is not None and form.tombstone is not None:
        schema = contents.schema
        dead = Scan(schema, parts, 0, TIME_MAX + 1, schema.names, dead_filter(schema, form))
        if dead.pruned().parts:
            return None
    return sum(part.diff_sum for part in parts)
