"""Made-up change histories: seeded, of any length, batch by batch, in bounded memory.

A history is a stream of *changes*: at a time, a key is inserted, updated or deleted. What a key holds is a pure
function of (seed, key, version, time of the change), so that the state behind the stream is three small arrays
(`_Keys`: is a key there, in which version, since when) and the value that a retraction must name can be computed again
at any moment. A change becomes one or two *updates*: -1 of the value that was, +1 of the value that is.

Changes are drawn in blocks of `BLOCK_ROWS` updates, whatever the batches are. What holds of each block:

- changes are in order of time, and those of one key follow each other: each finds what the one before it left;
- a change of an existing key draws from the keys born before *it*, in the same block or earlier;
- of two deletes in a row the second finds nothing to delete, and inserts: kinds are what the key allows.

`contents` does not look at diffs at all: the last change of a key decides. That makes it an oracle for those who sum.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[Any]  # of int64; numpy does not follow the types of sums and indices
Bools = npt.NDArray[Any]  # of bool
Skew = Literal["uniform", "zipf", "newest"]

BLOCK_ROWS = 1 << 20
ZIPF_EXPONENT = 1.1
NEWEST = 0.01  # The share of keys that is changed where only the newest are.
FIXED_BYTES = 16  # Of a record: the double and the timestamp; the rest is the string.
EPOCH_US = 1_767_225_600_000_000  # 2026-01-01, when time 0 was.
LETTERS = np.frombuffer(b"abcdefghijklmnop", np.uint8)


@dataclass(frozen=True)
class Batch:
    """What arrives together.

    Attributes:
        updates: key and value columns, `_time` and `_diff`, in no order that anybody may rely on.
        upper: seal to this after it; None if nothing became complete.
    """

    updates: pa.Table
    upper: int | None


@dataclass(frozen=True)
class Step:
    """The net effect of all times between two seals, for a store of rows that knows versions and no times.

    Attributes:
        upserts: rows, each with the key it belongs to, that are there from now on.
        deletes: a table of the keys that are not there any more; some may not have been there before either.
        upper: the times before this are complete with this step.
    """

    upserts: pa.Table
    deletes: pa.Table
    upper: int


@dataclass(frozen=True, kw_only=True)
class History:
    """A made-up change history; equal values make equal updates.

    Attributes:
        keys: how many keys there may ever be.
        rows: how many updates in all, to within 1.
        batch_count: how many batches they come in, uneven or of the same size.
        skew: which keys are changed: all alike, few of them most of the time, or the newest, whose ids are greatest.
        inserts, deletes: shares of changes that bring a key never seen before, while there is one, and that delete; the
            others update. A key that was deleted and is drawn again is inserted again, which takes from the latter two.
        loaded: how many keys are inserted before anything else happens.
        record_bytes: the size of a value: a double, a timestamp, and a string of the rest.
        texts: how many different strings there are; 0 for as many as values.
        late: the share of updates that arrive up to late_batches batches after their neighbours in time.
        seal_every: batches between seals. A seal waits for what is late.
        ticks: how many times a batch spans.
    """

    name: str = "history"
    keys: int
    rows: int
    batch_count: int
    uneven: bool = False
    skew: Skew = "uniform"
    inserts: float = 0.0
    deletes: float = 0.0
    loaded: int = 0
    record_bytes: int = 36
    texts: int = 0
    late: float = 0.0
    late_batches: int = 2
    seal_every: int = 1
    ticks: int = 1000
    seed: int = 1

    def __post_init__(self) -> None:
        if min(self.keys, self.rows, self.batch_count, self.seal_every, self.ticks) < 1:
            raise ValueError(f"{self}: keys, rows, batch_count, seal_every and ticks are at least 1")
        shares = (self.inserts, self.deletes, self.inserts + self.deletes, self.late)
        if not all(0 <= share <= 1 for share in shares):
            raise ValueError(f"{self}: inserts, deletes and late are shares from 0 to 1")
        if self.record_bytes <= FIXED_BYTES:
            raise ValueError(f"record_bytes={self.record_bytes} leaves nothing for the string: more than {FIXED_BYTES}")
        if self.skew not in ("uniform", "zipf", "newest"):
            raise ValueError(f'skew={self.skew!r} is not "uniform", "zipf" or "newest"')

    @property
    def key(self) -> dict[str, pa.DataType]:
        return {"id": pa.int64()}

    @property
    def value(self) -> dict[str, pa.DataType]:
        return {"name": pa.string(), "amount": pa.float64(), "at": pa.timestamp("us")}

    @property
    def end(self) -> int:
        """The upper after everything."""
        return self.batch_count * self.ticks

    @property
    def uppers(self) -> list[int]:
        """What is sealed to, in order."""
        return [upper for upper in map(self._upper_after, range(self.batch_count)) if upper is not None]

    def scaled(self, scale: float) -> "History":
        """Return a smaller history of the same kind; batches get fewer where they would come out tiny."""
        if scale == 1:
            return self
        rows = max(10, round(self.rows * scale))
        per_batch = min(2000, self.rows // self.batch_count)
        return replace(
            self,
            keys=max(5, round(self.keys * scale)),
            rows=rows,
            loaded=round(self.loaded * scale),
            texts=min(self.texts, rows),
            batch_count=max(1, min(self.batch_count, rows // per_batch)),
        )

    def batches(self) -> Iterator[Batch]:
        """Yield the batches in order. Memory: a block, a batch, and what is late."""
        late = _Late(self) if self.late else None
        for number, tables in enumerate(self._arrivals()):
            updates = pa.concat_tables(tables) if tables else self._rows(_no_changes())
            if late is not None:
                updates = late.delayed(number, updates)
            yield Batch(updates, self._upper_after(number))

    def contents(self, times: Sequence[int]) -> list[pa.Table]:
        """Return the true contents as of each of the times, sorted by key; from changes alone, no diff is summed."""
        order = sorted(range(len(times)), key=lambda i: times[i])
        found: list[pa.Table] = [None] * len(times)
        state = _Keys(self.keys)
        ahead = iter(self._changes())
        changes: _Changes | None = next(ahead, None)
        for i in order:
            while changes is not None and len(changes.time) and changes.time[-1] <= times[i]:
                state.apply(changes)
                changes = next(ahead, None)
            if changes is not None:
                seen = int(np.searchsorted(changes.time, times[i], side="right"))
                state.apply(changes.slice(0, seen))
                changes = changes.slice(seen, len(changes.time))
            found[i] = self._alive(state)
        return found

    def steps(self) -> Iterator[Step]:
        """Yield the net effect of each seal. Memory: a block, and the changes between two seals."""
        uppers = self.uppers
        waiting: list[_Changes] = []
        at = 0
        for changes in self._changes():
            while at < len(uppers) and len(changes.time) and changes.time[-1] >= uppers[at]:
                before = int(np.searchsorted(changes.time, uppers[at]))
                yield self._step([*waiting, changes.slice(0, before)], uppers[at])
                waiting, changes, at = [], changes.slice(before, len(changes.time)), at + 1
            waiting.append(changes)
        for upper in uppers[at:]:
            yield self._step(waiting, upper)
            waiting = []

    def _step(self, waiting: "list[_Changes]", upper: int) -> Step:
        changes = _joined(waiting)
        # The first of each key in reverse is its last change.
        _, last = np.unique(changes.key[::-1], return_index=True)
        net = changes.take(len(changes.key) - 1 - last)
        gone = ~net.inserts
        deleted = pa.table({"id": self._ids(net.key[gone])})
        return Step(self._columns(*(c[net.inserts] for c in (net.key, net.version, net.time))), deleted, upper)

    def _upper_after(self, number: int) -> int | None:
        """Return what batch number seals to: that, plus what may still be late, lies before it."""
        if number == self.batch_count - 1:
            return self.end
        complete = number + 1 - (self.late_batches if self.late else 0)
        return complete * self.ticks if complete > 0 and (number + 1) % self.seal_every == 0 else None

    @cached_property
    def _bounds(self) -> Ints:
        """Where each batch begins in the stream of updates, and where the last ends: int64[batch_count + 1]."""
        sizes = np.ones(self.batch_count)
        if self.uneven:
            # A few times larger or smaller than the median, as deliveries are.
            sizes = np.random.default_rng([self.seed, 1]).lognormal(0.0, 0.8, self.batch_count)
        bounds: Ints = np.round(np.concatenate([[0.0], np.cumsum(sizes)]) / sizes.sum() * self.rows).astype(np.int64)
        bounds[-1] = self.rows + 1  # The last change may overshoot by one update.
        return bounds

    def _arrivals(self) -> Iterator[list[pa.Table]]:
        """Yield the updates of each batch, as a list of tables, before lateness."""
        waiting: list[pa.Table] = []
        number = 0
        for changes in self._changes():
            rows = self._rows(changes)
            cuts = np.searchsorted(np.asarray(rows["_time"]), np.arange(number + 1, self.batch_count) * self.ticks)
            last = int(np.searchsorted(cuts, len(rows)))  # So many batches end within this block.
            for start, end in pairwise([0, *cuts[:last].tolist()]):
                waiting.append(rows.slice(start, end - start))
                yield waiting
                waiting, number = [], number + 1
            waiting.append(rows.slice(int(cuts[last - 1]) if last else 0))
        for _ in range(number, self.batch_count):
            yield waiting
            waiting = []

    def _changes(self) -> "Iterator[_Changes]":
        """Yield all changes, block by block."""
        chance = np.random.default_rng([self.seed, 0])
        state, done = _Keys(self.keys), 0
        while done < self.rows:
            changes = self._drawn(chance, state, min(BLOCK_ROWS, self.rows - done), done)
            state.apply(changes)
            done += int(changes.rows.sum())
            yield changes

    def _drawn(self, chance: np.random.Generator, state: "_Keys", count: int, done: int) -> "_Changes":
        """Draw count changes and keep as many as make that many updates; state is as of before them."""
        born = state.born + np.arange(count)
        fresh = (born < self.loaded) | (chance.random(count) < self.inserts)
        fresh[0] |= state.born == 0
        born_before = state.born + np.cumsum(fresh) - fresh
        fresh &= born_before < self.keys
        born_before = np.minimum(born_before, self.keys)
        # How popular a key is goes by when it was born.
        picked = _picked(chance.random(count), born_before, self.skew)
        key = np.where(fresh, born_before, picked)
        delete = chance.random(count) < (self.deletes / (1 - self.inserts) if self.inserts < 1 else 0.0)
        return self._timed(_linked(key, delete & ~fresh, state), count, done)

    def _timed(self, changes: "_Changes", rows: int, done: int) -> "_Changes":
        """Keep the changes that begin within so many updates, and stamp them with their times."""
        begins = np.cumsum(changes.rows) - changes.rows
        kept = changes.slice(0, int(np.searchsorted(begins, rows)))
        position = done + begins[: len(kept.key)]
        batch = np.searchsorted(self._bounds, position, side="right") - 1
        start, end = self._bounds[batch], self._bounds[batch + 1]
        time = batch * self.ticks + (position - start) * self.ticks // np.maximum(end - start, 1)
        return kept.stamped(time)

    def _rows(self, changes: "_Changes") -> pa.Table:
        """Return the updates that changes are, in their order."""
        ends = np.cumsum(changes.rows)
        total = int(ends[-1]) if len(ends) else 0
        key, version, since = (np.empty(total, np.int64) for _ in range(3))
        diff = np.ones(total, np.int64)
        old, new = (ends - changes.rows)[changes.retracts], (ends - 1)[changes.inserts]
        for column, was, becomes in [
            (key, changes.key, changes.key),
            (version, changes.old_version, changes.version),
            (since, changes.old_time, changes.time),
        ]:
            column[old] = was[changes.retracts]
            column[new] = becomes[changes.inserts]
        diff[old] = -1
        columns = self._columns(key, version, since)
        times = pa.array(np.repeat(changes.time, changes.rows))
        return columns.append_column("_time", times).append_column("_diff", pa.array(diff))

    def _alive(self, state: "_Keys") -> pa.Table:
        keys = np.flatnonzero(state.alive)
        return self._columns(keys, state.version[keys].astype(np.int64), state.time[keys]).sort_by("id")

    def _ids(self, key: Ints) -> pa.Array:
        """Return the ids of keys: a bijection. Neither age nor popularity follows their order, but for the newest."""
        if self.skew == "newest":
            return pa.array(key)
        factor = self.keys * 618 // 1000 | 1
        while np.gcd(factor, self.keys) != 1:
            factor += 2
        return pa.array((key * factor + self.seed) % self.keys)

    def _columns(self, key: Ints, version: Ints, time: Ints) -> pa.Table:
        """Return the records that keys hold in a version that came at a time."""
        mixed = _mixed(key * np.int64(1_000_003) + version, self.seed)
        amount = (mixed >> np.uint64(40)).astype(np.float64) / 4  # Quarters: sums of them are exact.
        # A tick is a second, and changes come at some moment within it.
        at = EPOCH_US + time * 1_000_000 + (mixed & np.uint64(0x7FFFF)).astype(np.int64)
        identity = mixed % np.uint64(self.texts) if self.texts else mixed
        columns = [
            self._ids(key),
            _texts(identity, self.record_bytes - FIXED_BYTES, self.seed),
            pa.array(amount),
            pa.array(at).view(pa.timestamp("us")),
        ]
        return pa.Table.from_arrays(columns, schema=pa.schema({**self.key, **self.value}))


@dataclass(frozen=True)
class _Changes:
    """A block of changes as columns: what each finds (retracts, old_*) and what it leaves (inserts, version, time)."""

    key: Ints
    retracts: Bools
    inserts: Bools
    old_version: Ints
    version: Ints
    previous: Ints  # The position of the change of the same key before it in this block, or -1.
    old_time: Ints
    time: Ints

    @property
    def rows(self) -> Ints:
        """How many updates each of them is: 1 or 2."""
        rows: Ints = self.retracts.astype(np.int64) + self.inserts
        return rows

    def take(self, indices: Any) -> "_Changes":
        return _Changes(*(getattr(self, name)[indices] for name in self.__dataclass_fields__))

    def slice(self, start: int, end: int) -> "_Changes":
        return self.take(slice(start, end))

    def stamped(self, time: Ints) -> "_Changes":
        linked = self.previous >= 0
        return replace(self, time=time, old_time=np.where(linked, time[self.previous], self.old_time))


def _no_changes() -> _Changes:
    none, no = np.empty(0, np.int64), np.empty(0, np.bool_)
    return _Changes(none, no, no, none, none, none, none, none)


def _joined(blocks: list[_Changes]) -> _Changes:
    names = _Changes.__dataclass_fields__
    return _Changes(*(np.concatenate([getattr(block, name) for block in blocks or [_no_changes()]]) for name in names))


class _Keys:
    """What every key holds: whether it is there, in which version, since when."""

    def __init__(self, count: int) -> None:
        self.alive = np.zeros(count, np.bool_)
        self.version = np.zeros(count, np.int32)
        self.time = np.zeros(count, np.int64)
        self.born = 0

    def apply(self, changes: _Changes) -> None:
        """Let changes happen. numpy assigns in order, so the last of a key stays."""
        self.alive[changes.key] = changes.inserts
        self.version[changes.key] = changes.version
        self.time[changes.key] = changes.time
        if len(changes.key):
            self.born = max(self.born, int(changes.key.max()) + 1)


def _linked(key: Ints, delete: Bools, state: _Keys) -> _Changes:
    """Find out what each change of a key meets, given what the state and the changes before it left.

    A key that is there is deleted if that is asked for and updated otherwise; one that is not is inserted. So after a
    change that does not ask for a delete the key is there, and within a series of deletes it is there every other time.
    """
    count = len(key)
    order = np.argsort(key, kind="stable")
    sorted_key, asked = key[order], delete[order]
    at = np.arange(count)
    first = np.concatenate([[True], sorted_key[1:] != sorted_key[:-1]])
    group = np.maximum.accumulate(np.where(first, at, 0))
    # The last position up to here that leaves the key there for sure; before the group begins: none.
    sure = np.maximum.accumulate(np.where(asked, -1, at))
    within = sure >= group
    initially = state.alive[sorted_key]
    after = np.where(within, (at - sure) % 2 == 0, initially ^ ((at - group + 1) % 2 == 1))
    before = np.where(first, initially, np.concatenate([[False], after[:-1]]))
    old_version = state.version[sorted_key] + (at - group)
    previous = np.where(first, -1, np.concatenate([[-1], order[:-1]]))
    back = np.empty(count, np.int64)
    back[order] = at
    linked = _Changes(
        sorted_key, before, after, old_version, old_version + 1, previous, state.time[sorted_key], np.zeros_like(at)
    )
    return linked.take(back)


def _picked(chance: npt.NDArray[Any], count: Ints, skew: Skew) -> Ints:
    """Return for each a number in [0, count), all alike, by a power law or near the end; 0 where count is 0."""
    most = np.maximum(count, 1)
    if skew == "uniform":
        drawn = chance * most
    elif skew == "newest":
        drawn = most - 1 - np.floor(chance * np.maximum(most * NEWEST, 1))
    else:
        # The inverse of the distribution function of x ** -s on [1, count + 1).
        power = 1 - ZIPF_EXPONENT
        drawn = ((1 + most.astype(np.float64)) ** power * chance + (1 - chance)) ** (1 / power) - 1
    picked: Ints = np.minimum(drawn.astype(np.int64), most - 1)
    return picked


def _mixed(values: npt.NDArray[Any], seed: int) -> npt.NDArray[Any]:
    """Return 64 well-mixed bits for each value: the finalizer of splitmix64."""
    salt = np.uint64((seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**64)
    mixed = values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + salt
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _texts(identity: npt.NDArray[Any], length: int, seed: int) -> pa.Array:
    """Return a string of that many letters for each identity; 4 bits of each letter are random."""
    words = -(-length // 8)
    letters = np.empty((len(identity), words * 8), np.uint8)
    for word in range(words):
        drawn = _mixed(identity, seed + 1000 + word).view(np.uint8).reshape(-1, 8)
        letters[:, word * 8 : word * 8 + 8] = LETTERS[drawn & 15]
    data = np.ascontiguousarray(letters[:, :length])
    offsets = np.arange(0, (len(identity) + 1) * length, length, dtype=np.int64)
    if int(offsets[-1]) >= 2**31:
        raise ValueError(f"a block of {int(offsets[-1])} bytes of strings is too large for Arrow: use smaller records")
    return pa.StringArray.from_buffers(len(identity), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data))


class _Late:
    """Holds back a share of the updates of each batch and hands them out with later ones."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._chance = np.random.default_rng([history.seed, 2])
        self._waiting: dict[int, list[pa.Table]] = {}

    def delayed(self, number: int, updates: pa.Table) -> pa.Table:
        """Return what arrives with batch number: what is not late of updates, and what is of earlier ones."""
        last = self._history.batch_count - 1
        lag = self._chance.integers(1, self._history.late_batches, len(updates), endpoint=True)
        lag[self._chance.random(len(updates)) >= self._history.late] = 0
        arrives = np.minimum(number + lag, last)
        for later in range(number + 1, min(number + self._history.late_batches, last) + 1):
            self._waiting.setdefault(later, []).append(updates.filter(pa.array(arrives == later)))
        return pa.concat_tables([updates.filter(pa.array(arrives == number)), *self._waiting.pop(number, [])])
