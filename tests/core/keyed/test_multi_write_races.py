"""Blocks of several clients on the same keyed collections: a model, deaths at every step, and processes that race."""

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
from tests.support import model
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


@pytest.mark.thorough(except_every=15)
@pytest.mark.parametrize("seed", range(60))
def test_blocks_of_two_clients_do_what_the_model_does(seed: int) -> None:
    rng, store = random.Random(seed), MemoryBlob(f"multi-{seed}")
    location = model.Location()
    held: dict[str, list[Any]] = {"accounts": [], "owners": [], "log": []}
    for name in held:
        location = location.having(name, model.Collection(keyed=POLICIES.get(name)))
    with persist.open(store, settings=SETTINGS) as one, persist.open(store, settings=SETTINGS) as other:
        handles = [made(one), made(other)]
        for number in range(40):
            client = rng.randrange(2)
            steps = [step for _ in range(rng.randrange(1, 5)) for step in _steps(rng, location, number)]
            # A condition is about what was there before the block.
            steps.sort(key=lambda step: step[0] != "expect")
            after, expected = location, set[str]()
            for at, (kind, name, argument) in enumerate(steps):
                if kind == "seal" and name != "log" and ("seal", name) in [step[:2] for step in steps[at + 1 :]]:
                    argument = max(argument, location.collections[name].upper)  # The last seal of a block counts.
                try:
                    after = after.after(kind, name, argument)
                except model.Refused as refused:
                    expected.add(refused.error)
            try:
                with (one, other)[client].multi_write() as multi:
                    for kind, name, argument in steps:
                        _call(multi, handles[client][name], kind, argument)
                found = ""
            except persist.PersistError as error:
                found = type(error).__name__
            # Of several reasons any may be told: what a call shows by itself is refused before the rest is tried.
            assert found in (expected or {""}), (seed, number, steps)
            if not expected:
                location = after
                for kind, name, argument in steps:
                    held[name] += argument if kind in ("upsert", "write") else []
            if number % 10 == 9:
                _check(handles[1 - client], location, held)


def _steps(rng: random.Random, location: model.Location, number: int) -> list[tuple[str, str, Any]]:
    name = rng.choice(["accounts", "owners", "log"])
    upper = location.collections[name].upper
    time = upper + rng.choice([-1, 0, 0, 1, 1, 2])
    kind = rng.choice(["events", "events", "seal", "expect"])
    if kind == "seal":
        return [("seal", name, max(0, time))]
    if kind == "expect":
        return [("expect", name, upper + (rng.random() < 0.1))]
    if name == "log":
        return [("write", name, [[number, "x", max(0, time), 1]])]
    events = [[rng.randrange(4), rng.choice([None, f"{number}"]), max(0, time)] for _ in range(rng.randrange(1, 4))]
    return [("upsert", name, events)]


def _call(multi: persist.MultiWrite, collection: persist.Collection, kind: str, argument: Any) -> None:
    if kind == "upsert":
        multi.upsert(collection, [tuple(event) for event in argument])
    elif kind == "write":
        multi.write(collection, [((k, v), time, diff) for k, v, time, diff in argument])
    elif kind == "seal":
        multi.seal(collection, argument)
    else:
        multi.expect_upper(collection, argument)


def _check(handles: dict[str, persist.Collection], location: model.Location, held: dict[str, list[Any]]) -> None:
    for name, collection in handles.items():
        upper = location.collections[name].upper
        assert collection.upper.time == upper
        updates = held[name] if name == "log" else model.resolved(held[name])
        wanted = model.changes(updates, 0, upper)
        assert {(row, time): diff for row, time, diff in collection.changes(0, upper).updates()} == wanted, name


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
