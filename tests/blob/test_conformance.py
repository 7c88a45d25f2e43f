"""What every store must do, whatever it is made of: the promises of `persist.blob.protocol`."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice, pairwise

import pytest

from persist.blob.errors import CorruptBlob, InvalidUsage
from persist.blob.protocol import Blob
from tests.blob.conftest import AROUND, Crowd
from tests.blob.places import Place

ODD_KEYS = [
    "plain",
    "a b",
    " leading space",
    "trailing space ",
    "a%20b",
    "a+b",
    "100%",
    "query?x=1",
    "fragment#1",
    "k=v&l=w",
    "tilde~",
    "quotes'\"",
    "<xml>&amp;",
    "back\\slash",
    "star*[a]{b}",
    "colon:semi;comma,at@bang!dollar$(paren)|^`",
    ".hidden",
    "dots..in",
    "trailing.dot.",
    "Upper",
    "upper",
    "UPPER/lower",
    "é composed",
    "e\u0301 combining",
    "ß ẞ",
    "日本語/キー",
    "emoji 🎉/👩‍👩‍👧",
    "\uffee before 🎉 in UTF-8, after it in UTF-16",
    "right-to-left שלום",
    "long/" + "é" * 100,
    "/".join(["deep"] * 40),
    "/".join(["k" * 179] * 4 + ["k" * 180]),
    "a.tmp-b/.tm",
]


def keys_of(blob: Blob, prefix: str = "", start_after: str | None = None) -> list[str]:
    return [entry.key for entry in blob.list(prefix, start_after)]


def test_an_absent_key_has_no_value(blob: Blob) -> None:
    assert blob.get("absent") is None
    assert blob.get("absent", (0, 10)) is None
    assert blob.get("absent/below", (3, 3)) is None
    assert keys_of(blob) == []


def test_what_was_created_or_set_is_read_back(blob: Blob) -> None:
    assert blob.create("folder/created", b"one")
    blob.set("folder/set", b"two")
    assert blob.get("folder/created") == b"one"
    assert blob.get("folder/set") == b"two"
    with suppress(CorruptBlob):  # Where keys are paths, a folder is in the way of a value.
        assert blob.get("folder") is None


def test_create_never_overwrites(blob: Blob) -> None:
    blob.set("set", b"first")
    assert blob.create("created", b"first")
    for key in ("set", "created"):
        assert not blob.create(key, b"second, and longer")
        assert not blob.create(key, b"")
        assert blob.get(key) == b"first"


def test_set_overwrites(blob: Blob) -> None:
    assert blob.create("key", b"created")
    for value in (b"a longer value than before", b"", b"short"):
        blob.set("key", value)
        assert blob.get("key") == value
        assert [entry.bytes for entry in blob.list("key")] == [len(value)]


def test_an_empty_value_is_a_value(blob: Blob) -> None:
    assert blob.create("empty", b"")
    assert blob.get("empty") == b""
    assert blob.get("empty", (0, 5)) == b""
    assert not blob.create("empty", b"no longer empty")
    assert [(entry.key, entry.bytes) for entry in blob.list("")] == [("empty", 0)]


@pytest.mark.thorough
def test_values_of_64_mib_are_stored_whole(blob: Blob) -> None:
    value = random.Random(64).randbytes(64 << 20)
    assert blob.create("large", value)
    assert blob.get("large") == value
    assert blob.get("large", (len(value) - 5, len(value) + 5)) == value[-5:]
    assert [entry.bytes for entry in blob.list("large")] == [64 << 20]
    blob.set("large", value[::-1])
    assert blob.get("large") == value[::-1]


def test_a_range_is_cut_at_the_end_of_the_value_and_one_that_is_none_is_refused(blob: Blob) -> None:
    blob.set("key", b"0123456789")
    for start, end in ((0, 10), (0, 4), (3, 7), (9, 10), (8, 12), (0, 0), (4, 4), (10, 11), (10, 10), (99, 120)):
        assert blob.get("key", (start, end)) == b"0123456789"[start:end], (start, end)
    for wrong in ((-1, 3), (5, 4), (-2, -1)):
        with pytest.raises(InvalidUsage, match="range="):
            blob.get("key", wrong)


def test_a_key_can_be_deleted_twice_and_created_again(blob: Blob) -> None:
    blob.set("folder/key", b"1")
    blob.set("folder/other", b"2")
    blob.delete("folder/key")
    blob.delete("folder/key")
    blob.delete("never/was")
    assert blob.get("folder/key") is None
    assert keys_of(blob) == ["folder/other"]
    assert blob.create("folder/key", b"3")
    assert blob.get("folder/key") == b"3"


def test_odd_characters_in_keys_are_kept_apart_and_listed_as_they_are(blob: Blob) -> None:
    # Azure takes a backslash for a slash, so keys with one are refused there.
    odd_keys = [key for key in ODD_KEYS if "\\" not in key or "abfs" not in repr(blob)]
    for number, key in enumerate(odd_keys):
        assert blob.create(key, str(number).encode()), key
    for number, key in enumerate(odd_keys):
        assert not blob.create(key, b"again"), key
        assert blob.get(key) == str(number).encode(), key
        assert keys_of(blob, key)[0] == key
    in_order = sorted(odd_keys, key=str.encode)
    assert keys_of(blob) == in_order
    for before, after in pairwise(in_order):
        assert keys_of(blob, "", before)[0] == after
    for key in odd_keys:
        blob.delete(key)
    assert keys_of(blob) == []


BAD_KEYS = ["", "/a", "a/", "a//b", ".", "a/../b", "a\nb", "a\0b", "a\x7fb", "\ud800", "x" * 201, ".tmp-a", "a/.tmp-a"]
BAD_KEYS += ["../outside", "./a", "a/.", "..", "a\r\nHost: b", "/".join(["k" * 179] * 3 + ["k" * 180] * 2)]


def test_keys_that_could_not_be_stored_everywhere_are_refused(blob: Blob) -> None:
    for call in (blob.get, blob.delete, lambda k: blob.set(k, b""), lambda k: blob.create(k, b"")):
        for key in BAD_KEYS:
            with pytest.raises(InvalidUsage, match=r"blob key .* is not allowed"):
                call(key)
    assert keys_of(blob) == []


def test_a_listing_goes_on_past_one_page_and_starts_after_any_key(crowded: Crowd) -> None:
    blob, in_order = crowded.blob, sorted(crowded.pages, key=str.encode)
    assert keys_of(blob, "page/") == in_order
    assert keys_of(blob) == sorted([*crowded.pages, *AROUND], key=str.encode)
    assert keys_of(blob, "page/10") == [key for key in in_order if key.startswith("page/10")]
    assert keys_of(blob, "nothing/") == []
    assert [entry.key for entry in islice(blob.list("page/"), 2)] == in_order[:2]
    for index in (3, len(in_order) - 52, len(in_order) - 2):
        assert keys_of(blob, "page/", in_order[index]) == in_order[index + 1 :]
    assert keys_of(blob, "page/", "page/5!absent") == [key for key in in_order if key > "page/5!"]
    assert keys_of(blob, "page/10", "page/105") == [key for key in in_order if "page/105" < key < "page/11"]
    assert keys_of(blob, "page/", "before") == in_order
    assert keys_of(blob, "page/", "page/999") == []
    assert keys_of(blob, "page/", "z") == []


def test_an_entry_tells_size_and_time_of_the_last_change(blob: Blob) -> None:
    began_s = time.time()
    blob.set("key", b"12345")
    (entry,) = blob.list("key")
    assert (entry.key, entry.bytes) == ("key", 5)
    assert began_s - 2 <= entry.modified_s <= time.time() + 2


def test_another_client_sees_what_a_call_that_returned_has_done(place: Place, blob: Blob) -> None:
    other = place.open()
    for number in range(5):
        assert blob.create(f"log/{number}", b"")
        assert keys_of(other, "log/") == [f"log/{n}" for n in range(number + 1)]
        assert not other.create(f"log/{number}", b"late")
    blob.delete("log/0")
    assert other.get("log/0") is None
    assert keys_of(other, "log/")[0] == "log/1"
    other.close()


def test_a_reader_never_sees_part_of_a_value_that_is_set(place: Place, blob: Blob) -> None:
    values = [bytes([65 + n]) * (300_000 + 50_000 * n) for n in range(4)]
    blob.set("key", values[0])
    done = threading.Event()

    def read() -> set[bytes | None]:
        reader = place.open()
        seen = set()
        while not done.is_set():
            seen.add(reader.get("key"))
        reader.close()
        return seen

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        for number in range(12):
            blob.set("key", values[number % 4])
        done.set()
    for reader in readers:
        assert reader.result() <= set(values)


def test_the_url_opens_the_same_store_and_close_may_be_called_twice(place: Place) -> None:
    first = place.open()
    first.set("key", b"value")
    second = Place(first.url, place.options).open()
    assert second.get("key") == b"value"
    for blob in (first, second):
        blob.close()
        blob.close()
