"""What lies beyond the end of the log is reported, set aside only when that is asked for, and never deleted."""

from pathlib import Path

import pyarrow as pa
import pytest

import persist
from persist.blob.errors import InvalidUsage
from persist.blob.protocol import MemoryBlob
from persist.blob.stores.file import FileBlob
from persist.core.log.framing import BlobRef
from persist.core.log.keys import make_checkpoint_key, make_record_key, parse_checkpoint_seqno
from persist.engine.follow.checkpoint import INTERVAL, load_checkpoint, load_state
from persist.engine.follow.follower import Follower
from persist.engine.write.part_writer import PartWriter
from persist.errors import LogInterrupted
from persist.services.fsck.checkpoint import MoveToLost
from persist.tools.cli.command import OK, PROBLEMS
from persist.tools.cli.main import main
from tests.support.checkpoints import wait_for_checkpoint
from tests.support.clocks import ImpatientClock
from tests.support.parts import commit_parts
from tests.support.rollback import KEY, QUIET, copied, interrupted, made, opened, restore, rolled_back, trusting, write
from tests.support.stepped import Stepped

Blobs = dict[str, bytes]


def lost(blobs: Blobs) -> Blobs:
    return {key.removeprefix("lost/"): data for key, data in blobs.items() if key.startswith("lost/")}


def test_fsck_reports_what_lies_beyond_the_end_and_repair_alone_leaves_it() -> None:
    blob, clock = interrupted()
    before = copied(blob)
    for repair in (False, True):
        report = persist.fsck(blob, clock=clock, settings=QUIET, repair=repair)
        assert [(each.kind, each.blob) for each in report.problems] == [
            ("missing", make_record_key(7)),
            ("beyond", make_record_key(10)),
        ]
        what = "the log ends at seqno 6, and 2 records from 10 to 11 lie beyond that, made after others than are there"
        assert report.problems[1].what == what
        assert "set_aside" in report.problems[1].advice
        assert report.repairs_planned == ()
    assert copied(blob) == before


def test_what_is_set_aside_is_kept_and_the_log_goes_on() -> None:
    blob, clock = interrupted()
    before = copied(blob)
    keys = [make_record_key(11), make_record_key(10)]
    shown = persist.fsck(blob, clock=clock, settings=QUIET, repair=True, set_aside=True, dry_run=True)
    assert [(each.action, each.blob, each.why) for each in shown.repairs_planned] == [
        ("move", key, f"to lost/{key}: it lies beyond the end of the log") for key in keys
    ]
    assert copied(blob) == before
    done = persist.fsck(blob, clock=clock, settings=QUIET, repair=True, set_aside=True)
    assert done.repairs_done == shown.repairs_planned
    after = copied(blob)
    assert lost(after) == {key: before[key] for key in keys}
    assert {key: data for key, data in after.items() if not key.startswith("lost/")} == {
        key: data for key, data in before.items() if key not in keys
    }
    with opened(blob, clock) as client:
        write(made(client), range(6, 30))
        assert made(client).snapshot(29).count() == 30
        client.gc()
    report = persist.fsck(blob, clock=clock, settings=QUIET, repair=True, set_aside=True)
    assert report.is_clean
    assert {each.blob for each in report.unreferenced if each.kind == "lost"} == {f"lost/{key}" for key in keys}
    assert lost(copied(blob)) == lost(after)


def test_parts_that_only_lost_records_name_are_kept_with_them() -> None:
    blob, clock, client, collection = rolled_back(3)
    rows = pa.table({"k": range(20_000), "_time": [9] * 20_000, "_diff": [1] * 20_000})
    with client:
        collection.write(rows, seal=10).result()
    parts = {entry.key: blob.get(entry.key) for entry in blob.list("part/")}
    assert len(parts) == 1
    report = persist.fsck(blob, clock=clock, settings=QUIET, repair=True, set_aside=True)
    found = lost(copied(blob))
    why = "to lost/{}: only what lies beyond the end of the log names it"
    assert [(each.action, each.blob, each.why) for each in report.repairs_done][:-1] == [
        ("copy", key, why.format(key)) for key in parts
    ]
    assert found.keys() == {make_record_key(10), *parts}
    assert all(found[key] == data for key, data in parts.items())


def test_parts_that_the_collection_has_besides_are_not_set_aside() -> None:
    blob, clock = MemoryBlob(), ImpatientClock()
    client = trusting(opened(blob, clock))
    with client:
        collection = made(client)
        rows = pa.table({"k": range(100), "_time": [9] * 100, "_diff": [1] * 100})
        parts = PartWriter(blob, client.engine.follower.find_next_seqno).upload(collection.id, collection.schema, rows)
        commit_parts(collection, parts).result()
        copy = copied(blob)
        write(collection, range(1))
        restore(blob, copy)
        commit_parts(collection, parts).result()  # Once more, in a record beyond the hole.
    report = persist.fsck(blob, clock=clock, settings=QUIET, repair=True, set_aside=True)
    assert [each.action for each in report.repairs_done] == ["move"]
    assert all(key.startswith("log/") for key in lost(copied(blob)))
    assert parts[0].blob in copied(blob)


def test_nothing_is_set_aside_if_the_log_was_made_whole_meanwhile() -> None:
    """Somebody puts back the record that was missing, after the examination and before the repair."""
    blob, clock = MemoryBlob(), ImpatientClock()
    with opened(blob, clock) as client:
        write(made(client), range(9))
    whole = copied(blob)
    blob.delete(make_record_key(5))
    state = Follower(blob, clock).state
    assert state.seqno == 4
    aside = MoveToLost(blob, state, range(6, 10), ())
    assert len([*aside.plan()]) == 4
    restore(blob, whole)
    assert [*aside.run()] == []
    assert copied(blob) == whole


def test_a_repair_that_is_interrupted_leaves_the_rest_to_the_next() -> None:
    blob, clock = interrupted()
    before = copied(blob)
    persist.fsck(blob, clock=clock, settings=QUIET, repair=True, set_aside=True)
    whole = copied(blob)
    restore(blob, {**before, f"lost/{make_record_key(11)}": before[make_record_key(11)]})
    persist.fsck(blob, clock=clock, settings=QUIET, repair=True, set_aside=True)
    assert copied(blob) == whole


def test_what_was_set_aside_before_is_never_written_over() -> None:
    blob, clock = interrupted()
    blob.set(f"lost/{make_record_key(11)}", b"of another time")
    before = copied(blob)
    with pytest.raises(persist.errors.CorruptBlob, match="move it elsewhere"):
        persist.fsck(blob, clock=clock, settings=QUIET, repair=True, set_aside=True)
    assert copied(blob) == before


def test_a_record_that_cannot_be_read_is_damage_and_sets_nothing_aside() -> None:
    blob, clock = MemoryBlob(), ImpatientClock()
    with opened(blob, clock) as client:
        write(made(client), range(9))
    blob.set(make_record_key(5), b"damaged")
    before = copied(blob)
    report = persist.fsck(blob, clock=clock, settings=QUIET, repair=True, set_aside=True)
    assert [each.kind for each in report.problems] == ["damaged"]
    assert copied(blob) == before


def test_a_lost_record_that_is_put_back_makes_the_log_whole() -> None:
    blob, clock = MemoryBlob(), ImpatientClock()
    with opened(blob, clock) as client:
        write(made(client), range(9))
    record = blob.get(make_record_key(5)) or b""
    blob.delete(make_record_key(5))
    report = persist.fsck(blob, clock=clock, settings=QUIET)
    assert [each.kind for each in report.problems] == ["missing", "beyond"]
    blob.set(make_record_key(5), record)
    assert persist.fsck(blob, clock=clock, settings=QUIET).is_clean
    with opened(blob, clock, "read") as reader:
        assert reader.load("c").upper.time == 9


def test_to_set_aside_goes_with_repair() -> None:
    with pytest.raises(InvalidUsage, match="repair=True"):
        persist.fsck(MemoryBlob(), set_aside=True)


def test_the_command_line_sets_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    memory, _ = interrupted()
    blob = FileBlob(tmp_path)
    for key, data in copied(memory).items():
        blob.set(key, data)
    blob.close()
    assert main(["fsck", "--repair", str(tmp_path)]) == PROBLEMS
    assert main(["fsck", "--repair", "--set-aside", "--dry-run", str(tmp_path)]) == PROBLEMS
    assert main(["fsck", "--repair", "--set-aside", str(tmp_path)]) == OK
    shown = capsys.readouterr().out
    assert f"move    log/{11:020d}" in shown
    assert shown.rstrip().endswith("no problem is left")
    assert main(["fsck", str(tmp_path)]) == OK
    with persist.open(tmp_path, settings=QUIET) as client:
        write(client.create_or_load("c", key=KEY, value=None), range(6, 9))


def with_a_checkpoint_beyond(before: int) -> tuple[MemoryBlob, ImpatientClock, int]:
    """Return a location restored while a client made a checkpoint, which is there, and where; of so many seals more."""
    blob, clock = MemoryBlob(), ImpatientClock()
    store = Stepped(blob)
    with opened(blob, clock) as client:
        for time in range(before):
            write(made(client), range(time, time + 1))
            wait_for_checkpoint(client)
        copy = copied(blob)

    def restore_but_for_objects() -> None:  # A tool lists first what to delete, and they have been made since.
        made_since = {key: data for key, data in copied(blob).items() if not key.startswith(("log/", "checkpoint/"))}
        restore(blob, {**made_since, **copy})

    with opened(store, clock) as client:
        store.before("create", "checkpoint/", restore_but_for_objects)
        collection = made(client)
        many = pa.table({"k": range(20_000), "_time": [before] * 20_000, "_diff": [1] * 20_000})
        collection.write(many).result()
        for time in range(before, before + INTERVAL):
            collection.seal(time + 2).result()
            wait_for_checkpoint(client)
            if store.is_done:
                break
        assert store.is_done
    return blob, clock, max(parse_checkpoint_seqno(entry.key) or 0 for entry in blob.list("checkpoint/"))


@pytest.mark.parametrize("before", [3, INTERVAL + 3])
def test_a_checkpoint_beyond_the_end_of_the_log_is_said_and_set_aside(before: int) -> None:
    blob, clock, seqno = with_a_checkpoint_beyond(before)
    for mode in ("read", "shared"):
        with pytest.raises(LogInterrupted, match=f"a checkpoint at seqno {seqno}.*--set-aside") as caught:
            opened(blob, clock, mode)
        assert (caught.value.end, caught.value.is_checkpoint) == (before, True)
    stray = make_checkpoint_key(seqno)
    report = persist.fsck(blob, clock=clock, settings=QUIET)
    expected = [("missing", make_record_key(before + 1)), ("beyond", stray)]
    assert [(problem.kind, problem.blob) for problem in report.problems] == expected
    whole = copied(blob)
    done = persist.fsck(blob, clock=clock, settings=QUIET, repair=True, set_aside=True)
    assert done.repairs_done == done.repairs_planned
    assert done.problems_left == ()
    kept = copied(blob)
    assert lost(kept)[stray] == whole[stray]
    assert stray not in kept
    with opened(blob, clock) as client:
        assert client["c"].upper.time == before
        write(made(client), range(before, before + 3 * INTERVAL))
        wait_for_checkpoint(client)
        client.gc()
    assert persist.fsck(blob, clock=clock, settings=QUIET).is_clean
    assert lost(copied(blob)) == lost(kept)


def test_the_objects_of_a_checkpoint_beyond_the_end_are_kept_with_it() -> None:
    blob, clock, seqno = with_a_checkpoint_beyond(INTERVAL + 3)
    stray = load_checkpoint(blob, make_checkpoint_key(seqno))
    assert stray is not None
    entries = load_state(blob, stray.checkpoint).entries.values()
    named = {entry.base.blob for entry in entries if isinstance(entry.base, BlobRef)}
    named |= {pointer.blob for pointer in stray.checkpoint.directory}
    named |= {entry.key for entry in blob.list("part/")}
    assert {key.partition("/")[0] for key in named} == {"state", "part"}
    persist.fsck(blob, clock=clock, settings=QUIET, repair=True, set_aside=True)
    assert named < lost(copied(blob)).keys()


def test_a_client_that_is_open_does_not_jump_to_a_checkpoint_beyond_the_end() -> None:
    blob, clock = MemoryBlob(), ImpatientClock()
    with opened(blob, clock) as client, opened(blob, clock, "read") as reader:
        write(made(client), range(3))
        assert reader["c"].upper.time == 3
        copy = copied(blob)
        write(made(client), range(3, 2 * INTERVAL))
        wait_for_checkpoint(client)
        beyond = {key: data for key, data in copied(blob).items() if key.startswith(("checkpoint/", "state/"))}
        restore(blob, {**copy, **beyond})
        with pytest.raises(LogInterrupted, match="a checkpoint at seqno"):
            reader.engine.follower.restart()
        assert reader["c"].upper.time == 3


def test_checkpoints_are_no_strays_where_the_log_is_gone_with_all_that_it_began_with() -> None:
    blob, clock = MemoryBlob(), ImpatientClock()
    with opened(blob, clock) as client:
        write(made(client), range(2 * INTERVAL))
        wait_for_checkpoint(client)
    restore(blob, {key: data for key, data in copied(blob).items() if not key.startswith("log/")})
    before = copied(blob)
    with pytest.raises(persist.errors.MissingBlob):
        opened(blob, clock, "read")
    report = persist.fsck(blob, clock=clock, settings=QUIET, repair=True, set_aside=True)
    ends = sorted(parse_checkpoint_seqno(entry.key) or 0 for entry in blob.list("checkpoint/"))
    assert [(each.kind, each.blob, each.what) for each in report.problems] == [
        (
            *("missing", make_record_key(start)),
            f"the {end - start + 1} records of seqnos {start} to {end} are missing, and there are later ones",
        )
        for start, end in zip([0, *(end + 1 for end in ends)], ends, strict=False)
    ]
    assert report.problems_left == report.problems
    assert copied(blob) == before
