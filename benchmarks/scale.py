"""What an operation costs as that grows which it does not touch: `python -m benchmarks.scale`.

    python -m benchmarks.scale [--parts N …] [--collections N …] [--plot FILE] | --spark

Collections of very many parts are made up: descriptors without blobs, of one keyframe whose parts follow each other in
key, and 50 parts of history. Locations of very many collections are made up, too: pages of a directory, whose entries
differ in ids and names alone. Each line has the CPU seconds of an operation at each size and the exponent: the slope of
the line through the logarithms of both. An operation that a user waits for should have one of 0.2 at most in the size
of what it does not touch; those that look at all parts, such as making slices of all, are marked, and should have 1.
"""

import argparse
import gc
import hashlib
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import persist
from benchmarks.directory import CountingBlob
from benchmarks.harness import duration
from persist.blob.protocol import Blob, MemoryBlob
from persist.codecs.part.part import Part
from persist.core.log import kinds
from persist.core.log.fields import Keyframe
from persist.core.log.framing import FORMAT, decode_framed, encode_framed, make_pointer, store_framed
from persist.core.log.keys import make_checkpoint_key, make_directory_prefix, make_state_prefix
from persist.core.log.records import strip_part_list
from persist.core.state_rules.collection_rules import apply_step
from persist.core.state_rules.contents import CollectionState
from persist.engine.follow import directory
from persist.engine.follow.checkpoint import STORED_PENDING_MAX, build_checkpoint
from persist.engine.follow.directory_pages import Writing
from persist.engine.follow.state_objects import StateLevel, StateObject, make_levels
from persist.engine.read.lookups.lookup import Lookup
from persist.engine.read.merging import slice_snapshot
from persist.engine.read.planning.snapshot_plan import plan_snapshot

PARTS = (100, 1_000, 10_000)
COLLECTIONS = (10, 1_000, 100_000)
TAIL = 50  # Parts of the history.
ROWS = 600_000  # Of each part.
ROUNDS = 5
SEALS = 1600
QUIET = persist.Settings(background=False)


@dataclass
class Curve:
    """CPU seconds of an operation at each size, or bytes; touches_all says that it looks at all there is."""

    name: str
    touches_all: bool = False
    are_bytes: bool = False
    costs: dict[int, float] = field(default_factory=dict)

    @property
    def exponent(self) -> float:
        """The slope of the line through the logarithms of sizes and costs."""
        sizes, costs = np.log([*self.costs]), np.log([*self.costs.values()])
        return float(np.polyfit(sizes, costs, 1)[0]) if len(sizes) > 1 else 0.0

    def row(self) -> str:
        """The line of the table."""
        shown = (lambda cost: f"{cost:,.0f} B") if self.are_bytes else duration
        costs = "".join(f"{shown(cost):>12}" for cost in self.costs.values())
        return f"{self.name + (' (all)' if self.touches_all else ''):<44}{costs}{self.exponent:>10.2f}"


def cpu_s(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Return the least CPU seconds that a call took."""
    least = float("inf")
    for _ in range(rounds):
        gc.collect()
        began = time.process_time()
        call()
        least = min(least, time.process_time() - began)
    return max(least, 1e-6)


def made_up(contents: CollectionState, count: int) -> CollectionState:
    """Return the state of a collection with so many parts, given that of one with a single part."""
    (like,) = contents.parts
    folder = like.blob.rpartition("/")[0]

    def part(number: int) -> Part:
        low, high = number * ROWS, (number + 1) * ROWS - 1
        keys = [[low + at * (ROWS - 1) // 32] for at in range(33)]
        is_late = number >= count - TAIL
        return msgspec.structs.replace(
            like,
            blob=f"{folder}/{number:020}-{number:032x}.parquet",
            checksum=hashlib.md5(b"%d" % number, usedforsecurity=False).hexdigest(),
            rows=ROWS,
            memory=64 << 20,
            keys_json=msgspec.Raw(msgspec.json.encode(keys)),
            stats_json=msgspec.Raw(msgspec.json.encode({**like.stats, "k": (low, high, 0)})),
            time_min=int(is_late),
            time_max=int(is_late),
            negatives=5 * is_late,
        )

    base = tuple(range(count - TAIL))
    return msgspec.structs.replace(
        contents,
        numbered={number: part(number) for number in range(count)},
        next_number=count,
        keyframes=(Keyframe(0, base),),
        history=tuple((number,) for number in range(count - TAIL, count)),
        history_from=1,
        upper_times=(2,),
        since_times=(0,),
    )


def of_parts(sizes: Sequence[int]) -> Iterator[Curve]:
    """Yield what operations cost in a collection of so many parts."""
    curves: dict[str, Curve] = {}
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        rows = client.create_or_load("rows", key={"k": pa.int64()}, value={"v": pa.int64()})
        rows.write(pa.table({"k": range(300_000), "v": range(300_000)}), time=0, seal=1).result()
        contents, location = rows.handle.contents(), client.engine.follower.state.location
        assert location is not None
        for size in sizes:
            for name, (call, touches_all) in _on_parts(contents, location, size).items():
                curves.setdefault(name, Curve(name, touches_all)).costs[size] = cpu_s(call)
            name = "bytes of state objects for an append"
            spent = state_bytes(made_up(contents, size), location)
            curves.setdefault(name, Curve(name, are_bytes=True)).costs[size] = spent
    yield from curves.values()


def state_bytes(state: CollectionState, location: str, rounds: int = 100) -> float:
    """Return the bytes of state objects that checkpoints write for each append, if each is one part."""
    (like,), spent = state.list_parts(state.history[-1]), 0
    levels, _ = make_levels(location, 0, state, (), format=FORMAT)
    for seqno in range(1, rounds + 1):
        for number in range(STORED_PENDING_MAX):
            blob = f"{like.blob.rpartition('/')[0]}/{seqno:020}-{number:032x}.parquet"
            append = kinds.Append(state.id, (msgspec.structs.replace(like, blob=blob, time_min=2, time_max=2),))
            state = apply_step(state, append)
        levels, data = make_levels(location, seqno, state, levels, format=FORMAT)
        spent += len(data)
    return spent / (rounds * STORED_PENDING_MAX)


def _on_parts(contents: CollectionState, location: str, size: int) -> dict[str, tuple[Callable[[], object], bool]]:
    """Return operations by their names, and whether each touches all parts."""
    state, (like,) = made_up(contents, size), contents.parts
    blob = f"{like.blob.rpartition('/')[0]}/{size:020}-{size:032x}.parquet"
    append = kinds.Append(state.id, (msgspec.structs.replace(like, blob=blob, time_min=2, time_max=2),))
    stored = StateObject(location=location, collection=state)
    data, whole = encode_framed(stored), plan_snapshot(state, state.schema, 1, None)
    base = StateLevel(make_pointer(make_state_prefix(state.id, 0), data), state)
    after = apply_step(state, append)
    by_key = pc.field("k") == 12_345
    return {
        "apply an append": (lambda: apply_step(state, append), False),
        "apply a seal": (lambda: apply_step(state, kinds.Seal(state.id, (3,))), False),
        "plan a snapshot": (lambda: plan_snapshot(state, state.schema, 1, None), True),
        "plan with a filter, by what is known": (lambda: plan_snapshot(state, state.schema, 1, None, by_key), True),
        "prepare a look-up by key": (lambda: Lookup(whole), True),
        "cut into slices": (lambda: slice_snapshot(whole, "rows", 50 << 20), True),
        "write what an append changed in the state": (
            lambda: make_levels(location, 1, after, (base,), format=FORMAT),
            True,
        ),
        "write a whole state object": (lambda: encode_framed(stored), True),
        "read it": (lambda: decode_framed(data, StateObject, "state"), True),
    }


def made_up_location(blob: Blob, count: int) -> None:
    """Make a location of that many collections, each with two rows that are still in the log, by a single checkpoint.

    Memory: that of what is stored, and of the names.
    """
    with persist.open(blob, settings=QUIET) as client:
        like = client.create_or_load("like", key={"k": pa.int64()}, value={"v": pa.int64()})
        like.write([(1, 1), (2, 2)], time=0, seal=1).result()
        state = client.engine.follower.state
    assert state.location is not None
    entry = state.entries[like.handle.id]
    pending = tuple(map(strip_part_list, entry.pending))
    raw = msgspec.json.encode(directory.DirectoryEntry(entry.id, entry.name, pending=pending))
    ids = {f"rows{n:07}": hashlib.md5(b"%d" % n, usedforsecurity=False).hexdigest() for n in range(count - 1)}
    entries, names = Writing(state.seqno, blob.set), Writing(state.seqno, blob.set)
    for id_, name in sorted((id_, name) for name, id_ in {**ids, "like": entry.id}.items()):
        entries.add(id_, raw.replace(entry.id.encode(), id_.encode()).replace(b'"like"', f'"{name}"'.encode()))
    for name, id_ in sorted({**ids, "like": entry.id}.items()):
        names.add(name, msgspec.json.encode(id_))
    objects = directory.DirectoryObject(
        location=state.location,
        seqno=state.seqno,
        collections=(),
        entries=entries.finish(),
        names=names.finish(),
    )
    pointer = store_framed(blob, make_directory_prefix(state.seqno), objects)
    levels = directory.KnownLevels().read(blob, state.location, [pointer])
    made = build_checkpoint(state, directory.NewDirectory(levels, freed=()))
    assert blob.create(make_checkpoint_key(state.seqno), encode_framed(made))


def of_collections(sizes: Sequence[int]) -> Iterator[Curve]:
    """Yield what operations cost in a location of so many collections."""
    curves: dict[str, Curve] = {}

    def add(name: str, cost: float, size: int, *, are_bytes: bool = False) -> None:
        curves.setdefault(name, Curve(name, are_bytes=are_bytes)).costs[size] = cost

    for size in sizes:
        blob = CountingBlob()
        made_up_location(blob, size)
        opened = partial(persist.open, blob, settings=QUIET)
        add("open", cpu_s(lambda: opened(mode="read").close()), size)  # noqa: B023
        add("memory of opening", memory_of(opened), size, are_bytes=True)
        add("open and read one", cpu_s(lambda: _read_one(opened)), size)  # noqa: B023
        add("open and ask for a name that is not there", cpu_s(lambda: _ask_in_vain(opened)), size)  # noqa: B023
        with opened() as client:
            one = client["like"]
            add("seal one 100 times", cpu_s(lambda: _seal(one, 100)), size)  # noqa: B023
            add("read one", cpu_s(lambda: one.snapshot().to_arrow()), size)  # noqa: B023
            add("create and drop one", cpu_s(lambda: client.create_or_load("new", key=None).drop().result()), size)
        blob.stored.clear()
        with opened() as client:
            _seal(client["like"], SEALS)
            client.engine.pool.submit(int).result()
        spent = sum(blob.stored[kind] for kind in ("checkpoint", "directory", "state")) / SEALS
        add("bytes of checkpoints for a seal of one", spent, size, are_bytes=True)
        names = [f"rows{n * 7919 % (size - 1):07}" for n in range(SEALS)]
        blob.stored.clear()
        with opened() as client:
            began = time.process_time()
            for n, name in enumerate(names):
                client[name].seal(2 + n).result()
            client.engine.pool.submit(int).result()
            add("load and seal one, another each time", (time.process_time() - began) / SEALS, size)
        spent = sum(blob.stored[kind] for kind in ("checkpoint", "directory", "state")) / SEALS
        add("bytes of checkpoints for a seal of another", spent, size, are_bytes=True)
    yield from curves.values()


def memory_of(opened: Callable[[], persist.Client]) -> float:
    """Return the greatest number of bytes that opening a client takes, as Python counts them."""
    opened().close()  # What is made once is made now.
    tracemalloc.start()
    try:
        opened().close()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _read_one(opened: Callable[[], persist.Client]) -> None:
    with opened() as client:
        client["like"].snapshot().to_arrow()


def _ask_in_vain(opened: Callable[[], persist.Client]) -> None:
    with opened() as client:
        assert "rows" not in client


def _seal(one: persist.Collection, times: int) -> None:
    upper = one.upper.time or 0
    for n in range(times):
        one.seal(upper + 1 + n).result()


def drawn(curves: Sequence[Curve], file: str) -> None:
    """Draw the curves, both axes by logarithms."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 6))
    for curve in curves:
        style = "--" if curve.touches_all else "-"
        label = f"{curve.name}: {curve.exponent:.2f}"
        axes.loglog([*curve.costs], [*curve.costs.values()], style, marker="o", label=label)
    axes.set_xlabel("parts, or collections")
    axes.set_ylabel("CPU seconds")
    axes.legend(fontsize="small")
    figure.savefig(file)


def main() -> int:
    """Print the tables, and draw them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int, nargs="+", default=PARTS, help="sizes of a collection")
    parser.add_argument("--collections", type=int, nargs="+", default=COLLECTIONS, help="sizes of a location")
    parser.add_argument("--spark", action="store_true", help="only the driver of Spark, for 10¹⁰ rows in 10⁵ parts")
    parser.add_argument("--plot", metavar="FILE", help="draw the curves, as an image")
    options = parser.parse_args()
    if options.spark:
        from benchmarks import spark_scale

        return spark_scale.main()
    curves = []
    for what, sizes, measure in (
        ("parts", options.parts, of_parts),
        ("collections", options.collections, of_collections),
    ):
        print(f"{what:<44}" + "".join(f"{size:>12,}" for size in sizes) + f"{'exponent':>10}")
        for curve in measure(sizes):
            print(curve.row(), flush=True)
            curves.append(curve)
    if options.plot:
        drawn(curves, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
