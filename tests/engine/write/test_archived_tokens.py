"""Rule 7 for tokens that are in archives: a retried write happens once, or is refused."""

from pathlib import Path

import pyarrow as pa
import pytest

import persist
from persist import backup, copy
from persist.blob.protocol import MemoryBlob
from persist.blob.stores.file import FileBlob
from persist.core.log import kinds
from persist.core.log.records import read_record
from persist.engine.follow.checkpoint import write_checkpoint
from persist.errors import CorruptBlob, TokenForgotten, TokenReused
from tests.support.tuned import tuned

SETTINGS = tuned(background=False, grace_s=0, orphan_grace_s=0, hold_linger_s=0)
KEY, VALUE = {"k": pa.int64()}, {"v": pa.string()}
OTHERS = 40


@pytest.fixture(autouse=True)
def few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persist.core.state_rules.annotations.TOKENS_KEPT", 8)
    monkeypatch.setattr("persist.core.state_rules.annotations.ARCHIVE_MAX", 16)


def opened(blob: MemoryBlob | FileBlob) -> persist.Client:
    return persist.open(blob, settings=SETTINGS)


def write_others(c: persist.Collection, count: int = OTHERS, first: int = 0) -> None:
    for n in range(first, first + count):
        write = c.upsert if c.handle.keyed is not None else c.write
        write([(1000 + n, "other")], token=f"other {n}").result()


def once(client: persist.Client, c: persist.Collection, what: str) -> None:
    """Do one of the ways to write with a token."""
    if what == "multi_write":
        with client.multi_write(token="once") as multi:
            (multi.write if c.handle.keyed is None else multi.upsert)(c, [(1, "a")])
        return
    done = {
        "write": lambda: c.write([(1, "a")], token="once"),
        "overwrite": lambda: c.overwrite([(1, "a")], token="once"),
        "overwrite where": lambda: c.overwrite([(1, "a")], where="k < 10", token="once"),
        "upsert": lambda: c.upsert([(1, "a")], token="once"),
        "delete": lambda: c.delete([1], token="once"),
        "delete where": lambda: c.delete(where="k < 10", token="once"),
        "restore": lambda: c.restore(0, token="once"),
    }[what]()
    if isinstance(done, persist.CommitFuture):
        done.result()


WAYS = ["write", "overwrite", "overwrite where", "upsert", "delete", "delete where", "restore", "multi_write"]


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize(
    ("what", "keyed"),
    [*((what, None) for what in WAYS), *((what, persist.Keyed()) for what in ("overwrite where", "upsert", "restore"))],
)
def test_a_write_that_is_retried_after_many_others_happens_once_whatever_writes(
    blob: MemoryBlob, what: str, keyed: persist.Keyed | None
) -> None:
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE, keyed=keyed)
        (c.write if keyed is None else c.upsert)([(1, "first"), (2, "second")]).result()
        once(client, c, what)
        write_others(c, 12)
        changed = (c.upsert if keyed is not None else c.write)([(3, "since")])
        changed.result()
        before = sorted(c.snapshot().rows())
        once(client, c, what)
        assert sorted(c.snapshot().rows()) == before
        assert len(c.handle.contents().tokens) <= 8
    with opened(blob) as another:
        c = another.load("c")
        once(another, c, what)
        assert sorted(c.snapshot().rows()) == before


def retried(client: persist.Client, name: str = "c") -> list[tuple[int, str]]:
    """Return the rows after each write was done again."""
    c = client.load(name)
    for n in range(OTHERS):
        assert c.write([(1000 + n, "other")], token=f"other {n}").result() >= 0
    return sorted(c.snapshot().rows())


def test_a_retry_says_when_the_write_was_done_and_other_data_is_refused(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        first = c.write([(1, "a")], token="once")
        first.result()
        write_others(c)
        again = c.write([(1, "a")], token="once")
        again.result()
        assert again.time == first.time
        with pytest.raises(TokenReused):
            c.write([(1, "b")], token="once").result()


def test_tokens_survive_the_truncation_of_the_log_and_the_collection_of_garbage(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        write_others(c)
        rows = sorted(c.snapshot().rows())
        client.engine.submit("truncate", [kinds.TruncateLog(client.seqno)], {}).result()
        write_checkpoint(blob, *client.engine.follower.get_recent_records())
        client.gc()
        client.gc()
        archives = c.handle.contents().archives
        assert archives is not None
        stored = {entry.key for entry in blob.list(f"part/{c.id}/") if entry.key.endswith(".json")}
        assert stored == {archive.stored.blob for archive in archives.stored}, "those that were merged are deleted"
        assert sum(archive.count for archive in archives.stored) + len(c.handle.contents().tokens) == OTHERS
        assert all(archive.count <= 16 for archive in archives.stored)
    with opened(blob) as another:
        assert retried(another) == rows
        assert another.fsck().problems == ()


def test_a_restored_backup_has_the_tokens_and_a_clone_has_none(tmp_path: Path) -> None:
    with opened(FileBlob(tmp_path / "a")) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        write_others(c)
        rows = sorted(c.snapshot().rows())
        client.clone("c", "clone")
        clone = client.load("clone")
        clone.write([(1000, "other")], token="other 0").result()
        assert len(clone) == len(rows) + 1
        clone.drop().result()
        client.gc()
    backup(str(tmp_path / "a"), str(tmp_path / "b"))
    copy(str(tmp_path / "b"), str(tmp_path / "c"))
    with opened(FileBlob(tmp_path / "c")) as client:
        assert retried(client) == rows


def test_of_two_clients_that_archive_at_once_none_loses_a_token(blob: MemoryBlob) -> None:
    with opened(blob) as one, opened(blob) as two:
        both = [client.create_or_load("c", key=KEY, value=VALUE) for client in (one, two)]
        futures = [both[n % 2].write([(1000 + n, "other")], token=f"other {n}") for n in range(OTHERS)]
        for future in futures:
            future.result()
        rows = sorted(both[0].snapshot().rows())
        assert len(rows) == OTHERS
        assert retried(one) == retried(two) == rows


def test_a_retry_in_the_record_that_archives_its_token_is_found(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        write_others(c, 8)
        futures = [c.write([(2000 + n, "new")], token=f"new {n}") for n in range(30)]
        futures += [c.write([(1000 + n, "other")], token=f"other {n}") for n in range(8)]
        futures += [c.write([(2000 + n, "new")], token=f"new {n}") for n in range(30)]
        for future in futures:
            future.result()
        assert c.snapshot().count() == 38


def test_a_token_that_may_be_forgotten_is_refused_and_says_what_to_do(
    blob: MemoryBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persist.core.state_rules.annotations.ARCHIVED_MAX", 20)
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        with pytest.raises(TokenForgotten) as first:
            write_others(c, 100)
        assert isinstance(first.value, persist.InvalidUsage)
        rows = sorted(c.snapshot().rows())
        with pytest.raises(TokenForgotten, match=r"'other 0' may have been used .*'c' has forgotten .*without a token"):
            c.write([(1000, "other")], token="other 0").result()
        with pytest.raises(TokenForgotten):
            c.overwrite([(1, "a")], token="new").result()
        last = rows[-1][0] - 1000
        c.write([(1000 + last, "other")], token=f"other {last}").result()
        assert sorted(c.snapshot().rows()) == rows
        c.write([(1, "a")]).result()
        assert len(c) == len(rows) + 1


class Counting(MemoryBlob):
    """Counts the archives that are read."""

    read = 0

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        self.read += key.startswith("part/") and key.endswith(".json")
        return super().get(key, range)


def test_a_client_reads_each_archive_once_and_none_that_it_has_stored() -> None:
    blob = Counting()
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        write_others(c)
        assert blob.read == 0
        archives = c.handle.contents().archives
        assert archives is not None
    with opened(blob) as another:
        c = another.load("c")
        c.write([(1, "a")]).result()
        assert blob.read == 0, "no write without a token needs them"
        for token in ("new", "newer"):
            c.write([(1, "a")], token=token).result()
            assert blob.read == len(archives.stored)


@pytest.mark.parametrize("damage", ["lost", "damaged"])
def test_a_lost_archive_refuses_writes_with_an_older_token_and_no_others(blob: MemoryBlob, damage: str) -> None:
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        write_others(c)
        archives = c.handle.contents().archives
        assert archives is not None
        key = archives.stored[0].stored.blob
    data = blob.get(key)
    assert data is not None
    blob.delete(key)
    if damage == "damaged":
        blob.set(key, data[:-40] + b"x" + data[-39:])
    with opened(blob) as client:
        c = client.load("c")
        plain, tokened = c.write([(1, "a")]), c.write([(2, "b")], token="new")
        plain.result()
        with pytest.raises(CorruptBlob, match=key):
            tokened.result()
        c.write([(1039, "other")], token="other 39").result()
        assert len(c) == OTHERS + 1
        found = [problem for problem in client.fsck().problems if problem.blob == key]
        assert [problem.kind for problem in found] == ["missing" if damage == "lost" else "damaged"]


def test_a_collection_without_older_tokens_keeps_the_format_of_its_location(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        write_others(c, 8)
        record = read_record(blob, client.seqno)
        assert record is not None
        tokens = [step for step in record.mutations if isinstance(step, kinds.Tokens)]
        assert [step.format_needed for step in tokens] == [6]
        write_others(c, 1, 8)
        record = read_record(blob, client.seqno)
        assert record is not None
        assert [step.format_needed for step in record.mutations if isinstance(step, kinds.Tokens)] == [10]
