"""How a change of one input of a join finds its partners: which input is looked up when, and by what.

Columns that must be equal form a class, and a partial result holds one word for each class it knows. From the inputs
that are not in it yet, of which some column is known, the one is looked up next of which fewest partners are expected,
or, where nothing is known of their sizes, the one of which most columns are known; its key are these columns. So every
look-up is in an arrangement of an input itself, whatever the order, and nothing intermediate is kept.
"""

from collections.abc import Callable, Sequence

import pyarrow as pa

from persist.dataflow.operators.arrange import Arrangement
from persist.dataflow.operators.join import Path, Step

Place = tuple[int, str]  # A column of an input.
Partners = Callable[[int, tuple[str, ...]], float | None]
Arranged = Callable[[int, tuple[str, ...], tuple[str, ...]], Arrangement]


class JoinPaths:
    """The paths of a join.

    Args:
        schemas: the columns of each input.
        on: for the second and each later input, pairs (column of the result so far, column of it).
        outputs: the columns of the result.
        arranged: returns the arrangement of an input by key columns, with other columns as its value.
        partners: returns about how many records of an input have the same values of some columns; None if unknown.
    """

    def __init__(
        self,
        schemas: Sequence[pa.Schema],
        on: Sequence[Sequence[tuple[str, str]]],
        outputs: Sequence[str],
        arranged: Arranged,
        partners: Partners = lambda number, columns: None,
    ) -> None:
        self._schemas = schemas
        self._partners = partners
        self._arranged = arranged
        self._class: dict[Place, Place] = {(0, name): (0, name) for name in schemas[0].names}
        named = {name: (0, name) for name in schemas[0].names}
        for number, pairs in enumerate(on, 1):
            equal = {other: named[one] for one, other in pairs}
            for name in schemas[number].names:
                self._class[number, name] = self._class[equal[name]] if name in equal else (number, name)
                if name not in equal:
                    named[name] = (number, name)
        self._outputs = [self._class[named[name]] for name in outputs]

    def paths(self) -> list[Path]:
        """Return a path for each input."""
        routes = [self._route(number) for number in range(len(self._schemas))]
        keys: dict[int, tuple[str, ...]] = {}
        for route in routes:
            for number, key in route:
                keys.setdefault(number, key)
        return [self._path(number, keys[number], route) for number, route in enumerate(routes)]

    def _route(self, start: int) -> list[tuple[int, tuple[str, ...]]]:
        """Return which inputs are looked up from a start, and by which columns."""
        known = {self._class[start, name] for name in self._schemas[start].names}
        left = [number for number in range(len(self._schemas)) if number != start]
        found = []
        while left:
            keys = {number: tuple(sorted(self._known(number, known))) for number in left}
            best = min(left, key=lambda number: self._cost(number, keys[number]))
            found.append((best, keys[best]))
            known |= {self._class[best, name] for name in self._schemas[best].names}
            left.remove(best)
        return found

    def _cost(self, number: int, keys: tuple[str, ...]) -> tuple[bool, float, int]:
        """Return what is the less the sooner an input is to be looked up."""
        partners = self._partners(number, keys)
        return not keys, float("inf") if partners is None else partners, -len(keys)

    def _known(self, number: int, known: set[Place]) -> list[str]:
        return [name for name in self._schemas[number].names if self._class[number, name] in known]

    def _arrangement(self, number: int, key: tuple[str, ...]) -> tuple[Arrangement, list[str]]:
        values = tuple(name for name in self._schemas[number].names if name not in key)
        return self._arranged(number, key, values), [*key, *values]

    def _path(self, start: int, key: tuple[str, ...], route: list[tuple[int, tuple[str, ...]]]) -> Path:
        arrangement, names = self._arrangement(start, key)
        rows: dict[Place, int] = {}
        for at, name in enumerate(names):
            rows.setdefault(self._class[start, name], at)
        height = len(names)
        steps = []
        for number, looked_up in route:
            target, target_names = self._arrangement(number, looked_up)
            places = tuple(rows[self._class[number, name]] for name in looked_up)
            takes = []
            for at, name in enumerate(target_names):
                if self._class[number, name] not in rows:
                    rows[self._class[number, name]] = height
                    height += 1
                    takes.append(at)
            steps.append(Step(target, places, tuple(takes), has_new=number < start))
        return Path(arrangement, tuple(steps), tuple(rows[each] for each in self._outputs))
