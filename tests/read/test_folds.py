"""What sealed events come to is kept for the next read, within its room."""

from pathlib import Path

import pyarrow as pa

import persist
from persist.read import Folds, folded


def test_what_is_put_again_and_again_takes_its_room_once(tmp_path: Path) -> None:
    with persist.open(tmp_path, settings=persist.Settings(background=False)) as client:
        keyed = persist.Keyed(resolve="background")
        users = client.create_or_load("users", key={"k": pa.int64()}, value={"v": pa.string()}, keyed=keyed)
        users.upsert([(1, "a", 0)], seal=1).result()
        handle = users.handle
        contents = handle.contents()
        parts = folded(contents, contents.schema, handle.machine_in(contents), contents.upper, handle.engine.reader())
    folds = Folds(2 * sum(len(part.inline) for part in parts))
    for _ in range(5):
        folds.put(contents, parts)
    assert folds.get(contents) == parts
