"""Faults of the year, one for each bound: what a run must find if its bounds are any good."""

import uuid
from collections.abc import Callable
from typing import Any

import persist
from tests.proofs.year.scenario import Year


def forget_memory(year: Year) -> None:
    """Keep something of every commit for ever."""
    kept: list[bytes] = []
    _after(year, "_write", lambda: kept.append(bytes(100_000)))


def collect_nothing(year: Year) -> None:
    """Let the collector believe that there is no garbage, and let writers upload more than they commit."""
    year.maintainer.gc = persist.GarbageReport  # type: ignore[method-assign, assignment]

    def upload() -> None:
        id_ = year._handle(year._plain[0]).id
        for _ in range(3):
            year.store.set(f"part/{id_}/{year.writer.seqno:020}-{uuid.uuid4().hex}.parquet", bytes(1000))

    _after(year, "_write", upload)


def slow_down(year: Year) -> None:
    """Let some commits take much longer from the middle of the year on."""
    made: list[int] = []
    handle = year._handle

    def slower(name: str) -> Any:
        made.append(year.day)
        if year.day > year.plan.days / 2 and len(made) % 20 == 0:
            sum(number * number for number in range(300_000))
        return handle(name)

    year._handle = slower  # type: ignore[method-assign]


def lose_a_write(year: Year) -> None:
    """Note something in the books that was never written: what a lost write looks like."""

    def lose() -> None:
        if year.counts.get("commits", 0) % 500 == 0:
            name = year._plain[0]
            year.books.rows[name][0] = (0, "lost", *(0 for _ in range(year._width(name))))

    _after(year, "_write", lose)


PLANTS: dict[str, Callable[[Year], None]] = {
    "memory": forget_memory,
    "storage": collect_nothing,
    "speed": slow_down,
    "answers": lose_a_write,
}


def _after(year: Year, name: str, act: Callable[[], object]) -> None:
    method = getattr(year, name)

    def both(*args: Any) -> None:
        method(*args)
        act()

    setattr(year, name, both)
