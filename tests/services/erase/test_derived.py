"""What derives from a collection: an erasure follows there, or its report and the search for traces name it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import persist
from tests.services.erase.test_erase import ADA, HOUR, opened
from tests.support.clocks import DatedBlob, ImpatientClock

BOB = "bob@example.com"


@pytest.fixture
def dated() -> DatedBlob:
    return DatedBlob(ImpatientClock())


@pytest.fixture
def client(dated: DatedBlob) -> Iterator[persist.Client]:
    with opened(dated) as client:
        people = client.create_or_load("people", key={"id": int}, value={"email": str})
        people.write([(1, ADA), (2, BOB)]).result()
        client.create_view("mails", "SELECT email FROM people").refresh()
        yield client


def clone_of_a_view(client: persist.Client) -> list[str]:
    client.clone("mails", "copy")
    return ["copy"]


def clone_of_a_clone_of_a_view(client: persist.Client) -> list[str]:
    client.clone("mails", "between")
    client.clone("between", "copy")
    client.drop("between").result()
    return ["copy"]


def clone_of_a_view_that_was_dropped(client: persist.Client) -> list[str]:
    client.clone("mails", "copy")
    client.drop("mails").result()
    return ["copy"]


def clone_of_a_view_of_a_view(client: persist.Client) -> list[str]:
    client.create_view("lengths", "SELECT email, length(email) AS n FROM mails").refresh()
    client.clone("lengths", "copy")
    return ["copy"]


def clone_of_a_view_over_a_clone(client: persist.Client) -> list[str]:
    client.clone("people", "others")
    client.create_view("of others", "SELECT email FROM others").refresh()
    client.clone("of others", "copy")
    return ["copy"]


def view_over_a_clone_of_a_view(client: persist.Client) -> list[str]:
    client.clone("mails", "copy")
    client.create_view("again", "SELECT email FROM copy").refresh()
    client.clone("again", "last")
    return ["again", "copy", "last"]


def clone_from_before_an_erasure(client: persist.Client) -> list[str]:
    client.clone("mails", "copy")
    client.load("people").erase([2], reason="request 16")
    return ["copy"]


KINDS = [
    clone_of_a_view, clone_of_a_clone_of_a_view, clone_of_a_view_that_was_dropped, clone_of_a_view_of_a_view,
    clone_of_a_view_over_a_clone, view_over_a_clone_of_a_view, clone_from_before_an_erasure,
]  # fmt: skip


def collected(dated: DatedBlob, client: persist.Client) -> None:
    client.close()
    for _ in range(3):
        dated.clock.sleep(30 * HOUR)
        with opened(dated) as other:
            other.gc()


@pytest.mark.thorough(except_every=7)
@pytest.mark.parametrize("derive", KINDS)
def test_clones_of_views_are_named_and_there_is_no_receipt_until_they_are_gone(
    client: persist.Client, dated: DatedBlob, derive: Callable[[persist.Client], list[str]]
) -> None:
    copies = derive(client)
    report = client.load("people").erase([1], reason="request 17")
    assert report.unfollowed == tuple(copies)
    assert all(repr(name) in str(report) for name in copies)
    assert client.load("people").erase([1], reason="request 17").unfollowed == tuple(copies), "until they are gone"
    collected(dated, client)
    with opened(dated) as other:
        traces = other.load("people").traces([1])
        assert {name for name in copies if any(repr(name) in trace.why for trace in traces.found)} == {*copies}
        with pytest.raises(persist.InvalidUsage, match="it holds what a query gave"):
            traces.receipt()
        for name in copies:
            other.drop(name).result()
    collected(dated, other)
    with opened(dated) as last:
        assert last.load("people").traces([1]).receipt()


def test_a_search_for_texts_looks_in_clones_of_views(client: persist.Client, dated: DatedBlob) -> None:
    client.create_view("counts", "SELECT count(*) AS n FROM people").refresh()
    client.clone("counts", "copy of counts")
    client.clone("mails", "copy of mails").erase(where=f"email = '{ADA}'", reason="request 17")
    client.load("people").erase([1], reason="request 17")
    collected(dated, client)
    with opened(dated) as other:
        assert not other.load("people").traces([1]).is_gone
        assert other.load("people").traces([1], texts=[ADA]).is_gone
        assert not other.load("people").traces([1], texts=[BOB]).is_gone


def test_an_erasure_from_a_clone_of_a_view_leaves_the_view_as_its_inputs_say(client: persist.Client) -> None:
    report = client.clone("mails", "copy").erase(where=f"email = '{ADA}'", reason="request 17")
    assert (report.updates, report.clones, report.unfollowed) == (1, (), ("mails",))
    assert sorted(client.load("mails").snapshot().to_arrow()["email"].to_pylist()) == [ADA, BOB]


def test_a_view_that_reaches_farther_back_than_its_input_is_named(client: persist.Client) -> None:
    people = client.load("people")
    people.delete([1]).result()
    view: Any = client.view("mails")
    view.refresh()
    people.allow_compaction((people.upper.time or 0) - 1).result()
    people.compact()
    report = people.erase([1], reason="request 17")
    assert report.seqno is None
    assert report.unfollowed == ("mails",)
