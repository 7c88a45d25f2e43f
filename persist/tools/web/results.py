"""Rows for the page, to show, sort, draw and download: contents of collections, and results of queries.

A query is DuckDB's, over collections and nothing else (`persist.compute.query`), as of one time for all of them.
`LIMITS` bounds its work and the number of concurrent queries. A query drawn over time runs at up to `POINTS_MAX` times,
one after the other, within the time limit of one query.

Contents are sorted here without DuckDB: of each batch, only rows that can belong to the page or come before it are
kept. So memory has the rows up to the end of the page, and one batch. This reads all contents, and is refused beyond
`ROWS_SORTED_MAX` rows.
"""

import io
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import persist
from persist.compute.query import QueryLimits, QueryResult, check_is_query
from persist.connect.egress.files import make_row_writer
from persist.engine.read.results.result import ArrowResult
from persist.tools.reports.surveys import Facts
from persist.tools.web.slider import format_cells, get_common_span, parse_key, take_rows

LIST_MAX = 200  # Rows in one answer of contents.
ROWS_MAX = 1000  # Rows in one answer of a query.
OFFSET_MAX = 100_000  # Contents are read from their beginning, so later pages are too slow.
ROWS_SORTED_MAX = 5_000_000
POINTS_MAX = 48
LIMITS = QueryLimits(memory_bytes=512 << 20, timeout_s=60.0, rows_max=50_000_000)
QUERIES_AT_ONCE = 2
PATIENCE_S = 5.0  # How long a query waits for another to end, such as one whose page was closed.
QUERY_CHARS_MAX = 6000  # As much as an address takes.
DOWNLOADS = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}


@dataclass(frozen=True, slots=True)
class Download:
    """A file that is produced while it is sent."""

    name: str
    kind: str
    content: Iterator[bytes]


class Results:
    """Reads contents and runs queries with a read-only client. Thread-safe."""

    def __init__(self, client: "persist.Client") -> None:
        self._client = client
        self._running = threading.BoundedSemaphore(QUERIES_AT_ONCE)

    def contents(
        self,
        name: str,
        as_of: str | None,
        *,
        offset: int = 0,
        limit: int = 50,
        key: str | None = None,
        where: str | None = None,
        sort: str | None = None,
        descending: bool = False,
        schema: int | None = None,
    ) -> dict[str, Any]:
        """Return a page of the contents as of a time, or of one key.

        Args:
            where: a condition over the columns, as `snapshot(where=…)` takes it.
            sort: a column; None for the order of keys.
        """
        if not 0 <= offset <= OFFSET_MAX:
            raise persist.InvalidUsage(
                f"only the first {OFFSET_MAX:,} rows can be shown: search for a key, or filter by a condition"
            )
        collection = self._client.load(name)
        limit = min(max(1, limit), LIST_MAX)
        with collection.snapshot(
            _parse_time(as_of), where=where or None, form="diff", schema=schema, timeout_s=0
        ) as snapshot:
            at = snapshot.explain().as_of
            if key:
                rows = snapshot.get(parse_key(key, collection.handle.get_reading_schema(schema))).slice(0, LIST_MAX)
            elif sort:
                _check_sorted(Facts(collection.handle.contents()), snapshot.schema, sort)
                rows = _sort_rows(snapshot, sort, descending, offset + limit).slice(offset)
            else:
                rows = take_rows(snapshot.to_batches(), snapshot.schema, offset, limit)
        moment = None if collection.timeline is None else collection.timeline.to_text(at)
        return {"as_of": str(at), "moment": moment, **format_cells(rows)}

    def query(
        self, sql: str, as_of: str | None, *, sort: str | None = None, descending: bool = False
    ) -> dict[str, Any]:
        """Return a query's first rows, the collections that it reads, and the times at which these are readable."""
        began = time.perf_counter()
        with self._run_query(sql, as_of, sort, descending) as answer:
            rows = take_rows(answer.to_batches(), answer.schema, 0, ROWS_MAX + 1)
            read = [{"table": ".".join(path), "as_of": str(at)} for path, at in answer.times.items()]
        return {
            **format_cells(rows.slice(0, ROWS_MAX)),
            "types": [str(kind) for kind in rows.schema.types],
            "more": len(rows) > ROWS_MAX,
            "read": read,
            "span": self._get_span([*answer.names]),
            "seconds": round(time.perf_counter() - began, 3),
        }

    def over_time(self, sql: str, points: int) -> dict[str, Any]:
        """Return a query's first rows at evenly spaced times."""
        with self._run_query(sql, None, None, False) as answer:
            where = self._get_span([*answer.names])
        if where is None:
            raise persist.InvalidUsage(
                "the collections of this query have no times in common at which all can be read, or their times mean "
                "different things: ask it as of one time, or write a time after a table: FROM orders VERSION AS OF 7"
            )
        begins, ends, until = int(where["begins"]), int(where["ends"]), time.monotonic() + LIMITS.timeout_s
        count = min(max(2, points), POINTS_MAX, ends - begins + 1)
        times = [begins + (ends - begins) * n // max(1, count - 1) for n in range(count)]
        columns: list[str] = []
        rows: list[list[str | None]] = []
        for at in times:
            if time.monotonic() > until:
                raise persist.InvalidUsage(f"the query took longer than {LIMITS.timeout_s:g} s at {count} times")
            with self._run_query(sql, str(at), None, False) as answer:
                point = format_cells(take_rows(answer.to_batches(), answer.schema, 0, ROWS_MAX // count))
            columns = ["as of", *point["columns"]]
            rows += [[str(at), *row] for row in point["rows"]]
        return {"columns": columns, "rows": rows, "timeline": where["timeline"], "points": len(times)}

    def download(
        self,
        format: str,
        *,
        name: str | None = None,
        sql: str | None = None,
        as_of: str | None = None,
        where: str | None = None,
        sort: str | None = None,
        descending: bool = False,
    ) -> Download:
        """Return all rows of a query or a collection as a file."""
        if format not in DOWNLOADS:
            raise persist.InvalidUsage(
                f"format={format!r:.50} is not a format of a download: use one of {', '.join(DOWNLOADS)}"
            )
        if (name is None) == (sql is None):
            raise persist.InvalidUsage("a download is either of a collection, name=…, or of a query, sql=…")

        def content() -> Iterator[bytes]:
            if sql is not None:
                with self._run_query(sql, as_of, sort, descending) as answer:
                    yield from encode_file(answer, format)
            else:
                assert name is not None
                with self._client.load(name).snapshot(_parse_time(as_of), where=where or None, timeout_s=0) as snapshot:
                    yield from encode_file(snapshot, format)

        pieces = content()
        first = next(pieces, b"")  # Errors come before the file begins.

        def stream_all() -> Iterator[bytes]:
            try:
                yield first
                yield from pieces
            finally:
                pieces.close()  # type: ignore[attr-defined]

        stem = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name or "answer")[:80]
        return Download(f"{stem}.{format}", DOWNLOADS[format], stream_all())

    @contextmanager
    def _run_query(self, sql: str, as_of: str | None, sort: str | None, descending: bool) -> Iterator[QueryResult]:
        """Run a query, unless too many run; yield its result, and close that at the end."""
        if len(sql) > QUERY_CHARS_MAX:
            raise persist.InvalidUsage(f"the query has {len(sql):,} characters, and the page takes {QUERY_CHARS_MAX:,}")
        check_is_query(sql, "the page")
        if not self._running.acquire(timeout=PATIENCE_S):
            raise persist.Unavailable(f"{QUERIES_AT_ONCE} queries run already: ask again when one has ended")
        try:
            text = sql.rstrip().removesuffix(";") if sort else sql
            if sort:
                quoted = '"' + sort.replace('"', '""') + '"'
                text = f"SELECT * FROM ({text}\n) AS answer ORDER BY {quoted} {'DESC' if descending else 'ASC'}"
            answer = QueryResult(self._client.engine, text, _parse_time(as_of), limits=LIMITS)
            try:
                yield answer
            finally:
                answer.close()
        finally:
            self._running.release()

    def _get_span(self, names: list[str]) -> dict[str, Any] | None:
        """Return the common readable times of collections, or None."""
        return get_common_span([Facts(self._client.load(name).handle.contents()) for name in names])


def encode_file(result: ArrowResult, format: str) -> Iterator[bytes]:
    """Yield a file of rows in pieces. Memory: a batch, or a Parquet row group."""
    file = _Pieces()
    writer = make_row_writer(result.schema, format, file)  # type: ignore[arg-type]
    try:
        for batch in result.to_batches():
            writer.write_batch(batch)
            if piece := file.take():
                yield piece
    finally:
        writer.close()
    yield file.take()


class _Pieces(io.RawIOBase):
    """A file object that collects written bytes until they are taken."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        """Collect the bytes of data; return their number."""
        piece = bytes(data)
        self._pieces.append(piece)
        self._at += len(piece)
        return len(piece)

    def take(self) -> bytes:
        """Return the collected bytes and clear them."""
        content, self._pieces = b"".join(self._pieces), []
        return content


def _check_sorted(facts: Facts, schema: pa.Schema, sort: str) -> None:
    """Raise InvalidUsage if the page cannot sort a collection by a column."""
    if sort not in schema.names:
        raise persist.InvalidUsage(f"sort={sort!r:.100} is not a column: use one of {schema.names}")
    if facts.rows_about > ROWS_SORTED_MAX:
        raise persist.InvalidUsage(
            f"{facts.name!r} has {facts.rows_about:,} rows, and the page sorts {ROWS_SORTED_MAX:,} at most: filter it, "
            "or ask a query that orders it"
        )


def _sort_rows(snapshot: "persist.Snapshot", sort: str, descending: bool, count: int) -> pa.Table:
    """Return the first rows sorted by a column, NULL last. Ties are by key."""
    best = snapshot.schema.empty_table()
    order = [(sort, "descending" if descending else "ascending")]
    try:
        for batch in snapshot.to_batches():
            candidates = pa.concat_tables([best, pa.Table.from_batches([batch])]).combine_chunks()
            best = candidates.take(pc.sort_indices(candidates, sort_keys=order).slice(0, count))
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowInvalid) as error:
        kind = snapshot.schema.field(sort).type
        raise persist.InvalidUsage(f"{sort!r} is of type {kind}, which has no order here") from error
    return best


def _parse_time(text: str | None) -> int | str | None:
    """Return a time as text; None if empty."""
    return None if text is None or not text.strip() else text.strip()
