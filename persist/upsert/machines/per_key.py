"""A machine that is a Python function of one key, for rules that the machines in the box do not have."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from persist.codecs import CollectionSchema, InvalidUpdate, Side, canonical, to_tuples, to_updates
from persist.errors import InvalidUsage
from persist.upsert.machine import DELETED, GROUP, Touched
from persist.upsert.machines import steps


@dataclass(frozen=True, slots=True)
class Event:
    """An event, as Python values.

    Attributes:
        value: the event's fields: a scalar for one, a tuple for several; None if the key is gone.
        time: when it takes place.
    """

    value: Any
    time: int


class PerKey:
    """Calls a function for each event: what the key held before it, to what it holds after it.

    Slow, because it is Python for each event (about ten microseconds and what the function takes): a machine of one's
    own that is vectorised, see `persist.upsert.machine.Machine`, is some hundred times faster.

    Args:
        function: takes the key, the list of values that it holds, each as often as it is there and in no order that
            may matter, and an `Event`; returns the values that it holds afterwards. It must depend on nothing else,
            and not on the seals: see the promises of `Machine`. It may be called again for the same event.
        name, version: stored with the collection. Whoever opens it with another function must give it another one.
        event: the fields of an event besides its key; those of the value if None.
        has_one_value: whether a key holds at most one value; more are refused then.
        options: what else the function depends on, as JSON: stored and compared as well.
    """

    def __init__(
        self,
        function: Callable[[Any, list[Any], Event], Iterable[Any]],
        *,
        name: str,
        version: int,
        event: Mapping[str, pa.DataType] | None = None,
        has_one_value: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._function, self._name, self._version, self._has_one_value = function, name, version, has_one_value
        self._event = None if event is None else dict(event)
        self._options = dict(options or {})
        try:
            json.dumps(self._options)
        except (TypeError, ValueError) as error:
            raise InvalidUsage(f"options={options!r} are not JSON: {error}.") from error

    @property
    def name(self) -> str:
        """As it was given."""
        return self._name

    @property
    def version(self) -> int:
        """As it was given."""
        return self._version

    @property
    def has_one_value(self) -> bool:
        """As it was given."""
        return self._has_one_value

    @property
    def options(self) -> Mapping[str, Any]:
        """As they were given."""
        return self._options

    def event_fields(self, schema: CollectionSchema) -> tuple[pa.Field, ...]:
        """Return the fields that were asked for; or those of the value."""
        return schema.value.fields if self._event is None else Side.of(self._event, "value").fields

    def step(self, touched: Touched) -> pa.Table:
        """Return the updates; see `persist.upsert.machine.Machine.step`.

        Raises:
            InvalidUpdate: the function returned what is no value, or several where a key holds one.
        """
        schema = touched.schema
        # A codec's objects are those of the collection's value, and an event may have other fields.
        side = schema.value if self._event is None else Side(self.event_fields(schema))
        arriving = CollectionSchema(schema.key, side, schema.timeline)
        held: dict[int, list[Any]] = {}
        for group, ((_, value), _, _) in zip(
            steps.present_groups(touched).tolist(), _tuples(touched.present, schema), strict=True
        ):
            held.setdefault(group, []).append(value)
        gone = touched.events[DELETED].to_pylist()
        updates = list[tuple[tuple[Any, Any], int, int]]()
        groups = touched.events[GROUP].to_pylist()
        for group, is_gone, ((key, value), time, _) in zip(
            groups, gone, _tuples(touched.events, arriving), strict=True
        ):
            before = held.get(group, [])
            after = self._after(key, before, Event(None if is_gone else value, time))
            held[group] = after
            if after != before:
                updates += [((key, one), time, -1) for one in before]
                updates += [((key, one), time, 1) for one in after]
        return to_updates(updates, schema) if updates else schema.arrow.empty_table()

    def _after(self, key: Any, before: Sequence[Any], event: Event) -> list[Any]:
        after = [*self._function(key, [*before], event)]
        if self._has_one_value and len(after) > 1:
            raise InvalidUpdate(
                f"the machine {self._name!r} gives {len(after)} values for the key {key!r} at time {event.time}, and "
                "was declared to give one at most."
            )
        return after


def _tuples(rows: pa.Table, schema: CollectionSchema) -> Sequence[Any]:
    """Return rows as `((key, value), time, diff)`; those that are present have no time, which is 0 then."""
    columns = {name: rows[name] for name in schema.names}
    time = rows["_time"] if "_time" in rows.column_names else pa.array([0] * len(rows), pa.int64())
    table = pa.table({**columns, "_time": time, "_diff": pa.array([1] * len(rows), pa.int64())})
    return [*to_tuples(canonical(table.cast(schema.arrow)), schema)]
