"""Any time of a long history, and what changed in a part of it: `history-50m`, with the whole history kept.

Our side is maintained while it is written, as a client with a background would do it. deltalake has one version for
each seal, so only sealed times are asked for. The space it takes is without the files of its change feed.
"""

import statistics
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

import persist
from benchmarks.harness import Job, Measure, Row, Side, alternate, duration, megabytes, times
from benchmarks.ours import COLLECTION, FRUGAL, read_at, read_changes, write_collection
from benchmarks.targets import net, same_rows
from benchmarks.workspace import Workspace, bytes_of, one_file
from persist.blob.layers.metered import MeteredBlob
from persist.blob.stores.file import FileBlob

SET = "history-50m"
TIMES = 20
COLUMNS = ["id", "name", "amount", "at"]


def maintained(work: Workspace, name: str = SET) -> str:
    """Return a set as a collection that was maintained while it was written."""

    def make(folder: Path) -> None:
        metered = MeteredBlob(FileBlob(folder))
        write_collection(work.data(name), metered, settings=FRUGAL, maintained=True)
        work.bytes_written[name] = bytes_written(metered)
        with persist.open(str(folder), settings=FRUGAL) as client:
            client.gc()

    return str(work.once(f"maintained-{name}", make))


def bytes_written(metered: MeteredBlob) -> int:
    """Return how much was sent to a store."""
    counts = metered.get_counts()
    return counts["set"].bytes + counts["create"].bytes


def _sealed(work: Workspace, name: str = SET) -> list[int]:
    """Return the positions of the seals as of which to read, in random order."""
    uppers = work.data(name).uppers
    count = max(3, min(TIMES, round(100 * TIMES * work.scale)))
    return [int(i) for i in np.random.default_rng(5).permutation(len(uppers))[:count]]


def anytime(work: Workspace, name: str = SET) -> list[Row]:
    """Snapshots at random times, against reading a Parquet file of each result."""
    location, seals = maintained(work, name), _sealed(work, name)
    as_of = [work.data(name).uppers[i] - 1 for i in seals]
    files = []
    for time, contents in zip(as_of, work.data(name).contents(as_of), strict=True):
        files.append(one_file(contents, work.folder / f"results-{name}" / f"{time}.parquet"))
    with persist.open(location, mode="read") as client:
        rows = client.load(COLLECTION)

        def ours(time: int) -> pa.Table:
            return rows.snapshot(time).to_arrow()

        mine, peer = [], []
        for time, file in zip(as_of, files, strict=True):
            theirs = partial(pq.read_table, file)
            assert same_rows(ours(time), theirs(), ["id"]), f"our contents as of {time} are wrong"
            taken = alternate([Side(partial(ours, time)), Side(theirs)], work.rounds, work.clock)
            mine.append(statistics.median(taken[0]))
            peer.append(statistics.median(taken[1]))
        measure = f"snapshot at {len(as_of)} random times, {name}, whole history kept"
        work.explain(measure, rows.snapshot(as_of[0]))
    return [
        Row(
            measure,
            "pyarrow read_table of one file of each result",
            ">= 0.5x in the median, >= 0.3x at worst",
            f"{duration(statistics.median(mine))} ({duration(min(mine))} to {duration(max(mine))})",
            duration(statistics.median(peer)),
            times([p / m for m, p in zip(mine, peer, strict=True)]) + " over times",
            work.memory_of(Job(read_at, [location, as_of])),
        )
    ]


def versions(work: Workspace) -> list[Row]:
    """The same times, against deltalake at the version of each; and the space that both take."""
    location, seals = maintained(work), _sealed(work)
    uppers, table = work.data(SET).uppers, work.delta(SET)
    with persist.open(location, mode="read") as client:
        rows = client.load(COLLECTION)

        def ours() -> None:
            for seal in seals:
                rows.snapshot(uppers[seal] - 1).to_arrow()

        def theirs() -> None:
            for seal in seals:
                _at_version(table, seal)

        for seal in seals[:3]:
            found = rows.snapshot(uppers[seal] - 1).to_arrow()
            assert same_rows(found, _at_version(table, seal), ["id"]), f"the peer finds other contents at seal {seal}"
        measure = f"snapshot at the same times, {SET}"
        units = len(seals)
        read = Measure(
            measure,
            f"deltalake at a version, {len(uppers):,} kept",
            "> 1x",
            Side(ours, units=units),
            [Side(theirs, "deltalake", units=units)],
        ).run(work.rounds, work.memory_of, work.clock)
    mine, peer = bytes_of(Path(location)), bytes_of(table, besides="_change_data")
    space = Row(
        f"space, {SET}, whole history kept",
        "deltalake, without its change feed",
        "> 1x",
        megabytes(mine),
        megabytes(peer),
        f"{peer / mine:.2f}x",
    )
    return [read, space]


def _at_version(table: Path, version: int) -> pa.Table:
    return DeltaTable(table, version=version).to_pyarrow_table()


def feed(work: Workspace) -> list[Row]:
    """The changes in 1% of the time range, against deltalake's change data feed of the same versions."""
    location, table, uppers = maintained(work), work.delta(SET), work.data(SET).uppers
    count = max(1, round(len(uppers) / 100))
    first = len(uppers) * 2 // 3
    lower, upper = uppers[first - 1], uppers[first + count - 1]
    with persist.open(location, mode="read") as client:
        rows = client.load(COLLECTION)

        def ours() -> pa.Table:
            return rows.changes(lower, upper).to_arrow()

        def theirs() -> pa.Table:
            return pa.table(DeltaTable(table).load_cdf(starting_version=first, ending_version=first + count - 1))

        # The peer knows no times between seals, and shows what comes of several changes of a key.
        assert same_rows(net(ours().drop_columns(["_time"])), net(_with_diffs(theirs())), [*COLUMNS, "_diff"]), (
            "the peer finds other changes"
        )
        measure = f"change feed of {count / len(uppers):.1%} of the time range, {SET}"
        work.explain(measure, rows.changes(lower, upper))
        job = Job(read_changes, [location, lower, upper])
        peer = [Side(theirs, "deltalake")]
        return [
            Measure(measure, "deltalake load_cdf", ">= 3x", Side(ours), peer, job).run(
                work.rounds, work.memory_of, work.clock
            )
        ]


def _with_diffs(changes: pa.Table) -> pa.Table:
    kind = changes["_change_type"].cast(pa.string())
    gone = pc.is_in(kind, pa.array(["delete", "update_preimage"]))
    diff = pc.if_else(gone, pa.scalar(-1, pa.int64()), pa.scalar(1, pa.int64()))
    rows = changes.select(COLUMNS).set_column(1, "name", changes["name"].cast(pa.string()))  # It may come as a view.
    return rows.append_column("_diff", diff)
