"""What must hold of a location after every deletion: whatever the newest checkpoint names exists and can be read.

It reads the JSON by itself, as `docs/inside/format.md` describes it, and shares no code with the library.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from persist.blob.protocol import Blob, BlobEntry

CHECKPOINT = re.compile(r"checkpoint/[0-9]{20}-([0-9]{20})\.json")
_RECORD = re.compile(r"log/[0-9]{20}")
_NAMED = re.compile(
    r"(?:part|list|state|directory)/[0-9a-f/]+-[0-9a-f]{32}\.(?:json|parquet)|part/[0-9a-f/]+/deletion_vector_[0-9a-f-]{36}\.bin"
)


class Dangling(AssertionError):
    """Something that is in use names a blob that is not there."""


def check_named(blob: Blob) -> None:
    """Raise Dangling if what the newest checkpoint names, or a record after it, does not exist.

    Those are directory objects, state objects, part lists, parts and what published tables need, through all of
    them. The records after the checkpoint must be there without a gap.
    Others may go on meanwhile. Cost: a LIST of the log, and a GET of everything but parts.
    """
    newest = _newest(blob)
    try:
        _check(blob, newest)
    except Dangling:
        if _newest(blob) == newest:
            raise
        check_named(blob)


def _newest(blob: Blob) -> str | None:
    return next((entry.key for entry in blob.list("checkpoint/") if CHECKPOINT.fullmatch(entry.key)), None)


def _check(blob: Blob, newest: str | None) -> None:
    found = None if newest is None else CHECKPOINT.fullmatch(newest)
    seqno = -1 if found is None else int(found[1])
    entries: dict[str, Any] = {}
    if newest is not None:
        checkpoint = _read(blob, newest, "the store lists it")
        for pointer in checkpoint["directory"]:
            _apply(entries, _read(blob, pointer["blob"], newest))
        _apply(entries, checkpoint)
    records = [entry.key for entry in blob.list("log/") if _RECORD.fullmatch(entry.key)]
    later = [key for key in records if int(key[4:]) > seqno]
    if later != [f"log/{seqno + 1 + n:020d}" for n in range(len(later))]:
        raise Dangling(f"after seqno {seqno} there are the records {later}")
    mutations = [mutation for key in later for mutation in _read(blob, key, "the log")["mutations"]]
    gone = {mutation["collection"] for mutation in mutations if mutation["kind"] == "destroy"}
    for id_, entry in entries.items():
        if id_ not in gone:
            ours = [mutation for mutation in mutations if mutation.get("collection") == id_]
            _check_collection(blob, entry, [*entry.get("pending", ()), *ours], newest)


def _apply(entries: dict[str, Any], changes: Any) -> None:
    entries.update({entry["id"]: entry for entry in changes["collections"]})
    for id_ in changes.get("gone", ()):
        del entries[id_]


def _check_collection(blob: Blob, entry: Any, mutations: Sequence[Any], newest: str | None) -> None:
    base = entry.get("base")
    named = set() if base is None else {*keys_in(_read(blob, base["blob"], newest)["collection"])}
    unused: set[str] = set()
    for mutation in mutations:
        if "parts_in" in mutation:
            named.update(keys_in(_read(blob, mutation["parts_in"]["blob"], newest)["parts"]))
        unused.update(mutation.get("unused", ()))
        named.update(keys_in([mutation.get("parts", ()), mutation.get("blobs", ())]))
    for key in sorted(named - unused):
        if blob.get(key, range=(0, 1)) is None:
            raise Dangling(f"{key} is missing, and collection {entry['name']!r} of {newest} is made of it")


def _read(blob: Blob, key: str, by: str | None) -> Any:
    data = blob.get(key)
    if data is None:
        raise Dangling(f"{key} is missing, and {by} names it")
    return json.loads(data)


def keys_in(value: Any) -> Iterator[str]:
    """Yield the names of blobs anywhere in what JSON says."""
    if isinstance(value, str):
        if _NAMED.fullmatch(value):
            yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from keys_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_in(inner)


class Guarded:
    """Passes calls on to a store, and checks what `check_named` says after every deletion and every new checkpoint."""

    def __init__(self, inner: Blob) -> None:
        self._inner = inner

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        return self._inner.get(key, range)

    def set(self, key: str, value: bytes) -> None:
        self._inner.set(key, value)

    def create(self, key: str, value: bytes) -> bool:
        is_created = self._inner.create(key, value)
        if key.startswith("checkpoint/"):
            self._check(f"{key} was made")
        return is_created

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        return self._inner.list(prefix, start_after)

    def delete(self, key: str) -> None:
        self._inner.delete(key)
        self._check(f"{key} was deleted")

    def close(self) -> None:
        self._inner.close()

    def _check(self, what: str) -> None:
        try:
            check_named(self._inner)
        except Dangling as error:
            raise Dangling(f"after {what}: {error}") from None
