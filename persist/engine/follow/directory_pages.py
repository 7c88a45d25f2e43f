"""Pages of a large directory: objects of many keys and values, of which a reader fetches the needed pages.

`docs/inside/format.md` ("Pages") has their form.

There are two tables of pages: entries of collections by id, and ids by name. The directory object lists the first key,
length and checksum of each page (`persist.engine.follow.directory`). So opening a location of a million collections
reads that list, a thousandth of all bytes, and then one page of each table for each collection that is used.

Invariants:
- keys ascend over all pages of a table;
- a later table reuses an object if no later item has a key in its range. So no reused object has an entry that the
  later table replaces: destroyed data does not stay with data that is still used;
- entries with leased holds are listed with their object, so that the end of a lease reads no others.

Rejected: a filter of keys for each object. A directory has few levels of pages, and a look-up of a key
that a level lacks reads one page of this level, once.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise, takewhile
from typing import Any, Generic, TypeVar

import msgspec
import xxhash

from persist.blob.errors import CorruptBlob, MissingBlob
from persist.blob.protocol import Blob
from persist.core.log.framing import MADE_AGAIN
from persist.core.log.keys import make_pages_key, parse_pages_seqno
from persist.core.names import is_id
from persist.core.state_rules.frozen_map import FrozenMap, merge_sorted

V = TypeVar("V")

PAGE_BYTES = 64 * 1024
OBJECT_BYTES_MAX = 256 * 1024  # And at most one value more. A change rewrites the whole object.
KNOWN_PAGES = 64  # That a table keeps in memory.
_LEASED = b'"leased":['
_NULL = b"null"
_ABSENT: Any = object()

Item = tuple[str, bytes]


class Page(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The place of a page: its first key, its length, and the XXH3-64 of its bytes."""

    first: str
    bytes: int
    checksum: str


class Pages(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One stored object of consecutive pages. `leased`: a (lease, key) pair for each entry with a leased hold."""

    blob: str
    pages: tuple[Page, ...]
    leased: tuple[tuple[str, str], ...] = ()

    @property
    def bytes(self) -> int:
        """The length of the object."""
        return sum(page.bytes for page in self.pages)


class _Leased(msgspec.Struct):
    """The (lease id, collection id) pairs of entries with leased holds."""

    leased: tuple[tuple[str, str], ...] = ()


class Table(Generic[V]):
    """A map from keys to values in stored pages, over a map of older values.

    Safe to use from many threads. Cost of a look-up: nothing, or a GET of a page, and then a look-up in `before`.

    `decode`: returns the value of a key and its JSON; raises ValueError if no writer would store it.
    """

    def __init__(
        self, blob: Blob, objects: Sequence[Pages], decode: Callable[[str, bytes], V], before: FrozenMap[V]
    ) -> None:
        self.objects = objects
        self._blob = blob
        self._decode = decode
        self.before = before
        self._where = [(pages, n) for pages in objects for n in range(len(pages.pages))]
        self._firsts = [pages.pages[n].first for pages, n in self._where]
        self._lock = threading.Lock()
        self._known: OrderedDict[int, dict[str, Any]] = OrderedDict()  # Decoded values that were looked up.

    def get(self, key: str) -> V | None:
        """Return the value of key, None if there is none."""
        at = bisect_right(self._firsts, key) - 1
        page = self._load_page(at) if at >= 0 else {}
        value = page.get(key, _ABSENT)
        if value is _ABSENT:
            return self.before.get(key)
        if isinstance(value, msgspec.Raw):
            value = page[key] = self._decode_value(at, key, bytes(value))
        return value  # type: ignore[no-any-return]

    def iterate_prefix(self, prefix: str) -> Iterator[tuple[str, V]]:
        """Yield the keys that start with prefix, ascending, with their values."""
        ours = ((key, value) for key, value in self._iterate_items(prefix))
        return (
            (key, value) for key, value in merge_sorted(ours, self.before.iterate_prefix(prefix)) if value is not None
        )

    def list_marked(self, mark: str) -> Iterator[str]:
        """Yield the ids of entries that may have a hold of the lease `mark`."""
        yield from (key for pages in self.objects for lease, key in pages.leased if lease == mark)
        yield from (key for key, _ in self.before.iterate_marked(mark))

    def _iterate_items(self, prefix: str) -> Iterator[tuple[str, V | None]]:
        """Yield keys of all pages with a prefix, and their decoded values."""
        first = max(bisect_right(self._firsts, prefix) - 1, 0)
        some = (item for at in range(first, len(self._where)) for item in self._read_page(*self._where[at]).items())
        items = ((key, bytes(raw)) for key, raw in some) if prefix else self.iterate_json()
        for key, value in takewhile(lambda item: item[0] < prefix or item[0].startswith(prefix), items):
            if key.startswith(prefix):
                yield key, self._decode_value(bisect_right(self._firsts, key) - 1, key, value)

    def iterate_json(self) -> Iterator[Item]:
        """Yield all keys and their JSON, ascending. Cost: a GET for each object."""
        return chain.from_iterable(map(self.iterate_raw, self.objects))

    def iterate_values(self, pages: Pages) -> Iterator[V]:
        """Yield the values of one object. Cost: a GET, and decoding all of it."""
        first = self._firsts.index(pages.pages[0].first)
        values = (self._decode_value(first, key, data) for key, data in self.iterate_raw(pages))
        return (value for value in values if value is not None)

    def iterate_raw(self, pages: Pages) -> Iterator[Item]:
        """Yield the keys of one object and their JSON."""
        data, start = _check_present(pages, self._blob.get(pages.blob)), 0
        if len(data) != pages.bytes:
            raise CorruptBlob(pages.blob, f"it has {len(data)} bytes, and {pages.bytes} belong there")
        for n, page in enumerate(pages.pages):
            yield from (
                (key, bytes(raw)) for key, raw in _decode_page(pages, n, data[start : start + page.bytes]).items()
            )
            start += page.bytes

    def _load_page(self, at: int) -> dict[str, Any]:
        """Return the decoded page with the number `at`, from memory or by a GET."""
        with self._lock:
            page = self._known.get(at)
            if page is not None:
                self._known.move_to_end(at)
                return page
        page = self._read_page(*self._where[at])
        with self._lock:
            page = self._known.setdefault(at, page)
            while len(self._known) > KNOWN_PAGES:
                self._known.popitem(last=False)
        return page

    def _read_page(self, pages: Pages, n: int) -> dict[str, Any]:
        """Read and decode one page of an object."""
        start = sum(page.bytes for page in pages.pages[:n])
        data = self._blob.get(pages.blob, range=(start, start + pages.pages[n].bytes))
        return _decode_page(pages, n, _check_present(pages, data))

    def _decode_value(self, at: int, key: str, data: bytes) -> V | None:
        """Decode a value of the page with the number `at`; None marks a deleted entry. Raises CorruptBlob."""
        if data == _NULL:
            return None
        try:
            return self._decode(key, data)
        except (ValueError, msgspec.MsgspecError) as error:
            blob = self._where[at][0].blob
            raise CorruptBlob(blob, f"no writer would make it: {error}") from error


class Writing:
    """Writes the objects of a table from items in ascending order of keys.

    Args:
        seqno: the seqno of the checkpoint that they belong to.
        store: called with the key and the bytes of each object.
    """

    def __init__(self, seqno: int, store: Callable[[str, bytes], object]) -> None:
        self._seqno = seqno
        self._store = store
        self._made: list[Pages] = []
        self._pages: list[Page] = []
        self._object: list[bytes] = []
        self._leased: list[tuple[str, str]] = []
        self._page: list[bytes] = []
        self._first = ""
        self._page_bytes = self._object_bytes = 0

    def add(self, key: str, raw: bytes) -> None:
        """Add the JSON of one key."""
        item = msgspec.json.encode(key) + b":" + raw
        if self._page and self._page_bytes + len(item) > PAGE_BYTES:
            self._end_page()
        if not self._page:
            self._first = key
        self._page.append(item)
        self._page_bytes += len(item) + 1
        if _LEASED in raw:
            self._leased += ((lease, key) for _, lease in msgspec.json.decode(raw, type=_Leased).leased)

    def reuse_object(self, pages: Pages) -> None:
        """Add an existing object, whose keys are all greater than the earlier ones."""
        self._end_object()
        self._made.append(pages)

    def finish(self) -> tuple[Pages, ...]:
        """Store the remaining items, and return all objects in order."""
        self._end_object()
        return tuple(self._made)

    def _end_page(self) -> None:
        """Finish the current page, and the object if it is full."""
        if self._page:
            data = b"{" + b",".join(self._page) + b"}\n"
            self._pages.append(Page(self._first, len(data), xxhash.xxh3_64_hexdigest(data)))
            self._object.append(data)
            self._object_bytes += len(data)
            self._page, self._page_bytes = [], 0
        if self._object_bytes >= OBJECT_BYTES_MAX:
            self._end_object()

    def _end_object(self) -> None:
        """Store the finished pages as an object, and note it."""
        if self._page:
            self._end_page()
        if self._pages:
            data = b"".join(self._object)
            key = make_pages_key(self._seqno, data)
            self._store(key, data)
            self._made.append(Pages(key, tuple(self._pages), tuple(dict.fromkeys(self._leased))))
            self._pages, self._object, self._leased, self._object_bytes = [], [], [], 0


def rewrite_table(
    writing: Writing, newer: Iterator[Item], oldest: Table[Any] | None, *, keeps_gone: bool
) -> tuple[Pages, ...]:
    """Merge an oldest table with newer items, and return its objects in key order.

    Objects of the oldest table are reused if no newer item has a key in their range; the others are read and rewritten.

    `keeps_gone`: whether older tables stay below this one, so that it must name their deleted keys.
    """
    waiting = next(newer, None)

    def take_newer(end: str | None) -> Iterator[Item]:
        """Yield the newer items up to the key at which the next object begins."""
        nonlocal waiting
        while waiting is not None and (end is None or waiting[0] < end):
            yield waiting
            waiting = next(newer, None)

    def add(items: Iterator[Item]) -> None:
        for key, data in items:
            if keeps_gone or data != _NULL:
                writing.add(key, data)

    objects = oldest.objects if oldest is not None else ()
    for n, pages in enumerate(objects):
        end = objects[n + 1].pages[0].first if n + 1 < len(objects) else None
        is_touched = waiting is not None and (end is None or waiting[0] < end)
        if not is_touched and pages.bytes * 4 >= OBJECT_BYTES_MAX:
            writing.reuse_object(pages)
        else:
            assert oldest is not None
            add(merge_sorted(take_newer(end), oldest.iterate_raw(pages)))
    add(take_newer(None))
    return writing.finish()


def check_objects(objects: Sequence[Pages], seqno: int) -> None:
    """Raise ValueError if a directory object made at a seqno cannot have this list of objects."""
    firsts = [page.first for pages in objects for page in pages.pages]
    if any(first >= following for first, following in pairwise(firsts)):
        raise ValueError("its pages are not in order")
    for pages in objects:
        made_at = parse_pages_seqno(pages.blob)
        if made_at is None or made_at > seqno or not pages.pages or any(page.bytes <= 0 for page in pages.pages):
            raise ValueError(f"{pages.blob[:200]!r} is not the name of pages of an earlier checkpoint, or has none")
        if not all(is_id(lease) for lease, _ in pages.leased):
            raise ValueError(f"a lease of {pages.blob} is not an id")


def _check_present(pages: Pages, data: bytes | None) -> bytes:
    """Return the bytes of pages; raise MissingBlob if they are None."""
    if data is None:
        raise MissingBlob(pages.blob, f"it is missing, and {pages.bytes} bytes belong there", MADE_AGAIN)
    return data


def _decode_page(pages: Pages, n: int, data: bytes) -> dict[str, Any]:
    """Decode the bytes of a page."""
    page = pages.pages[n]
    checksum = xxhash.xxh3_64_hexdigest(data)
    if len(data) != page.bytes or checksum != page.checksum:
        raise CorruptBlob(
            pages.blob,
            f"page {n} of it has {len(data)} bytes with checksum {checksum}, and {page.bytes} bytes with checksum "
            f"{page.checksum} belong there",
        )
    try:
        items = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptBlob(pages.blob, f"page {n} of it is not valid: {error}") from error
    keys = [*items]
    if not keys or keys[0] != page.first or any(key >= following for key, following in pairwise(keys)):
        raise CorruptBlob(pages.blob, f"the keys of page {n} of it are not in order")
    return items
