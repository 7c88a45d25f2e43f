"""Reads the parts of a collection with Spark's own Parquet scan, in any version of the schema, without tombstones.

Each check returns a reason in words if the scan cannot read something, and otherwise None. `explain` shows the reason.

The scan leaves out every tombstone, whatever its diff, so it does not matter whether diffs are summed up before or
after. A key with nothing but tombstones affects no other row.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from py4j.java_gateway import JavaClass
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from persist.codecs.part.part import Part
from persist.codecs.types.schema import DIFF, TIME, CollectionSchema
from persist.connect.spark.frames import set_temporarily
from persist.connect.spark.types import convert_to_spark, quote_column, spark_schema
from persist.connect.spark.workers import get_parallelism
from persist.core.keyed.events import make_live_filter
from persist.core.log.fields import KeyedForm
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.keyed_rules import load_form
from persist.engine.read.planning.scan import Scan

# Spark looks for more paths than this in a job. By default that has a task for each path, at 9 ms of CPU.
LISTED_HERE = "spark.sql.sources.parallelPartitionDiscovery.threshold"
LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_DAY_US = 86_400 * 10**6

# These options override the session: Spark neither skips missing or damaged files nor expands names, and it verifies
# the checksums of pages.
READ_OPTIONS = {
    "__globPaths__": "false",
    "recursiveFileLookup": "true",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
    "parquet.page.verify-checksum.enabled": "true",
}


def find_native_url(url: str) -> str | None:
    """Return the URL by which Hadoop reads a location; None if Hadoop cannot."""
    scheme, separator, path = url.partition("://")
    if not separator:
        return f"file://{url}"  # Hadoop takes a path as it is, without escapes.
    scheme = scheme.removeprefix("fsspec+")
    if scheme in ("s3", "s3a"):
        return f"s3a://{path}"
    return f"{scheme}://{path}" if scheme in ("gs", "abfs", "abfss", "hdfs") else None


def explain_unreadable(spark: SparkSession, url: str, parts: Sequence[Part]) -> str | None:
    """Return why the JVM cannot read these parts, or None. Cost: a request for one."""
    root = find_native_url(url)
    if root is None:
        return f"the JVM knows no store of the kind of {url}"
    blob = next((part.blob for part in parts if part.blob), None)
    if blob is None:
        return None
    path = f"{root}/{blob}"
    jvm: Any = getattr(spark, "_jvm", None)
    try:
        if jvm is None:  # A remote session: the server looks.
            spark.read.options(**READ_OPTIONS).parquet(path).schema  # noqa: B018
        else:
            where = jvm.org.apache.hadoop.fs.Path(path)
            where.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).getFileStatus(where)
    except Exception as error:  # Any error, of Java or of Connect, means that the JVM cannot read the part.
        return f"the JVM cannot read {path}: {_first_line(error)}"
    return None


def _first_line(error: BaseException) -> str:
    """Return the first line of an error, also of a Java error."""
    java = getattr(error, "java_exception", None)
    text = str(java.toString() if java is not None else error) or type(error).__name__
    return text.splitlines()[0][:300] if not isinstance(error, PySparkException) else text.splitlines()[0]


def explain_misread(schema: CollectionSchema, names: Sequence[str], parts: Sequence[Part] = ()) -> str | None:
    """Return why Spark's Parquet scan would misread a column of these parts, or None."""
    for version in sorted({part.schema for part in parts} - {schema.version}):
        lifted = next(part for part in parts if part.schema == version).make_lift(schema)
        if lifted is None:
            continue
        if inner := [name for name in names if name in lifted.reshaped]:
            return f"the fields inside of {inner[0]!r} are others than in version {version} of the schema"
        if (reason := explain_misread(lifted.stored, lifted.list_source_columns(names))) is not None:
            return f"{reason} of version {version} of the schema"
    wrong = [name for name in names if not _is_native(schema.arrow.field(name).type)]
    if not wrong:
        return None
    kinds = ", ".join(f"{name!r} ({schema.arrow.field(name).type})" for name in wrong)
    return f"Spark's Parquet scan cannot read the column {kinds}"


def _is_native(kind: Any) -> bool:
    """Return whether Spark's Parquet scan reads a type as it is stored."""
    if pt.is_nested(kind):
        if pt.is_struct(kind):
            return all(_is_native(field.type) for field in kind)
        if pt.is_map(kind):
            return _is_native(kind.key_type) and _is_native(kind.item_type)
        return not pt.is_fixed_size_list(kind) and _is_native(kind.value_type)
    if pt.is_timestamp(kind):
        return kind.unit in ("ms", "us")
    # Parquet has no duration, so it is stored as a number; Spark cannot read 16-bit floats, nor all times of day.
    return not (pt.is_duration(kind) or pt.is_float16(kind) or pt.is_time(kind) or pt.is_dictionary(kind))


def scan_parts(
    spark: SparkSession, url: str, schema: CollectionSchema, names: Sequence[str], parts: Sequence[Part]
) -> DataFrame:
    """Return columns of all rows in parts that are blobs, by Spark's own scan.

    Each version of the schema is a scan of its own, projected to this one. Stamped parts also need a scan of their own
    if the columns include times, which only their descriptors have.
    """
    alike: dict[tuple[int, bool], list[Part]] = {}
    for part in parts:
        alike.setdefault((part.schema, part.stamped and TIME in names), []).append(part)
    frames = [_scan_parts_of_version(spark, url, schema, names, some) for some in alike.values()]
    return reduce(DataFrame.union, frames)


def _scan_parts_of_version(
    spark: SparkSession,
    url: str,
    schema: CollectionSchema,
    names: Sequence[str],
    parts: Sequence[Part],
    file: str | None = None,
) -> DataFrame:
    """Return rows of parts with one schema version; `file` adds a column of file names."""
    if parts[0].stamped and TIME in names:
        return _read_stamped_parts(spark, url, schema, names, parts)
    root, lifted = find_native_url(url), parts[0].make_lift(schema)
    target = spark_schema(pa.schema([schema.arrow.field(name) for name in names]))
    stored = [*names] if lifted is None else lifted.list_source_columns(names) or [DIFF]
    of_parts = schema if lifted is None else lifted.stored
    types = spark_schema(pa.schema([of_parts.arrow.field(name) for name in stored]))
    read = _load_files(spark, types, root, parts)
    if lifted is None and file is None:
        return read
    columns = [] if file is None else [F.element_at(F.split(F.input_file_name(), "/"), -1).alias(file)]
    for field in target.fields:
        source = field.name if lifted is None else lifted.find_source(field.name)
        if source is None:
            assert lifted is not None, "a part of the same version has all columns"
            column = _to_literal(lifted.get_default(field.name), field)
        else:
            column = F.col(quote_column(source))
        columns.append(column.cast(field.dataType).alias(field.name))
    return read.select(*columns)


def find_class(spark: SparkSession, name: str) -> Any:
    """Return a class of the jar; None if the JVM lacks it, or is remote."""
    jvm: Any = getattr(spark, "_jvm", None)
    java_class = None if jvm is None else getattr(jvm.dev.persist.spark, name)
    return java_class if isinstance(java_class, JavaClass) else None  # Py4J takes a missing class for a package.


def _load_files(spark: SparkSession, types: StructType, root: str | None, parts: Sequence[Part]) -> DataFrame:
    """Return columns of Parquet files; with the jar, their sizes need no requests."""
    files = None if str(root).startswith("hdfs:") else find_class(spark, "PartFiles")  # Spark finds hosts in HDFS.
    if files is not None:
        named = "\0".join(f"{root}/{part.blob}\0{part.bytes}" for part in parts)
        return DataFrame(files.load(spark._jsparkSession, types.json(), json.dumps(READ_OPTIONS), named), spark)
    is_near = str(root).startswith("file:")  # Elsewhere a request takes a while, and tasks make many at a time.
    listing = (LISTED_HERE, str(len(parts))) if is_near else (LISTING_TASKS, str(4 * get_parallelism(spark)))
    with set_temporarily(spark, *listing):
        return spark.read.options(**READ_OPTIONS).schema(types).parquet(*(f"{root}/{part.blob}" for part in parts))


def _read_stamped_parts(
    spark: SparkSession, url: str, schema: CollectionSchema, names: Sequence[str], parts: Sequence[Part]
) -> DataFrame:
    """Return rows of parts whose time is only in their descriptor, joined by file name."""
    stored = [name for name in names if name != TIME]
    file, of_file = find_unused_name("_file", names), find_unused_name("_of_file", names)
    rows = _scan_parts_of_version(spark, url, schema, stored or [DIFF], parts, file)
    files = pa.array([part.blob.rpartition("/")[2] for part in parts])
    times = pa.array([part.time_min for part in parts], pa.int64())
    stamps = make_local_frame(spark, pa.table({of_file: files, TIME: times}))
    joined = rows.join(F.broadcast(stamps), rows[file] == stamps[of_file])
    return joined.select(*map(quote_column, names))


def make_local_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return a table of this process as a DataFrame; the plan contains its rows."""
    schema = spark_schema(table.schema)
    return spark.createDataFrame(convert_to_spark(table, schema) if len(table) else [], schema)


def find_unused_name(name: str, names: Iterable[str]) -> str:
    """Return a name with underscores added until it differs from all names, ignoring case."""
    lower_names = {existing.lower() for existing in names}
    while name.lower() in lower_names:
        name += "_"
    return name


def _to_literal(value: pa.Scalar, field: StructField) -> Column:
    """Return a value as a literal of Spark, also a moment that Python lacks."""
    one_row = pa.table({field.name: pa.repeat(value, 1)})
    scalar = convert_to_spark(one_row, StructType([field])).column(0)[0]
    if not scalar.is_valid:
        return F.lit(None)
    if pt.is_date(scalar.type):
        return F.date_from_unix_date(F.lit(scalar.value))
    if pt.is_timestamp(scalar.type):
        if scalar.type.tz is not None:
            return F.timestamp_micros(F.lit(scalar.value))
        days, micros = divmod(scalar.value, _DAY_US)
        seconds = f"{micros // 10**6}.{micros % 10**6:06}"
        return F.expr(f"TIMESTAMP_NTZ '1970-01-01 00:00:00' + make_dt_interval({days}, 0, 0, {seconds})")
    plain = scalar.as_py()
    return F.lit(str(plain)) if pt.is_decimal(scalar.type) else F.lit(plain)


@dataclass(frozen=True)
class Tombstoned:
    """Recognises the tombstones of a keyed collection; any other collection has none.

    `column`: the column that marks tombstones; None if the collection has no tombstones.
    """

    schema: CollectionSchema
    form: KeyedForm | None

    @classmethod
    def of(cls, contents: CollectionState, schema: CollectionSchema) -> "Tombstoned":
        """Return the test for tombstones of a collection, in a version of its schema."""
        form = load_form(contents, schema, resolves=False)
        return cls(schema, form if form is not None and form.tombstone is not None else None)

    @property
    def column(self) -> str | None:
        """The column that marks tombstones; None without one."""
        return None if self.form is None else self.form.tombstone

    @property
    def filter(self) -> pc.Expression | None:
        """The Arrow expression for live rows; None without a column of tombstones."""
        return make_live_filter(self.schema, self.form)

    def is_only_filter_of(self, scan: Scan) -> bool:
        """Return whether the filter of a scan removes tombstones and nothing else."""
        live = self.filter
        if live is None or scan.filter is None:
            return live is None and scan.filter is None
        return bool(scan.filter.equals(live))

    def add_column(self, names: list[str]) -> list[str]:
        """Return names, with the column that marks tombstones added if it is missing."""
        return names if self.column is None or self.column in names else [*names, self.column]

    def select_live(self, rows: DataFrame) -> DataFrame:
        """Return the rows of a DataFrame that are not tombstones; it has their column."""
        return rows if self.column is None else rows.where(self._is_live(F.col(quote_column(self.column))))

    def _is_live(self, column: Column) -> Column:
        """Return the Spark condition for rows that are not tombstones."""
        assert self.form is not None
        assert self.form.tombstone is not None
        if pt.is_boolean(self.schema.arrow.field(self.form.tombstone).type):
            return column.isNull() | (column == F.lit(False))
        if self.form.tombstone_value is not None:
            return column.isNull() | (column != F.lit(self.form.tombstone_value))
        return column.isNull()
