"""Refreshes that are overtaken at a named call, die at every call, and are raced by many, cold and by open handles."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import pytest

import persist
from persist.blob.errors import Unavailable
from persist.blob.layers.unreliable import UnreliableBlob
from persist.blob.protocol import Blob, MemoryBlob
from persist.blob.stores.file import FileBlob
from persist.core.settings import Tuning
from persist.errors import UpperMismatch
from tests.compute.dataflow.ledger import Bank
from tests.compute.sql.ledger import VIEWS, check, views_of
from tests.compute.sql.two_ways import QUIET, requests_by_key, way_of
from tests.support.copies import Copies
from tests.support.stepped import WAIT_S, Stepped
from tests.support.tiers import examples
from tests.support.tuned import tuned

VIEW, ABOVE = "totals", "shares"  # The second one reads the first one.
ROUNDS = max(3, examples(12))
MORTAL = persist.Settings(background=False, tuning=Tuning(attempts_max=1))
T = TypeVar("T")


class Mortal(UnreliableBlob):
    """A store whose client dies at a call, before it happens or after: from then on nothing it asks for happens."""

    def __init__(self, inner: Blob, dies_at: int, *, happens: bool) -> None:
        super().__init__(inner)
        self._left, self._happens = dies_at, happens

    @property
    def is_dead(self) -> bool:
        return self._left < 0

    def _call_with_fault(self, operation: str, call: Callable[[], T]) -> T:
        self._left -= 1
        if self._left == -1 and self._happens:
            call()
        if self._left < 0:
            raise Unavailable("the client is dead")
        return super()._call_with_fault(operation, call)


@pytest.fixture
def bank(blob: MemoryBlob) -> Iterator[Bank]:
    """Yield transfers that views have taken in, and some that they have not."""
    with persist.open(blob, settings=QUIET) as client:
        bank = Bank(client)
        bank.transfer()
        for view in views_of(client):
            view.refresh()
            view.close()
        bank.transfer()
        yield bank


def refreshed(blob: Blob, name: str, settings: persist.Settings = QUIET) -> persist.Antichain:
    """Refresh a view by a step of a client that has nothing open; return how far it has come."""
    with requests_by_key(), persist.open(blob, settings=settings) as client:
        view = client.view(name)
        view.refresh()
        assert way_of(view) == "part"
        return view.upper


def test_a_refresh_that_another_client_overtakes_goes_on_from_where_that_one_came(bank: Bank, blob: MemoryBlob) -> None:
    store = Stepped(blob)
    uppers = []

    def overtake() -> None:
        uppers.append(refreshed(blob, VIEW))
        bank.transfer()  # So what is left to do is not what the step has computed.

    store.before("create", "log/", overtake)
    assert refreshed(store, VIEW) == persist.Antichain(3)
    assert store.is_done
    assert uppers == [persist.Antichain(2)]
    check_all(bank, blob)


def test_a_refresh_that_finds_all_of_its_work_done_by_another_client_writes_nothing_more(
    bank: Bank, blob: MemoryBlob
) -> None:
    store, records = Stepped(blob), list[str]()

    def overtake() -> None:
        refreshed(blob, VIEW)
        records.extend(entry.key for entry in blob.list("log/"))

    store.before("create", "log/", overtake)
    assert refreshed(store, VIEW) == persist.Antichain(2)
    assert store.is_done
    assert [entry.key for entry in blob.list("log/")] == records
    check_all(bank, blob)


@pytest.mark.thorough
def test_a_refresh_that_is_overtaken_again_and_again_ends_and_leaves_nothing(bank: Bank, blob: MemoryBlob) -> None:
    store, uppers = Stepped(blob), []

    def overtake() -> None:
        uppers.append(refreshed(blob, VIEW))
        bank.transfer()
        if len(uppers) < 6:
            store.before("create", "log/", overtake)

    store.before("create", "log/", overtake)
    assert refreshed(store, VIEW) >= uppers[0]
    assert len(uppers) >= 2
    check_all(bank, blob)


def test_a_refresh_holds_what_it_reads_of_an_input_that_is_compacted_meanwhile(bank: Bank, blob: MemoryBlob) -> None:
    settings = tuned(background=False, grace_s=0, orphan_grace_s=0)
    with persist.open(blob, settings=settings) as other:
        moves, store = other.load("moves"), Stepped(blob)
        bank.transfer(1500)  # In a part of its own.
        bank.transfer()

        def compact() -> None:
            moves.allow_compaction(bank.time - 1).result()
            parts = {entry.key for entry in blob.list("part/")}
            moves.compact()
            other.maintain()
            other.gc()
            assert parts <= {entry.key for entry in blob.list("part/")}

        store.before("get", "part/", compact)
        assert refreshed(store, ABOVE) == persist.Antichain(bank.time)
        assert store.is_done
        assert moves.since == persist.Antichain(0)  # Where the views were before.
    check_all(bank, blob)


def check_all(bank: Bank, blob: MemoryBlob) -> None:
    """Bring all views up to date; raise AssertionError unless they are right, and nothing is left over."""
    assert refreshed(blob, ABOVE) == persist.Antichain(bank.time)
    with persist.open(blob, settings=QUIET) as client:
        client.view([*VIEWS][-1]).refresh()  # This one takes no step.
        check(client, bank.time)
        assert client.fsck().problems == ()
        for name in ("moves", *VIEWS):
            assert len({hold.name for hold in client.load(name).holds()}) == len(client.load(name).holds())


@pytest.mark.thorough(except_every=12)
@pytest.mark.parametrize("happens", [False, True])
@pytest.mark.parametrize("share", range(6))
def test_a_refresh_that_dies_at_any_call_of_the_store_loses_and_doubles_nothing(share: int, happens: bool) -> None:
    at, died = share, True
    while died:
        blob = MemoryBlob()
        with persist.open(blob, settings=QUIET) as client:
            bank = Bank(client, at)
            bank.transfer()
            for view in views_of(client):
                view.refresh()
                view.close()
            bank.transfer()
            bank.transfer()
        mortal = Mortal(blob, at, happens=happens)
        with suppress(Unavailable, persist.Indeterminate, BaseExceptionGroup):
            refreshed(mortal, ABOVE, MORTAL)
        died = mortal.is_dead
        check_all(bank, blob)
        at += 6
    assert at > share + 6, "a step asks the store for something"


def keep_up(folder: str, name: str, told: Connection) -> None:
    """Refresh a view by a new client each time, until killed; tell what it kept."""
    while True:
        with requests_by_key(), persist.open(FileBlob(Path(folder), fsync=False), settings=QUIET) as client:
            view = client.view(name)
            try:
                view.refresh()
            except UpperMismatch:
                told.send("overtaken")
            else:
                told.send(way_of(view))


def keep_open(folder: str, name: str, told: Connection) -> None:
    """Refresh a view by one handle until killed; tell of each refresh."""
    with persist.open(FileBlob(Path(folder), fsync=False)) as client:
        view = client.view(name)
        while True:
            view.refresh()
            told.send("open")


@pytest.mark.thorough
@pytest.mark.parametrize(("keep", "last"), [(keep_up, ABOVE), (keep_open, [*VIEWS][-1])])
def test_processes_that_refresh_views_at_once_while_they_are_written_agree(
    tmp_path: Path, keep: Callable[..., None], last: str
) -> None:
    """Some refresh the last view, and with it all that it reads; others one of those, and so get ahead of it."""
    copies, ways = Copies(keep), set[str]()
    try:
        with persist.open(FileBlob(tmp_path, fsync=False), settings=QUIET) as client:
            bank = Bank(client)
            bank.transfer()
            for view in views_of(client):
                view.refresh()
                view.close()
            for name in (last, ABOVE, VIEW):
                copies.start(str(tmp_path), name)
            for number in range(ROUNDS):
                for _ in range(2):
                    ways |= {*copies.wait(1)}
                    bank.transfer()
                if number % 3 == 2:  # The oldest, which may be anywhere in a step.
                    copies.kill()
                    copies.start(str(tmp_path), last)
            copies.kill_all()
            assert refreshed(FileBlob(tmp_path, fsync=False), ABOVE) == persist.Antichain(bank.time)
            client.view([*VIEWS][-1]).refresh()
            check(client, bank.time)
            assert client.fsck().problems == ()
    finally:
        copies.kill_all()
    assert ("part" in ways) == (keep is keep_up)
    assert "state" not in ways


def test_a_view_is_made_and_dropped_by_several_clients_at_once_without_leaving_a_hold() -> None:
    inner = MemoryBlob()
    errors: list[BaseException] = []
    with persist.open(inner) as writer:
        bank = Bank(writer)
        bank.transfer()
        start = threading.Barrier(3)

        def making() -> None:
            try:
                with persist.open(inner) as client:
                    for _ in range(6):
                        start.wait(WAIT_S)
                        try:
                            view = client.create_view("totals", VIEWS["totals"])
                            view.refresh()
                            view.drop().result()
                        except (persist.errors.CollectionNotFound, persist.Conflict):
                            pass  # Another one has dropped it first.
            except BaseException as error:
                errors.append(error)
                start.abort()

        threads = [threading.Thread(target=making) for _ in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(WAIT_S)
        assert [repr(each) for each in errors] == []
        assert writer.collections() == ["moves"]
        assert [hold.name for hold in bank.moves.holds() if hold.name] == []
