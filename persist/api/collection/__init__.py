"""One collection, as a client sees it: a handle whose calls are grouped by what they are for.

Promises: a handle refers to one collection by its id. After `drop` it never refers to a new one of the same name. No
call keeps state of the collection; the client does. Each group of calls is a class of its own over `persist.engine`,
and `Collection` inherits all of them.
"""

from typing import Any

from persist.api.collection.describing import DescribingCalls, DescriptionProperties, IndexingCalls, PublishingCalls
from persist.api.collection.erasing import ErasingCalls, register_erasure_upkeep
from persist.api.collection.reading import KeepingCalls, ReadingCalls
from persist.api.collection.writing import WritingCalls, write_rows
from persist.engine.location.opening import Origin, describe_origin, open_handle


class Collection(
    ReadingCalls, WritingCalls, ErasingCalls, KeepingCalls, IndexingCalls, PublishingCalls, DescribingCalls
):
    """A handle on one collection; make it with `Client.create_or_load` or `Client.load`.

    It refers to the collection by its id: after `drop`, it never refers to a new one of the same name.

    An argument means the same in all calls: `write` explains `token`, `allow_future`, `message` and `metadata`;
    `snapshot` explains `where` and `schema`, and `changes` explains `times`.

    Attributes:
        handle: the operations on the collection, for the rest of the package.
        id: unique in the location, for ever.
        name: what it is called.
        schema: its key and value columns.

    A process that unpickles a collection opens its location by URL and by the options that are not secrets. All
    collections, views and snapshots that it unpickles from there share one client.
    """

    def __reduce__(self) -> Any:
        return _load_pickled, (describe_origin(self.handle.engine, self), self.id, self.name)


def _load_pickled(origin: Origin, id_: str, name: str) -> Collection:
    """Return the collection that a pickled handle names."""
    engine = origin.open_shared()
    contents = engine.follower.refresh_and_require(id_, name)
    return Collection(open_handle(engine, contents, contents.schema))
