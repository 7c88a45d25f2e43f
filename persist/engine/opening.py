"""Opening a location for the rest of the package, and finding the engine that a user's client stands on."""

from collections.abc import Mapping
from typing import Any, Protocol

from persist.engine.engine import Engine
from persist.engine.options import OpenOptions
from persist.errors import InvalidUsage
from persist.storage import Location, open_storage


class OnEngine(Protocol):
    """What stands on one engine: a client, which has it as its attribute `engine`."""

    @property
    def engine(self) -> Engine:
        """What it is made of."""


def open_engine(
    location: Location, storage_options: Mapping[str, Any] | None = None, options: OpenOptions | None = None
) -> Engine:
    """Open a location; costs and errors are those of `persist.open`. Close the engine, or use it in a `with`."""
    options = OpenOptions() if options is None else options
    storage = open_storage(location, storage_options, options.settings, options.clock)
    try:
        return Engine(storage, options)
    except BaseException:
        storage.close()
        raise


def read_engine(
    location: Location, storage_options: Mapping[str, Any] | None = None, seqno: int | None = None
) -> Engine:
    """Open a location to read it; as of a record of its log, if that is given."""
    return open_engine(location, storage_options, OpenOptions("read", seqno=seqno))


def engine_of(action: str, client: OnEngine | Engine) -> Engine:
    """Return what a user's client stands on; an engine is given back as it is.

    Args:
        action: what errors call the call that the client was given to.

    Raises:
        InvalidUsage: it is no client.
    """
    engine = client if isinstance(client, Engine) else getattr(client, "engine", None)
    if not isinstance(engine, Engine):
        raise InvalidUsage(f"{action}: {client!r:.200} is no client; give what persist.open() returned")
    return engine
