"""The stores that the conformance suite runs against, and how another process opens one of them."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from persist.blob import Blob, MeteredBlob, UnreliableBlob, open_blob

WRAPPERS: dict[str, Callable[[Blob], Blob]] = {
    "": lambda blob: blob,
    "metered": MeteredBlob,
    "unreliable": UnreliableBlob,
}


@dataclass(frozen=True, slots=True)
class Place:
    """A store by URL and options, and a wrapper of `WRAPPERS` around it.

    Attributes:
        is_shared: other processes can open it, too.
    """

    url: str
    options: dict[str, Any] = field(default_factory=dict)
    wrapper: str = ""
    is_shared: bool = False

    def open(self) -> Blob:
        """Return a new client of the store."""
        return WRAPPERS[self.wrapper](open_blob(self.url, self.options))

    def to_json(self) -> str:
        """Return what `open_json` opens."""
        return json.dumps([self.url, self.options])


def open_json(text: str) -> Blob:
    """Return a new client of a store that is shared."""
    url, options = json.loads(text)
    return open_blob(url, options)
