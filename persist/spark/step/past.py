"""What descriptors of parts tell of a source as of a time: whether a diff is negative, and where NULLs may be."""

from functools import cached_property

from persist.codecs import TIME_MAX, Part, decode_part
from persist.engine import CollectionHandle, changes, snapshot
from persist.read import Scan


class Past:
    """A source before a step, and what is new in it. No I/O but for small parts, which are in the log.

    Args:
        as_of: when the past is.
        until: the step takes in what comes before this time.
    """

    def __init__(self, handle: CollectionHandle, as_of: int, until: int) -> None:
        self._handle, self._as_of, self._until = handle, as_of, until
        self._null: dict[str, bool] = {}

    @cached_property
    def was_positive(self) -> bool:
        """Whether it can be told that no multiplicity was negative."""
        return self._is_keyed or not any(part.negatives for part in self._contents.all_parts)

    @cached_property
    def stays_positive(self) -> bool:
        """Whether no multiplicity becomes negative, either, if none was."""
        if self._is_keyed or self._until <= self._as_of + 1:
            return True
        with changes(self._handle, self._as_of + 1, min(self._until, TIME_MAX + 1)) as new:
            return not any(part.negatives for part in new.scan.all_parts)

    @property
    def only_grows(self) -> bool:
        """Whether it can be told that nothing is retracted. Of a keyed collection, only that nothing happens."""
        return self._until <= self._as_of + 1 or (not self._is_keyed and self.stays_positive)

    def may_be_null(self, column: str) -> bool:
        """Return whether it cannot be told that a column had no NULLs."""
        if column not in self._null:
            self._null[column] = any(self._nulls(part, column) for part in self._contents.all_parts)
        return self._null[column]

    @property
    def _is_keyed(self) -> bool:
        return self._handle.keyed is not None

    @cached_property
    def _contents(self) -> Scan:
        version = self._handle.schema.version
        with snapshot(self._handle, self._as_of, form="diff", schema=version) as contents:
            return contents.scan

    def _nulls(self, part: Part, column: str) -> bool:
        """Return whether a part may have NULLs in a column. Of another version of the schema, it may."""
        schema = self._contents.schema
        if part.schema != schema.version:
            return True
        known = part.stats.get(column)
        if known is None and part.inline:
            return bool(decode_part(part.inline, part, schema, columns=[column])[column].null_count)
        return known is None or known[2] > 0
