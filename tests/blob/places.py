"""The stores that the conformance suite runs against, and how another process opens one of them."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from persist.blob.layers.cache import CachedBlob
from persist.blob.layers.metered import MeteredBlob
from persist.blob.layers.retry import RetryBlob
from persist.blob.layers.unreliable import UnreliableBlob
from persist.blob.lru import Cache
from persist.blob.protocol import Blob
from persist.blob.url import open_blob


def everything(key: str) -> bool:
    """Have `CachedBlob` keep all keys, also those of tests, for the sake of the tests."""
    return True


WRAPPERS: dict[str, Callable[[Blob], Blob]] = {
    "": lambda blob: blob,
    "metered": MeteredBlob,
    "unreliable": UnreliableBlob,
    "retry": RetryBlob,
    "cached": lambda blob: CachedBlob(blob, is_immutable=everything),
    "all": lambda blob: CachedBlob(RetryBlob(MeteredBlob(UnreliableBlob(blob))), is_immutable=everything),
}


@dataclass(frozen=True, slots=True)
class Place:
    """A store by URL and options, and a wrapper of `WRAPPERS` around it.

    Attributes:
        is_shared: other processes can open it, too.
        cache_folder: where a `CachedBlob` that keeps nothing in memory keeps its values; none without it.
    """

    url: str
    options: dict[str, Any] = field(default_factory=dict)
    wrapper: str = ""
    is_shared: bool = False
    cache_folder: str = ""

    def open(self) -> Blob:
        """Return a new client of the store."""
        blob = WRAPPERS[self.wrapper](open_blob(self.url, self.options))
        if self.cache_folder:
            return CachedBlob(blob, memory=Cache(0), folder=self.cache_folder, is_immutable=everything)
        return blob

    def to_json(self) -> str:
        """Return what `open_json` opens."""
        return json.dumps([self.url, self.options])


def open_json(text: str) -> Blob:
    """Return a new client of a store that is shared."""
    url, options = json.loads(text)
    return open_blob(url, options)
