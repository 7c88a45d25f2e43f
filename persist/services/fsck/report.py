"""The report of an examination: problems, unreferenced blobs and repairs; and the store that counts what is read.

| kind of problem | means |
|---|---|
| beyond | records or checkpoints lie beyond the end of the log: made after records that are not there |
| missing | something refers to the blob, or the log cannot do without it, and it is not there |
| damaged | its bytes are not what was written: changed, cut short or replaced |
| exchanged | its bytes are intact, but belong under another key |
| incompatible | a newer version of persist wrote it |
| rule | a record, or an entry of a state, breaks a rule of the log |
| disagrees | a checkpoint or state object contradicts the log up to it |
| descriptor | a part is as it was stored, but contradicts its descriptor in the log |
| values | a part has a time, diff or float that may not be stored |
| unsorted | rows of a part are not in order |
| unconsolidated | two rows of a part are equal in key, value and time |
| overlap | two parts of one run overlap in key |
| overdue | the newest checkpoint is old, so opening the location must read much of the log |
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from persist.blob.errors import (
    CorruptBlob,
    Corruption,
    IncompatibleVersion,
    InvalidUsage,
    MissingBlob,
    StoreMisconfigured,
)
from persist.blob.protocol import Blob, BlobEntry, get_at_most
from persist.core.log.framing import read_intact_kind
from persist.core.log.keys import LOG
from persist.core.rendering import Shown, align_columns, format_count

ProblemKind = Literal[
    "beyond",
    "missing",
    "damaged",
    "exchanged",
    "incompatible",
    "rule",
    "disagrees",
    "descriptor",
    "values",
    "unsorted",
    "unconsolidated",
    "overlap",
    "overdue",
]

UnreferencedKind = Literal["part", "list", "state", "directory", "record", "lost", "table", "foreign"]

_NO_REPAIR = "restore it from a copy of the location"
ADVICE: Mapping[str, str] = {
    "beyond": (
        "no client can write until it is gone: if records were lost, restore them from a copy; if a backup was "
        "restored "
        "in place, stop all clients and run with repair and set_aside"
    ),
    "missing": _NO_REPAIR,
    "damaged": _NO_REPAIR,
    "exchanged": _NO_REPAIR,
    "incompatible": "upgrade persist, then examine again",
    "rule": "keep the location as it is; no client of this library writes this",
    "disagrees": "keep the location as it is; no client of this library writes this",
    "descriptor": "reads that rely on it may be wrong: write the collection's contents to a new one",
    "values": "write the collection's contents to a new one",
    "unsorted": "reads may be wrong: write the collection's contents to a new one",
    "unconsolidated": "write the collection's contents to a new one",
    "overlap": "reads may be wrong: write the collection's contents to a new one",
    "overdue": "run with repair to make a checkpoint",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a location.

    Attributes:
        kind: see the table above.
        blob: the key of the blob with the problem; "inline part <checksum>" for an inline part whose record or state
            object is not known.
        advice: what the user can do about it.
    """

    kind: ProblemKind
    blob: str
    what: str
    advice: str
    collection: str | None = None


@dataclass(frozen=True, slots=True)
class Unreferenced:
    """A blob without a reference. An upload may still use it.

    `kind` is "part", "list", "state", "directory", "record" (below the log's floor), "lost" (set aside by a repair) or
    "foreign"; `advice` is about when it will be deleted, or why it stays.
    """

    blob: str
    kind: UnreferencedKind
    bytes: int
    age_s: float
    advice: str


@dataclass(frozen=True, slots=True)
class Repair:
    """One step of a repair.

    It creates, replaces or deletes a blob, copies or moves it to `lost/`, or commits a record (with that key, or a
    later one).
    """

    action: Literal["create", "replace", "delete", "copy", "move", "commit"]
    blob: str
    why: str


@dataclass(frozen=True, slots=True)
class Checked:
    """The number and bytes of examined objects of a kind."""

    blobs: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class FsckReport(Shown):
    """The result of an examination; `str` of it is a table.

    Attributes:
        url: of the location.
        problems: in the order of discovery.
        unreferenced: blobs that nothing refers to, by key.
        checked: how much was read and verified, by kind of blob; with deep=False, "part" counts parts that were not
            read.
        unfinished: sentences about pending work of clients, which is not a problem.
        seqno: of the last record; -1 if there is none.
        deep: whether the contents of parts were read.
        repairs_planned: the steps that a repair has to do.
        repairs_done: the steps that were done.
        problems_left: the problems after the repair; the same as `problems` if nothing was repaired.
    """

    url: str
    problems: tuple[Problem, ...] = ()
    unreferenced: tuple[Unreferenced, ...] = ()
    checked: Mapping[str, Checked] = field(default_factory=dict)
    unfinished: tuple[str, ...] = ()
    seqno: int = -1
    deep: bool = True
    repairs_planned: tuple[Repair, ...] = ()
    repairs_done: tuple[Repair, ...] = ()
    problems_left: tuple[Problem, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether there is no problem. Unreferenced blobs are not problems."""
        return not self.problems

    @property
    def is_empty(self) -> bool:
        """Whether the location has no objects."""
        return not (self.problems or self.unreferenced or self.checked)

    def __str__(self) -> str:
        depth = "" if self.deep else ", without reading parts"
        count = format_count(len(self.problems), "problem") if self.problems else "no problem"
        lines = [f"{self.url} up to seqno {self.seqno}{depth}: {count}"]
        checked = [(kind, f"{c.blobs:,}", f"{c.bytes:,}") for kind, c in self.checked.items()]
        lines += _format_section("checked", ("kind", "blobs", "bytes"), checked, right=(1, 2))
        lines += _format_problems("problems", self.problems)
        leaked = [(u.kind, u.blob, f"{u.bytes:,}", _format_age(u.age_s), u.advice) for u in self.unreferenced]
        lines += _format_section(
            "nothing refers to", ("kind", "blob", "bytes", "age", "what to do"), leaked, right=(2, 3)
        )
        lines += ["", "unfinished", *(f"  {sentence}" for sentence in self.unfinished)] if self.unfinished else []
        planned = [(r.action, r.blob, r.why) for r in self.repairs_planned]
        lines += _format_section("repairs planned", ("action", "blob", "why"), planned)
        done = [(r.action, r.blob, r.why) for r in self.repairs_done]
        lines += _format_section("repairs done", ("action", "blob", "why"), done)
        if done and self.problems:
            lines += _format_problems("problems left", self.problems_left) or ["", "no problem is left"]
        return "\n".join(lines)


def _format_problems(title: str, problems: Sequence[Problem]) -> list[str]:
    """Return problems as the lines of a table."""
    rows = [(p.kind, p.blob, p.collection or "", p.what, p.advice) for p in problems]
    return _format_section(title, ("kind", "blob", "collection", "what is wrong", "what to do"), rows)


def _format_section(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()
) -> list[str]:
    """Return a titled table as lines; [] without rows."""
    cells = [[" ".join(cell.split()) for cell in row] for row in (head, *rows)]
    return ["", title, *(f"  {line}" for line in align_columns(cells, right))] if rows else []


def _format_age(age_s: float) -> str:
    """Return an age in days, hours, minutes or seconds."""
    for unit, seconds in (("d", 86400), ("h", 3600), ("min", 60)):
        if age_s >= seconds:
            return f"{age_s / seconds:.1f} {unit}"
    return f"{max(0.0, age_s):.0f} s"


OBJECT_BYTES_MAX = 1 << 30
_BREAKS_A_RULE = ("it is not a valid", "no writer would make it", "it breaks a rule")
KINDS = {
    "log": "record",
    "checkpoint": "checkpoint",
    "directory": "directory",
    "state": "state",
    "list": "parts",
    "part": "part",
}


class Findings:
    """Collects problems, each once, and counts of examined objects."""

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self._problems: dict[object, Problem] = {}
        self.checked: dict[str, Checked] = {}

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(self._problems.values())

    def add(self, kind: ProblemKind, blob: str, what: str, *, collection: str | None = None) -> None:
        """Add a problem, with the advice of its kind."""
        problem = Problem(kind, blob, what, ADVICE[kind], collection)
        self._problems.setdefault((kind, blob, what), problem)

    def add_missing_log(self, what: str, advice: str) -> None:
        """Add the problem that there is no log."""
        self._problems[LOG] = Problem("missing", LOG, what, advice)

    def add_corruption(self, error: Corruption, *, collection: str | None = None) -> None:
        """Add a problem for an error that a reader raised."""
        if isinstance(error, IncompatibleVersion):
            what = f"it has format version {error.found}, and versions up to {error.supported} are known here"
            self.add("incompatible", error.key, what, collection=collection)
            return
        assert isinstance(error, CorruptBlob), "there are no other kinds"
        kind: ProblemKind = "missing" if isinstance(error, MissingBlob) else self._classify_damage(error)
        self.add(kind, error.key, error.reason, collection=collection)

    def count(self, kind: str, size: int) -> None:
        """Count an examined object of some kind, and its bytes."""
        checked = self.checked.get(kind, Checked())
        self.checked[kind] = Checked(checked.blobs + 1, checked.bytes + size)

    def _classify_damage(self, error: CorruptBlob) -> ProblemKind:
        """Return the kind of problem that an error about a corrupt blob means."""
        try:
            data = get_at_most(self._blob, error.key, OBJECT_BYTES_MAX)
        except CorruptBlob:
            return "damaged"  # It is not a plain file, or larger than any object of a location.
        kind_of_object = None if data is None else read_intact_kind(data)
        if kind_of_object is None:
            return "damaged"
        is_its_place = kind_of_object == KINDS.get(error.key.partition("/")[0])
        return "rule" if is_its_place and error.reason.startswith(_BREAKS_A_RULE) else "exchanged"


class CountedBlob:
    """A read-only store that counts every blob that is read."""

    def __init__(self, inner: Blob, findings: Findings) -> None:
        self._inner = inner
        self._findings = findings
        self._seen: set[str] = set()

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        """Return the value at key; None for an invalid key."""
        try:
            data = self._inner.get(key, range)
        except StoreMisconfigured:
            raise
        except InvalidUsage:
            return None
        return data if range is not None else self._count(key, data)

    def get_at_most(self, key: str, bytes_max: int) -> bytes | None:
        """Return the value at key, which has at most `bytes_max` bytes."""
        try:
            data = get_at_most(self._inner, key, bytes_max)
        except StoreMisconfigured:
            raise
        except InvalidUsage:
            return None
        return self._count(key, data)

    def _count(self, key: str, data: bytes | None) -> bytes | None:
        """Count an object's bytes at its first read; return its data."""
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
        """Do nothing: the opener of the store closes it."""
