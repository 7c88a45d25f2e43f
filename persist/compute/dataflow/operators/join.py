"""Joins of two inputs or more, all as delta joins: each new batch looks up the other inputs, one after the other.

Let A, B, C be the contents of the inputs before a pass, and a, b, c their new batches. The new pairs are

    (A + a)(B + b)(C + c) - ABC  =  a B C  +  (A + a) b C  +  (A + a)(B + b) c

so a change of input i meets inputs before i with, and those after i without, their new batches; every combination is
met once, whatever the times. The time of a result is the least upper bound of the times of its records, and its diff
is the product of their diffs. NULL in a key equals nothing, unless the join has `null_equals`.

A path is the order in which a change of one input looks up the others. Columns that must be equal form a class, and a
partial result holds one word for each class it knows. The next input is the one with the fewest expected partners. If
sizes are unknown, it is the one with the most columns in known classes. These columns are the key of the look-up. So
every look-up is in an arrangement of an input itself, and nothing intermediate is kept.

Cost: for each new update, a binary search per batch of each other input, and the partners.

`BoundedJoin` is for joins with one bound: all records are compared with one value.

    HAVING sum(x) > (SELECT sum(x) * 0.1 FROM facts)    join[all, output: [filter(left > right) . map(of the left)]]

The right is one record, the *bound*. An ordinary join would look up each record of the left when the bound changes,
although most are above both the old and the new bound. This join keeps the records of a large left in the order of the
compared term, and looks up only the records between both bounds. The result for all other records stays the
same, because the output has no column of the bound. The condition still filters the records that are looked up.

The ordered records are a cache of the left input's arrangement, for totally ordered times. The first change of the
bound makes it, and a change of many records drops it. Cost: a changed bound costs about log2(n) comparisons and the
records in between; a changed record of the left costs about log2(n) comparisons more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from persist.compute.dataflow.operators.arrangement import Arrangement
from persist.compute.dataflow.operators.linear import Shape, compile_stages
from persist.compute.dataflow.operators.operators import Operator, Position
from persist.compute.dataflow.plan.plan import Join
from persist.compute.dataflow.plan.stages import Filter, Map
from persist.compute.dataflow.state.ranked import Order, Ranked, has_rank
from persist.compute.dataflow.updates.batch import Keys, hash_keys, multiply_diffs
from persist.compute.dataflow.updates.times import Ints
from persist.compute.dataflow.updates.words import NULL, Domain
from persist.core.expression.evaluation import factor_conjuncts, infer_type
from persist.core.expression.term import SQL, Call, Col, Term, is_call, list_columns
from persist.core.progress import check_limits


@dataclass(frozen=True, slots=True)
class JoinLookup:
    """One look-up along a join path.

    Attributes:
        keys: the rows of the partial result (int64[words, n]) that are the key, in the arrangement's order.
        takes: rows of the arrangement's words that are added to the partial result.
        has_new: whether the look-up includes the arrangement's new batch.
    """

    arrangement: Arrangement
    keys: tuple[int, ...]
    takes: tuple[int, ...]
    has_new: bool


@dataclass(frozen=True, slots=True)
class JoinPath:
    """How an update of one input finds its partners: look-ups in the other inputs.

    Attributes:
        start: an arrangement of the input; its new batch is what is looked up.
        picks: rows of the partial result that make the output, in its order.
        partners: estimates how many records of the input have the same values of some columns; None if unknown.
    """

    start: Arrangement
    steps: tuple[JoinLookup, ...]
    picks: tuple[int, ...]
    partners: Callable[[tuple[str, ...]], float | None]


class JoinOperator(Operator):
    """A join of several inputs; there is one path for the updates of each."""

    def __init__(self, at: Position, paths: Sequence[JoinPath], shape: Shape, *, null_equals: bool) -> None:
        super().__init__(at)
        self.paths = paths
        self._shape = shape
        self._null_equals = null_equals

    def run(self) -> None:
        """Look the new updates of each input up in all other inputs."""
        parts = []
        for path in self.paths:
            if path.start.new is not None:
                rows = self._follow_path(path, path.start.new)
                if rows is not None:
                    parts.append(rows)
        if not parts:
            self.out = None
            return
        updates = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        self.out = self._shape(updates)

    def look_up(self, step: JoinLookup, hashes: Ints, keys: Ints, *, has_new: bool) -> tuple[Ints, Ints]:
        """Return (numbers, rows): each row found for the keys, and its key's number."""
        return step.arrangement.lookup(hashes, keys, has_new=has_new)

    def compute_contents(self, keys: Keys | None) -> Ints:
        """Return the contents for some keys, along the cheapest path."""
        path, start_keys = self.choose_path(keys)
        rows = path.start.contents(start_keys)
        batch = np.concatenate((np.zeros((1, rows.shape[1]), np.int64), rows))
        joined = self._follow_path(path, batch, has_new=False)
        if joined is None:
            joined = np.empty((len(path.picks) + batch.shape[0] - path.start.layout.words - 1, 0), np.int64)
        contents = self._shape(joined)
        return contents if keys is None else contents[:, keys.selects(contents)]

    def choose_path(self, keys: Keys | None) -> tuple[JoinPath, Keys | None]:
        """Return the path that is expected to begin with the fewest records of some keys, and the keys of its start.

        If the inputs' sizes are unknown, the path begins at the input that has most of the keys' columns. Without keys,
        it begins at a small input, if there is one.
        """
        if keys is None:
            return max(self.paths, key=lambda path: path.start.inputs[0].has_cheap_contents), None
        below, _ = keys.trace(self.origins)
        best: tuple[JoinPath, Keys | None] = self.paths[0], None
        least: tuple[float, int] | None = None
        for path in self.paths if below is not None else ():
            assert below is not None
            start_keys, _ = below.trace([place if place < path.start.layout.words else None for place in path.picks])
            count = (
                0
                if start_keys is None
                else sum(path.start.origins[column] is not None for column in start_keys.columns)
            )
            if start_keys is None or not count:
                continue
            partners = path.partners(tuple(path.start.schema.names[column] for column in start_keys.columns))
            rank = float("inf") if partners is None else partners * max(1, start_keys.words.shape[1]), -count
            if least is None or rank < least:
                best, least = (path, start_keys), rank
        return best

    def _follow_path(self, path: JoinPath, new: Ints, *, has_new: bool = True) -> Ints | None:
        """Look a batch up in the other inputs; None if nothing matches."""
        layout = path.start.layout
        words, times, diffs = new[1 : 1 + layout.words], layout.times(new), new[-1]
        for step in path.steps:
            check_limits()
            target = step.arrangement.layout
            keys = words.take(step.keys, axis=0)
            if not self._null_equals and keys.size and keys.min() == NULL:
                # A NULL equals nothing, so these rows have no partner.
                keep = (keys != NULL).all(axis=0).nonzero()[0]
                words, times, diffs = words.take(keep, axis=1, mode="clip"), times.take(keep, axis=1), diffs.take(keep)
                keys = keys.take(keep, axis=1, mode="clip")
            hashes = hash_keys(keys)
            order = None
            if (hashes[1:] < hashes[:-1]).any():
                # Look-ups of ascending hashes take a fourth to an eighth of the time, with the sort.
                order = hashes.argsort(kind="stable")
                hashes, keys = hashes.take(order), keys.take(order, axis=1, mode="clip")
            numbers, rows = self.look_up(step, hashes, keys, has_new=has_new and step.has_new)
            if not len(numbers):
                return None
            if order is not None:
                numbers = order.take(numbers)
            # Each row as often as it has partners, with the partner's words beside its own, from the later of both
            # times on.
            parts = [words.take(numbers, axis=1, mode="clip"), rows[1 : 1 + target.words].take(step.takes, axis=0)]
            words = np.concatenate(parts)
            times = np.maximum(times.take(numbers, axis=1, mode="clip"), target.times(rows))
            diffs = multiply_diffs(diffs.take(numbers), rows[-1])
        joined = np.empty((len(path.picks) + len(times) + 1, len(diffs)), np.int64)
        words.take(path.picks, axis=0, out=joined[: len(path.picks)], mode="clip")
        joined[len(path.picks) : -1] = times
        joined[-1] = diffs
        return joined


Place = tuple[int, str]  # A column of an input.
Partners = Callable[[int, tuple[str, ...]], float | None]
Arranged = Callable[[int, tuple[str, ...], tuple[str, ...]], Arrangement]


class JoinPaths:
    """Chooses how the updates of each input of a join find partners in other inputs.

    Args:
        on: for the second and each later input, pairs (column of the inputs before it, column of this input).
        arranged: returns the arrangement of an input by key columns, with other columns as its value.
        partners: returns about how many records of an input have the same values of some columns; None if unknown.
    """

    def __init__(
        self,
        schemas: Sequence[pa.Schema],
        on: Sequence[Sequence[tuple[str, str]]],
        outputs: Sequence[str],
        arranged: Arranged,
        partners: Partners = lambda number, columns: None,
    ) -> None:
        self._schemas = schemas
        self._partners = partners
        self._arranged = cache(arranged)  # Paths share what they look up.
        self._class: dict[Place, Place] = {(0, name): (0, name) for name in schemas[0].names}
        named = {name: (0, name) for name in schemas[0].names}
        for number, pairs in enumerate(on, 1):
            equal = {column: named[earlier] for earlier, column in pairs}
            for name in schemas[number].names:
                self._class[number, name] = self._class[equal[name]] if name in equal else (number, name)
                if name not in equal:
                    named[name] = (number, name)
        self._outputs = [self._class[named[name]] for name in outputs]

    def make_paths(self) -> list[JoinPath]:
        """Return a path for each input."""
        routes = [self._route(number) for number in range(len(self._schemas))]
        keys: dict[int, tuple[str, ...]] = {}
        for route in routes:
            for number, key in route:
                keys.setdefault(number, key)
        return [self._make_path(number, keys[number], route) for number, route in enumerate(routes)]

    def _route(self, start: int) -> list[tuple[int, tuple[str, ...]]]:
        """Return in which order other inputs are looked up from a start, and by which columns."""
        known_places = {self._class[start, name] for name in self._schemas[start].names}
        remaining = [number for number in range(len(self._schemas)) if number != start]
        route = []
        while remaining:
            keys = {number: tuple(sorted(self._list_equal_columns(number, known_places))) for number in remaining}
            best = (
                min(remaining, key=lambda number: self._rank_input(number, keys[number]))
                if len(remaining) > 1
                else remaining[0]
            )
            route.append((best, keys[best]))
            known_places |= {self._class[best, name] for name in self._schemas[best].names}
            remaining.remove(best)
        return route

    def _rank_input(self, number: int, keys: tuple[str, ...]) -> tuple[bool, float, int]:
        """Return a rank of an input: the least is looked up first."""
        partners = self._partners(number, keys)
        return not keys, float("inf") if partners is None else partners, -len(keys)

    def _list_equal_columns(self, number: int, known: set[Place]) -> list[str]:
        """Return an input's columns that must equal known columns of earlier inputs."""
        return [name for name in self._schemas[number].names if self._class[number, name] in known]

    def _arrange_input(self, number: int, key: tuple[str, ...]) -> tuple[Arrangement, list[str]]:
        """Return an input's arrangement by a key, and the names of its columns."""
        values = tuple([name for name in self._schemas[number].names if name not in key])
        return self._arranged(number, key, values), [*key, *values]

    def _make_path(self, start: int, key: tuple[str, ...], route: list[tuple[int, tuple[str, ...]]]) -> JoinPath:
        """Return the look-ups of a route: which columns each one uses and adds."""
        arrangement, names = self._arrange_input(start, key)
        rows: dict[Place, int] = {}
        for at, name in enumerate(names):
            rows.setdefault(self._class[start, name], at)
        height = len(names)
        steps = []
        for number, look_up in route:
            target, target_names = self._arrange_input(number, look_up)
            places = tuple([rows[self._class[number, name]] for name in look_up])
            takes = []
            for at, name in enumerate(target_names):
                if self._class[number, name] not in rows:
                    rows[self._class[number, name]] = height
                    height += 1
                    takes.append(at)
            steps.append(JoinLookup(target, places, tuple(takes), has_new=number < start))
        picks = tuple([rows[place] for place in self._outputs])
        return JoinPath(arrangement, tuple(steps), picks, partial(self._partners, start))


_COMPARISONS = ("less", "less_equal", "greater", "greater_equal")


def find_bound(join: Join, schemas: Sequence[pa.Schema]) -> tuple[Term, Term] | None:
    """Return the left term and the bound of a join on an inequality, or None."""
    if len(schemas) != 2 or any(join.on) or not all(isinstance(stage, Filter | Map) for stage in join.after):
        return None
    left_names, bound_names = (set(schema.names) for schema in schemas)
    pairs: list[tuple[Term, Term]] = []
    for stage in join.after:
        if isinstance(stage, Map):
            is_left = all(list_columns(term) <= left_names for _, term in stage.outputs)
            return pairs[0] if len(pairs) == 1 and is_left else None
        assert isinstance(stage, Filter)
        for part in factor_conjuncts(stage.condition):
            if list_columns(part) <= left_names:
                continue
            if not (isinstance(part, Call) and is_call(part, *_COMPARISONS)):
                return None
            left_term, bound_term = part.arguments
            if list_columns(left_term) <= bound_names:
                left_term, bound_term = bound_term, left_term
            if not (list_columns(left_term) <= left_names and list_columns(bound_term) <= bound_names):
                return None
            kind = infer_type(left_term, schemas[0], "join")
            # Words of two types do not compare; and where NaN is neither above nor below, it is in no order.
            is_in_order = not pat.is_floating(kind) or part.function.startswith(SQL)
            if not (has_rank(kind) and is_in_order and infer_type(bound_term, schemas[1], "join") == kind):
                return None
            pairs.append((left_term, bound_term))
    return None


class BoundedJoin(JoinOperator):
    """A join on an inequality, such as `left <= bound`.

    Args:
        terms: for each input, the term that the inequality compares.
    """

    def __init__(self, *given: Any, terms: Sequence[Term], domain: Domain, **named: Any) -> None:
        super().__init__(*given, **named)
        self._left, self._bound = (path.start for path in self.paths)
        schema = self._left.schema
        kind = infer_type(terms[0], schema, self.title)
        every = [("_k", Col("_k")), *((name, Col(name)) for name in schema.names)]
        self._ordered = compile_stages(
            [Map((("_k", terms[0]), *every[1:]))], schema, [name for name, _ in every], domain, self.title
        )
        self._of_bound = compile_stages([Map((("_k", terms[1]),))], self._bound.schema, ["_k"], domain, self.title)
        # Records that agree in what is compared may be in any order.
        by = [(at, False, False) for at in range(len(every))]
        self._order = Order(by, [kind, *(pa.int64() for _ in schema)], domain)
        self._kind = kind
        self._ranked: Ranked | None = None
        self._between: Ints | None = None  # The records of the left that this pass looks up, if not all.

    def run(self) -> None:
        """Run the join; of a large left side, read only records between old and new bound."""
        bound, left_new = self._bound.new, self._left.new
        self._between = None
        if bound is not None and self._left.spine.rows >= self.costs.large_rows:
            self._between = self._find_between(bound)
        try:
            super().run()
        finally:
            self._between = None  # Requests for contents see all records.
        if self._ranked is not None and left_new is not None:
            if left_new.shape[1] * self.costs.change_rows > 2 * self._ranked.rows:
                self._ranked = None
                return
            for *record, _, diff in self._ordered(left_new[1:]).T.tolist():
                self._ranked.add(tuple(record), diff)

    def look_up(self, step: JoinLookup, hashes: Ints, keys: Ints, *, has_new: bool) -> tuple[Ints, Ints]:
        """Return the rows that match keys; of a large left side, only those between the bounds."""
        if self._between is None or step.arrangement is not self._left:
            return super().look_up(step, hashes, keys, has_new=has_new)
        rows = self._between
        if has_new and self._left.new is not None:
            rows = np.concatenate((rows, self._left.new), axis=1)
        count = rows.shape[1]
        return np.arange(len(hashes)).repeat(count), np.tile(rows, (1, len(hashes)))

    def finish_pass(self) -> None:
        if self.frontier.is_empty:
            self._ranked = None

    def list_words_in_use(self) -> list[tuple[Ints, pa.Schema]]:
        if self._ranked is None:
            return []
        return [(block[:1], pa.schema([("_k", self._kind)])) for block in self._ranked.blocks]

    def bytes(self) -> int:
        return 0 if self._ranked is None else self._ranked.bytes

    def _find_between(self, bound: Ints) -> Ints | None:
        """Return the stored left records between the old and the new bound; None for all."""
        is_one_for_another = bound.shape[1] == 2 and bound[-2, 0] == bound[-2, 1] and sorted(bound[-1]) == [-1, 1]
        words = self._of_bound(bound[1:])[0].tolist() if is_one_for_another else [NULL]
        if NULL in words:
            return None
        if self._ranked is None:
            keys = np.empty((0, 1), np.int64)
            _, rows = self._left.lookup(hash_keys(keys), keys, has_new=False)
            ordered = self._ordered(rows[1:])
            self._ranked = Ranked(self._order, ordered[:-2], ordered[-1], self.costs)
        records = self._ranked.select_between(*words)
        # As a batch: the hash of the empty key, the words, the time of the bound, the diffs.
        updates = np.empty((len(records) + 1, records.shape[1]), np.int64)
        updates[0] = hash_keys(np.empty((0, 1), np.int64))[0]
        updates[1:-2], updates[-2], updates[-1] = records[1:-1], bound[-2, 0], records[-1]
        return updates
