"""Backups and copies while others write, compact, drop and collect, against what was held at each time."""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import persist
from persist import backup, copy, verify
from persist.blob.errors import Unavailable
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.blob.protocol import Blob, MemoryBlob
from persist.errors import Conflict, CorruptBlob, InvalidUsage, LogReplaced, MissingBlob
from persist.services.backup import Copied
from persist.services.fsck import fsck
from tests.support.checkpoints import wait_for_checkpoint
from tests.support.clocks import DatedBlob, ImpatientClock
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
            name = f"c{self._made}"
            self._made += 1
            self.client.create_or_load(name, key=KEY, value=VALUE)
            self._now[name], self._time[name] = Counter(), 0
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
        assert len(names) == done.collections
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


def test_a_backup_copies_what_is_new_and_forgets_what_is_gone() -> None:
    source, target = DatedBlob(ImpatientClock()), MemoryBlob()
    place = Place(source, 5)
    for name in ("a", "b"):
        place.client.create_or_load(name, key=KEY, value=VALUE)
        place._now[name], place._time[name] = Counter(), 0
        for _ in range(5):
            place.write(name)
        place.client.load(name).compact()
    wait_for_checkpoint(place.client)
    told: list[persist.Work] = []
    with place.client.load("a").snapshot(), persist.progress(told.append):  # The last record is a reader's.
        first = backup(source, target, clock=source.clock)
        assert first.blobs == told[-1].done > 4
        nothing = backup(source, target, clock=source.clock)
        assert (nothing.blobs, nothing.deleted, nothing.seqno) == (0, 0, first.seqno)
    place.write("a")
    wait_for_checkpoint(place.client)
    reading, copied = WatchedBlob(source), {entry.key for entry in target.list("part/")}
    more = backup(reading, target, clock=source.clock)
    assert copied.isdisjoint(reading.keys("get")), "what is there is not read again"
    assert max(Counter(call for call in reading.asked if call[0] == "get").values()) < 8
    assert 0 < more.blobs <= 9  # Records, perhaps a part, and a checkpoint with what it names if one was due.
    place.client.load("a").allow_compaction(5).result()
    place.client.load("a").compact()
    less = backup(source, target, clock=source.clock)
    assert less.deleted > 0
    check(target, place.held, less)
    place.client.drop("b").result()
    gone = backup(source, target, clock=source.clock)
    assert gone.deleted
    check(target, place.held, gone)
    place.client.close()


def stopped_at(target: MemoryBlob, call: int) -> UnreliableBlob:
    """Return a target that fails from its n-th create on."""
    wrapped = UnreliableBlob(target)
    wrapped.script_faults("create", *[Fault.NONE] * call, *[Fault.UNAVAILABLE] * 1000)
    return wrapped


@pytest.mark.thorough
def test_a_first_backup_of_a_truncated_log_goes_on_wherever_it_was_interrupted() -> None:
    place = Place(DatedBlob(ImpatientClock()), 10)
    with place.client:
        for _ in range(60):
            place.step()
        assert next(iter(place.blob.list("log/"))).key != "log/" + "0" * 20
        quick, call, is_done = persist.Settings(retry_s=0.001), 0, False
        while not is_done:
            target = MemoryBlob()
            try:
                backup(place.blob, stopped_at(target, call), clock=place.blob.clock, settings=quick)
                is_done = True
            except Unavailable:
                backup(place.blob, target, clock=place.blob.clock)
            assert verify(target, place.blob, clock=place.blob.clock).is_whole
            call += 8
        assert call > 20


def records(blob: Blob) -> set[str]:
    return {entry.key for entry in blob.list("log/")}


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("later", [False, True])
def test_a_backup_that_is_interrupted_anywhere_is_no_location_or_an_older_one_and_goes_on(later: bool) -> None:
    source = DatedBlob(ImpatientClock())
    place = Place(source, 6)
    for _ in range(20):
        place.step()
    base = MemoryBlob()
    old = backup(source, base, clock=source.clock) if later else None
    for _ in range(15):
        place.step()
    quick = persist.Settings(retry_s=0.001)
    call = 0
    while True:
        target = MemoryBlob()
        for entry in base.list(""):
            target.set(entry.key, base.get(entry.key) or b"")
        try:
            done = backup(source, stopped_at(target, call), clock=source.clock, settings=quick)
            break
        except Unavailable:
            pass
        if old is None and records(target) not in (set(), records(source)):  # Its first record comes last.
            for mode in ("read", "shared"):
                with pytest.raises(persist.Corruption, match="a copy to here was interrupted"):
                    persist.open(target, mode=mode, clock=ImpatientClock())
            check(target, place.held, backup(source, target, clock=source.clock))
            call += 11
            continue
        with persist.open(target, mode="read", clock=ImpatientClock()) as client:
            assert client.seqno == -1 or old is None or client.seqno >= old.seqno
            for name in client.collections():
                collection = client.load(name)
                for time in range(collection.since.time or 0, collection.upper.time or 0):
                    assert Counter(map(tuple, collection.snapshot(time).rows())) == place.held[name, time]
        check(target, place.held, backup(source, target, clock=source.clock))
        call += 11
    assert call >= 22
    check(target, place.held, done)
    place.client.close()


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place(DatedBlob(ImpatientClock()), 7)
    for name in ("a", "b"):
        place.client.create_or_load(name, key=KEY, value=VALUE)
        place._now[name], place._time[name] = Counter(), 0
        for _ in range(3):
            place.write(name)
    yield place
    with suppress(Exception):
        place.client.close()


def test_a_restored_copy_goes_on_as_the_location(place: Place) -> None:
    kept, restored = MemoryBlob(), DatedBlob(ImpatientClock())
    place.client.create_or_load("once", key=KEY, value=VALUE)
    place._now["once"], place._time["once"] = Counter(), 0
    place.write("once")
    backup(place.blob, kept, clock=place.blob.clock)
    done = copy(kept, restored, clock=restored.clock)
    check(restored, place.held, done)
    proof = verify(restored, place.blob, clock=restored.clock)
    assert proof.is_whole
    assert proof.digests.keys() == {"a", "b", "once"}
    with persist.open(restored, clock=restored.clock, settings=SETTINGS) as client:
        client.load("a").write([((1000, 1), 3, +1)], seal=4).result()
        client.load("a").compact()
        client.gc()
        assert (1000, 1) in client.load("a").snapshot().rows()
    proof = verify(restored, place.blob, clock=restored.clock)
    assert not proof.problems
    assert set(proof.differences) == {"a"}
    assert "is sealed here, and not there" in proof.differences["a"]


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
    place.client.load("a").compact()
    part = next(iter(place.blob.list(f"part/{place.client.load('a').id}/"))).key
    whole = place.blob.get(part) or b""
    if loss == "lost":
        place.blob.delete(part)
    else:
        place.blob.set(part, b"x" + whole[1:])
    target = MemoryBlob()
    done = backup(place.blob, target, clock=place.blob.clock)
    assert done.damaged == (part,)
    assert part in str(done)
    with persist.open(target, mode="read", clock=ImpatientClock()) as client:
        assert Counter(map(tuple, client.load("b").snapshot().rows())) == place.held["b", 2]
    proof = verify(target, clock=place.blob.clock)
    assert [problem.blob for problem in proof.problems] == [part]
    assert "a" in proof.differences
    assert part in str(proof)
    assert backup(place.blob, target, clock=place.blob.clock).damaged == (part,), "it is still not there"
    place.blob.set(part, whole)
    assert backup(place.blob, target, clock=place.blob.clock).damaged == ()
    assert verify(target, place.blob, clock=place.blob.clock).is_whole
    assert not [*target.list("lost/")]


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


def test_a_backup_whose_source_always_moves_on_gives_up(place: Place) -> None:
    class Fleeing(UnreliableBlob):
        def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
            if not key.startswith("state/"):
                return super().get(key, range)
            place.write("b")
            return None

    place.client.load("a").compact()
    wait_for_checkpoint(place.client)
    place.client.gc()
    with pytest.raises(MissingBlob):
        backup(Fleeing(place.blob), MemoryBlob(), clock=place.blob.clock)


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
@pytest.mark.parametrize("request_", [1, 10, 22, 34, 46, 58])
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


def test_an_object_of_the_log_that_is_damaged_stops_a_backup(place: Place) -> None:
    place.client.gc()
    key = next(iter(place.blob.list("checkpoint/"))).key
    place.blob.set(key, (place.blob.get(key) or b"")[:-2])
    with pytest.raises(CorruptBlob):
        backup(place.blob, MemoryBlob(), clock=place.blob.clock)


def read_in(target: Blob, **options: object) -> int:
    with persist.open(target, clock=ImpatientClock(), settings=tuned(background=False), **options) as client:  # type: ignore[arg-type]
        return len(client.load("a").snapshot().to_arrow())


def test_a_backup_that_is_being_read_goes_on_and_its_reader_hears_of_it(place: Place) -> None:
    target = MemoryBlob()
    backup(place.blob, target, clock=place.blob.clock)
    with persist.open(target, clock=ImpatientClock(), settings=tuned(background=False)) as reader:
        reading = reader.load("a").snapshot()
        held = Counter(map(tuple, reading.rows()))
        for _ in range(3):
            for _ in range(3):
                place.write("a")
            done = backup(place.blob, target, clock=place.blob.clock)
            assert done.seqno == place.client.seqno
            assert Counter(map(tuple, reading.rows())) == held
            with pytest.raises(LogReplaced):  # Its hold was a record, which the backup has replaced.
                reader.load("a").snapshot()
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


def test_damage_is_remembered_by_the_target_until_the_source_is_mended(place: Place) -> None:
    """Once a state object is there, nothing else says that blobs which it names are not."""
    clock, target = place.blob.clock, MemoryBlob()
    a = place.client.load("a")
    a.compact()
    wait_for_checkpoint(place.client)
    place.client.gc()
    part = next(iter(place.blob.list(f"part/{a.id}/"))).key
    whole = place.blob.get(part) or b""
    place.blob.set(part, b"x" + whole[1:])
    for _ in range(3):
        assert backup(place.blob, target, clock=clock).damaged == (part,)
        assert [*target.list("state/")], "nothing but the note says that the collection is not whole"
    place.blob.set(part, whole)
    assert backup(place.blob, target, clock=clock).damaged == ()
    assert target.get(part) == whole
    assert not [*target.list("lost/")]


def test_an_error_after_the_copy_says_that_it_is_complete(place: Place) -> None:
    class Undeletable(MemoryBlob):
        def delete(self, key: str) -> None:
            raise Unavailable(f"cannot delete {key}")

    target = Undeletable()
    place.client.load("a").compact()
    backup(place.blob, target, clock=place.blob.clock)
    place.client.drop("a").result()
    with pytest.raises(Unavailable) as error:
        backup(place.blob, target, clock=place.blob.clock)
    assert "What failed is only the deletion" in error.value.__notes__[0]
    assert f"as of record {place.client.seqno}" in error.value.__notes__[0]
    with persist.open(target, mode="read", clock=ImpatientClock()) as client:
        assert client.seqno == place.client.seqno
