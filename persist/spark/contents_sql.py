"""The contents as of a time, and changes, as SQL with the times for parameters: the bodies of table functions.

A function is planned for all times, and Spark puts the time it is called with in the place of the parameter before it
optimizes. So each keyframe has a branch that holds for the times up to the next one, and all others fold to nothing.
Within a branch it is as in `persist.spark.native`: rows that stand pass unless their key is touched, those of touched
keys are summed. Here Spark sums them, too, because only it knows the time.

Times that cannot be read raise, with the message that Python has for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from persist.antichain import Antichain
from persist.codecs import CollectionSchema
from persist.errors import AsOfCompacted, AsOfNotSealed
from persist.snapshot import TOUCH_FRACTION
from persist.spark.native import BROADCAST_ROWS_MAX, quoted

_HERE = 7_777_777_777_777_777  # Stands for a parameter in a message.
_MULTIPLICITY = (
    "CASE WHEN _diff < 0 THEN CAST(raise_error('NegativeMultiplicity: a record has a negative multiplicity, which rows "
    'cannot show: read it by format("persist") with form "diff"\') AS BIGINT) '
    "WHEN _diff > 9223372036854775807 THEN CAST(raise_error('DiffOverflow: a multiplicity does not fit int64') AS "
    "BIGINT) ELSE CAST(_diff AS BIGINT) END"
)


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


def contents_sql(branches: Sequence[Branch], schema: CollectionSchema, since: Antichain, upper: Antichain) -> Body:
    """Return the query of the contents as of its parameter."""
    as_of = _parameter("as_of", schema)
    refusals = [(f"{as_of} IS NULL OR {as_of} < 0", _raised("InvalidUsage", f"as_of={_HERE} is not a time", as_of))]
    if since.time is None or since.time > 0:
        before = "true" if since.time is None else f"{as_of} < {since.time}"
        refusals.append((before, _raised("AsOfCompacted", str(AsOfCompacted(_HERE, since)), as_of)))
    if upper.time is not None:
        error = _raised("AsOfNotSealed", str(AsOfNotSealed(_HERE, upper, 0.0)), as_of)
        refusals.append((f"{as_of} >= {upper.time}", error))
    found = [_branch_sql(branch, schema, as_of) for branch in branches]
    found += [_refusal(schema.names, condition, error) for condition, error in refusals]
    rows = "\nUNION ALL\n".join(found)
    # In one place, for all branches: it also looks at what nobody selects.
    repeated = f"LATERAL VIEW explode(sequence(CAST(1 AS BIGINT), {_MULTIPLICITY})) AS _n"
    return Body((as_of,), f"SELECT {_listed(schema.names)} FROM (\n{rows}\n) {repeated}")


def changes_sql(history: str, schema: CollectionSchema, since: Antichain, upper: Antichain, *, is_merged: bool) -> Body:
    """Return the query of the updates in `[lower, until)`; merged if several parts may hold the same update."""
    lower, until = _parameter("lower", schema), _parameter("until", schema)
    names = _listed([*schema.names, "_time"])
    wanted = f"SELECT {names}, _diff FROM {history} WHERE _time >= {lower} AND _time < {until}"
    if is_merged:
        total = "CAST(sum(CAST(_diff AS DECIMAL(38, 0))) AS BIGINT)"
        wanted = f"SELECT {names}, {total} AS _diff FROM ({wanted}) GROUP BY {names} HAVING sum(_diff) <> 0"
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
    found = [wanted, *(_refusal([*schema.names, "_time"], *each) for each in refusals)]
    return Body((lower, until), "\nUNION ALL\n".join(found))


def _branch_sql(branch: Branch, schema: CollectionSchema, as_of: str) -> str:
    names = _listed(schema.names)
    holds = f"{as_of} >= {branch.lower} AND {as_of} < {branch.until} AND _time <= {as_of}"
    standing = f"SELECT {names}, _diff FROM {branch.standing} WHERE {holds}"
    if branch.rest is None:
        return standing
    rest = f"SELECT {names}, _diff FROM {branch.rest} WHERE {holds}"
    if not schema.key_names or branch.rest_rows > TOUCH_FRACTION * branch.standing_rows:
        return _summed(f"{standing} UNION ALL {rest}", names)
    hint = "/*+ BROADCAST(_t) */ " if branch.rest_rows <= BROADCAST_ROWS_MAX else ""
    keys = f"(SELECT {_listed(schema.key_names)} FROM {branch.rest} WHERE {holds}) AS _t"
    same = " AND ".join(f"_s.{quoted(name)} <=> _t.{quoted(name)}" for name in schema.key_names)
    columns = ", ".join(f"_s.{quoted(name)}" for name in [*schema.names, "_diff"])

    def joined(how: str) -> str:
        return f"SELECT {hint}{columns} FROM ({standing}) AS _s LEFT {how} JOIN {keys} ON {same}"

    return f"{joined('ANTI')}\nUNION ALL\n" + _summed(f"{joined('SEMI')} UNION ALL {rest}", names)


def _summed(rows: str, names: str) -> str:
    # As decimals, because integers wrap where ANSI mode is off.
    total = "sum(CAST(_diff AS DECIMAL(38, 0)))"
    return f"SELECT {names}, {total} AS _diff FROM ({rows}) GROUP BY {names} HAVING {total} <> 0"


def _refusal(names: Sequence[str], condition: str, error: str) -> str:
    """Return rows that there are none of, and whose condition raises where it holds."""
    nulls = ", ".join(f"NULL AS {quoted(name)}" for name in names)
    return f"SELECT {nulls}, CAST(1 AS BIGINT) AS _diff FROM (SELECT 1) WHERE ({condition}) AND {error} IS NULL"


def _raised(kind: str, message: str, parameter: str) -> str:
    """Return what raises an error whose message tells the value of a parameter."""
    pieces = [_text(piece) for piece in f"{kind}: {message}".split(str(_HERE))]
    told = f", coalesce(CAST({parameter} AS STRING), 'NULL'), "
    return f"raise_error(concat({told.join(pieces)}))"


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _parameter(name: str, schema: CollectionSchema) -> str:
    """Return a name for a parameter that no column has."""
    taken = {each.lower() for each in schema.arrow.names}
    while name in taken:
        name += "_"
    return name


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def type_sql(kind: DataType) -> str:
    """Return a type as SQL has it, however long it is."""
    if isinstance(kind, StructType):
        return f"STRUCT<{', '.join(f'{quoted(field.name)}: {type_sql(field.dataType)}' for field in kind.fields)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{type_sql(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{type_sql(kind.keyType)}, {type_sql(kind.valueType)}>"
    return str(kind.simpleString()).upper()
