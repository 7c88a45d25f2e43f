"""Slices of the key space: finds the parts, and the rows of a sorted part, in an interval of keys.

A *bound* is a whole key in the JSON form of part descriptors (`Part.keys`). Bounds are compared in the
order of rows (see `persist.codecs.order.ordering`): NULL after everything, NaN after every number, strings by code
point, which is the order of their UTF-8 bytes. `split_key_space` cuts the key space into slices of about equally many
rows, by the parts' sampled keys. All rows of one key are in one slice, so slices can be consolidated independently.
"""

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import pyarrow as pa

from persist.blob.errors import CorruptBlob
from persist.blob.lru import Cache, Kind
from persist.codecs.part.part import Part, choose_sample_row
from persist.codecs.types.arrow_types import Bound, Orderable, encode_scalar, make_key_order, make_keys_order
from persist.codecs.types.schema import CollectionSchema

KEY_BYTES = 64  # Roughly, for a key of one field in comparable form.
# Recently parsed keys: planning needs those of the same parts repeatedly. Entries unused for a minute are dropped:
# parts are replaced all the time, and parsing keys again is cheap.
_KNOWN: Kind[tuple[bytes, tuple[pa.DataType, ...]], list[Orderable]] = Cache(
    16 << 20, is_lru=True, idle_s=60.0
).add_kind(lambda keys: KEY_BYTES * (1 + len(keys)), share=1)


# The interval `[start, end)` of rows of a part that holds all rows of a range, and how many keys are sampled. No class:
# there may be hundreds of thousands, and the garbage collector does not look at tuples of numbers again.
Within = tuple[int, int, int]
Types = tuple[pa.DataType, ...]


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys with `lower <= key < upper`; None means no bound on that side."""

    lower: Bound | None = None
    upper: Bound | None = None
    # Cached bounds in comparable form, for the types first requested.
    _ordered: tuple[Types, Orderable | None, Orderable | None] | None = field(
        default=None, init=False, repr=False, compare=False
    )
    _within: dict[str, Within] = field(default_factory=dict, init=False, repr=False, compare=False)

    def make_comparable_bounds(self, types: Types) -> tuple[Orderable | None, Orderable | None]:
        """Return both bounds as Python values that sort like the keys."""
        if self._ordered is None or self._ordered[0] != types:
            order = make_key_order(types)
            lower, upper = (None if bound is None else order(bound) for bound in (self.lower, self.upper))
            self.cache_bounds(types, lower, upper)
            return lower, upper
        return self._ordered[1:]

    def cache_bounds(self, types: Types, lower: Orderable | None, upper: Orderable | None) -> None:
        """Remember the comparable bounds, unless some are cached."""
        if self._ordered is None:
            object.__setattr__(self, "_ordered", (types, lower, upper))

    @property
    def is_all(self) -> bool:
        """Whether every key is inside."""
        return self.lower is None and self.upper is None

    def may_overlap(self, part: Part, schema: CollectionSchema) -> bool:
        """Return False only if no key of a part is inside."""
        keys = None if self.is_all else load_comparable_keys(part, schema)
        if keys is None:
            return True
        lower, upper = self.make_comparable_bounds(schema.key_types)
        return not ((lower is not None and keys[-1] < lower) or (upper is not None and keys[0] >= upper))

    def covers(self, part: Part, schema: CollectionSchema) -> bool:
        """Return True only if every key of a part is inside."""
        keys = None if self.is_all else load_comparable_keys(part, schema)
        if keys is None:
            return self.is_all
        lower, upper = self.make_comparable_bounds(schema.key_types)
        return (lower is None or lower <= keys[0]) and (upper is None or keys[-1] < upper)

    def find_end(self, keys: pa.Table, schema: CollectionSchema) -> int:
        """Return the first row beyond the range; the rows begin inside. Cost: as of `find_rows`."""
        return KeyRange(None, self.upper).find_rows(keys, schema)[1]

    def find_rows(self, keys: pa.Table, schema: CollectionSchema) -> tuple[int, int]:
        """Return the interval `[start, end)` of rows inside the range, for a part's sorted key columns.

        Cost: O(log rows) comparisons.
        """
        order = make_key_order(schema.key_types)
        columns = [keys[name] for name in schema.key_names]

        def key_of_row(row: int) -> Orderable:
            return order([encode_scalar(column[row]) for column in columns])

        rows = range(len(keys))
        start = 0 if self.lower is None else bisect.bisect_left(rows, order(self.lower), key=key_of_row)
        end = len(keys) if self.upper is None else bisect.bisect_left(rows, order(self.upper), key=key_of_row)
        return start, max(start, end)

    def bracket_rows(self, part: Part, schema: CollectionSchema) -> tuple[int, int]:
        """Return an interval that includes a part's rows in the range."""
        return self.bracket_samples(part, schema)[:2]

    def bracket_samples(self, part: Part, schema: CollectionSchema) -> Within:
        """Return `bracket_rows`, and how many sampled keys the part has."""
        if self.is_all:
            return 0, part.rows, 0
        cached = self._within.get(part.checksum)
        if cached is None or self._ordered is None or self._ordered[0] != schema.key_types:
            return self.cache_samples(part, schema.key_types, load_comparable_keys(part, schema))
        return cached

    def cache_samples(self, part: Part, types: Types, sampled: list[Orderable] | None) -> Within:
        """Compute `bracket_samples` from a part's sampled keys, and cache it."""
        lower, upper = self.make_comparable_bounds(types)
        start, end, samples = 0, part.rows, len(sampled or ())
        if sampled is not None and lower is not None and lower > sampled[0]:
            start = choose_sample_row(part.rows, samples, bisect.bisect_left(sampled, lower) - 1)
        if sampled is not None and upper is not None and upper <= sampled[-1]:
            end = choose_sample_row(part.rows, samples, bisect.bisect_left(sampled, upper))
        within = start, max(start, end), samples
        if self._ordered is not None and self._ordered[0] == types:
            self._within[part.checksum] = within
        return within


Sampled = Sequence[list[Orderable] | None]  # The results of `load_comparable_keys` for several parts.


def split_key_space(
    parts: Sequence[Part],
    schema: CollectionSchema,
    count: int,
    within: KeyRange | None = None,
    sampled: Sampled | None = None,
) -> list[KeyRange]:
    """Return at most count ranges that cover the key space (or within), with about equally many rows each.

    There is only one range if descriptors have no comparable keys (a nested key field, or very long keys).

    `sampled`: the sampled keys of the parts, if available.
    """
    within = within or KeyRange()
    if count <= 1 or not schema.key_names:
        return [within]
    keys: list[Orderable] = []
    samples: list[int] = []  # How many of the keys are of each part.
    for keys_of_part in (load_comparable_keys(part, schema) for part in parts) if sampled is None else sampled:
        if keys_of_part is None:
            return [within]
        keys += keys_of_part
        samples.append(len(keys_of_part))
    # Sort indices, because the key at the cut must be found again in its part.
    order = sorted(range(len(keys)), key=keys.__getitem__)
    key_of, written = keys.__getitem__, make_key_order(schema.key_types)
    first = 0 if within.lower is None else bisect.bisect_left(order, written(within.lower), key=key_of)
    end = len(order) if within.upper is None else bisect.bisect_left(order, written(within.upper), key=key_of)
    order = order[first:end]
    if not order:
        return [within]
    shares = np.array([part.rows / n_keys for part, n_keys in zip(parts, samples, strict=True)], np.float64)
    weights = np.repeat(shares, samples)[order]
    step, before = float(weights.sum()) / count, (np.cumsum(weights) - weights).tolist()
    ends = [*accumulate(samples)]
    cuts: list[Bound] = []
    last, at = keys[order[0]] if within.lower is None else written(within.lower), 0
    while True:
        at = max(at, bisect.bisect_left(before, step * (len(cuts) + 1)))
        while at < len(order) and keys[order[at]] == last:
            at += 1
        if at >= len(order):
            break
        number, last = order[at], keys[order[at]]
        of = bisect.bisect_right(ends, number)
        bounds = parts[of].keys
        assert bounds is not None, "its keys were in order"
        cuts.append(bounds[number - ends[of] + samples[of]])
    return [KeyRange(a, b) for a, b in zip([within.lower, *cuts], [*cuts, within.upper], strict=True)]


def assign_parts(
    parts: Iterable[Part], schema: CollectionSchema, ranges: Sequence[KeyRange], sampled: Sampled
) -> list[Sequence[Part]]:
    """Return for each of some adjacent ranges the parts that may overlap.

    `sampled`: the sampled keys of the parts. Cost: a binary search for each part, and O(parts that are returned).
    """
    bounds, types = [keys.lower for keys in ranges[1:]], schema.key_types
    assert None not in bounds, "ranges that are adjacent have a bound between them"
    cuts = make_keys_order(types)([bound for bound in bounds if bound is not None])
    lower, upper = ranges[0].make_comparable_bounds(types)[0], ranges[-1].make_comparable_bounds(types)[1]
    for key_range, start, stop in zip(ranges, [lower, *cuts], [*cuts, upper], strict=True):
        key_range.cache_bounds(types, start, stop)
    # Only for ranges that contain parts: a short history may touch few of very many.
    within: dict[int, list[Part]] = {}
    for part, keys in zip(parts, sampled, strict=True):
        first, end = 0, len(ranges)
        if keys is not None:
            if (lower is not None and keys[-1] < lower) or (upper is not None and keys[0] >= upper):
                continue
            first, end = bisect.bisect_right(cuts, keys[0]), bisect.bisect_right(cuts, keys[-1]) + 1
        for n in range(first, end):
            within.setdefault(n, []).append(part)
            ranges[n].cache_samples(part, types, keys)  # The keys are parsed here, and are needed again.
    return [within.get(n, ()) for n in range(len(ranges))]


def load_comparable_keys(part: Part, schema: CollectionSchema) -> list[Orderable] | None:
    """Return a part's sampled keys as comparable values, or None without any.

    Raises CorruptBlob: the samples are not keys of this schema, or not in order.
    """
    written = bytes(part.keys_json)
    types = schema.key_types
    keys = _KNOWN.get((written, types))
    if keys is None:
        keys = _parse_keys(part, schema)
        _KNOWN.put((written, types), keys)
    return keys or None


def _parse_keys(part: Part, schema: CollectionSchema) -> list[Orderable]:
    """Decode a part's sampled keys to values that sort like keys."""
    bounds = part.keys
    if bounds is None:
        return []
    try:
        keys = make_keys_order(schema.key_types)(bounds)
    except (ValueError, ArithmeticError, pa.ArrowException) as error:
        raise CorruptBlob(part.name, f"its descriptor has keys of another type: {error}") from error
    if keys != sorted(keys):
        raise CorruptBlob(part.name, "its descriptor has keys that are not in order")
    return keys
