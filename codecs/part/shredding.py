"""Stores values of JSON documents beside them, so that conditions need not parse each document.

The documents are authoritative. DuckDB itself computes each value when a part is written, so it is exact, also for
numbers such as 1.0, names that occur twice, escapes, JSON's null, and other kinds of values in a few rows.
`docs/inside/format.md` ("Values of documents") defines what a value is, where it is stored, and which readers see it.

Paths are chosen by a sample of the first row group. Items of arrays are not chosen, nor texts of more than 64 bytes on
average. Paths with fewer steps come first, then the documents' order. Parts of less than 1,024 rows have no values,
because parsing these takes 2 ms. A writer without DuckDB stores none. Conditions that cast a text to a number compare
the doubles. They also pass NaN and values near the bound, so their caller must test again.

Rejected: typed columns in the part. Each foreign reader would show them, and older releases would refuse the part.
Rejected, too: columns of numbers alone, whose text each condition on texts would make again.
"""

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from persist.codecs.part.printing import iterate_metadata, print_filter
from persist.codecs.types.calculator import get_calculator, is_supported_version
from persist.codecs.types.schema import CollectionSchema

# The functions of Arrow that conditions call: the text of a value, and whether a text may pass a test of its number.
EXTRACT, TEST = "persist_json_extract_string", "persist_number_test"
VALUES_KEY, VALUES_VERSION = "persist.values", 1
PATHS_MAX, SHARE_MIN, ROWS_MIN = 16, 0.9, 1024
NAMES_MAX = 4096  # With more of them in a sample, names are data.
_SAMPLE_ROWS, _DEPTH_MAX, _NAME_BYTES_MAX, _TEXT_BYTES_MAX = 256, 8, 64, 64
_ARROW, DOUBLE = " ->> ", " ::DOUBLE"
_PLAIN_NUMBER = "^-?[0-9]{1,15}([.][0-9]{1,15})?$"
_RANGES = {"TINYINT": 7, "SMALLINT": 15, "INTEGER": 31}  # Wider types hold all plain numbers.
_PLAIN_PATH = re.compile(r'\$(?:\.(?:\w+|"[^"\\]+"))+', re.ASCII)
_NAME = re.compile(r'\.(?:(\w+)|"([^"\\]+)")', re.ASCII)
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class StoredValues(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The footer's entry on stored JSON values: names, and row groups' files."""

    version: int
    names: tuple[str, ...]
    files: tuple[tuple[_Count, _Count], ...]


_decoder = msgspec.json.Decoder(StoredValues)


def to_full_path(path: str | int) -> str | None:
    """Convert a path into documents to its stored name; None if impossible."""
    if not isinstance(path, str):
        return None
    if not path.startswith("$"):
        is_name = path and path[0] != "/" and not re.search(r'["\\]', path)
        return f'$."{path}"' if is_name else None
    if _PLAIN_PATH.fullmatch(path) is None:
        return None
    return "$" + "".join(f'."{plain or quoted}"' for plain, quoted in _NAME.findall(path))


def compute_values(names: Sequence[str], rows: pa.Table, schema: CollectionSchema) -> pa.Table | None:
    """Compute stored JSON values of rows, as texts or doubles. None without a supported DuckDB.

    `names`: the names of the values; the name of a text comes before that of its double.
    """
    if not _has_duckdb():
        return None
    columns, paths_by_column = dict(zip(schema.ids, schema.names, strict=True)), dict[str, list[str]]()
    text_names = [name for name in names if not name.endswith(DOUBLE)]
    for name in text_names:
        id_, _, path = name.partition(_ARROW)
        paths_by_column.setdefault(columns[int(id_)], []).append("'" + path.replace("'", "''") + "'")
    texts: list[pa.ChunkedArray] = []
    for column, paths in paths_by_column.items():
        documents = pa.table({"document": rows.column(column)})
        items = ", ".join(f"texts[{at}] AS x{at}" for at in range(1, len(paths) + 1))
        with get_calculator().cursor() as cursor:
            listed = f"json_extract_string(document, [{', '.join(paths)}]) AS texts"
            extracted = cursor.from_arrow(documents).project(listed).project(items)
            texts += extracted.to_arrow_table().combine_chunks().columns
    values = dict(zip(text_names, (text.cast(pa.string()) for text in texts), strict=True))
    return pa.table(
        {name: values[name] if name in values else _to_doubles(values[name.removesuffix(DOUBLE)]) for name in names}
    )


def _to_doubles(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return plain numbers as doubles; NaN for other texts."""
    is_plain = pc.match_substring_regex(texts, _PLAIN_NUMBER)
    doubles = pc.if_else(is_plain, texts, pa.scalar(None, pa.string())).cast(pa.float64())
    # The one form of zero.
    return pc.if_else(is_plain, pc.add(doubles, 0.0), pa.scalar(float("nan")))


def _has_duckdb() -> bool:
    """Return whether a supported version of DuckDB is installed."""
    try:
        import duckdb
    except ImportError:
        return False
    return is_supported_version(duckdb.__version__)


def choose_values(rows: pa.Table, schema: CollectionSchema) -> tuple[str, ...]:
    """Choose which JSON values a part stores; return their names."""
    if not schema.json or len(rows) < ROWS_MIN or not _has_duckdb():
        return ()
    ids = dict(zip(schema.names, schema.ids, strict=True))
    sample = pa.array(np.linspace(0, len(rows) - 1, min(len(rows), _SAMPLE_ROWS)).astype(np.int64))
    names = (
        f"{ids[column]}{_ARROW}{path}{suffix}"
        for column in schema.json
        for path, is_number in _find_common_paths(rows.column(column).take(sample).drop_null().to_pylist())
        for suffix in (("", DOUBLE) if is_number else ("",))
    )
    return tuple(name for name in names if name not in schema.names)


def _find_common_paths(documents: Sequence[str]) -> list[tuple[str, bool]]:
    """Return the paths that at least 90% of the documents have, and whether 90% have numbers there."""
    counts: dict[tuple[str, ...], list[int]] = {}  # How often there is a scalar, the length of its text, and numbers.
    for text in documents:
        try:
            scalars = [*_iterate_scalars(msgspec.json.decode(text), ())]
        except (msgspec.MsgspecError, RecursionError):
            continue  # Python has no such numbers, or not so deep objects.
        for keys, size, is_number in scalars:
            count = counts.setdefault(keys, [0, 0, 0])
            count[0] += 1
            count[1] += size
            count[2] += is_number
        if len(counts) > NAMES_MAX:
            return []
    common = [
        keys
        for keys, (count, size, _) in counts.items()
        if count >= SHARE_MIN * len(documents) and size <= _TEXT_BYTES_MAX * count
    ]
    common = sorted(common, key=len)[:PATHS_MAX]  # Paths of one length stay in their order.
    least = SHARE_MIN * len(documents)
    return [("$" + "".join(f'."{key}"' for key in keys), counts[keys][2] >= max(1, least)) for keys in common]


def _iterate_scalars(document: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int, bool]]:
    """Yield the path and size of each scalar in a document, and whether it is a number."""
    if isinstance(document, dict) and len(keys) < _DEPTH_MAX:
        for key, inner in document.items():
            if 0 < len(key.encode()) <= _NAME_BYTES_MAX and key.isprintable() and '"' not in key and "\\" not in key:
                yield from _iterate_scalars(inner, (*keys, key))
    elif keys and isinstance(document, str | int | float):
        is_number = not isinstance(document, str | bool)
        yield keys, len(document.encode()) if isinstance(document, str) else 8, is_number


def get_value_fields(names: Sequence[str]) -> pa.Schema:
    """Return the schema of stored JSON values: doubles and texts."""
    return pa.schema([(name, pa.float64() if name.endswith(DOUBLE) else pa.string()) for name in names])


def encode_values(values: pa.Table, repeating: Sequence[str]) -> bytes:
    """Encode a row group's JSON values as a Parquet file."""
    sink = io.BytesIO()
    how = {"compression": "zstd", "compression_level": 1, "store_schema": False, "write_statistics": False}
    pq.write_table(values, sink, use_dictionary=[*repeating], row_group_size=1 << 30, **how)
    return sink.getvalue()


def encode_entry(names: Sequence[str], files: Sequence[tuple[int, int]]) -> bytes:
    """Encode the footer's entry on stored JSON values."""
    return msgspec.json.encode(StoredValues(VALUES_VERSION, tuple(names), tuple(files)))


def read_entry(metadata: Mapping[bytes, bytes], groups: int) -> StoredValues | None:
    """Read the footer's entry; None without one or if it is later."""
    written = metadata.get(VALUES_KEY.encode())
    if written is None or json.loads(written)["version"] != VALUES_VERSION:
        return None
    entry = _decoder.decode(written)
    if len(entry.files) != groups:
        raise ValueError(f"{VALUES_KEY} in its footer has {len(entry.files)} of {groups} row groups")
    return entry


def decode_values(data: bytes | memoryview, names: Sequence[str], rows: int) -> pa.Table:
    """Decode stored JSON values of a row group from their file.

    Raises ValueError, pa.ArrowException, OSError: values are missing, or have another number of rows.
    """
    buffer = pa.py_buffer(data)
    metadata = pq.read_metadata(pa.BufferReader(buffer))
    chunks = [metadata.row_group(0).column(at) for at in range(metadata.num_columns)]
    coded = [chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page]  # They decode in half the time.
    with pq.ParquetFile(buffer, metadata=metadata, pre_buffer=False, read_dictionary=coded) as file:
        table = file.read(columns=[*names], use_threads=False)
    if table.num_rows != rows or table.column_names != [*names]:
        raise ValueError(f"it holds {table.num_rows} values {table.column_names} of {rows} rows and {[*names]}")
    return table


def rewrite_filter(
    filter: pc.Expression, schema: CollectionSchema, available: tuple[str, ...] | None
) -> tuple[pc.Expression, pa.Schema] | None:
    """Return a filter on stored JSON values and their fields, or None.

    Arrow pickles an expression as a record batch whose metadata has its tree: there, calls are replaced by columns.

    `available`: the names of stored values; None for all.
    """
    if not schema.json or EXTRACT not in print_filter(filter):
        return None
    pairs, columns = _read_tree(filter)
    ids = {name: id_ for name, id_ in zip(schema.names, schema.ids, strict=True) if name in schema.json}
    rewritten, names, at, literals = [*pairs], dict[str, pa.DataType](), 0, [*columns]
    while at < len(rewritten) - 3:
        call, column, literal, end = rewritten[at : at + 4]
        if call == ("call", EXTRACT) and end == ("end", EXTRACT) and column[0] == "field_ref" and column[1] in ids:
            path = to_full_path(_unquote(columns[int(literal[1])][0].as_py()))
            name = f"{ids[column[1]]}{_ARROW}{path}"
            if path is not None and name not in schema.names and (available is None or name in available):
                test = None
                if rewritten[at - 1 : at] == [("call", TEST)] and rewritten[at + 5 : at + 6] == [("end", TEST)]:
                    test = _make_number_filter(name + DOUBLE, columns[int(rewritten[at + 4][1])][0].as_py())
                number_name = name + DOUBLE
                if test is None or number_name in schema.names or not (available is None or number_name in available):
                    rewritten[at : at + 4] = [("field_ref", name)]
                    names[name] = pa.string()
                else:
                    tree, more = _read_tree(test)
                    rewritten[at - 1 : at + 6] = [
                        (kind, str(int(text) + len(literals)) if kind == "literal" else text) for kind, text in tree
                    ]
                    literals += more
                    names[number_name] = pa.float64()
        at += 1
    if not names:
        return None
    fields = [pa.field(str(at), literal.type) for at, literal in enumerate(literals)]
    tree_schema, sink = pa.schema(fields, pa.KeyValueMetadata(rewritten)), pa.BufferOutputStream()
    with pa.ipc.new_file(sink, tree_schema) as file:
        file.write_batch(pa.RecordBatch.from_arrays(literals, schema=tree_schema))
    rebuild, (_, *arguments) = filter.__reduce__()
    return rebuild(sink.getvalue(), *arguments), pa.schema([*names.items()])


def _read_tree(filter: pc.Expression) -> tuple[list[tuple[str, str]], list[pa.Array]]:
    """Return an expression's serialized tree, as pairs, and its literals."""
    batch = pa.ipc.open_file(filter.__reduce__()[1][0]).get_batch(0)
    return [*iterate_metadata(batch.schema)], batch.columns


def _make_number_filter(name: str, test: str) -> pc.Expression | None:
    """Return a filter on doubles that passes all numbers of a test. None if there is none.

    A cast to integers rounds, and a value beyond their range passes, because DuckDB refuses it.
    """
    kind, sign, number, *is_document = test.split(" ")
    is_whole = kind != "DOUBLE"
    if is_whole and is_document:
        return None  # Other rules hold for fractions.
    value, bound = pc.field(name), float(number)
    margin = 0.5 * is_whole + abs(bound) * 1e-12 + 1e-300
    is_less, is_greater = value < bound - margin, value > bound + margin  # NaN is neither.
    passes = ~is_greater if sign in ("<", "<=") else ~is_less if sign in (">", ">=") else ~is_less & ~is_greater
    if kind not in _RANGES:
        return passes
    end = 2.0 ** _RANGES[kind] - 1
    return passes | (value > end) | (value < -end)


def _unquote(literal: str) -> str | int:
    """Return the path in a literal: a text, or an index."""
    return literal[1:-1].replace("''", "'") if literal.startswith("'") else 0
