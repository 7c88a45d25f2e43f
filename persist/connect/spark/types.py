"""Arrow types of collections and the types Spark has for them.

Spark has no unsigned, half-precision or large types, one unit of time (microseconds) and one of dates. A column is read
as the narrowest Spark type that has all its values. A type without one is refused, and the error names the column.

    uint8, uint16, uint32, uint64   short, int, long, decimal(20, 0)
    float16                         float
    large and fixed-size types      string, binary, array
    date64                          date
    timestamp, duration, time of any unit    microseconds; a value with nanoseconds is an error when it is read
    decimal256                      decimal, if its precision is at most 38

A timestamp without a time zone is always TIMESTAMP_NTZ. If a task returned it as TIMESTAMP, Spark would silently take
it for a time in UTC.
"""

from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import types
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import DataType, StructType

from persist.codecs.types.arrow_types import list_inner_fields
from persist.core.errors import InvalidUsage, SchemaMismatch
from persist.engine.read.planning.scan import make_rows_without_columns

_WIDENED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.date64(): pa.date32(),
}


def spark_schema(arrow: pa.Schema) -> StructType:
    """Return an Arrow schema in the types as which Spark reads it."""
    widened = pa.schema([field.with_type(_to_spark_type(field.type, field.name)) for field in arrow])
    # PySpark's own default has changed.
    return from_arrow_schema(widened, prefer_timestamp_ntz=True)


def convert_to_spark(table: pa.Table, schema: StructType) -> pa.Table:
    """Return a table in the Arrow types that Spark expects for a schema."""
    target = utc_arrow_schema(schema)
    if not target.names:
        return make_rows_without_columns(len(table))
    for field in target:
        _check_zones(table.schema.field(field.name).type, field.type, field.name)
    try:
        return table.select(target.names).cast(target)
    except pa.ArrowInvalid as error:
        raise InvalidUsage(
            f"a value cannot be given to Spark: {error}. Select other columns with the option 'columns', or read it "
            "in Python."
        ) from error


def _check_zones(given: Any, wanted: Any, column: str) -> None:
    """Raise InvalidUsage for a cast between local and zoned moments, which Arrow would do as UTC."""
    if pt.is_timestamp(given) and pt.is_timestamp(wanted) and (given.tz is None) != (wanted.tz is None):
        kinds = ("TIMESTAMP_NTZ", "TIMESTAMP") if given.tz is None else ("TIMESTAMP", "TIMESTAMP_NTZ")
        raise InvalidUsage(
            f"column {column!r} holds {given}, which is {kinds[0]} in Spark, and is asked for as {kinds[1]}: that "
            f"needs a time zone, and there is none here. Read it as {kinds[0]}, and cast it in Spark, which takes the "
            "session's time zone."
        )
    if pt.is_nested(given) and pt.is_nested(wanted):
        for inside, target in zip(list_inner_fields(given), list_inner_fields(wanted), strict=False):
            _check_zones(inside.type, target.type, column)


def convert_from_spark(table: pa.Table, arrow: pa.Schema) -> pa.Table:
    """Return a table whose columns are cast back from Spark's types to those in `arrow`.

    `to_updates` refuses the columns that do not convert, because a value is out of range or has an unrelated type.
    Arrow's casts are not used for nested values: they round, and turn fields of other names into NULL.
    """
    for at, field in enumerate(table.schema):
        target = arrow.field(field.name).type if field.name in arrow.names else field.type
        if (
            target != field.type
            and (pt.is_nested(target) or pt.is_uint64(target))
            and _is_spark_form(target, field.type)
        ):
            try:
                table = table.set_column(at, field.with_type(target), table.column(at).cast(target))
            except pa.ArrowException:
                continue
    return table


def _is_spark_form(wanted: Any, given: Any) -> bool:
    """Return whether type `given` is how Spark reads `wanted`, or both are integers."""
    if pt.is_struct(wanted):
        return (
            pt.is_struct(given)
            and [field.name for field in wanted] == [field.name for field in given]
            and all(_is_spark_form(a.type, b.type) for a, b in zip(wanted, given, strict=True))
        )
    if pt.is_map(wanted):
        return (
            pt.is_map(given)
            and _is_spark_form(wanted.key_type, given.key_type)
            and _is_spark_form(wanted.item_type, given.item_type)
        )
    if pt.is_nested(wanted):
        return pt.is_list(given) and _is_spark_form(wanted.value_type, given.value_type)
    if pt.is_integer(wanted) and pt.is_integer(given):
        return True
    if pt.is_timestamp(wanted):
        return pt.is_timestamp(given) and (wanted.tz is None) == (given.tz is None)
    # Half a float is held as a whole one, of which not all values fit.
    return not pt.is_float16(wanted) and bool(given == _to_spark_type(wanted, ""))


def _to_spark_type(type_: pa.DataType, column: str) -> pa.DataType:
    """Return the Arrow type of the narrowest Spark type that has all values of a type."""
    if type_ in _WIDENED:
        return _WIDENED[type_]
    if pt.is_fixed_size_binary(type_):
        return pa.binary()
    if pt.is_timestamp(type_):
        return pa.timestamp("us", type_.tz)
    if pt.is_duration(type_):
        return pa.duration("us")
    if pt.is_time(type_):
        return pa.time64("us")
    if pt.is_decimal(type_):
        return _to_spark_decimal(type_, column)
    if pt.is_nested(type_):
        return _to_spark_nested(type_, column)
    return type_


def _to_spark_decimal(type_: Any, column: str) -> pa.DataType:
    """Return a decimal with at most 38 digits; raise SchemaMismatch for more."""
    if type_.precision > 38:
        raise SchemaMismatch(
            f"column {column!r} of type {type_} does not fit Spark, whose decimals have at most 38 digits. "
            "Select other columns with the option 'columns'."
        )
    return pa.decimal128(type_.precision, type_.scale)


def _to_spark_nested(type_: Any, column: str) -> pa.DataType:
    """Return a nested type with its inner types converted for Spark."""
    if pt.is_struct(type_):
        return pa.struct([field.with_type(_to_spark_type(field.type, column)) for field in type_])
    if pt.is_map(type_):
        return pa.map_(_to_spark_type(type_.key_type, column), _to_spark_type(type_.item_type, column))
    return pa.list_(_to_spark_type(type_.value_type, column))


def quote_column(name: str) -> str:
    """Return a column's name in backticks, so that Spark accepts any characters in it."""
    return f"`{name.replace('`', '``')}`"


def utc_arrow_schema(schema: StructType) -> pa.Schema:
    """Return the schema of a DataFrame in Arrow, with moments in UTC."""
    return to_arrow_schema(schema, timezone="UTC")


def to_stored_schema(schema: StructType, *, creates: bool = False) -> pa.Schema:
    """Return the Arrow schema for storing rows of a DataFrame; raise SchemaMismatch for others.

    `creates`: a collection is created with these types, so each must be read back as the same type.
    """
    for field in schema.fields:
        _check_type(field.dataType, field.name, creates=creates)
    return utc_arrow_schema(schema)


_KEPT = (
    types.BooleanType,
    types.ByteType,
    types.ShortType,
    types.IntegerType,
    types.LongType,
    types.FloatType,
    types.DoubleType,
    types.DecimalType,
    types.BinaryType,
    types.DateType,
    types.TimestampType,
    types.TimestampNTZType,
)
_REMEDIES: dict[type[DataType], str] = {
    types.VariantType: "to_json(…) makes it a STRING, and CAST(… AS STRUCT<…>) one of typed columns",
    types.GeometryType: "ST_AsBinary(…) makes it BINARY",
    types.GeographyType: "ST_AsBinary(…) makes it BINARY",
    types.NullType: "CAST(NULL AS STRING), say, has a type",
    types.CharType: "CAST(… AS STRING) has the same values",
    types.VarcharType: "CAST(… AS STRING) has the same values",
    types.YearMonthIntervalType: "CAST(CAST(… AS INTERVAL MONTH) AS INT) counts its months",
    types.CalendarIntervalType: "Store its months, days and microseconds in columns of their own",
    types.UserDefinedType: "Store its parts, such as vector_to_array(…), in columns of their own",
}


def _check_type(kind: DataType, column: str, *, creates: bool) -> None:
    """Raise SchemaMismatch if values would change; with `creates`, also if their type would."""
    if isinstance(kind, types.StructType):
        for field in kind.fields:
            _check_type(field.dataType, column, creates=creates)
        if len({*kind.names}) == len(kind.names) > 0:
            return
        remedy = "Give each of its fields a name of its own, and at least one"
    elif isinstance(kind, types.ArrayType):
        return _check_type(kind.elementType, column, creates=creates)
    elif isinstance(kind, types.MapType):
        _check_type(kind.keyType, column, creates=creates)
        return _check_type(kind.valueType, column, creates=creates)
    elif isinstance(kind, _KEPT):
        return
    elif same := _find_equivalent_type(kind):
        if kind == same or not creates:
            return
        remedy = f"CAST(… AS {same.simpleString().upper()}) has the same values"
    elif isinstance(kind, types.NullType) and not creates:
        return
    else:
        remedy = next(
            (remedy for refused, remedy in _REMEDIES.items() if isinstance(kind, refused)), "Cast it to another type"
        )
    raise SchemaMismatch(
        f"column {column!r} holds {kind.simpleString().upper()}, a type of Spark that a collection cannot hold as it "
        f"is: it would be another one when it is read. {remedy}."
    )


def _find_equivalent_type(kind: DataType) -> DataType | None:
    """Return the type as which Spark would read the values back, if only the type changes."""
    if isinstance(kind, types.StringType):
        return types.StringType()
    if isinstance(kind, types.DayTimeIntervalType):
        return types.DayTimeIntervalType()
    return types.TimeType() if isinstance(kind, types.TimeType) else None
