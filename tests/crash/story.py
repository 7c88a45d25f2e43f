"""Calls to make on a location, and what they come to by the model of all suites (`tests/model.py`).

An `Op` is data, so that it can be sent between processes, be made again, and be applied to a `Model`. What it
writes follows from its number: row i of operation n has the key `n * ROWS_MAX + i`. So the contents of a
collection tell which operations they come from, whether all of each is there, and whether any is there twice.
Besides, it writes a *ghost* with the key `-1 - n`, which is there at the time of the operation only: at the next time
it is retracted. So there is something to compact. In keyed collections the same comes about by upserts and a deletion.

A client applies what it is asked in call order, and commits groups of it atomically. After a crash a location must
therefore hold a *prefix* of what its last client was asked for, with all that was acknowledged in it.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

import persist
import persist.log.part_lists
import persist.replica.checkpoint
import persist.replica.directory
from persist.codecs import encode_parts
from persist.settings import Tuning
from tests.model import Collection, contents

ROWS_MAX = 1_000_000
LARGE_ROWS = 2_500  # About 100 KB as Arrow, so it is uploaded; four parts at PART_BYTES.
PART_BYTES = 8 << 10
# Those that are not plain take what is written as events, in each of the two ways to resolve them.
KEYED = {"dates": persist.Keyed(resolve="background"), "figs": persist.Keyed()}
NAMES = ("apples", "pears", "plums", *KEYED)
KEY, VALUE = {"k": pa.int64()}, {"v": pa.string()}

Kind = Literal["create", "write", "multi", "seal", "allow_compaction", "evolve", "destroy", "compact", "gc"]
UNLOGGED: tuple[Kind, ...] = ("compact", "gc")  # They change nothing that a reader sees.


class Op(msgspec.Struct, frozen=True):
    """One call.

    Attributes:
        number: unique in a location.
        names: the collections concerned; none for "gc".
        time: of the updates that are written; the new upper or since of "seal" and "allow_compaction".
        rows: how many of them are written to each collection.
        upper: what a "multi" also seals its first collection to; -1 for no seal.
    """

    number: int
    kind: Kind
    names: tuple[str, ...] = ()
    time: int = 0
    rows: int = 0
    upper: int = -1

    @property
    def token(self) -> str:
        """What makes a repetition of this write harmless."""
        return f"operation-{self.number}"

    @property
    def column(self) -> str:
        """What an "evolve" adds; its default is the number, which all rows have there."""
        return f"x{self.number}"


class Held(msgspec.Struct):
    """What one collection must hold.

    Attributes:
        state: with the since that was asked for.
        since_seen: the one that was last seen, which may be less while a hold is live.
        updates: (operation, "rows" or "ghost", time, diff): all rows of an operation count as one record.
    """

    state: Collection = msgspec.field(default_factory=Collection)
    since_seen: int = 0
    updates: list[tuple[int, str, int, int]] = msgspec.field(default_factory=list)

    def copy(self) -> "Held":
        return Held(self.state, self.since_seen, list(self.updates))

    def step(self, kind: str, argument: Any) -> None:
        """Do one step of a commit."""
        self.state = self.state.after(kind, argument)
        if kind == "write":
            self.updates += argument

    def as_of(self, time: int) -> dict[Any, int]:
        """Return the number of rows, and of ghosts, by operation."""
        return contents(self.updates, time)


@dataclass
class Model:
    """What a location must hold, by collection name."""

    collections: dict[str, Held] = field(default_factory=dict)

    def apply(self, op: Op) -> None:
        """Account for one valid call."""
        if op.kind == "create":
            self.collections.setdefault(op.names[0], Held())
        elif op.kind == "destroy":
            del self.collections[op.names[0]]
        elif op.kind in ("seal", "allow_compaction"):
            self.collections[op.names[0]].step(op.kind, op.time)
        elif op.kind == "evolve":
            held = self.collections[op.names[0]]
            held.step("evolve", ("add", op.column, held.state.version))
        elif op.kind in ("write", "multi"):
            self._write(op)

    def _write(self, op: Op) -> None:
        if any(op.token in self.collections[name].state.tokens for name in op.names):
            return  # It was done before.
        n, time = op.number, op.time
        for name in op.names:
            updates = [(n, "rows", time, op.rows), (n, "ghost", time, 1), (n, "ghost", time + 1, -1)]
            self.collections[name].step("write", updates)
            self.collections[name].step("token", op.token)
        if op.upper >= 0:
            self.collections[op.names[0]].step("seal", op.upper)

    def after(self, ops: list[Op]) -> "Model":
        """Return the model after more calls; this one stays as it is."""
        model = Model({name: held.copy() for name, held in self.collections.items()})
        for op in ops:
            model.apply(op)
        return model

    def latest(self) -> int:
        """Return a time that no frontier and no update is beyond by more than the generator's steps."""
        return max((max(held.state.upper, held.state.since) for held in self.collections.values()), default=0)


def random_ops(seed: int, model: Model, first_number: int) -> Iterator[Op]:
    """Yield valid calls without end, given what the location holds; the model is kept up to date with them."""
    chance = random.Random(seed)
    for number in range(first_number, first_number + ROWS_MAX):
        op = _random_op(chance, model, number)
        model.apply(op)
        yield op


def _random_op(chance: random.Random, model: Model, number: int) -> Op:
    missing = [name for name in NAMES if name not in model.collections]
    if missing and (len(missing) == len(NAMES) or chance.random() < 0.3):
        return Op(number, "create", (chance.choice(missing),))
    name = chance.choice([name for name in NAMES if name in model.collections])
    plain = [name for name in model.collections if name not in KEYED]
    held = model.collections[name]
    beyond = held.state.upper + chance.randrange(4)
    pick = chance.random()
    if pick < 0.36:
        return Op(number, "write", (name,), beyond, chance.randint(1, 5))
    if pick < 0.46:
        return Op(number, "write", (name,), beyond, LARGE_ROWS)
    if pick < 0.65 and plain:
        names = tuple(chance.sample(sorted(plain), k=len(plain)))
        time = max(model.collections[n].state.upper for n in names) + chance.randrange(4)
        rows = chance.choice([1, 3, LARGE_ROWS])
        return Op(number, "multi", names, time, rows, time + 1 if chance.random() < 0.5 else -1)
    if pick < 0.80:
        return Op(number, "seal", (name,), beyond)
    if pick < 0.87:
        since = held.state.upper - chance.randrange(3) - (name in KEYED)  # Which keep the last time that is resolved.
        return Op(number, "allow_compaction", (name,), max(held.state.since, since))
    if pick < 0.89 and sum(n for _, what, _, n in held.updates if what == "rows") > 2 * LARGE_ROWS:
        return Op(number, "destroy", (name,))
    if pick < 0.91:
        return Op(number, "evolve", (name,))
    if pick < 0.94:
        return Op(number, "gc")
    return Op(number, "compact", (name,))


def updates_of(op: Op) -> Any:
    """Return what an operation writes to each of its collections: tuples if it is little, a table if it is much."""
    keys = np.arange(op.rows) + op.number * ROWS_MAX
    # Random, because what Parquet makes small would not fill several parts.
    text = np.random.default_rng(op.number).bytes(op.rows * 8).hex()
    values = [text[i * 16 : i * 16 + 16] for i in range(op.rows)]
    ghost = -1 - op.number
    if op.rows < 100:
        rows = [((int(k), v), op.time, 1) for k, v in zip(keys, values, strict=True)]
        return [*rows, ((ghost, "ghost"), op.time, 1), ((ghost, "ghost"), op.time + 1, -1)]
    ones = np.ones(op.rows, dtype=np.int64)
    return pa.table(
        {
            "k": np.append(keys, [ghost, ghost]),
            "v": [*values, "ghost", "ghost"],
            "_time": np.append(ones * op.time, [op.time, op.time + 1]),
            "_diff": np.append(ones, [1, -1]),
        }
    )


def events_of(op: Op) -> pa.Table:
    """Return the events that come to the same updates."""
    data = updates_of(op)
    if not isinstance(data, pa.Table):
        columns = list(zip(*((k, v, time, diff) for (k, v), time, diff in data), strict=True))
        data = pa.table(dict(zip(["k", "v", "_time", "_diff"], columns, strict=True)))
    return data.drop_columns(["_diff"]).append_column("_deleted", pa.array(data["_diff"].to_numpy() < 0))


class Teller:
    """Makes calls with one client, and knows the collections by name."""

    def __init__(self, client: persist.Client) -> None:
        self._client = client
        self._handles: dict[str, persist.Collection] = {}

    def ask(self, op: Op) -> "persist.CommitFuture | None":
        """Make a call; return its future, or None if it was over when it returned."""
        if op.kind == "create":
            keyed = KEYED.get(op.names[0])
            self._handles[op.names[0]] = self._client.create_or_load(op.names[0], key=KEY, value=VALUE, keyed=keyed)
        elif op.kind == "multi":
            with self._client.multi_write(token=op.token) as multi:
                for name in op.names:
                    multi.write(self.collection(name), updates_of(op))
                if op.upper >= 0:
                    multi.seal(self.collection(op.names[0]), op.upper)
        elif op.kind == "gc":
            self._client.gc()
        else:
            return self._ask_one(op, self.collection(op.names[0]))
        return None

    def _ask_one(self, op: Op, collection: persist.Collection) -> "persist.CommitFuture | None":
        if op.kind == "write" and op.names[0] in KEYED:
            return collection.upsert(events_of(op), token=op.token)
        if op.kind == "write":
            return collection.write(updates_of(op), token=op.token)
        if op.kind == "seal":
            return collection.seal(op.time)
        if op.kind == "allow_compaction":
            return collection.allow_compaction(op.time)
        if op.kind == "evolve":
            # Who evolves knows the newest schema; who writes goes on with that of the creation, and is lifted.
            newest = self._client.load(op.names[0])
            newest.evolve(add={op.column: pa.int64()}, defaults={op.column: op.number})
            return None
        if op.kind == "destroy":
            del self._handles[op.names[0]]
            return collection.destroy()
        assert op.kind == "compact"
        if op.names[0] in KEYED:
            collection.resolve()
        collection.compact()
        return None

    def collection(self, name: str) -> persist.Collection:
        """Return the handle of a collection that exists, with the schema that it was created with."""
        if name not in self._handles:
            self._handles[name] = self._client.create_or_load(name, key=KEY, value=VALUE, keyed=KEYED.get(name))
        return self._handles[name]


def small_policy() -> Tuning:
    """Return a policy under which a short story is enough for all that compaction does."""
    return Tuning(
        keyframe_rows_min=3,
        keyframe_fraction=0.1,
        merge_runs=2,
        inline_runs=3,
        inline_bytes=2000,
        part_bytes=PART_BYTES,
    )


def make_everything_small() -> None:
    """Set sizes so that a short story has many parts, part lists, checkpoints and state objects. For this process."""
    sizes = encode_parts.__kwdefaults__
    assert sizes is not None
    assert {"part_bytes_target", "row_group_rows"} <= sizes.keys()
    sizes.update(part_bytes_target=PART_BYTES, row_group_rows=256)
    for module, name, size in (
        (persist.log.part_lists, "PARTS_INLINE_MAX", 2),
        (persist.replica.checkpoint, "INTERVAL", 4),
        (persist.replica.checkpoint, "STORED_PENDING_MAX", 3),
        (persist.replica.directory, "INLINE_BYTES_MAX", 100),
    ):
        assert hasattr(module, name), f"{module.__name__} has no {name} any more"
        setattr(module, name, size)
