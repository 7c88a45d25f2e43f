"""Joins with one bound: what is above, or below, a value that all records are compared with.

    HAVING sum(x) > (SELECT sum(x) * 0.1 FROM facts)    join[all, output: [filter(left > right) . map(of the left)]]

The right is one record, the *bound*. When it changes, each record of the left is looked up, and most are put out and
taken back at once: they are above the old bound and above the new one. This join keeps the records of a large left in
the order of what is compared, and looks up those between the two bounds only. All others are the same for both, as the
output has no column of the bound. The condition itself is still asked of what was looked up, so the order need only be
no finer than it.

What is kept is a cache of the left's arrangement, for totally ordered times: made when a bound changes for the first
time, and dropped when many records change at once. Cost: of a changed bound, about log2(n) comparisons and the records
in between; of a changed record of the left, about the same more.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from persist.dataflow.operators.join import JoinOperator, Step
from persist.dataflow.operators.large_groups import CHANGE_ROWS, LARGE_ROWS
from persist.dataflow.operators.linear import compiled
from persist.dataflow.plan.plan import Join
from persist.dataflow.plan.stages import Filter, Map
from persist.dataflow.state.ranked import Order, Ranked, has_rank
from persist.dataflow.updates.batch import key_hashes
from persist.dataflow.updates.times import Ints
from persist.dataflow.updates.words import NULL, Domain
from persist.expression import SQL, Call, Col, Term, calls, columns_of, factored_conjuncts, type_of

_COMPARISONS = ("less", "less_equal", "greater", "greater_equal")


def compared(join: Join, schemas: Sequence[pa.Schema]) -> tuple[Term, Term] | None:
    """Return what of the left a join compares with what of its bound; None if it is no join with a bound."""
    if len(schemas) != 2 or any(join.on) or not all(isinstance(stage, Filter | Map) for stage in join.after):
        return None
    left, right = (set(schema.names) for schema in schemas)
    pairs: list[tuple[Term, Term]] = []
    for stage in join.after:
        if isinstance(stage, Map):
            is_left = all(columns_of(term) <= left for _, term in stage.outputs)
            return pairs[0] if len(pairs) == 1 and is_left else None
        assert isinstance(stage, Filter)
        for part in factored_conjuncts(stage.condition):
            if columns_of(part) <= left:
                continue
            if not (isinstance(part, Call) and calls(part, *_COMPARISONS)):
                return None
            one, other = part.arguments
            if columns_of(one) <= right:
                one, other = other, one
            if not (columns_of(one) <= left and columns_of(other) <= right):
                return None
            kind = type_of(one, schemas[0], "join")
            # Words of two types do not compare; and where NaN is neither above nor below, it is in no order.
            is_in_order = not pat.is_floating(kind) or part.function.startswith(SQL)
            if not (has_rank(kind) and is_in_order and type_of(other, schemas[1], "join") == kind):
                return None
            pairs.append((one, other))
    return None


class BoundedJoin(JoinOperator):
    """A join with a bound.

    Args:
        terms: what of each input is compared.
        schemas: the columns of each input's arrangement.
    """

    def __init__(self, *given: Any, terms: Sequence[Term], domain: Domain, **named: Any) -> None:
        super().__init__(*given, **named)
        self._left, self._bound = (path.start for path in self._paths)
        schema = self._left.schema
        kind = type_of(terms[0], schema, self.title)
        every = [("_k", Col("_k")), *((name, Col(name)) for name in schema.names)]
        self._ordered = compiled(
            [Map((("_k", terms[0]), *every[1:]))], schema, [name for name, _ in every], domain, self.title
        )
        self._of_bound = compiled([Map((("_k", terms[1]),))], self._bound.schema, ["_k"], domain, self.title)
        # Records that agree in what is compared may be in any order.
        by = [(at, False, False) for at in range(len(every))]
        self._order = Order(by, [kind, *(pa.int64() for _ in schema)], domain)
        self._kind = kind
        self._ranked: Ranked | None = None
        self._between: Ints | None = None  # What is looked up of the left in this pass, if not all.

    def run(self) -> None:
        bound, left = self._bound.new, self._left.new
        self._between = None
        if bound is not None and self._left.spine.rows >= LARGE_ROWS:
            self._between = self._looked_at(bound)
        super().run()
        if self._ranked is not None and left is not None:
            if left.shape[1] * CHANGE_ROWS > 2 * self._ranked.rows:
                self._ranked = None
                return
            for *record, _, diff in self._ordered(left[1:]).T.tolist():
                self._ranked.add(tuple(record), diff)

    def found(self, step: Step, hashes: Ints, keys: Ints) -> tuple[Ints, Ints]:
        if self._between is None or step.arrangement is not self._left:
            return super().found(step, hashes, keys)
        rows = self._between
        if step.has_new and self._left.new is not None:
            rows = np.concatenate((rows, self._left.new), axis=1)
        count = rows.shape[1]
        return np.arange(len(hashes)).repeat(count), np.tile(rows, (1, len(hashes)))

    def settle(self) -> None:
        if self.frontier.is_empty:
            self._ranked = None

    def live(self) -> list[tuple[Ints, pa.Schema]]:
        if self._ranked is None:
            return []
        return [(block[:1], pa.schema([("_k", self._kind)])) for block in self._ranked.blocks]

    def bytes(self) -> int:
        return 0 if self._ranked is None else self._ranked.bytes

    def _looked_at(self, bound: Ints) -> Ints | None:
        """Return the records of the left, of earlier passes, between a bound and the one before; None for all."""
        is_one_for_another = bound.shape[1] == 2 and bound[-2, 0] == bound[-2, 1] and sorted(bound[-1]) == [-1, 1]
        words = self._of_bound(bound[1:])[0].tolist() if is_one_for_another else [NULL]
        if NULL in words:
            return None
        if self._ranked is None:
            keys = np.empty((0, 1), np.int64)
            _, rows = self._left.lookup(key_hashes(keys), keys, has_new=False)
            ordered = self._ordered(rows[1:])
            self._ranked = Ranked(self._order, ordered[:-2], ordered[-1])
        records = self._ranked.between(*words)
        found = np.empty((len(records) + 1, records.shape[1]), np.int64)
        found[0] = key_hashes(np.empty((0, 1), np.int64))[0]
        found[1:-2], found[-2], found[-1] = records[1:-1], bound[-2, 0], records[-1]
        return found
