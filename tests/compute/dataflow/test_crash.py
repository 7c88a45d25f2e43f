"""Programs whose store fails at any call or leaves it in doubt, and that die; their requests may arrive afterwards."""

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import persist
from persist.blob.layers.unreliable import UnreliableBlob
from persist.blob.protocol import MemoryBlob
from persist.core.settings import Tuning
from persist.dataflow import Program, Running, Stream, col
from persist.errors import SourceLost
from tests.compute.dataflow import programs
from tests.compute.dataflow.ledger import Bank, check, ledger, moves_of, rows_at
from tests.compute.dataflow.oracle import at, updates_of
from tests.compute.dataflow.programs import OPERATORS, build
from tests.proofs.simulator.world import ClientStore, Moments, Tap
from tests.support.clocks import ImpatientClock
from tests.support.stepped import WAIT_S, Stepped, wait_until
from tests.support.tiers import examples

ONCE = persist.Settings(background=False, tuning=Tuning(attempts_max=1))
IMPATIENT = persist.Settings(tuning=Tuning(attempts_max=1))
FAILURES = (persist.Unavailable, persist.Indeterminate)
DELAY = 2


def program() -> Program:
    """The ledger, and what came some time ago, which is kept in a hidden collection."""
    made = ledger()
    moves = made.source("moves", schema={"id": pa.int64()})
    moves.delay(col("_time") + DELAY).persist("late", key=["id"])
    return made


class Copy:
    """One process that runs the program, as far as its store lets it."""

    def __init__(self, tap: Tap, name: str, chance: random.Random) -> None:
        self.store = ClientStore(tap, name)
        # Only what writes fails by chance: a copy opens with so many reads that it would hardly ever begin.
        shaky = UnreliableBlob(
            self.store,
            chance,
            unavailable=0.05,
            not_happened_doubtful=0.05,
            happened_but_failed=0.1,
            operations=("create", "set"),
        )
        self.client: persist.Client | None = None
        self.running: Running | None = None
        with suppress(*FAILURES):
            self.client = persist.open(shaky, settings=ONCE, clock=ImpatientClock())
            self.running = program().open(self.client)

    def step(self, chance: random.Random) -> bool:
        """Make a step; return whether it was whole."""
        if self.running is None:
            return False
        try:
            self.running.step(times=chance.choice([1, 2, None]))
        except FAILURES:
            return False
        return True

    def end(self) -> None:
        self.store.cut()
        for each in (self.running, self.client):
            with suppress(*FAILURES, BaseExceptionGroup):
                if each is not None:
                    each.close()


@pytest.mark.thorough(except_every=6)
@pytest.mark.parametrize("seed", range(6))
def test_copies_that_die_and_are_in_doubt_write_every_update_once(seed: int) -> None:
    chance = random.Random(seed)
    tap = Tap(MemoryBlob(), Moments(), lambda: 1e9)
    happened = Counter[str]()
    with persist.open(ClientStore(tap, "writer"), settings=ONCE, clock=ImpatientClock()) as writer:
        bank = Bank(writer, seed)
        bank.transfer()
        with program().open(writer) as running:
            running.step()
        copies, dead = [Copy(tap, f"copy {at}", chance) for at in range(2)], list[Copy]()
        for turn in range(40):
            at = chance.randrange(2)
            match chance.choice(["step", "step", "step", "transfer", "transfer", "die", "dead hand"]):
                case "step":
                    happened["steps" if copies[at].step(chance) else "failures"] += 1
                case "transfer":
                    bank.transfer()
                case "die":
                    how = chance.choice(["before", "after", "limbo"])
                    copies[at].store.cut_at(chance.randrange(3), how)
                    copies[at].step(chance)
                    copies[at].end()
                    dead.append(copies[at])
                    copies[at] = Copy(tap, f"copy {turn}", chance)
                    happened["deaths"] += 1
                case "dead hand" if dead:
                    happened["late requests"] += dead.pop(0).store.deliver()
            if copies[at].running is None:
                copies[at].end()
                copies[at] = Copy(tap, f"again {turn}", chance)
            assert [row["all"] for row in writer.load("sum").snapshot().to_arrow().to_pylist()] == [0]
        for each in (*copies, *dead):
            each.end()
            each.store.deliver()
        with program().open(writer) as running:
            running.run(until=bank.time - 1)
        check(writer)
        late = writer.load("late")
        assert late.upper == persist.Antichain(bank.time)
        for time in range(DELAY, bank.time):
            came = bank.moves.snapshot(time - DELAY).to_arrow()["id"].to_pylist()
            assert rows_at(late, time) == Counter((each,) for each in came), time
    assert happened["steps"] > 5
    assert happened["deaths"] > 0


class OneFailure:
    """Passes calls on to a store, and fails one of them, once it is armed."""

    def __init__(self, inner: MemoryBlob) -> None:
        self.left: int | None = None
        self._inner = inner
        self._unavailable = UnreliableBlob(inner)
        self._unavailable.go_down()

    def __getattr__(self, name: str) -> Any:
        if name in ("get", "get_at_most", "set", "create", "list", "delete") and self.left is not None:
            self.left -= 1
            if self.left == -1:
                return getattr(self._unavailable, name)
        return getattr(self._inner, name)


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize("first", range(2))
@pytest.mark.parametrize("times_before", [0, 2], ids=["begins", "goes on"])
def test_whichever_call_of_the_store_fails_once_nothing_is_lost_or_doubled(times_before: int, first: int) -> None:
    failing, failed, was_reached = first, 0, True
    while was_reached:
        inner = MemoryBlob()
        with persist.open(inner) as writer:
            bank = Bank(writer)
            bank.transfer()
            for _ in range(times_before):
                with ledger().open(writer) as running:
                    running.run(until=bank.time - 1)
                bank.transfer()
            flaky = OneFailure(inner)
            with persist.open(flaky, settings=IMPATIENT) as client, ledger().open(client) as running:
                flaky.left = failing  # So many calls more work before the one that fails.
                for _ in range(2):
                    while True:
                        try:
                            running.run(until=bank.time - 1)
                            break
                        except FAILURES:
                            failed += 1
                    bank.transfer()
                was_reached, flaky.left = flaky.left < 0, None
            check(writer)
        failing += 2
    assert failed > 2


def test_run_forever_repeats_a_step_whose_commit_is_in_doubt() -> None:
    """The record is created, and whether the one before it is still there cannot be found out."""
    inner = MemoryBlob()
    with persist.open(inner) as writer:
        bank = Bank(writer)
        bank.transfer()
        store = Stepped(inner)
        settings = persist.Settings(tuning=Tuning(attempts_max=1))

        def fail() -> None:
            raise persist.Unavailable("no answer")

        with persist.open(store, settings=settings) as client, ledger().open(client) as running:
            store.after("create", "log/", lambda: store.before("get", "log/", fail))
            worker = threading.Thread(target=running.run_forever, kwargs={"backoff_s": 0.01})
            worker.start()
            wait_until(lambda: store.is_done or not worker.is_alive())
            bank.transfer()
            writer.load("totals").snapshot(bank.time - 1, timeout_s=WAIT_S).count()
            running.stop()
            worker.join(WAIT_S)
            assert not worker.is_alive()
        check(writer)


def test_run_forever_goes_on_when_the_store_comes_back_and_ends_when_it_is_stopped() -> None:
    inner = MemoryBlob()
    with persist.open(inner) as writer:
        bank = Bank(writer)
        bank.transfer()
        shaky = UnreliableBlob(inner)
        with persist.open(shaky, settings=IMPATIENT) as client, ledger().open(client) as running:
            worker = threading.Thread(target=running.run_forever, kwargs={"backoff_s": 0.01})
            worker.start()
            shaky.go_down()
            bank.transfer()
            shaky.clear_faults()
            bank.transfer()
            # Waits until the program has come that far.
            writer.load("totals").snapshot(bank.time - 1, timeout_s=120).count()
            running.stop()
            worker.join(WAIT_S)
            assert not worker.is_alive()
        check(writer)


HOLD = "dataflow ledger"


def commits(blob: MemoryBlob) -> list[list[dict[str, Any]]]:
    """Return the mutations of each record of the log."""
    records = [blob.get(key) for key in sorted(each.key for each in blob.list("log/"))]
    return [json.loads(record)["mutations"] for record in records if record is not None]


def held(bank: Bank) -> list[int]:
    return [hold.time for hold in bank.moves.holds() if hold.name == HOLD]


def test_every_commit_that_seals_outputs_moves_the_hold_with_them(blob: MemoryBlob) -> None:
    with persist.open(blob) as client:
        bank = Bank(client)
        bank.transfer()
        outputs: set[str] = set()
        with ledger().open(client) as running:
            outputs = {client.load("totals").id, client.load("sum").id}
            for _ in range(5):
                running.step()
                bank.transfer()
                assert held(bank) == [bank.time - 2]
    seals = 0
    for mutations in commits(blob):
        uppers = [each["upper"][0] for each in mutations if each["kind"] == "seal" and each["collection"] in outputs]
        if uppers and uppers != [1, 1]:  # The hold was made where the first commit begins.
            seals += 1
            moved = [each["time"] for each in mutations if each["kind"] == "hold" and each["hold"] == HOLD]
            assert moved == [uppers[0] - 1]
    assert seals == 4


def test_a_collection_that_is_read_twice_has_one_hold_that_moves(client: persist.Client) -> None:
    bank = Bank(client)
    bank.transfer()
    program = Program("ledger")
    accounts = program.source("moves", schema={"id": pa.int64(), "account": pa.string()})
    amounts = program.source("moves", schema={"id": pa.int64(), "amount": pa.int64()})
    accounts.join(amounts, "id").persist("copy", key=["id"])
    with program.open(client) as running:
        for _ in range(3):
            running.step()
            assert held(bank) == [bank.time - 1]
            bank.transfer()


def test_a_copy_that_goes_on_after_a_drop_makes_no_hold_again(client: persist.Client) -> None:
    bank = Bank(client)
    bank.transfer()
    with ledger().open(client) as running:
        running.step()
        ledger().drop(client)
        for _ in range(2):
            bank.transfer()
            running.step()
            assert held(bank) == []
    assert client.load("totals").upper == persist.Antichain(bank.time)


def test_a_hold_that_somebody_moved_is_left_where_it_is(client: persist.Client) -> None:
    bank = Bank(client)
    bank.transfer()
    with ledger().open(client) as running:
        running.step()
        for _ in range(3):
            bank.transfer()
        bank.moves.hold(name=HOLD).advance(2)
        running.step(times=1)
        assert (held(bank), client.load("totals").upper) == ([2], persist.Antichain(2))
        running.step()
        assert held(bank) == [3]
    check(client)


def test_a_source_that_is_destroyed_during_a_step_is_named_and_nothing_is_written(client: persist.Client) -> None:
    bank = Bank(client)
    bank.transfer()
    program = Program("copy")
    moves = program.source("moves", schema={"id": pa.int64()})
    moves.inspect(lambda table: bank.time == 2 and moves_of(client).drop().result()).persist("copy", key=["id"])
    with program.open(client) as running:
        running.step()
        bank.transfer()
        with pytest.raises(SourceLost, match=r"'moves'.*not there"):
            running.step()
    assert client.load("copy").upper == persist.Antichain(1)


TIMES = 6
RECORDS = st.tuples(st.one_of(st.none(), st.integers(0, 3)), st.one_of(st.none(), st.integers(0, 3)))
UPDATES = st.lists(st.tuples(RECORDS, st.integers(0, TIMES - 1), st.sampled_from([1, 1, 1, -1])), max_size=8)
DELAYED = [operator.__name__ for _, operator in OPERATORS].index("delayed")  # The one that tells times apart.
CHOICE = st.tuples(
    st.one_of(st.integers(0, len(OPERATORS) - 1), st.just(DELAYED)), st.lists(st.integers(0, 5), min_size=3, max_size=3)
)


class OfSources(Program):
    """A program whose inputs are collections."""

    def input(self, name: str, *, key: Any, value: Any = None) -> Stream:
        return self.source(name, schema={**key, **value})


def counted(records: Counter[Any]) -> Counter[Any]:
    found = Counter[Any]()
    for record, diff in records.items():
        found[record[0]] += diff
    return Counter((key, n) for key, n in found.items() if n)


OUTPUTS: dict[str, Callable[[Counter[Any]], Counter[Any]]] = {
    "out": lambda records: records,
    "counts": counted,
    "histogram": lambda records: counted(Counter((n, key) for key, n in counted(records))),
}


def persist_all(stream: Stream, outputs: Sequence[str]) -> None:
    """Persist a stream, what its records are counted to by key, and how often there are such counts; or some of it."""
    counts = stream.group_by("k").count("n")
    every = {"out": stream, "counts": counts, "histogram": counts.group_by("n").count("m")}
    for name in outputs:
        every[name].persist(name, key=every[name].columns)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), choices=st.lists(CHOICE, min_size=1, max_size=3))
def test_programs_that_are_started_again_go_on_exactly(
    monkeypatch: pytest.MonkeyPatch, data: Any, choices: list[tuple[int, list[int]]]
) -> None:
    monkeypatch.setattr(programs, "Program", OfSources)
    outputs = data.draw(st.lists(st.sampled_from(list(OUTPUTS)), min_size=1, unique=True), label="outputs")
    inputs = [data.draw(UPDATES, label=f"in{number}") for number in range(2)]
    kinds = {"k": pa.int64(), "v": pa.int64()}
    with persist.open(f"memory://{uuid4()}", settings=persist.Settings(background=False)) as client:
        sources = [client.create_or_load(f"in{number}", key=kinds) for number in range(2)]
        done = 0
        while done < TIMES:
            until = data.draw(st.integers(done + 1, TIMES)) if done else 1
            for source, updates in zip(sources, inputs, strict=True):
                source.write([((record, None), time, diff) for record, time, diff in updates if done <= time < until])
                source.seal(until).result()
            done = until
            program, streams = build(1, 2, choices)
            persist_all(streams[-1].stream, outputs)
            with program.open(client, optimise=data.draw(st.booleans())) as running:
                running.step(times=data.draw(st.sampled_from([1, None])))
            if data.draw(st.booleans()):
                for source in sources:
                    source.allow_compaction(done - 1).result()
                    source.compact()
        program, streams = build(1, 2, choices)
        persist_all(streams[-1].stream, outputs)
        with program.open(client) as running:
            running.run()
        expected = streams[-1].of([updates_of((r, (t,), d) for r, t, d in each) for each in inputs])
        for name in outputs:
            out = client.load(name)
            assert out.upper == persist.Antichain(TIMES)
            for time in range(TIMES):
                rows = out.snapshot(time, form="diff").to_arrow().to_pylist()
                found = Counter({tuple(r.values())[:-1]: r["_diff"] for r in rows})
                assert found == OUTPUTS[name](Counter(at(expected, (time,)))), (name, time)
