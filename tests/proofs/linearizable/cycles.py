"""Which call must come before which, across collections: a cycle is a contradiction. For histories of any length.

Each write has a marker of its own, and a read of a collection gives all of its markers. So a read comes after each
write whose marker it has, and before each one whose marker it lacks; and a call comes after each one that had ended
before it began. (Kingsbury and Alvaro, "Elle", 2020, has this for lists and registers.)
"""

from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

from tests.proofs.linearizable.search import Done
from tests.proofs.linearizable.specification import OK


class Cycle(AssertionError):
    """Calls of which each must come before the next one, all around; or a read of what nobody wrote, or of it twice."""


def check_cycles(plain: Sequence[str], history: Sequence[Done]) -> None:
    """Raise Cycle if writes and reads of plain collections contradict each other."""
    writes = {name: {} for name in plain}  # type: dict[str, dict[int, list[int]]]
    reads: list[tuple[int, str, tuple[object, ...]]] = []
    for n, done in enumerate(history):
        for name, marker in _markers(plain, done):
            writes[name].setdefault(marker, []).append(n)
        if done.call[0] == "rows" and done.answer is not None and done.answer[0] == "rows":
            reads.append((n, str(done.call[1]), done.answer[1:]))
    seen = {(name, marker) for _, name, rows in reads for marker in rows}
    before: dict[int, set[int]] = {n: set() for n in range(len(history))}
    for n, name, rows in reads:
        if strange := [row for row in rows if row not in writes[name]]:
            raise Cycle(f"{history[n]} has {strange}, which nobody wrote")
        if len({*rows}) < len(rows):
            raise Cycle(f"{history[n]} has something twice")
        for marker, by in writes[name].items():
            if marker in rows:
                if len(by) == 1:  # Of those with one token, either may have done it.
                    before[n].update(by)
            elif (name, marker) in seen or any(history[w].answer == OK for w in by):
                for writer in by:
                    if history[writer].answer == OK or len(by) == 1:
                        before[writer].add(n)
    placed = [n for n, done in enumerate(history) if done.answer is not None or any(before[n])]
    for n in placed:
        before[n].update(other for other in placed if history[other].ended < history[n].began)
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        around = "\n".join(f"  {history[n]}" for n in reversed(error.args[1]))
        raise Cycle(f"each of these must come before the next one:\n{around}") from None


def _markers(plain: Sequence[str], done: Done) -> Iterator[tuple[str, int]]:
    """Yield what a call has written, or may have written."""
    if done.answer not in (None, OK):
        return
    match done.call:
        case ("both", int(marker)):
            yield from ((name, marker) for name in plain)
        case ("write" | "late", str(name), int(marker), _):
            yield name, marker
