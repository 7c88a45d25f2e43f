"""What a client does about a server that does not answer, and what a server knows of whom it commits for."""

from collections.abc import Iterator

import pytest

from persist.blob.protocol import MemoryBlob
from persist.core.log import kinds
from persist.engine.follow.follower import Follower
from persist.engine.write.commit_future import Committed
from persist.engine.write.relay import Answer
from persist.engine.write.relay_messages import decode_answers, encode_request
from persist.errors import UpdateNotBeyondUpper
from persist.services.serve import commits
from persist.services.serve import remote_location as asking
from persist.services.serve.commits import CommitsForOthers
from persist.services.serve.messages import Notify
from persist.services.serve.remote_location import FlightRelay, Listener
from tests.engine.follow.test_directory import Writer
from tests.engine.write.test_left_open import Owner
from tests.engine.write.test_operations import FIELDS, A, write
from tests.engine.write.test_relay import LOCATION, OTHER, WHO, asked
from tests.support.clocks import ImpatientClock
from tests.support.stepped import wait_until

NOBODY = Notify("grpc://127.0.0.1:9")  # The port of "discard", where nothing listens.


def test_a_server_that_does_not_answer_is_asked_again_after_pauses_that_double(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "RETRY_S_MAX", 0.5)
    clock = ImpatientClock()
    relay = FlightRelay(NOBODY, clock)
    relay.check(LOCATION)  # It may answer later.
    failures = 1
    for pause_s in (0.2, 0.4, 0.5, 0.5):
        clock.sleep(pause_s - 0.01)
        assert relay.commit(LOCATION, [asked(1, write())]) is None, "nobody has been asked"
        clock.sleep(0.02)
        assert relay.commit(LOCATION, [asked(1, write()), asked(2, write())]) == [None, None]
        failures += 1
        assert relay.counts() == {"requests": failures - 1, "failures": failures}
    warnings = [
        each for each in caplog.records if "does not commit, so this client does so by itself" in each.getMessage()
    ]
    assert len(warnings) == 1
    monkeypatch.setattr(asking, "REQUEST_BYTES_MAX", 10)
    clock.sleep(1)
    assert relay.commit(LOCATION, [asked(1, write())]) is None
    assert relay.counts()["failures"] == failures
    relay.close()


def test_who_is_not_told_of_records_says_so_once_and_tries_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "RETRY_S_MIN", 0.001)
    writer = Writer(MemoryBlob())
    writer.create(1)
    listener = Listener(Follower(writer.blob, ImpatientClock()), NOBODY)
    wait_until(lambda: listener.counts()["failures"] >= 3)
    listener.close()
    assert listener.counts()["connected"] == listener.counts()["pushes"] == 0
    assert len([each for each in caplog.records if "so this client polls" in each.getMessage()]) == 1


@pytest.fixture
def serving() -> Iterator[Owner]:
    owner = Owner()
    owner.watched.note_close()
    yield owner
    owner.committer.close()
    owner.committer.unobserved.take()


def answers(serves: CommitsForOthers, location: str, *numbers: int, who: str = WHO, time: int = 5) -> list[Answer]:
    data = encode_request(location, [asked(n, write(time=time), who=who) for n in numbers])
    return decode_answers(serves.answer_request(data), len(numbers))


def test_a_server_commits_for_others_also_to_what_it_has_not_heard_of(serving: Owner) -> None:
    follower = serving.committer.groups._follower
    serves = CommitsForOthers(serving.committer, follower)
    assert serves.location() is None
    with pytest.raises(ValueError, match="this server commits to the location None"):
        answers(serves, LOCATION, 1)
    writer = Writer(serving.store)  # type: ignore[arg-type]
    writer.commit(kinds.Create(A, "a", FIELDS))  # Somebody else begins the location, and the collection.
    assert serves.location() == LOCATION
    assert all(isinstance(each, Committed) for each in answers(serves, LOCATION, 1, 2))
    writer.follower.refresh()
    writer.commit(kinds.Seal(A, (9,)))
    newest = follower.refresh().seqno
    [refused] = answers(serves, LOCATION, 3)
    assert isinstance(refused, UpdateNotBeyondUpper)
    assert follower.refresh().seqno == newest, "what is refused is not a record"
    assert serves.counts() == {"requests": 2, "operations": 3}
    with pytest.raises(ValueError, match=f"and the request is for {OTHER}"):
        answers(serves, OTHER, 4)


def test_a_request_that_is_played_again_is_refused_as_long_as_its_client_is_known(
    serving: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "SUBMITTERS_MAX", 2)
    serving.committer.submit([kinds.Create(A, "a", FIELDS)], {A: "a"}).result()
    follower = serving.committer.groups._follower
    serves = CommitsForOthers(serving.committer, follower)
    location = serves.location() or ""
    assert None not in answers(serves, location, 3, 5)
    for again in ((3,), (5,), (5, 6), (4,)):
        with pytest.raises(ValueError, match="its operations were requested before"):
            answers(serves, location, *again)
    assert None not in answers(serves, location, 7, 8)
    for other in "89":
        assert None not in answers(serves, location, 1, who=other * 32)
    answers(serves, location, 1)  # It has been forgotten: what it asks for is looked up in the log.
