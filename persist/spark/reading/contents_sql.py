"""The contents as of a time, and changes, as SQL with the times for parameters: the bodies of table functions.

A function is planned for all times, and Spark puts the time it is called with in the place of the parameter before it
optimizes. So each keyframe has a branch that holds for the times up to the next one, and all others fold to nothing.
Within a branch it is as in `persist.spark.reading.plans`: rows that stand pass unless their key is touched, those of
touched keys are summed. Here Spark sums them, too, because only it knows the time.

Times that cannot be read raise, with the message that Python has for them, whatever is asked of the rows: for each
reason there is a row whose columns raise when they are looked at, and whose condition does if none is. All other
branches are empty then.

Maps are grouped by as lists of their entries: as they are, Spark sorts them and loses their NULLs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StructType, TimestampType

from persist.antichain import Antichain
from persist.codecs import TIME_MAX
from persist.errors import AsOfCompacted, AsOfNotSealed, InvalidUsage
from persist.read import TOUCH_FRACTION
from persist.spark.reading.plans import BROADCAST_ROWS_MAX
from persist.spark.reading.store import unused
from persist.spark.types import quoted

_LONG = LongType()
_HERE = 7_777_777_777_777_777  # Stands for a parameter in a message.
_MULTIPLICITY = (
    "CASE WHEN _diff < 0 THEN CAST(raise_error('NegativeMultiplicity: a record has a negative multiplicity, which rows "
    'cannot show: read it by format("persist") with form "diff"\') AS BIGINT) '
    "WHEN _diff > 9223372036854775807 THEN CAST(raise_error('DiffOverflow: a multiplicity does not fit int64') AS "
    "BIGINT) ELSE CAST(_diff AS BIGINT) END"
)


@dataclass(frozen=True)
class SqlColumn:
    """A column of the result."""

    name: str
    kind: DataType


@dataclass(frozen=True)
class Branch:
    """How the times in `[lower, until)` are read.

    Attributes:
        standing, rest: views of rows with `_time` and `_diff`, quoted; no rest if nothing can cancel.
        standing_rows, rest_rows: how many rows they have, whatever their times.
    """

    lower: int
    until: int
    standing: str
    rest: str | None
    standing_rows: int
    rest_rows: int


@dataclass(frozen=True)
class Body:
    """A query, and the parameters in it, all of them times."""

    parameters: tuple[str, ...]
    text: str


def contents_sql(
    branches: Sequence[Branch],
    columns: Sequence[SqlColumn],
    keys: Sequence[str],
    since: Antichain,
    upper: Antichain,
) -> Body:
    """Return the query of the contents as of its parameter.

    Raises:
        InvalidUsage: rows would have to be grouped by maps within other values.
    """
    names = [column.name for column in columns]
    as_of = unused("as_of", [*names, "_time", "_diff"])
    refusals = [
        (
            f"{as_of} IS NULL OR {as_of} < 0 OR {as_of} > {TIME_MAX}",
            _raised("InvalidUsage", f"as_of={_HERE} is not a time", as_of),
        )
    ]
    if since.time is None or since.time > 0:
        before = "true" if since.time is None else f"{as_of} < {since.time}"
        refusals.append((before, _raised("AsOfCompacted", str(AsOfCompacted(_HERE, since)), as_of)))
    if upper.time is not None:
        error = _raised("AsOfNotSealed", str(AsOfNotSealed(_HERE, upper, 0.0)), as_of)
        refusals.append((f"{as_of} >= {upper.time}", error))
    readable = _readable(as_of, refusals)
    branches_sql = [_branch_sql(branch, columns, keys, as_of, readable) for branch in branches]
    branches_sql += [_refusal([*columns, SqlColumn("_diff", _LONG)], *refusal) for refusal in refusals]
    rows = "\nUNION ALL\n".join(branches_sql)
    # In one place, for all branches: it also looks at what nobody selects.
    repeated = f"LATERAL VIEW explode(sequence(CAST(1 AS BIGINT), {_MULTIPLICITY})) AS {unused('_n', names)}"
    return Body((as_of,), f"SELECT {_listed(names)} FROM (\n{rows}\n) {repeated}")


def changes_sql(
    history: str, columns: Sequence[SqlColumn], since: Antichain, upper: Antichain, *, is_merged: bool
) -> Body:
    """Return the query of the updates in `[lower, until)`; merged if several parts may hold the same update.

    Raises:
        InvalidUsage: as of `contents_sql`.
    """
    columns = [*columns, SqlColumn("_time", _LONG)]
    names = [column.name for column in columns]
    lower, until = (unused(name, [*names, "_diff"]) for name in ("lower", "until"))
    backwards = f"{lower} IS NULL OR {until} IS NULL OR {lower} < 0 OR {lower} > {until}"
    what = "changes(lower, until) is of an interval 0 <= lower <= until"
    refusals = [(backwards, _raised("InvalidUsage", what, lower))]
    if since != Antichain(0):
        before = "true" if since.time is None else f"{lower} - 1 < {since.time}"
        refusals.append((before, _raised("AsOfCompacted", str(AsOfCompacted(_HERE, since)), f"({lower} - 1)")))
    if upper.time is not None:
        unsealed = f"{until} > {upper.time} AND {until} > {lower}"
        error = _raised("AsOfNotSealed", str(AsOfNotSealed(_HERE, upper, 0.0)), f"({until} - 1)")
        refusals.append((unsealed, error))
    holds = f"{_readable(lower, refusals)} AND _time >= {lower} AND _time < {until}"
    wanted = f"SELECT {_listed(names)}, _diff FROM {history} WHERE {holds}"
    if is_merged:
        summed = _summed(wanted, columns)
        wanted = f"SELECT {_listed(names)}, CAST(_diff AS BIGINT) AS _diff FROM ({summed})"
    selects = [wanted, *(_refusal([*columns, SqlColumn("_diff", _LONG)], *refusal) for refusal in refusals)]
    return Body((lower, until), "\nUNION ALL\n".join(selects))


def _readable(parameter: str, refusals: Sequence[tuple[str, str]]) -> str:
    """Return the condition that nothing is refused."""
    return (
        f"{parameter} IS NOT NULL AND NOT coalesce({' OR '.join(f'({condition})' for condition, _ in refusals)}, true)"
    )


def _branch_sql(
    branch: Branch, columns: Sequence[SqlColumn], key_names: Sequence[str], as_of: str, readable: str
) -> str:
    names = [column.name for column in columns]
    holds = f"{readable} AND {as_of} >= {branch.lower} AND {as_of} < {branch.until} AND _time <= {as_of}"
    standing = f"SELECT {_listed(names)}, _diff FROM {branch.standing} WHERE {holds}"
    if branch.rest is None:
        return standing
    rest = f"SELECT {_listed(names)}, _diff FROM {branch.rest} WHERE {holds}"
    can_compare = not any(_holds_map(column.kind) for column in columns if column.name in key_names)
    if not key_names or not can_compare or branch.rest_rows > TOUCH_FRACTION * branch.standing_rows:
        return _summed(f"{standing} UNION ALL {rest}", columns)
    hint = "/*+ BROADCAST(_t) */ " if branch.rest_rows <= BROADCAST_ROWS_MAX else ""
    keys = f"(SELECT {_listed(key_names)} FROM {branch.rest} WHERE {holds}) AS _t"
    same = " AND ".join(f"_s.{quoted(name)} <=> _t.{quoted(name)}" for name in key_names)
    wanted = ", ".join(f"_s.{quoted(name)}" for name in [*names, "_diff"])

    def joined(how: str) -> str:
        return f"SELECT {hint}{wanted} FROM ({standing}) AS _s LEFT {how} JOIN {keys} ON {same}"

    return f"{joined('ANTI')}\nUNION ALL\n" + _summed(f"{joined('SEMI')} UNION ALL {rest}", columns)


def _summed(rows: str, columns: Sequence[SqlColumn]) -> str:
    """Return rows with the diffs of equal ones summed: as decimals, because integers wrap where ANSI mode is off."""
    inside, outside = [], []
    for column in columns:
        name = quoted(column.name)
        is_map = isinstance(column.kind, MapType)
        if _holds_map(column.kind.valueType if isinstance(column.kind, MapType) else column.kind):
            raise InvalidUsage(
                f"Spark cannot group by the column {column.name!r}, which holds maps within other values, so contents "
                'as of any time cannot be had by a function. Read it by format("persist").'
            )
        inside.append(f"map_entries({name}) AS {name}" if is_map else name)
        outside.append(f"map_from_entries({name}) AS {name}" if is_map else name)
    names = _listed([column.name for column in columns])
    total = "sum(CAST(_diff AS DECIMAL(38, 0)))"
    summed = f"SELECT {names}, {total} AS _diff FROM (SELECT {', '.join(inside)}, _diff FROM ({rows})) GROUP BY {names}"
    return f"SELECT {', '.join(outside)}, _diff FROM ({summed} HAVING {total} <> 0)"


def _refusal(columns: Sequence[SqlColumn], condition: str, error: str) -> str:
    """Return a row whose columns raise, if the condition holds; and one that raises itself, if none is looked at."""
    raising = ", ".join(f"CAST({error} AS {type_sql(column.kind)}) AS {quoted(column.name)}" for column in columns)
    return f"SELECT {raising} FROM (SELECT 1) WHERE CASE WHEN {condition} THEN CAST({error} AS BOOLEAN) ELSE false END"


def _raised(kind: str, message: str, parameter: str) -> str:
    """Return what raises an error whose message tells the value of a parameter."""
    pieces = [_text(piece) for piece in f"{kind}: {message}".split(str(_HERE))]
    separator = f", coalesce(CAST({parameter} AS STRING), 'NULL'), "
    return f"raise_error(concat({separator.join(pieces)}))"


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def _holds_map(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_holds_map(field.dataType) for field in kind.fields)
    return isinstance(kind, MapType) or (isinstance(kind, ArrayType) and _holds_map(kind.elementType))


def type_sql(kind: DataType) -> str:
    """Return a type as SQL has it, however long it is and whatever TIMESTAMP stands for."""
    if isinstance(kind, StructType):
        return f"STRUCT<{', '.join(f'{quoted(field.name)}: {type_sql(field.dataType)}' for field in kind.fields)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{type_sql(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{type_sql(kind.keyType)}, {type_sql(kind.valueType)}>"
    if isinstance(kind, TimestampType):
        return "TIMESTAMP_LTZ"
    return str(kind.simpleString()).upper()
