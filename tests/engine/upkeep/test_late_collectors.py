"""Collectors that are late: one stops before any request of its round, for hours, while others commit and collect.

After every deletion, by whomever, all that the newest checkpoint names is there (`tests/support/invariants.py`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, cast

import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import Blob, BlobEntry
from persist.core.log import records as commits
from persist.core.log.keys import make_checkpoint_key
from persist.engine.follow.checkpoint import write_checkpoint
from tests.support.clocks import DatedBlob, ImpatientClock
from tests.support.invariants import Guarded, check_named
from tests.support.tuned import tuned

HOUR = 3600.0
KEY = {"k": pa.int64()}
SETTINGS: dict[str, Any] = {
    "background": False,
    "hold_linger_s": 0,
    "grace_s": 600.0,
    "orphan_grace_s": HOUR,
    "log_retention_records": 16,
    "log_retention_s": HOUR,
}
ROWS = pa.table({"k": range(2_000)})


class Pausing:
    """Passes calls on to a store; before the call of number `at`, from when it is set on, something happens once."""

    def __init__(self, inner: Blob) -> None:
        self._inner = inner
        self.calls = 0
        self.at: int | None = None
        self.meanwhile: Callable[[], object] = lambda: None
        self.log: list[str] = []

    def pause(self, at: int | None, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.calls, self.at, self.meanwhile, self.log = 0, at, meanwhile, []

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        self._call("get", key)
        return self._inner.get(key, range)

    def set(self, key: str, value: bytes) -> None:
        self._call("set", key)
        self._inner.set(key, value)

    def create(self, key: str, value: bytes) -> bool:
        self._call("create", key)
        return self._inner.create(key, value)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        self._call("list", prefix)
        return iter([*self._inner.list(prefix, start_after)])

    def delete(self, key: str) -> None:
        self._call("delete", key)
        self._inner.delete(key)

    def delete_page(self, keys: Sequence[str]) -> Mapping[str, persist.PersistError]:
        self._call("delete_page", keys[0])
        for key in keys:
            self._inner.delete(key)
        return {}

    def close(self) -> None:
        self._inner.close()

    def _call(self, operation: str, key: str) -> None:
        number, self.calls = self.calls, self.calls + 1
        self.log.append(f"{operation} {key}")
        if number == self.at:
            self.meanwhile()


class World:
    """A location with a busy collection and quiet ones, a store whose clock is set by hand, and several clients."""

    def __init__(self, stack: ExitStack, clients: int, **changed: Any) -> None:
        self.clock = ImpatientClock(1_800_000_000.0)
        self.store = DatedBlob(self.clock)
        self.paths = [Pausing(Guarded(self.store)) for _ in range(clients)]
        settings = tuned(**SETTINGS | changed)
        self.clients = [
            stack.enter_context(persist.open(cast(Blob, path), clock=self.clock, settings=settings))
            for path in self.paths
        ]
        self.writer = self.clients[-1]
        self.time = 0
        self.rows = 0
        self.busy = self.writer.create_or_load("busy", key=KEY)
        self.made = 0
        self.commit(20)

    def commit(self, records: int, over_s: float = 0.0) -> None:
        """Commit to the busy collection so many times, and let so much time pass."""
        for _ in range(records):
            self.busy.write([((1, None), self.time, 1)], seal=self.time + 1).result()
            self.time, self.rows = self.time + 1, self.rows + 1
            self.clock.sleep(over_s / records)
            self.settle(self.writer)

    def settle(self, client: persist.Client) -> None:
        client.engine.writer("a test").committer.groups.checkpointing.wait()

    def make_quiet(self) -> None:
        """Make collections that have state objects of their own, and do not change after that."""
        for _ in range(2):
            quiet = self.writer.create_or_load(f"quiet {self.made}", key=KEY)
            self.made += 1
            quiet.write(ROWS, time=0, seal=1).result()
            quiet.write([((1, None), 1, 1)], seal=2).result()
            quiet.compact()
            commits.PARTS_INLINE_MAX = 0  # Set back by `small_objects`.
            quiet.write(ROWS, time=2).result()
            commits.PARTS_INLINE_MAX = 1
        self.settle(self.writer)

    def prepare(self) -> None:
        """Bring about what a collection of garbage can go wrong about."""
        self.commit(40)
        self.make_quiet()
        self.commit(40, HOUR / 2)
        doomed = self.writer.create_or_load("doomed", key=KEY)
        doomed.write(ROWS, time=0, seal=1).result()
        doomed.drop().result()
        self.commit(40, 1.5 * HOUR)

    def go_on(self, collector: int = -1) -> None:
        """Do what others do while one is late: commits, checkpoints, grace periods, and collections to the end."""
        self.make_quiet()
        self.commit(33)
        self.clock.sleep(1.2 * HOUR)
        self.collect(collector)
        self.commit(20, 30.0)
        self.collect(collector)
        self.clock.sleep(1.2 * HOUR)
        self.commit(20, 30.0)
        self.collect(collector)

    def collect(self, collector: int) -> None:
        self.clients[collector].gc()

    def check(self) -> None:
        """Check that everything can be read, that a collection of garbage works, and that nothing is damaged."""
        check_named(self.store)
        self.commit(17)
        with persist.open(self.store, clock=self.clock, settings=tuned(**SETTINGS)) as client:
            client.gc()
            assert client.load("busy").snapshot().count() == self.rows
            for n in range(self.made):
                quiet = client.load(f"quiet {n}")
                quiet.seal(3).result()
                assert quiet.snapshot(2).count() == 2 * ROWS.num_rows + 1
            report = client.fsck()
            assert report.is_clean, report


@pytest.fixture(autouse=True)
def small_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make directory objects, state objects and part lists of little data."""
    monkeypatch.setattr("persist.engine.follow.directory.INLINE_BYTES_MAX", 600)
    monkeypatch.setattr("persist.engine.follow.checkpoint.STORED_PENDING_MAX", 2)
    monkeypatch.setattr(commits, "PARTS_INLINE_MAX", 1)  # Beyond what the busy collection needs.


def late(at: int | None, **changed: Any) -> Pausing:
    """Run a world in which the first collector is late at its call of number `at`; return its store."""
    with ExitStack() as stack:
        world = World(stack, 2, **changed)
        world.prepare()
        path = world.paths[0]
        path.pause(at, world.go_on)
        world.clients[0].gc()
        world.check()
        return path


CALLS = 300  # More than a round of this world has.


@pytest.mark.thorough(except_every=300)
@pytest.mark.costly("a world of its own for each of hundreds of calls")
@pytest.mark.parametrize("at", range(CALLS))
def test_rule_24_a_collector_that_is_late_anywhere_deletes_nothing_that_the_newest_checkpoint_names(at: int) -> None:
    late(at)


@pytest.mark.thorough  # It checks the test above, which makes the same world.
def test_the_pauses_are_at_every_request_of_a_round() -> None:
    assert 50 < late(None).calls < CALLS


def late_while_a_checkpoint_comes_and_is_kept(at: int | None) -> tuple[list[str], bool]:
    """Let others keep a checkpoint as the last one of its hour while a collector is late at its call of number `at`.

    Returns:
        The calls of the collector, and whether the checkpoint is there at the end.
    """

    def change() -> None:
        for n in range(world.made):
            client.load(f"quiet {n}").write([((-1, None), 2, 1)]).result()
        make_checkpoint()

    def make_checkpoint() -> None:
        client.collections()
        write_checkpoint(world.store, *client.engine.follower.get_recent_records())

    def meanwhile() -> None:
        world.commit(1)
        make_checkpoint()
        kept.append(client.seqno)
        world.clock.sleep(1.1 * HOUR)
        change()
        make_checkpoint()
        client.gc()

    kept: list[int] = []
    with ExitStack() as stack:
        world = World(stack, 2)
        client = world.clients[1]
        world.prepare()
        change()
        world.clock.sleep(HOUR / 2)
        world.commit(1)
        make_checkpoint()
        world.paths[0].pause(at, meanwhile)
        world.clients[0].gc()
        report = client.fsck()
        assert report.is_clean, report
        return world.paths[0].log, bool(kept) and world.store.get(make_checkpoint_key(kept[0])) is not None


def test_a_late_collector_keeps_what_a_checkpoint_names_that_others_made_and_kept_meanwhile() -> None:
    calls, _ = late_while_a_checkpoint_comes_and_is_kept(None)
    objects = next(n for n, call in enumerate(calls) if call.startswith("list directory/"))
    newest = max(n for n, call in enumerate(calls[:objects]) if call.startswith("list checkpoint/"))
    _, is_kept = late_while_a_checkpoint_comes_and_is_kept(newest)
    assert is_kept
