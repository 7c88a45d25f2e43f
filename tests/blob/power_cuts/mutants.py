"""Wrong ways to write files, to show that the model of `tests.blob.power_cuts.disk` finds them."""

import os
import uuid

from persist.blob.stores.file import FileBlob


class InPlace(FileBlob):
    """Creates a value under its own name, where a crash leaves half of it."""

    def create(self, key: str, value: bytes) -> bool:
        path = self._make_path(key)
        self._make_folder(os.path.dirname(path))
        try:
            self._write_temporary(path, value)
        except FileExistsError:
            return False
        self._sync_change(path)
        return True


class LinkedTooEarly(FileBlob):
    """Publishes a value before its content is durable."""

    def create(self, key: str, value: bytes) -> bool:
        path = self._make_path(key)
        if os.path.isfile(path):
            return False
        self._make_folder(os.path.dirname(path))
        temporary = os.path.join(self._root, f".tmp-{uuid.uuid4().hex}")
        with open(temporary, "xb", buffering=0) as opened:
            opened.write(value)
            os.link(temporary, path)
            os.fsync(opened.fileno())
        os.unlink(temporary)
        self._sync_change(path)
        return True


class Overwriting(FileBlob):
    """Replaces a value by writing over it."""

    def set(self, key: str, value: bytes) -> None:
        path = self._make_path(key)
        self._make_folder(os.path.dirname(path))
        with open(path, "wb", buffering=0) as opened:
            opened.write(value)
            os.fsync(opened.fileno())
        self._sync_change(path)
