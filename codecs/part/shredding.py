"""Values inside of JSON documents that are stored beside them, so that conditions need not parse each document.

The documents are the truth. A stored value is a copy of the text or NULL that DuckDB's `json_extract_string` computes
for one path in each row. DuckDB itself computes it when a part is written. So it is exact by construction, also for
numbers such as 1.0, names that occur twice, escapes, JSON's null, and other kinds of values in a few rows.

A path is a chain of names, `$."a"."b"`. Paths are chosen by a sample of the first row group: at least 90% of its
documents have a text, number or boolean there. Items of arrays are not chosen, nor texts of more than 64 bytes on the
average. A column has at most 16 paths, shorter chains first, then in the documents' order. Parts of less than 1,024
rows have none, because parsing these takes 2 ms. A writer without DuckDB stores none.

A small Parquet file for each row group has the values. It lies right behind the pages of that group, within the length
and checksum of the group. So the columns of the part stay what they are: readers of the file alone, published tables
and older releases see no difference. The entry `persist.values` of the footer lists the values and their places. The
name of a value is the id of its column and its path, `4 ->> $."a"."b"`, so it survives a renamed column. The descriptor
has its least and greatest text in `stats` under that name, for pruning parts.

A writer computes the values of each part anew from its rows, so an erasure removes them with their documents. An
examination computes them again and compares. A reader that finds none parses the documents.

Rejected: typed columns in the part. Each foreign reader would show them, older releases would refuse the part, and
conditions compare texts. Rejected, too: columns of integers, whose text each condition would make again.
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

from persist.codecs.part.printing import print_filter
from persist.codecs.types.calculator import get_calculator, is_supported_version
from persist.codecs.types.schema import CollectionSchema

# The functions of Arrow that conditions call: the text of a value, and whether a text may pass a test of its number.
EXTRACT, TEST = "persist_json_extract_string", "persist_number_test"
VALUES_KEY, VALUES_VERSION = "persist.values", 1
PATHS_MAX, SHARE_MIN, ROWS_MIN = 16, 0.9, 1024
NAMES_MAX = 4096  # With more of them in a sample, names are data.
_SAMPLE_ROWS, _DEPTH_MAX, _NAME_BYTES_MAX, _TEXT_BYTES_MAX = 256, 8, 64, 64
_ARROW = " ->> "
_PLAIN_PATH = re.compile(r'\$(?:\.(?:\w+|"[^"\\]+"))+', re.ASCII)
_NAME = re.compile(r'\.(?:(\w+)|"([^"\\]+)")', re.ASCII)
_PAIR = re.compile(r"(call|field_ref|literal|end|options): '(.*)'")
_METADATA = "-- schema metadata --\n"
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class StoredValues(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The entry of a footer: the names of values, and for each row group where its file begins and its length."""

    version: int
    names: tuple[str, ...]
    files: tuple[tuple[_Count, _Count], ...]


_decoder = msgspec.json.Decoder(StoredValues)


def to_full_path(path: str | int) -> str | None:
    """Convert a DuckDB path to the stored name of a value, or None."""
    if not isinstance(path, str):
        return None
    if not path.startswith("$"):
        is_name = path and path[0] != "/" and not re.search(r'["\\]', path)
        return f'$."{path}"' if is_name else None
    if _PLAIN_PATH.fullmatch(path) is None:
        return None
    return "$" + "".join(f'."{plain or quoted}"' for plain, quoted in _NAME.findall(path))


def compute_values(names: Sequence[str], rows: pa.Table, schema: CollectionSchema) -> pa.Table | None:
    """Return the values of some rows, as texts, each in one chunk; None without the DuckDB that computes them."""
    if not _has_duckdb():
        return None
    columns, paths_by_column = dict(zip(schema.ids, schema.names, strict=True)), dict[str, list[str]]()
    for name in names:
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
    return pa.table([text.cast(pa.string()) for text in texts], names=[*names])


def _has_duckdb() -> bool:
    try:
        import duckdb
    except ImportError:
        return False
    return is_supported_version(duckdb.__version__)


def choose_values(rows: pa.Table, schema: CollectionSchema) -> tuple[str, ...]:
    """Return the names of the values that a part is to store, from its first row group."""
    if not schema.json or len(rows) < ROWS_MIN or not _has_duckdb():
        return ()
    ids = dict(zip(schema.names, schema.ids, strict=True))
    sample = pa.array(np.linspace(0, len(rows) - 1, min(len(rows), _SAMPLE_ROWS)).astype(np.int64))
    names = (
        f"{ids[column]}{_ARROW}{path}"
        for column in schema.json
        for path in _find_common_paths(rows.column(column).take(sample).drop_null().to_pylist())
    )
    return tuple(name for name in names if name not in schema.names)


def _find_common_paths(documents: Sequence[str]) -> list[str]:
    """Return the paths that at least 90% of the documents have."""
    counts: dict[tuple[str, ...], list[int]] = {}  # How often there is a scalar, and the length of its text.
    for text in documents:
        try:
            scalars = [*_iterate_scalars(msgspec.json.decode(text), ())]
        except (msgspec.MsgspecError, RecursionError):
            continue  # Python has no such numbers, or not so deep objects.
        for keys, size in scalars:
            count = counts.setdefault(keys, [0, 0])
            count[0] += 1
            count[1] += size
        if len(counts) > NAMES_MAX:
            return []
    common = [
        keys
        for keys, (count, size) in counts.items()
        if count >= SHARE_MIN * len(documents) and size <= _TEXT_BYTES_MAX * count
    ]
    common = sorted(common, key=len)[:PATHS_MAX]  # Paths of one length stay in their order.
    return ["$" + "".join(f'."{key}"' for key in keys) for keys in common]


def _iterate_scalars(document: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the path and size of each scalar in a document."""
    if isinstance(document, dict) and len(keys) < _DEPTH_MAX:
        for key, inner in document.items():
            if 0 < len(key.encode()) <= _NAME_BYTES_MAX and key.isprintable() and '"' not in key and "\\" not in key:
                yield from _iterate_scalars(inner, (*keys, key))
    elif keys and isinstance(document, str | int | float):
        yield keys, len(document.encode()) if isinstance(document, str) else 8


def encode_values(values: pa.Table, repeating: Sequence[str]) -> bytes:
    """Return the file of the values of a row group, with dictionaries for repeating ones."""
    sink = io.BytesIO()
    how = {"compression": "zstd", "compression_level": 1, "store_schema": False, "write_statistics": False}
    pq.write_table(values, sink, use_dictionary=[*repeating], row_group_size=1 << 30, **how)
    return sink.getvalue()


def encode_entry(names: Sequence[str], files: Sequence[tuple[int, int]]) -> bytes:
    """Return the entry of a footer."""
    return msgspec.json.encode(StoredValues(VALUES_VERSION, tuple(names), tuple(files)))


def read_entry(metadata: Mapping[bytes, bytes], groups: int) -> StoredValues | None:
    """Return the entry of a footer; None if it has none, or one of a later version."""
    written = metadata.get(VALUES_KEY.encode())
    if written is None or json.loads(written)["version"] != VALUES_VERSION:
        return None
    entry = _decoder.decode(written)
    if len(entry.files) != groups:
        raise ValueError(f"{VALUES_KEY} in its footer has {len(entry.files)} of {groups} row groups")
    return entry


def decode_values(data: bytes | memoryview, names: Sequence[str], rows: int) -> pa.Table:
    """Return some values of a row group, from its file: as texts, or as dictionaries of texts.

    Raises:
        ValueError, pa.ArrowException, OSError: they are not there, or are not of so many rows.
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
    """Return a filter that reads values in the place of documents, and the fields of these; None if it reads none.

    Arrow pickles an expression as a record batch whose metadata has the expression's tree, from which calls are cut.

    Args:
        available: the names of values that there are; None for all.
    """
    if not schema.json or EXTRACT not in print_filter(filter):
        return None
    rebuild, (serialised, *arguments) = filter.__reduce__()
    batch = pa.ipc.open_file(serialised).get_batch(0)
    tree = batch.schema.to_string(truncate_metadata=False).partition(_METADATA)[2]
    pairs = [match.groups() for match in map(_PAIR.fullmatch, tree.split("\n")) if match is not None]

    def _rebuild(pairs: Sequence[tuple[str, ...]]) -> pc.Expression:
        schema = batch.schema.with_metadata(pa.KeyValueMetadata([*pairs]))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as file:
            file.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
        return rebuild(sink.getvalue(), *arguments)

    ids = {name: id_ for name, id_ in zip(schema.names, schema.ids, strict=True) if name in schema.json}
    rewritten, names, at = [*pairs], dict[str, None](), 0
    while at < len(rewritten) - 3:
        call, column, literal, end = rewritten[at : at + 4]
        if call == ("call", EXTRACT) and end == ("end", EXTRACT) and column[0] == "field_ref" and column[1] in ids:
            path = to_full_path(_unquote(batch.column(int(literal[1]))[0].as_py()))
            name = f"{ids[column[1]]}{_ARROW}{path}"
            if path is not None and name not in schema.names and (available is None or name in available):
                rewritten[at : at + 4] = [("field_ref", name)]
                names[name] = None
        at += 1
    try:
        # Names and texts may look like parts of the tree: then it is not understood.
        if not names or not _rebuild(pairs).equals(filter):
            return None
        return _rebuild(rewritten), pa.schema([(name, pa.string()) for name in names])
    except (pa.ArrowException, ValueError):
        return None


def _unquote(literal: str) -> str | int:
    return literal[1:-1].replace("''", "'") if literal.startswith("'") else 0
