"""Whether keyframes say what the history says: each must be the one before it and the updates between, added up.

This is what no checksum tells: that compaction put the right rows into blobs that are themselves intact. The first
keyframe can only be checked if the history reaches back to the beginning. Cost: each keyframe is read twice, and the
history once. Memory: a slice of the key space.
"""

from dataclasses import replace

import pyarrow as pa

from persist.blob import Blob, CorruptBlob
from persist.codecs import DiffOverflow, consolidate
from persist.fsck.findings import Findings
from persist.log import PARTS, Keyframe
from persist.read import PartReader, Scan, negated
from persist.state import CollectionState

SLICE_BYTES = 32 << 20


def examine_keyframes(blob: Blob, contents: CollectionState, findings: Findings) -> None:
    """Add a problem for each keyframe that is not what it should be; one that cannot be read is for others to tell."""
    reader, before = PartReader(blob), None
    for keyframe in contents.keyframes:
        try:
            if before is not None or contents.history_from == 0:
                _compare(reader, contents, before, keyframe, findings)
        except (CorruptBlob, DiffOverflow):
            pass
        before = keyframe


def _compare(
    reader: PartReader, contents: CollectionState, before: Keyframe | None, keyframe: Keyframe, findings: Findings
) -> None:
    schema = contents.schema
    base = contents.parts_of(before.parts) if before is not None else ()
    lower = before.as_of + 1 if before is not None else 0
    expected = Scan(schema, contents.history_parts, lower, keyframe.as_of + 1, schema.names, base=base).pruned()
    made = replace(expected, parts=(), base=contents.parts_of(keyframe.parts))
    columns, differing = [*schema.names, "_diff"], 0
    for each in replace(expected, base=(*expected.base, *made.base)).slices_within(SLICE_BYTES):
        one, other = (replace(scan, keys=each.keys).pruned() for scan in (expected, made))
        tables = [each.empty(columns), *one.base_rows(reader, columns), *one.updates(reader, columns)]
        tables += map(negated, other.base_rows(reader, columns))
        differing += len(consolidate(pa.concat_tables(tables), schema.names))
    if differing:
        start = "the history" if before is None else f"the keyframe as of {before.as_of} and the history after it"
        what = f"the keyframe as of {keyframe.as_of} differs in {differing} records from what {start} come to"
        blob = next((part.blob for part in made.base), f"{PARTS}{contents.id}/")
        findings.add("disagrees", blob, what, collection=contents.name)
