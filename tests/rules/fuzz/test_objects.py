"""Records, checkpoints, part lists and state objects from an attacker, who computes right checksums.

A location is damaged by changing its JSON: values replaced, taken out, doubled and exchanged; pointers to what was
changed are made right again. Whatever is done with it then ends in an answer or an error of the library.
"""

import copy
import json
import logging
import os
import random
import re
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
import xxhash

import persist
from persist.blob.errors import CorruptBlob, PersistError
from persist.blob.protocol import MemoryBlob
from persist.core.log.framing import decode_framed
from persist.core.log.records import Record
from persist.engine.follow.state_objects import StateObject
from tests.rules.corruption.location import FOLDERS, Blobs, blobs_of, of_folder
from tests.rules.golden.kinds import POLICY
from tests.support.tiers import examples
from tests.support.tuned import tuned

SCALE = int(os.environ.get("PERSIST_FUZZ", "1"))
SEED = int(os.environ.get("PERSIST_FUZZ_SEED", "0"))
EACH = 40 * SCALE  # Changes per kind of object.
SETTINGS = tuned(background=False, tuning=POLICY, part_bytes=4000)
ONE = blobs_of(1)
KINDS = [folder for folder in FOLDERS if folder != "part"]
ODD: list[Any] = [
    None, True, 0, 1, -1, 2**63, 2**64, 10**400, 1.5, "", "x", "../../etc/passwd", "\0", "\ud7ff", "0" * 32, "f" * 32,
    [], [[]], [None], [1, 2], {}, {"a": 1}, [[[[[[]]]]]], "part/x/y", -(2**63), 10**19,
]  # fmt: skip


def sealed(body: Any) -> bytes:
    """Return an object under a right checksum, however wrong it is."""
    raw = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass")[:-1]
    return raw + b',"checksum":"' + xxhash.xxh3_128_hexdigest(raw).encode() + b'"}\n'


def opened(data: bytes) -> Any:
    body = json.loads(data)
    del body["checksum"]
    return body


def replaced(blobs: Blobs, key: str, data: bytes) -> Blobs:
    """Return blobs with another value at key, and all pointers to it made right."""
    changed = {**blobs, key: data}
    if key.startswith(("log/", "checkpoint/")):
        return changed
    pointer = re.compile(rb'"blob":"%b","bytes":\d+,"checksum":"[0-9a-f]{32}"' % re.escape(key.encode()))
    now = b'"blob":"%b","bytes":%d,"checksum":"%b"' % (
        key.encode(),
        len(data),
        xxhash.xxh3_128_hexdigest(data).encode(),
    )
    for other in (*of_folder(blobs, "log"), *of_folder(blobs, "directory"), *of_folder(blobs, "checkpoint")):
        if pointer.search(changed[other]):
            changed = replaced(changed, other, sealed(opened(pointer.sub(now, changed[other]))))
    return changed


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each value within a JSON value."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*path, key))


def changed(body: Any, rng: random.Random) -> Any:
    """Return body with one to three values changed."""
    body = copy.deepcopy(body)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        found = [path for path in places(body) if path != ("persist",) and path != ("format",)]
        if not found:
            return body
        *way, last = rng.choice(found)
        parent = body
        for step in way:
            parent = parent[step]
        _change(parent, last, body, rng)
    return body


def _change(parent: Any, last: Any, body: Any, rng: random.Random) -> None:
    what = rng.random()
    old = parent[last]
    if what < 0.4:
        parent[last] = rng.choice(ODD)
    elif what < 0.55:
        del parent[last]
    elif what < 0.7:
        parent[last] = copy.deepcopy(_at(body, rng.choice(list(places(body)))))
    elif what < 0.85 and isinstance(old, int) and not isinstance(old, bool):
        parent[last] = rng.choice([old + 1, old - 1, -old, old * 2**31])
    elif isinstance(parent, list):
        parent.insert(rng.randrange(len(parent) + 1), copy.deepcopy(old))
    else:
        parent[rng.choice(["unknown", "kind", "parts", "upper", "blob", "inline", last])] = copy.deepcopy(old)


def _at(body: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        body = body[step]
    return body


def use(blobs: Blobs) -> str:
    """Do what clients do with a location; return "fine", or the last error of the library. Others escape."""
    blob = MemoryBlob()
    for key, data in blobs.items():
        blob.set(key, data)
    last = "fine"
    for act in (read, write):
        try:
            act(blob)
        except PersistError as error:
            last = type(error).__name__
    return last


def read(blob: MemoryBlob) -> None:
    with persist.open(blob, mode="read") as client:
        for name in client.collections():
            try:
                read_one(client.load(name))
            except PersistError:
                continue


def read_one(collection: persist.Collection) -> None:
    snapshot = collection.snapshot(timeout_s=0, form="diff")
    list(snapshot.rows())
    snapshot.count()
    for scan in snapshot.slices(4):
        scan.prune()
    lower = (collection.since.time or 0) + 1
    list(collection.changes(lower, max(lower, collection.upper.time or 0), timeout_s=0).updates())


def write(blob: MemoryBlob) -> None:
    with persist.open(blob, settings=SETTINGS) as client:
        for name in client.collections():
            try:
                collection = client.load(name)
                collection.seal(collection.upper.time or 0).result()
                collection.allow_compaction(collection.since).result()
                with collection.hold(collection.since.time or 0):
                    collection.holds()
                collection.compact()
            except PersistError:
                continue
        client.gc()


@pytest.mark.costly("it reads hundreds of changed objects, each in a location of its own")
@pytest.mark.thorough(except_every=5)
@pytest.mark.timeout(1200)  # It reads hundreds of locations, all of them in a release.
@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_object_is_understood_or_refused(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "persist")
    outcomes: dict[str, int] = {}
    # Without checkpoints, all records are read.
    blobs = {
        key: data
        for key, data in ONE.items()
        if kind != "log" or not key.startswith(("checkpoint/", "directory/", "state/"))
    }
    keys = list(of_folder(blobs, kind))
    wanted = max(3, examples(EACH))  # Each is a location that is opened, read, compacted and cleaned.
    for n in range(wanted):
        seed = f"{kind} {SEED + n}"
        rng = random.Random(seed)
        key = rng.choice(keys)
        try:
            outcome = use(replaced(blobs, key, sealed(changed(opened(blobs[key]), rng))))
        except Exception as error:
            raise AssertionError(f"the change of {seed!r} lets {type(error).__name__} escape") from error
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    if wanted > 20:  # Fewer may all hit what is only looked at when it is needed, as much of a descriptor is.
        assert outcomes.get("CorruptBlob", 0) > wanted // 20
        assert len(outcomes) > 1


N = 400_000
RECORD = (
    b'{"persist":"record","format":1,"location":"x","seqno":1,"commit":"x","previous":null,"writer":"x",'
    b'"epoch":null,"written_ms":1,%b}'
)
STATE = b'{"persist":"state","format":1,"location":"x","collection":{"id":"x","name":"x","schema":{},%b}}'


def with_mutation(kind: bytes, members: bytes) -> bytes:
    return RECORD % (b'"mutations":[{"kind":"%b","collection":"x",%b}]' % (kind, members))


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"key": None},
        {"key": 1, "value": None},
        {"key": {"fields": []}, "value": None},
        {"key": {"fields": [["a", "int65"]]}, "value": None},
        {"key": {"fields": [["a", "int64"]]}, "value": {"fields": [["a", "int64"]]}},
        {"key": {"codec": "json", "version": 1, "type": "int64"}, "value": None},
    ],
    ids=repr,
)
def test_a_collection_with_a_schema_that_is_none_is_corrupt(schema: Any) -> None:
    key = next(of_folder(ONE, "log"))
    body = opened(ONE[key])
    assert body["mutations"][0]["kind"] == "create"
    body["mutations"][0]["schema"] = schema
    blob = MemoryBlob()
    blob.set(key, sealed(body))
    with pytest.raises(CorruptBlob, match=key), persist.open(blob, mode="read") as client:
        client.load("destroyed")


BOMBS = {
    "lists in a schema": with_mutation(b"create", b'"name":"x","schema":{"k":[%b[]]}' % (b"[]," * N)),
    "objects in a schema": with_mutation(b"create", b'"name":"x","schema":{"k":[%b{}]}' % (b"{}," * N)),
    "a long frontier": with_mutation(b"seal", b'"upper":[%b1]' % (b"257," * N)),
    "keys of a part": with_mutation(b"append", b'"parts":[{"keys":[%b[]]}]' % (b"[]," * N)),
    "statistics of a part": with_mutation(b"append", b'"parts":[{"stats":{%b"":0}}]' % (b'"":[],' * N)),
    "tokens": with_mutation(b"tokens", b'"tokens":[%b]' % b",".join(b'["%x",0,null]' % n for n in range(N // 4))),
    "tokens of a state": STATE % (b'"tokens":{%b}' % b",".join(b'"%x":[%d,null]' % (n, n) for n in range(N // 4))),
    "runs of a state": STATE % (b'"history":[%b[]]' % (b"[]," * N)),
    "keyframes of a state": STATE % (b'"keyframes":[%b]' % b",".join([b'{"as_of":1,"parts":[]}'] * (N // 10))),
    "parts of a keyframe": STATE % (b'"keyframes":[{"as_of":1,"parts":[%b1]}]' % (b"257," * N)),
    "runs of a replace": with_mutation(b"replace", b'"runs":[%b[]]' % (b"[]," * N)),
    "keyframes of a replace": with_mutation(
        b"replace", b'"keyframes":[%b]' % b",".join([b'{"as_of":1,"parts":[]}'] * (N // 10))
    ),
    "what is unused": with_mutation(b"replace", b'"unused":[%b""]' % (b'"x",' * N)),
    "what was removed": with_mutation(b"replace", b'"removed_runs":[%b1]' % (b"257," * N)),
    "dropped blobs": RECORD % (b'"mutations":[{"kind":"collected","dropped":[%b["x",1]]}]' % (b'["x",1],' * N)),
    "empty mutations": RECORD % (b'"mutations":[%b]' % b",".join([b'{"kind":"close_writer"}'] * (N // 10))),
    "wide text": RECORD % (b'"mutations":[],"writer":"%b\xf0\x9f\x98\x80"' % (b"x" * 3 * N)),
    "nesting": RECORD % (b'"mutations":%b%b' % (b"[" * N, b"]" * N)),
    "unknown nesting": RECORD % (b'"unknown":%b%b' % (b"[" * N, b"]" * N)),
    "a huge number": RECORD % (b'"written_ms":%b' % (b"9" * N)),
    "a long fraction": RECORD % (b'"mutations":0.%b' % (b"9" * N)),
}
OBJECT_FACTOR = 32  # What Python makes of JSON that consists of nothing but empty objects or one-letter names.


@pytest.mark.thorough(except_every=8)
@pytest.mark.parametrize("bomb", BOMBS)
def test_an_object_takes_memory_in_proportion_to_its_length(bomb: str) -> None:
    body = BOMBS[bomb]
    data = body[:-1] + b',"checksum":"' + xxhash.xxh3_128_hexdigest(body[:-1]).encode() + b'"}\n'
    for kind in (Record, StateObject):
        tracemalloc.start()
        try:
            decode_framed(data, kind, "log/1")
        except CorruptBlob:
            pass
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak <= OBJECT_FACTOR * len(data), f"{peak / len(data):.1f} times as much"


@pytest.mark.parametrize("tail", [b"", b"\n", b"}", b'"', b",", b"]}", b"\xff", b"\0" * 99])
def test_what_is_not_json_under_a_right_checksum_is_corrupt(tail: bytes) -> None:
    for body in (b"", b"{", b"[1,2", b'{"persist":"record","format":1', b'{"persist":"\xff"', b"\xef\xbb\xbf{", b"nul"):
        raw = body + tail
        data = raw + b',"checksum":"' + xxhash.xxh3_128_hexdigest(raw).encode() + b'"}\n'
        with pytest.raises(CorruptBlob):
            decode_framed(data, Record, "log/1")
