"""Random programs, built twice: of the engine's operators, and of the oracle's.

All streams have the columns k and v, small integers or NULL, so that any operator can follow any other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from persist.dataflow import Program, Stream, col, lit, when
from tests.compute.dataflow import oracle
from tests.compute.dataflow.oracle import Multiset, Record, Time, Updates

KV = {"k": pa.int64(), "v": pa.int64()}


@dataclass
class Both:
    """A stream, and what it must hold given what the inputs hold."""

    stream: Stream
    of: Callable[[list[Updates]], Updates]


def known(value: int | None, default: int = 0) -> int:
    return default if value is None else value


def cut(value: int) -> int:
    return max(-3, min(3, value))


def clipped(column: Any) -> Any:
    return column.min_with(3).max_with(-3)


def keyed(one: Stream, other: Stream) -> Stream:
    return one.join(other.rename({"v": "w"}), "k")


# Each operator: how many streams it takes, and what it makes of them, by the engine and by the oracle.
Made = tuple[Stream, Callable[..., Updates]]
Operator = Callable[..., Made]


def filtered(x: Stream) -> Made:
    return x.filter(col("v") > 0), lambda u: oracle.linear(u, lambda r, t: [(r, t, 1)] if known(r[1]) > 0 else [])


def filtered_by_function(x: Stream) -> Made:
    return (
        x.filter(lambda r: r.k is not None),
        lambda u: oracle.linear(u, lambda r, t: [(r, t, 1)] if r[0] is not None else []),
    )


def swapped(x: Stream) -> Made:
    return x.map(k=col("v"), v=col("k")), lambda u: oracle.linear(u, lambda r, t: [((r[1], r[0]), t, 1)])


def computed(x: Stream) -> Made:
    made = x.map(k=(col("k") + 1) % 3, v=col("v").coalesce(2) - 1)

    def of(r: Record, t: Time) -> list[tuple[Record, Time, int]]:
        return [((None if r[0] is None else (r[0] + 1) % 3, cut(known(r[1], 2) - 1)), t, 1)]

    return made.map(k=col("k"), v=clipped(col("v"))), lambda u: oracle.linear(u, of)


def by_function(x: Stream) -> Made:
    return (x.map(lambda r: (r.v, r.v), schema=KV), lambda u: oracle.linear(u, lambda r, t: [((r[1], r[1]), t, 1)]))


def negated(x: Stream) -> Made:
    return x.negate(), lambda u: oracle.linear(u, lambda r, t: [(r, t, -1)])


def flattened(x: Stream) -> Made:
    def made(r: Record) -> list[Record]:
        return [(r[0], each) for each in range(known(r[1]))]

    return x.flat_map(made, schema=KV), lambda u: oracle.linear(u, lambda r, t: [(m, t, 1) for m in made(r)])


def exploded(x: Stream) -> Made:
    return x.explode(col("v")), lambda u: oracle.linear(u, lambda r, t: [(r, t, known(r[1]))])


def exploded_by_function(x: Stream) -> Made:
    def made(r: Record) -> list[tuple[Record, int]]:
        return [((r[1], r[0]), 2), ((0, 0), -1)]

    return (x.explode(made, schema=KV), lambda u: oracle.linear(u, lambda r, t: [(m, t, d) for m, d in made(r)]))


def joined_by_function(x: Stream) -> Made:
    dimensions = x.program.dimensions

    def made(r: Record) -> list[tuple[Record, Time, int]]:
        time = tuple(max(0, known(r[1])) for _ in range(dimensions))
        return [((r[0], r[0]), time, 2), ((0, 1), (0,) * dimensions, -1)]

    return (
        x.join_function(made, schema=KV),
        lambda u: oracle.linear(u, lambda r, t: [(m, oracle.lub(t, s), d) for m, s, d in made(r)]),
    )


def windowed(x: Stream) -> Made:
    last = x.program.dimensions - 1

    def of(r: Record, t: Time) -> list[tuple[Record, Time, int]]:
        if None in r:
            return []
        begin = max(t[last], r[1])
        return [(r, (*t[:last], begin), 1), (r, (*t[:last], r[0] + 2), -1)] if begin < r[0] + 2 else []

    return x.temporal_filter(col("v"), col("k") + 2, dimension=last), lambda u: oracle.linear(u, of)


def delayed(x: Stream) -> Made:
    if x.program.dimensions > 1:
        return filtered(x)
    made = x.delay((col("_time") // 3 + 1) * 3)
    return made, lambda u: oracle.linear(u, lambda r, t: [(r, ((t[0] // 3 + 1) * 3,), 1)])


def consolidated(x: Stream) -> Made:
    return x.consolidate(), lambda u: u


def added(x: Stream, y: Stream) -> Made:
    return x + y, oracle.concat


def waiting_for(x: Stream, y: Stream) -> Made:
    """The probe says how far it is complete."""
    return x.sealed_with(y), lambda u, _: u


def taken_away(x: Stream, y: Stream) -> Made:
    return x - y, lambda u, w: oracle.concat(u, oracle.linear(w, lambda r, t: [(r, t, -1)]))


def same_key(a: Record, b: Record) -> bool:
    return a[0] is not None and a[0] == b[0]


def joined(x: Stream, y: Stream) -> Made:
    made = keyed(x, y).map(k=col("w"), v=clipped(col("v") + col("w")))

    def pair(a: Record, b: Record) -> Record | None:
        if not same_key(a, b):
            return None
        return b[1], (3 if None in (a[1], b[1]) else cut(a[1] + b[1]))

    return made, lambda u, w: oracle.joined(u, w, pair)


def joined_twice(x: Stream, y: Stream, z: Stream) -> Made:
    both = keyed(x, y).join(z.rename({"k": "w", "v": "z"}), "w").filter(col("z") < 3)
    made = both.map(k=col("z"), v=col("v"))

    def first(a: Record, b: Record) -> Record | None:
        return (*a, b[1]) if same_key(a, b) else None

    def second(a: Record, b: Record) -> Record | None:
        if a[2] is None or a[2] != b[0] or b[1] is None or b[1] >= 3:
            return None
        return b[1], a[1]

    return made, lambda u, v, w: oracle.joined(oracle.joined(u, v, first), w, second)


def crossed(x: Stream, y: Stream) -> Made:
    made = x.project("k").cross(y.project("v"))
    return made, lambda u, w: oracle.joined(u, w, lambda a, b: (a[0], b[1]))


def with_partner(x: Stream, y: Stream) -> Made:
    def of(a: Multiset, b: Multiset) -> Multiset:
        keys = oracle.multiset_of(((r[0],), d) for r, d in b.items())
        return {r: d for r, d in a.items() if r[0] is not None and keys.get((r[0],), 0) > 0}

    return x.semijoin(y, "k"), lambda u, w: oracle.from_scratch(of, u, w)


def without_partner(x: Stream, y: Stream) -> Made:
    def of(a: Multiset, b: Multiset) -> Multiset:
        keys = oracle.multiset_of(((r[0],), d) for r, d in b.items())
        return {r: d for r, d in a.items() if r[0] is None or keys.get((r[0],), 0) <= 0}

    return x.antijoin(y, "k"), lambda u, w: oracle.from_scratch(of, u, w)


def left_joined(x: Stream, y: Stream) -> Made:
    made = x.left_join(y.rename({"v": "w"}), "k").map(k=col("w"), v=col("v"))

    def of(a: Multiset, b: Multiset) -> Multiset:
        keys = oracle.multiset_of(((r[0],), d) for r, d in b.items())
        pairs = [((s[1], r[1]), d * e) for r, d in a.items() for s, e in b.items() if same_key(r, s)]
        alone = [((None, r[1]), d) for r, d in a.items() if r[0] is None or keys.get((r[0],), 0) <= 0]
        return oracle.multiset_of([*pairs, *alone])

    return made, lambda u, w: oracle.from_scratch(of, u, w)


def distinct(x: Stream) -> Made:
    return x.distinct(), lambda u: oracle.from_scratch(lambda m: {r: 1 for r, d in m.items() if d > 0}, u)


def thresholded(x: Stream) -> Made:
    def of(n: int) -> int:
        return n % 3 - 1

    return x.threshold(of), lambda u: oracle.from_scratch(lambda m: {r: of(d) for r, d in m.items() if of(d)}, u)


def grouped(of: Callable[[list[tuple[int | None, int]]], int | None], made: Callable[[Stream], Stream]) -> Operator:
    """Return a reduction of v by k, for groups whose multiplicities do not sum to zero."""

    def group(key: Record, records: Multiset) -> list[tuple[Record, int]]:
        if sum(records.values()) == 0:
            return []
        value = of([(r[1], d) for r, d in records.items()])
        return [((key[0], None if value is None else cut(value)), 1)]

    reduce = oracle.by_key(lambda r: (r[0],), group)

    def operator(x: Stream) -> Made:
        clip = clipped(col("v"))
        kept = made(x)
        # The least of NULL and 3 is 3, so NULL is kept apart.
        kept = kept.map(k=col("k"), v=when(col("v").is_null(), lit(None, pa.int64())).otherwise(clip))
        return kept, lambda u: oracle.from_scratch(reduce, u)

    return operator


def positive(pairs: list[tuple[int | None, int]]) -> list[int]:
    return sorted(v for v, d in pairs if v is not None and d > 0)


def total(pairs: list[tuple[int | None, int]]) -> int | None:
    values = [(v, d) for v, d in pairs if v is not None]
    return sum(v * d for v, d in values) if sum(d for _, d in values) else None


def median(pairs: list[tuple[int | None, int]]) -> int | None:
    values = sorted(v for v, d in pairs if v is not None for _ in range(d))
    return values[(len(values) - 1) // 2] if values else None


counted = grouped(lambda p: sum(d for _, d in p), lambda x: x.group_by("k").count("v"))
valued = grouped(lambda p: sum(d for v, d in p if v is not None), lambda x: x.group_by("k").agg(v=col("v").count()))
summed = grouped(total, lambda x: x.group_by("k").agg(v=col("v").sum()))
least = grouped(lambda p: min(positive(p), default=None), lambda x: x.group_by("k").agg(v=col("v").min()))
greatest = grouped(
    lambda p: max(positive(p), default=None),
    lambda x: x.group_by("k").agg(v=col("v").max(), n=lit(1).sum()).project("k", "v"),
)
middle = grouped(median, lambda x: x.group_by("k").agg(v=col("v").median()))


def first_two(x: Stream) -> Made:
    def group(key: Record, records: Multiset) -> list[tuple[Record, int]]:
        left, found = 2, []
        # Descending, NULL last.
        for r in sorted(records, key=lambda r: (r[1] is None, -known(r[1]))):
            taken = min(left, records[r])
            if taken > 0:
                found.append((r, taken))
                left -= taken
        return found

    reduce = oracle.by_key(lambda r: (r[0],), group)
    return x.group_by("k").top_k(2, "v", descending=True), lambda u: oracle.from_scratch(reduce, u)


def upserted(x: Stream) -> Made:
    def group(key: Record, records: Multiset) -> list[tuple[Record, int]]:
        there = [r for r, d in records.items() if d > 0]
        return [(min(there, key=lambda r: (r[1] is None, -known(r[1]))), 1)] if there else []

    made = x.upsert("k", order_by="v")
    return made, lambda u: oracle.from_scratch(oracle.by_key(lambda r: (r[0],), group), u)


def run_by_machine(x: Stream) -> Made:
    """Each key's values in order, summed up as they come, and reset by a 0."""

    def function(state: int, event: Any) -> tuple[int, list[Any]]:
        state = 0 if event.v == 0 else cut(state + known(event.v, 1))
        return state, [(state,)]

    def group(key: Record, records: Multiset) -> list[tuple[Record, int]]:
        state, found = 0, []
        for r in sorted(records, key=lambda r: (r[1] is None, known(r[1]))):
            for _ in range(records[r]):
                state = 0 if r[1] == 0 else cut(state + known(r[1], 1))
                found.append(((r[0], state), 1))
        return found

    made = x.machine("k", function, order_by="v", schema={"v": pa.int64()}, initial=0)
    return made, lambda u: oracle.from_scratch(oracle.by_key(lambda r: (r[0],), group), u)


def reduced(x: Stream) -> Made:
    """Each group becomes its number of different records, as often as its multiplicities sum to."""

    def function(key: int | None, pairs: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        return [((len(pairs),), sum(d for _, d in pairs))]

    def group(key: Record, records: Multiset) -> list[tuple[Record, int]]:
        return [((key[0], len(records)), sum(records.values()))]

    made = x.group_by("k").reduce(function, schema={"v": pa.int64()})
    return made, lambda u: oracle.from_scratch(oracle.by_key(lambda r: (r[0],), group), u)


def all_in_one(x: Stream) -> Made:
    """Without a key, all is one group."""
    made = x.group_by().agg(k=lit(1).sum(), v=col("v").max()).map(k=clipped(col("k")), v=col("v"))

    def of(records: Multiset) -> Multiset:
        count = sum(records.values())
        values = positive(
            [(r[1], d) for r, d in oracle.multiset_of(((0, r[1]), d) for r, d in records.items()).items()]
        )
        return {(cut(count), max(values, default=None)): 1} if count else {}

    return made, lambda u: oracle.from_scratch(of, u)


def steps_up(records: Multiset) -> Multiset:
    more = [((r[0], r[1] + 1), d) for r, d in records.items() if r[1] is not None and r[1] < 3]
    return {r: 1 for r, d in oracle.multiset_of([*records.items(), *more]).items() if d > 0}


def iterated(x: Stream) -> Made:
    def body(y: Stream) -> Stream:
        return (y + y.filter(col("v") < 3).extend(v=col("v") + 1)).distinct()

    return x.iterate(body), lambda u: oracle.from_scratch(oracle.fixed_point(steps_up), u)


UNARY: list[Operator] = [
    *(filtered, filtered_by_function, swapped, computed, by_function, negated, flattened, exploded),
    *(
        exploded_by_function,
        joined_by_function,
        windowed,
        delayed,
        consolidated,
        distinct,
        thresholded,
        counted,
        valued,
    ),
    *(summed, least, greatest, middle, first_two, upserted, run_by_machine, reduced, all_in_one, iterated),
]
BINARY: list[Operator] = [added, waiting_for, taken_away, joined, crossed, with_partner, without_partner, left_joined]
TERNARY: list[Operator] = [joined_twice]
OPERATORS: list[tuple[int, Operator]] = [
    *((1, each) for each in UNARY),
    *((2, each) for each in BINARY),
    *((3, each) for each in TERNARY),
]


def build(dimensions: int, inputs: int, choices: list[tuple[int, list[int]]]) -> tuple[Program, list[Both]]:
    """Return a program of some inputs, and of an operator for each choice, applied to streams before it."""
    program = Program("random", dimensions=dimensions)
    streams: list[Both] = []
    for number in range(inputs):
        stream = program.input(f"in{number}", key={"k": pa.int64()}, value={"v": pa.int64()})
        streams.append(Both(stream, lambda given, at=number: given[at]))  # type: ignore[misc]
    for which, arguments in choices:
        count, operator = OPERATORS[which % len(OPERATORS)]
        taken = [streams[each % len(streams)] for each in arguments[:count]]
        stream, of = operator(*(each.stream for each in taken))
        streams.append(
            Both(stream, lambda given, of=of, taken=taken: of(*(each.of(given) for each in taken)))  # type: ignore[misc]
        )
    return program, streams
