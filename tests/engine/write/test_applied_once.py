"""A commit is applied once: what its client then knows is what the stored record says to everybody else.

Random operations, many of them invalid, go through the committer one by one. Each must get the answer of a draft,
which applies its steps in the order that they have, whatever the record leaves out or puts elsewhere.
"""

import random
from collections import Counter
from concurrent.futures import Future
from typing import Any

import pytest

import persist
from persist.blob.errors import PersistError
from persist.blob.protocol import MemoryBlob
from persist.codecs.updates.small import convert_small_updates
from persist.core.log import kinds
from persist.core.log.fields import TokenMark, Words
from persist.core.log.records import read_record
from persist.core.settings import Tuning
from persist.core.state_rules.collection_rules import ExpectErasures, ExpectNothingBeyondUpper, ExpectParts, ExpectUpper
from persist.core.state_rules.draft import Draft
from persist.core.state_rules.state import State, apply_record
from persist.engine.collection.keyed_events import convert_events
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.write.commit_future import CommitFuture, UnobservedErrors
from persist.engine.write.operations import Asked, AtCommit, Operation, Step, Write, assign_times
from persist.errors import CollectionNotFound, InvalidUsage, UpdatesBeyondUpper

QUIET = persist.Settings(background=False, tuning=Tuning(hold_linger_s=0))
ROUNDS = 120
ABSENT, LEASES = "f" * 32, ["1" * 32, "2" * 32]
NAMES = ["plain", "late", "keyed"]


def small_write(handle: CollectionHandle, time: int, *, at_commit: bool = False) -> Write:
    updates = convert_small_updates([((time, time), 0 if at_commit else time, 1)], handle.schema)
    assert updates is not None
    return Write(handle.id, handle.schema, 0 if at_commit else time, 10, updates, at_commit=at_commit)


def some_step(r: random.Random, handle: CollectionHandle) -> list[Step]:
    """Return a step, or two that belong together; it is about as often refused as not."""
    contents, id_ = handle.get_known_state(), handle.id
    near = max(0, contents.upper + r.choice([-1, 0, 0, 1, 2]))
    past = max(0, contents.upper - r.choice([0, 1, 1, 3]))
    hold, held = r.choice("hij"), contents.holds
    expected = held[hold].time if hold in held and r.random() < 0.8 else r.choice([None, 1])
    match r.randrange(18):
        case 0 | 1 | 2 if contents.keyed is None:
            return [small_write(handle, near)]
        case 0 | 1 | 2:
            events = convert_events(handle, [(near, near)], handle.stamp(near, None))
            return [handle.make_pend_step(events)]
        case 3 if contents.keyed is None:
            return [small_write(handle, 1, at_commit=True), AtCommit(id_)]
        case 3 | 4 | 5:
            return [kinds.Seal(id_, (near,))]
        case 6:
            return [kinds.AllowCompaction(id_, (r.choice([past, max(0, contents.since - 1)]),))]
        case 7:
            return [kinds.SetHold(id_, hold, past, expected=expected)]
        case 8:
            return [kinds.ReleaseHold(id_, hold, expected)]
        case 9:
            lease = r.choice(LEASES)
            return [
                kinds.GrantLease(lease, "holder", 10, renews=r.random() < 0.3),
                kinds.SetHold(id_, lease, past, lease),
            ]
        case 10:
            return [kinds.EndLease(r.choice(LEASES))]
        case 11:
            token, digest = r.choice("tuv"), r.choice(["0" * 16, "1" * 16])
            return [kinds.Tokens(id_, (TokenMark(token, near, digest),)), Asked(id_, 1)]
        case 12:
            return [kinds.Batch(id_, r.choice("pq"), r.randrange(3), "run")]
        case 13:
            return [r.choice([ExpectUpper, ExpectNothingBeyondUpper])(id_, (max(0, near - r.randrange(2)),))]
        case 14:
            return [ExpectErasures(id_, r.choice([0, 0, 1])), ExpectParts(id_, contents.next_number)]
        case 15:
            tag = r.choice([kinds.SetTag(id_, hold, past, contents.tags.get(hold)), kinds.DropTag(id_, hold, past)])
            return [tag, kinds.Note(id_, "why", {})]
        case 16:
            return [kinds.Rename(id_, r.choice(NAMES)), kinds.SetRetention(id_, r.choice([None, 2, 3]))]
        case _:
            return [r.choice([kinds.Seal(ABSENT, (5,)), kinds.Describe(id_, Words("text"))])]


def some_steps(r: random.Random, handles: list[CollectionHandle]) -> list[Step]:
    chosen = [handles[0]] if r.random() < 0.5 else r.sample(handles, 2)
    steps = [step for _ in range(r.choice([1, 1, 2, 3, 4])) for step in some_step(r, r.choice(chosen))]
    if r.random() < 0.2:
        r.shuffle(steps)
    return steps


def operation_of(steps: list[Step]) -> Operation:
    return Operation.of(steps, {}, CommitFuture(UnobservedErrors("memory://x"), lambda: None), None)


def drafted(state: State, operation: Operation) -> type[BaseException] | str:
    """Return what a draft says of an operation, as `committed` does."""
    uppers = {id_: entry.contents.upper for id_, entry in state.entries.items() if entry.contents is not None}
    times = assign_times([operation], uppers.__getitem__, 0)
    try:
        Draft(state).extend(operation.plan(times))
    except PersistError as error:
        return _answer(error)
    return "committed"


def committed(future: "Future[int]") -> type[BaseException] | str:
    """Return the error that an operation got, without what the committer alone adds to it."""
    error = future.exception()
    return "committed" if error is None else _answer(error)


def _answer(error: BaseException) -> type[BaseException] | str:
    is_told_more = isinstance(error, CollectionNotFound | UpdatesBeyondUpper)
    return type(error) if is_told_more or not isinstance(error, PersistError) else f"{type(error).__name__}: {error}"


class Replay:
    """The state as the stored records give it."""

    def __init__(self, blob: MemoryBlob) -> None:
        self._blob = blob
        self.state = State()

    def read_on(self) -> State:
        while (record := read_record(self._blob, self.state.seqno + 1)) is not None:
            self.state = apply_record(self.state, record)
        return self.state


@pytest.mark.parametrize("seed", range(4))
def test_random_operations_get_the_answer_of_a_draft_and_make_the_state_of_their_records(
    blob: MemoryBlob, seed: int
) -> None:
    r, counts, replay = random.Random(seed), Counter[str](), Replay(blob)
    with persist.open(blob, settings=QUIET) as client, persist.open(blob, settings=QUIET) as other:
        client.create_or_load("plain", key={"k": int}, value={"v": int})
        client.create_or_load("late", key={"k": int}, value={"v": int})
        client.create_or_load("keyed", key={"k": int}, value={"v": int}, keyed=persist.Keyed(resolve="background"))
        handles: list[CollectionHandle] = [client[name].handle for name in NAMES]
        follower = client.engine.follower
        for round_ in range(ROUNDS):
            if round_ % 5 == 4:  # The next commit of the client loses the race for its seqno.
                other.engine.submit("describe", [kinds.Describe(handles[0].id, Words(f"{round_}"))], {}).result()
            steps = some_steps(r, handles)
            operation = operation_of(steps)
            answer = drafted(replay.read_on(), operation)
            assert committed(client.engine.submit("write", steps, {})) == answer, steps
            assert follower.refresh() == replay.read_on()
            in_order = "in order" if operation.is_in_order else "out of order"
            counts[f"{in_order}, {'committed' if answer == 'committed' else 'refused'}"] += 1
    assert all(
        counts[f"{how}, {what}"] > 4 for how in ("in order", "out of order") for what in ("committed", "refused")
    )


def test_operations_that_are_committed_together_make_the_state_of_their_record(blob: MemoryBlob) -> None:
    r, replay = random.Random(7), Replay(blob)
    with persist.open(blob, settings=QUIET) as client:
        for name in NAMES:
            client.create_or_load(name, key={"k": int}, value={"v": int})
        handles: list[CollectionHandle] = [client[name].handle for name in NAMES]
        for _ in range(30):
            futures: list[Any] = [client.engine.submit("write", some_steps(r, handles), {}) for _ in range(5)]
            for future in futures:
                future.exception()
            assert client.engine.follower.refresh() == replay.read_on()


@pytest.mark.parametrize(
    ("places", "is_in_order"),
    [
        ("upper write seal", True),
        ("write seal upper", False),
        ("seal write", False),
        ("seal seal", False),
        ("hold seal", True),
        ("seal hold", False),
        ("allow", False),
        ("grant hold", True),
        ("hold grant", False),
        ("seal token", True),
    ],
)
def test_steps_are_in_order_if_a_record_says_them_as_they_are(
    client: persist.Client, places: str, is_in_order: bool
) -> None:
    handle = client.create_or_load("c", key={"k": int}, value={"v": int}).handle
    steps: dict[str, Step] = {
        "upper": ExpectUpper(handle.id, (0,)),
        "write": small_write(handle, 5),
        "seal": kinds.Seal(handle.id, (9,)),
        "hold": kinds.SetHold(handle.id, "h", 3),
        "allow": kinds.AllowCompaction(handle.id, (3,)),
        "grant": kinds.GrantLease(LEASES[0], "holder", 10),
        "token": kinds.Tokens(handle.id, (TokenMark("t", 5),)),
    }
    assert operation_of([steps[place] for place in places.split()]).is_in_order is is_in_order


def test_a_refused_write_names_what_is_wrong_with_it(client: persist.Client) -> None:
    c = client.create_or_load("c", key={"k": int}, value={"v": int})
    c.write([((1, 1), 0, 1)], seal=5).result()
    with pytest.raises(InvalidUsage, match="cannot go back from 5 to 3"):
        c.write([((1, 1), 7, 1)], seal=3).result()
    assert c.unsealed is None
