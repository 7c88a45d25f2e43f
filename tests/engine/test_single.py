"""Parts that are single: who says so, what merges keep of it, and what an examination finds."""

from pathlib import Path
from typing import Any

import pytest

import persist
from persist.codecs.part.describing import describe_part
from persist.codecs.part.part import STATS_BYTES_MAX
from persist.codecs.part.stream import encode_parts
from persist.codecs.updates.updates import to_updates
from tests.support.tuned import tuned

QUIET = tuned(background=False)


def parts(rows: Any) -> list[bool]:
    contents = rows.handle.contents()
    return [part.is_single for part in contents.numbered.values()]


def test_what_looks_before_it_writes_says_that_keys_have_one_row(tmp_path: Path) -> None:
    with persist.open(str(tmp_path), settings=QUIET) as client:
        rows = client.create_or_load("rows", key={"id": int}, value={"v": int})
        rows.upsert([(i, i) for i in range(100)]).result()
        rows.upsert([(i, -i) for i in range(50, 150)]).result()
        rows.delete([1, 2]).result()
        rows.overwrite([(i, 0) for i in range(90)]).result()
        assert parts(rows) == [True] * 4
        rows.delete(where="id = 5").result()
        rows.overwrite([(7, 1)], where="id = 7 or v = 5").result()
        rows.write([(200, 1), (200, 2)]).result()
        assert parts(rows)[4:] == [False] * 3, "none of these knows what else there is of a key"
        rows.upsert([(200, 3)]).result()
        assert parts(rows)[7:] == [True]


def test_keyed_collections_are_single(tmp_path: Path) -> None:
    with persist.open(str(tmp_path), settings=QUIET) as client:
        users = client.create_or_load("users", key={"id": int}, value={"v": int}, keyed=persist.Keyed())
        users.upsert([(1, 1, 0), (2, 2, 0), (1, 3, 1)], seal=2).result()
        assert parts(users) == [True]


@pytest.mark.parametrize("is_single", [True, False])
def test_a_merge_is_single_if_all_parts_are_and_a_keyframe_if_it_sees_it(tmp_path: Path, is_single: bool) -> None:
    with persist.open(str(tmp_path), settings=QUIET) as client:
        rows = client.create_or_load("rows", key={"id": int}, value={"v": int})
        if not is_single:
            rows.write([((i, 0), 0, 1) for i in range(4000)], seal=1).result()
        for step in range(1, 4):
            rows.upsert([(i, step) for i in range(4000)]).result()
        rows.compact()
        contents = rows.handle.contents()
        keyframe = [contents.numbered[number] for frame in contents.keyframes for number in frame.parts]
        history = [contents.numbered[number] for run in contents.history for number in run]
        assert keyframe
        assert all(part.is_single for part in keyframe), "each key has one row, whoever wrote it"
        assert history
        assert all(part.is_single for part in history) is is_single


@pytest.mark.parametrize("other", [9, 0])
def test_a_keyframe_with_two_rows_of_a_key_is_not_single(tmp_path: Path, other: int) -> None:
    """Whether they differ, or are one row twice."""
    with persist.open(str(tmp_path), settings=QUIET) as client:
        rows = client.create_or_load("rows", key={"id": int}, value={"v": int})
        rows.write([((i, 0), 0, 1) for i in range(4000)] + [((9, other), 0, 1)], seal=1).result()
        rows.upsert([(i, 1) for i in range(2000, 4000)]).result()
        rows.compact()
        contents = rows.handle.contents()
        keyframe = [contents.numbered[number] for frame in contents.keyframes for number in frame.parts]
        assert keyframe
        assert not any(part.is_single for part in keyframe)


def test_there_is_room_for_it_in_the_statistics(tmp_path: Path) -> None:
    with persist.open(str(tmp_path), settings=QUIET) as client:
        value = {f"a column of a long name {number}": int for number in range(60)}
        schema = client.create_or_load("rows", key={"id": int}, value=value).handle.schema
    table = to_updates([((1, tuple(range(60))), 0, 1)], schema)
    [(data, _)] = encode_parts(table, schema)
    part = describe_part(data, table, schema)
    single = part.mark_single()
    assert single.is_single
    assert len(bytes(single.stats_json)) <= STATS_BYTES_MAX
    assert 0 < len(single.stats) - 1 <= len(part.stats)
    assert {name: single.stats[name] for name in part.stats if name in single.stats}.items() <= part.stats.items()


def test_runs_merged_around_a_retraction_are_sound() -> None:
    """Runs without retractions are merged although others lie between them, so a part may have two rows of a key."""
    with persist.open("memory://single", settings=QUIET) as client:
        rows = client.create_or_load("rows", key={"id": int}, value={"v": int})
        rows.upsert([(2, 0)]).result()
        rows.compact()
        for key in (0, 3, 4):
            rows.upsert([(key, 2)]).result()
        rows.overwrite([(0, 2)]).result()
        for key in (2, 1):
            rows.upsert([(key, 2)]).result()
        rows.overwrite([(0, 2), (1, 1)]).result()
        rows.upsert([(4, 2)]).result()
        rows.compact()
        history = rows.handle.contents().history_parts
        assert any(part.rows == 6 and not part.negatives and part.is_single for part in history)
        assert not client.fsck().problems
