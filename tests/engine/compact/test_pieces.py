"""Which pieces a keyframe is made of, decided from descriptors of parts and from what the history changes."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from persist.codecs.part.part import Part
from persist.codecs.types.schema import CollectionSchema
from persist.engine.compact.rewriter import plan_keyframe
from persist.engine.read.planning.scan import Scan
from tests.support.keyframes import KEY, VALUE, part_of

SCHEMA = CollectionSchema.of(KEY, VALUE)
QUIET = "quiet"


class Maker:
    """Says of certain keys that the history changes them, and notes which regions it was asked about."""

    def __init__(self, *changed: int) -> None:
        self._changed = changed
        self.regions: list[Any] = []

    def build_change_test(self, regions: Sequence[Scan]) -> Callable[[Scan], bool]:
        self.regions = [bounds(region) for region in regions]
        return lambda region: any(lower <= key < upper for key in self._changed for lower, upper in [bounds(region)])


def bounds(scan: Scan) -> tuple[int, int]:
    """Return the keys of a region, without what is outside of all keys."""
    lower, upper = scan.keys.lower, scan.keys.upper
    return -1 if lower is None else int(lower[0]), 999 if upper is None else int(upper[0])


def plan(base: Sequence[Part], history: Sequence[Part], maker: Maker, part_bytes: int = 80_000) -> list[Any]:
    """Return the pieces: numbers of parts, and the bounds of what is rewritten."""
    scan = Scan(SCHEMA, tuple(history), 41, 51, SCHEMA.names, base=tuple(base))
    numbers = {part.blob: number for number, part in enumerate(base)}
    pieces = [*plan_keyframe(scan, numbers, part_bytes, maker)]  # type: ignore[arg-type]
    assert all(isinstance(piece, int) or piece.as_of == 50 for piece in pieces)
    return [piece if isinstance(piece, int) else (*bounds(piece.scan), *[QUIET] * piece.is_quiet) for piece in pieces]


def row(*rows: int, first: int = 0) -> list[Part]:
    """Return parts of the keyframe, of 20 bytes for each row, with keys from 0, from 100, and so on."""
    numbers = range(first, first + len(rows))
    return [
        part_of(n, 0, 40, keys=range(100 * at, 100 * at + min(99, 3 * n), 3))
        for at, n in zip(numbers, rows, strict=True)
    ]


def change(rows: int, *keys: int) -> Part:
    return part_of(rows, 45, 50, keys=keys)


def without_keys(part: Part) -> Part:
    return msgspec.structs.replace(part, keys_json=msgspec.Raw(b"null"))


SAME = row(1000, 1000, 1000, 1000)
A, B, C, D, ALL = (-1, 100), (100, 200), (200, 300), (300, 999), (-1, 999)
Case = tuple[list[Part], list[Part], list[int], list[Any], list[Any]]

# Parts of the last keyframe; of the history; keys that change; regions that are tested for it; and pieces.
PARTS: list[Case] = [
    (SAME, [], [150], [], [0, 1, 2, 3]),
    (SAME, [change(10, 105, 106)], [], [B], [0, 1, 2, 3]),
    (SAME, [change(10, 105, 106)], [105], [B], [0, B, 2, 3]),
    # A test costs less than the rewriting of a part, or is left out.
    (SAME, [change(250, 105, 106)], [], [B], [0, 1, 2, 3]),
    (SAME, [change(251, 105, 106)], [], [], [0, B, 2, 3]),
    (SAME, [change(150, 105, 106), change(101, 106, 107)], [], [], [0, B, 2, 3]),
    # Behind what is rewritten, nothing is tested.
    (SAME, [change(10, 105, 206)], [105], [B, C], [0, B, C, 3]),
    (SAME, [change(10, 105, 206)], [205], [B, C], [0, 1, C, 3]),
    (SAME, [change(10, 5, 6), change(10, 205, 206)], [5, 205], [A, C], [A, 1, C, 3]),
    (SAME, [change(10, 5, 6), change(10, 205, 206)], [5], [A, C], [A, 1, 2, 3]),
    (SAME, [change(300, 190, 300)], [], [], [0, B, C, D]),
    (SAME, [without_keys(change(250, 0, 1))], [205], [A, B, C, D], [0, 1, C, D]),
    # What is smaller than what is rewritten before it, and not large, is rewritten with it.
    (row(1000, 999, 1000), [change(10, 5, 6)], [5], [A], [A, B, 2]),
    (row(1000, 1000, 1000), [change(10, 5, 6)], [5], [A], [A, 1, 2]),
    (row(50, 50, 100, 1000), [change(10, 5, 6)], [5], [A], [A, B, C, 3]),
    (row(50, 51, 50), [change(10, 5, 6)], [5], [A], [A, 1, 2]),
    (row(50, 50, 101), [change(10, 5, 6)], [5], [A], [A, B, 2]),
    (row(50, 50, 50), [change(10, 105, 106)], [105], [B], [0, B, (200, 999)]),
    # Rows of a later time cannot stay.
    ([part_of(1000, 0, 50, keys=[0, 9]), *row(1000, first=1)], [], [], [], [0, 1]),
    ([part_of(1000, 0, 51, keys=[0, 9]), *row(1000, first=1)], [], [], [], [(*A, QUIET), 1]),
    # A large part is cut between what changes and what does not.
    (row(1997, 1000), [change(700, 45, 46)], [], [], [A, 1]),
    (row(1998, 1000), [change(700, 45, 46)], [], [], [(-1, 48), (48, 100, QUIET), 1]),
    (row(1031, 1000), [change(700, 0, 1)], [], [], [A, 1]),
    (row(1032, 1000), [change(700, -5, 2)], [], [], [(-1, 3), (3, 100, QUIET), 1]),
    (row(1031, 1000), [change(700, 97, 98)], [], [], [(-1, 96, QUIET), (96, 100), 1]),
    (row(2400, 1000), [change(700, 44, 45)], [], [], [(-1, 42, QUIET), (42, 48), (48, 100, QUIET), 1]),
    (row(2400, 1000), [change(700, 98, 150)], [], [], [(-1, 96, QUIET), (96, 100), (100, 999)]),
    (row(3300), [change(900, 48, 49)], [], [], [(-1, 48, QUIET), (48, 51), (51, 999, QUIET)]),
    (row(3300, 9), [change(900, 9, 10), change(9, 66, 67)], [], [], [(-1, 12), (12, 66, QUIET), (66, 100), (100, 999)]),
    (row(3300, 9), [change(900, 9, 10), change(9, 40, 41)], [], [], [(-1, 42), (42, 100, QUIET), 1]),
    (row(1998, 64, 1000), [change(700, 97, 98)], [], [], [(-1, 96, QUIET), (96, 100), B, 2]),
    (row(1998, 65, 1000), [change(700, 97, 98)], [], [], [(-1, 96, QUIET), (96, 100), 1, 2]),
    (row(1998, 40, 1000), [change(700, 0, 1)], [], [], [(-1, 3), (3, 100, QUIET), 1, 2]),
    (row(1998, 1000), [change(700, 0, 1), change(10, 105, 106)], [], [(100, 999)], [(-1, 3), (3, 100, QUIET), 1]),
    # Without known keys, nothing is cut.
    ([without_keys(row(1998)[0]), *row(1000, first=1)], [], [], [], [0, 1]),
    ([without_keys(row(1998)[0]), *row(1000, first=1)], [change(499, 0, 1)], [], [ALL], [0, 1]),
    ([without_keys(row(1998)[0]), *row(1000, first=1)], [change(500, 0, 1)], [], [], [ALL]),
    ([*row(1998), without_keys(row(1000, first=1)[0])], [change(700, 0, 1)], [], [], [ALL]),
    (row(9000), [without_keys(change(9000, 0, 1))], [], [], [ALL]),
    ([], [change(5, 1, 2)], [], [], [ALL]),
    (row(400), [change(5, 1, 2)], [1], [ALL], [ALL]),
    (row(400), [change(5, 1, 2)], [], [ALL], [0]),
    (row(400), [], [], [], [0]),
]


@pytest.mark.parametrize("number", range(len(PARTS)))
def test_a_keyframe_lists_what_stays_and_rewrites_what_changes(number: int) -> None:
    base, history, changed, tested, pieces = PARTS[number]
    maker = Maker(*changed)
    assert (plan(base, history, maker), maker.regions) == (pieces, tested)
