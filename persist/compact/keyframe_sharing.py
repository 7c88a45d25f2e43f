"""What a new keyframe shares with the one before it.

It is made of the plan by which a reader would read its time. Where no history touches the keys of a part of the old
one, the new one lists that very part. Small parts next to rewritten ones are rewritten with them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from persist.codecs import KeyRange, ordered_keys
from persist.compact.rewriter import PartMaker, Rewrite, RunPiece
from persist.read import Scan

WHOLE_FRACTION = 4  # Parts at least this fraction of the target are left as they are where they can be.


def keyframe_pieces(scan: Scan, numbers: Mapping[str, int], part_bytes: int, maker: PartMaker) -> Iterator[RunPiece]:
    """Yield what the keyframe is made of that a plan of `snapshot_scan` tells, in key order.

    Args:
        numbers: of parts, by their blobs.
        part_bytes: what a part should have.
        maker: looks at what the history changes, where that has to be known.
    """
    regions = _regions(scan)
    touches = maker.touched([region for region in regions if _is_in_doubt(region)])
    is_open = False  # Whether the piece before is rewritten.
    for region in regions:
        is_touched = not _may_stay(region) or (
            region.parts and (is_open or not _is_in_doubt(region) or touches(region))
        )
        is_small = is_open and sum(part.bytes for part in region.base) < part_bytes // WHOLE_FRACTION
        is_open = bool(is_touched or is_small)
        if is_open:
            yield Rewrite(region, scan.as_of)
        else:
            yield from (numbers[part.blob] for part in region.base)


def _regions(scan: Scan) -> list[Scan]:
    """Cut a plan where the parts of its keyframe begin."""
    keys = [ordered_keys(part, scan.schema) for part in scan.base]
    bounds = [part.keys for part in scan.base]
    if len(scan.base) < 2 or any(each is None for each in keys) or any(each is None for each in bounds):
        return [scan]
    cuts = [each[0] for each in bounds[1:] if each is not None]
    ranges = [KeyRange(a, b) for a, b in zip([None, *cuts], [*cuts, None], strict=True)]
    return [replace(scan, keys=within, base=(part,)).pruned() for within, part in zip(ranges, scan.base, strict=True)]


def _may_stay(region: Scan) -> bool:
    """Tell whether an earlier keyframe may list the parts of a region: rows of a later one say a later time."""
    return all(part.time_max <= region.as_of for part in region.base)


def _is_in_doubt(region: Scan) -> bool:
    """Tell whether to look if history changes anything in a region costs far less than to write it anew."""
    if not region.base or not region.parts or not _may_stay(region):
        return False
    return sum(region.rows_within(part) for part in region.parts) <= region.base[0].rows // 4
