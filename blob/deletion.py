"""Deleting many keys for the price of few requests.

A store may offer `delete_page`, which takes up to `DELETE_PAGE_MAX` keys at once: S3 has a request for it, and a
folder needs one fsync for all files of one folder. Wrappers pass it on. Other remote stores get a few threads.

Nothing is atomic: after an error or a crash some of the keys are gone. Deleting is idempotent, so do it again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from persist.blob.errors import PersistError, Unavailable
from persist.blob.protocol import DELETE_PAGE_MAX, Blob, is_remote, page_deletion

THREADS = 8


@dataclass(eq=False, repr=False)
class NotDeleted(Unavailable):
    """Some of many keys could not be deleted, the others were; deleting all of them again is safe.

    Attributes:
        failed: what is not known to be deleted, and why, at most one page of keys.
    """

    failed: Mapping[str, PersistError]
    url: str

    def __str__(self) -> str:
        key, error = next(iter(self.failed.items()))
        return (
            f"{len(self.failed)} of many keys at {self.url} could not be deleted, the first of them {key!r}: {error} "
            "Deleting them again is safe."
        )


def delete_all(blob: Blob, keys: Iterable[str]) -> int:
    """Delete keys, and return how many they were; those that do not exist are no error.

    Keys are taken from the iterable a page at a time, which may be a listing of the same store.

    Cost: one request for 1,000 keys on S3, one unlink per key and one fsync per page and folder in a folder.

    Raises:
        NotDeleted: for the first page with keys that could not be deleted; no page after it was tried.
        PersistError: what the store says when a page failed as a whole.
    """
    delete_page = page_deletion(blob)
    total = 0
    for page in _pages(keys):
        failed = _one_by_one(blob, page) if delete_page is None else delete_page(page)
        if failed:
            raise NotDeleted(failed, blob.url) from next(iter(failed.values()))
        total += len(page)
    return total


def _pages(keys: Iterable[str]) -> Iterator[Sequence[str]]:
    rest = iter(keys)
    while page := [*islice(rest, DELETE_PAGE_MAX)]:
        yield page


def _one_by_one(blob: Blob, page: Sequence[str]) -> Mapping[str, PersistError]:
    def delete(key: str) -> PersistError | None:
        try:
            blob.delete(key)
        except PersistError as error:
            return error
        return None

    if is_remote(blob):
        with ThreadPoolExecutor(THREADS, thread_name_prefix="persist-delete") as pool:
            outcomes = [*pool.map(delete, page)]
    else:
        outcomes = [delete(key) for key in page]
    return {key: error for key, error in zip(page, outcomes, strict=True) if error is not None}
