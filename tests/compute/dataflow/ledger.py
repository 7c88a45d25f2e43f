"""A ledger over transfers, written as a dataflow, and what it must hold: shared by the tests of persistence."""

import random
from collections import Counter
from typing import Any

import pyarrow as pa

import persist
from persist.dataflow import Program, col, lit

Row = tuple[Any, ...]


def ledger() -> Program:
    """Totals and counts per account, of what is not too small."""
    program = Program("ledger")
    moves = program.source("moves", schema={"id": pa.int64(), "account": pa.string(), "amount": pa.int64()})
    totals = moves.filter(col("amount") != 0).group_by("account").agg(n=lit(1).sum(), total=col("amount").sum())
    totals.persist("totals", key=["account"])
    totals.group_by().agg(all=col("total").sum(), n=col("n").sum()).persist("sum", key=["all"])
    return program


def moves_of(client: persist.Client) -> persist.Collection:
    value = {"account": pa.string(), "amount": pa.int64()}
    return client.create_or_load("moves", key={"id": pa.int64()}, value=value)


class Bank:
    """Writes transfers that sum to zero at every time."""

    def __init__(self, client: persist.Client, seed: int = 0) -> None:
        self.moves = moves_of(client)
        self.random = random.Random(seed)
        self.time = 0
        self.number = 0
        self.known: list[tuple[int, tuple[str, int]]] = []

    def transfer(self, count: int = 3) -> None:
        updates: list[Any] = []
        for _ in range(count):
            amount = self.random.randrange(1, 100)
            for signed in (amount, -amount):
                self.number += 1
                record = (self.number, (self.random.choice("abcd"), signed))
                self.known.append(record)
                updates.append((record, self.time, 1))
        if self.time % 3 == 2:
            # A transfer is taken back, both of its halves.
            at = self.random.randrange(len(self.known) // 2) * 2
            for record in (self.known[at], self.known[at + 1]):
                updates.append((record, self.time, -1))
            del self.known[at : at + 2]
        self.moves.write(updates)
        self.time += 1
        self.moves.seal(self.time).result()


def rows_at(collection: persist.Collection, time: int) -> Counter[Row]:
    return Counter(tuple(row.values()) for row in collection.snapshot(time).to_arrow().to_pylist())


def expected(client: persist.Client, time: int) -> tuple[Counter[Row], Counter[Row]]:
    """Recompute both outputs from the source."""
    groups: dict[str, list[int]] = {}
    for row in moves_of(client).snapshot(time).to_arrow().to_pylist():
        if row["amount"]:
            groups.setdefault(row["account"], []).append(row["amount"])
    totals = Counter((account, len(each), sum(each)) for account, each in groups.items())
    everything = [amount for each in groups.values() for amount in each]
    return totals, Counter([(sum(everything), len(everything))] if everything else [])


def check(client: persist.Client, since: int = 0) -> None:
    totals, sums = client.load("totals"), client.load("sum")
    upper = totals.upper.time
    assert upper is not None
    assert sums.upper == totals.upper
    for time in range(since, upper):
        assert (rows_at(totals, time), rows_at(sums, time)) == expected(client, time), time
