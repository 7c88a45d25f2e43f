"""Operations that another client was asked for: the log says what became of them, and nothing is done twice."""

from collections.abc import Iterator

import pytest

from persist.blob.errors import Unavailable
from persist.core.log import kinds
from persist.core.log.framing import FORMAT
from persist.core.log.keys import make_record_key
from persist.core.log.records import Submitted, encode_record, read_record
from persist.engine.write.commit_future import CommitFuture
from persist.engine.write.operations import AtCommit, Step, Submission
from persist.errors import UpdateNotBeyondUpper
from tests.engine.follow.test_submissions import record
from tests.engine.write.test_left_open import Owner
from tests.engine.write.test_operations import FIELDS, A, write
from tests.engine.write.test_relay import WHO


@pytest.fixture
def owner() -> Iterator[Owner]:
    """A client with a collection, in whose log somebody else then seals it for number 3 of what it asks."""
    owner = Owner()
    owner.watched.note_close()
    owner.committer.submit([kinds.Create(A, "a", FIELDS)], {A: "a"}).result()
    first = read_record(owner.store, 0)
    assert first is not None
    marks = Submitted(WHO, 3, 3)
    sealed = record(1, marks, location=first.location, previous=first.commit, mutations=(kinds.Seal(A, (7,)),))
    assert owner.store.create(make_record_key(1), encode_record(sealed))
    yield owner
    owner.committer.close()
    owner.committer.unobserved.take()


def asked(owner: Owner, number: int, *steps: Step, after: int = 0) -> CommitFuture:
    return owner.committer.submit([*steps], {A: "a"}, Submission(WHO, number, after, is_own=True))


def test_what_the_log_holds_is_done_with_the_time_that_its_record_gave(owner: Owner) -> None:
    future = asked(owner, 3, write(at_commit=True, time=0), AtCommit(A))
    assert (future.result(), dict(future.times)) == (1, {A: 6})
    named = asked(owner, 3, write(time=5))
    assert (named.result(), dict(named.times)) == (1, {})
    assert owner.committer.groups.counts()["records"] == 1


def test_what_comes_before_it_was_refused_or_had_nothing_to_do(owner: Owner) -> None:
    assert asked(owner, 2, kinds.Seal(A, (7,))).result() == 1
    with pytest.raises(Unavailable, match="it was refused while others that came after it were not"):
        asked(owner, 1, write(time=9)).result()
    with pytest.raises(UpdateNotBeyondUpper):
        asked(owner, 2, write(time=3)).result()
    with pytest.raises(Unavailable):
        asked(owner, 1, kinds.Seal(A, (8,))).result()
    assert owner.committer.groups.counts()["records"] == 1


def test_what_comes_after_it_is_committed_here_and_never_in_another_way(owner: Owner) -> None:
    assert asked(owner, 4, write(time=9), kinds.Seal(A, (10,))).result() == 2
    made = read_record(owner.store, 2)
    assert made is not None
    assert made.submitted == (Submitted(WHO, 4, 4),)
    with pytest.raises(UpdateNotBeyondUpper):
        asked(owner, 6, write(time=3)).result()
    said = read_record(owner.store, 3)
    assert said is not None
    assert (said.submitted, said.mutations) == ((Submitted(WHO, 7, 6),), ())


def test_a_location_keeps_the_number_of_its_format(owner: Owner) -> None:
    assert [each.format for n in (0, 1) if (each := read_record(owner.store, n))] == [FORMAT, FORMAT]
    older = Owner()
    older.watched.note_close()
    begun = record(0, format=FORMAT - 1, mutations=(kinds.Create(A, "a", FIELDS),))
    assert older.store.create(make_record_key(0), encode_record(begun))
    older.committer.submit([kinds.Seal(A, (7,))], {A: "a"}).result()
    made = read_record(older.store, 1)
    assert made is not None
    assert (made.format, made.previous) == (FORMAT - 1, begun.commit)
    older.committer.close()
