"""What an examination finds, and the store as it reads it."""

from collections.abc import Iterator
from typing import NoReturn

from persist.blob import (
    Blob,
    BlobEntry,
    CorruptBlob,
    Corruption,
    IncompatibleVersion,
    InvalidUsage,
    MissingBlob,
    StoreMisconfigured,
    get_at_most,
)
from persist.fsck.report import ADVICE, Checked, Problem, ProblemKind
from persist.log import intact_kind

OBJECT_BYTES_MAX = 1 << 30
_BREAKS_A_RULE = ("it is not a valid", "it is not one that a writer would make", "it breaks a rule")
KINDS = {
    "log": "record",
    "checkpoint": "checkpoint",
    "directory": "directory",
    "state": "state",
    "list": "parts",
    "part": "part",
}


class Findings:
    """Problems as they are found, and how much was examined. Problems that were found before are not added again."""

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self._problems: dict[tuple[str, str, str], Problem] = {}
        self.checked: dict[str, Checked] = {}

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(self._problems.values())

    def add(self, kind: ProblemKind, blob: str, what: str, *, collection: str | None = None) -> None:
        problem = Problem(kind, blob, what, ADVICE[kind], collection)
        self._problems.setdefault((kind, blob, what), problem)

    def corruption(self, error: Corruption, *, collection: str | None = None) -> None:
        """Add what a reader of JSON objects raised."""
        if isinstance(error, IncompatibleVersion):
            what = f"it has format version {error.found}, and versions up to {error.supported} are known here"
            self.add("incompatible", error.key, what, collection=collection)
            return
        assert isinstance(error, CorruptBlob), "there are no other kinds"
        kind: ProblemKind = "missing" if isinstance(error, MissingBlob) else self._kind_of_damage(error)
        self.add(kind, error.key, error.reason, collection=collection)

    def count(self, kind: str, size: int) -> None:
        before = self.checked.get(kind, Checked())
        self.checked[kind] = Checked(before.blobs + 1, before.bytes + size)

    def _kind_of_damage(self, error: CorruptBlob) -> ProblemKind:
        try:
            data = get_at_most(self._blob, error.key, OBJECT_BYTES_MAX)
        except CorruptBlob:
            return "damaged"  # It is no plain file, or larger than anything that belongs into a location.
        found = None if data is None else intact_kind(data)
        if found is None:
            return "damaged"
        is_its_place = found == KINDS.get(error.key.partition("/")[0])
        return "rule" if is_its_place and error.reason.startswith(_BREAKS_A_RULE) else "exchanged"


class CountedBlob:
    """A store as an examination reads it: every blob that is read is counted, and none can be written."""

    def __init__(self, inner: Blob, findings: Findings) -> None:
        self._inner = inner
        self._findings = findings
        self._seen: set[str] = set()

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        """Return the value at key; a key that no store can have counts as one that is not there."""
        try:
            data = self._inner.get(key, range)
        except StoreMisconfigured:
            raise
        except InvalidUsage:
            return None
        return data if range is not None else self._counted(key, data)

    def get_at_most(self, key: str, bytes_max: int) -> bytes | None:
        """Like `get`, for a value of at most so many bytes."""
        try:
            data = get_at_most(self._inner, key, bytes_max)
        except StoreMisconfigured:
            raise
        except InvalidUsage:
            return None
        return self._counted(key, data)

    def _counted(self, key: str, data: bytes | None) -> bytes | None:
        if data is not None and key not in self._seen:
            self._seen.add(key)
            self._findings.count(key.partition("/")[0], len(data))
        return data

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        return self._inner.list(prefix, start_after)

    def set(self, key: str, value: bytes) -> NoReturn:
        raise AssertionError("an examination writes nothing")

    def create(self, key: str, value: bytes) -> NoReturn:
        raise AssertionError("an examination writes nothing")

    def delete(self, key: str) -> NoReturn:
        raise AssertionError("an examination deletes nothing")

    def close(self) -> None:
        """Do nothing: whoever opened the store closes it."""
