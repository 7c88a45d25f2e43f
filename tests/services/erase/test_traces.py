"""What a search for traces says of each kind of object, and the forms of its report and of its receipt."""

import base64
import hashlib
import json
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.core.log.keys import make_checkpoint_key
from persist.engine.follow.follower import STALE_AFTER_S
from persist.services.erase import receipt_digest
from persist.services.erase.traces import BEYOND, OLD, Trace, Traces, _count_mentions, _find_inline_parts
from tests.services.erase.test_erase import ADA, opened
from tests.support.clocks import DatedBlob, ImpatientClock

NOBODY, X = "f" * 32, "a" * 32
GRACE_S, ORPHAN_S, SINCE_S = 200, 70_000, 60
ROWS = "it has such rows, written after the erasure or never erased"
TEXTS = "it has such texts"
UNNAMED = "nothing names it; gc deletes it then"
REPLACED = "the erasure, or a compaction, replaced it; gc deletes it then"
GIVEN_UP = "it belongs to a published table that was given up: erase again"
LOST = "a repair of the log put it aside, and no command deletes it: read it, then delete it"


def make_avro(text: str) -> bytes:
    """Return an Avro file with a deflated block, whose size takes two bytes."""
    packed, mark = zlib.compress(text.encode())[2:-4], bytes(range(16))
    return b"Obj\x01 avro.codec deflate" + mark + b"\x02" + bytes([0x80 | len(packed), 1]) + packed + mark


def test_each_kind_of_object_is_told_with_its_reason_and_until_when() -> None:
    blob = DatedBlob(ImpatientClock())
    settings = {"inline_bytes": 0, "keyframe_rows_min": 1, "grace_s": GRACE_S, "orphan_grace_s": ORPHAN_S}
    with opened(blob, **settings) as client, opened(blob, **settings) as reader:
        names = ("ours", "others", "gone")
        ours, others, gone = (client.create_or_load(name, key={"id": int}, value={"email": str}) for name in names)
        for each in (ours, others, gone):
            each.write([(1, "bob"), (3, ADA)], time=0, seal=1).result()
            each.compact()
        strange = f"part/{NOBODY}/{1:020d}-{X}.parquet"
        blob.set(strange, b"")
        assert {(trace.why, trace.until) for trace in ours.traces([3]).found} == {(ROWS, None)}, "nothing was erased"
        parts = {each: [entry.key for entry in blob.list(f"part/{each.id}/")] for each in (ours, gone)}
        with reader.load("ours").snapshot(0):
            client.drop("gone").result()
            at = ours.erase([3], reason="request 17").seqno or 0
            [held], [dropped] = parts.values()
            [kept] = [entry.key for entry in blob.list(f"part/{ours.id}/") if entry.key != held]
            blob.clock.sleep(SINCE_S)
            before, erasure = blob.get(held) or b"", {"number": 1, "by": "x", "at_ms": 1, "reason": "y", "updates": 1}
            rows = {"persist": "parts", "parts": [{"inline": base64.b64encode(before).decode()}]}
            erased = json.dumps({"collection": {"erasures": [erasure]}}).encode()
            # Why an object may hold something, after how long it may go (rounded up), and how many rows.
            is_old = OLD, 2 * int(STALE_AFTER_S) + 1 - SINCE_S, None
            waits, is_found = ORPHAN_S + 1, (ROWS, None, 1)
            # What is stored, and what a search by keys says of it; and a search for texts, if that is something else.
            told: dict[str, tuple[Any, ...]] = {
                make_checkpoint_key(at - 1): (b"{}", is_old),
                f"directory/{at - 1:020d}-{X}.json": (b"{}", is_old),
                f"directory/{at - 1:020d}-{X}.pages": (b"{}", is_old),
                f"directory/{at:020d}-{X}.json": (b"{}", None),
                f"directory/{at:020d}-{X}.pages": (ADA.encode(), None, is_found),
                f"state/{ours.id}/{at - 1:020d}-{X}.json": (b"{}", is_old),
                f"state/{ours.id}/{at - 1:020d}-{NOBODY}.json": (erased, None),
                f"state/{ours.id}/{at:020d}-{X}.json": (b"{}", None),
                f"state/{others.id}/{at - 1:020d}-{X}.json": (b"{}", None),
                f"state/{NOBODY}/{at - 1:020d}-{X}.json": (b"{}", is_old),
                f"list/{ours.id}/{at - 1:020d}-{X}.json": (b"{}", is_old),
                f"list/{ours.id}/{at:020d}-{X}.json": (json.dumps(rows).encode(), None, is_found),
                f"list/{others.id}/{at - 1:020d}-{X}.json": (b"{}", None),
                "other/file": (ADA.encode(), None, is_found),
                "lost/file": (b"", (LOST, None, None)),
                f"part/{ours.id}/_delta_log/{0:020d}.json": (ADA.encode(), (GIVEN_UP, None, None)),
                f"part/{others.id}/_delta_log/{0:020d}.json": (ADA.encode(), None, (TEXTS, None, 1)),
                f"part/{ours.id}/metadata/{at:020d}-{X}.avro": (make_avro(ADA), (UNNAMED, waits, None)),
                f"part/{others.id}/metadata/{at:020d}-{X}.avro": (make_avro(ADA), None, (TEXTS, None, 1)),
                f"part/{ours.id}/{at:020d}-{X}.parquet": (before, (UNNAMED, waits, 1)),
                f"part/{ours.id}/{at:020d}-{NOBODY}.parquet": (blob.get(kept), None),
                f"part/{others.id}/{at:020d}-{X}.parquet": (before, None, (TEXTS, None, 1)),
                strange: (blob.get(kept), (UNNAMED, waits, 0)),
            }
            for key, (data, *_) in told.items():
                blob.set(key, data)
            log = {f"log/{seqno:020d}": is_old for seqno in range(at)}
            expires_ms = max(lease.expires_ms for lease in client.engine.follower.refresh().control.leases.values())
            now_s = blob.clock.wall_ms() // 1000
            # Only of texts: a part of the other collection, and what its state says of that.
            for wanted, elsewhere in (({"keys": [3]}, 0), ({"texts": [ADA]}, 2)):
                report = ours.traces(**wanted)
                untils = [None if each.until is None else each.until.timestamp() - now_s for each in report.found]
                found = {each.key: (each.why, n, each.rows) for each, n in zip(report.found, untils, strict=True)}
                why, until, count = found.pop(held)
                assert why.endswith(" may still read it: close these clients, or let them read anew; then gc")
                assert (until, count) == (expires_ms // 1000 + 1 - now_s, 1)
                assert found.pop(dropped) == (REPLACED, GRACE_S + 1 - SINCE_S, elsewhere // 2)
                index = 1 if elsewhere == 0 else -1
                assert found.items() >= (log | {key: each[index] for key, each in told.items() if each[index]}).items()
                more = found.keys() - log.keys() - {key for key, each in told.items() if each[index]}
                assert len(more) == elsewhere
                sizes = [entry.bytes for entry in blob.list("")]
                assert (report.objects, report.bytes) == (len(sizes), sum(sizes))
    with opened(blob, **settings) as client:
        assert {trace.key: trace.why for trace in client.load("ours").traces([3]).found}[held] == REPLACED


def test_a_report_and_a_receipt_say_exactly_what_was_found_and_where() -> None:
    blob = DatedBlob(ImpatientClock())
    with opened(blob) as client:
        ours = client.create_or_load("ours", key={"id": int}, value={"email": str})
        ours.write([(1, "bob"), (3, ADA)], time=0, seal=1).result()
        traces, sizes = ours.traces([99]), [entry.bytes for entry in blob.list("")]
        place = f"{len(sizes)} objects of {sum(sizes):,} bytes"
        assert str(traces) == f"nothing of what was erased from 'ours' is left in {place}"
        at = datetime.fromtimestamp(blob.clock.wall_ms() // 1000 + 1, UTC).isoformat()
        facts = {
            "location": "memory://",
            "location_id": client.engine.follower.state.location,
            "seqno": client.seqno,
            "at": at,
            "collection": "ours",
            "collection_id": ours.id,
            "erasures": [],
            "searched": {"objects": len(sizes), "bytes": sum(sizes)},
            "not_searched": [*BEYOND],
        }
        assert traces.receipt() == {**facts, "digest": receipt_digest(facts)}
        ours.erase([3], reason="request 17")
        [erasure] = ours.traces(texts=["no such text"]).facts["erasures"]
        assert erasure["at"] == at
    assert receipt_digest({"b": "é", "digest": "x", "a": [1, 2]}) == (
        "sha256:" + hashlib.sha256('{"a":[1,2],"b":"é"}'.encode()).hexdigest()
    )
    until = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    some = (
        Trace("a\x1b", "x", None, 1),
        Trace("b", "y", until),
        Trace("c", "x"),
        Trace("d", "y", until - timedelta(1)),
    )
    found = Traces("ours", 1000, 2000, some, {})
    assert [*str(found).splitlines()] == [
        "4 of 1,000 objects, of 2,000 bytes in all, may hold what was erased:",
        "objects  until                 such as  why",
        "      2  -                     a\\x1b    x",
        "      1  2026-01-02T03:04:05Z  b        y",
        "      1  2026-01-01T03:04:05Z  d        y",
    ]
    for left, text in (
        (some, f"4 objects may hold .* from 'ours', such as a\x1b \\(x\\). Collect garbage with gc after {until}, and"),
        (some[:1], r"1 object may hold .* from 'ours', such as a\x1b \(x\). Collect garbage with gc then, and search"),
    ):
        with pytest.raises(persist.InvalidUsage, match=text.replace("+", r"\+")):
            Traces("ours", 1, 2, left, {}).receipt()


TEXT = ["ada", None, "bob", "ada@"]
BYTES = [b"ada", None, b"bob!", b"ada@"]


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        (pa.array(TEXT), 2),
        (pa.array(TEXT, pa.large_string()), 2),
        (pa.array(BYTES), 2),
        (pa.array(BYTES, pa.large_binary()), 2),
        (pa.array([b"ada!", None, b"bob!"], pa.binary(4)), 1),
        (pa.array([None, None], pa.string()), 0),
        (pa.array([None, b"bob"]), 0),
        (pa.array([1, 2]), 0),
        (pa.array(["bob", "ada", "ada"]).dictionary_encode(), 1),
        (pa.array([{"x": "ada", "y": b"ada"}, None]), 2),
        (pa.array([["ada", "bob"], None, ["ada"]]), 2),
        (pa.array([[("ada", "bob"), ("x", "ada")], [("y", "ada")]], pa.map_(pa.string(), pa.string())), 3),
        (pa.array([[{"x": ["ada"]}]]), 1),
    ],
    ids=lambda each: str(getattr(each, "type", "")),
)
def test_texts_are_found_in_cells_of_all_types(column: pa.Array, cells: int) -> None:
    twice = pa.chunked_array([column, column])
    assert _count_mentions(pa.table({"c": twice, "d": twice}), "ada") == 4 * cells


def test_parts_inside_of_objects_are_found_with_their_collection_schema_and_kind() -> None:
    def find(*values: Any) -> list[tuple[Any, ...]]:
        found = _find_inline_parts("\n".join(map(json.dumps, values)).encode())
        return sorted((each.data, each.collection, each.version, each.is_of_events) for each in found)

    one, two, three = ({"inline": base64.b64encode(data).decode()} for data in (b"1", b"2", b"3"))
    assert find({"persist": "parts", "parts": [one, {**two, "schema": 7}]}) == [
        (b"1", None, 1, None),
        (b"2", None, 7, None),
    ]
    mutations = [
        {"kind": "append", "collection": "a", "parts": [one], "id": "b"},
        {"kind": "pend", "collection": "c", "parts": [two], "events": 1},
        {"kind": "erase", "collection": "d", "parts": [three, one, two], "events": 2},
        {"kind": "erase", "collection": "e", "parts": [three]},
    ]
    assert find({"persist": "record", "collection": 5, "mutations": mutations}) == [
        (b"1", "a", 1, False), (b"1", "d", 1, True), (b"2", "c", 1, True), (b"2", "d", 1, True),
        (b"3", "d", 1, False), (b"3", "e", 1, False),
    ]  # fmt: skip
    pages = {"id": "a", "pending": [one], "parts": [two]}, {"id": "b", "parts": [{"inline": ""}, {"inline": 5}, three]}
    assert find(*pages) == [(b"1", "a", 1, True), (b"2", "a", 1, False), (b"3", "b", 1, False)]
    assert find([one]) == [], "no object of this library is a list"
    assert [*_find_inline_parts(b'{"inline')] == []
