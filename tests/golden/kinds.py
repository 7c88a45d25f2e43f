"""Writes a record of every kind to a location, with each optional member somewhere.

`tests/test_golden.py` fails when there is a kind or a member that this does not write: add it here, then see
`docs/golden.md`.
"""

from pathlib import Path

import pyarrow as pa

import persist
from persist.blob import Blob
from persist.client import Client
from persist.records import Collected, EndLease, GrantLease, LocationMutation, TruncateLog, VoidUploads

SETTINGS = persist.Settings(background=False, hold_linger_s=0)
LEASE = "f" * 32


def write_every_kind(location: Path | Blob) -> None:
    """Make a collection `kinds` with a permanent hold and a leased one, and commit each kind of mutation."""
    with persist.open(location, settings=SETTINGS) as first:
        first.create_or_load("destroyed", key=persist.Utf8, value=None).destroy().result()
    with (
        persist.open(location, mode="exclusive", settings=SETTINGS),
        persist.open(location, mode="exclusive", force=True, settings=SETTINGS) as client,
    ):
        kinds = client.create_or_load("kinds", key={"k": pa.int64()}, value=None)
        kinds.write([((1, None), 0, 1)], token="a token").result()
        kinds.write([((1, None), 3, -1), ((2, None), 3, 2)], token="another token", seal=4).result()
        kinds.hold(1, name="a consumer").advance(2)
        kinds.hold(2, name="released").release()
        with kinds.hold(3):
            kinds.allow_compaction(3).result()
        _commit(client, GrantLease(LEASE, "somebody", 10**13))
        _commit(client, GrantLease(LEASE, "somebody", 10**13 + 1, renews=True))
        _commit(client, EndLease(LEASE, expires_ms=10**13 + 1))
        dropped = client._follower.refresh().control.dropped
        _commit(client, Collected(tuple((d.collection, d.seqno) for d in dropped)), TruncateLog(0), VoidUploads(1))


def _commit(client: Client, *mutations: LocationMutation) -> None:
    """Commit what else only leases and the collection of garbage commit, when time has passed."""
    assert client._committer is not None
    client._committer.submit(mutations, {}).result()
