"""docs/inside/rules.md, rule by rule; each test is named after the rule it shows."""

import asyncio
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import persist
from persist.blob.layers.metered import MeteredBlob
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.blob.protocol import MemoryBlob
from persist.core.settings import Tuning
from tests.support.clocks import ImpatientClock
from tests.support.forks import forked_python
from tests.support.paths import ROOT
from tests.support.stepped import WAIT_S
from tests.support.tuned import tuned

KEY = {"k": pa.int64()}
VALUE = {"v": pa.string()}


def test_rule_1_since_and_upper_never_go_back(orders: persist.Collection) -> None:
    orders.seal(10).result()
    orders.allow_compaction(5).result()
    with pytest.raises(persist.errors.FrontierRegression, match="upper cannot go back from 10 to 9"):
        orders.seal(9).result()
    with pytest.raises(persist.errors.FrontierRegression, match="since cannot go back"):
        orders.allow_compaction(4).result()
    orders.seal(persist.Antichain()).result()
    with pytest.raises(persist.errors.FrontierRegression):
        orders.seal(11).result()
    assert (orders.since, orders.upper) == (persist.Antichain(5), persist.Antichain())


def test_rule_1_a_seal_to_the_current_upper_is_accepted_and_does_nothing(
    orders: persist.Collection, blob: MemoryBlob
) -> None:
    orders.seal(10).result()
    before = [entry.key for entry in blob.list("")]
    orders.seal(10).result()
    assert [entry.key for entry in blob.list("")] == before


def test_rule_2_a_write_with_any_time_not_beyond_upper_is_rejected_whole(orders: persist.Collection) -> None:
    orders.seal(10).result()
    late = orders.write([((1, "a"), 11, 1), ((2, "b"), 9, 1)])
    with pytest.raises(persist.errors.UpdateNotBeyondUpper) as caught:
        late.result()
    assert (caught.value.time, caught.value.upper) == (9, persist.Antichain(10))
    orders.seal(20).result()
    assert orders.snapshot(19).count() == 0


@pytest.mark.parametrize("rows", [100, 50_000])
def test_rule_2_buffers_that_are_changed_during_a_write_cannot_slip_a_late_update_into_the_log(
    orders: persist.Collection, blob: MemoryBlob, rows: int
) -> None:
    orders.seal(10).result()
    times = np.full(rows, 20)
    columns = {"k": np.arange(rows), "v": ["x"] * rows, "_time": pa.array(times), "_diff": np.ones(rows, np.int64)}
    futures = [orders.write(pa.table(columns)) for _ in range(3)]
    times[:] = 3
    for future in futures:
        assert isinstance(future.exception(), persist.InvalidUsage | None)
    with persist.open(blob, mode="read") as reader:
        assert reader.load("orders").upper == persist.Antichain(10)


def test_rule_2_a_large_write_is_rejected_whole_and_its_upload_is_removed(
    orders: persist.Collection, blob: MemoryBlob
) -> None:
    orders.seal(10).result()
    rows = pa.table({"k": range(50_000), "v": ["x"] * 50_000, "_time": [9, *[11] * 49_999], "_diff": [1] * 50_000})
    with pytest.raises(persist.errors.UpdateNotBeyondUpper):
        orders.write(rows).result()
    assert list(blob.list("part/")) == []


def test_rule_3_a_snapshot_before_since_is_refused(orders: persist.Collection) -> None:
    orders.seal(20).result()
    orders.allow_compaction(12).result()
    with pytest.raises(persist.errors.AsOfCompacted) as caught:
        orders.snapshot(7)
    assert str(caught.value) == (
        "as_of=7 is before since=12: history before since has been compacted. Read at as_of >= 12."
    )
    assert orders.snapshot(12).count() == 0


def test_rule_3_a_snapshot_that_is_not_sealed_waits_up_to_the_timeout(orders: persist.Collection) -> None:
    orders.seal(10).result()
    for timeout_s in (0.0, 0.2):
        began = time.monotonic()
        with pytest.raises(persist.errors.AsOfNotSealed) as caught:
            orders.snapshot(10, timeout_s=timeout_s)
        assert time.monotonic() - began >= timeout_s
        assert (caught.value.as_of, caught.value.upper) == (10, persist.Antichain(10))


def test_rule_3_a_snapshot_that_waits_succeeds_when_another_client_seals(
    orders: persist.Collection, blob: MemoryBlob
) -> None:
    with persist.open(blob) as other, persist.open(blob, mode="read") as reader:
        waiting = reader.engine.pool.submit(lambda: reader.load("orders").snapshot(0, timeout_s=WAIT_S).count())
        other.load("orders").write([((1, "a"), 0, 1)])
        other.load("orders").seal(1).result()
        assert waiting.result(WAIT_S) == 1


def test_rule_4_allow_compaction_before_since_is_an_error_and_it_may_pass_upper(orders: persist.Collection) -> None:
    orders.allow_compaction(5).result()
    assert (orders.since, orders.upper) == (persist.Antichain(5), persist.Antichain(0))
    with pytest.raises(persist.errors.FrontierRegression):
        orders.allow_compaction(4).result()
    orders.write([((1, "a"), 2, 1)]).result()
    orders.seal(6).result()
    assert list(orders.snapshot(5).rows()) == [(1, "a")]


def test_rule_4_since_is_the_least_of_what_was_asked_and_every_live_hold(orders: persist.Collection) -> None:
    orders.seal(10).result()
    with orders.hold(3), orders.hold(6):
        orders.allow_compaction(20).result()
        assert orders.since == persist.Antichain(3)
        orders.allow_compaction(4).result()
    assert orders.since == persist.Antichain(20)


def test_rule_5_futures_are_applied_in_call_order_and_an_error_does_not_stop_the_next(
    orders: persist.Collection,
) -> None:
    futures = [
        orders.write([((1, "a"), 0, 1)]),
        orders.seal(5),
        orders.write([((2, "b"), 4, 1)]),
        orders.write([((3, "c"), 5, 1)]),
        orders.seal(6),
    ]
    errors = [future.exception() for future in futures]
    assert [type(error) for error in errors] == [
        type(None), type(None), persist.errors.UpdateNotBeyondUpper, type(None), type(None),
    ]  # fmt: skip
    assert sorted(orders.snapshot(5).rows()) == [(1, "a"), (3, "c")]


def test_rule_5_an_error_that_nobody_looked_at_is_raised_by_close(blob: MemoryBlob) -> None:
    client = persist.open(blob)
    orders = client.create_or_load("orders", key=KEY, value=VALUE)
    orders.seal(10)
    orders.write([((1, "a"), 3, 1)])
    with pytest.raises(persist.errors.UpdateNotBeyondUpper):
        client.close()
    client.close()


def test_rule_5_several_errors_that_nobody_looked_at_are_raised_together(blob: MemoryBlob) -> None:
    client = persist.open(blob)
    orders = client.create_or_load("orders", key=KEY, value=VALUE)
    orders.seal(10)
    seen = orders.write([((1, "a"), 3, 1)])
    assert isinstance(seen.exception(), persist.errors.UpdateNotBeyondUpper)
    orders.write([((1, "a"), 4, 1)])
    orders.seal(2)
    with pytest.raises(ExceptionGroup) as caught:
        client.close()
    assert [type(e) for e in caught.value.exceptions] == [
        persist.errors.UpdateNotBeyondUpper,
        persist.errors.FrontierRegression,
    ]


def test_rule_5_an_error_that_a_cancelled_task_waited_for_is_not_lost(blob: MemoryBlob) -> None:
    client = persist.open(blob)
    orders = client.create_or_load("orders", key=KEY, value=VALUE)
    orders.seal(10).result()

    async def wait_and_be_cancelled() -> None:
        async def wait(future: persist.CommitFuture) -> int:
            return await future

        future = orders.write([((1, "a"), 3, 1)])
        task = asyncio.create_task(wait(future))
        while not future.done():
            await asyncio.sleep(0)
        task.cancel()  # Done, but the task has not been told yet.
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(wait_and_be_cancelled())
    with pytest.raises(persist.errors.UpdateNotBeyondUpper):
        client.close()


def test_rule_5_the_error_of_a_with_block_is_not_hidden_by_those_of_its_writes(blob: MemoryBlob) -> None:
    with pytest.raises(KeyError) as caught, persist.open(blob) as client:
        orders = client.create_or_load("orders", key=KEY, value=VALUE)
        orders.seal(10)
        orders.write([((1, "a"), 3, 1)])
        raise KeyError("of the user")
    assert "UpdateNotBeyondUpper" in caught.value.__notes__[0]


def test_rule_5_a_resolved_future_is_durable(blob: MemoryBlob) -> None:
    client = persist.open(blob)
    orders = client.create_or_load("orders", key=KEY, value=VALUE)
    orders.write([((1, "a"), 0, 1)]).result()
    orders.seal(1).result()
    # Without any close, another client finds it.
    with persist.open(blob, mode="read") as reader:
        assert list(reader.load("orders").snapshot(0).rows()) == [(1, "a")]
    client.close()


def test_rule_6_a_multi_collection_commit_happens_whole_or_not_at_all(
    client: persist.Client, orders: persist.Collection, blob: MemoryBlob
) -> None:
    items = client.create_or_load("items", key=KEY, value=VALUE)
    items.seal(10).result()
    before = len(list(blob.list("log/")))
    with pytest.raises(persist.errors.UpdateNotBeyondUpper), client.multi_write() as multi:
        multi.write(orders, [((1, "a"), 0, 1)])
        multi.seal(orders, 1)
        multi.write(items, [((1, "a"), 0, 1)])
    assert orders.upper == persist.Antichain(0)
    assert len(list(blob.list("log/"))) == before
    with client.multi_write() as multi:
        multi.write(orders, [((1, "a"), 0, 1)])
        multi.seal(orders, 1)
        multi.write(items, [((1, "a"), 10, 1)])
        multi.seal(items, 11)
    assert len(list(blob.list("log/"))) == before + 1
    assert orders.snapshot(0).count() == items.snapshot(10).count() == 1


def test_rule_6_nothing_happens_if_the_block_raises(
    client: persist.Client, orders: persist.Collection, blob: MemoryBlob
) -> None:
    before = len(list(blob.list("log/")))
    with pytest.raises(ZeroDivisionError), client.multi_write() as multi:
        multi.write(orders, [((1, "a"), 0, 1)])
        multi.write(orders, pa.table({"k": range(9000), "v": ["x"] * 9000, "_time": [0] * 9000, "_diff": [1] * 9000}))
        _ = 1 / 0
    client.close()
    assert len(list(blob.list("log/"))) == before
    assert list(blob.list("part/")) == []


def test_rule_7_a_retried_write_with_the_same_token_happens_once_across_crashes_and_processes(tmp_path: Path) -> None:
    script = (
        "import os, persist\n"
        f"c = persist.open({str(tmp_path)!r}).create_or_load('c', key=persist.Int64)\n"
        "c.write([((1, None), 5, 1)], token='job 7').result()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    for _ in range(2):
        subprocess.run([*forked_python(), "-c", script], check=False, cwd=ROOT)
    with persist.open(tmp_path) as client:
        c = client.load("c")
        c.write([((1, None), 5, 1)], token="job 7", seal=6).result()
        c.seal(6).result()
        assert c.snapshot(5).count() == 1


def test_rule_7_a_write_whose_answer_was_lost_happens_once_when_it_is_tried_again() -> None:
    unreliable = UnreliableBlob(MemoryBlob())
    with persist.open(unreliable, clock=ImpatientClock()) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        for fault in (Fault.HAPPENED_BUT_FAILED, Fault.NOT_HAPPENED_DOUBTFUL):
            unreliable.script_faults("create", fault)
            # Nobody can find out what became of the first attempt.
            unreliable.script_faults("get", *[Fault.UNAVAILABLE] * 2000)
            unreliable.script_faults("create", *[Fault.UNAVAILABLE] * 2000)
            with pytest.raises((persist.Indeterminate, persist.Unavailable)):
                c.write([((1, "a"), 5, 1)], token=str(fault)).result()
            unreliable.clear_faults()
            c.write([((1, "a"), 5, 1)], token=str(fault)).result()
        c.seal(6).result()
        assert dict(c.snapshot(5, form="diff").rows()) == {(1, "a"): 2}


def test_rule_8_a_destroyed_name_can_be_used_again_for_a_new_collection(client: persist.Client) -> None:
    old = client.create_or_load("orders", key=KEY, value=VALUE)
    old.write([((1, "a"), 0, 1)])
    old.seal(1).result()
    held = old.snapshot(0)
    old.drop().result()
    assert client.collections() == []
    new = client.create_or_load("orders", key={"name": pa.string()}, value=None)
    assert new.id != old.id
    assert (new.upper, list(client.collections())) == (persist.Antichain(0), ["orders"])
    with pytest.raises(persist.errors.CollectionNotFound, match="orders"):
        old.write([((1, "a"), 5, 1)]).result()
    with pytest.raises(persist.errors.CollectionNotFound, match="orders"):
        _ = old.upper
    assert list(held.rows()) == [(1, "a")]


@pytest.mark.parametrize("fault", [Fault.HAPPENED_BUT_FAILED, Fault.NOT_HAPPENED_DOUBTFUL])
def test_rule_9_an_unacknowledged_write_is_wholly_there_or_wholly_absent(fault: Fault) -> None:
    unreliable = UnreliableBlob(MemoryBlob())
    with persist.open(unreliable, clock=ImpatientClock()) as client:
        orders = client.create_or_load("orders", key=KEY, value=VALUE)
        unreliable.script_faults("create", fault, *[Fault.UNAVAILABLE] * 200)
        unreliable.script_faults("get", *[Fault.UNAVAILABLE] * 1000)  # Or else reading the slot tells.
        doubtful = orders.write([((1, "a"), 0, 1), ((2, "b"), 0, 1)])
        error = doubtful.exception()
        assert isinstance(error, persist.Indeterminate)
        unreliable.clear_faults()
        orders.seal(1).result()
        happened = fault is Fault.HAPPENED_BUT_FAILED
        assert sorted(orders.snapshot(0).rows()) == ([(1, "a"), (2, "b")] if happened else [])


def test_rule_9_a_part_whose_upload_got_no_answer_is_a_write_that_did_not_happen() -> None:
    unreliable = UnreliableBlob(MemoryBlob())
    once = persist.Settings(tuning=Tuning(attempts_max=1))
    with persist.open(unreliable, clock=ImpatientClock(), settings=once) as client:
        orders = client.create_or_load("orders", key=KEY, value=VALUE)
        unreliable.script_faults("set", Fault.HAPPENED_BUT_FAILED)
        rows = {"k": range(9000), "v": ["x"] * 9000, "_time": [0] * 9000, "_diff": [1] * 9000}
        assert isinstance(orders.write(pa.table(rows)).exception(), persist.Unavailable)
        orders.seal(1).result()
        assert orders.snapshot(0).count() == 0


def test_rule_9_an_acknowledged_write_survives_the_loss_of_every_client(tmp_path: Path) -> None:
    script = (
        "import os, persist\n"
        f"c = persist.open({str(tmp_path)!r}).create_or_load('c', key=persist.Int64)\n"
        "c.write([((1, None), 0, 1)], seal=1).result()\n"
        "os._exit(1)\n"
    )
    assert subprocess.run([*forked_python(), "-c", script], cwd=ROOT).returncode == 1
    with persist.open(tmp_path, mode="read") as reader:
        assert list(reader.load("c").snapshot(0).rows()) == [(1, None)]


def test_rule_10_no_blob_that_a_state_refers_to_is_deleted(blob: MemoryBlob) -> None:
    metered = MeteredBlob(blob)
    with persist.open(metered) as client:
        orders = client.create_or_load("orders", key=KEY, value=VALUE)
        orders.write(pa.table({"k": range(9000), "v": ["x"] * 9000, "_time": [0] * 9000, "_diff": [1] * 9000}))
        orders.seal(1).result()
        held = orders.snapshot(0)
        orders.drop().result()
        assert held.to_arrow().num_rows == 9000
        assert metered.get_counts()["delete"].requests == 0


def test_rule_10_nothing_a_live_reader_may_hold_is_deleted(tmp_path: Path) -> None:
    settings = tuned(grace_s=0, orphan_grace_s=0, background=False)
    with persist.open(tmp_path, settings=settings) as reader, persist.open(tmp_path, settings=settings) as collector:
        c = reader.create_or_load("c", key=KEY)
        c.write(pa.table({"k": range(50_000), "_time": [0] * 50_000, "_diff": [1] * 50_000}), seal=1).result()
        snapshot = c.snapshot(0)
        collector.load("c").drop().result()
        collector.gc()
        assert snapshot.to_arrow().num_rows == 50_000
        reader.close()
        assert collector.gc().collections == 1


def test_rule_11_a_reader_whose_lease_ran_out_gets_lease_expired_and_never_a_wrong_answer(blob: MemoryBlob) -> None:
    clock = ImpatientClock()
    settings = tuned(lease_s=60, background=False)
    with persist.open(blob, clock=clock, settings=settings) as reader, persist.open(blob, clock=clock) as other:
        c = reader.create_or_load("c", key=KEY)
        c.write([((1, None), 0, 1)], seal=10).result()
        snapshot, listen, hold = c.snapshot(0), c.listen(0), c.hold(0)
        clock.sleep(91)
        other.gc()
        other.load("c").allow_compaction(9).result()
        assert c.since == persist.Antichain(9)
        for read in (snapshot.to_arrow, snapshot.count, listen.poll, lambda: hold.advance(5)):
            with pytest.raises((persist.errors.LeaseExpired, persist.errors.AsOfCompacted)):
                read()
        with pytest.raises(persist.errors.LeaseExpired):
            snapshot.to_arrow()


def test_rule_12_a_read_client_writes_nothing_at_all(blob: MemoryBlob, orders: persist.Collection) -> None:
    orders.write([((i, "a"), 0, 1) for i in range(40)])
    orders.seal(1).result()
    metered = MeteredBlob(blob)
    with persist.open(metered, mode="read") as reader:
        mine = reader.load("orders")
        assert mine.snapshot(0).count() == 40
        refused: list[Callable[[], object]] = [
            lambda: mine.write([((1, "a"), 5, 1)]),
            lambda: mine.seal(5),
            lambda: mine.allow_compaction(1),
            mine.drop,
            reader.multi_write,
            lambda: reader.create_or_load("new", key=KEY, value=VALUE),
        ]
        for call in refused:
            with pytest.raises(persist.errors.ReadOnly, match='opened with mode="read"'):
                call()
        assert reader.create_or_load("orders", key=KEY, value=VALUE).id == mine.id
    assert {name for name, count in metered.get_counts().items() if count.requests} <= {"get", "list"}


def test_rule_13_rows_cannot_show_negative_multiplicities_and_diffs_can(orders: persist.Collection) -> None:
    orders.write([((1, "a"), 0, -1), ((2, "b"), 0, 2)])
    orders.seal(1).result()
    with pytest.raises(persist.errors.NegativeMultiplicity, match="multiplicity -1 as of 0"):
        orders.snapshot(0).to_arrow()
    found = orders.snapshot(0, form="diff")
    assert sorted(found.rows()) == [((1, "a"), -1), ((2, "b"), 2)]


def test_rule_14_diff_sums_that_overflow_raise_and_never_wrap(orders: persist.Collection) -> None:
    most = 2**63 - 1
    orders.write([((1, "a"), 0, most)]).result()
    orders.write([((1, "a"), 1, most)]).result()
    orders.seal(2).result()
    assert list(orders.snapshot(0, form="diff").rows()) == [((1, "a"), most)]
    with pytest.raises(persist.errors.DiffOverflow):
        orders.snapshot(1, form="diff").to_arrow()
    assert orders.snapshot(1).count() == 2 * most


def test_rule_14_a_write_that_overflows_by_itself_is_rejected_and_its_neighbours_are_not(
    orders: persist.Collection,
) -> None:
    most = 2**63 - 1
    first = orders.write([((1, "a"), 0, 1)])
    bad = orders.write([((1, "b"), 0, most), ((1, "b"), 0, most)])
    last = orders.write([((1, "c"), 0, 1)])
    assert (first.exception(), last.exception()) == (None, None)
    with pytest.raises(persist.errors.DiffOverflow):
        bad.result()
    orders.seal(1).result()
    assert sorted(orders.snapshot(0).rows()) == [(1, "a"), (1, "c")]


def test_rule_14_small_writes_that_overflow_together_are_all_kept(orders: persist.Collection) -> None:
    most = 2**63 - 1
    futures = [orders.write([((1, "a"), 0, most)]), orders.write([((1, "a"), 0, most)])]
    assert [future.exception() for future in futures] == [None, None]
    orders.seal(1).result()
    assert orders.snapshot(0).count() == 2 * most
