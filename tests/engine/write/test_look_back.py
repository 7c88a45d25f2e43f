"""A commit is acknowledged only if what it follows is still there: no restore in place loses what is acknowledged."""

import re
import shlex
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import persist
from persist.blob.errors import Indeterminate, Unavailable
from persist.blob.layers.metered import MeteredBlob
from persist.blob.protocol import Blob, MemoryBlob
from persist.blob.stores.file import FileBlob
from persist.core.log.keys import make_record_key, parse_checkpoint_seqno, parse_record_seqno
from persist.engine.follow.checkpoint import INTERVAL
from persist.errors import LogInterrupted, LogReplaced
from persist.tools.cli.main import main
from tests.blob.conftest import place_of
from tests.support.checkpoints import wait_for_checkpoint
from tests.support.clocks import DatedBlob, ImpatientClock
from tests.support.rollback import KEY, QUIET, Copy, opened, restore, write
from tests.support.servers.fixtures import make_bucket
from tests.support.stepped import WAIT_S, Stepped, wait_until
from tests.support.tuned import tuned

KINDS = ("memory", "far", "file", "all", "cached-folder", "s3", pytest.param("fsspec", marks=pytest.mark.thorough))
LOCAL = "grpc://127.0.0.1:0"


class FarBlob(MemoryBlob):
    """A store that says it is far away, so that requests to it are made beside each other."""

    is_remote = True
    refusals = 0  # Creates of what existed.

    def create(self, key: str, value: bytes) -> bool:
        is_new = super().create(key, value)
        self.refusals += not is_new
        return is_new


class FarDatedBlob(DatedBlob):
    """Such a store, with a clock of its own."""

    is_remote = True


def copied(blob: Blob) -> Copy:
    return {entry.key: blob.get(entry.key) or b"" for entry in blob.list("")}


def log(blob: Blob) -> list[int]:
    return [seqno for entry in blob.list("log/") if (seqno := parse_record_seqno(entry.key)) is not None]


@pytest.fixture(params=KINDS)
def blob(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Blob]:
    if request.param == "far":
        yield FarBlob()
        return
    needs_server = request.param in ("s3", "fsspec")
    options = request.getfixturevalue("s3_options") if needs_server else {}
    bucket = make_bucket(options) if needs_server else ""
    store = place_of(request.param, tmp_path, options, bucket, f"look/{uuid.uuid4().hex}").open()
    yield store
    store.close()


@pytest.fixture(params=[MemoryBlob, FarBlob])
def memory(request: pytest.FixtureRequest) -> MemoryBlob:
    """A store whose commits are looked after when they are made, and one where that is done beside it."""
    blob: MemoryBlob = request.param()
    return blob


@pytest.fixture
def clock() -> ImpatientClock:
    return ImpatientClock()


def made(client: persist.Client) -> persist.Collection:
    return client.create_or_load("c", key=KEY, value=None)


def keyed(client: persist.Client) -> persist.Collection:
    return client.create_or_load("users", key=KEY, value={"v": pa.int64()}, keyed=persist.Keyed())


def upper(blob: Blob, clock: ImpatientClock) -> int | None:
    with opened(blob, clock, "read") as reader:
        return reader["c"].upper.time


WRITES: dict[str, Callable[[persist.Client], object]] = {
    "write": lambda client: client["c"].write([((99, None), 50, 1)]).result(),
    "seal": lambda client: client["c"].seal(60).result(),
    "token": lambda client: client["c"].write([((99, None), 50, 1)], token="once").result(),
    "upsert": lambda client: client["users"].upsert([(1, 7, 50)], seal=51).result(),
    "create": lambda client: client.create_or_load("new", key=KEY, value=None),
    "drop": lambda client: client["c"].drop().result(),
    "multi": lambda client: multi_write(client),
    "hold": lambda client: client["c"].hold(3),
    "overwrite": lambda client: client["c"].overwrite([(1, None)], time=50).result(),
}


def multi_write(client: persist.Client) -> None:
    with client.multi_write() as multi:
        multi.write(client["c"], [((99, None), 50, 1)])
        multi.seal(client["users"], 60)
        multi.seal(client["c"], 60)


@pytest.mark.parametrize("what", WRITES)
def test_nothing_is_acknowledged_after_a_restore_however_soon(
    memory: MemoryBlob, clock: ImpatientClock, what: str
) -> None:
    with opened(memory, clock) as client:
        write(made(client), range(3))
        keyed(client)
        copy = copied(memory)
        write(made(client), range(3, 5))
        restore(memory, copy)
        with pytest.raises(LogReplaced):
            WRITES[what](client)
    assert upper(memory, clock) == 3


def test_every_store_shows_that_it_was_restored(blob: Blob, clock: ImpatientClock) -> None:
    with opened(blob, clock) as client:
        write(made(client), range(2))
        copy = copied(blob)
        write(made(client), range(2, 4))
        for key in [entry.key for entry in blob.list("") if entry.key not in copy]:
            blob.delete(key)
        with pytest.raises(LogReplaced):
            write(made(client), range(4, 5))
    assert upper(blob, clock) == 2


def test_a_log_that_has_grown_again_to_the_same_length_is_another_one(
    memory: MemoryBlob, clock: ImpatientClock
) -> None:
    with opened(memory, clock) as client:
        write(made(client), range(3))
        copy = copied(memory)
        write(made(client), range(3, 5))
        restore(memory, copy)
        with opened(memory, clock) as other:
            write(made(other), range(3, 5))  # Records of the same lengths, under the same keys.
        with pytest.raises(LogReplaced):
            write(made(client), range(5, 6))


def test_a_restore_of_what_is_there_anyway_is_none(memory: MemoryBlob, clock: ImpatientClock) -> None:
    with opened(memory, clock) as client:
        write(made(client), range(3))
        restore(memory, copied(memory))
        write(made(client), range(3, 5))
    assert upper(memory, clock) == 5


def test_a_location_that_was_emptied_is_not_written_to(memory: MemoryBlob, clock: ImpatientClock) -> None:
    with opened(memory, clock) as client:
        write(made(client), range(3))
        restore(memory, {})
        with pytest.raises(LogReplaced):
            write(client["c"], range(3, 4))
    assert persist.fsck(memory, clock=clock, settings=QUIET, repair=True, set_aside=True).repairs_done
    with opened(memory, clock) as client:
        write(made(client), range(2))


@pytest.mark.parametrize("kind", [DatedBlob, FarDatedBlob])
@pytest.mark.parametrize("what", ["write", "token", "multi"])
def test_nothing_is_acknowledged_below_the_floor_of_a_newer_backup(
    clock: ImpatientClock, kind: type[DatedBlob], what: str
) -> None:
    """An old backup is restored, a client writes to it, and then a backup replaces it whose log begins later."""
    blob = kind(clock)
    settings = tuned(QUIET.tuning, background=False, log_retention_s=240, log_retention_records=16, grace_s=240)
    with opened(blob, clock, settings=settings) as client:
        write(made(client), range(3))
        keyed(client)
        old = copied(blob)
        for time in (3, 23):
            write(made(client), range(time, time + 20))
            clock.sleep(1000)
            client.gc()
        newer = copied(blob)
        floor = client.engine.follower.state.control.log_floor
        assert min(log(blob)) == floor > max(parse_record_seqno(key) or 0 for key in old) + 2
        truncated = [client.engine.follower.is_truncated(seqno) for seqno in (floor - 1, floor, floor + 1)]
        assert truncated == [True, False, False]
    restore(blob, old)
    with opened(blob, clock, settings=settings) as client:
        write(made(client), range(3, 4))
        restore(blob, newer)
        WRITES[what](client)
        assert min(log(blob)) == floor
        if what != "multi":
            client["c"].seal(60).result()
        with opened(blob, clock, "read", settings=settings) as reader:
            assert reader.seqno == client.seqno
            kept = reader["c"].snapshot().to_arrow()["k"].to_pylist()
            assert kept[:43] == list(range(43))
            assert kept[43:] == [99]


def test_what_another_client_wrote_beyond_the_hole_does_not_hide_it(memory: MemoryBlob, clock: ImpatientClock) -> None:
    """Each reads the records of the others before it writes, so what its own follows is there."""
    with opened(memory, clock) as first, opened(memory, clock) as second, opened(memory, clock) as third:
        write(made(first), range(3))
        copy = copied(memory)
        write(made(first), range(3, 5))
        assert second["c"].upper.time == third["c"].upper.time == 5
        restore(memory, copy)
        for client, time in ((first, 5), (second, 6), (third, 7)):
            with pytest.raises(LogReplaced):
                write(made(client), range(time, time + 1))
    assert upper(memory, clock) == 3


def test_a_write_that_was_done_before_is_looked_for_too(memory: MemoryBlob, clock: ImpatientClock) -> None:
    with opened(memory, clock) as client:
        write(made(client), range(3))
        copy = copied(memory)
        made(client).write([((9, None), 9, 1)], token="once").result()
        made(client).write([((9, None), 9, 1)], token="once").result()
        restore(memory, copy)
        with pytest.raises(LogReplaced):
            made(client).write([((9, None), 9, 1)], token="once").result()


def test_what_a_server_commits_for_others_is_not_acknowledged_either(memory: MemoryBlob, clock: ImpatientClock) -> None:
    with (
        opened(memory, clock) as hub,
        hub.serve(LOCAL, commits=True) as served,
        persist.open(memory, settings=QUIET, clock=clock, commit_through=served.url) as client,
    ):
        write(made(hub), range(3))
        copy = copied(memory)
        write(made(client), range(3, 5))
        assert client.metrics().groups["commits"]["relayed"] > 0
        assert client["c"].upper.time == 5
        restore(memory, copy)
        with pytest.raises((LogReplaced, Indeterminate)) as caught:
            write(client["c"], range(5, 6))
        assert "is not the one that this client has read" in str(caught.value)
    assert upper(memory, clock) == 3


def test_what_a_server_may_not_acknowledge_its_client_commits_where_it_is_read(
    memory: MemoryBlob, clock: ImpatientClock
) -> None:
    """The client has read nothing that is lost, because its server wrote for it, and goes on in the log there is."""
    with (
        opened(memory, clock) as hub,
        hub.serve(LOCAL, commits=True) as served,
        persist.open(memory, settings=QUIET, clock=clock, commit_through=served.url) as client,
    ):
        write(made(hub), range(3))
        collection, copy = made(client), copied(memory)
        write(collection, range(3, 5))
        restore(memory, copy)
        write(collection, range(5, 6))
    with opened(memory, clock, "read") as reader:
        assert reader["c"].snapshot(5).to_arrow()["k"].to_pylist() == [0, 1, 2, 5]


def test_a_folder_restored_in_place_opens_again_with_the_command_that_the_error_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, clock = tmp_path / "a b", ImpatientClock()
    blob = FileBlob(folder, fsync=False)
    with persist.open(folder, clock=clock, settings=QUIET) as client:
        write(made(client), range(3))
        copy = copied(blob)
        write(made(client), range(3, 5))
        for key in [entry.key for entry in blob.list("") if entry.key not in copy]:
            blob.delete(key)
        with pytest.raises(LogReplaced) as caught:
            write(made(client), range(5, 6))
    with persist.open(folder, clock=clock, settings=QUIET) as client, pytest.raises(LogInterrupted) as interrupted:
        write(made(client), range(3, 4))
    commands = {re.search(r"`persist (.*?)`", str(error.value))[1] for error in (caught, interrupted)}  # type: ignore[index]
    assert len(commands) == 1
    assert main(shlex.split(commands.pop())) in (0, 1)
    assert "move" in capsys.readouterr().out
    with persist.open(folder, clock=clock, settings=QUIET) as client:
        write(made(client), range(3, 6))
        assert client["c"].snapshot(5).count() == 6
        assert client.fsck().is_clean


def test_the_look_is_under_way_beside_the_create_of_a_store_far_away(clock: ImpatientClock) -> None:
    far = FarBlob()
    store = Stepped(far)
    store.is_remote = True  # type: ignore[attr-defined]
    with opened(store, clock) as client:
        write(made(client), range(2))
        looked = threading.Event()
        key = make_record_key(log(far)[-1])
        store.after("get", key, looked.set)
        store.before(
            "create", "log/", lambda: looked.wait(WAIT_S) or pytest.fail("nobody looked before the create ended")
        )
        write(made(client), range(2, 3))
        assert store.is_done


def test_a_create_that_took_long_is_looked_after_again(clock: ImpatientClock) -> None:
    far = FarBlob()
    store = Stepped(far)
    store.is_remote = True  # type: ignore[attr-defined]
    with opened(store, clock) as client:
        write(made(client), range(2))
        copy = copied(far)
        write(made(client), range(2, 4))
        key, looked = make_record_key(log(far)[-1]), threading.Event()

        def be_slow() -> None:
            assert looked.wait(WAIT_S)
            restore(far, copy)
            clock.sleep(5)

        store.after("get", key, looked.set)
        store.before("create", "log/", be_slow)
        with pytest.raises(LogReplaced):
            write(made(client), range(4, 5))


class Blind(Stepped):
    """A store that does not answer whoever looks back."""

    def __init__(self, inner: MemoryBlob, error: Exception) -> None:
        super().__init__(inner)
        self.is_blind, self.error, self.is_remote = False, error, getattr(inner, "is_remote", False)

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        if self.is_blind and range is not None and key.startswith("log/"):
            raise self.error
        return super().get(key, range)


@pytest.mark.parametrize("error", [Unavailable("no answer"), Indeterminate("no answer")])
def test_a_commit_whose_past_cannot_be_looked_at_is_in_doubt(
    memory: MemoryBlob, clock: ImpatientClock, error: Exception
) -> None:
    store = Blind(memory, error)
    with opened(store, clock) as client:
        write(made(client), range(2))
        store.is_blind = True
        with pytest.raises(Indeterminate, match="may or may not"):
            write(made(client), range(2, 3))
        store.is_blind = False
        assert client["c"].upper.time == 3
        write(made(client), range(3, 4))
    assert upper(memory, clock) == 4


def test_a_client_whose_own_record_lies_beyond_the_hole_is_told_that_the_log_was_replaced(
    memory: MemoryBlob, clock: ImpatientClock
) -> None:
    """Its record is there, so what it follows is looked for when a newer checkpoint does not lead to it."""
    store = Blind(memory, Unavailable("no answer"))
    with opened(memory, clock) as other:
        write(made(other), range(INTERVAL))
        wait_for_checkpoint(other)
        copy = copied(memory)
        write(made(other), range(INTERVAL, 2 * INTERVAL + 2))
        wait_for_checkpoint(other)
        with opened(store, clock) as client:
            write(made(client), range(2 * INTERVAL + 2, 2 * INTERVAL + 3))
            restore(memory, copy)
            store.is_blind = True
            with pytest.raises(Indeterminate):
                write(made(client), range(2 * INTERVAL + 3, 2 * INTERVAL + 4))
            store.is_blind = False
            with pytest.raises(LogReplaced):
                assert client.seqno == log(memory)[-1]
                client.engine.follower.restart()


@pytest.mark.parametrize("writes", [3, 12])
def test_a_checkpoint_and_the_record_after_it_beyond_the_hole_hide_no_acknowledged_write(
    memory: MemoryBlob, clock: ImpatientClock, writes: int
) -> None:
    """Both were under way when the backup was restored, and come late, after another client has written."""
    with opened(memory, clock) as client:
        write(made(client), range(INTERVAL - 6))
        copy = copied(memory)
        write(made(client), range(INTERVAL - 6, INTERVAL + 3))
        wait_for_checkpoint(client)
        after = copied(memory)
    made_at = max(seqno for key in after if (seqno := parse_checkpoint_seqno(key)) is not None)
    restore(memory, copy)
    with opened(memory, clock) as other:
        write(made(other), range(50, 50 + writes))
    for key in [entry.key for entry in memory.list("checkpoint/") if entry.key not in copy]:
        memory.delete(key)  # The other one did not live to make its own, wherever in the log that was due.
    for key in after.keys() - copy.keys():
        if parse_record_seqno(key) in (None, made_at + 1):
            memory.create(key, after[key])
    with pytest.raises(LogInterrupted, match=f"a checkpoint at seqno {made_at}"):
        opened(memory, clock)
    assert {each.kind for each in persist.fsck(memory, clock=clock).problems} >= {"beyond"}
    assert not persist.fsck(memory, clock=clock, repair=True, set_aside=True).problems_left
    with opened(memory, clock) as client:
        assert made(client).snapshot(49 + writes).to_arrow()["k"].to_pylist()[-writes:] == [*range(50, 50 + writes)]
        write(made(client), range(70, 71))


def test_a_look_costs_one_read_of_few_bytes_for_each_commit(memory: MemoryBlob, clock: ImpatientClock) -> None:
    blob = MeteredBlob(memory)
    with opened(blob, clock) as client:
        write(collection := made(client), range(1))
        before = blob.get_counts()["get"]
        write(collection, range(1, 9))
        after = blob.get_counts()["get"]
        assert after.requests == before.requests + 8
        assert after.bytes - before.bytes <= 8 * 256


def test_rule_9_a_client_that_proves_the_store_puts_no_lost_record_back(
    memory: MemoryBlob, clock: ImpatientClock
) -> None:
    """It offers the newest record that it knows, and after a restore the slot of that one is free.

    To a store far away it has offered it when it was opened, so its first write is like those that follow: a record
    that is created while the client looks back stays beyond the end, and is not acknowledged.
    """
    first = opened(memory, clock)
    write(made(first), range(3))
    copy, ends = copied(memory), log(memory)
    write(made(first), range(3, 5))
    lost = [*range(ends[-1] + 1, log(memory)[-1] + 1)]
    before = memory.refusals if isinstance(memory, FarBlob) else 0
    second = opened(memory, clock)
    assert second["c"].upper == persist.Antichain(5)
    wait_until(lambda: not isinstance(memory, FarBlob) or memory.refusals > before)  # A thread offers the record.
    restore(memory, copy)
    with pytest.raises(LogReplaced):
        write(made(second), range(5, 6))
    assert log(memory) == ends + [lost[-1] + 1] * isinstance(memory, FarBlob)
    with pytest.raises(LogReplaced):
        write(made(first), range(6, 7))
