"""Programs that tell times apart: what came when outlives restarts, without replaying the history of their sources."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.dataflow import Logic, Program, Stream, col, open_together
from persist.errors import OutputConflict
from tests.compute.dataflow.ledger import Row

AT = {"id": pa.int64(), "at": pa.int64()}
Made = Callable[[Stream], Stream]


def program(make: Made, name: str = "late", output: str = "out") -> Program:
    made = Program(name)
    stream = make(made.source("moves", schema=AT))
    stream.persist(output, key=stream.columns)
    return made


class Moves:
    """Random events that come, and that are taken back later."""

    def __init__(self, client: persist.Client, seed: int = 1) -> None:
        self.moves = client.create_or_load("moves", key={"id": pa.int64()}, value={"at": pa.int64()})
        self.chance = random.Random(seed)
        self.time = 0
        self.there: list[Any] = []
        self.every: list[Any] = []

    def step(self) -> None:
        updates = []
        for number in range(3):
            record = (3 * self.time + number, self.time + self.chance.randrange(0, 6))
            self.there.append(record)
            updates.append((record, self.time, 1))
        if self.time % 2:
            gone = self.there.pop(self.chance.randrange(len(self.there) - 3))
            updates.append((gone, self.time, -1))
        self.every += updates
        self.moves.write(updates)
        self.time += 1
        self.moves.seal(self.time).result()


MAKES: dict[str, tuple[Made, Callable[[Any, int, int], tuple[Row, int] | None]]] = {
    # What each makes of an update of a record at a time: the record that it gives, and when.
    "delay by the time": (lambda s: s.delay(col("_time") + 3), lambda r, t, d: (r, t + 3)),
    "delay to a column": (lambda s: s.delay(col("at").max_with(col("_time"))), lambda r, t, d: (r, max(t, r[1]))),
    "the time as a column": (lambda s: s.map(id=col("id"), came=col("_time")), lambda r, t, d: ((r[0], t), t)),
    "early ones only": (lambda s: s.filter(col("_time") < 4), lambda r, t, d: (r, t) if t < 4 else None),
    "behind a filter": (
        lambda s: s.filter(col("id") % 2 == 0).linear(Logic().delay(col("_time") + 2).project("at")),
        lambda r, t, d: ((r[1],), t + 2) if r[0] % 2 == 0 else None,
    ),
    "before a reduction": (lambda s: s.delay(col("_time") + 2).group_by().count("n"), lambda r, t, d: ((), t + 2)),
}


def expected(moves: Moves, which: str, time: int) -> Counter[Row]:
    found = Counter[Row]()
    for record, t, diff in moves.every:
        made = MAKES[which][1](record, t, diff)
        if made is not None and made[1] <= time:
            found[made[0]] += diff
    found = Counter({row: n for row, n in found.items() if n})
    return Counter({(n,): 1 for n in found.values()}) if which == "before a reduction" else found


def contents_at(collection: persist.Collection, time: int) -> Counter[Row]:
    """Return the contents with multiplicities, which may be negative: what went is told from what came."""
    rows = collection.snapshot(time, form="diff").to_arrow().to_pylist()
    return Counter({tuple(row.values())[:-1]: row["_diff"] for row in rows})


def check(client: persist.Client, moves: Moves, which: str) -> None:
    out = client.load("out")
    assert out.upper == persist.Antichain(moves.time)
    for time in range(out.since.time or 0, moves.time):
        assert contents_at(out, time) == expected(moves, which, time), time


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("which", MAKES)
def test_a_program_that_tells_times_apart_goes_on_exactly_after_every_step(which: str, client: persist.Client) -> None:
    moves = Moves(client)
    for turn in range(12):
        moves.step()
        if turn % 3 == 2:
            moves.step()
        with program(MAKES[which][0]).open(client, optimise=bool(turn % 2)) as running:
            running.step(times=1)
            if turn % 2:
                running.step()
                moves.step()
                running.step()
        # Nothing of its history is needed any more, but what is there.
        moves.moves.allow_compaction(moves.time - 1).result()
        assert [hold.time for hold in moves.moves.holds() if hold.name] == [(client.load("out").upper.time or 0) - 1]
    with program(MAKES[which][0]).open(client) as running:
        running.step()
    check(client, moves, which)


def test_what_is_kept_is_as_large_as_what_it_amounts_to(client: persist.Client) -> None:
    """Records that come and go leave nothing behind."""
    moves = client.create_or_load("moves", key={"id": pa.int64()}, value={"at": pa.int64()})
    with program(MAKES["delay by the time"][0]).open(client) as running:
        for time in range(30):
            gone = [((time - 1, 0), time, -1)] if time else []
            moves.write([((time, 0), time, 1), *gone], seal=time + 1).result()
            running.step()
    [name] = client.collections(".")
    kept = client.load(name)
    # The last one that has come, and for three times one that comes and one that goes.
    assert kept.snapshot(form="diff").to_arrow().num_rows <= 7
    assert kept.since == persist.Antichain(29)


def test_hidden_collections_are_not_listed_and_go_with_the_program(client: persist.Client) -> None:
    moves = Moves(client)
    moves.step()
    late, other = (program(MAKES["delay by the time"][0], *names) for names in (("late", "out"), ("late 2", "other")))
    for each in (late, other):
        with each.open(client) as running:
            running.step()
    assert client.collections() == ["moves", "other", "out"]
    assert client.collections("m") == ["moves"]
    assert len(client.collections(".")) == len(client.collections(".dataflow ")) == 2
    late.drop(client)
    assert len(client.collections(".")) == 1
    other.drop(client)
    assert client.collections(".") == []
    other.drop(client)
    assert client.fsck().is_clean


def test_programs_go_on_together_and_apart(client: persist.Client) -> None:
    moves = Moves(client)
    make = MAKES["delay by the time"][0]
    for turn in range(6):
        moves.step()
        one, other = program(make), program(lambda s: s.filter(col("_time") < 9), "other", "two")
        if turn % 2:
            with open_together([one, other], client) as running:
                running.step()
        else:
            for each in (one, other):
                with each.open(client) as running:
                    running.step()
    check(client, moves, "delay by the time")
    assert len(client.collections(".")) == 2


def test_a_changed_program_keeps_what_it_then_needs(client: persist.Client) -> None:
    """What is there already came, for the changed program, at the time at which it begins."""
    moves = Moves(client)
    for _ in range(3):
        moves.step()
    with program(MAKES["delay by the time"][0]).open(client) as running:
        running.step()
    begin = moves.time - 1
    before = moves.moves.snapshot(begin).to_arrow().to_pylist()

    def changed(source: Stream) -> Stream:
        return source.filter(col("id") >= 0).project("id", "at").delay(col("_time") + 5)

    moves.step()
    with program(changed).open(client, replace=True) as running:
        running.step()
    assert len(client.collections(".")) == 1
    for _ in range(9):
        moves.step()
        with program(changed).open(client) as running:
            running.step()
    out = client.load("out")
    want = Counter((row["id"], row["at"]) for row in before)
    for record, time, diff in moves.every:
        if time > begin and time + 5 < moves.time:
            want[record] += diff
    assert contents_at(out, moves.time - 1) == +want


def test_a_hidden_collection_that_somebody_writes_is_an_error(client: persist.Client) -> None:
    moves = Moves(client)
    moves.step()
    with program(MAKES["delay by the time"][0]).open(client) as running:
        running.step()
        [name] = client.collections(".")
        client.load(name).write([((None, (1, 1)), moves.time, 1)]).result()
        moves.step()
        with pytest.raises(OutputConflict, match="another writer"):
            running.step()
