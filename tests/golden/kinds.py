"""Writes a record of every kind to a location."""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pyarrow as pa

import persist
from persist.blob import Blob
from persist.client import Client
from persist.records import Collected, LocationMutation, Mutation, TruncateLog, VoidUploads

SETTINGS = persist.Settings(background=False, hold_linger_s=0)


def kinds() -> list[str]:
    """Return the names of all kinds of mutation there are."""
    return sorted(str(kind.__struct_config__.tag) for kind in get_args(Mutation))


def write_every_kind(location: Path | Blob) -> None:
    """Make a collection `kinds` with a permanent hold and a leased one, and commit each kind of mutation."""
    with persist.open(location, mode="exclusive", settings=SETTINGS) as client:  # open_writer, close_writer
        kinds = client.create_or_load("kinds", key={"k": pa.int64()}, value=None)
        kinds.write([((1, None), 0, 1)], token="a token").result()
        kinds.write([((1, None), 3, -1), ((2, None), 3, 2)], token="another token", seal=4).result()
        kinds.hold(1, name="a consumer").advance(2)
        kinds.hold(2, name="released").release()
        with kinds.hold(3):  # lease, hold
            kinds.allow_compaction(3).result()
        client.create_or_load("destroyed", key=persist.Utf8, value=None).destroy().result()
        dropped = client._follower.refresh().control.dropped
        _commit(client, [Collected(tuple(d.collection for d in dropped)), TruncateLog(1), VoidUploads(1)])


def _commit(client: Client, mutations: Sequence[LocationMutation]) -> None:
    """Commit what else only the collection of garbage commits, when days have passed."""
    assert client._committer is not None
    client._committer.submit(mutations, {}).result()
