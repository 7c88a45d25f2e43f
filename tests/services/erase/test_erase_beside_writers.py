"""Others commit while an erasure is planned: after its one record, no update of what was erased is there at any time.

A retraction counts as well as an insertion.
"""

import threading
from collections.abc import Callable
from typing import Any

import pytest

import persist
from persist.blob.protocol import Blob
from tests.services.erase.test_erase import opened
from tests.support.clocks import DatedBlob, ImpatientClock
from tests.support.tuned import tuned

ADA, BOB, LONG = (1, "ada"), (2, "bob"), "long" * 50_000  # No part with it is inline.


class _Beside:
    """Lets things happen before a record of an erasure is created, and counts these records."""

    def __init__(self, inner: Blob, acts: list[Callable[[], object]]) -> None:
        self._inner = inner
        self._acts = acts
        self.records = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create(self, key: str, data: bytes) -> Any:
        if b'"kind":"erase"' not in data:
            return self._inner.create(key, data)
        if self._acts:
            self._acts.pop(0)()
        created = self._inner.create(key, data)
        self.records += created
        return created


def deleted(x: persist.Collection, client: persist.Client) -> None:
    x.delete([1]).result()


def upserted(x: persist.Collection, client: persist.Client) -> None:
    x.upsert([(1, "ada of late"), (3, "eve")]).result()


def overwritten(x: persist.Collection, client: persist.Client) -> None:
    x.overwrite([BOB]).result()


def restored(x: persist.Collection, client: persist.Client) -> None:
    x.write([(1, "ada again")]).result()
    x.restore(0).result()


def large(x: persist.Collection, client: persist.Client) -> None:
    x.overwrite([BOB, *((n, LONG) for n in (1, 5))]).result()
    x.delete([1, 5]).result()


def compacted(x: persist.Collection, client: persist.Client) -> None:
    x.delete([1]).result()
    x.compact()


def forgotten(x: persist.Collection, client: persist.Client) -> None:
    x.delete([1]).result()
    x.allow_compaction(1).result()
    x.compact()


def evolved(x: persist.Collection, client: persist.Client) -> None:
    x.evolve(rename={"v": "w"})
    client.load("x").delete([1]).result()


def cloned(x: persist.Collection, client: persist.Client) -> None:
    client.clone("x", "copy").delete([1]).result()
    x.delete([1]).result()


def stated(x: persist.Collection, client: persist.Client) -> None:
    client.sql("DELETE FROM x WHERE id = 1")


def together(x: persist.Collection, client: persist.Client) -> None:
    with client.multi_write() as multi:
        multi.delete(x, [1])


ACTS = [deleted, compacted, cloned, evolved, restored, overwritten, upserted, large, stated, together, forgotten]
KEYED = [deleted, upserted, overwritten, evolved, compacted, cloned, stated]


def rows_left(client: persist.Client, name: str, key: int = 1) -> list[Any]:
    """Return all updates of a key at any time, and what is there of it at each."""
    x = client.load(name)
    since, end = x.since.time or 0, x.upper.time or 0
    tables = [x.snapshot(time, form="diff").to_arrow() for time in range(since, end)]
    tables += [x.changes(since + 1, end).to_arrow()] if since + 1 < end else []
    return [row for table in tables for row in table.to_pylist() if row["id"] == key]


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize(
    ("act", "keyed", "where"),
    [
        (act, keyed, None if number % 2 else "id = 1")
        for acts, keyed in ((ACTS, None), (KEYED, persist.Keyed()))
        for number, act in enumerate(acts)
    ],
)
def test_what_is_committed_while_an_erasure_is_planned_leaves_nothing_behind_its_record(
    act: Callable[[persist.Collection, persist.Client], None], keyed: Any, where: str | None
) -> None:
    blob = DatedBlob(ImpatientClock())
    with opened(blob) as other:
        x = other.create_or_load("x", key={"id": int}, value={"v": str}, keyed=keyed)
        x.write([ADA, BOB]).result() if keyed is None else x.upsert([ADA, BOB]).result()
        store: Any = _Beside(blob, [lambda: act(x, other)])
        with persist.open(store, clock=blob.clock, settings=tuned(background=False)) as eraser:
            wanted: dict[str, Any] = {"keys": [1]} if where is None else {"where": where}
            began_ms, by = blob.clock.wall_ms(), eraser.engine.writer("erase").committer.writer_name
            eraser.load("x").erase(**wanted, reason="request 1")
        told = {(each.number, each.by, each.reason) for each in other.load("x").erasures()}
        assert told == {(number, by, "request 1") for number in range(1, len(told) + 1)}
        assert {each.at_ms for each in other.load("x").erasures()} <= {began_ms}
        names = [name for name in other.engine.names() if not name.startswith(".")]
        assert store.records == (act is not forgotten), "one record erases all from before it"
        assert not any(rows_left(other, name) for name in names)
        assert rows_left(other, "x", key=2), "others stay"
        assert not other.fsck().problems


def test_a_writer_of_the_same_client_that_never_rests_holds_no_erasure_up() -> None:
    blob = DatedBlob(ImpatientClock())
    with opened(blob) as client:
        x = client.create_or_load("x", key={"id": int}, value={"v": str})
        x.write([ADA, BOB]).result()
        stop, failed, written = threading.Event(), list[BaseException](), threading.Event()

        def write() -> None:
            try:
                for n in range(100_000):
                    if stop.is_set():
                        return
                    x.upsert([(1, f"ada {n}")]).result()
                    written.set()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        written.wait()
        report = x.erase([1], reason="request 1")
        stop.set()
        thread.join()
        assert not failed
        assert report.seqno is not None
        diffs = x.snapshot(form="diff").to_arrow().to_pylist()
        assert all(row["_diff"] > 0 for row in diffs), diffs


@pytest.mark.parametrize("often", [3, 9])
def test_a_writer_that_goes_on_with_large_parts_holds_no_erasure_up(often: int) -> None:
    blob = DatedBlob(ImpatientClock())
    with opened(blob) as other:
        x = other.create_or_load("x", key={"id": int}, value={"v": str})
        x.write([ADA, BOB]).result()
        acts: list[Callable[[], object]] = [lambda: x.upsert([(1, LONG), (2, LONG)]).result()] * often
        store: Any = _Beside(blob, acts)
        with persist.open(store, clock=blob.clock, settings=tuned(background=False)) as eraser:
            eraser.load("x").erase([1], reason="request 1")
        assert (acts, store.records) == ([], 1)
        assert not rows_left(other, "x")


def test_parts_that_waited_too_long_for_the_record_are_made_anew() -> None:
    blob = DatedBlob(ImpatientClock())
    settings = {"inline_bytes": 0, "keyframe_rows_min": 1}
    with opened(blob, **settings) as other:
        x = other.create_or_load("x", key={"id": int}, value={"v": str})
        x.write([ADA, BOB]).result()
        x.compact()
        uploads: list[str] = []

        def wait() -> None:
            uploads.extend(entry.key for entry in blob.list("part/"))
            for number in range(3):
                with opened(blob, **settings) as third:
                    third.load("x").write([(100 + number, "eve")]).result()
                    third.gc()
                blob.clock.sleep(100_000)
            with opened(blob, **settings) as third:
                third.gc()
            assert len([*blob.list("part/")]) < len(uploads), "the upload was collected"

        store: Any = _Beside(blob, [wait])
        with persist.open(store, clock=blob.clock, settings=tuned(background=False, **settings)) as eraser:
            assert eraser.load("x").erase([1], reason="request 1").updates == 1
        assert store.records == 1
        assert not rows_left(other, "x")
        assert len(rows_left(other, "x", key=2)) >= 1
        assert not other.fsck(deep=True).problems
