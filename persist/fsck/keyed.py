"""Whether a keyed collection has at most one value per key, at every time that can be told apart.

No checksum tells: it would be wrong if a resolution was made of something else than its record says. Cost: the first
keyframe and the history are read once, keys and diffs only. Memory: a slice of the key space.
"""

import numpy as np
import pyarrow as pa

from persist.blob import Blob, CorruptBlob
from persist.codecs import CollectionSchema, DiffOverflow, consolidate, order_keys
from persist.codecs.order.arrays import int64_values
from persist.codecs.order.digits import RowSorter
from persist.codecs.order.ordering import combined
from persist.fsck.log import Findings
from persist.log.keys import PARTS
from persist.read.part_reader import PartReader
from persist.read.scan import Scan
from persist.state.contents import CollectionState
from persist.upsert.known import machine_of

SLICE_BYTES = 32 << 20


def examine_values(blob: Blob, contents: CollectionState, findings: Findings) -> None:
    """Add a problem if a key has more than one value, or less than none, at some time."""
    if contents.keyed is None:
        return
    machine = machine_of(contents.keyed, None, contents.name)
    if machine is None or not machine.has_one_value:
        return  # What is not known here may have any number of them.
    schema, first = contents.schema, contents.keyframes[0] if contents.history_from else None
    base = contents.parts_of(first.parts) if first is not None else ()
    upper = contents.resolved.time
    whole = Scan(schema, contents.history_parts, 0, 2**63 - 1 if upper is None else upper, (), base=base)
    try:
        reader = PartReader(blob)
        wrong = [key for each in whole.pruned().slices_within(SLICE_BYTES) for key in _wrong(each, schema, reader)]
    except (CorruptBlob, DiffOverflow):
        return  # What cannot be read is for others to tell.
    if wrong:
        what = f"{len(wrong)} keys have more than one value, or less than none, at some time; one is {wrong[0]}"
        findings.add("rule", f"{PARTS}{contents.id}/", what, collection=contents.name)


def _wrong(scan: Scan, schema: CollectionSchema, reader: PartReader) -> list[object]:
    """Return the keys of a slice that have too many values at some time."""
    keys = list(schema.key_names)
    columns = [*keys, "_time", "_diff"]
    found = [scan.empty(columns), *scan.updates(reader, columns)]
    for table in scan.base_rows(reader, [*keys, "_diff"]):
        before = pa.array(np.full(len(table), -1, np.int64))  # Whatever their own times: they are there at first.
        found.append(table.add_column(len(keys), schema.arrow.field("_time"), before))
    sums = consolidate(pa.concat_tables(found), columns[:-1])
    if not len(sums):
        return []
    _, starts = RowSorter(order_keys(sums, keys)).sort()
    diffs = int64_values(combined(sums["_diff"]))
    running = np.cumsum(diffs)
    firsts = np.flatnonzero(starts)
    held = running - np.repeat(running[firsts] - diffs[firsts], np.diff([*firsts, len(diffs)]))
    bad = sums.select(keys).filter(pa.array((held < 0) | (held > 1)))
    return [tuple(row.values()) for row in bad.group_by(keys).aggregate([]).slice(0, 1000).to_pylist()]
