"""Programs over persisted collections: definite outputs, exactly once, through restarts, races and changes."""

import threading
from collections import Counter
from functools import partial

import pyarrow as pa
import pytest

import persist
from persist.blob.layers.metered import MeteredBlob
from persist.blob.protocol import MemoryBlob
from persist.compute.dataflow.ports.sources import SourceReader, poll_all
from persist.dataflow import Program, col, lit, open_together
from persist.errors import OutputConflict, SourceLost
from tests.compute.dataflow.ledger import Bank, Row, check, ledger, moves_of, rows_at
from tests.support.stepped import WAIT_S


def test_a_program_begins_at_the_last_sealed_time_and_nobody_reads_before_it(client: persist.Client) -> None:
    bank = Bank(client)
    for _ in range(5):
        bank.transfer()
    with ledger().open(client) as running:
        running.step()
    assert client.load("totals").since == persist.Antichain(4)
    check(client, since=4)


def test_a_program_reads_its_sources_as_of_the_time_that_it_asks_for(client: persist.Client) -> None:
    bank = Bank(client)
    for _ in range(5):
        bank.transfer()
    program = Program("early")
    schema = {"account": pa.string(), "amount": pa.int64()}
    program.source("moves", schema=schema, as_of=2).group_by("account").count().persist("early", key=["account"])
    with program.open(client) as running:
        running.step()
    early = client.load("early")
    assert early.since == persist.Antichain(2)
    for time in range(2, 5):
        want = Counter(row["account"] for row in bank.moves.snapshot(time).to_arrow().to_pylist())
        assert rows_at(early, time) == Counter(want.items())


def test_an_output_that_somebody_else_writes_is_an_error_that_names_it(client: persist.Client) -> None:
    bank = Bank(client)
    bank.transfer()
    with ledger().open(client) as running:
        running.step()
        totals = client.load("totals")
        totals.write([(("z", (1, 1)), 1, 1)]).result()
        bank.transfer()
        with pytest.raises(OutputConflict, match=r"totals.*another writer"):
            running.step()
    assert totals.upper == persist.Antichain(1)


def test_an_output_that_somebody_else_seals_with_other_updates_is_an_error(client: persist.Client) -> None:
    bank = Bank(client)
    bank.transfer()
    with ledger().open(client) as running:
        running.step()
        bank.transfer()
        totals = client.load("totals")
        totals.write([(("z", (1, 1)), 1, 1)], seal=2).result()
        with pytest.raises(OutputConflict, match="differ from the results of this program"):
            running.step()


def test_an_output_sealed_further_than_its_sources_is_refused_when_the_program_is_opened(
    client: persist.Client,
) -> None:
    bank = Bank(client)
    bank.transfer()
    with ledger().open(client) as running:
        running.step()
    client.load("totals").seal(9).result()
    client.load("sum").seal(9).result()
    with pytest.raises(OutputConflict, match="'totals': it is sealed to 9"):
        ledger().open(client)


def test_holds_keep_what_a_program_needs_and_end_with_drop(client: persist.Client) -> None:
    bank = Bank(client)
    bank.transfer()
    with ledger().open(client) as running:
        running.step()
        bank.transfer()
        bank.transfer()
        bank.moves.allow_compaction(2).result()
        assert bank.moves.since == persist.Antichain(0)
        running.step()
    # When it was closed, its hold followed the outputs.
    assert [hold.time for hold in bank.moves.holds() if hold.name == "dataflow ledger"] == [2]
    bank.transfer()
    with ledger().open(client) as running:
        running.step()
    ledger().drop(client)
    assert [hold.name for hold in bank.moves.holds() if hold.name] == []
    check(client, since=2)


def test_a_source_that_was_compacted_too_far_says_what_to_do(client: persist.Client) -> None:
    bank = Bank(client)
    bank.transfer()
    with ledger().open(client) as running:
        running.step()
    for _ in range(3):
        bank.transfer()
    ledger().drop(client)
    bank.moves.allow_compaction(3).result()
    with pytest.raises(SourceLost, match=r"'moves'.*compacted.*drop the program"):
        ledger().open(client)


def test_an_output_that_is_new_to_a_program_begins_where_the_others_are(client: persist.Client) -> None:
    bank = Bank(client)
    for _ in range(3):
        bank.transfer()
    with ledger().open(client) as running:
        running.step()
    more = ledger()
    schema = {"account": pa.string()}
    more.source("moves", schema=schema).group_by("account").count().persist("counts", key=["account"])
    bank.transfer()
    with more.open(client) as running:
        running.step()
    check(client, since=2)
    counts = client.load("counts")
    assert counts.since == persist.Antichain(2)
    for time in (2, 3):
        want = Counter(row["account"] for row in bank.moves.snapshot(time).to_arrow().to_pylist())
        assert rows_at(counts, time) == Counter(want.items())


def test_a_copy_that_is_overtaken_while_it_opens_begins_further_on(
    client: persist.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another copy seals the outputs and lets the source be compacted, just before this one holds it."""
    bank = Bank(client)
    bank.transfer()
    with ledger().open(client) as running:
        running.step()
    for _ in range(3):
        bank.transfer()
    start = SourceReader.start
    overtaken: list[int] = []

    def late(self: SourceReader, as_of: int) -> None:
        if not overtaken:
            overtaken.append(as_of)
            with ledger().open(client) as other:
                other.step()
            bank.moves.allow_compaction(3).result()
        start(self, as_of)

    monkeypatch.setattr(SourceReader, "start", late)
    with ledger().open(client) as running:
        bank.transfer()
        running.step()
    assert overtaken == [0]
    assert client.load("totals").upper == persist.Antichain(bank.time)


def test_a_program_that_waits_hears_of_each_of_its_sources(client: persist.Client) -> None:
    program = Program("both")
    collections = [client.create_or_load(name, key={"k": pa.int64()}, value=None) for name in ("one", "two")]
    streams = [program.source(each.name, schema={"k": pa.int64()}) for each in collections]
    (streams[0] + streams[1]).persist("both", key=["k"])
    for each in collections:
        each.seal(1).result()
    with program.open(client) as running:
        running.step()
        for time, each in enumerate(reversed(collections), 1):
            heard: list[bool] = []
            wait = partial(poll_all, running.sources, 600)
            waiting = threading.Thread(target=lambda: heard.append(wait()), daemon=True)  # noqa: B023
            waiting.start()
            each.write([((time, None), time, 1)], seal=3).result()
            waiting.join(WAIT_S)
            assert heard == [True]
        running.step()
    assert rows_at(client.load("both"), 2) == Counter([(1,), (2,)])


def test_a_step_looks_at_the_log_once_for_all_sources() -> None:
    blob = MeteredBlob(MemoryBlob())
    with persist.open(blob) as client:
        for name in "abcd":
            client.create_or_load(name, key={"k": pa.int64()}, value=None).seal(1).result()
        program = Program("many")
        streams = [program.source(name, schema={"k": pa.int64()}) for name in "abcd"]
        sum(streams[1:], streams[0]).persist("many", key=["k"])
        with program.open(client) as running:
            running.step()
            before = blob.get_counts()["get"].requests
            running.step()
            assert blob.get_counts()["get"].requests == before + 1


def test_a_source_that_is_not_there_is_named(client: persist.Client) -> None:
    with pytest.raises(SourceLost, match=r"'moves'.*not there"):
        ledger().open(client)


def test_a_source_of_other_columns_is_an_error(client: persist.Client) -> None:
    client.create_or_load("moves", key={"id": pa.int64()}, value={"account": pa.int64()})
    with pytest.raises(persist.errors.SchemaMismatch, match="'account' as string"):
        ledger().open(client)


def test_a_program_without_client_cannot_read_collections() -> None:
    with pytest.raises(persist.InvalidUsage, match=r"open it with program.open\(client\)"):
        ledger().open()


def test_columns_of_a_source_are_looked_up_with_a_client(client: persist.Client) -> None:
    moves_of(client)
    program = Program("p").using(client)
    assert program.source("moves").columns == ["id", "account", "amount"]


def test_a_program_that_reads_its_times_resumes_exactly(client: persist.Client) -> None:
    """It tells apart what came at different times, so its source is kept from where it began."""
    moves = client.create_or_load("moves", key={"id": pa.int64()})
    program = Program("late")
    late = program.source("moves", schema={"id": pa.int64()}).delay(col("_time") + 3)
    late.persist("late", key=["id"])
    time = 0
    for number in range(6):
        moves.write([((number, None), time, 1)])
        time += 1
        moves.seal(time).result()
        with program.open(client) as running:
            running.step()
    late_ = client.load("late")
    for each in range(time):
        assert rows_at(late_, each) == Counter((n,) for n in range(6) if n + 3 <= each)


def test_a_changed_program_corrects_its_outputs_in_one_commit(client: persist.Client) -> None:
    bank = Bank(client)
    for _ in range(3):
        bank.transfer()

    def program(least: int) -> Program:
        made = Program("count")
        source = made.source("moves", schema={"account": pa.string(), "amount": pa.int64()})
        source.filter(col("amount") > least).group_by("account").count().persist("count", key=["account"])
        return made

    def counts(least: int, time: int) -> Counter[Row]:
        rows = bank.moves.snapshot(time).to_arrow().to_pylist()
        found = Counter(row["account"] for row in rows if row["amount"] > least)
        return Counter(found.items())

    with program(0).open(client) as running:
        running.step()
    bank.transfer()
    with program(30).open(client, replace=True) as running:
        running.step()
    bank.transfer()
    with program(30).open(client) as running:
        running.step()
    count = client.load("count")
    assert rows_at(count, 2) == counts(0, 2)
    assert rows_at(count, 3) == counts(30, 3)
    assert rows_at(count, 4) == counts(30, 4)


def test_a_complete_source_completes_its_outputs(client: persist.Client) -> None:
    bank = Bank(client)
    bank.transfer()
    bank.moves.seal(persist.Antichain()).result()
    with ledger().open(client) as running:
        running.step()
        running.step()
    assert client.load("totals").upper == persist.Antichain()
    with ledger().open(client) as running:
        running.step()


def by_account(name: str, least: int) -> Program:
    made = Program(name)
    moves = made.source("moves", schema={"id": pa.int64(), "account": pa.string(), "amount": pa.int64()})
    kinds = made.source("kinds", schema={"account": pa.string(), "kind": pa.string()})
    joined = moves.join(kinds, "account").filter(col("amount") > least)
    joined.group_by("kind").agg(n=lit(1).sum(), total=col("amount").sum()).persist(name, key=["kind"])
    return made


def test_programs_that_run_together_share_sources_and_arrangements(client: persist.Client) -> None:
    bank = Bank(client)
    kinds = client.create_or_load("kinds", key={"account": pa.string()}, value={"kind": pa.string()})
    kinds.write([((account, kind), 0, 1) for account, kind in zip("abcd", "xxyy", strict=True)], seal=100).result()
    bank.transfer()
    states = []
    for names in (["one"], ["one", "two"]):
        programs = [by_account(name, least) for name, least in zip(names, (-1000, -999), strict=False)]
        with open_together(programs, client) as running:
            running.step()
            bank.transfer()
            running.step()
            states.append(len([node for node in running.plan.nodes.values() if "source" in node.title]))
        bank.transfer()
    assert states == [2, 2]
    # Each goes on alone where they were together, and holds its source by its own name.
    assert {hold.name for hold in bank.moves.holds() if hold.name} == {"dataflow one", "dataflow two"}
    with by_account("one", -1000).open(client) as one, by_account("two", -999).open(client) as two:
        one.run(until=bank.time - 1)
        two.run(until=bank.time - 1)
    for time in range(3, bank.time):
        found = rows_at(client.load("one"), time)
        assert found == rows_at(client.load("two"), time)
        assert sum(row[1] for row in found) == bank.moves.snapshot(time).count()


def test_programs_that_would_get_into_each_others_way_do_not_run_together(client: persist.Client) -> None:
    reader = Program("reader")
    reader.source("one", schema={"kind": pa.string()}).persist("copy", key=["kind"])
    same = by_account("other", 0)
    same.source("kinds", schema={"kind": pa.string()}).persist("one", key=["kind"])
    for programs in ([by_account("one", 0), reader], [by_account("one", 0), same], [reader, reader], []):
        with pytest.raises(persist.InvalidUsage, match="open_together"):
            open_together(programs, client)


def test_a_program_that_waits_asks_the_store_seldom_and_is_stopped_at_once() -> None:
    blob = MeteredBlob(MemoryBlob())
    with persist.open(blob, settings=persist.Settings(background=False, poll_s=3600)) as client:
        bank = Bank(client)
        bank.transfer()
        with ledger().open(client) as running:
            worker = threading.Thread(target=running.run_forever)
            worker.start()
            client.load("totals").snapshot(bank.time - 1, timeout_s=WAIT_S)
            asked = -4
            while (so_far := blob.get_counts()["get"].requests) > asked + 3:  # The pauses double, and it becomes quiet.
                asked = so_far
                assert not threading.Event().wait(1.5)
            running.stop()
            worker.join(WAIT_S)
            assert not worker.is_alive()


def test_a_run_ends_when_its_time_is_over_and_says_how_far_the_sources_are_sealed() -> None:
    with persist.open("memory://run") as client:
        t = client.create_or_load("t", key={"k": pa.int64()})
        t.write([((1, None), 0, 1)], seal=3).result()
        program = Program("p").using(client)
        program.source("t").capture()
        with program.open(client) as running:
            running.run(until=2, timeout_s=WAIT_S)
            with pytest.raises(persist.InvalidUsage, match=r"run\(until=5\): after the timeout .* sealed up to 3 only"):
                running.run(until=5, timeout_s=0.0)
        t.drop().result()
