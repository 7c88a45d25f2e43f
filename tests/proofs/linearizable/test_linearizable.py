"""Histories of calls and answers have an order, and those of a location with a fault have none."""

import math
import os
from pathlib import Path

import pytest

from tests.proofs.linearizable.cycles import Cycle, check_cycles
from tests.proofs.linearizable.drawn import KEYED, PLAIN, drawn_calls
from tests.proofs.linearizable.real import histories_of_processes, histories_of_threads
from tests.proofs.linearizable.search import Contradiction, Done, check_order
from tests.proofs.linearizable.specification import OK, start
from tests.proofs.linearizable.toy import FAULTS, toy_history

FIRST = start(PLAIN, KEYED)
AT_ONCE = 250  # Of one location and its processes, so that many take no more room than few.
HISTORIES = int(os.environ.get("PERSIST_HISTORIES", "300"))


def _check(history: list[Done], *, may_share: bool = False) -> None:
    check_order(FIRST, history, may_share=may_share)
    check_cycles(PLAIN, history)


def test_a_location_without_a_fault_has_an_order() -> None:
    for seed in range(100):
        _check(toy_history(seed))


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found(fault: str) -> None:
    with pytest.raises(Contradiction, match="no order"):
        for seed in range(100):
            check_order(FIRST, toy_history(seed, fault))


@pytest.mark.parametrize("fault", [FAULTS[n] for n in (0, 1, 2, 4, 5, 9)])
def test_a_fault_that_reads_show_is_a_cycle_too(fault: str) -> None:
    with pytest.raises(Cycle):
        for seed in range(100):
            check_cycles(PLAIN, toy_history(seed, fault, calls=20))


def test_what_has_no_answer_may_have_happened_or_not() -> None:
    write, lost = ("write", "a", 1, None), None
    for rows in (("refused", 0), ("rows", 1)):
        _check([Done(0, write, 1, math.inf, lost), Done(1, ("rows", "a"), 2, 3, rows)])
    with pytest.raises(Contradiction):
        check_order(FIRST, [Done(0, write, 1, 2, OK), Done(1, ("rows", "a"), 3, 4, ("refused", 0))])


def test_two_reads_see_two_writes_in_one_order() -> None:
    seals = [Done(4, ("seal", name, 1), -2, -1, OK) for name in PLAIN]
    writes = [Done(n, ("write", name, n, None), 0, 9, OK) for n, name in enumerate(PLAIN)]
    reads = [(2, "a", ("rows", 0), 1), (2, "b", ("rows",), 3), (3, "b", ("rows", 1), 1), (3, "a", ("rows",), 3)]
    history = seals + writes + [Done(c, ("rows", name), t, t + 1, rows) for c, name, rows, t in reads]
    with pytest.raises(Contradiction):
        check_order(FIRST, history)
    with pytest.raises(Cycle, match="before the next one"):
        check_cycles(PLAIN, history)


def test_threads_are_answered_in_one_order(tmp_path: Path) -> None:
    histories = histories_of_threads(tmp_path, range(6))
    assert {done.call[0] for history in histories for done in history} > {"write", "both", "rows", "upsert"}
    for history in histories:
        assert len(history) == sum(map(len, drawn_calls(0, 3, 6)))
        _check(history)


@pytest.mark.thorough
@pytest.mark.timeout(300 + 3 * HISTORIES)
@pytest.mark.costly("three processes make 5,400 calls")
@pytest.mark.parametrize("through", [False, True])
def test_processes_are_answered_in_one_order(tmp_path: Path, *, through: bool) -> None:
    for first in range(0, HISTORIES, AT_ONCE):
        seeds = range(first, min(first + AT_ONCE, HISTORIES))
        for history in histories_of_processes(tmp_path / str(first), seeds, through=through):
            _check(history, may_share=through)
