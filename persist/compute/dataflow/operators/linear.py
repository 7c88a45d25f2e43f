"""Runs linear operators: compiles a sequence of stages to one function from updates to updates.

Between stages, columns stay words or Arrow: a copied column is never decoded, and a computed column is encoded once, at
the end. Bulk work is done by Arrow and numpy; only functions that take Python records are called record by record.
"""

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.blob.errors import InvalidUsage
from persist.codecs.types.schema import TIME, TIME_MAX
from persist.codecs.types.values import to_array
from persist.compute.dataflow.plan.stages import (
    BatchFunction,
    Delay,
    Explode,
    Filter,
    FilterFunction,
    FlatMap,
    Map,
    MapFunction,
    Negate,
    Stage,
    TemporalFilter,
    Unnest,
    split_bound,
)
from persist.compute.dataflow.updates.batch import find_uncancelled, multiply_diffs, negate_diffs
from persist.compute.dataflow.updates.times import Flags, Ints
from persist.compute.dataflow.updates.words import NULL, Domain
from persist.core.antichain import to_coordinates
from persist.core.errors import OperatorFailed
from persist.core.expression.evaluation import broadcast, evaluate, evaluate_by_duckdb, split_conjuncts
from persist.core.expression.term import Col, Lit, Term

Shape = Callable[[Ints], Ints]


class Column:
    """A column as words, as Arrow, or both; or rows of another one, taken lazily."""

    __slots__ = ("_array", "_domain", "_of", "_words", "kind")

    def __init__(
        self,
        domain: Domain,
        kind: pa.DataType,
        words: Ints | None,
        array: pa.Array | None = None,
        of: "tuple[Column, Ints] | None" = None,
    ) -> None:
        self.kind = kind
        self._domain = domain
        self._words = words
        self._array = array
        self._of = of

    @property
    def words(self) -> Ints:
        """The values as words, encoded at first use."""
        if self._words is None:
            if self._of is not None and self._of[0].has_words:
                column, rows = self._of
                self._words = column.words.take(rows)
            else:
                self._words = self._domain.encode(self.array)
        return self._words

    @property
    def array(self) -> pa.Array:
        """The values as an Arrow array, decoded at first use."""
        if self._array is None:
            if self.has_words:
                self._array = self._domain.decode(self.words, self.kind)
            else:
                assert self._of is not None
                column, rows = self._of
                self._array = column.array.take(pa.array(rows))
        return self._array

    @property
    def has_words(self) -> bool:
        """Whether the words are known, or can be taken from another column's words."""
        return self._words is not None or (self._of is not None and self._of[0].has_words)

    def take(self, rows: Ints) -> "Column":
        """Return the column of some rows, computed when it is first read."""
        return Column(self._domain, self.kind, None, None, (self, rows))


class Frame(Mapping[str, pa.Array]):
    """Updates between linear stages; as a mapping, their columns as Arrow, and `_time`.

    `origins`: for each row, the row of the first stage's input that it comes from; None if these are the input.
    """

    def __init__(
        self, domain: Domain, columns: dict[str, Column], times: Ints, diffs: Ints, origins: Ints | None = None
    ) -> None:
        self._origins = origins
        self.domain = domain
        self.columns = columns
        self.times = times
        self.diffs = diffs

    @classmethod
    def of(cls, updates: Ints, schema: pa.Schema, domain: Domain) -> "Frame":
        """Return a batch of updates as a frame."""
        columns = {field.name: Column(domain, field.type, updates[at]) for at, field in enumerate(schema)}
        return cls(domain, columns, updates[len(schema) : -1], updates[-1])

    @property
    def origins(self) -> Ints:
        """For each row, the row of the first stage's input that it comes from."""
        return np.arange(len(self.diffs)) if self._origins is None else self._origins

    def __getitem__(self, name: str) -> pa.Array:
        if name == TIME and name not in self.columns:
            return pa.array(self.times[0])
        return self.columns[name].array

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.diffs)

    def to_updates(self, names: Iterable[str]) -> Ints:
        """Return the updates with some of the columns as words."""
        rows = [self.columns[name].words for name in names]
        matrix = np.empty((len(rows) + len(self.times) + 1, len(self)), np.int64)
        for at, row in enumerate(rows):
            matrix[at] = row
        matrix[len(rows) : -1] = self.times
        matrix[-1] = self.diffs
        return matrix

    def take(self, rows: Ints) -> "Frame":
        """Return the frame of some rows."""
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        origins = rows if self._origins is None else self._origins.take(rows)
        return Frame(self.domain, columns, self.times.take(rows, axis=1), self.diffs.take(rows), origins)

    def select(self, keep: Flags) -> "Frame":
        """Return the frame of the flagged rows."""
        return self if keep.all() else self.take(keep.nonzero()[0])

    def with_changes(self, columns: dict[str, Column] | None = None, *, diffs: Ints | None = None) -> "Frame":
        """Return the frame with other columns or diffs."""
        columns, diffs = self.columns if columns is None else columns, self.diffs if diffs is None else diffs
        return Frame(self.domain, columns, self.times, diffs, self._origins)

    def to_records(self) -> list[Any]:
        """Return the records as named tuples."""
        record = namedtuple("Record", self.columns, rename=True)  # type: ignore[misc]
        if not self.columns:
            return [record()] * len(self)
        return list(map(record, *(column.array.to_pylist() for column in self.columns.values())))


def compile_traced(
    stages: Sequence[Stage], input_schema: pa.Schema, names: Sequence[str], domain: Domain, operator: str
) -> Callable[[Ints], tuple[Ints, Ints]]:
    """Do what `compile_stages` does; the function also returns each update's input row."""

    run = _chain_stages(stages, operator)

    def shape(updates: Ints) -> tuple[Ints, Ints]:
        frame = run(Frame.of(updates, input_schema, domain))
        return frame.to_updates(names), frame.origins

    return shape


def compile_stages(
    stages: Sequence[Stage], input_schema: pa.Schema, names: Sequence[str], domain: Domain, operator: str
) -> Shape:
    """Return one function that applies stages to updates, and picks columns."""
    if not stages and list(names) == input_schema.names:
        return lambda updates: updates
    first = stages[0] if stages else Map(tuple(zip(names, map(Col, names), strict=True)))
    picks = _pick_columns(first, input_schema, names, domain) if len(stages) < 2 and isinstance(first, Map) else None
    if picks is not None:
        return picks
    run = _chain_stages(stages, operator)
    return lambda updates: run(Frame.of(updates, input_schema, domain)).to_updates(names)


def _chain_stages(stages: Sequence[Stage], operator: str) -> Callable[[Frame], Frame]:
    """Return one function that runs all stages in order."""
    steps = [
        partial(_filter, split_conjuncts(stage.condition), operator)
        if isinstance(stage, Filter)
        else partial(apply_stage, stage, operator=operator)
        for stage in stages
    ]

    def run(frame: Frame) -> Frame:
        for step in steps:
            frame = step(frame)
        return frame

    def run_uncancelled(frame: Frame) -> Frame:
        """Run the stages; if they fail, without records that come and go at one time: no contents have those."""
        try:
            return run(frame)
        except OperatorFailed:
            uncancelled_frame = frame.select(find_uncancelled(frame.to_updates(frame.columns)))
            if len(uncancelled_frame) == len(frame):
                raise
        return run(uncancelled_frame)

    return run_uncancelled


def _filter(parts: Sequence[Term], operator: str, frame: Frame) -> Frame:
    """Return the updates for which each term of a condition is true.

    Each term is computed for the updates that passed the terms before it, because a term may guard the next one against
    errors.
    """
    for part in parts:
        if not len(frame):
            return frame
        frame = frame.select(_evaluate_condition(part, frame, operator))
    return frame


def _pick_columns(stage: Map, input_schema: pa.Schema, names: Sequence[str], domain: Domain) -> Shape | None:
    """Return the function for a map that only passes columns on and sets constants; None if it does more."""
    by, columns = dict(stage.outputs), input_schema.names
    rows, literals = [], []
    for at, name in enumerate(names):
        output = by[name]
        if isinstance(output, Lit):
            rows.append(0)
            literals.append((at, output.value))
        elif isinstance(output, Col) and output.name in columns:
            rows.append(columns.index(output.name))
        else:
            return None
    constants = [(at, domain.encode_constant(value)) for at, value in literals] if literals else ()
    count = len(columns)

    def pick(updates: Ints) -> Ints:
        picked = updates.take([*rows, *range(count, len(updates))], axis=0)
        for at, word in constants:
            picked[at] = word
        return picked

    return pick


def apply_stage(stage: Stage, frame: Frame, operator: str) -> Frame:
    """Return a frame after one linear stage, which is not a filter.

    Raises OperatorFailed: a function or an expression raised.
    """
    match stage:
        case Map(outputs):
            return frame.with_changes(_compute_all(outputs, frame, operator))
        case Negate():
            return frame.with_changes(diffs=negate_diffs(frame.diffs))
        case Explode(by):
            counts = _compute_integers(by, frame, operator)
            exploded = frame.with_changes(diffs=multiply_diffs(frame.diffs, np.where(counts == NULL, 0, counts)))
            return exploded.select(exploded.diffs != 0)
        case Unnest(lists):
            return _unnest(lists, frame, operator)
        case TemporalFilter():
            return _limit_times(stage, frame, operator)
        case Delay():
            return _delay(stage, frame, operator)
        case FilterFunction(function):
            is_kept = [_call_predicate(operator, function, record) for record in frame.to_records()]
            return frame.select(np.array(is_kept, np.bool_))
        case MapFunction(function, columns):
            records = frame.to_records()
            results = [_call_function(operator, function, record) for record in records]
            return frame.with_changes(_to_columns(results, records, columns, frame.domain, operator))
        case BatchFunction():
            return _apply_batch_function(stage, frame, operator)
        case FlatMap():
            return _flat_map(stage, frame, operator)
    raise AssertionError(stage)


def _compute_all(outputs: Sequence[tuple[str, Term]], frame: Frame, operator: str) -> dict[str, Column]:
    """Return the results of expressions as columns, by name."""
    arrays = evaluate_by_duckdb([expression for _, expression in outputs], frame)
    return {
        name: Column(frame.domain, arrays[place].type, None, arrays[place])
        if place in arrays
        else _compute(expression, frame, operator)
        for place, (name, expression) in enumerate(outputs)
    }


def _compute(expression: Term, frame: Frame, operator: str) -> Column:
    """Return the result of an expression as a column."""
    if isinstance(expression, Col) and expression.name in frame.columns:
        return frame.columns[expression.name]
    if isinstance(expression, Lit):
        words = np.full(len(frame), frame.domain.encode_constant(expression.value), np.int64)
        return Column(frame.domain, expression.value.type, words)
    array = _evaluate(expression, frame, operator)
    return Column(frame.domain, array.type, None, array)


def _evaluate(expression: Term, frame: Frame, operator: str) -> pa.Array:
    """Return the result of an expression as Arrow. Raises OperatorFailed with the failing record."""
    try:
        return broadcast(evaluate(expression, frame), len(frame))
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise OperatorFailed(operator, _find_failing_record(expression, frame), f"{expression}: {error}") from error


def _find_failing_record(expression: Term, frame: Frame) -> Any:
    """Return a record on which an expression fails, found by halving."""
    while len(frame) > 1:
        half = frame.take(np.arange(len(frame) // 2))
        try:
            evaluate(expression, half)
        except (pa.ArrowException, ValueError, TypeError):
            frame = half
        else:
            frame = frame.take(np.arange(len(frame) // 2, len(frame)))
    return frame.to_records()[0] if len(frame) else None


def _evaluate_condition(condition: Term, frame: Frame, operator: str) -> Flags:
    """Return the records for which a condition is true; NULL is false."""
    array = _evaluate(condition, frame, operator)
    if array.null_count:
        array = array.fill_null(False)
    flags: Flags = array.to_numpy(zero_copy_only=False)
    return flags


def _compute_integers(expression: Term, frame: Frame, operator: str) -> Ints:
    """Return the result of an integer expression as words."""
    return _compute(expression, frame, operator).words if len(frame) else np.empty(0, np.int64)


def _unnest(lists: Sequence[tuple[str, Term]], frame: Frame, operator: str) -> Frame:
    """Repeat each record for each element of its lists."""
    arrays = {name: _evaluate(term, frame, operator) for name, term in lists}
    sizes = {
        name: pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        for name, array in arrays.items()
    }
    counts = np.maximum.reduce(list(sizes.values()))
    rows = np.arange(len(frame)).repeat(counts)
    at = np.arange(len(rows)) - (counts.cumsum() - counts).repeat(counts)  # The number of the element.
    repeated = frame.take(rows)
    columns = dict(repeated.columns)
    for name, array in arrays.items():
        places = array.offsets.to_numpy()[:-1].astype(np.int64).take(rows) + at
        is_beyond = at >= sizes[name].take(rows)
        elements = array.values.take(pa.array(places, mask=is_beyond if is_beyond.any() else None))
        columns[name] = Column(frame.domain, elements.type, None, elements)
    return repeated.with_changes(columns)


def _compute_bound(bound: Term, frame: Frame, operator: str) -> Ints:
    """Return each record's bound in time, clamped to int64."""
    moved = split_bound(bound, {name: column.kind for name, column in frame.columns.items()})
    if moved is None:
        return _compute_integers(bound, frame, operator)
    name, by = moved
    words = frame.columns[name].words
    least, greatest = NULL + 1 - min(by, 0), 2**63 - 1 - max(by, 0)
    return np.where(words == NULL, NULL, words.clip(least, greatest) + by)


def _limit_times(stage: TemporalFilter, frame: Frame, operator: str) -> Frame:
    """Add each record at its first time within the bounds, and retract it at the end.

    A record whose bound is NULL never exists, because a comparison with NULL is never true.
    """
    begin = frame.times[stage.dimension]
    end = None
    is_there = np.ones(len(frame), bool)
    if stage.lower is not None:
        words = _compute_bound(stage.lower, frame, operator)
        is_there &= words != NULL
        begin = np.maximum(begin, words)
    if stage.upper is not None:
        end = _compute_bound(stage.upper, frame, operator)
        is_there &= (end != NULL) & (begin < end)
    starts = np.flatnonzero(is_there & (begin <= TIME_MAX))
    arrived = frame.take(starts)
    arrived.times[stage.dimension] = begin[starts]
    if end is None:
        return arrived
    stops = starts[end[starts] <= TIME_MAX]
    ended = frame.take(stops)
    ended.times[stage.dimension] = end[stops]
    return _concat_frames([arrived, ended.with_changes(diffs=negate_diffs(ended.diffs))])


def _concat_frames(frames: list[Frame]) -> Frame:
    """Return the rows of all frames as one frame."""
    first = frames[0]
    columns = {
        name: Column(first.domain, column.kind, np.concatenate([frame.columns[name].words for frame in frames]))
        for name, column in first.columns.items()
    }
    times = np.concatenate([frame.times for frame in frames], axis=1)
    diffs, origins = (np.concatenate(parts) for parts in zip(*((f.diffs, f.origins) for f in frames), strict=True))
    return Frame(first.domain, columns, times, diffs, origins)


def _delay(stage: Delay, frame: Frame, operator: str) -> Frame:
    """Move updates to the time that an expression computes."""
    to, now = _compute_integers(stage.to, frame, operator), frame.times[stage.dimension]
    to = np.where(to == NULL, now, to)
    if (to < now).any():
        row = int((to < now).argmax())
        record = frame.take(np.array([row])).to_records()[0]
        raise OperatorFailed(operator, record, f"{stage.to} is {to[row]}, which is before the update's time {now[row]}")
    delayed = frame.take(np.flatnonzero(to <= TIME_MAX))
    delayed.times[stage.dimension] = to[to <= TIME_MAX]
    return delayed


def _call_function(operator: str, function: Callable[..., Any], record: Any) -> Any:
    """Call a user's function on a record. Raises OperatorFailed if it raises."""
    try:
        return function(record)
    except Exception as error:
        raise OperatorFailed(operator, record, f"it raised {error!r}") from error


def _call_predicate(operator: str, function: Callable[..., Any], record: Any) -> bool:
    """Return whether a user's function is true of a record. Raises OperatorFailed."""
    result = _call_function(operator, function, record)
    if result is not None and not isinstance(result, bool | np.bool_):
        raise OperatorFailed(operator, record, f"it returned {result!r:.200} instead of True, False or None")
    return bool(result)


def _to_columns(
    made: list[Any], records: list[Any], schema: pa.Schema, domain: Domain, operator: str
) -> dict[str, Column]:
    """Return the results of a user's function as columns; errors name the argument in `records`."""
    rows = [_to_record(result, record, schema, operator) for result, record in zip(made, records, strict=True)]
    columns = [list(cells) for cells in zip(*rows, strict=True)] if rows else [[] for _ in schema]
    by_name = {}
    for values, field in zip(columns, schema, strict=True):
        try:
            array = to_array(values, field.type, f"column {field.name!r}")
        except InvalidUsage as error:
            raise OperatorFailed(operator, _find_unconvertible(values, field.type, records), str(error)) from error
        by_name[field.name] = Column(domain, field.type, None, array)
    return by_name


def _find_unconvertible(values: list[Any], kind: pa.DataType, records: list[Any]) -> Any:
    """Return the first record whose result cannot become the type."""
    for value, record in zip(values, records, strict=True):
        try:
            to_array([value], kind, "value")
        except InvalidUsage:
            return record
    return None


def _to_record(made: Any, record: Any, schema: pa.Schema, operator: str) -> tuple[Any, ...]:
    """Return a function's result as a record. Raises OperatorFailed if it misfits."""
    if isinstance(made, Mapping):
        if set(made) == set(schema.names):
            return tuple(made[name] for name in schema.names)
    elif isinstance(made, tuple | list):
        if len(made) == len(schema):
            return tuple(made)
    elif len(schema) == 1:
        return (made,)
    raise OperatorFailed(operator, record, f"it returned {made!r:.200}, and a record has the columns {schema.names}")


def encode_records(made: list[Any], sources: list[Any], schema: pa.Schema, domain: Domain, operator: str) -> list[Ints]:
    """Encode the records that a function returned, column by column."""
    return [column.words for column in _to_columns(made, sources, schema, domain, operator).values()]


def _apply_batch_function(stage: BatchFunction, frame: Frame, operator: str) -> Frame:
    """Replace all columns by the result of a user's function of batches."""
    names = list(frame.columns)
    batch = pa.RecordBatch.from_arrays([frame[name] for name in names], names=names)
    try:
        result = stage.function(batch)
        table = result if isinstance(result, pa.Table) else pa.Table.from_batches([result])
    except Exception as error:
        raise OperatorFailed(operator, None, f"on a batch of {len(frame)} records it raised {error!r}") from error
    if table.num_rows != len(frame) or (table.schema.names, table.schema.types) != (
        stage.columns.names,
        stage.columns.types,
    ):
        raise OperatorFailed(
            operator,
            None,
            f"from a batch of {len(frame)} records it made {table.num_rows} with the columns {table.schema}, and must "
            f"make as many with {stage.columns}",
        )
    columns = {
        field.name: Column(frame.domain, field.type, frame.domain.encode(table[field.name])) for field in stage.columns
    }
    return frame.with_changes(columns)


def _flat_map(stage: FlatMap, frame: Frame, operator: str) -> Frame:
    """Replace each record by the records that a user's function returns."""
    rows: list[int] = []
    results: list[Any] = []
    times: list[tuple[int, ...]] = []
    diffs: list[int] = []
    records = frame.to_records()
    for row, record in enumerate(records):
        for result in _call_function(operator, lambda given: list(stage.function(given)), record):
            if stage.gives == "records":
                results.append(result)
            else:
                results.append(_split_result(stage, result, times, diffs, record, operator))
            rows.append(row)
    sources = [records[row] for row in rows]
    places = np.array(rows, np.int64)
    flattened = Frame(
        frame.domain,
        _to_columns(results, sources, stage.columns, frame.domain, operator),
        frame.times.take(places, axis=1),
        frame.diffs.take(places),
        frame.origins.take(places),
    )
    if times:
        of_program = flattened.times[: stage.dimensions]  # And not the iterations that they are in.
        np.maximum(of_program, np.array(times, np.int64).T, out=of_program)
    if diffs:
        flattened = flattened.with_changes(diffs=multiply_diffs(flattened.diffs, np.array(diffs, np.int64)))
        flattened = flattened.select(flattened.diffs != 0)
    return flattened


def _split_result(
    stage: FlatMap, returned: Any, times: list[tuple[int, ...]], diffs: list[int], record: Any, operator: str
) -> Any:
    """Split what a function returned into record, time and diff."""
    shape = "pairs (record, diff)" if stage.gives == "diffs" else "triples (record, time, diff)"
    size = 2 if stage.gives == "diffs" else 3
    if (
        not isinstance(returned, tuple)
        or len(returned) != size
        or isinstance(returned[-1], bool)
        or not isinstance(returned[-1], int)
    ):
        raise OperatorFailed(operator, record, f"it returned {returned!r:.200} instead of {shape}")
    if not -(2**63) < returned[-1] < 2**63:
        raise OperatorFailed(operator, record, f"the diff {returned[-1]} does not fit int64")
    if size == 3:
        try:
            times.append(to_coordinates("time", returned[1], stage.dimensions))
        except InvalidUsage as error:
            raise OperatorFailed(operator, record, str(error)) from error
    diffs.append(returned[-1])
    return returned[0]
