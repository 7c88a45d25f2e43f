"""What sealed events come to is kept for the next read, within its room."""

from pathlib import Path

import pyarrow as pa
import pytest

import persist
from persist.blob.lru import Cache
from persist.engine.read.keyed.resolution import Folds
from persist.engine.read.parts.reader import PartReader


def test_what_is_folded_again_and_again_is_made_once_within_its_room(tmp_path: Path) -> None:
    with persist.open(tmp_path, settings=persist.Settings(background=False)) as client:
        keyed = persist.Keyed(resolve="background")
        users = client.create_or_load("users", key={"k": pa.int64()}, value={"v": pa.string()}, keyed=keyed)
        users.upsert([(1, "a", 0)], seal=1).result()
        handle = users.handle
        contents = handle.contents()
        readers: list[PartReader] = []

        def reader() -> PartReader:
            readers.append(handle.engine.reader())
            return readers[-1]

        folds = Folds(Cache(1 << 16))
        folded = [folds.fold(contents, lambda: handle.load_machine(contents), reader) for _ in range(5)]
        assert len(readers) == 1
        assert all(each == folded[0] for each in folded)
        assert [len(part.inline) > 0 for part in folded[0].history_parts] == [True]
        no_room = Folds(Cache(1))
        for _ in range(2):
            assert no_room.fold(contents, lambda: handle.load_machine(contents), reader) == folded[0]
        assert len(readers) == 3


def test_a_machine_that_fails_on_later_events_fails_no_read_before_them(tmp_path: Path) -> None:
    with persist.open(tmp_path, settings=persist.Settings(background=False)) as client:
        keyed = persist.Keyed(resolve="background")
        users = client.create_or_load("users", key={"k": pa.int64()}, value={"v": pa.string()}, keyed=keyed)
        users.upsert([(1, "a", 0)], seal=1).result()
        contents = users.handle.contents()
        machines = iter([users.handle.load_machine(contents)])
        with pytest.raises(StopIteration):
            Folds(Cache(1)).fold(contents, lambda: next(iter(())), users.handle.engine.reader, 1)
        assert next(machines)
