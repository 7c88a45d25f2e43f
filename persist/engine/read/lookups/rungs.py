"""What keys hold where each holds one row at most: the newest update of a key decides, and nothing older is looked at.

Updates of such a key at one time are at most the retraction of one row and the insertion of another. So of the latest
time at which a key has updates, the inserted row is what the key holds after that, and if there is none, it holds
nothing. A look-up goes from the newest updates to the oldest and is done with a key at the first that it finds
(`newest`). Its cost is then in proportion to the keys, however many updates each of them has had.

Every upsert leaves a run, and a look-up that asked each of them would take longer and longer. So what the newest runs
say of their keys is kept as *rungs*: for each key the row that its newest update leaves, or that it leaves none. Four
rungs of similar size become one. So there are a few of each size, a row is copied once for each size, and what newer
runs have replaced takes no room. Rungs are made of parts alone and named by them. They are a cache: nothing has to be
true for them but that parts never change.

A run becomes part of a rung only if a look-up would read most of its rows anyway, only as long as there is room, and
not before the second look-up of a client. Runs before these, and keyframes, are asked as by any other look-up
(`persist.engine.read.lookups.lookup`).

Measured: with many runs, an upsert takes 21 ms, and 33 ms without rungs.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from persist.codecs.order.arrays import boolean_array, int64_array, int64_values
from persist.codecs.order.digits import neighbours_differ
from persist.codecs.order.ordering import combined, order_keys, row_sorter
from persist.codecs.order.search import SortedKeys, empty_batch
from persist.codecs.order.sums import consolidate
from persist.codecs.part.part import Part
from persist.engine.read.parts.reader import PartReader
from persist.engine.read.planning.scan import Scan

Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Aged:
    """Updates with wanted keys.

    Attributes:
        table: all columns of the schema, those of the key first, and perhaps `_time` and `_diff`, in the order of keys.
        time: that of all of them; None if each has its own, in a column.
        diff: that of all of them; None if each has its own.
    """

    table: pa.Table
    time: int | None
    diff: int | None

    @property
    def times(self) -> Ints:
        """int64[rows]."""
        return self._column("_time", self.time)

    @property
    def diffs(self) -> Ints:
        """int64[rows]."""
        return self._column("_diff", self.diff)

    def _column(self, name: str, same: int | None) -> Ints:
        if same is not None:
            return np.full(len(self.table), same, np.int64)
        return int64_values(combined(self.table[name]))


def by_age(spans: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the numbers of some intervals of times, ends inclusive: the latest first, those that overlap together."""
    ages: list[list[int]] = []
    start = 0
    for number in sorted(range(len(spans)), key=lambda number: spans[number][1], reverse=True):
        if not ages or spans[number][1] < start:
            ages.append([])
            start = spans[number][0]
        ages[-1].append(number)
        start = min(start, spans[number][0])
    return ages


def newest(updates: Sequence[Aged], left: SortedKeys, names: Sequence[str]) -> tuple[list[pa.Table], SortedKeys]:
    """Return the rows that keys hold after some updates, and the keys that have none among these.

    Args:
        updates: at times of which no other is between; those of other keys than the ones left do not count.
        left: keys of which no update is known yet.
        names: the columns of the schema.
    """
    keys = list(left.batch.schema.names)
    places = [_places(aged, left, keys) for aged in updates]
    if not _are_apart(places):
        updates = [_together(updates, names)]
        places = [_places(updates[0], left, keys)]
    rows = [_last(aged, at).select(list(names)) for aged, at in zip(updates, places, strict=True)]
    is_left = np.ones(len(left), np.bool_)
    for at in places:
        is_left[at[at >= 0]] = False
    return rows, left if is_left.all() else left.some(np.flatnonzero(is_left))


def _places(updates: Aged, left: SortedKeys, keys: Sequence[str]) -> Ints:
    """Return int64[rows], ascending but for -1: where the key of each update is among those left, -1 if it is not."""
    places = left.places(SortedKeys(updates.table.select(keys)))
    assert places is not None, "keys that cannot be packed are not looked up by age"
    return places


def _are_apart(places: Iterable[Ints]) -> bool:
    """Whether no key has updates in two tables: each of them has those of an interval of keys."""
    inside = (positions[positions >= 0] for positions in places)
    ends = sorted((int(positions[0]), int(positions[-1])) for positions in inside if len(positions))
    return all(last < first for (_, last), (first, _) in pairwise(ends))


def _together(updates: Sequence[Aged], names: Sequence[str]) -> Aged:
    """Return updates of several tables as those of one, in which what cancels is gone."""
    times, diffs = (pa.field(name, pa.int64(), nullable=False) for name in ("_time", "_diff"))
    tables = [
        aged.table.select(list(names))
        .append_column(times, int64_array(aged.times))
        .append_column(diffs, int64_array(aged.diffs))
        for aged in updates
    ]
    return Aged(consolidate(pa.concat_tables(tables), [*names, "_time"]), None, None)


def _last(updates: Aged, places: Ints) -> pa.Table:
    """Return the rows that are inserted at the latest time of their key, of the keys that are left."""
    kept = places >= 0
    if updates.diff is None:
        kept &= updates.diffs > 0
    elif updates.diff < 0:
        kept[:] = False
    if updates.time is None and len(places):
        starts = np.ones(len(places), np.bool_)
        starts[1:] = places[1:] != places[:-1]
        firsts = np.flatnonzero(starts)
        times = updates.times
        kept &= times == np.maximum.reduceat(times, firsts)[np.cumsum(starts) - 1]
    return updates.table if kept.all() else updates.table.filter(boolean_array(kept))


TINY_BYTES = 64 << 10  # Decoded: runs of this size are read as a whole for a single key.
ROWS_PER_KEY = 4  # Larger ones are if they have at most so many rows for each wanted key.
ROOM_SHARE = 0.875  # Of what look-ups may keep.
TIER = 4  # So many rungs of similar size, or of growing ones, become one.

Age: TypeAlias = tuple[Part, ...]  # Parts of which no other has updates at a time between theirs, or at one of them.
Names: TypeAlias = tuple[tuple[str, int], ...]  # Of parts: what their rows are known by, and the version of the schema.
Flags: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Rung:
    """What some ages say of their keys.

    Attributes:
        keys: distinct.
        others: the other columns of the same rows.
        is_row: bool[keys]: whether the key holds that row, and not none; None if all do.
    """

    keys: SortedKeys
    others: pa.RecordBatch
    is_row: Flags | None

    @property
    def nbytes(self) -> int:
        """About what it takes."""
        return 1000 + self.keys.nbytes + int(self.others.nbytes) + (0 if self.is_row is None else self.is_row.nbytes)

    @property
    def table(self) -> pa.Table:
        """The columns of keys, the others, and in `_is_row` what the attribute says."""
        is_row = np.ones(len(self.keys), np.bool_) if self.is_row is None else self.is_row
        columns = [*self.keys.batch.columns, *self.others.columns, boolean_array(is_row)]
        return pa.Table.from_arrays(columns, [*self.keys.batch.schema.names, *self.others.schema.names, _IS_ROW])

    def newest_of(self, left: SortedKeys) -> tuple[pa.Table | None, SortedKeys]:
        """Return the rows of wanted keys, and the keys of which this says nothing."""
        at = self.keys.find(left)
        if not len(at):
            return None, left
        is_left = np.ones(len(left), np.bool_)
        is_left[left.places(self.keys.some(at))] = False  # These keys were found here.
        if self.is_row is not None:
            at = at[self.is_row[at]]
        names = [*self.keys.batch.schema.names, *self.others.schema.names]
        rows = pa.RecordBatch.from_arrays([*self.keys.batch.columns, *self.others.columns], names)
        return pa.Table.from_batches([rows.take(int64_array(at))]), left.some(np.flatnonzero(is_left))


_IS_ROW = "_is_row"


@dataclass(frozen=True, slots=True)
class _Step:
    """A rung that there is or that could be made.

    Attributes:
        ages: that follow each other, the oldest first.
        rows: about how many keys it has.
    """

    ages: tuple[Age, ...]
    rows: int

    @property
    def name(self) -> Names:
        """What tells its parts, in order."""
        return tuple((part.rows_id, part.schema) for age in self.ages for part in age)


@dataclass(frozen=True, slots=True)
class _Ladder:
    """Of which parts rungs were made lately, the oldest first, and how many keys each has."""

    steps: tuple[tuple[Names, int], ...]

    @property
    def nbytes(self) -> int:
        return 1000 + 200 * sum(len(names) for names, _ in self.steps)


class Rungs:
    """Makes rungs for one look-up.

    Args:
        types: `CollectionSchema.reading`.
    """

    def __init__(self, scan: Scan, types: str, reader: PartReader) -> None:
        self._scan = scan
        self._types = types
        self._reader = reader
        self._made: dict[Names, Rung] = {}  # Those in use, whatever becomes of them in the cache.

    def over(self, ages: Sequence[Age], keys: int) -> tuple[list[Rung], int]:
        """Return rungs of the newest ages, the newest first, and of how many ages they are.

        Args:
            ages: the newest first.
            keys: how many are wanted.
        """
        known = self._known(ages)
        if known is None:
            # Who looks up once only would make them for nobody.
            self._reader.decoded.put(self._ladder_name(ages), _Ladder(()))
            return [], 0
        count, rows = 0, 0
        is_in_ladder = {part for names, _ in known for part in names}
        row_bytes = max((part.memory / part.rows for age in ages[:1] for part in age if part.rows), default=1.0)
        room = self._reader.decoded.bytes_max * ROOM_SHARE / row_bytes
        for age in ages:
            is_known = all((part.rows_id, part.schema) in is_in_ladder for part in age)
            rows += 0 if is_known else _rows_left(age)
            if not (is_known or _is_worth(age, keys)) or rows > room or not all(map(self._scan.is_inside, age)):
                break
            count += 1
        if not count or (count == 1 and sum(part.memory for part in ages[0]) > TINY_BYTES):
            return [], 0
        steps = _with_singles([*reversed(ages[:count])], known)
        self._make([step for step in steps if self._kept(step) is None])
        steps = self._merged(steps)
        made = [self._made[step.name] for step in steps]
        ladder = _Ladder(tuple((step.name, len(rung.keys)) for step, rung in zip(steps, made, strict=True)))
        self._reader.decoded.put(self._ladder_name(ages), ladder)
        return made[::-1], count

    def _known(self, ages: Sequence[Age]) -> list[tuple[Names, int]] | None:
        ladder = self._reader.decoded.get(self._ladder_name(ages))
        assert ladder is None or isinstance(ladder, _Ladder)
        return None if ladder is None else [*ladder.steps]

    def _ladder_name(self, ages: Sequence[Age]) -> Hashable:
        # The oldest of all runs stays longest. Where it goes, a ladder is made anew.
        return "ladder", ages[-1][0].rows_id, self._types

    def _merged(self, steps: Sequence[_Step]) -> list[_Step]:
        """Return steps of which there are less than `TIER` of each size."""
        done: list[_Step] = []
        for step in steps:
            done.append(step)
            while len(done) >= TIER and done[-1].rows * TIER >= done[-TIER].rows:
                done[-TIER:] = [self._joined(done[-TIER:])]
        return done

    def _make(self, steps: Sequence[_Step]) -> None:
        """Make rungs of the parts themselves: all that has to be fetched is fetched at once."""
        ages = [age for step in steps for age in step.ages]
        age_tables = iter(self._reader.map(lambda age: _said_by(age, self._scan, self._reader), ages))
        for step in steps:
            tables = [next(age_tables) for _ in step.ages]
            self._put(step, tables[::-1])

    def _joined(self, steps: Sequence[_Step]) -> _Step:
        """Make one rung of several, and keep it in their place."""
        both = _Step(tuple(age for step in steps for age in step.ages), 0)
        rung = self._kept(both)
        if rung is None:
            tables = [self._made[step.name].table for step in reversed(steps)]
            for step in steps:  # Beforehand, so that their room is the new one's.
                self._reader.decoded.take(self._rung_name(step))
                del self._made[step.name]
            rung = self._put(both, tables)
        return _Step(both.ages, len(rung.keys))

    def _kept(self, step: _Step) -> Rung | None:
        rung = self._reader.decoded.get(self._rung_name(step))
        assert rung is None or isinstance(rung, Rung)
        if rung is not None:
            self._made[step.name] = rung
        return rung

    def _put(self, step: _Step, tables: Sequence[pa.Table]) -> Rung:
        """Make a rung of what several say, the newest first, and keep it."""
        rung = self._made[step.name] = _newest_of(pa.concat_tables(tables), [*self._scan.schema.key_names])
        self._reader.decoded.put(self._rung_name(step), rung)
        return rung

    def _rung_name(self, step: _Step) -> Hashable:
        return "rung", step.name, self._types


def _rows_left(age: Age) -> int:
    """Return about how many rows of an age are not retractions: as many keys has it about."""
    return sum(part.rows - part.negatives for part in age)


def _is_worth(age: Age, keys: int) -> bool:
    memory, rows = sum(part.memory for part in age), sum(part.rows for part in age)
    return memory <= TINY_BYTES or rows <= ROWS_PER_KEY * keys


def _with_singles(ages: Sequence[Age], known: Sequence[tuple[Names, int]]) -> list[_Step]:
    """Return ages, the oldest first, as steps: those that are known, and one for each age that is in none of these."""
    singles = [_Step((age,), _rows_left(age)) for age in ages]
    starts = {single.name[0]: at for at, single in enumerate(singles)}
    steps, done = list[_Step](), 0
    for names, rows in known:
        at = starts.get(names[0])
        if at is None or at < done:
            continue
        end, length = at, 0
        while end < len(ages) and length < len(names):
            length += len(ages[end])
            end += 1
        step = _Step(tuple(ages[at:end]), rows)
        if step.name == names:
            steps += [*singles[done:at], step]
            done = end
    return [*steps, *singles[done:]]


def _said_by(age: Age, scan: Scan, reader: PartReader) -> pa.Table:
    """Return what an age says of its keys, as `Rung.table` has it."""
    schema, names = scan.schema, scan.schema.names
    has_times = min(part.time_min for part in age) < max(part.time_max for part in age)
    columns = [*names, *(["_time"] if has_times else []), "_diff"]
    tables = [reader.table(part, schema, columns) for part in age]
    rows = pa.concat_tables(tables).combine_chunks()
    if len(age) > 1 or any(not scan.tells_apart(part) for part in age):
        rows = consolidate(rows, columns[:-1])
    keys = [*schema.key_names]
    starts = _starts(rows, keys)
    # The row that a key holds is inserted at the newest of its times.
    is_last = int64_values(combined(rows["_diff"])) > 0
    if has_times:
        times = int64_values(combined(rows["_time"]))
        firsts = np.flatnonzero(starts)
        # The greatest time of each key, at each of its rows: the sum of starts numbers the keys.
        newest = np.maximum.reduceat(times, firsts)[np.cumsum(starts) - 1] if len(rows) else times
        is_last &= times == newest
    # Of a key that has no such row, any row says so.
    firsts = np.flatnonzero(starts)
    counts = np.add.reduceat(is_last.astype(np.int64), firsts) if len(rows) else np.zeros(0, np.int64)
    kept = is_last.copy()
    kept[firsts[counts == 0]] = True
    return rows.select([*names]).append_column(_IS_ROW, boolean_array(is_last)).filter(boolean_array(kept))


def _starts(rows: pa.Table, keys: Sequence[str]) -> Flags:
    """Return bool[rows]: whether the key of a row is another than that of the row before."""
    starts = np.zeros(len(rows), np.bool_)
    starts[:1] = True
    if len(rows) > 1:
        for column in order_keys(rows, keys):
            starts[1:] |= neighbours_differ(column)
    return starts


def _newest_of(rows: pa.Table, keys: Sequence[str]) -> Rung:
    """Return a rung of what several say, as `Rung.table` has it, in which the first row of a key counts."""
    rows = rows.combine_chunks()
    if not len(rows):
        return _rung_of(empty_batch(rows.schema), keys)
    # Sorting is stable and what is newest stands first, so the first row of a key is its newest.
    order, starts = row_sorter(rows, list(keys)).sort()
    kept = order[starts]
    if len(kept) < len(rows) or bool((kept[1:] < kept[:-1]).any()):
        rows = rows.take(int64_array(kept)).combine_chunks()
    (batch,) = rows.to_batches()
    return _rung_of(batch, keys)


def _rung_of(batch: pa.RecordBatch, keys: Sequence[str]) -> Rung:
    is_row = np.asarray(batch.column(_IS_ROW).cast(pa.uint8())).astype(np.bool_)
    others = [name for name in batch.schema.names if name not in keys and name != _IS_ROW]
    return Rung(SortedKeys(batch.select(list(keys))), batch.select(others), None if is_row.all() else is_row)
