"""What a running program shows to those who built it: captured updates, and how far a stream is complete."""

import numpy as np
import pyarrow as pa

from persist.antichain import Antichain, Time
from persist.blob import InvalidUsage
from persist.dataflow.updates.times import Ints
from persist.dataflow.updates.words import Domain


def time_columns(times: Ints) -> dict[str, pa.Array]:
    """Return times as columns: `_time`, or `_time_0`, `_time_1` … if they have several dimensions."""
    if len(times) == 1:
        return {"_time": pa.array(times[0])}
    return {f"_time_{number}": pa.array(row) for number, row in enumerate(times)}


def to_table(updates: Ints, schema: pa.Schema, domain: Domain) -> pa.Table:
    """Return updates as Arrow: the columns, the times, `_diff`."""
    columns = {field.name: domain.decode(updates[at], field.type) for at, field in enumerate(schema)}
    columns |= time_columns(updates[len(schema) : -1])
    columns["_diff"] = pa.array(updates[-1])
    return pa.table(columns)


class Captured:
    """The complete updates of a stream, in memory, while its program runs."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self._domain: Domain | None = None
        self._found: list[Ints] = []

    def attach(self, schema: pa.Schema, domain: Domain) -> None:
        """Begin anew, for a program that was opened."""
        self._schema, self._domain, self._found = schema, domain, []

    def add(self, updates: Ints) -> None:
        """Take complete, consolidated updates."""
        self._found.append(updates)

    def live(self) -> Ints:
        """Return all updates that are held, as words."""
        return self._all()

    def updates(self) -> pa.Table:
        """Return all updates so far: the columns, `_time`, `_diff`, in time order."""
        schema, domain = self._attached()
        updates = self._all()
        order = np.lexsort(updates[len(schema) : -1][::-1])
        return to_table(updates[:, order], schema, domain)

    def take(self) -> pa.Table:
        """Return the updates since the last call, and forget them."""
        found = self.updates()
        self._found = []
        return found

    def rows(self) -> list[tuple[tuple[object, ...], Time, int]]:
        """Return all updates as Python tuples (record, time, diff), in time order."""
        schema, _ = self._attached()
        table = self.updates()
        columns = [column.to_pylist() for column in table.columns]
        words = len(schema)
        times = columns[words] if len(columns) == words + 2 else list(zip(*columns[words:-1], strict=True))
        records = list(zip(*columns[:words], strict=True)) if words else [()] * len(table)
        return list(zip(records, times, columns[-1], strict=True))

    def _all(self) -> Ints:
        schema, _ = self._attached()
        return np.concatenate(self._found, axis=1) if self._found else np.empty((len(schema) + 2, 0), np.int64)

    def _attached(self) -> tuple[pa.Schema, Domain]:
        if self._schema is None or self._domain is None:
            raise InvalidUsage("this capture holds nothing yet: open its program with program.open(client)")
        return self._schema, self._domain


class Probed:
    """Tells how far a stream is complete in the running program."""

    def __init__(self) -> None:
        self.frontier: Antichain | None = None

    def attach(self, frontier: Antichain) -> None:
        """Set how far it is."""
        self.frontier = frontier

    def done(self, time: Time) -> bool:
        """Return whether no more updates come at times up to time."""
        if self.frontier is None:
            raise InvalidUsage("this probe knows nothing yet: open its program with program.open(client)")
        return not self.frontier.has_beyond(time)
