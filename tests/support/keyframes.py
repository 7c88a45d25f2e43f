"""Keyframes made by hand, a snapshot from each of them, and descriptors of parts that are not there."""

import uuid
from collections.abc import Iterator, Sequence
from itertools import chain

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

import persist
from persist.codecs.order.sums import consolidate
from persist.codecs.part.part import Part
from persist.codecs.part.stream import encode_parts
from persist.codecs.types.schema import CollectionSchema
from persist.core.log import kinds
from persist.core.log.fields import Keyframe
from persist.core.state_rules.contents import CollectionState
from persist.engine.read.merging import Form
from persist.engine.read.planning.snapshot_plan import _make_scan
from persist.engine.read.results.snapshot import Snapshot
from persist.engine.write.part_writer import PartWriter

KEY, VALUE = {"k": pa.int64()}, {"v": pa.string()}


def add_keyframe(collection: persist.Collection, as_of: int, *, pieces: int = 1, drop_history: bool = False) -> None:
    """Add a keyframe as of a sealed time, in some parts; perhaps drop the history up to it, all in parts of its own."""
    engine, schema = collection.handle.engine, collection.schema
    contents = collection.snapshot(as_of, form="diff").to_arrow()
    times = pa.repeat(pa.scalar(as_of, pa.int64()), len(contents))
    table = consolidate(contents, schema.names).add_column(len(schema.names), schema.arrow.field("_time"), times)
    writer = PartWriter(engine.blob, lambda: engine.follower.state.seqno + 1)
    parts: tuple[Part, ...] = ()
    rows = -(-len(table) // pieces) or 1
    for start in range(0, len(table), rows):  # Of one row for each key, or of one piece.
        parts += writer.upload(collection.id, schema, table.slice(start, rows))
    state = collection.handle.contents()
    gone = [run for run in state.history if drop_history and state.list_parts(run)[0].time_max <= as_of]
    step = kinds.Replace(
        collection.id,
        parts=parts,
        keyframes=(Keyframe(as_of, tuple(-1 - i for i in range(len(parts)))),),
        removed_runs=tuple(run[0] for run in gone),
        history_from=as_of + 1 if drop_history else None,
        unused=tuple(part.blob for run in gone for part in state.list_parts(run) if part.blob),
    )
    collection.handle.submit("a test", [step]).result()


def snapshots(
    collection: persist.Collection,
    as_of: int,
    *,
    columns: tuple[str, ...] | None = None,
    filter: pc.Expression | None = None,
    form: Form = "rows",
) -> Iterator[Snapshot]:
    """Yield the snapshot as of a time by every plan there is: from each keyframe, and from none."""
    candidates: list[Keyframe | None] = [*collection.handle.contents().keyframes, None]
    for keyframe in candidates:
        contents, _, reading = collection.handle.wait_and_claim(as_of, None)
        if keyframe is None and contents.history_from:
            continue
        names = collection.schema.names if columns is None else columns
        scan = _make_scan(contents, contents.history_parts, collection.schema, keyframe, as_of, names, filter).prune()
        with Snapshot(scan, form, reading, contents, 1 << 20) as snapshot:
            yield snapshot


def part_of(rows: int, first: int, last: int, negatives: int = 0, keys: Sequence[int] = (0, 9)) -> Part:
    """A descriptor of that many rows of 20 bytes, at times from first to last, with these keys."""
    schema = CollectionSchema.of(KEY, VALUE)
    values = pa.table({"k": keys, "v": ["x"] * len(keys), "_time": [first] * len(keys), "_diff": [1] * len(keys)})
    [(_, part)] = encode_parts(values, schema)
    changed = {"rows": rows, "bytes": rows * 20, "time_min": first, "time_max": last, "negatives": negatives}
    return msgspec.structs.replace(part, blob=f"part/{'0' * 32}/{uuid.uuid4().hex}", diff_sum=rows, **changed)


def contents_of(*history: Part, upper: int = 100, since: int = 0, **keyframes: int | Sequence[Part]) -> CollectionState:
    """A collection of those parts, each a run, and keyframes as_of<time>=<rows>, or as_of<time>=<their parts>."""
    made = [
        (int(name.removeprefix("as_of")), [part_of(parts, 0, 0)] if isinstance(parts, int) else parts)
        for name, parts in keyframes.items()
    ]
    listed = {id(part): part for part in chain(history, *(parts for _, parts in made))}  # Some are shared.
    numbered = dict(enumerate(listed.values()))
    numbers = dict(zip(listed, numbered, strict=True))
    return CollectionState(
        "0" * 32,
        "c",
        CollectionSchema.of(KEY, VALUE).to_json(),
        since_times=(since,),
        upper_times=(upper,),
        numbered=numbered,
        next_number=len(numbered),
        history=tuple((n,) for n in range(len(history))),
        keyframes=tuple(Keyframe(as_of, tuple(numbers[id(part)] for part in parts)) for as_of, parts in made),
    )
