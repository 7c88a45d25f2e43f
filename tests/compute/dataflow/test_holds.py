"""The holds of a program move in the commits of its outputs, so they are always where it would begin again."""

import json
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.dataflow import Program
from persist.errors import SourceLost
from tests.compute.dataflow.ledger import Bank, check, ledger, moves_of

HOLD = "dataflow ledger"


def commits(blob: MemoryBlob) -> list[list[dict[str, Any]]]:
    """Return the mutations of each record of the log."""
    records = [blob.get(key) for key in sorted(each.key for each in blob.list("log/"))]
    return [json.loads(record)["mutations"] for record in records if record is not None]


def held(bank: Bank) -> list[int]:
    return [hold.time for hold in bank.moves.holds() if hold.name == HOLD]


def test_every_commit_that_seals_outputs_moves_the_hold_with_them(blob: MemoryBlob) -> None:
    with persist.open(blob) as client:
        bank = Bank(client)
        bank.transfer()
        outputs: set[str] = set()
        with ledger().open(client) as running:
            outputs = {client.load("totals").id, client.load("sum").id}
            for _ in range(5):
                running.step()
                bank.transfer()
                assert held(bank) == [bank.time - 2]
    seals = 0
    for mutations in commits(blob):
        uppers = [each["upper"][0] for each in mutations if each["kind"] == "seal" and each["collection"] in outputs]
        if uppers and uppers != [1, 1]:  # The hold was made where the first commit begins.
            seals += 1
            moved = [each["time"] for each in mutations if each["kind"] == "hold" and each["hold"] == HOLD]
            assert moved == [uppers[0] - 1]
    assert seals == 4


def test_two_copies_move_it_once_each_time(client: persist.Client) -> None:
    bank = Bank(client)
    bank.transfer()
    with ledger().open(client) as one, ledger().open(client) as other:
        for turn in range(6):
            bank.transfer()
            for each in (one, other) if turn % 2 else (other, one):
                each.step()
                assert held(bank) == [bank.time - 1]
    check(client)


def test_a_collection_that_is_read_twice_has_one_hold_that_moves(client: persist.Client) -> None:
    bank = Bank(client)
    bank.transfer()
    program = Program("ledger")
    accounts = program.source("moves", schema={"id": pa.int64(), "account": pa.string()})
    amounts = program.source("moves", schema={"id": pa.int64(), "amount": pa.int64()})
    accounts.join(amounts, "id").persist("copy", key=["id"])
    with program.open(client) as running:
        for _ in range(3):
            running.step()
            assert held(bank) == [bank.time - 1]
            bank.transfer()


def test_a_copy_that_goes_on_after_a_drop_makes_no_hold_again(client: persist.Client) -> None:
    bank = Bank(client)
    bank.transfer()
    with ledger().open(client) as running:
        running.step()
        ledger().drop(client)
        for _ in range(2):
            bank.transfer()
            running.step()
            assert held(bank) == []
    assert client.load("totals").upper == persist.Antichain(bank.time)


def test_a_hold_that_somebody_moved_is_left_where_it_is(client: persist.Client) -> None:
    bank = Bank(client)
    bank.transfer()
    with ledger().open(client) as running:
        running.step()
        for _ in range(3):
            bank.transfer()
        bank.moves.hold(name=HOLD).advance(2)
        running.step(times=1)
        assert (held(bank), client.load("totals").upper) == ([2], persist.Antichain(2))
        running.step()
        assert held(bank) == [3]
    check(client)


def test_a_source_that_is_destroyed_during_a_step_is_named_and_nothing_is_written(client: persist.Client) -> None:
    bank = Bank(client)
    bank.transfer()
    program = Program("copy")
    moves = program.source("moves", schema={"id": pa.int64()})
    moves.inspect(lambda table: bank.time == 2 and moves_of(client).drop().result()).persist("copy", key=["id"])
    with program.open(client) as running:
        running.step()
        bank.transfer()
        with pytest.raises(SourceLost, match=r"'moves'.*not there"):
            running.step()
    assert client.load("copy").upper == persist.Antichain(1)
