"""Blocks of several clients on the same keyed collections: deaths at every step, and processes that race."""

import itertools
import multiprocessing
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from tests.core.keyed.test_crash import MortalBlob
from tests.support.stepped import WAIT_S
from tests.support.tuned import tuned

NAMES = ("accounts", "owners")
POLICIES: dict[str, Any] = {"accounts": "seal", "owners": "background"}
SETTINGS = tuned(background=False, grace_s=0, orphan_grace_s=0)
LARGE = 20_000  # Rows enough for a part in a blob of its own.


def made(client: persist.Client) -> dict[str, persist.Collection]:
    found = {
        name: client.create_or_load(name, key={"k": int}, value={"v": str}, keyed=persist.Keyed(resolve=POLICIES[name]))
        for name in NAMES
    }
    return {**found, "log": client.create_or_load("log", key={"k": int}, value={"v": str})}


def _told(client: persist.Client, acknowledged: list[str]) -> None:
    """Commit blocks with tokens, small and large ones; may be told again, by another client, from its beginning."""
    each = made(client)
    accounts, owners, log = each["accounts"], each["owners"], each["log"]
    many = pa.table({"k": range(LARGE), "v": [f"{n * 7919 % 100_003:x}" for n in range(LARGE)]})
    accounts.upsert([(1, "pending", 0), (2, "pending", 5)], token="pending").result()
    for number in range(6):
        token = f"block {number}"
        with client.multi_write(token=token) as multi:
            multi.upsert(accounts, many.slice(number, LARGE - 9), time=2 * number + 1)
            multi.upsert(owners, many.slice(0, 5 + number), time=2 * number + 1)
            multi.delete(owners, [number], time=2 * number + 1)
            multi.write(log, many.slice(0, LARGE if number % 2 else 1), time=2 * number + 1)
            for collection in (accounts, owners, log):
                multi.seal(collection, 2 * number + 2)
        acknowledged.append(token)


@pytest.mark.thorough(except_every=24)
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("first", range(12))
def test_a_block_of_a_client_that_dies_at_any_step_is_there_whole_or_not_at_all(is_after: bool, first: int) -> None:
    with persist.open(MemoryBlob("multi-whole"), settings=SETTINGS) as client:
        _told(client, [])
        wanted = {name: [*client.load(name).changes(0, 12).updates()] for name in (*NAMES, "log")}
    for step in itertools.count(first, 12):
        store = MemoryBlob(f"multi-crash-{is_after}-{step}")
        mortal, acknowledged = MortalBlob(store, step, is_after=is_after), list[str]()
        dying = None
        with suppress(BaseException):
            dying = persist.open(mortal, settings=SETTINGS)
            _told(dying, acknowledged)
        if not mortal.is_dead:
            break
        with persist.open(store, settings=SETTINGS) as client:
            each = made(client)
            uppers = {collection.upper.time for collection in each.values()}
            assert len(uppers) == 1, "all are sealed, or none"
            blocks = {frozenset(t for t in c.handle.contents().tokens if t != "pending") for c in each.values()}
            assert len(blocks) == 1, "all know the block, or none"
            assert {*acknowledged} <= {*blocks.pop()}
            _told(client, [])
            for name, updates in wanted.items():
                assert [*client.load(name).changes(0, 12).updates()] == updates, (step, name)
            client.gc()
            stored = {entry.key for entry in store.list("part/")}
            named = {
                p.blob for collection in each.values() for p in collection.handle.contents().stored_parts if p.blob
            }
            assert stored == named, f"garbage is left over from step {step}"
            assert client.fsck().is_clean
        with suppress(BaseException):
            if dying is not None:
                dying.close()
    assert step >= 10, "the story changes the store more often than that"


BLOCKS = 25


def racer(path: str, number: int) -> None:
    """Give both collections the same event of a key of this process, as many times; some blocks seal them both."""
    with persist.open(path) as client:
        each = made(client)
        rng = random.Random(number)
        for block in range(BLOCKS):
            token = f"{number} {block}"
            while True:
                upper = max(each[name].upper.time or 0 for name in NAMES)
                try:
                    with client.multi_write(token=token) as multi:
                        for name in NAMES:
                            multi.upsert(each[name], [(number, f"{block}", upper + 1)])
                        if rng.random() < 0.6:
                            end = upper + rng.randrange(1, 4)
                            for name in NAMES:
                                multi.seal(each[name], end)
                    break
                except (persist.errors.UpdateNotBeyondUpper, persist.errors.FrontierRegression):
                    continue  # The other one has sealed farther: of another upper, it is another block.


def sealer(path: str) -> None:
    """Seal both, each by itself and at other moments than the racers do, so that they lose races."""
    with persist.open(path) as client:
        each = made(client)
        for number in range(BLOCKS):
            with suppress(persist.errors.FrontierRegression):
                name = NAMES[number % 2]
                each[name].seal(each[name].upper.time or 0).result()
                each[name].upsert([(-1, f"{number}", (each[name].upper.time or 0) + 50)]).result()


@pytest.mark.thorough
def test_processes_that_race_on_two_collections_change_both_alike(tmp_path: Path) -> None:
    with persist.open(tmp_path) as client:
        made(client)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=racer, args=(str(tmp_path), number)) for number in range(2)]
    processes.append(context.Process(target=sealer, args=(str(tmp_path),)))
    for process in processes:
        process.start()
    for process in processes:
        process.join(WAIT_S)
        assert process.exitcode == 0
    with persist.open(tmp_path) as client:
        each = made(client)
        accounts, owners = (each[name] for name in NAMES)
        upper = accounts.upper.time
        assert upper == owners.upper.time
        assert upper is not None
        assert upper > 0
        for time in range(upper):
            one, other = (
                {row for row in collection.snapshot(time).rows() if row[0] >= 0} for collection in (accounts, owners)
            )
            assert one == other, time
        for collection in (accounts, owners):
            collection.seal(upper + 100).result()
            assert {k: v for k, v in collection.snapshot().rows() if k >= 0} == dict.fromkeys(range(2), f"{BLOCKS - 1}")
        assert client.fsck().is_clean
