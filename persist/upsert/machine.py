"""The seam between resolution and what it does to a key: a machine turns events into updates, many keys at a time.

A keyed collection has one machine. Resolution (`persist.upsert.resolution`) groups the sealed events by key, looks the
keys up, and hands both to the machine, which says which values go and which come, and when. Replacing the value, which
is what `upsert` means, is a machine like any other (`persist.upsert.replacing`).

What a machine promises, because everything that resolution promises follows from it:

- *It is a function*: the same touched keys give the same updates, in every process and for ever. Its name and version
  are stored with the collection, as those of a codec, and so are its options; another one is refused. What changes what
  it answers changes its version.
- *Keys are alone*: what becomes of a key follows from the rows and events of that key.
- *Steps compose*: to take the events before a time, apply what comes of them, and then take the others gives what
  taking all of them at once gives. So nobody can tell where the seals were.
- *Every update is at the time of an event of its key.*

What an event lacks by itself is refused when it is given: fields of `event_fields` that are not nullable must have a
value in events that do not delete. A machine may also raise `PersistError` for what it does not accept when it
resolves: then nothing is resolved, and the seal fails with it. Such a machine has a method `may_refuse(schema)` that
returns True, and goes with resolve="seal" only: in the background events would be sealed by then, and whatever is
sealed could not be read any more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from persist.codecs import CollectionSchema

GROUP = "_group"
DELETED = "_deleted"
SEQ = "_seq"


@dataclass(frozen=True, slots=True)
class Touched:
    """Some keys that have events: what they hold before, and the events.

    Attributes:
        schema: of the collection.
        groups: how many keys there are. They are numbered from 0, and each has at least one event.
        present: the key and value columns of `schema`, and `_group`, int64 and ascending: the rows that each key holds
            before the first of its events, each as often as it is there. A key that holds nothing has no row. With a
            tombstone column, tombstones are rows like any other.
        events: the key columns, the `event_fields`, `_time` (int64), `_deleted` (bool, without NULL: the event
            says that the key is gone; then all event fields may be NULL) and `_group`: sorted by group, then time, then
            `order_by` where the collection declares it, then arrival, or the values of events where the collection
            declares ties="greatest" (those that delete come first). No two rows are in doubt about their order.
    """

    schema: CollectionSchema
    groups: int
    present: pa.Table
    events: pa.Table


@runtime_checkable
class Machine(Protocol):
    """What becomes of a key when an event comes; see the module's docstring for what it promises.

    Attributes:
        name: stored with the collection; 1 to 128 printable characters.
        version: stored likewise; 0 or more.
        has_one_value: whether a key holds at most one value, in one copy; `fsck` and the way back rely on it.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def has_one_value(self) -> bool: ...

    @property
    def options(self) -> Mapping[str, Any]:
        """What it was made with, as JSON: numbers, text, booleans, None, lists and dicts of these. Stored as well."""

    def event_fields(self, schema: CollectionSchema) -> tuple[pa.Field, ...]:
        """Return the fields of an event besides its key, of which none is called `_time`, `_seq`, `_deleted`, `_diff`.

        Names that are columns of the collection, too, may have other types here, but not those of `order_by`.

        Raises:
            SchemaMismatch: a collection of that schema cannot have this machine; called when it is created.
        """

    def step(self, touched: Touched) -> pa.Table:
        """Return the updates that all events of some keys amount to: the columns of `touched.schema.arrow`, any order.

        Updates that cancel, or are the same, may be left as they are: they are consolidated afterwards. Vectorised: no
        Python for each row. Memory in proportion to what is given.
        """
