"""Writes a record of every kind to a location, with each optional member somewhere.

`tests/rules/test_golden.py` fails when there is a kind or a member that this does not write: add it here, then see
`docs/inside/golden.md`.
"""

import uuid
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

import persist
from persist.api.client import Client
from persist.api.multi_write import MultiWrite
from persist.blob.protocol import Blob
from persist.codecs.part.part import Part
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.updates import to_updates
from persist.core.keyed.events import list_event_fields, make_event_schema
from persist.core.log import kinds as record_kinds
from persist.core.log.fields import Deletes, KeyedForm, LocationMutation, MachineForm, TableFile
from persist.core.log.keys import make_manifest_key
from persist.core.log.kinds import Batch
from persist.core.settings import Tuning
from persist.core.state_rules import annotations as remembered
from persist.core.state_rules.keyed_rules import PlannedPend
from persist.core.state_rules.publications import list_unused_blobs
from persist.engine.collection.commit import Commit
from persist.engine.follow.checkpoint import iterate_checkpoints
from persist.engine.write.operations import Submission, Write
from persist.engine.write.write_options import WriteOptions
from persist.errors import TokenForgotten

POLICY = Tuning(
    keyframe_rows_min=3,
    keyframe_fraction=0.1,
    merge_runs=3,
    inline_runs=4,
    inline_bytes=4000,
    part_bytes=1,  # Each key is a part of its own.
    hold_linger_s=0,
)
SETTINGS = persist.Settings(background=False, tuning=POLICY)
LEASE = "f" * 32


def write_every_kind(location: Path | Blob) -> None:
    """Make a collection `kinds` with a permanent hold and a leased one, and commit each kind of mutation."""
    with persist.open(location, settings=SETTINGS) as first:
        first.create_or_load("destroyed", key=persist.Utf8, value=None).drop().result()
    with (
        persist.open(location, mode="exclusive", settings=SETTINGS),
        persist.open(location, mode="exclusive", force=True, settings=SETTINGS) as client,
    ):
        kinds = client.create_or_load("kinds", key={"k": pa.int64()}, value=None)
        begun = Commit(client.engine, WriteOptions(token="a token"))
        with MultiWrite(begun) as multi:
            multi.write(kinds, [((1, None), 0, 1)])
            begun.add(kinds.handle, [Batch(kinds.id, "a query", 7, "a run")])
        begun = Commit(client.engine, WriteOptions(token="another token"))
        with MultiWrite(begun) as multi:
            multi.write(kinds, [((1, None), 3, -1), ((2, None), 3, 2)])
            multi.seal(kinds, 4)
            begun.add(kinds.handle, [Batch(kinds.id, "a query", 7, "another run", again=True)])
        kinds.hold(1, name="a consumer").advance(2)
        kinds.hold(2, name="released").release()
        kinds.tag("a tag", 2)
        kinds.tag("a tag", 3, move=True)
        kinds.tag("dropped", 3)
        kinds.untag("dropped").result()
        column = {"comment": "c", "properties": {"d": "e"}}
        kinds.describe("every kind", properties={"a": "b"}, columns={"k": column}).result()
        kinds.describe(properties={"f": "g"}, expected=kinds.about).result()
        client.describe("here", properties={"h": "i"}, expected=client.about).result()
        nested = pa.list_(pa.struct([("a", pa.int8()), ("b", pa.string())]))
        kinds.evolve(add={"n": pa.int8(), "w": pa.string(), "list": nested}, defaults={"n": 7})
        kinds.evolve(
            add={"list.element.c": pa.int8()},
            rename={"n": "m", "list.element.a": "list.element.d"},
            widen={"n": pa.int32(), "list.element.a": pa.int16()},
            drop=["w", "list.element.b"],
        )
        kinds.retain(100).result()
        renamed = client.create_or_load("to be renamed", key=None)
        renamed.seal(1).result()
        renamed.rename("renamed").result()
        kinds.write([((3, (5, [{"d": 300, "c": 1}, None])), 4, 1)], message="said", metadata={"by": "hand"}).result()
        for_another = Submission("a" * 32, 7, client.seqno, is_own=False)
        note = record_kinds.Note(kinds.id, "committed for another client")
        client.engine.writer("golden").committer.submit([note], {}, for_another).result()
        with kinds.hold(3):
            kinds.allow_compaction(3).result()
        commit(client, record_kinds.GrantLease(LEASE, "somebody", 10**13))
        commit(
            client,
            record_kinds.GrantLease(LEASE, "somebody", 10**13 + 1, renews=True, reads_from=5, consumer="a/consumer"),
        )
        commit(client, record_kinds.EndLease(LEASE, expires_ms=10**13 + 1))
        dropped = client.engine.follower.refresh().control.dropped
        commit(
            client,
            record_kinds.Collected(tuple((d.collection, d.seqno) for d in dropped)),
            record_kinds.TruncateLog(0),
            record_kinds.VoidUploads(1),
        )
        client.gc()  # Of which there is none; but it makes a checkpoint.
        newest = next(iterate_checkpoints(client.engine.blob))
        commit(client, record_kinds.TakeOver(newest.pointer))


def write_compacted(client: Client, word: str = "at") -> None:
    """Make a collection `compacted` that has keyframes, merged runs and forgotten history, by each kind of replace.

    Args:
        word: is in all values.
    """
    compacted = client.create_or_load("compacted", key={"k": pa.int64()}, value={"v": pa.string()})

    def change(times: range, keys: range) -> None:
        for time in times:
            rows = [((k, f"{k} {word} {time}"), time, 1) for k in keys]
            rows += [((k, f"{k} {word} {time - 1}"), time, -1) for k in keys if time > times.start]
            begun = Commit(client.engine, WriteOptions(token=f"change {time}"))
            with MultiWrite(begun) as multi:
                multi.write(compacted, rows)
                multi.seal(compacted, time + 1)
                begun.add(compacted.handle, [Batch(compacted.id, "a query", time, "a run")])

    change(range(4), range(4))
    compacted.compact()  # The first keyframe, as of 3, and one run of what lived in the log.
    change(range(4, 8), range(4, 6))
    compacted.compact()  # Another one, which shares parts.
    with compacted.hold(5):
        compacted.allow_compaction(5).result()
        compacted.compact()  # One as of 5, before that; history up to it is forgotten.
    change(range(8, 12), range(6, 7))
    compacted.compact()
    change(range(12, 16), range(7, 8))
    compacted.compact(only_due=True)
    change(range(16, 18), range(2))  # Stays in the log.
    stamped = client.create_or_load("stamped", key={"k": pa.int64()}, value={"v": pa.string()})
    for rows in (2, 20_000):  # In the log, and as a file.
        stamped.write(pa.table({"k": range(rows), "v": [str(n % 7) for n in range(rows)]})).result()


def write_published(client: Client) -> None:
    """Make a collection that is published as two tables, of which one names parts that it has no more; and one more."""
    published = client.create_or_load("published", key={"k": pa.int64()}, value={"v": pa.string()})
    published.write([((k, str(k % 7)), 0, 1) for k in range(6)], seal=1).result()
    published.compact()
    for time in (1, 2):
        published.publish("delta", digest=True)
        published.write([((time, str(time)), time, -1), ((30_000, "new"), time, 1)], seal=time + 1).result()
    published.publish("delta", digest=True)
    published.compact()
    published.allow_compaction(2).result()
    published.compact()
    published.evolve(add={"n": pa.int8()})
    published = client.load("published")
    table = uuid.uuid4().hex
    for version in range(3):
        writer = client.engine.writer("a test")
        schema, upload = published.schema, writer.part_writer().upload
        rows = to_updates([((n, ("small", n)), 0, 1) for n in range(2)], schema)
        parts = [part for n in range(2) for part in upload(published.id, schema, rows.slice(n, 1))]
        keys = tuple(make_manifest_key(published.id, client.seqno + 1) for _ in range(2))
        for key in keys:
            client.engine.blob.set(key, b"which files a table has")
        known = published.handle.contents().published.get("iceberg")
        step = record_kinds.Publish(
            published.id,
            "iceberg",
            table,
            version,
            2,
            tuple(parts),
            files=(TableFile(-1, Deletes(keys[1], 1, 2, 1)), TableFile(-2)),
            removed=tuple(known.files) if known is not None else (),
            schema=2,
            metadata=keys[:1],
            blobs=keys,
            options={"deletes": "vectors"},
            digest="0" * 16,
        )
        unused = list_unused_blobs(published.handle.contents(), step)
        client.engine.submit("publish", [msgspec.structs.replace(step, unused=unused)], {published.id: ""}).result()
    gone = client.create_or_load("published no more", key={"k": pa.int64()}, value=None)
    gone.write([((1, None), 0, 1)], seal=1).result()
    gone.publish("delta")
    gone.unpublish("delta")


def write_keyed(client: Client) -> None:
    """Make two keyed collections, with events that are pending and some that were resolved."""
    writer = client.engine.writer("a test")
    machine = MachineForm("counting", 2, {"gap": 3})
    plain = MachineForm("upsert", 1)
    declared = {
        "keyed in the background": KeyedForm(machine, (("at", "int64"),), ("at",), None, None, 2, 1, "background"),
        "keyed": KeyedForm(plain, order_by=("at",), tombstone="state", tombstone_value="gone", ties="greatest"),
    }
    for name, form in declared.items():
        schema = CollectionSchema.of({"k": pa.int64()}, {"at": pa.int64(), "state": pa.string()})
        id_ = uuid.uuid4().hex
        names = {id_: name}
        writer.committer.submit([record_kinds.Create(id_, name, schema.to_json(), form)], names).result()
        events = make_event_schema(schema, list_event_fields(schema, form))
        for seal, times in ((3, (0, 0, 1)), (None, (3, 5))) if form.late_by else ((3, (0,)),):
            keys = range(len(times))
            rows: dict[str, Any] = {
                "k": keys,
                "_seq": keys,
                "_deleted": [False] * len(times),
                "_diff": [1] * len(times),
            }
            rows |= {"at": [5] * len(times), "state": ["new"] * len(times), "_time": times}
            table = pa.table({field.name: pa.array(list(rows[field.name]), field.type) for field in events.arrow})
            resolved = pa.table({field.name: pa.array(list(rows[field.name]), field.type) for field in schema.arrow})
            parts = [part for i in keys for part in writer.part_writer().upload(id_, events, table.slice(i, 1))]
            upload: Future[tuple[Part, ...]] = Future()
            upload.set_result(tuple(parts))
            planned = PlannedPend(id_, min(times), max(times), (5, 5))
            writer.committer.submit([Write(id_, events, min(times), 0, upload, False, planned)], names).result()
            if seal is None:
                continue
            updates = [part for i in keys for part in writer.part_writer().upload(id_, schema, resolved.slice(i, 1))]
            unused = tuple(part.blob for part in parts)
            step = record_kinds.Resolve(id_, (0,), (seal,), tuple(keys), tuple(updates), None, (6, 6), unused)
            writer.committer.submit([step, record_kinds.AdvanceLateBound(id_, 4)], names).result()


def write_evolved_keyed(client: Client) -> None:
    """Make a collection `became keyed` that was written by updates first, and evolved while events were waiting."""
    became = client.create_or_load("became keyed", key={"k": pa.int32()}, value={"v": pa.string()})
    became.write([((1, "a"), 0, 1), ((2, "b"), 0, 1)], seal=1).result()
    became.evolve(add={"at": pa.int32()}, keyed=persist.Keyed(order_by=["at"]))
    became.upsert([(1, ("c", 5)), (3, ("d", 5))], time=1).result()
    became.upsert([(2, ("e", 5))], time=2).result()
    became.evolve(rename={"at": "seen"}, widen={"k": pa.int64(), "at": pa.int64()}, add={"n": pa.int8()})
    became.seal(2).result()  # What is at 2 stays, of the version before.


def write_grouped(client: Client) -> None:
    """Make a keyed collection with a group of columns that has an order of its own."""
    keyed = persist.Keyed(groups={"at": ["v"]})
    groups = client.create_or_load("in groups", key={"k": pa.int32()}, value={"v": str, "at": int}, keyed=keyed)
    groups.upsert([(1, ("new", 2), 0), (1, ("old", 1), 1), (2, ("only", None), 1)], seal=2).result()


def write_cloned(client: Client) -> None:
    """Make clones of a collection that evolved, of one with events, and of a clone whose source is gone."""
    source = client.create_or_load("to be cloned", key={"k": pa.int64()}, value={"v": pa.string()})
    source.write([((k, "a"), 0, 1) for k in range(3)], seal=1).result()
    source.compact()
    source.write([((1, "a"), 1, -1), ((4, "b"), 1, 1)], seal=2).result()
    source.compact()
    source.evolve(add={"n": pa.int8()})
    source = client.load("to be cloned")
    source.write([((5, ("c", 1)), 2, 1)], seal=3).result()
    source.write([((6, ("d", 2)), time, 1) for time in (3, 4)], seal=5).result()
    client.clone("to be cloned", "clone", as_of=3)
    client.clone("clone", "clone of a clone")
    client.clone("clone", "clone that goes").drop().result()
    client.drop("clone").result()
    client.clone("keyed in the background", "keyed clone", as_of=2)
    client.create_or_load("of one part", key=persist.Int64, value=None).write([((1, None), 0, 1)], seal=1).result()
    client.clone("of one part", "clone of one part")


def write_erased(client: Client) -> None:
    """Erase from a collection with stored parts, and pending events, and from its clone."""
    keyed = client.create_or_load("erased", key={"k": pa.int64()}, value={"v": pa.string()}, keyed=persist.Keyed())
    keyed.upsert([(k, f"v{k}", 0) for k in range(4)], seal=1).result()
    keyed.compact()
    keyed.upsert([(1, "w", 1), (5, "w", 1)], seal=2).result()
    keyed.upsert([(1, "x", 2), (3, "x", 2)]).result()
    client.clone("erased", "clone of what is erased")
    keyed.erase([1], reason="request 17")
    keyed.erase([5], reason="request 18")


def write_single(client: Client) -> None:
    """Make `single`, with one row for a key in each part; the last part of `not single` says so, and others do not."""
    for name in ("single", "not single"):
        rows = client.create_or_load(name, key={"k": pa.float64()}, value={"v": pa.string()})
        if name == "single":
            rows.overwrite([(k, "a") for k in (None, -0.0, 1.5, float("nan"))], time=1).result()
        else:
            rows.write([((k, "a"), 1, 1) for k in (None, 0.0, 0.5, 1.5)] + [((None, "b"), 1, 2)], seal=2).result()
        rows.compact()
        rows.upsert([(0.0, "b"), (2.5, "c"), (float("nan"), "d")], time=2).result()
        rows.delete([1.5], time=3).result()


def write_remembered(client: Client) -> None:
    """Write so many times with a token that older ones are archived, archives are merged, and some are forgotten."""
    before = {name: vars(remembered)[name] for name in ("TOKENS_KEPT", "ARCHIVE_MAX", "ARCHIVED_MAX")}
    vars(remembered).update(TOKENS_KEPT=4, ARCHIVE_MAX=6, ARCHIVED_MAX=8)
    c = client.create_or_load("remembered", key={"k": pa.int64()})
    with suppress(TokenForgotten):
        for n in range(100):
            c.write([((n, None), n, 1)], seal=n + 1, token=f"t{n}").result()
    vars(remembered).update(before)


def commit(client: Client, *mutations: LocationMutation) -> None:
    """Commit what else only leases and the collection of garbage commit, when time has passed."""
    client.engine.writer("a test").committer.submit(mutations, {}).result()
