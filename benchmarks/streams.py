"""Small commits: append and seal of 100 rows, one after the other; and `micro`, 100,000 batches of 10 rows in a stream.

Ours are durable (fsync of file and folder). deltalake and pyiceberg append the same rows, `_time` and `_diff` among
them. They take so long for each batch that they get only the first batches of `micro`, and we the same for the ratio.
"""

import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

import persist
from benchmarks.harness import Job, Measure, Row, Side
from benchmarks.ours import COLLECTION, QUIET, write_micro, write_stream
from benchmarks.targets import iceberg_table, net, read_iceberg, same_rows
from benchmarks.workspace import Workspace

APPENDS, APPEND_ROWS = 50, 100
PREFIX = 200
ORDER = ["id", "name", "_time", "_diff"]


def append(work: Workspace) -> list[Row]:
    """Append and seal 100 rows, waiting for each to be durable, against deltalake."""
    updates = pa.concat_tables([batch.updates for batch in work.data("micro").batches()]).slice(0, APPEND_ROWS)
    columns = updates.drop_columns(["_time", "_diff"])
    data, location, table = work.data("micro"), str(work.folder / "append"), work.folder / "append-delta"
    appends = max(5, min(APPENDS, round(APPENDS * 100 * work.scale)))
    write_deltalake(table, columns)
    with persist.open(location, settings=QUIET) as client:
        rows = client.create_or_load(COLLECTION, key=data.key, value=data.value)
        next_time = [0]

        def ours() -> None:
            for _ in range(appends):
                time = next_time[0]
                next_time[0] += 1
                stamped = updates.set_column(4, "_time", pa.repeat(pa.scalar(time, pa.int64()), len(updates)))
                rows.write(stamped, seal=time + 1).result()

        def theirs() -> None:
            for _ in range(appends):
                write_deltalake(table, columns, mode="append")

        measure = Measure(
            f"append and seal of {len(updates)} rows, durable, each",
            "deltalake append",
            ">= 3x",
            Side(ours, units=appends),
            [Side(theirs, "deltalake", units=appends)],
        )
        row = measure.run(work.rounds, work.memory_of, work.clock)
        expected = appends * (work.rounds + 1) * len(updates)
        assert rows.snapshot(form="diff").to_arrow()["_diff"].to_numpy().sum() == expected, "our rows are not all there"
        assert DeltaTable(table).to_pyarrow_table().num_rows == expected + len(columns), "the peer lacks rows"
        return [row]


def micro(work: Workspace) -> list[Row]:
    """The stream of tiny batches: each a write and seal of ours, without waiting, and an append of theirs."""
    data = work.data("micro")
    batches = list(islice(data.batches(), max(10, min(PREFIX, len(data.uppers) // 10))))
    ours, delta, iceberg = (work.folder / f"micro-{name}" for name in ("ours", "delta", "iceberg"))
    tables: dict[str, Any] = {}

    def clear(folder: Path) -> Callable[[], None]:
        return lambda: shutil.rmtree(folder, ignore_errors=True)

    def new_iceberg() -> None:
        clear(iceberg)()
        tables["iceberg"] = iceberg_table(iceberg, batches[0].updates.schema)

    def to_delta() -> None:
        for batch in batches:
            write_deltalake(delta, batch.updates, mode="append")

    def to_iceberg() -> None:
        for batch in batches:
            tables["iceberg"].append(batch.updates)

    count = len(batches)
    side = Side(lambda: write_stream(data, str(ours), batches), before=clear(ours), units=count)
    deltalake = Side(to_delta, "deltalake", before=clear(delta), units=count)
    pyiceberg = Side(to_iceberg, "pyiceberg", before=new_iceberg, units=count)
    rows = [
        Measure(f"micro, the first {count} batches, each", f"{peer.name} append", ">= 20x", side, [peer]).run(
            rounds, work.memory_of
        )
        # pyiceberg takes a minute for them.
        for peer, rounds in [(deltalake, work.rounds), (pyiceberg, max(1, work.rounds // 3))]
    ]
    expected = pa.concat_tables([batch.updates for batch in batches])
    with persist.open(str(ours), mode="read") as client:
        found = client.load(COLLECTION).changes(0, batches[-1].upper or 0).to_arrow()
    assert same_rows(found, net(expected), ORDER), "we hold other updates"
    assert same_rows(DeltaTable(delta).to_pyarrow_table(), expected, ORDER), "deltalake holds other updates"
    assert same_rows(read_iceberg(iceberg), expected, ORDER), "pyiceberg holds other updates"
    return [*rows, _whole_stream(work)]


def _whole_stream(work: Workspace) -> Row:
    """Our rate over all of it, which the peers would take an hour and more for."""
    data, location = work.data("micro"), work.folder / "micro-whole"
    batches = list(data.batches())
    whole = Measure(
        f"micro, all {len(batches):,} batches, each",
        "-",
        "-",
        Side(
            lambda: write_stream(data, str(location), batches),
            before=lambda: shutil.rmtree(location, ignore_errors=True),
            units=len(batches),
        ),
        [Side(lambda: None)],
        Job(write_micro, [str(work.folder / "micro-memory"), work.scale]),
    ).run(max(1, work.rounds // 3), work.memory_of)
    return Row(whole.measure, "-", "-", whole.ours, memory=whole.memory)
