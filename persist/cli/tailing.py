"""Following a collection on the screen."""

import sys

import pyarrow as pa

import persist
from persist.cli.rows_out import JsonLines
from persist.cli.text import cell, say, tell


def follow(
    collection: "persist.Collection", after: int | str | None, *, contents: bool, until: int | str | None, format: str
) -> None:
    """Print updates as they are sealed, until all before a time were, or the collection is complete."""
    end = None if until is None else collection.as_bound("until", until)
    if end is not None and after is not None and not contents and collection.as_time("after", after) + 1 >= end:
        raise persist.InvalidUsage(f"no time is after {after} and before {until}: give --until a later one")
    with _begun(collection, after, contents) as listen:
        printed = False
        for progress in listen:
            _print(progress.updates, format, with_head=not printed)
            printed = True
            upper = progress.upper.time
            if format == "table":
                tell(f"-- complete before {'ever' if upper is None else upper}")
            sys.stdout.flush()
            if end is not None and progress.upper >= persist.Antichain(end):
                return


def _begun(collection: "persist.Collection", after: int | str | None, contents: bool) -> "persist.Listen":
    if contents:
        return collection.subscribe(after, timeout_s=None)
    if after is not None:
        return collection.listen(after)
    upper = collection.upper.time
    return collection.listen(None if not upper else upper - 1)


def _print(updates: pa.Table, format: str, *, with_head: bool) -> None:
    if format == "json":
        lines = JsonLines(sys.stdout.buffer)
        for batch in updates.to_batches():
            lines.write_batch(batch)
    elif format == "csv":
        import pyarrow.csv as csv

        sys.stdout.flush()
        csv.write_csv(updates, sys.stdout.buffer, csv.WriteOptions(include_header=with_head))
    else:
        names = [name for name in updates.column_names if name not in ("_time", "_diff")]
        for row in updates.to_pylist():
            sign = f"{row['_diff']:+d}"
            say(f"{row['_time']}  {sign:>3}  " + "  ".join(f"{name}={cell(row[name])}" for name in names))
