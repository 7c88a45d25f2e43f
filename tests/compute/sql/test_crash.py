"""Views whose refreshes are killed at any moment, race each other, and meet stores that fail or leave it in doubt."""

import random
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.blob.stores.file import FileBlob
from tests.compute.dataflow.ledger import Bank
from tests.compute.sql.ledger import VIEWS, check, views_of
from tests.support.copies import Copies
from tests.support.stepped import WAIT_S
from tests.support.tiers import examples

KILLS = max(2, examples(6))


def keep_up(folder: str, name: str, told: Connection) -> None:
    """Refresh a view until killed; tell after each refresh."""
    with persist.open(FileBlob(Path(folder), fsync=False)) as client:
        view = client.view(name)
        while True:
            view.refresh()
            told.send(None)


@pytest.fixture
def copies() -> Iterator[Copies]:
    made = Copies(keep_up)
    yield made
    made.kill_all()


@pytest.mark.thorough
def test_refreshes_that_are_killed_again_and_again_lose_and_double_nothing(copies: Copies, tmp_path: Path) -> None:
    chance = random.Random(18)
    with persist.open(FileBlob(tmp_path, fsync=False)) as client:
        bank = Bank(client)
        bank.transfer()
        views = views_of(client)
        names = list(VIEWS)
        # Some refresh the last view, and with it all; others one of those that it reads, and so get ahead of it.
        copies.start(str(tmp_path), names[-1])
        copies.start(str(tmp_path), names[0])
        for _ in range(KILLS):
            copies.wait(chance.randrange(1, 4))
            for _ in range(chance.randrange(1, 4)):
                bank.transfer()
            copies.kill()
            copies.start(str(tmp_path), chance.choice(names))
        copies.kill_all()
        assert views[-1].refresh() == persist.Antichain(bank.time)
        assert {each.upper for each in views} == {persist.Antichain(bank.time)}
        check(client, bank.time)


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
