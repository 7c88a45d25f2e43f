"""A folder whose machine loses power: at every point, in every way that POSIX allows (see `disk.py`)."""

import random
import tempfile
from collections.abc import Iterator
from itertools import product

import pytest

from persist.blob.stores import file
from persist.blob.stores.file import FileBlob
from tests.blob.power_cuts.cuts import (
    SCRATCH,
    Cuts,
    Violation,
    new_folders,
    record_calls,
    record_story,
    record_two_lives,
    story,
)
from tests.blob.power_cuts.disk import Disk
from tests.blob.power_cuts.mutants import InPlace, LinkedTooEarly, Overwriting
from tests.blob.power_cuts.recorder import Data, Entry, Recorder, Sync
from tests.support.tiers import examples

SEED = 1
STATES_MAX = 64


@pytest.fixture
def folders() -> Iterator[Iterator[str]]:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as top:
        yield new_folders(top)


def two_lives(folders: Iterator[str]) -> Iterator[tuple[Recorder, int]]:
    """Yield recordings of a process that is killed and another that goes on, for each moment it may be killed at."""
    moments = range(max(record_calls(next(folders)).calls) + 1)
    for killed_after, is_older in product(moments, (False, True)):
        yield record_two_lives(next(folders), killed_after, is_older=is_older)


def test_whatever_a_power_cut_leaves_holds_all_that_was_acknowledged_and_nothing_torn(folders: Iterator[str]) -> None:
    cuts = Cuts(SEED)

    cuts.check_calls(record_calls(next(folders)).events, STATES_MAX)

    assert cuts.states > cuts.points > 50


@pytest.mark.thorough
def test_a_power_cut_does_not_take_back_what_a_process_found_that_another_had_not_finished(
    folders: Iterator[str],
) -> None:
    cuts = Cuts(SEED)

    for recording, killed_at in two_lives(folders):
        cuts.check_calls(recording.events, 4, since=killed_at)

    assert cuts.states > cuts.points > 1000


@pytest.mark.thorough
def test_a_process_that_trusts_what_it_has_not_synced_since_would_be_found(
    folders: Iterator[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "CLOCK_TICK_NS", -(10**15))

    with pytest.raises(Violation):
        for recording, killed_at in two_lives(folders):
            Cuts(SEED).check_calls(recording.events, 4, since=killed_at)


@pytest.mark.parametrize("wrong", [InPlace, LinkedTooEarly, Overwriting])
def test_a_wrong_way_to_write_is_found(folders: Iterator[str], wrong: type[FileBlob]) -> None:
    recording = record_calls(next(folders), blob_type=wrong)

    with pytest.raises(Violation, match="may hold"):
        Cuts(SEED).check_calls(recording.events, STATES_MAX)


@pytest.mark.costly("it opens a location after each of many cuts")
def test_a_client_finds_its_log_whole_and_every_part_that_it_names_after_a_power_cut(folders: Iterator[str]) -> None:
    cuts = Cuts(SEED)

    cuts.check_story(record_story(next(folders), story()).events, most=4, share=max(0.05, examples(50) / 100))

    assert cuts.states > 15


def test_a_client_of_a_folder_that_does_not_sync_loses_what_it_acknowledged(folders: Iterator[str]) -> None:
    recording = record_story(next(folders), story(), syncs=False)

    with pytest.raises(Violation):
        Cuts(SEED).check_story(recording.events, most=4, share=0.2)


def states_after(*events: Entry | Data | Sync) -> list[dict[str, bytes | None]]:
    disk = Disk()
    for event in events:
        disk.apply(event)
    return list(disk.states(1000, random.Random(SEED)))


def test_a_new_file_may_be_absent_or_torn_until_it_and_its_folder_are_synced() -> None:
    made = (Data(1, b""), Entry(0, "name", 1), Data(1, b"data"))

    neither = states_after(*made)
    assert {} in neither
    assert {"name": b"data"} in neither
    assert {"name": b"da\0\0"} in neither
    assert {"name": b""} in neither
    assert {"name": bytes(4)} in neither

    assert sorted(map(str, states_after(*made, Sync(1)))) == ["{'name': b'data'}", "{}"]
    assert {} not in states_after(*made, Sync(0))
    assert states_after(*made, Sync(1), Sync(0)) == [{"name": b"data"}]


def test_names_are_lost_independently_and_with_all_below_them() -> None:
    states = states_after(Entry(0, "folder", 1), Data(2, b""), Entry(1, "below", 2), Entry(0, "other", 3), Sync(1))

    assert sorted(sorted(state) for state in states) == [
        [],
        ["folder", "folder/below"],
        ["folder", "folder/below", "other"],
        ["other"],
    ]


def test_a_rename_that_is_not_synced_may_have_lost_either_name_or_kept_both() -> None:
    before = (Data(1, b""), Entry(0, "old", 1), Sync(1), Sync(0))

    states = states_after(*before, Entry(0, "new", 1), Entry(0, "old", None))

    assert sorted(sorted(state) for state in states) == [[], ["new"], ["new", "old"], ["old"]]
