"""Reading the log on: what there is, each record once and in order, one by one or at once."""

import math
import random
import threading
from collections import Counter
from itertools import count, takewhile

import pytest

from persist.blob.protocol import MemoryBlob
from persist.blob.threads import Pool
from persist.core.log.framing import encode_framed, fetch_framed, store_framed
from persist.core.log.keys import make_list_prefix, make_record_key
from persist.core.log.records import AHEAD_FIRST, AHEAD_MAX, LISTED_MAX, ONE_BY_ONE, PartList, RecordReader
from tests.core.log.test_commits import ORDERS, create, record
from tests.support.stepped import WAIT_S


class Near(MemoryBlob):
    """A store that counts how often each key is read, and keeps reads back until so many wait together."""

    is_remote = False

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.together: threading.Barrier | None = None

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        with self.lock:
            self.reads[key] += 1
        if self.together is not None:
            self.together.wait(WAIT_S)
        return super().get(key, range)


class Far(Near):
    is_remote = True


POOL = Pool(8, "test-log")


def logged(blob: Near, *seqnos: int) -> Near:
    for seqno in seqnos:
        blob.set(make_record_key(seqno), encode_framed(create() if seqno == 0 else record(seqno)))
    return blob


@pytest.mark.parametrize("kind", [Near, Far])
@pytest.mark.parametrize("length", [0, 1, ONE_BY_ONE, ONE_BY_ONE + 1, 40, 100])
@pytest.mark.parametrize("last", [math.inf, 2, ONE_BY_ONE + 4, 39])
def test_records_come_in_order_up_to_the_last_that_is_there_or_wanted(
    kind: type[Near], length: int, last: float
) -> None:
    blob = logged(kind(), *range(length), length + 1)  # One is missing.
    read, applied = list[int](), [-1]
    for found in RecordReader(blob, POOL).read_after(lambda: applied[0], last):
        read.append(found.seqno)
        applied[0] = found.seqno
    expected = range(min(length, int(min(last, 1000)) + 1))
    assert read == [*expected]
    assert max(blob.reads.values()) == 1
    asked = len(blob.reads)
    assert asked >= min(len(expected) + 1, int(min(last, 1000)) + 1)
    ahead = 0 if kind is Near or len(expected) < ONE_BY_ONE else AHEAD_FIRST - 1 if length < 10 else AHEAD_MAX
    assert max(blob.reads) <= make_record_key(len(expected) + ahead)
    assert last == math.inf or all(make_record_key(seqno) not in blob.reads for seqno in range(int(last) + 1, 200))


@pytest.mark.parametrize("kind", [Near, Far])
@pytest.mark.parametrize("seed", range(5))
def test_what_somebody_else_has_applied_meanwhile_does_not_come(kind: type[Near], seed: int) -> None:
    chance, blob = random.Random(seed), logged(kind(), *range(90))
    applied, read, elsewhere = [-1], list[int](), set[int]()
    for found in RecordReader(blob, POOL).read_after(lambda: applied[0], math.inf):
        assert found.seqno == applied[0] + 1
        read.append(found.seqno)
        applied[0] += 1
        if chance.random() < 0.3:
            skipped = range(applied[0] + 1, min(applied[0] + chance.randrange(1, 6), 89) + 1)
            elsewhere |= {*skipped}
            applied[0] = max([applied[0], *skipped])
    assert sorted([*read, *elsewhere]) == [*range(90)]


def test_records_far_away_are_asked_for_at_once_after_the_first_few() -> None:
    blob = logged(Far(), *range(40))
    reader, applied = RecordReader(blob, POOL), [-1]
    for found in reader.read_after(lambda: applied[0], ONE_BY_ONE + 1):
        applied[0] = found.seqno
        if applied[0] == ONE_BY_ONE - 1:
            blob.together = threading.Barrier(2)
    assert applied[0] == ONE_BY_ONE + 1
    blob.together = None


@pytest.mark.parametrize("kind", [Near, Far])
@pytest.mark.parametrize("length", [0, 1, AHEAD_MAX, AHEAD_MAX + 1, 3 * AHEAD_MAX])
@pytest.mark.parametrize("after", [-1, 0, 2])
def test_a_page_names_the_record_that_is_known_and_those_after_it(kind: type[Near], length: int, after: int) -> None:
    blob = logged(kind(), *range(length), length + 1)
    reader = RecordReader(blob, POOL)
    page = reader.list_page(after)
    there = [*range(length), length + 1]
    assert page.seqnos == [seqno for seqno in there if seqno >= after]
    assert page.consecutive_seqnos == [*takewhile(there.__contains__, count(after + 1))]
    assert [found and found.seqno for found in page.read_records()] == page.consecutive_seqnos
    assert sum(blob.reads.values()) == len(page.consecutive_seqnos)
    assert not page.is_full


def test_a_page_has_so_many_names_and_then_there_may_be_more() -> None:
    for records, is_full in ((LISTED_MAX - 1, False), (LISTED_MAX, True), (LISTED_MAX + 5, True)):
        blob = Near()
        for seqno in range(records):
            blob.set(make_record_key(seqno), b"")
        page = RecordReader(blob, POOL).list_page(-1)
        assert (len(page.seqnos), page.is_full) == (min(records, LISTED_MAX), is_full)


def test_what_several_pointers_lead_to_is_fetched_at_once_from_far_away() -> None:
    for kind in (Near, Far):
        for pointers in (0, 1, 2, 5):
            blob = kind()
            lists = [PartList(location=f"{n:032x}", collection=ORDERS, parts=()) for n in range(pointers)]
            refs = [store_framed(blob, make_list_prefix(ORDERS, n), each) for n, each in enumerate(lists)]
            if kind is Far and pointers > 1:
                blob.together = threading.Barrier(pointers)
            assert fetch_framed(blob, refs, PartList, POOL) == [*zip(refs, lists, strict=True)]
