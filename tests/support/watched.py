"""A store that notes what it is asked for, and refuses to change anything when told so."""

import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from persist.blob.protocol import Blob, BlobEntry

# Every key that a location may hold, and no other: docs/inside/format.md.
KEY = re.compile(
    r"log/\d{20}|gc/clock|checkpoint/\d{20}-\d{20}\.json|directory/\d{20}-[0-9a-f]{32}\.json"
    r"|(part/[0-9a-f]{32}/\d{20}-[0-9a-f]{32}\.parquet)|((list|state)/[0-9a-f]{32}/\d{20}-[0-9a-f]{32}\.json)"
)


class Written(AssertionError):
    """A store that must not be written to was."""


class WatchedBlob:
    """Passes on what it is asked, and keeps (operation, key or prefix) of each call in `asked`."""

    def __init__(self, inner: Blob, *, read_only: bool = False) -> None:
        self._inner = inner
        self._read_only = read_only
        self.asked: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        self.asked.append(("get", key))
        return self._inner.get(key, range)

    def set(self, key: str, value: bytes) -> None:
        self._change("set", key)
        self._inner.set(key, value)

    def create(self, key: str, value: bytes) -> bool:
        self._change("create", key)
        return self._inner.create(key, value)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        self.asked.append(("list", prefix))
        return self._inner.list(prefix, start_after)

    def delete(self, key: str) -> None:
        self._change("delete", key)
        self._inner.delete(key)

    def close(self) -> None:
        self._inner.close()

    def keys(self, *operations: str) -> AbstractSet[str]:
        """Return the keys (of "list": prefixes) that these operations were asked for."""
        return {key for operation, key in self.asked if operation in operations}

    def changed(self) -> Sequence[tuple[str, str]]:
        """Return the calls that change something, whether they were let pass or not."""
        return [call for call in self.asked if call[0] in ("set", "create", "delete")]

    def _change(self, operation: str, key: str) -> None:
        self.asked.append((operation, key))
        if self._read_only:
            raise Written(f"{operation} {key!r}")
