"""The store of the year: files that are dated by the shared clock, on a disk that may be full."""

import os
from collections.abc import Iterator
from pathlib import Path

from persist.blob.errors import StoreFull, Unavailable
from persist.blob.protocol import Blob, BlobEntry
from persist.blob.stores.file import FileBlob
from tests.support.clocks import ImpatientClock


class DatedFiles(FileBlob):
    """A folder whose files have the dates of a clock.

    Attributes:
        room_bytes: how many bytes there is room for; None for no limit.
    """

    def __init__(self, path: Path, clock: ImpatientClock) -> None:
        super().__init__(path, fsync=False)
        self._clock = clock
        self.room_bytes: int | None = None

    def set(self, key: str, value: bytes) -> None:
        self._admit(key, value)
        super().set(key, value)
        self._date(key)

    def create(self, key: str, value: bytes) -> bool:
        self._admit(key, value)
        is_created = super().create(key, value)
        if is_created:
            self._date(key)
        return is_created

    def fill(self, left_bytes: int) -> None:
        """Let there be room for only so many bytes more."""
        self.room_bytes = sum(entry.bytes for entry in self.list("")) + left_bytes

    def _admit(self, key: str, value: bytes) -> None:
        if self.room_bytes is None:
            return
        if sum(entry.bytes for entry in self.list("") if entry.key != key) + len(value) > self.room_bytes:
            raise StoreFull(f"no room for {key}")

    def _date(self, key: str) -> None:
        now_s = self._clock.wall_ms() / 1000
        os.utime(os.path.join(self.url, key), (now_s, now_s))


class Lifeline:
    """A client's way to a store, until it is cut: from then on the client is dead to everybody else."""

    def __init__(self, inner: Blob) -> None:
        self._inner = inner
        self.is_cut = False

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        return self._reached().get(key, range)

    def set(self, key: str, value: bytes) -> None:
        self._reached().set(key, value)

    def create(self, key: str, value: bytes) -> bool:
        return self._reached().create(key, value)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        return self._reached().list(prefix, start_after)

    def delete(self, key: str) -> None:
        self._reached().delete(key)

    def close(self) -> None:
        """Leave the store to the others."""

    def _reached(self) -> Blob:
        if self.is_cut:
            raise Unavailable("this client is dead")
        return self._inner
