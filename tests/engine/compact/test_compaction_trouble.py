"""Compaction where something comes in between, or where numbers are at their limits."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.blob.protocol import MemoryBlob
from persist.codecs.part.part import Part
from persist.codecs.updates.updates import to_updates
from persist.core.errors import Superseded
from persist.core.log import kinds
from persist.core.settings import Tuning
from persist.core.state_rules.contents import CollectionState
from persist.engine.compact.planner import Forget, MakeKeyframe, Thin, Work
from persist.engine.read.parts.caches import SliceLeftovers
from persist.engine.read.parts.reader import PartReader
from persist.engine.write.part_writer import PartWriter
from tests.engine.compact.test_compaction import report_of
from tests.support.clocks import ImpatientClock
from tests.support.keyframes import add_keyframe
from tests.support.parts import commit_parts
from tests.support.stepped import WAIT_S, Stepped
from tests.support.tuned import tuned

KEY, VALUE = {"k": pa.int64()}, {"v": pa.string()}
Update = tuple[tuple[Any, Any], int, int]


def policy(**changed: Any) -> Tuning:
    small = {"keyframe_rows_min": 4, "keyframe_fraction": 0.3, "merge_runs": 2, "inline_runs": 3, "inline_bytes": 2000}
    return Tuning(**{**small, **changed})


def every_key_a_part() -> Tuning:
    """Return a policy whose parts are smaller than makes sense, so that runs have many."""
    return policy(part_bytes=1)


def opened(blob: MemoryBlob | UnreliableBlob, how: Tuning | None = None, **changed: Any) -> persist.Client:
    quiet = {"background": False, "hold_linger_s": 0, "grace_s": 0, "orphan_grace_s": 0}
    settings = tuned(how or policy(), **{**quiet, **changed})
    return persist.open(blob, clock=ImpatientClock(), settings=settings)


def as_of(updates: list[Update], time: int) -> dict[Any, int]:
    sums: Counter[Any] = Counter()
    for record, at, diff in updates:
        if at <= time:
            sums[record] += diff
    return {record: n for record, n in sums.items() if n}


def check(collection: persist.Collection, updates: list[Update]) -> None:
    """Assert that a collection holds these at every time that can be read."""
    since, upper = collection.since.time, collection.upper.time
    last = max(time for _, time, _ in updates) if upper is None else upper - 1
    for time in range(last if since is None else since, last + 1):
        assert dict(collection.snapshot(time, form="diff").rows()) == as_of(updates, time), time


def fill(collection: persist.Collection, times: range, *, keys: int = 4) -> list[Update]:
    """Write and seal one change after the other."""
    written: list[Update] = []
    for time in times:
        here: list[Update] = [((time % keys, f"v{time}"), time, 1)]
        here += [((time % keys, f"v{time - keys}"), time, -1)] if time - keys >= times.start else []
        collection.write(here, seal=time + 1).result()
        written += here
    return written


@pytest.mark.parametrize("how", [policy, every_key_a_part])
def test_a_keyframe_before_another_one_is_made_of_what_can_be_told_apart(how: Any) -> None:
    with opened(MemoryBlob(), how()) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        written = fill(c, range(6))
        c.seal(20).result()
        assert c.compact().keyframes == (19,)
        c.allow_compaction(15).result()
        # No history lies between the two times, so the later one would do as it is, but for what its rows say.
        report = c.compact()
        assert report.forgotten == 15
        check(c, written)
        assert client.fsck().is_clean


def uploaded(client: persist.Client, c: persist.Collection, updates: list[Update]) -> tuple[Part, ...]:
    return PartWriter(client.engine.blob, client.engine.follower.find_next_seqno).upload(
        c.id, c.schema, to_updates(updates, c.schema)
    )


def test_a_part_that_was_committed_twice_stays_as_long_as_either_is_in_use() -> None:
    updates: list[Update] = [((k, "x"), 0, 1) for k in range(10)]
    with opened(MemoryBlob(), policy(merge_runs=100, inline_runs=100)) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        parts = uploaded(client, c, updates)
        for _ in range(2):
            commit_parts(c, parts).result()
        c.seal(1).result()
        (one,), (other,) = c.handle.contents().history
        brought = uploaded(client, c, updates)
        merge = kinds.Replace(c.id, brought, removed_runs=(one,), runs=((-1,),))
        client.engine.submit("compact", [merge], {c.id: c.name}).result()
        client.gc()
        check(c, updates * 2)
        assert [other] in [[*run] for run in c.handle.contents().history]


def test_a_part_that_compaction_has_replaced_cannot_be_committed_again() -> None:
    updates: list[Update] = [((k, "x"), 0, 1) for k in range(10)]
    with opened(MemoryBlob(), grace_s=3600) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        parts = uploaded(client, c, updates)
        commit_parts(c, parts).result()
        commit_parts(c, uploaded(client, c, updates)).result()
        assert c.compact().runs_merged == 2
        with pytest.raises(persist.PersistError, match="uploaded too long ago"):
            commit_parts(c, parts).result()
        c.seal(1).result()
        check(c, updates * 2)


class Meanwhile:
    """Passes calls on to a store, and lets something happen before the n-th one that changes a kind of key."""

    def __init__(self, inner: MemoryBlob, kind: str, n: int, act: Callable[[], object]) -> None:
        self._inner, self._kind, self._n, self._act = inner, kind, n, act
        self.happened = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        self._count(f"get {key}")
        return self._inner.get(key, range)

    def set(self, key: str, value: bytes) -> None:
        self._count(key)
        self._inner.set(key, value)

    def create(self, key: str, value: bytes) -> bool:
        self._count(key)
        return self._inner.create(key, value)

    def _count(self, key: str) -> None:
        if key.startswith(f"{self._kind}/"):
            self._n -= 1
            if self._n == 0 and not self.happened:
                self.happened = True
                self._act()


def leftovers(*clients: persist.Client) -> set[str]:
    """Collect garbage when nobody reads; return the parts that are there and in no collection."""
    for client in clients:
        client.maintain()
    client = clients[-1]
    client.gc()
    named = {part.blob for name in client.collections() for part in client.load(name).handle.contents().parts}
    assert client.fsck().is_clean
    return {entry.key for entry in client.engine.blob.list("part/")} - named


DEEDS: dict[str, Callable[[persist.Collection], Any]] = {
    "the same compaction": lambda c: c.compact(),
    "what is due": lambda c: c.compact(only_due=True),
    "since moves and garbage goes": lambda c: (
        c.allow_compaction(7).result(),
        c.compact(),
        persist.Client(c.handle.engine).gc(),
    ),
    "a write": lambda c: c.write([((1, "v5"), 12, -1), ((9, "late"), 12, 1)], seal=13).result(),
    "a write that is not sealed": lambda c: c.write([((1, "late"), 15, 1)]).result(),
    "a seal": lambda c: c.seal(20).result(),
    "complete for ever": lambda c: c.seal(persist.Antichain()).result(),
    "nothing may be read any more": lambda c: c.allow_compaction(persist.Antichain()).result(),
    "beyond upper": lambda c: c.allow_compaction(100).result(),
}


@pytest.mark.thorough(except_every=8)
@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize(
    ("kind", "n", "how"),
    [("get part", 1, policy), ("part", 2, every_key_a_part), ("log", 2, every_key_a_part), ("log", 3, policy)],
)
def test_two_clients_compact_and_readers_keep_their_answers(deed: str, kind: str, n: int, how: Any) -> None:
    """The first record of the one that is interrupted says that since moves on; then come its compactions."""
    blob = MemoryBlob()
    written: list[Update] = []

    def act() -> None:
        DEEDS[deed](other.load("c"))

    store = Meanwhile(blob, kind, n, act)
    with opened(blob, how()) as other, opened(store, how()) as client:  # type: ignore[arg-type]
        c = other.create_or_load("c", key=KEY, value=VALUE)
        written += fill(c, range(8))
        c.compact()
        written += [((k, f"v{k}"), 9, 1) for k in range(4)] + [((0, "straddles"), 9, 1), ((0, "straddles"), 30, -1)]
        c.write(written[-6:]).result()
        written += fill(c, range(10, 12))
        open_snapshot, expected = c.snapshot(3, form="diff"), as_of(written, 3)
        listen = c.listen(3)
        mine = client.load("c")
        store.happened = False
        store._n = n
        mine.allow_compaction(5).result()
        mine.compact()
        assert store.happened
        mine.compact()
        if deed == "a write":
            written += [((1, "v5"), 12, -1), ((9, "late"), 12, 1)]
        elif deed == "a write that is not sealed":
            written += [((1, "late"), 15, 1)]
        assert dict(open_snapshot.rows()) == expected
        progress = listen.poll()
        assert progress is not None
        open_snapshot.close()
        listen.close()
        if not mine.since.is_empty:
            check(mine, written)
        for each in (other, client):
            assert each.load("c").compact() is not None
        if not mine.since.is_empty:
            check(mine, written)
        assert leftovers(other, client) == set()


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(("kind", "n"), [("get part", 1), ("part", 1), ("part", 2), ("log", 1), ("log", 2)])
def test_a_collection_is_destroyed_under_its_compaction(kind: str, n: int, again: bool) -> None:
    blob = MemoryBlob()

    def act() -> None:
        other.load("c").drop().result()
        other.gc()
        if again:
            fill(other.create_or_load("c", key=KEY, value=VALUE), range(2))

    store = Meanwhile(blob, kind, n, act)
    with opened(blob) as other, opened(store) as client:  # type: ignore[arg-type]
        c = other.create_or_load("c", key=KEY, value=VALUE)
        fill(c, range(8))
        c.compact()
        fill(c, range(8, 12))
        store.happened = False
        store._n = n
        with pytest.raises(persist.errors.CollectionNotFound):
            client.load("c").compact()
        assert store.happened
        assert leftovers(other, client) == set()
        if again:
            assert client.load("c").snapshot(1).count() == 2


def test_a_merge_that_would_overflow_is_not_done_and_nothing_is_lost() -> None:
    with opened(MemoryBlob()) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        for _ in range(3):
            c.write([((1, "x"), 0, 2**62), ((2, "y"), 0, 1)]).result()
        c.write([((1, "x"), 1, -(2**62)), ((1, "x"), 2, -(2**62))], seal=3).result()
        before = c.handle.contents()
        with pytest.raises(persist.errors.DiffOverflow):
            c.compact()
        assert c.handle.contents().history == before.history
        assert dict(c.snapshot(2, form="diff").rows()) == {(1, "x"): 2**62, (2, "y"): 3}


def test_a_keyframe_that_would_overflow_is_tried_once() -> None:
    with opened(MemoryBlob()) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        for diff in (1, -1):  # What goes makes a keyframe due.
            c.write([((1, "x"), 0, 2**62), ((2, "y"), 0, diff)]).result()
        c.seal(1).result()
        with pytest.raises(persist.errors.DiffOverflow):
            c.compact()


def test_the_first_time_is_forgotten_out_of_a_run_of_two() -> None:
    with opened(MemoryBlob()) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        c.write([((1, "x"), 0, 1), ((2, "y"), 1, 1), ((3, "z"), 0, 1)]).result()
        c.write([((3, "z"), 0, -1)], seal=1).result()
        c.compact()
        c.seal(2).result()
        c.allow_compaction(1).result()
        before = [part for part in c.handle.contents().history_parts if part.time_max > 0]
        report = c.compact(only_due=True)
        written = [part for part in c.handle.contents().history_parts if part.time_min == 1]
        assert (report, len(before)) == (report_of(before, written, forgotten=0), 1)
        assert sorted(c.snapshot(1).rows()) == [(1, "x"), (2, "y")]


@pytest.mark.thorough(except_every=5)
@pytest.mark.parametrize("how", [policy, every_key_a_part])
@pytest.mark.parametrize(
    ("key", "records"),
    [
        (None, [None, None, None]),
        ({"k": pa.list_(pa.int64())}, [[1], [1, None], None]),
        ({"k": pa.struct([("x", pa.int8())])}, [{"x": 1}, {"x": None}, None]),
        ({"k": pa.float64()}, [float("nan"), -0.0, float("inf")]),
        ({"k": pa.string()}, ["", "\N{SNOWMAN}", None]),
        ({"a": pa.int64(), "b": pa.bool_()}, [(1, None), (None, True), (1, False)]),
    ],
    ids=["unit", "list", "struct", "float", "string", "two"],
)
def test_keys_of_every_sort_are_compacted(key: Any, records: list[Any], how: Any) -> None:
    with opened(MemoryBlob(), how()) as client:
        c = client.create_or_load("c", key=key, value=VALUE)

        def contents(time: int) -> list[Any]:
            return sorted(map(repr, c.snapshot(time, form="diff").to_arrow().to_pylist()))

        for time in range(6):
            rows = [((k, f"{time}"), time, n + 1) for n, k in enumerate(records)]
            rows += [((k, f"{time - 1}"), time, -n - 2) for n, k in enumerate(records) if time]
            c.write(rows, seal=time + 1).result()
        expected = [contents(time) for time in range(6)]
        assert c.compact().keyframes == (5,)
        assert [contents(time) for time in range(6)] == expected
        c.allow_compaction(3).result()
        assert c.compact().forgotten == 3
        assert [contents(time) for time in range(3, 6)] == expected[3:]
        assert client.fsck().is_clean


def test_a_write_with_a_token_happens_once_although_its_part_was_compacted_away() -> None:
    blob = MemoryBlob()
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        for token in "abc":
            c.write([((1, token), 5, 1)], token=token).result()
        assert c.compact().runs_merged == 3
        c.write([((1, "b"), 5, 1)], token="b").result()
    with opened(blob) as client:
        c = client.load("c")
        c.write([((1, "c"), 5, 1)], token="c").result()
        c.seal(6).result()
        c.compact()
        assert dict(c.snapshot(5, form="diff").rows()) == {(1, "a"): 1, (1, "b"): 1, (1, "c"): 1}


def test_what_is_complete_for_ever_and_read_by_nobody_is_compacted_to_what_it_comes_to() -> None:
    blob = MemoryBlob()
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        written = fill(c, range(8))
        c.allow_compaction(persist.Antichain())
        c.seal(persist.Antichain()).result()
        assert c.compact().forgotten == 7
        contents = c.handle.contents()
        assert sum(part.rows for part in contents.parts) == len(as_of(written, 7))
        assert not contents.history
        assert c.compact() == persist.CompactionReport()
        assert leftovers(client) == set()
    with opened(blob) as client:
        assert client.load("c").upper.is_empty


def test_since_beyond_upper_lets_compaction_forget_what_is_sealed_and_nothing_else() -> None:
    with opened(MemoryBlob()) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        written = fill(c, range(6))
        written += [((1, "unsealed"), 8, 1), ((1, "unsealed"), 50, -1)]
        c.write(written[-2:]).result()
        c.allow_compaction(100).result()
        assert c.compact().forgotten == 5
        c.seal(200).result()
        check(c, written)
        assert c.compact().forgotten == 100
        check(c, written)


def work(client: persist.Client, *todo: Work) -> list[persist.CompactionReport]:
    """Do certain pieces of compaction."""
    compactor = client.engine.writer("a test").compactor
    return [compactor._run_work(client.load("c").handle.contents(), each) for each in todo]


def test_keyframes_that_are_dropped_are_counted() -> None:
    with opened(MemoryBlob()) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        fill(c, range(10))
        work(client, MakeKeyframe(2), MakeKeyframe(5), MakeKeyframe(8))
        assert work(client, Thin((2,))) == [persist.CompactionReport(keyframes_dropped=1)]
        c.allow_compaction(8).result()
        assert work(client, Forget(8)) == [persist.CompactionReport(forgotten=8, keyframes_dropped=1)]
        assert [keyframe.as_of for keyframe in c.handle.contents().keyframes] == [8]
        assert [part.time_min for part in c.handle.contents().history_parts] == [9]


@pytest.mark.parametrize("last", [4, 5, 6])
def test_what_one_commit_holds_on_both_sides_of_a_forgotten_time_is_forgotten_on_one_side_only(last: int) -> None:
    """The time right after it above all: there the history that stays begins."""
    with opened(MemoryBlob()) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        before: list[Update] = [((k, "v"), time, 1) for k, time in enumerate(range(5))]
        written = [*before, ((0, "v"), 4, -1), ((7, "late"), last, 1), ((1, "v"), last, -1)]
        c.write(written, seal=8).result()
        assert len(c.handle.contents().history) == 1
        c.allow_compaction(4).result()
        work(client, MakeKeyframe(4), Forget(4))
        assert c.handle.contents().history_from == 5
        check(c, written)
        assert c.changes(5, 8).to_arrow().num_rows == (2 if last > 4 else 0)
        assert client.fsck().is_clean


def test_a_compaction_whose_record_landed_although_the_answer_was_lost_keeps_its_parts() -> None:
    blob = UnreliableBlob(MemoryBlob())
    with opened(blob, every_key_a_part()) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        written = fill(c, range(10))
        contents, compactor = c.handle.contents(), client.engine.writer("a test").compactor
        blob.script_faults("create", Fault.HAPPENED_BUT_FAILED, *[Fault.UNAVAILABLE] * 2000)
        submit = compactor._commit

        def doubtful(*asked: Any) -> Any:
            blob.script_faults("get", *[Fault.UNAVAILABLE] * 2000)
            return submit(*asked)

        compactor._commit = doubtful
        with pytest.raises(persist.Indeterminate):
            compactor._run_work(contents, MakeKeyframe(9))
        blob.clear_faults()
    with opened(blob) as client:
        c = client.load("c")
        assert [keyframe.as_of for keyframe in c.handle.contents().keyframes] == [9]
        check(c, written)
        assert client.fsck().is_clean


def together(collection: persist.Collection, step: kinds.Replace) -> list[persist.CommitFuture]:
    """Ask for a write, a compaction and another write, such that they are validated as one group."""
    committer = collection.handle.engine.writer("a test").committer
    assert committer is not None
    asked: list[persist.CommitFuture] = []

    def ask(_: object) -> None:  # In a callback, so that nothing is committed before all of it is asked for.
        asked.append(collection.write([((77, "innocent"), 100, 1)]))
        asked.append(committer.submit([step], {collection.id: "c"}))
        asked.append(collection.write([((78, "innocent"), 100, 1)]))
        is_asked.set()

    is_asked = threading.Event()
    collection.write([((76, "innocent"), 100, 1)]).add_done_callback(ask)
    assert is_asked.wait(WAIT_S)
    return asked


@pytest.mark.parametrize(
    ("before", "late", "since", "meanwhile"),
    [
        ((), MakeKeyframe(4), 9, (MakeKeyframe(9), Forget(9))),
        ((MakeKeyframe(2), MakeKeyframe(5), MakeKeyframe(8)), Thin((2,)), 2, (Forget(2),)),
        ((MakeKeyframe(2), MakeKeyframe(5), MakeKeyframe(8)), Forget(5), 5, (Thin((5,)),)),
        ((MakeKeyframe(2), MakeKeyframe(5), MakeKeyframe(8)), Forget(5), 8, (Forget(8),)),
    ],
)
def test_work_that_another_compactor_made_pointless_is_thrown_away_and_costs_nobody_else_anything(
    before: tuple[Work, ...], late: Work, since: int, meanwhile: tuple[Work, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = MemoryBlob()
    with opened(blob) as other, opened(blob) as client:
        c = other.create_or_load("c", key=KEY, value=VALUE)
        written = fill(c, range(10))
        work(other, *before)
        c.allow_compaction(since).result()
        mine = client.load("c")
        put, steps = client.engine.writer("a test").compactor._commit_step, list[kinds.Replace]()

        def late_put(contents: CollectionState, step: kinds.Replace, made: Any) -> None:
            steps.append(step)
            work(other, *meanwhile)
            put(contents, step, made)

        monkeypatch.setattr(client.engine.writer("a test").compactor, "_commit_step", late_put)
        with pytest.raises(Superseded):
            work(client, late)
        # That check comes before the commit. A race that is lost after it ends in the same way.
        one, superseded, two = together(mine, steps[0])
        with pytest.raises(Superseded):
            superseded.result()
        assert one.result() == two.result()
        check(mine, written)
        assert leftovers(other, client) == set()


def test_parts_of_the_same_bytes_are_cut_into_slices_again_and_again() -> None:
    blob, keys = MemoryBlob(), pa.array(range(20_000))
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        values = pa.array([f"{key:020}" for key in range(len(keys))])
        for _ in range(4):
            c.write(pa.table({"k": keys, "v": values, "_time": [0] * len(keys), "_diff": [1] * len(keys)})).result()
        c.seal(1).result()
        assert len({part.checksum for part in c.handle.contents().parts}) == 1
        scan = c.snapshot(form="diff").scan
        reader = PartReader(client.engine.blob, memory_budget=16 << 20)
        reader._leftovers = SliceLeftovers(4 * values.nbytes)
        for _ in range(8):
            tables = [table for each in scan.slices(5) for table in each.updates(reader, ["k", "v", "_diff"])]
            assert sum(table.num_rows for table in tables) == 4 * len(keys)
        assert reader._leftovers.bytes == 0


def test_what_an_interrupted_compaction_has_asked_for_keeps_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(MemoryBlob()) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        written = fill(c, range(10))
        submit = client.engine.writer("a test").compactor._commit

        def interrupted(*asked: Any) -> Any:
            submit(*asked)
            raise KeyboardInterrupt  # As if Ctrl-C came while the answer is waited for.

        with monkeypatch.context() as patched:
            patched.setattr(client.engine.writer("a test").compactor, "_commit", interrupted)
            with pytest.raises(KeyboardInterrupt):
                work(client, MakeKeyframe(9))
        c.seal(11).result()  # After it in the log.
        assert [keyframe.as_of for keyframe in c.handle.contents().keyframes] == [9]
        check(c, written)
        assert leftovers(client) == set()


def test_what_was_retracted_before_it_was_written_is_destroyed_in_the_background_too() -> None:
    blob = MemoryBlob()
    with opened(blob, policy(keyframe_rows_min=1000)) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        c.write([((1, "secret"), 1, -1), ((2, "stays"), 1, 1)], seal=2).result()
        c.allow_compaction(1).result()
        client.maintain()
        assert [keyframe.as_of for keyframe in c.handle.contents().keyframes] == [1]
        c.write([((1, "secret"), 2, 1)], seal=3).result()
        c.allow_compaction(2).result()
        client.maintain()
        assert [keyframe.as_of for keyframe in c.handle.contents().keyframes] == [2]
        assert sum(part.rows for part in c.handle.contents().parts) == 1
        assert leftovers(client) == set()
        before = c.handle.contents()
        client.maintain()
        assert c.handle.contents().numbered == before.numbered


@pytest.mark.parametrize("slice_bytes", [100, 1000])
def test_a_region_of_a_keyframe_that_is_cut_into_slices_holds_its_own_keys_only(
    slice_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PartReader, "rewrite_slice_bytes", slice_bytes)
    with opened(MemoryBlob()) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        written: list[Update] = [((k, "old"), 0, 1) for k in range(300)]
        c.write(written, seal=1).result()
        add_keyframe(c, 0, pieces=3)
        changed: list[Update] = [((k, "new"), 1, 1) for k in range(300)] + [((k, "old"), 1, -1) for k in range(300)]
        c.write(changed, seal=2).result()
        assert c.compact().keyframes == (1,)
        check(c, written + changed)


def test_slices_of_a_slice_are_within_it() -> None:
    with opened(MemoryBlob()) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        c.write([((k, "v"), 0, 1) for k in range(2_000)], seal=1).result()
        scan = c.snapshot(form="diff").scan
        outer = scan.slices(3)
        assert len(outer) == 3
        for each in outer:
            inner = each.slices(4)
            assert len(inner) > 1
            assert (inner[0].keys.lower, inner[-1].keys.upper) == (each.keys.lower, each.keys.upper)
        reader = PartReader(client.engine.blob)
        tables = [t for each in outer for one in each.slices(4) for t in one.updates(reader, ["k"])]
        assert sum(map(len, tables)) == 2_000


def test_a_merge_loses_to_one_that_has_put_a_run_together_with_more_under_its_name() -> None:
    """What the diffs of a part sum to may be 0, so that the sums do not tell that it would get lost."""
    blob = MemoryBlob()
    store: Any = Stepped(blob)
    with opened(blob, every_key_a_part()) as client, opened(store, every_key_a_part()) as late:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        updates: list[Update] = [((k, "x" * 100_000), time, 1) for time in range(2) for k in (1, 2)]
        for time in range(2):
            c.write([each for each in updates if each[1] == time], seal=time + 1).result()
        (first, *_), *_ = c.handle.contents().history

        def put_together() -> None:
            alone: list[Update] = [((9, "y" * 100_000), 2, 1), ((9, "y" * 100_000), 3, -1)]
            c.write(alone, seal=4).result()
            updates.extend(alone)
            (added,) = c.handle.contents().history[-1]
            step = kinds.Replace(c.id, removed_runs=(first, added), runs=((first, added),))
            client.engine.submit("compact", [step], {c.id: "c"}).result()

        store.after("set", "part/", put_together)
        late.load("c").compact()
        assert store.is_done
        check(c, updates)
