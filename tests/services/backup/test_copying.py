"""Backups and copies while others write, compact, drop and collect, against what was held at each time."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

import persist
from persist import backup, copy, verify
from persist.blob.errors import Unavailable
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.blob.protocol import Blob, BlobEntry, MemoryBlob
from persist.codecs.part.part import compute_checksum
from persist.engine.follow.checkpoint import write_checkpoint
from persist.engine.hold import Claim
from persist.errors import Conflict, CorruptBlob, InvalidUsage, LogReplaced, MissingBlob
from persist.services.backup import Copied
from persist.services.fsck import fsck
from tests.support.checkpoints import wait_for_checkpoint
from tests.support.clocks import DatedBlob, ImpatientClock
from tests.support.stepped import WAIT_S
from tests.support.tuned import tuned
from tests.support.watched import WatchedBlob

KEY = {"k": pa.int64()}
VALUE = {"v": pa.int64()}
# Everything becomes a part at once, the log is short, and what is not needed goes at the next collection.
SETTINGS = tuned(
    background=False,
    hold_linger_s=0,
    grace_s=0,
    orphan_grace_s=0,
    log_retention_s=240.0,
    log_retention_records=16,
    inline_runs=2,
)
ORDER = ("part", "list", "state", "directory", "log", "checkpoint")  # What comes first names nothing that comes later.
Held = dict[tuple[str, int], Counter[tuple[int, int]]]


class Place:
    """A location with one client, and what each of its collections held at each time that is sealed."""

    def __init__(self, blob: DatedBlob, seed: int) -> None:
        self.blob = blob
        self.client = persist.open(blob, clock=blob.clock, settings=SETTINGS)
        self.chance = random.Random(seed)
        self.held: Held = {}
        self._now: dict[str, Counter[tuple[int, int]]] = {}
        self._time: dict[str, int] = {}
        self._made = 0

    def step(self) -> None:
        chance, names = self.chance, [*self._now]
        what = chance.choice(["make", "clone"] + ["write"] * 10 + ["compact", "gc", "forget", "drop", "rename", "tick"])
        if what == "make" or not names:
            self.make(f"c{self._made}")
            self._made += 1
        elif what == "clone":
            source, name = chance.choice(names), f"c{self._made}"
            self._made += 1
            if self._time[source]:
                time = self._time[source] - 1
                self.client.clone(source, name, as_of=time)
                self._now[name], self._time[name] = self._now[source].copy(), time + 1
                self.held[name, time] = +self._now[name]
        elif what == "write":
            self.write(chance.choice(names))
        elif what == "compact":
            self.client.load(chance.choice(names)).compact()
        elif what == "gc":
            self.client.gc()
        elif what == "forget":
            name = chance.choice(names)
            if self._time[name]:
                self.client.load(name).allow_compaction(self._time[name] - 1).result()
        elif what == "drop" and len(names) > 2:
            name = chance.choice(names)
            self.client.drop(name).result()
            del self._now[name], self._time[name]
        elif what == "rename":
            old, new = chance.choice(names), f"r{self._made}"
            self._made += 1
            self.client.rename(old, new).result()
            self._now[new], self._time[new] = self._now.pop(old), self._time.pop(old)
            self.held |= {(new, time): held for (name, time), held in self.held.items() if name == old}
        elif what == "tick":
            self.blob.clock.sleep(4000.0)

    def make(self, name: str) -> None:
        self.client.create_or_load(name, key=KEY, value=VALUE)
        self._now[name], self._time[name] = Counter(), 0

    def write(self, name: str) -> None:
        time, now = self._time[name], self._now[name].copy()
        rows = [((k, self.chance.randrange(9)), time, +1) for k in self.chance.sample(range(300), 40)]
        rows += [(row, time, -1) for row in self.chance.sample(sorted(now.elements()), min(20, now.total()))]
        for row, _, diff in rows:
            now[row] += diff
        self._time[name] = time + 1
        self.held[name, time] = +now
        self._now[name] = +now
        self.client.load(name).write(rows, seal=time + 1).result()


class Busy(UnreliableBlob):
    """What a backup reads: in the place, something happens before each few of its calls."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.blob)
        self._place = place
        self._lock = threading.Lock()
        self._calls = 0

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        with self._lock:
            self._calls += 1
            if self._calls % 3 == 0:
                self._place.step()
        return super().get(key, range)


def check(target: MemoryBlob, held: Held, done: Copied) -> None:
    """Compare all that a copy holds with what was written, and let fsck look at it."""
    with persist.open(target, mode="read", clock=ImpatientClock()) as client:
        assert client.seqno == done.seqno
        names = client.collections()
        assert len(names + client.engine.names(".")) == done.collections
        for name in names:
            collection = client.load(name)
            upper = collection.upper.time or 0
            for time in range(collection.since.time or 0, upper):
                rows = Counter(map(tuple, collection.snapshot(time).rows()))
                assert rows == held[name, time], (name, time)
    report = fsck(target, clock=ImpatientClock())
    assert not report.problems
    assert {leak.kind for leak in report.unreferenced} <= {"record"}


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize(
    "seed", [1, 2, pytest.param(3, marks=pytest.mark.thorough), pytest.param(4, marks=pytest.mark.thorough)]
)
def test_backups_are_the_location_at_one_record_whatever_happens_meanwhile(seed: int) -> None:
    source, target = DatedBlob(ImpatientClock()), MemoryBlob()
    place = Place(source, seed)
    for _ in range(40):
        place.step()
    first = True
    for _ in range(4):
        done = backup(Busy(place), target, clock=source.clock)
        assert done.blobs
        assert first or done.deleted
        assert not done.damaged
        check(target, place.held, done)
        first = False
        for _ in range(25):
            place.step()
    place.client.close()


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place(DatedBlob(ImpatientClock()), 7)
    for name in ("a", "b"):
        place.make(name)
        for _ in range(3):
            place.write(name)
    yield place
    with suppress(Exception):
        place.client.close()


def store_checkpoint(place: Place) -> None:
    wait_for_checkpoint(place.client)
    place.client.engine.follower.refresh()
    write_checkpoint(place.blob, *place.client.engine.follower.get_recent_records())


def sizes(blob: Blob) -> dict[str, int]:
    """Return the bytes of all that is stored, without the mark of a backup."""
    return {entry.key: entry.bytes for entry in blob.list("") if entry.key != "gc/clock"}


def back_up(place: "Place", target: Blob, source: Blob | None = None) -> Copied:
    """Back up, and compare what the result counts with what became of the target."""
    before, told = sizes(target), list[persist.Work]()
    with persist.progress(told.append):
        done = backup(source or place.blob, target, clock=place.blob.clock)
    after = sizes(target)
    new = after.keys() - before.keys() - {"lost/left-out.json"}
    assert (done.blobs, done.bytes) == (len(new), sum(after[key] for key in new))
    assert done.blobs == told[-1].done
    assert done.deleted == len(before.keys() - after.keys() - {"lost/left-out.json"})
    return done


def asked_for(blob: WatchedBlob) -> str:
    """Return how often parts (p), part lists (l) and state objects (s) were asked for, by operation."""
    kinds, told = ("part", "list", "state"), dict[str, str]()
    for (what, kind), count in Counter((what, key.partition("/")[0]) for what, key in blob.asked).items():
        if kind in kinds:
            told[what] = " ".join(
                sorted([*told.get(what, "").split(), f"{count}{kind[0]}"], key=lambda one: "pls".index(one[-1]))
            )
    return ", ".join(f"{what} {counts}" for what, counts in sorted(told.items()))


def test_a_backup_asks_for_what_is_new_and_has_what_the_location_needs(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record has a part list of its own. A dropped clone, which has no state object yet, leaves a part of `a`."""
    monkeypatch.setattr("persist.core.log.records.PARTS_INLINE_MAX", 0)
    monkeypatch.setattr("persist.engine.follow.directory.INLINE_BYTES_MAX", 0)
    monkeypatch.setattr("persist.engine.follow.directory.WHOLE_BYTES_MAX", 0)
    client, target = place.client, MemoryBlob()
    b, a = sorted((client.load(name) for name in "ab"), key=lambda one: one.id)  # Folders are looked at in this order.

    def fold() -> None:
        a.allow_compaction((a.upper.time or 0) - 1).result()
        a.compact()

    store = partial(store_checkpoint, place)

    def replace_rows() -> None:
        time = a.upper.time or 0
        a.overwrite([(1, time)], time=time).result()
        a.seal(time + 1).result()

    leases, claims = client.engine.writer("a test").leases, list[Claim]()
    write, clone = partial(place.write, a.name), partial(client.clone, a.name)
    table: list[tuple[list[Callable[[], object]], str, str]] = [
        ([a.compact, b.compact, store], "get 4p 5l 4s", "create 4p 4l 2s, get 4p 5l 4s, list 3p 2l 2s"),
        ([], "get 1l", "get 2l, list 1p 2l 2s"),
        ([lambda: claims.append(leases.claim(a.id, a.name, 9))], "get 1s", "get 1l 1s, list 2p 2l 2s"),
        ([], "get 1s", "get 1s, list 2p 2l 2s"),  # The last record is a reader's.
        ([lambda: claims.pop().release(), write], "get 2l 1s", "create 1l, get 2l 1s, list 2p 2l 2s"),
        ([store], "get 2l 1s", "get 3l 1s, list 2p 2l 2s"),
        ([fold, store], "get 1p 1l 2s", "create 1p 1l 1s, delete 2p 1s, get 1p 2l 2s, list 2p 2l 2s"),
        ([partial(clone, "copy"), store], "get 3l", "create 1l, get 3l 1s, list 2p 2l 2s"),
        ([replace_rows, fold, store], "get 1p 3l 2s", "create 1p 2l 1s, delete 1s, get 1p 4l 2s, list 3p 2l 2s"),
        ([partial(client.drop, "copy")], "", "delete 1p, get 1s, list 1p 2l 2s"),
        (
            [partial(clone, "again"), replace_rows, fold, store],
            "get 1p 4l 2s",
            "create 1p 3l 1s, delete 1s, get 1p 4l 2s, list 3p 2l 2s",
        ),
        (
            [lambda: client.load("again").erase(where="k >= 0", reason="a test")],
            "get 4s",
            "create 2s, delete 2p 1s, get 4s, list 1p 2l 2s",
        ),
    ]
    for steps, of_source, of_target in table:
        for step in steps:
            step()
        client.engine.settle()
        wait_for_checkpoint(client)
        source_, target_, known = WatchedBlob(place.blob), WatchedBlob(target), records(target)
        back_up(place, target_, source_)
        assert (asked_for(source_), asked_for(target_)) == (of_source, of_target)
        created = [key for operation, key in target_.asked if operation == "create"]
        assert [*dict.fromkeys(key.partition("/")[0] for key in created)] == [
            kind for kind in ORDER if any(key.startswith(kind) for key in created)
        ]
        logged = [key for key in created if key.startswith("log/")]
        assert logged == sorted(records(target) - known, reverse=not known)
        report = fsck(target, clock=ImpatientClock())
        assert (report.problems, report.unreferenced) == ((), ())
    target.set(f"part/{b.id}/mine", b"")  # Is no upload, so it stays.
    place.blob.clock.sleep(4000.0)
    client.gc()
    floor = min(records(place.blob))
    assert floor > min(records(target))
    place.write(b.name)
    back_up(place, target)
    assert records(target) == records(place.blob)
    assert {key.partition("/")[0] for key in sizes(target).keys() - sizes(place.blob).keys()} == {"part"}


def stopped_at(target: MemoryBlob, call: int) -> UnreliableBlob:
    """Return a target that fails from its n-th create on."""
    wrapped = UnreliableBlob(target)
    wrapped.script_faults("create", *[Fault.NONE] * call, *[Fault.UNAVAILABLE] * 1000)
    return wrapped


def records(blob: Blob) -> set[str]:
    return {entry.key for entry in blob.list("log/")}


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("what", ["first", "truncated", "later"])
def test_a_backup_that_is_interrupted_anywhere_is_no_location_or_an_older_one_and_goes_on(what: str) -> None:
    source, base = DatedBlob(ImpatientClock()), MemoryBlob()
    place = Place(source, 10 if what == "truncated" else 6)
    for _ in range(60 if what == "truncated" else 35):
        place.step()
    assert (min(records(source)) > "log/" + "0" * 20) == (what == "truncated")
    old = backup(source, base, clock=source.clock).seqno if what == "later" else -1
    for _ in range(15):
        place.step()
    quick, is_done = persist.Settings(retry_s=0.001), False
    for call in range(0, 1000, 11):
        target = MemoryBlob()
        for entry in base.list(""):
            target.set(entry.key, base.get(entry.key) or b"")
        try:
            done = backup(source, stopped_at(target, call), clock=source.clock, settings=quick)
            is_done = True
            break
        except Unavailable:
            pass
        is_partial = records(target) != records(source) or (what == "truncated" and not [*target.list("checkpoint/")])
        if old < 0 and records(target) and is_partial:  # Its first record comes last, or else its checkpoint.
            for mode in ("read", "shared"):
                with pytest.raises(persist.Corruption, match="a copy to here was interrupted"):
                    persist.open(target, mode=mode, clock=ImpatientClock())
        else:
            with persist.open(target, mode="read", clock=ImpatientClock()) as client:
                assert client.seqno == -1 or client.seqno >= old
                for name in client.collections():
                    collection = client.load(name)
                    for time in range(collection.since.time or 0, collection.upper.time or 0):
                        assert Counter(map(tuple, collection.snapshot(time).rows())) == place.held[name, time]
        check(target, place.held, backup(source, target, clock=source.clock))
    assert is_done
    assert call >= 22
    check(target, place.held, done)
    place.client.close()


def test_a_restored_copy_goes_on_as_the_location_and_is_compared_with_it(place: Place) -> None:
    kept, restored, told = MemoryBlob(), DatedBlob(ImpatientClock()), list[persist.Work]()
    for name in ("gone", "folded", "erased", "unsealed"):
        place.make(name)
        if name != "unsealed":
            place.write(name)
    place.client.load("b").index("v")
    backup(place.blob, kept, clock=place.blob.clock)
    kept.set(f"part/{place.client.load('b').id}/{'0' * 20}-{'0' * 32}.parquet", b"")  # A copy deletes nothing.
    kept_keys = sizes(kept).keys()
    assert copy(place.blob, kept, clock=place.blob.clock).deleted == 0
    assert sizes(kept).keys() == kept_keys
    done = copy(kept, restored, clock=restored.clock)
    check(restored, place.held, done)
    with persist.progress(told.append):
        proof = verify(restored, place.blob, clock=restored.clock)
    assert told[-1].done == told[-1].total == 7
    assert str(proof) == f"6 collections as of record {done.seqno}: all of it was read, and it is whole"
    index = place.client.engine.names(".index.")[0]
    times = dict.fromkeys(("a", "b", index), 2) | dict.fromkeys(("gone", "folded", "erased"), 0)
    assert proof.digests == {
        name: (time, place.client.load(name).snapshot(time).digest()) for name, time in times.items()
    }
    with persist.open(restored, clock=restored.clock, settings=SETTINGS) as client:
        client.load("a").write([((1000, 1), 3, +1)], seal=4).result()
        client.load("a").compact()
        client.gc()
        assert (1000, 1) in client.load("a").snapshot().rows()
    place.client.drop("gone").result()
    place.write("folded")
    place.client.load("folded").allow_compaction(1).result()
    place.client.load("erased").erase(where="k >= 0", reason="a test")
    proof = verify(restored, place.blob, clock=restored.clock)
    assert not proof.problems
    digests = [proof.digests["erased"][1], place.client.load("erased").snapshot(0).digest()]
    assert proof.differences == {
        "a": "time 3 is sealed here, and not there",
        "erased": "at time 0 its digest is {}, and there it is {}".format(*digests),
    }
    assert str(proof) == "\n".join(
        [f"6 collections as of record {proof.seqno}:", *(f"{name}: {why}" for name, why in proof.differences.items())]
    )


def test_what_is_no_backup_of_the_location_is_left_alone(place: Place, tmp_path: Path) -> None:
    clock = place.blob.clock
    other, written, foreign = DatedBlob(ImpatientClock()), MemoryBlob(), MemoryBlob()
    with persist.open(other, clock=other.clock, settings=SETTINGS) as client:
        x = client.create_or_load("x", key=KEY)
        with pytest.raises(InvalidUsage, match="holds another location"):
            backup(place.blob, other, clock=clock)
        for time in range(40):
            x.seal(time + 1).result()
        wait_for_checkpoint(client)
        other.clock.sleep(4000.0)
        client.gc()
        assert min(records(other)) > "log/" + "0" * 20
    with pytest.raises(InvalidUsage, match="holds another location"):
        backup(place.blob, other, clock=clock)
    backup(place.blob, written, clock=clock)
    with persist.open(written, clock=clock, settings=SETTINGS) as client:
        client.create_or_load("new", key=KEY)
    before = {entry.key for entry in written.list("")}
    with pytest.raises(InvalidUsage, match="has records that the location lacks"):
        backup(place.blob, written, clock=clock)
    place.write("a")
    place.write("a")
    with pytest.raises(InvalidUsage, match="has another record"):
        backup(place.blob, written, clock=clock)
    assert {entry.key for entry in written.list("")} == before
    foreign.set("photos/cat.jpg", b"cat")
    with pytest.raises(InvalidUsage, match=r"photos/cat\.jpg"):
        backup(place.blob, foreign, clock=clock)
    with pytest.raises(InvalidUsage, match="nothing to copy"):
        backup(MemoryBlob(), MemoryBlob())
    with persist.open(tmp_path / "own") as own:
        own.create_or_load("a", key={"k": int})
    with pytest.raises(InvalidUsage, match="to itself"):
        backup(str(tmp_path / "own"), f"{tmp_path}/./own")


@pytest.mark.parametrize("loss", ["damaged", "lost"])
def test_a_part_that_is_damaged_or_lost_is_told_and_the_rest_is_copied(place: Place, loss: str) -> None:
    """The target remembers it: once a state object is there, nothing else says that blobs which it names are not."""
    client, clock, target = place.client, place.blob.clock, MemoryBlob()
    a = client.load("a")
    for name in ("a", "b"):
        client.load(name).compact()
    store_checkpoint(place)
    part, _ = sorted(entry.key for entry in place.blob.list(f"part/{a.id}/"))
    whole = place.blob.get(part) or b""
    if loss == "lost":
        place.blob.delete(part)
    else:
        place.blob.set(part, b"x" + whole[1:])
    for new in (18, 0, 0):
        done = back_up(place, target)
        assert done.damaged == (part,)
        assert str(done) == (
            f"2 collections as of record {client.seqno}: {new} new blobs of {done.bytes:,} bytes, 0 old ones deleted; "
            f"damaged in the source, and not copied: {part}"
        )
        assert target.get("lost/left-out.json") == b'["%s"]' % a.id.encode()
    with pytest.raises(CorruptBlob) as error:
        copy(place.blob, MemoryBlob(), clock=clock)
    assert str(error.value) == (
        f"blob {part!r} is corrupt: 1 blob of memory:// cannot be copied. Nothing can be opened there: mend them and "
        "go on, take another backup, or leave out what is damaged; nothing that depends on it was returned."
    )
    assert copy(place.blob, MemoryBlob(), leave_out_damaged=True, clock=clock).damaged == (part,)
    with persist.open(target, mode="read", clock=ImpatientClock()) as reader:
        assert Counter(map(tuple, reader.load("b").snapshot().rows())) == place.held["b", 2]
    proof = verify(target, clock=clock)
    why = f"it is missing, and {len(whole)} bytes with checksum {compute_checksum(whole)} belong there"
    assert str(proof) == (
        f"1 collection as of record {client.seqno}:\n{part}: {why}\na: {CorruptBlob(part, why)}\n"
        "If this is a backup: delete from it the objects that are named here, and back up again."
    )
    place.blob.set(part, whole)
    done = back_up(place, target)
    assert (done.blobs, done.bytes, done.damaged) == (1, len(whole), ())
    assert verify(target, place.blob, clock=clock).is_whole
    assert not [*target.list("lost/")]


def test_several_blobs_are_copied_at_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persist.services.backup.copying.COPIES_AT_ONCE", 2)
    both = threading.Barrier(2, timeout=WAIT_S)

    class Waiting(UnreliableBlob):
        def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
            if key.startswith("part/"):
                both.wait()
            return super().get(key, range)

    place.client.load("a").compact()
    assert len([*place.blob.list("part/")]) == 2
    back_up(place, MemoryBlob(), Waiting(place.blob))


def test_a_part_that_goes_while_it_is_copied_is_no_damage(place: Place) -> None:
    class Passing(UnreliableBlob):
        def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
            if key.startswith("part/") and "a" in place.client.collections():
                place.client.drop("a").result()
                place.client.gc()
                assert place.blob.get(key) is None
            return super().get(key, range)

    place.client.load("a").compact()
    target = MemoryBlob()
    done = backup(Passing(place.blob), target, clock=place.blob.clock)
    assert not done.damaged
    check(target, place.held, done)


@pytest.mark.parametrize(("goes_on", "missing", "passes"), [(True, 99, 20), (False, 99, 1), (True, 1, 1)])
def test_a_backup_gives_up_if_its_source_always_moves_on_or_lacks_an_object(
    place: Place, goes_on: bool, missing: int, passes: int
) -> None:
    tried = list[str]()

    class Fleeing(UnreliableBlob):
        def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
            if key != states[0] or len(tried) == missing:
                return super().get(key, range)
            tried.append(key)
            if goes_on:
                place.write("b")
            return None

    for name in ("a", "b"):
        place.client.load(name).compact()
    store_checkpoint(place)
    states = [entry.key for entry in place.blob.list("state/")]
    if missing == 1:  # What is stored before and after the state was read anew counts.
        assert back_up(place, MemoryBlob(), Fleeing(place.blob)).seqno == place.client.seqno
    else:
        with pytest.raises(MissingBlob):
            backup(Fleeing(place.blob), MemoryBlob(), clock=place.blob.clock)
    assert len(tried) == passes


class _Overtaken(MemoryBlob):
    """A target to which another backup begins when some request comes."""

    def __init__(self, place: "Place", request: int) -> None:
        super().__init__()
        self._place = place
        self._left = request

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            for _ in range(30):
                self._place.step()
            backup(self._place.blob, self, clock=self._place.blob.clock)

    def create(self, key: str, value: bytes) -> bool:
        self._count()
        return super().create(key, value)

    def delete(self, key: str) -> None:
        self._count()
        super().delete(key)


@pytest.mark.thorough(except_every=6)
@pytest.mark.parametrize("request_", [34, 1, 10, 22, 46, 58])
def test_a_backup_that_is_overtaken_deletes_nothing_of_the_other_one(request_: int) -> None:
    place = Place(DatedBlob(ImpatientClock()), request_)
    with place.client:
        for _ in range(60):
            place.step()
        target = _Overtaken(place, request_)
        with suppress(Conflict):
            backup(place.blob, target, clock=place.blob.clock)
        # What lies about besides, such as an older checkpoint, goes with the next backup.
        assert not verify(target, place.blob, clock=place.blob.clock).differences
        backup(place.blob, target, clock=place.blob.clock)
        assert verify(target, place.blob, clock=place.blob.clock).is_whole


@pytest.mark.parametrize("kind", ["checkpoint", "list", "log", "state"])
def test_an_object_of_the_log_that_is_damaged_stops_a_backup(
    place: Place, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("persist.core.log.records.PARTS_INLINE_MAX", 0)
    place.write("a")
    place.client.load("a").compact()
    store_checkpoint(place)
    key = [entry.key for entry in place.blob.list(f"{kind}/")][-1]
    place.blob.set(key, (place.blob.get(key) or b"")[:-2])
    target = MemoryBlob()
    with pytest.raises(CorruptBlob) as error:
        backup(place.blob, target, clock=place.blob.clock)
    assert error.value.key == key
    assert not records(target)


@pytest.mark.parametrize(
    ("is_new", "why"), [(True, "it was stored, and reads otherwise"), (False, "another one lies in the target")]
)
def test_an_object_that_the_target_has_otherwise_stops_a_backup(place: Place, is_new: bool, why: str) -> None:
    class Lossy(MemoryBlob):
        def create(self, key: str, value: bytes) -> bool:
            return super().create(key, value[:-1] if key == part else value) and is_new

    place.client.load("a").compact()
    part = next(iter(place.blob.list("part/"))).key
    with pytest.raises(CorruptBlob) as error:
        backup(place.blob, Lossy(), clock=place.blob.clock)
    advice = "Delete it there, and copy again"
    assert str(error.value) == str(CorruptBlob(f"memory:///{part}", why, advice))


class _Taken(MemoryBlob):
    """A target to which another backup begins just before the first change of some kind."""

    change, deletes = "", "nothing"

    def _note(self, change: str) -> None:
        if self.change and change.startswith(self.change):
            self.change = ""
            super().set("gc/clock", b"another one's")
            for key in [entry.key for entry in self.list(self.deletes)]:
                self.delete(key)

    def set(self, key: str, value: bytes) -> None:
        super().set(key, value)
        self._note(f"set {key}")

    def create(self, key: str, value: bytes) -> bool:
        self._note(f"create {key}")
        return super().create(key, value)


@pytest.mark.parametrize(
    ("is_first", "change", "deletes", "stored"),
    [
        (True, "set gc", "nothing", {"part"}),
        (True, "create part", "nothing", {"part"}),
        (True, "create log", "nothing", {"part", "state", "log"}),
        (False, "set gc", "nothing", {"part"}),
        (False, "create checkpoint", "nothing", {"part", "state", "log", "checkpoint"}),
        (False, "create checkpoint", "state", {"part", "log", "checkpoint"}),
    ],
)
def test_a_backup_to_which_another_one_comes_stores_nothing_that_claims_more_and_deletes_nothing(
    place: Place, is_first: bool, change: str, deletes: str, stored: set[str]
) -> None:
    a, target = place.client.load("a"), _Taken()
    if not is_first:
        a.compact()
        store_checkpoint(place)
        back_up(place, target)
        place.write("a")
        a.allow_compaction(3).result()
    a.compact()
    store_checkpoint(place)
    before = sizes(target)
    target.change, target.deletes = change, deletes
    with pytest.raises(Conflict) as error:
        backup(place.blob, target, clock=place.blob.clock)
    assert str(error.value) == (
        "another backup to memory://, or a garbage collection there, has begun meanwhile. Only one at a time may go "
        "on: wait for it, and back up again"
    )
    after = sizes(target)
    assert {key: size for key, size in before.items() if not key.startswith(deletes)}.items() <= after.items()
    assert {key.partition("/")[0] for key in after.keys() - before.keys()} == stored
    back_up(place, target)
    assert verify(target, place.blob, clock=place.blob.clock).is_whole


def read_in(target: Blob, **options: object) -> int:
    with persist.open(target, clock=ImpatientClock(), settings=tuned(background=False), **options) as client:  # type: ignore[arg-type]
        return len(client.load("a").snapshot().to_arrow())


@pytest.mark.parametrize("writes", [0, 3])
def test_a_backup_that_is_being_read_goes_on_and_its_reader_reads_right_or_hears_of_it(
    place: Place, writes: int
) -> None:
    target = MemoryBlob()
    backup(place.blob, target, clock=place.blob.clock)
    with persist.open(target, clock=ImpatientClock(), settings=tuned(background=False)) as reader:
        reading = reader.load("a").snapshot()
        held = Counter(map(tuple, reading.rows()))
        assert reader.seqno > place.client.seqno
        write_checkpoint(target, *reader.engine.follower.get_recent_records())
        for _ in range(3):
            for _ in range(writes):
                place.write("a")
            done = backup(place.blob, target, clock=place.blob.clock)
            assert done.seqno == place.client.seqno
            assert {key: target.get(key) for key in records(target)} == {
                key: place.blob.get(key) for key in records(place.blob)
            }
            assert {entry.key for entry in target.list("checkpoint/")} <= {*sizes(place.blob)}
            assert Counter(map(tuple, reading.rows())) == held
            with pytest.raises(LogReplaced) if writes else nullcontext():
                now = reader.load("a").snapshot()
                assert Counter(map(tuple, now.rows())) == place.held["a", now.as_of]
    check(target, place.held, backup(place.blob, target, clock=place.blob.clock))


@pytest.mark.parametrize("wrote", ["hold", "tag", "seal", "write"])
def test_a_backup_that_was_written_to_is_left_alone_even_if_it_was_read_after_that(place: Place, wrote: str) -> None:
    target = MemoryBlob()
    backup(place.blob, target, clock=place.blob.clock)
    with persist.open(target, clock=ImpatientClock(), settings=tuned(background=False)) as client:
        a = client.load("a")
        time = (a.upper.time or 0) - 1
        if wrote == "hold":
            client.load("a").follow("mailer")
        elif wrote == "tag":
            a.tag("mine", time)
        elif wrote == "seal":
            a.seal(time + 9).result()
        else:
            a.write([((1, 1), time + 1, 1)]).result()
    read_in(target)
    before = {entry.key for entry in target.list("log/")}
    with pytest.raises(InvalidUsage, match="another client wrote to it"):
        backup(place.blob, target, clock=place.blob.clock)
    assert {entry.key for entry in target.list("log/")} == before


def test_an_error_after_the_copy_says_that_it_is_complete_and_the_next_backup_deletes(place: Place) -> None:
    """What was erased leaves the backup, too, although nothing happens to its collection any more."""

    class Undeletable(MemoryBlob):
        may = False

        def delete(self, key: str) -> None:
            if not self.may:
                raise Unavailable(f"cannot delete {key}")
            super().delete(key)

    target, a = Undeletable(), place.client.load("a")
    a.compact()
    store_checkpoint(place)
    back_up(place, target)
    a.erase(where="k >= 0", reason="request 17")
    with pytest.raises(Unavailable) as error:
        backup(place.blob, target, clock=place.blob.clock)
    told = f"2 collections as of record {place.client.seqno}: 3 new blobs of "
    assert error.value.__notes__[0].startswith(told)
    assert error.value.__notes__[0].endswith(
        " bytes, 0 old ones deleted. What failed is only the deletion of what the target needs no longer."
    )
    with persist.open(target, mode="read", clock=ImpatientClock()) as client:
        assert client.seqno == place.client.seqno
    target.may = True
    assert back_up(place, target).blobs == 0
    assert not [*target.list(f"part/{a.id}/")]


@pytest.mark.parametrize("damage", ["none", "deleted meanwhile", "other bytes"])
def test_an_older_checkpoint_leaves_the_target_whatever_it_is_and_no_newer_one_does(place: Place, damage: str) -> None:
    """An earlier backup may be interrupted, or go on to delete, because it has seen its own mark before."""

    class Deleting(MemoryBlob):
        deleted = ""

        def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
            if key == self.deleted:
                self.delete(key)
            return super().get(key, range)

    target, a = Deleting(), place.client.load("a")
    a.compact()
    store_checkpoint(place)
    back_up(place, target)
    stored = {entry.key: target.get(entry.key) or b"" for entry in target.list("")}
    [old] = [key for key in stored if key.startswith("checkpoint/")]
    a.erase(where="k >= 0", reason="request 17")
    place.write("a")
    store_checkpoint(place)
    back_up(place, target)
    needed = sizes(target)
    for key in stored.keys() - needed.keys():
        target.set(key, stored[key])
    if damage == "other bytes":
        target.set(old, stored[old].replace(b"1", b"2"))
    elif damage == "deleted meanwhile":
        target.deleted = old
    back_up(place, target)
    assert sizes(target) == needed
    assert verify(target, place.blob, clock=place.blob.clock).is_whole


@pytest.mark.parametrize(("has_checkpoint", "waits"), [(False, False), (True, False), (True, True)])
def test_a_checkpoint_that_a_reader_of_the_target_makes_during_a_backup_keeps_its_objects(
    place: Place, has_checkpoint: bool, waits: bool
) -> None:
    """With `waits`, the checkpoint follows its objects when the backup already looks at parts."""
    waiting: list[tuple[str, bytes]] = []

    class Read(MemoryBlob):
        last, is_reader_at_work = "", False

        def create(self, key: str, value: bytes) -> bool:
            if waits and self.is_reader_at_work and key.startswith("checkpoint/"):
                waiting.append((key, value))
                return True
            is_new = super().create(key, value)
            if key == self.last:
                with persist.open(self, clock=ImpatientClock(), settings=tuned(background=False)) as reader:
                    self.is_reader_at_work = True
                    write_checkpoint(self, *reader.engine.follower.get_recent_records())
                self.is_reader_at_work = False
            return is_new

        def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
            if prefix == "part/":
                while waiting:
                    super().create(*waiting.pop())
            return super().list(prefix, start_after)

    target = Read()
    if has_checkpoint:
        store_checkpoint(place)
    back_up(place, target)
    place.client.load("a").compact()
    target.last = max(records(place.blob))
    check(target, place.held, backup(place.blob, target, clock=place.blob.clock))
    assert not waiting
    check(target, place.held, back_up(place, target))


@pytest.mark.thorough
def test_what_is_erased_from_a_clone_leaves_the_backup_although_its_source_did_not_change(place: Place) -> None:
    """The blob lies in the folder of the source, which names it no longer, and which nothing else happened to."""
    clock, target = place.blob.clock, MemoryBlob()
    a = place.client.load("a")
    a.compact()
    clone = place.client.clone("a", "copy")
    shared = {key for key in clone.handle.contents().named_blobs if key.startswith(f"part/{a.id}/")}
    a.overwrite([(1, 1)]).result()
    a.allow_compaction((a.upper.time or 0) - 1).result()
    a.compact()
    wait_for_checkpoint(place.client)
    assert shared.isdisjoint(a.handle.contents().named_blobs)
    backup(place.blob, target, clock=clock)
    clone.erase(where="k <> 1 OR v <> 1", reason="request 17")
    assert (len(a.erasures()), len(clone.erasures())) == (0, 1)
    backup(place.blob, target, clock=clock)
    assert shared
    assert shared.isdisjoint(entry.key for entry in target.list("part/"))
