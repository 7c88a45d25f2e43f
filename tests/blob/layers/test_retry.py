"""What is tried again, what is not, when it is given up, and what it is called then."""

import logging
import random
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from persist.blob.errors import Conflict, Indeterminate, InvalidUsage, StoreMisconfigured, Throttled, Unavailable
from persist.blob.layers.metered import MeteredBlob
from persist.blob.layers.retry import RetryBlob, RetryCount
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.blob.protocol import LIST_PAGE_ENTRIES, BlobEntry, MemoryBlob
from tests.support.clocks import ImpatientClock

NO = Fault.UNAVAILABLE
DOUBT = Fault.NOT_HAPPENED_DOUBTFUL
LANDED = Fault.HAPPENED_BUT_FAILED
OPERATIONS = ("create", "delete", "get", "list", "set")

T = TypeVar("T")


class Store(UnreliableBlob):
    """A store in memory whose calls meet errors from a list first, and which remembers when it was called.

    A call takes 1 ms.
    """

    def __init__(self, *errors: Exception) -> None:
        self.memory = MemoryBlob()
        super().__init__(self.memory, sleep=lambda: None)
        self.clock = ImpatientClock()
        self.errors = list(errors)
        self.calls_s: list[float] = []

    def _call_with_fault(self, operation: str, call: Callable[[], T]) -> T:
        self.calls_s.append(self.clock.monotonic_s())
        self.clock.sleep(0.001)
        if self.errors:
            raise self.errors.pop(0)
        return super()._call_with_fault(operation, call)

    def retried(self, **policy: Any) -> RetryBlob:
        return RetryBlob(self, **policy, clock=self.clock, chance=random.Random(7))


def calls_of(blob: RetryBlob) -> dict[str, Callable[[], object]]:
    return {
        "create": lambda: blob.create("new", b"value"),
        "delete": lambda: blob.delete("old"),
        "get": lambda: blob.get("old"),
        "list": lambda: list(blob.list("")),
        "set": lambda: blob.set("old", b"value"),
    }


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_certainly_did_not_happen_is_tried_again(operation: str) -> None:
    store = Store()
    blob = store.retried()
    blob.set("old", b"before")
    store.script_faults(operation, NO, NO, NO)

    result = calls_of(blob)[operation]()

    assert result != []
    assert (store.memory.get("new") == b"value") is (operation == "create")
    assert (store.memory.get("old") is None) is (operation == "delete")
    assert blob.get_counts() == {name: RetryCount(retries=3 * (name == operation)) for name in OPERATIONS}
    assert store.faults[NO] == 3


@pytest.mark.parametrize("operation", ["set", "delete"])
@pytest.mark.parametrize("fault", [DOUBT, LANDED])
def test_a_doubtful_set_or_delete_is_tried_again_because_it_may_happen_twice(operation: str, fault: Fault) -> None:
    store = Store()
    blob = store.retried()
    blob.set("old", b"before")
    store.script_faults(operation, fault, fault)

    calls_of(blob)[operation]()

    assert store.memory.get("old") == {"set": b"value", "delete": None}[operation]
    assert blob.get_counts()[operation] == RetryCount(retries=2)


@pytest.mark.parametrize("fault", [DOUBT, LANDED])
def test_a_doubtful_create_is_not_tried_again(fault: Fault) -> None:
    store = Store()
    blob = store.retried()
    store.script_faults("create", NO, fault)

    with pytest.raises(Indeterminate, match="no answer to create"):
        blob.create("new", b"value")

    assert store.memory.get("new") == (b"value" if fault is LANDED else None)
    assert len(store.calls_s) == 2


def test_a_create_that_lost_returns_false_after_retries() -> None:
    store = Store()
    blob = store.retried()
    store.memory.set("new", b"another's")
    store.script_faults("create", NO, NO)

    assert blob.create("new", b"value") is False
    assert store.memory.get("new") == b"another's"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_store_that_stays_away_is_given_up_after_the_deadline(operation: str) -> None:
    store = Store()
    store.go_down()
    blob = store.retried(retry_s=10, attempts_max=1000)

    with pytest.raises(Unavailable, match=rf"{operation} of '.*' at memory:// was given up after 10\.\d s. .*injected"):
        calls_of(blob)[operation]()

    assert store.calls_s[-1] - store.calls_s[0] == pytest.approx(10, abs=0.1)
    assert blob.get_counts()[operation].gave_up == 1
    assert blob.get_counts()[operation].retries == len(store.calls_s) - 1


def test_waits_are_random_below_a_bound_that_doubles_up_to_a_maximum() -> None:
    waits: list[list[float]] = [[] for _ in range(9)]
    for seed in range(300):
        store = Store()
        store.go_down()
        with pytest.raises(Unavailable):
            RetryBlob(store, attempts_max=10, clock=store.clock, chance=random.Random(seed)).get("key")
        for n, (before_s, after_s) in enumerate(zip(store.calls_s, store.calls_s[1:], strict=False)):
            waits[n].append(after_s - before_s - 0.001)

    for bound_s, each in zip([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0], waits, strict=True):
        assert bound_s * 0.9 < max(each) < bound_s + 0.001
        assert min(each) < bound_s * 0.1
        assert sum(each) / len(each) == pytest.approx(bound_s / 2, rel=0.2)


@pytest.mark.parametrize("operation", ["set", "delete"])
@pytest.mark.parametrize("doubtful_at", [0, 1, 3])
def test_a_write_given_up_is_doubtful_if_any_attempt_was(operation: str, doubtful_at: int) -> None:
    store = Store()
    blob = store.retried(attempts_max=4)
    store.script_faults(operation, *[DOUBT if n == doubtful_at else NO for n in range(4)])

    with pytest.raises(Indeterminate, match=r"may have done it\. The last failure: injected"):
        calls_of(blob)[operation]()

    assert blob.get_counts()[operation] == RetryCount(retries=3, gave_up=1)


def test_a_write_refused_for_another_reason_after_a_doubtful_attempt_is_doubtful() -> None:
    denied = StoreMisconfigured("the credentials have expired")
    store = Store(Indeterminate("no answer"), denied)

    with pytest.raises(Indeterminate, match=r"may have done it.*have expired") as raised:
        store.retried().set("old", b"value")

    assert raised.value.__cause__ is denied


@pytest.mark.parametrize("error", [InvalidUsage("wrong"), Conflict("first"), StoreMisconfigured("no bucket")])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_a_second_attempt_cannot_help_is_raised_as_it_is(operation: str, error: Exception) -> None:
    store = Store(Unavailable("at first"), error)
    blob = store.retried()

    with pytest.raises(type(error)) as raised:
        calls_of(blob)[operation]()

    assert raised.value is error
    assert blob.get_counts()[operation] == RetryCount(retries=1)


def test_an_attempt_that_timed_out_is_counted_and_a_create_then_is_doubtful() -> None:
    late_read, late_write = Unavailable("late"), Indeterminate("late")
    late_read.timed_out = late_write.timed_out = True
    store = Store(late_read)
    blob = store.retried()

    assert blob.get("old") is None
    store.errors = [late_write]
    blob.set("old", b"value")
    store.errors = [late_write]
    with pytest.raises(Indeterminate):
        blob.create("new", b"value")

    counts = blob.get_counts()
    assert [counts[name].timeouts for name in ("get", "set", "create")] == [1, 1, 1]
    assert [counts[name].retries for name in ("get", "set", "create")] == [1, 1, 0]


class Torn(MemoryBlob):
    """A store whose listings break off, with the next error, after some entries."""

    def __init__(self, after: list[int]) -> None:
        super().__init__()
        self.after = after
        self.asked: list[str | None] = []

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        self.asked.append(start_after)
        left = self.after.pop(0) if self.after else -1
        for entry in super().list(prefix, start_after):
            if left == 0:
                raise Unavailable("the connection broke")
            left -= 1
            yield entry


def test_a_listing_goes_on_after_the_last_key_it_yielded() -> None:
    store = Torn([10, 1000, 1500, 0, 2499])
    keys = [f"key/{number:05d}" for number in range(5000)]
    for key in keys:
        store.set(key, b"")
    blob = RetryBlob(store, clock=ImpatientClock())

    assert [entry.key for entry in blob.list("key/", "key/00099")] == keys[100:]

    whole_pages = [keys[99], keys[99], keys[1099], keys[2099], keys[2099], keys[4099]]
    assert store.asked == whole_pages
    assert blob.get_counts()["list"] == RetryCount(retries=5)


def test_each_page_of_a_listing_has_attempts_and_a_deadline_of_its_own() -> None:
    store = Torn([0, 0, LIST_PAGE_ENTRIES, 0, LIST_PAGE_ENTRIES, 0])
    for number in range(2500):
        store.set(f"key/{number:05d}", b"")
    blob = RetryBlob(store, attempts_max=3, clock=ImpatientClock())

    assert len(list(blob.list(""))) == 2500


def test_a_listing_is_lazy() -> None:
    store = MeteredBlob(MemoryBlob())
    for number in range(3 * LIST_PAGE_ENTRIES):
        store.set(f"key/{number:05d}", b"")

    next(RetryBlob(store).list(""))

    assert store.get_counts()["list"].requests == 1


@pytest.mark.parametrize("policy", [{"retry_s": 1, "throttled_s": 10_000}, {"retry_s": 10_000, "throttled_s": 1}])
def test_being_throttled_is_no_attempt_and_has_the_longer_deadline(policy: dict[str, float]) -> None:
    store = Store(*[Throttled("slow down")] * 30)
    blob = store.retried(**policy, attempts_max=2)

    assert blob.get("old") is None

    assert len(store.calls_s) == 31
    assert store.calls_s[-1] - store.calls_s[0] > 10
    assert blob.get_counts()["get"] == RetryCount(retries=30, throttled=30)


def test_time_lost_to_throttling_is_not_held_against_later_attempts() -> None:
    errors = [*[Throttled("slow down")] * 20, *[Unavailable("away")] * 3]
    store = Store(*errors)
    blob = store.retried(retry_s=20, throttled_s=10_000)

    assert blob.get("old") is None

    assert store.calls_s[20] - store.calls_s[0] > 20, "the test is about a throttled time beyond the deadline"


def test_throttling_without_end_is_given_up_as_throttled() -> None:
    store = Store(*[Throttled("slow down")] * 10_000)
    blob = store.retried(retry_s=1, throttled_s=60)

    with pytest.raises(Throttled, match=r"given up after \d+\.\d s. The last failure: slow down"):
        blob.create("new", b"value")

    assert 50 < store.calls_s[-1] - store.calls_s[0] < 61
    assert blob.get_counts()["create"].gave_up == 1


def test_a_doubtful_write_that_is_throttled_to_the_end_is_doubtful() -> None:
    store = Store(Indeterminate("no answer"), *[Throttled("slow down")] * 10_000)

    with pytest.raises(Indeterminate, match="may have done it"):
        store.retried(throttled_s=60).set("old", b"value")


def test_who_waits_for_a_store_that_does_not_answer_hears_within_three_seconds_and_not_all_the_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Store(*[Unavailable("no route to host")] * 40)
    blob = store.retried(retry_s=300.0, attempts_max=50)
    told_s: list[float] = []

    def note_time(_: logging.LogRecord) -> bool:
        told_s.append(store.clock.monotonic_s())
        return True

    caplog.handler.addFilter(note_time)
    began_s = store.clock.monotonic_s()
    assert blob.get("key") is None
    expected_s: list[float] = []
    for attempt, called_s in enumerate(store.calls_s[:-1]):
        failed_s, bound_s = called_s + 0.001, min(0.05 * 2**attempt, 5.0)
        if failed_s + bound_s - began_s > 1.5 and (not expected_s or failed_s - expected_s[-1] >= 30.0):
            expected_s.append(failed_s)
    assert told_s == pytest.approx(expected_s, abs=1e-3)
    assert 2 < len(told_s) < 10
    assert {*caplog.messages} == {"get of 'key' at memory:// is tried for up to 300 s: no route to host"}


def test_a_store_that_answers_soon_again_or_must_soon_is_not_spoken_of(caplog: pytest.LogCaptureFixture) -> None:
    assert Store(Unavailable("busy"), Unavailable("busy")).retried().get("key") is None
    store = Store()
    store.go_down()
    with pytest.raises(Unavailable):
        store.retried(retry_s=1.5, attempts_max=1000).get("key")
    assert caplog.messages == []
