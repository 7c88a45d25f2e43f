"""Reductions: the results of a logic for each key's records, kept up to date.

If the records of a key change at some times, its output may change only at these times and at their least upper bounds
with other times of the key. Differential dataflow calls these times interesting.

**Totally ordered times** (`TotalReduce`). Only the times of the changes are interesting. The key's records are put into
versions, one before and one after each time. The logic gets all versions of all keys at once; the output at a time is
the result of one version minus the result of the previous version. Only the input is kept. Some logics need not read
large groups as a whole (`persist.compute.dataflow.operators.large_groups`).

**Partially ordered times** (`PartialReduce`). All least upper bounds are interesting, in any number of dimensions: the
closure of the times of the changes with all times of the key. Complete times are processed in an order that
extends the order of times; incomplete ones wait. At each time, the output is corrected to the result for the records
up to this time. This needs the earlier output, so the output is kept as well.

Cost of a change: the records of its key, or their logarithm if they are ranked; accumulable aggregates have a few sums
for each key.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from persist.compute.dataflow.operators.arrangement import Arrangement
from persist.compute.dataflow.operators.large_groups import LargeGroups, Ranking
from persist.compute.dataflow.operators.linear import Shape
from persist.compute.dataflow.operators.logic import KeysOf, Logic, Result
from persist.compute.dataflow.operators.operators import Operator, Position
from persist.compute.dataflow.state.spine import Allocate, Spine
from persist.compute.dataflow.updates.batch import (
    NONE,
    Keys,
    Layout,
    append_diffs,
    find_distinct_keys,
    find_run_starts,
    hash_keys,
    match_keys,
    to_batch,
)
from persist.compute.dataflow.updates.times import Flags, Ints, Stash
from persist.core.progress import check_limits


class ReduceOperator(Operator):
    """The base of reductions over totally and over partially ordered times.

    Args:
        logic: computes the results of groups.
        shape: the linear stages of the output.
        ranking: makes an ordered group of a large group's records; None if the logic always reads whole groups.
    """

    def __init__(
        self,
        at: Position,
        arrangement: Arrangement,
        logic: Logic,
        schema: pa.Schema,
        shape: Shape,
        allocate: Allocate,
        ranking: Ranking | None = None,
    ) -> None:
        super().__init__(at)
        self.large = None if ranking is None else LargeGroups(ranking, at.costs)
        self.arrangement = arrangement
        self.logic = logic
        self.shape = shape
        self.schema = schema
        self.keys = arrangement.layout.keys
        self.out_layout = Layout(self.keys, len(schema) - self.keys, self.dimensions)
        self.allocate = allocate

    def apply(self, groups: Ints, values: Ints, diffs: Ints, find_keys: KeysOf) -> Result:
        """Return the logic's results for groups, which may be none."""
        if len(groups):
            return self.logic(groups, values, diffs, find_keys)
        return groups, np.empty((self.out_layout.values, 0), np.int64), diffs


class TotalReduce(ReduceOperator):
    """A reduction over totally ordered times.

    Attributes:
        limit: how many first records of each group it returns; None for other logics.
        read_first: reads the stored first records of some keys; returns None if it cannot.
    """

    limit: int | None = None
    read_first: Callable[[Ints], Ints | None] | None = None

    def run(self) -> None:
        """Reduce the keys with new updates."""
        new = self.arrangement.new
        if new is None:
            self.out = None
            return
        keys, hashes, numbers = find_distinct_keys(new, self.arrangement.layout)
        changes = []
        if self.large is not None:
            is_ranked = self.large.find_ranked(keys, numbers, new[-2])
            if is_ranked.any():
                changes.append(self.shape(self._change_ranked(is_ranked, keys, numbers, new)))
                keys, hashes = keys[:, ~is_ranked], hashes[~is_ranked]
                numbers, new = _find_rows_of_other_keys(is_ranked, numbers, new)
        if keys.shape[1] and self.read_first is not None:
            is_known, old_numbers, old = self._find_first(keys, hashes, numbers, new)
            if is_known.any():
                part = _find_rows_of_other_keys(~is_known, numbers, new)
                changes += self._change_in_pieces(keys[:, is_known], *part, old_numbers, old)
                keys, hashes = keys[:, ~is_known], hashes[~is_known]
                numbers, new = _find_rows_of_other_keys(is_known, numbers, new)
        if keys.shape[1]:
            old_numbers, old = self.arrangement.lookup(hashes, keys, has_new=False)
            changes += self._find_changes(keys, numbers, new, old_numbers, old)
        updates = changes[0] if len(changes) == 1 else np.concatenate(changes, axis=1)
        self.out = updates if updates.shape[1] else None

    def _find_first(self, keys: Ints, hashes: Ints, numbers: Ints, new: Ints) -> tuple[Flags, Ints, Ints]:
        """Return which keys need only stored first records; their numbers; and these records.

        A group with fewer stored records than the limit has no other records. In any group, the other records stay
        behind the first ones until a first one is retracted. So their own retractions do not matter.
        """
        assert self.read_first is not None
        assert self.limit is not None
        layout = self.arrangement.layout
        is_known = self.arrangement.find_missing(hashes, keys)
        first = self.read_first(keys[:, is_known]) if is_known.any() else None
        if first is None:
            return np.zeros(keys.shape[1], np.bool_), NONE, layout.empty()
        batch = to_batch(first, layout)
        owners, places = match_keys(hashes, keys, batch)
        copies = np.zeros(keys.shape[1], np.int64)
        np.add.at(copies, owners, np.minimum(batch[-1, places], self.limit))
        is_retracted = new[-1] < 0
        records = Keys(tuple(range(layout.words)), batch[1 : 1 + layout.words])
        lost = numbers[is_retracted][records.selects(new[1 : 1 + layout.words, is_retracted])]
        is_known[lost[copies[lost] >= self.limit]] = False
        rows = is_known[owners]
        return is_known, (is_known.cumsum() - 1)[owners[rows]], batch[:, places[rows]]

    def compute_contents(self, keys: Keys | None) -> Ints:
        results = self._compute_groups(self._find_records(keys))
        return results if keys is None else results[:, keys.selects(results)]

    def _find_records(self, keys: Keys | None) -> Ints:
        """Return the records of all groups that may have some keys, as updates by group."""
        arrangement = self.arrangement
        below = None if keys is None else keys.trace(self.origins)[0]
        group = tuple(place if place < self.keys else None for place in range(self.keys + len(self.schema)))
        own_keys = None if below is None else below.trace(group)[0]
        if own_keys is None:
            arrangement.load_all()
            return arrangement.contents(None)
        if len(own_keys.columns) < self.keys:
            return arrangement.contents(own_keys)
        words = own_keys.words.take([own_keys.columns.index(column) for column in range(self.keys)], axis=0)
        return arrangement.lookup(hash_keys(words), words, has_new=False)[1][1:]

    def _compute_groups(self, records: Ints) -> Ints:
        """Return the results of groups, as updates at their records' last time."""
        layout, time = self.arrangement.layout, 0
        if records.shape[1]:
            time = int(records[-2].max())
            records = records.copy()
            records[-2] = time
        batch = to_batch(records, layout)
        keys, _, numbers = find_distinct_keys(batch, layout)
        order = numbers.argsort(kind="stable")
        batch, numbers = batch.take(order, axis=1), numbers.take(order)
        groups, columns, diffs = self.apply(
            numbers, layout.value_rows(batch), batch[-1], lambda which: keys.take(which, axis=1)
        )
        updates = np.empty((self.out_layout.words + 2, len(groups)), np.int64)
        updates[: self.keys], updates[self.keys : -2] = keys.take(groups, axis=1), columns
        updates[-2], updates[-1] = time, diffs
        return self.shape(updates)

    def finish_pass(self) -> None:
        if self.large is not None and self.frontier.is_empty:
            self.large.clear()

    def list_words_in_use(self) -> list[tuple[Ints, pa.Schema]]:
        # The arrangement has the records of ranked groups, but not their results.
        results = [] if self.large is None else list(self.large.list_results())
        columns = pa.schema([self.schema.field(at) for at in range(self.keys, len(self.schema))])
        return [(np.array(results, np.int64).reshape(len(results), len(columns)).T, columns)] if results else []

    def bytes(self) -> int:
        return 0 if self.large is None else self.large.bytes

    def _find_changes(self, keys: Ints, numbers: Ints, new: Ints, old_numbers: Ints, old: Ints) -> list[Ints]:
        """Return the changes of the output for some keys.

        Large groups are ranked first if that is cheaper. Each piece of keys becomes output rows at once, which frees
        the memory of its input.
        """
        changes, count = [], keys.shape[1]
        if self.large is not None and len(old_numbers) >= self.costs.large_rows:
            sizes = np.bincount(old_numbers, minlength=count)
            worthwhile = self.large.find_rankable(sizes, numbers, new[-2])
            for at in worthwhile.tolist():
                records = old[:, old_numbers == at]
                self.large.add_group(
                    tuple(keys[:, at].tolist()), self.arrangement.layout.value_rows(records), records[-1]
                )
            if len(worthwhile):
                ranked = np.zeros(count, np.bool_)
                ranked[worthwhile] = True
                changes.append(self.shape(self._change_ranked(ranked, keys, numbers, new)))
                keys = keys[:, ~ranked]
                numbers, new = _find_rows_of_other_keys(ranked, numbers, new)
                old_numbers, old = _find_rows_of_other_keys(ranked, old_numbers, old)
        if keys.shape[1]:
            changes += self._change_in_pieces(keys, numbers, new, old_numbers, old)
        return changes

    def _change_in_pieces(self, keys: Ints, numbers: Ints, new: Ints, old_numbers: Ints, old: Ints) -> list[Ints]:
        """Compute the changes of a few keys at a time, within bounded memory.

        Memory: several times `Costs.piece_rows`, or the rows of the largest key, besides arguments and results.
        """
        count = keys.shape[1]
        check_limits()
        if len(numbers) + len(old_numbers) <= self.costs.piece_rows or count == 1:
            return [self.shape(self._change_in_blocks(keys, numbers, new, old_numbers, old)[1:])]
        changes = []
        for first, end in ((0, count // 2), (count // 2, count)):
            arrived, earlier = (
                _find_rows_of_keys(first, end, numbers, new),
                _find_rows_of_keys(first, end, old_numbers, old),
            )
            changes += self._change_in_pieces(keys[:, first:end], *arrived, *earlier)
        return changes

    def _change_ranked(self, ranked: Flags, keys: Ints, numbers: Ints, new: Ints) -> Ints:
        """Apply changes to ranked groups; return how the output changes."""
        assert self.large is not None
        # The rows of ranked groups, group by group.
        places = ranked.take(numbers).nonzero()[0]
        places = places.take(numbers.take(places).argsort(kind="stable"))
        owners, rows = numbers.take(places), new.take(places, axis=1)
        firsts = owners.searchsorted(ranked.nonzero()[0]).tolist()
        changes = [np.empty((self.out_layout.words + 2, 0), np.int64)]
        for first, end in zip(firsts, [*firsts[1:], len(owners)], strict=True):
            part = rows[:, first:end]
            key = tuple(keys[:, owners[first]].tolist())
            changes += self.large.apply_changes(key, self.arrangement.layout.value_rows(part), part[-2], part[-1])
        return to_batch(np.concatenate(changes, axis=1), self.out_layout)[1:]

    def _change_in_blocks(self, keys: Ints, numbers: Ints, new: Ints, old_numbers: Ints, old: Ints) -> Ints:
        """Compute the changes of a few times at a time, within bounded memory."""
        numbered = _, _, sizes, ranks = _number_moments(numbers, new[-2])
        count, most = keys.shape[1], int(sizes.max())
        rows = np.bincount(numbers, minlength=count) + np.bincount(old_numbers, minlength=count)
        cells = int((rows * (sizes + 1)).sum())
        if cells > self.costs.cells:  # Rows of one record share their cells.
            cells = int((self._count_distinct_records(numbers, new, old_numbers, old, count) * (sizes + 1)).sum())
        width = max(1, most * self.costs.cells // max(cells, 1))
        if width >= most:
            return self._compute_changes(keys, numbers, new, old_numbers, old, numbered)
        changes = []
        for first in range(0, most, width):
            # The rows at times of this block, and the old rows of their keys, which are numbered anew.
            block = ((ranks >= first) & (ranks < first + width)).nonzero()[0]
            present = np.zeros(count, np.bool_)
            present[numbers[block]] = True
            place = present.cumsum() - 1
            old_places = present[old_numbers].nonzero()[0]
            earlier = (place[old_numbers[old_places]], old[:, old_places])
            part = (keys[:, present], place[numbers[block]], new[:, block])
            changes.append(self._compute_changes(*part, *earlier, _number_moments(part[1], part[2][-2])))
            # The next block is of later times, so these rows are old ones then.
            old_numbers = np.concatenate((old_numbers, numbers[block]))
            old = np.concatenate((old, new[:, block]), axis=1)
        return np.concatenate(changes, axis=1)

    def _count_distinct_records(self, numbers: Ints, new: Ints, old_numbers: Ints, old: Ints, count: int) -> Ints:
        """Return how many different records each key has, old and new."""
        layout = self.arrangement.layout
        rows = np.ones((layout.values + 2, len(numbers) + len(old_numbers)), np.int64)
        rows[0] = np.concatenate((numbers, old_numbers))
        rows[1:-1] = np.concatenate((layout.value_rows(new), layout.value_rows(old)), axis=1)
        return np.bincount(to_batch(rows, Layout(1, layout.values, 0))[1], minlength=count)

    def _compute_changes(
        self, keys: Ints, numbers: Ints, new: Ints, old_numbers: Ints, old: Ints, numbered: Sequence[Ints]
    ) -> Ints:
        """Return the changes of the output of keys, from their old records and the new updates.

        `numbered`: the result of `_number_moments`. A moment is a pair (key, time) at which a record changes.
        """
        layout = self.arrangement.layout
        count = keys.shape[1]
        moments, firsts, sizes, ranks = numbered
        count_old = len(old_numbers)
        rows = np.empty((layout.values + 3, count_old + len(numbers)), np.int64)
        rows[0, :count_old], rows[0, count_old:] = old_numbers, numbers
        rows[1 : 1 + layout.values, :count_old] = layout.value_rows(old)
        rows[1 : 1 + layout.values, count_old:] = layout.value_rows(new)
        rows[-2, :count_old], rows[-2, count_old:] = -1, ranks
        rows[-1, :count_old], rows[-1, count_old:] = old[-1], new[-1]
        changes = to_batch(rows, Layout(1, layout.values, 1))
        if not changes.shape[1]:
            return self.out_layout.empty()
        groups, values, sums = _split_versions(changes, layout.values, sizes, firsts)
        bases = firsts + np.arange(count)  # The version of each key before all its moments.

        def find_keys(versions: Ints) -> Ints:
            return keys.take(bases.searchsorted(versions, side="right") - 1, axis=1)

        result_versions, columns, diffs = self.apply(groups, values, sums, find_keys)
        owners = bases.searchsorted(result_versions, side="right") - 1
        ranks = result_versions - bases.take(owners) - 1
        # A version begins at its moment, and ends at the next one.
        begins, ends = (ranks >= 0).nonzero()[0], (ranks + 1 < sizes.take(owners)).nonzero()[0]
        picks = np.concatenate((begins, ends))
        at = firsts.take(owners.take(picks)) + ranks.take(picks)
        at[len(begins) :] += 1
        updates = np.empty((self.out_layout.words + 2, len(picks)), np.int64)
        keys.take(owners.take(picks), axis=1, out=updates[: self.keys], mode="clip")
        columns.take(picks, axis=1, out=updates[self.keys : -2], mode="clip")
        updates[-2] = moments.take(at)
        updates[-1] = diffs.take(picks)
        np.negative(updates[-1, len(begins) :], out=updates[-1, len(begins) :])
        return to_batch(updates, self.out_layout)


def _find_rows_of_keys(first: int, end: int, numbers: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Return (numbers, rows) of the keys from `first` to `end`, numbered from 0."""
    if bool((numbers[1:] >= numbers[:-1]).all()):
        start, stop = numbers.searchsorted((first, end)).tolist()
        return numbers[start:stop] - first, rows[:, start:stop]
    places = ((numbers >= first) & (numbers < end)).nonzero()[0]
    return numbers.take(places) - first, rows.take(places, axis=1)


def _find_rows_of_other_keys(flags: Flags, numbers: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Return (numbers, rows) of the keys that are not flagged, numbered anew."""
    keep = ~flags.take(numbers)
    return ((~flags).cumsum() - 1).take(numbers[keep]), rows[:, keep]


def _number_moments(numbers: Ints, times: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the distinct times of each key, and where each row's time is among them.

    Returns the times by key and time, each key's first place and number of times, and the rank of each row's time.
    """
    order = np.lexsort((times, numbers))
    owners, moments = numbers[order], times[order]
    # A moment begins where the key or the time differs from the row before.
    news = np.ones(len(order), np.bool_)
    news[1:] = (owners[1:] != owners[:-1]) | (moments[1:] != moments[:-1])
    owners, moments = owners[news], moments[news]
    firsts = find_run_starts(owners)
    # The number of each row's moment, less the first one of its key.
    ranks = np.empty(len(order), np.int64)
    ranks[order] = news.cumsum() - 1
    return moments, firsts, np.diff(np.append(firsts, len(owners))), ranks - firsts.take(numbers)


def _split_versions(changes: Ints, values: int, sizes: Ints, firsts: Ints) -> tuple[Ints, Ints, Ints]:
    """Return each key's records between its changes (a version for each interval), by version.

    Args:
        changes: a batch of [key number, values …, rank of the time, diff].
        sizes: how many moments (times of change) each key has; it has one version more.
    """
    words = changes[1:-2]
    # The changes of one record are a unit: they follow each other, by their ranks.
    starts = np.ones(changes.shape[1], np.bool_)
    starts[1:] = (words[:, 1:] != words[:, :-1]).any(axis=0)
    units = starts.nonzero()[0]
    # A unit has a cell for each version of its key: the one before all moments, and one from each moment on.
    owners = words[0].take(units)
    widths = sizes.take(owners) + 1
    ends = widths.cumsum()
    begins = ends - widths
    cells = np.zeros(int(ends[-1]), np.int64)
    unit_of = starts.cumsum() - 1
    # Summed up within a unit, the diffs are the multiplicities of its record in each version.
    cells[begins.take(unit_of) + changes[-2] + 1] = changes[-1]
    running = cells.cumsum()
    running -= (running.take(begins) - cells.take(begins)).repeat(widths)
    # A record is in the versions where its multiplicity is not 0. Versions are numbered through all keys.
    present = running.nonzero()[0]
    unit = np.arange(len(units)).repeat(widths).take(present)
    groups = present - begins.take(unit) + (firsts.take(owners) + owners).take(unit)
    order = groups.argsort(kind="stable")
    rows = units.take(unit.take(order))
    return groups.take(order), words[1:].take(rows, axis=1), running.take(present.take(order))


class PartialReduce(ReduceOperator):
    """A reduction over partially ordered times; it keeps its output and future times."""

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
        self.output = Spine(self.out_layout, self.allocate)
        axis = self.keys + (self.dimensions - 1 if self.depth else 0)
        self._pending = Stash(axis, slice(self.keys, self.keys + self.dimensions))

    def find_next_iteration(self, level: int) -> int | None:
        """Return the next iteration with updates at a nesting level, or None."""
        if self._pending.is_empty:
            return None
        return self._pending.find_least(self.make_ready_test(level), self.keys + self.outer + level)

    def finish_pass(self) -> None:
        if self.frontier.is_empty:
            self.output = Spine(self.out_layout)
        else:
            self.output.advance(self.frontier)

    def list_words_in_use(self) -> list[tuple[Ints, pa.Schema]]:
        parts = [(batch[1 : 1 + self.out_layout.words], self.schema) for batch in self.output.batches()]
        keys = pa.schema([self.schema.field(at) for at in range(self.keys)])
        return parts + [(chunk[: self.keys], keys) for chunk in self._pending.list_chunks()]

    def bytes(self) -> int:
        return self.output.bytes

    def run(self) -> None:
        """Reduce the keys that are due or have new updates."""
        self.out = None
        new = self.arrangement.new
        layout = self.arrangement.layout
        due = [] if self._pending.is_empty else self._pending.take(self.find_ready, self.find_ready_bound())
        pairs = [*due]
        if new is not None:
            pairs.append(np.concatenate((layout.key_rows(new), layout.times(new))))
        if not pairs:
            return
        todo = _make_distinct(append_diffs(np.concatenate(pairs, axis=1)), self.keys, self.dimensions)
        keys, hashes, owners = find_distinct_keys(todo, Layout(self.keys, 0, self.dimensions))
        numbers, records = self.arrangement.lookup(hashes, keys, has_new=True)
        todo = np.concatenate((owners[None], todo[1 + self.keys :]))
        todo = self._close_under_joins(todo, keys, numbers, self.arrangement.layout.times(records))
        flags = self.find_ready(todo[1:-1])
        later = todo[:, ~flags]
        if later.shape[1]:
            self._pending.add(np.concatenate((keys.take(later[0], axis=1), later[1:-1])))
        if flags.any():
            self._correct(todo[:, flags], keys, hashes, numbers, records)

    def _close_under_joins(self, pairs: Ints, keys: Ints, numbers: Ints, times: Ints) -> Ints:
        """Return (key, time) pairs, completed by least upper bounds with the key's times."""
        # The distinct times of each key; key k has the places from lower[k] up to upper[k].
        key_times = np.empty((self.dimensions + 2, len(numbers)), np.int64)
        key_times[0], key_times[1:-1], key_times[-1] = numbers, times, 1
        key_times = _make_distinct(key_times, 1, self.dimensions)
        order = key_times[1].argsort(kind="stable")
        key_times = key_times[1:].take(order, axis=1)
        lower = key_times[0].searchsorted(np.arange(keys.shape[1]))
        upper = key_times[0].searchsorted(np.arange(keys.shape[1]), side="right")
        fresh = pairs
        while fresh.shape[1]:
            # Each fresh pair together with each time of its key; a bound is the maximum of both in each dimension.
            counts = (upper - lower).take(fresh[0])
            fresh_places = np.arange(fresh.shape[1]).repeat(counts)
            known_places = np.arange(len(fresh_places)) + (lower.take(fresh[0]) - counts.cumsum() + counts).take(
                fresh_places
            )
            bounds = fresh.take(fresh_places, axis=1)
            np.maximum(bounds[1:-1], key_times[1:-1].take(known_places, axis=1), out=bounds[1:-1])
            moved = (bounds[1:-1] != fresh[1:-1].take(fresh_places, axis=1)).any(axis=0)
            if not moved.any():
                break
            fresh = _subtract_rows(_make_distinct(bounds[:, moved], 1, self.dimensions)[1:], pairs, self.dimensions)
            pairs = np.concatenate((pairs, fresh), axis=1)
        return pairs

    def _correct(self, todo: Ints, keys: Ints, hashes: Ints, numbers: Ints, records: Ints) -> None:
        """Correct the output at some complete (key, time) pairs, earlier times first."""
        layout = self.arrangement.layout
        # The pairs by key and time; a rank is the number of earlier pairs of the key.
        order = np.lexsort((*todo[-2:0:-1], todo[0]))
        todo = todo.take(order, axis=1)
        starts = find_run_starts(todo[0])
        ranks = np.arange(todo.shape[1]) - starts.repeat(np.diff(np.append(starts, todo.shape[1])))
        # Only the rows of keys that have a pair are looked at.
        has_pair = np.zeros(keys.shape[1], np.bool_)
        has_pair[todo[0]] = True
        output_numbers, outputs = self.output.lookup(hashes, keys)
        if not has_pair.all():
            keep = has_pair[numbers]
            numbers, records = numbers[keep], records[:, keep]
            keep = has_pair[output_numbers]
            output_numbers, outputs = output_numbers[keep], outputs[:, keep]
        corrections = []
        record_rows = (numbers, layout.value_rows(records), layout.times(records), records[-1])
        for rank in range(int(ranks.max()) + 1):
            # One pair of each key at a time, because later pairs see what earlier ones have corrected.
            items = todo[:, ranks == rank]
            output_rows = (
                output_numbers,
                self.out_layout.value_rows(outputs),
                self.out_layout.times(outputs),
                outputs[-1],
            )
            changes = self._correct_groups(items, keys, record_rows, output_rows)
            if changes.shape[1]:
                rows = np.empty((self.out_layout.words + self.dimensions + 1, changes.shape[1]), np.int64)
                owners = items[0].take(changes[0])
                rows[: self.keys] = keys.take(owners, axis=1)
                rows[self.keys : self.out_layout.words] = changes[1:-1]
                rows[self.out_layout.words : -1] = items[1:-1].take(changes[0], axis=1)
                rows[-1] = changes[-1]
                corrections.append(rows)
                output_numbers = np.concatenate((output_numbers, owners))
                padded = np.concatenate((np.zeros((1, rows.shape[1]), np.int64), rows))
                outputs = np.concatenate((outputs, padded), axis=1)
        if corrections:
            batch = to_batch(np.concatenate(corrections, axis=1), self.out_layout)
            self.output.insert(batch)
            self.out = self.shape(batch[1:]) if batch.shape[1] else None

    def _correct_groups(
        self, items: Ints, keys: Ints, records: tuple[Ints, Ints, Ints, Ints], given: tuple[Ints, Ints, Ints, Ints]
    ) -> Ints:
        """Return what the output lacks at one time for each key: [item, values …, diff]."""
        # The item of each key; -1 for none.
        place = np.full(keys.shape[1], -1)
        place[items[0]] = np.arange(items.shape[1])
        acc = _sum_items_to_times(records, place, items)
        result_items, columns, diffs = self.apply(
            acc[0], acc[1:-1], acc[-1], lambda at: keys.take(items[0].take(at), axis=1)
        )
        results = np.concatenate((result_items[None], columns, diffs[None]))
        # The target of the output, less its current records.
        current = _sum_items_to_times(given, place, items)
        current[-1] *= -1
        return _consolidate(np.concatenate((results, current), axis=1))


def _make_distinct(rows: Ints, keys: int, dimensions: int) -> Ints:
    """Return distinct rows of [key words …, times …, 1], as a batch."""
    batch = to_batch(rows, Layout(keys, 0, dimensions))
    batch[-1] = 1
    return batch


def _subtract_rows(rows: Ints, known: Ints, dimensions: int) -> Ints:
    """Return the rows without those of `known`; both have distinct rows of [key number, times …, 1]."""
    joined = np.concatenate((rows, known), axis=1)
    # Equal rows are summed: a row of sum 1 is new, of 2 known, of 3 both.
    joined[-1, : rows.shape[1]], joined[-1, rows.shape[1] :] = 1, 2
    batch = to_batch(joined, Layout(1, 0, dimensions))
    return batch[1:, batch[-1] == 1]


def _sum_items_to_times(rows: tuple[Ints, Ints, Ints, Ints], place: Ints, items: Ints) -> Ints:
    """Return the records of each (key, time) item up to its time: [item, values …, diff]."""
    numbers, values, times, diffs = rows
    at = place.take(numbers)
    # A record counts if its key has an item, and at each time from its own on.
    keep = ((at >= 0) & (times <= items[1:-1].take(at, axis=1, mode="wrap")).all(axis=0)).nonzero()[0]
    records = np.empty((len(values) + 2, len(keep)), np.int64)
    records[0], records[1:-1], records[-1] = at.take(keep), values.take(keep, axis=1), diffs.take(keep)
    return _consolidate(records)


def _consolidate(rows: Ints) -> Ints:
    """Return [item, values …, diff] consolidated, and sorted by item."""
    if not rows.shape[1]:
        return rows
    batch = to_batch(rows, Layout(1, len(rows) - 2, 0))[1:]
    return batch.take(batch[0].argsort(kind="stable"), axis=1)
