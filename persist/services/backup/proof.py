"""Verifies that a location is whole: reads all of it, and compares the contents of collections with another copy."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from persist.blob.errors import Corruption
from persist.blob.threads import Clock, SystemClock
from persist.core.errors import AsOfCompacted, AsOfNotSealed, CollectionNotFound
from persist.core.names import OWN_PREFIX
from persist.core.progress import report_work
from persist.core.rendering import Shown, format_count
from persist.core.settings import Location, Settings
from persist.core.state_rules.contents import get_last_sealed
from persist.engine.collection.reads import snapshot
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.location.opening import load_handle, load_handle_by_id, open_engine
from persist.engine.location.writer import OpenOptions
from persist.services.fsck import Problem, fsck


@dataclass(frozen=True)
class Verified(Shown):
    """The result of a verification.

    Attributes:
        seqno: the last record of the log.
        digests: by name, the last sealed time of a collection, and the digest of its contents at that time.
        problems: the problems that `persist.fsck` finds.
        differences: by name, why a collection cannot be read, or how it differs from the other location.
    """

    seqno: int
    digests: Mapping[str, tuple[int, str]]
    problems: tuple[Problem, ...] = ()
    differences: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether there are no problems and no differences."""
        return not self.problems and not self.differences

    def __str__(self) -> str:
        text = f"{format_count(len(self.digests), 'collection')} as of record {self.seqno}"
        wrong = [f"{problem.blob}: {problem.what}" for problem in self.problems]
        wrong += [f"{name}: {why}" for name, why in self.differences.items()]
        if not wrong:
            return f"{text}: all of it was read, and it is whole"
        if self.problems:
            wrong.append("If this is a backup: delete from it the objects that are named here, and back up again.")
        return "\n".join([f"{text}:", *wrong])


def verify(
    location: Location,
    against: Location | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    against_options: Mapping[str, Any] | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
) -> Verified:
    """Read a whole location, and compare its contents with another copy.

    Args:
        location: the one to verify; nothing is written there.
        against: the location of which it is a copy. A collection is compared by its digest at its last sealed time in
            the copy. If that time cannot be read in the other location any more, this is not a difference.
        storage_options, against_options: of the two stores.

    Cost: everything in the location is read twice, and the compared contents of the other location once.

    Raises:
        InvalidUsage: the location does not exist.
        Unavailable: a store did not answer.
    """
    report = fsck(location, storage_options=storage_options, settings=settings, clock=clock)
    digests: dict[str, tuple[int, str]] = {}
    differences: dict[str, str] = {}
    options = OpenOptions("read", settings=settings or Settings(), clock=clock or SystemClock())
    with ExitStack() as ends:
        engine = ends.enter_context(open_engine(location, storage_options, options))
        original = None if against is None else ends.enter_context(open_engine(against, against_options, options))
        names = engine.names() + engine.names(OWN_PREFIX)
        done = ends.enter_context(report_work("verify", engine.url, total=len(names), unit="collections"))
        for name in names:
            try:
                handle = load_handle(engine, name)
                time, version = get_last_sealed(handle.contents()), handle.schema.version
                if time >= 0:
                    digests[name] = (time, _compute_digest(handle, time, version))
                    if original is not None and (why := _describe_difference(original, handle, digests[name])):
                        differences[name] = why
            except Corruption as error:
                differences[name] = str(error)
            done(1)
        return Verified(engine.seqno, digests, tuple(report.problems), differences)


def _compute_digest(handle: CollectionHandle, time: int, version: int) -> str:
    """Return the digest of a collection's contents at a time, with a schema version."""
    with snapshot(handle, time, schema=version) as contents:
        return contents.digest()


def _describe_difference(other: Engine, handle: CollectionHandle, time_and_digest: tuple[int, str]) -> str | None:
    """Return how a collection differs from another copy, or None."""
    time, digest = time_and_digest
    try:
        original = load_handle_by_id(other, handle.id, handle.name)
        original_digest = _compute_digest(original, time, handle.schema.version)
    except (CollectionNotFound, AsOfCompacted):
        return None
    except AsOfNotSealed:
        return f"time {time} is sealed here, and not there"
    return (
        None
        if original_digest == digest
        else f"at time {time} its digest is {digest}, and there it is {original_digest}"
    )
