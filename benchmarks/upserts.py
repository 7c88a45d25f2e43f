"""Upserts: rows by key into 1M rows of 6 columns, half of them updates, against deltalake's merge of the same rows.

Both do the same upserts, one side after the other, and hold the same rows at the end. Ours are durable and sealed. Then
the two policies: what a seal costs that only appends, and what reading costs what it left.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

import persist
from benchmarks.harness import Measure, Row, Side
from benchmarks.ours import QUIET
from benchmarks.workspace import Workspace
from tests.support.resolving import resolve_events

KEYS = 1_000_000
KEY = {"id": pa.int64()}
VALUE = {"a": pa.int64(), "b": pa.float64(), "c": pa.int64(), "d": pa.string(), "e": pa.bool_()}
IN_A_ROW, SMALL = 200, 1000


def upserts(work: Workspace) -> list[Row]:
    """Upsert 10k and 100k rows, in an open client and as a client's first, and many small ones in a row."""
    count = max(10_000, round(KEYS * work.scale))
    rows = []
    for size, open_reach, first_reach in ((10_000, ">= 20x", ">= 5x"), (100_000, ">= 5x", ">= 3x")):
        size = max(100, round(size * work.scale))
        rows.append(_merge(work, count, size, open_reach, is_first=False))
        rows.append(_merge(work, count, size, first_reach, is_first=True))
    rows.append(_in_a_row(work, count))
    return [*rows, *_policies(work, count)]


def _batches(count: int, size: int) -> Iterator[pa.Table]:
    """Yield rows to upsert, for ever: half of their keys, which are even, are there."""
    chance = np.random.default_rng(size)
    while True:
        there = chance.choice(count, size // 2, replace=False) * 2
        new = chance.choice(count, size - size // 2, replace=False) * 2 + 1
        yield _rows(np.concatenate([there, new]), chance)


def _rows(keys: np.ndarray, chance: np.random.Generator) -> pa.Table:
    names = pa.array([f"name {number}" for number in range(5000)])
    return pa.table(
        {
            "id": keys,
            "a": chance.integers(0, 1000, len(keys)),
            "b": chance.random(len(keys)),
            "c": keys * 7 % 1000,
            "d": names.take(pa.array(keys % 5000)),
            "e": keys % 2 == 0,
        }
    )


def _made(client: persist.Client, count: int, policy: persist.Keyed | None) -> persist.Collection:
    made = client.create_or_load("rows", key=KEY, value=VALUE, keyed=policy)
    rows = _rows(np.arange(count) * 2, np.random.default_rng(1))
    (made.write(rows, time=0, seal=1) if policy is None else made.upsert(rows, time=0, seal=1)).result()
    return made


def ten_in_a_row(place: str, scale: float) -> None:
    """Upsert ten batches of 100,000, each made just before."""
    batches = _batches(round(KEYS * scale), round(100_000 * scale))
    with persist.open(place, settings=QUIET) as client:
        rows = client.load("rows")
        for upper in range(1, 11):
            rows.upsert(next(batches), time=upper, seal=upper + 1).result()


def _merged(table: DeltaTable, rows: pa.Table) -> None:
    merge = table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


class _Both:
    """The same upserts of both sides: each has a stream of batches of its own, from one seed."""

    def __init__(self, folder: Path, count: int, size: int) -> None:
        self.ours, self.theirs = (folder / name for name in ("ours", "delta"))
        self._batches = [_batches(count, size) for _ in range(2)]
        self._upper = 1
        write_deltalake(self.theirs, _rows(np.arange(count) * 2, np.random.default_rng(1)))

    def upsert(self, rows: persist.Collection) -> None:
        rows.upsert(next(self._batches[0]), time=self._upper, seal=self._upper + 1).result()
        self._upper += 1

    def merge(self, table: DeltaTable) -> None:
        _merged(table, next(self._batches[1]))

    def check(self) -> None:
        with persist.open(str(self.ours), mode="read") as client:
            found = client.load("rows").snapshot().to_arrow()
        expected = DeltaTable(self.theirs).to_pyarrow_table().select(found.column_names)
        assert found.sort_by("id") == expected.cast(found.schema).sort_by("id"), "both sides hold other rows"


def _merge(work: Workspace, count: int, size: int, reach: str, *, is_first: bool) -> Row:
    both = _Both(work.folder / f"upserts-{size}-{is_first}", count, size)
    how = "as a client's first" if is_first else "in an open client"
    with persist.open(str(both.ours), settings=QUIET) as client:
        rows = _made(client, count, persist.Keyed())
        table = DeltaTable(both.theirs)

        def opened() -> None:
            with persist.open(str(both.ours), settings=QUIET) as other:
                both.upsert(other.load("rows"))

        ours: Callable[[], None] = opened if is_first else lambda: both.upsert(rows)
        theirs = (lambda: both.merge(DeltaTable(both.theirs))) if is_first else (lambda: both.merge(table))
        name = f"upsert of {size:,} into {count:,}, {how}"
        row = Measure(name, "deltalake merge", reach, Side(ours), [Side(theirs, "deltalake")]).run(
            work.rounds, work.memory_of, work.clock
        )
    both.check()
    return row


def _in_a_row(work: Workspace, count: int) -> Row:
    times = max(5, round(IN_A_ROW * work.scale))
    both = _Both(work.folder / "upserts-in-a-row", count, SMALL)
    with persist.open(str(both.ours), settings=persist.Settings()) as client:
        rows, table = _made(client, count, persist.Keyed()), DeltaTable(both.theirs)

        def ours() -> None:
            for _ in range(times):
                both.upsert(rows)

        def theirs() -> None:
            for _ in range(times):
                both.merge(table)

        name = f"{times} upserts of {SMALL:,} in a row, compacting, each"
        sides = [Side(theirs, "deltalake", units=times)]
        row = Measure(name, "deltalake merge", ">= 25x", Side(ours, units=times), sides).run(1, work.memory_of)
    both.check()
    return row


def _policies(work: Workspace, count: int) -> list[Row]:
    size, found = max(100, count // 10), []
    background = persist.Keyed(resolve="background")
    folder = work.folder / "upserts-policies"
    with (
        persist.open(str(folder / "keyed"), settings=QUIET) as client,
        persist.open(str(folder / "plain"), settings=QUIET) as other,
    ):
        rows, plain = _made(client, count, background), _made(other, count, None)
        chance, uppers = np.random.default_rng(9), {"ours": 1, "plain": 1}
        batch = _rows(chance.choice(count, size, replace=False) * 2, chance)

        def ours() -> None:
            rows.upsert(batch, time=uppers["ours"], seal=uppers["ours"] + 1).result()
            uppers["ours"] += 1

        def theirs() -> None:
            plain.write(batch, time=uppers["plain"], seal=uppers["plain"] + 1).result()
            uppers["plain"] += 1

        name = f"append and seal of {size:,} events, resolved in the background"
        found.append(
            Measure(name, "plain write", ">= 0.9x", Side(ours), [Side(theirs, "plain write")]).run(
                work.rounds, work.memory_of, work.clock
            )
        )
    with (
        persist.open(str(folder / "left"), settings=QUIET) as client,
        persist.open(str(folder / "done"), settings=QUIET) as other,
    ):
        left, done = _made(client, count, background), _made(other, count, background)
        for each in (left, done):
            resolve_events(each)
            each.upsert(batch, time=1, seal=2).result()
        resolve_events(done)
        assert left.snapshot().to_arrow().sort_by("id") == done.snapshot().to_arrow().sort_by("id"), "they differ"
        name = f"snapshot of {count:,} with {size:,} superseded and unresolved"
        sides = [Side(lambda: done.snapshot().to_arrow(), "resolved")]
        mine = Side(lambda: left.snapshot().to_arrow())
        found.append(
            Measure(name, "the same, resolved", ">= 0.5x", mine, sides).run(work.rounds, work.memory_of, work.clock)
        )
    return found
