"""Files of rows: their format by their name, and how Arrow reads it. What casts rows is elsewhere.

In CSV an empty field is NULL, unless it is in quotes; then it is empty text. A record may span several lines.
"""

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

READ = ("csv", "json", "parquet", "arrow")
BY_SUFFIX = {
    ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet", ".pq": "parquet",
    ".arrow": "arrow", ".arrows": "arrow", ".ipc": "arrow", ".feather": "arrow",
}  # fmt: skip
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
BLOCK_BYTES = 8 << 20


def format_by_name(name: str) -> tuple[str | None, str | None]:
    """Return the format and the compression that the name of a file tells; None for what it does not tell."""
    stem, suffix = posixpath.splitext(name)
    compression = COMPRESSED.get(suffix.lower())
    ending = posixpath.splitext(stem)[1] if compression else suffix
    return BY_SUFFIX.get(ending.lower()), compression


def csv_batches(
    stream: Any,
    types: Mapping[str, pa.DataType],
    *,
    columns: Sequence[str] | None = None,
    skipped: Callable[[Any], str] | None = None,
    is_checked: bool = True,
) -> Iterable[pa.RecordBatch]:
    """Return the rows of CSV in blocks.

    Args:
        types: of columns; others get those that the first block shows.
        columns: those that are read; None for all.
        skipped: hears of records with more or fewer fields than the head, and says "skip" or "error".
        is_checked: whether text must be UTF-8.
    """
    import pyarrow.csv as pa_csv

    reader: Iterable[pa.RecordBatch] = pa_csv.open_csv(
        stream,
        pa_csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
        pa_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skipped),
        pa_csv.ConvertOptions(
            column_types=dict(types),
            include_columns=columns,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            check_utf8=is_checked,
        ),
    )
    return reader


def stored_batches(stream: Any, form: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of Parquet or Arrow IPC; if there are none, an empty batch with the columns."""
    batch = None
    for batch in _parquet(stream) if form == "parquet" else _arrow(stream):
        yield batch
    if batch is None:
        yield pa.RecordBatch.from_pylist([], schema=schema_of(stream, form))


def schema_of(stream: Any, form: str, *, is_whole: bool = False) -> pa.Schema:
    """Return the columns of a file, by its footer or head; of text, by its first block, or by the whole file."""
    if form == "csv":
        import pyarrow.csv as pa_csv

        read = pa_csv.read_csv if is_whole else pa_csv.open_csv
        return read(stream, pa_csv.ReadOptions(block_size=BLOCK_BYTES)).schema
    if form == "json":
        import pyarrow.json as pa_json

        read = pa_json.read_json if is_whole else pa_json.open_json
        return read(stream, pa_json.ReadOptions(False, BLOCK_BYTES)).schema
    stream.seek(0)
    if form == "parquet":
        import pyarrow.parquet as pq

        return pq.ParquetFile(stream).schema_arrow
    return _arrow_reader(stream).schema


def _parquet(stream: Any) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    yield from pq.ParquetFile(stream).iter_batches()


def _arrow(stream: Any) -> Iterator[pa.RecordBatch]:
    reader = _arrow_reader(stream)
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
    else:
        yield from reader


def _arrow_reader(stream: Any) -> Any:
    """Return a reader of a file of Arrow IPC, or else of a stream."""
    try:
        return pa.ipc.open_file(stream)
    except pa.ArrowInvalid:
        stream.seek(0)
        return pa.ipc.open_stream(stream)
