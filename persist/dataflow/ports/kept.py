"""What operators that tell times apart have given, in hidden collections, so that a program goes on from there.

Most state of a program is made again from what its sources hold at the last time that its outputs have sealed. What
came when is not to be seen there. So an operator whose results depend on that writes what it has given, which is the
arrangement of its output, to a hidden collection, in the commits of the outputs:

    key    the time from which on the record is there, while that is still to come; NULL once it has come
    value  the columns of the record

For an update that the operator takes at t and gives at u, at t the record is added, with NULL if u is t and with u
otherwise; and at u, if that is later, it is moved from u to NULL. So the contents at any time are what the operator has
given and will give because of all before, and no larger than what that amounts to. They depend on the input alone, not
on the steps in which it was taken in: two copies of a program write the same.

The collection may be compacted up to where the program would begin again, and goes with `Program.drop`. Its name begins
with a dot, so listings leave it out.
"""

from collections.abc import Callable
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from persist.dataflow.operators.operators import Operator, Position
from persist.dataflow.updates.times import Ints
from persist.dataflow.updates.words import NULL
from persist.engine import Engine

Traced = Callable[[Ints], tuple[Ints, Ints]]
PREFIX = ".dataflow"


def kept_name(program: str, number: int) -> str:
    """Return what the hidden collection of an operator of a program is called. A program may be called what a
    collection may not."""
    return f"{PREFIX} {_digest(program)} {number}"


def kept_of(engine: Engine, program: str) -> list[str]:
    """Return the hidden collections of a program."""
    return engine.names(f"{PREFIX} {_digest(program)} ")


def due_column(columns: pa.Schema) -> str:
    """Return what the column of the time is called."""
    name = "due"
    while name in columns.names:
        name += "_"
    return name


def kept_schema(columns: pa.Schema) -> pa.Schema:
    """Return the columns of the hidden collection: those of the records, then the time."""
    return columns.append(pa.field(due_column(columns), pa.int64()))


class KeptLinear(Operator):
    """A linear operator that tells times apart.

    Attributes:
        kept: what changes in the hidden collection because of this pass: words, time from which on, time, diff.
    """

    def __init__(self, at: Position, shape: Traced) -> None:
        super().__init__(at)
        self._shape = shape
        self._restored: Ints | None = None
        self._after: int | None = None
        self.kept: Ints | None = None

    def restore(self, kept: Ints, at: int) -> None:
        """Begin with what was kept as of a time, int64[words + time from which on + diff, n]; what comes up to then is
        part of it."""
        self._restored, self._after = kept, at

    @property
    def is_restored(self) -> bool:
        """Whether what comes up to the time at which it goes on is known to it."""
        return self._after is not None

    def run(self) -> None:
        given = self.inputs[0].out
        if given is not None and self._after is not None:
            given = given[:, given[-2] > self._after]
        made, kept = [], []
        if self._restored is not None:
            assert self._after is not None
            made.append(_given_from(self._restored, self._after))
            kept.append(_come(self._restored))
            self._restored = None
        if given is not None and given.shape[1]:
            updates, origins = self._shape(given)
            made.append(updates)
            kept += _kept_for(updates, given[-2].take(origins))
        self.out = np.concatenate(made, axis=1) if made else None
        self.kept = np.concatenate(kept, axis=1) if kept else None


class KeptOutput(Operator):
    """Gives what the operator keeps."""

    def __init__(self, operator: KeptLinear) -> None:
        super().__init__(Position(f"{operator.title}.kept", [operator], 1, 0))
        self._operator = operator

    def run(self) -> None:
        self.out = self._operator.kept


def _digest(program: str) -> str:
    return blake2b(program.encode(), digest_size=16).hexdigest()


def _given_from(kept: Ints, at: int) -> Ints:
    """Return what was kept as updates [words …, time, diff], from a time on."""
    updates = kept.copy()
    np.maximum(updates[-2], at, out=updates[-2])  # NULL is the least.
    return updates


def _kept_for(updates: Ints, taken: Ints) -> list[Ints]:
    """Return the changes of the hidden collection for updates that were taken at some times."""
    changes = np.empty((len(updates) + 1, updates.shape[1]), np.int64)
    changes[:-3], changes[-1] = updates[:-2], updates[-1]
    changes[-2] = taken
    changes[-3] = np.where(updates[-2] > taken, updates[-2], NULL)
    due = np.concatenate((changes[:-2], changes[-1:]))
    return [changes, _come(due)]


def _come(kept: Ints) -> Ints:
    """Return the changes that come by themselves: records whose time comes are there from then on."""
    due = kept[:, kept[-2] != NULL]
    changes = np.empty((len(due) + 1, 2 * due.shape[1]), np.int64)
    changes[:-3] = np.tile(due[:-2], 2)
    changes[-3] = np.concatenate((due[-2], np.full(due.shape[1], NULL)))
    changes[-2] = np.tile(due[-2], 2)
    changes[-1] = np.concatenate((-due[-1], due[-1]))
    return changes
