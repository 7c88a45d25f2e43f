"""The policy that all clients of a location share: who goes by which, and when a shorter time takes effect."""

import json
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.core.log import kinds
from persist.core.log.fields import Policy
from persist.core.log.keys import make_record_key
from persist.core.state_rules.policies import BEFORE_MAX, Policies
from persist.core.state_rules.state import State
from persist.engine.location.opening import change_policy
from persist.engine.upkeep.ages import Ages, Mark
from persist.engine.write.part_writer import PartWriter
from persist.tools.reports.health import list_waiting_blobs
from tests.support.clocks import DatedBlob, ImpatientClock
from tests.support.parts import commit_parts
from tests.support.tuned import tuned

HOUR = 3600.0
KEY = {"k": pa.int64()}
ROWS = pa.table({"k": range(20_000), "_time": [0] * 20_000, "_diff": [1] * 20_000})


def opened(blob: DatedBlob, clock: ImpatientClock | None = None, **changed: Any) -> persist.Client:
    return persist.open(blob, clock=clock or blob.clock, settings=tuned(background=False, hold_linger_s=0, **changed))


def drop(client: persist.Client, name: str) -> None:
    """Make a collection that has a blob, and drop it."""
    client.create_or_load(name, key=KEY).write(ROWS).result()
    client.drop(name).result()


def parts(blob: DatedBlob) -> int:
    return sum(1 for _ in blob.list("part/"))


@pytest.fixture
def dated() -> DatedBlob:
    return DatedBlob(ImpatientClock())


def test_a_location_without_a_policy_has_the_defaults_and_keeps_its_number(dated: DatedBlob) -> None:
    with opened(dated) as client:
        drop(client, "c")
        assert client.policy == Policy()
        assert '"policies"' not in str([dated.get(entry.key) for entry in dated.list("checkpoint/")])


def test_all_clients_go_by_a_policy_once_one_has_changed_it(dated: DatedBlob) -> None:
    with opened(dated) as one, opened(dated) as other:
        drop(one, "c")
        assert one.set_policy(grace_s=10 * 3600).grace_s == 36_000
        assert other.policy == one.policy == change_policy(Policy(), {"grace_s": 36_000})
        one.gc()
        for hours in (8, 1.5):
            dated.clock.sleep(hours * HOUR)
            assert other.gc().collections == 0
        dated.clock.sleep(HOUR)
        assert other.gc().collections == 1
        assert parts(dated) == 0
    with opened(dated) as later:
        assert later.policy.grace_s == 36_000, "also by a checkpoint"


def test_a_shorter_grace_takes_effect_when_the_longer_one_has_passed(dated: DatedBlob) -> None:
    """A reader without a lease that planned before the change counts on the longer one."""
    with opened(dated) as client:
        client.create_or_load("read", key=KEY).write(ROWS, seal=1).result()
        with persist.open(dated, mode="read", clock=dated.clock) as reader:
            snapshot = reader.load("read").snapshot(0)
            client.set_policy(grace_s=60)
            client.drop("read").result()
            for minutes in (2, 30, 27):
                client.gc()
                dated.clock.sleep(minutes * 60)
                assert client.gc().collections == 0
            assert snapshot.to_arrow().num_rows == 20_000
            dated.clock.sleep(120)
            assert client.gc().collections == 1
        drop(client, "later")
        client.gc()
        dated.clock.sleep(61)
        assert client.gc().collections == 1, "from then on, the shorter one is in force"


def test_at_once_says_that_nobody_else_counts_on_the_longer_time(dated: DatedBlob) -> None:
    with opened(dated) as client:
        drop(client, "c")
        client.set_policy(grace_s=0)
        assert client.gc().collections == 0
        client.set_policy(at_once=True)
        assert client.policy.grace_s == 0
        assert client.gc().collections == 1


def test_the_first_record_of_a_location_may_hold_a_short_policy_at_once(dated: DatedBlob) -> None:
    with opened(dated) as client:
        client.set_policy(grace_s=0)
        drop(client, "c")
        assert client.gc().collections == 1


def test_an_upload_begun_before_a_shorter_time_has_the_time_that_it_counts_on(dated: DatedBlob) -> None:
    with opened(dated) as client:
        c = client.create_or_load("c", key=KEY)
        uploaded = PartWriter(dated, client.engine.follower.find_next_seqno).upload(c.id, c.schema, ROWS)
        client.set_policy(orphan_grace_s=60)
        client.gc()
        dated.clock.sleep(23 * HOUR)
        client.gc()
        assert parts(dated) == 1
        commit_parts(c, uploaded).result()
        c.seal(1).result()
        assert c.snapshot(0).count() == 20_000


@pytest.mark.parametrize(
    ("longer", "changes"),
    [
        ({"grace_s": 240, "log_retention_s": 36_000}, {"log_retention_s": 240}),
        ({"grace_s": 30 * 3600, "log_retention_s": 36_000}, {"grace_s": 60}),
        ({"grace_s": 60, "log_retention_s": 36_000}, {"orphan_grace_s": 60}),
    ],
    ids=str,
)
def test_a_shorter_time_stays_in_force_however_often_garbage_is_collected(
    dated: DatedBlob, longer: dict[str, Any], changes: dict[str, Any]
) -> None:
    """The collector deletes checkpoints, too, by which it knows how old the change of the policy is."""
    with opened(dated) as client:
        client.set_policy(log_retention_records=16, at_once=True, **longer)
        c = client.create_or_load("c", key=KEY)
        client.set_policy(**changes)
        upper, waiting = 1, []
        for hour in range(0, 50, 5):
            for _ in range(12):
                c.seal(upper).result()
                upper += 1
            drop(client, f"dropped at {hour}")
            PartWriter(dated, client.engine.follower.find_next_seqno).upload(c.id, c.schema, ROWS)
            client.gc()
            dated.clock.sleep(5 * HOUR)
            client.gc()
            waiting.append((parts(dated), sum(1 for _ in dated.list("log/"))))
        parts_left, records_left = zip(*waiting[-3:], strict=True)
        assert max(parts_left) <= (1 if "orphan_grace_s" in changes else 6)
        assert max(records_left) <= (60 if "log_retention_s" in changes else 200)


@pytest.mark.parametrize(
    "policy",
    [
        {"log_retention_s": 36_000, "grace_s": 30 * 3600},
        {"log_retention_s": 240, "grace_s": 60, "orphan_grace_s": 30 * 3600},
        {"log_records_max": 50, "orphan_grace_s": 30 * 3600},
    ],
    ids=str,
)
def test_blobs_go_although_the_log_is_kept_for_less_long(dated: DatedBlob, policy: dict[str, Any]) -> None:
    with opened(dated) as client:
        client.set_policy(log_retention_records=16, at_once=True, **policy)
        c = client.create_or_load("c", key=KEY)
        drop(client, "dropped")
        PartWriter(dated, client.engine.follower.find_next_seqno).upload(c.id, c.schema, ROWS)
        left = []
        for upper in range(1, 106):
            c.seal(upper).result()
            if upper % 3 == 0:
                dated.clock.sleep(HOUR)
                client.gc()
                left.append(parts(dated))
        assert left[28] > 0, "after 29 hours"
        assert left[-1] == 0, "after 35 hours"


def test_uploads_go_although_checkpoints_from_before_each_erasure_do(dated: DatedBlob) -> None:
    """A checkpoint as old as `orphan_grace_s` never exists then."""
    with opened(dated) as client:
        c = client.create_or_load("c", key=KEY)
        c.write([((1, None), 0, 1)], seal=1).result()
        PartWriter(dated, client.engine.follower.find_next_seqno).upload(c.id, c.schema, ROWS)
        left = []
        for upper in range(2, 20):
            c.write([((upper, None), upper - 1, 1)], seal=upper).result()
            c.erase([upper - 1], reason="test")
            dated.clock.sleep(2 * HOUR)
            client.gc()
            left.append(parts(dated))
        assert left[10] > 0
        assert left[-1] == 0


def test_a_long_upload_keeps_its_later_parts_when_the_policy_gets_shorter(dated: DatedBlob) -> None:
    with opened(dated) as client:
        c = client.create_or_load("c", key=KEY)
        writer = PartWriter(dated, client.engine.follower.find_next_seqno)
        first = writer.upload(c.id, c.schema, ROWS)
        client.set_policy(orphan_grace_s=60)
        later = writer.upload(c.id, c.schema, ROWS)
        for _ in range(4):
            client.gc()
            dated.clock.sleep(2 * HOUR)
        commit_parts(c, (*first, *later)).result()
        c.seal(1).result()
        assert c.snapshot(0).count() == 40_000


def test_a_report_goes_by_the_policy_in_force(dated: DatedBlob) -> None:
    with opened(dated) as client:
        drop(client, "c")
        client.set_policy(grace_s=60)
        client.gc()
        dated.clock.sleep(120)
        now_s = dated.clock.wall_ms() / 1000
        assert [blobs.waits_for for blobs in list_waiting_blobs(client, now_s)] == ["the grace period"]
        assert client.gc().collections == 0
        dated.clock.sleep(HOUR)
        now_s = dated.clock.wall_ms() / 1000
        assert [blobs.waits_for for blobs in list_waiting_blobs(client, now_s)] == ["the next gc"]
        assert client.gc().collections == 1


def test_log_records_stay_as_long_as_the_policy_before_promised(dated: DatedBlob) -> None:
    with opened(dated, log_retention_records=16) as client:
        client.set_policy(log_retention_records=16, log_retention_s=10 * 3600, grace_s=240, at_once=True)
        c = client.create_or_load("c", key=KEY)
        for time in range(100):
            c.seal(time + 1).result()
        client.set_policy(log_retention_s=240)
        client.gc()
        dated.clock.sleep(9 * HOUR)
        client.gc()
        assert dated.get(make_record_key(3)) is not None
        dated.clock.sleep(2 * HOUR)
        client.gc()
        client.gc()
        assert dated.get(make_record_key(3)) is None


def test_a_shorter_skew_ends_no_lease_sooner_than_its_holder_counts_on(dated: DatedBlob) -> None:
    slow = ImpatientClock(dated.clock.wall_ms() / 1000 - 25)  # The holder's clock is behind, within the 30 s.
    with opened(dated) as client, opened(dated, slow) as reader:
        c = client.create_or_load("c", key=KEY)
        c.write([((1, None), 0, 1)], seal=1).result()
        snapshot = reader.load("c").snapshot(0)
        client.set_policy(clock_skew_s=0)
        dated.clock.sleep(590)
        client.gc()
        assert len(client.engine.follower.state.control.leases) == 1
        assert snapshot.count() == 1
        dated.clock.sleep(45)
        client.gc()
        assert not client.engine.follower.state.control.leases


def test_a_longer_lease_is_renewed_before_the_one_that_was_granted_ends(dated: DatedBlob) -> None:
    with opened(dated) as client:
        c = client.create_or_load("c", key=KEY)
        c.write([((1, None), 0, 1)], seal=1).result()
        snapshot = c.snapshot(0)
        client.set_policy(lease_s=6000)
        dated.clock.sleep(201)  # A third of what was granted, and far less than a third of what will be.
        client.maintain()
        [lease] = client.engine.follower.refresh().control.leases.values()
        assert lease.expires_ms - dated.clock.wall_ms() == pytest.approx(6_000_000, abs=1000)
        assert snapshot.count() == 1


def test_two_clients_that_change_other_values_at_once_do_not_undo_each_other_s(dated: DatedBlob) -> None:
    with opened(dated) as one, opened(dated) as other:
        assert other.policy == one.policy
        one.set_policy(grace_s=7200)
        other.set_policy(lease_s=60)  # It has not seen the change when it asks.
        assert one.policy == other.policy == change_policy(Policy(), {"grace_s": 7200, "lease_s": 60})


def test_an_older_release_stops_at_the_record_and_changes_nothing(dated: DatedBlob) -> None:
    with opened(dated) as client:
        client.set_policy(grace_s=60)
        seqno = client.seqno
    record = json.loads(dated.get(make_record_key(seqno)) or b"")
    assert record["format"] >= kinds.SetPolicy.came_with == 11
    assert record["mutations"][0]["policy"].keys() == set(Policy.__struct_fields__), "defaults may change, policies not"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"grace_s": -1}, "grace_s=-1 is not allowed: give an integer >= 0"),
        ({"lease_s": 0}, "lease_s=0 is not allowed: give an integer >= 1"),
        ({"grace_s": 1.5}, "grace_s=1.5 is not allowed: give an integer"),
        ({"log_retention_s": 60}, "log_retention_s=60 is not allowed: give an integer >= 240"),
        ({"poll_s": 1}, "poll_s=1 is not known: give one of lease_s"),
    ],
    ids=str,
)
def test_a_policy_that_cannot_work_is_refused(dated: DatedBlob, changes: dict[str, Any], says: str) -> None:
    with opened(dated) as client:
        with pytest.raises(persist.InvalidUsage, match=says):
            client.set_policy(**changes)
        assert client.seqno == -1


def test_only_a_few_policies_are_remembered_and_none_of_their_longer_times_is_lost() -> None:
    policies = Policies(Policy(grace_s=1000))
    for seqno in range(1, 2 * BEFORE_MAX):
        policies = policies.with_policy(Policy(grace_s=100 - seqno), seqno, at_once=False)
    assert len(policies.before) == BEFORE_MAX
    newest, last = policies.newest.grace_s, 2 * BEFORE_MAX - 1
    assert policies.get_policy_in_force(0, lambda seqno, age_s: False).grace_s == 1000
    assert policies.get_policy_in_force(0, lambda seqno, age_s: age_s < 1000).grace_s == 1000
    assert policies.get_policy_in_force(0, lambda seqno, age_s: True).grace_s == newest
    assert policies.get_policy_in_force(last, lambda seqno, age_s: False).grace_s == newest + 1, (
        "the log is without the others"
    )
    assert policies.get_policy_in_force(last + 1, lambda seqno, age_s: False).grace_s == newest


def test_an_upload_has_the_longest_time_that_its_writer_may_have_read() -> None:
    policies = Policies(Policy(orphan_grace_s=50))
    for seqno, longer_s in ((3, 1000), (7, 100)):
        policies = policies.with_policy(Policy(orphan_grace_s=longer_s), seqno, at_once=False)
    assert [policies.get_orphan_grace_s(seqno) for seqno in (0, 3, 4, 7, 8)] == [1000, 1000, 1000, 1000, 100]
    assert policies.with_policy(Policy(orphan_grace_s=0), 9, at_once=False).get_orphan_grace_s(9) == 100


def test_uploads_are_void_after_an_old_one_but_not_after_a_young_one_nor_young_records() -> None:
    marks = [Mark(9, 1999.0), Mark(7, 1500.0), Mark(3, 1000.0)]

    def floor(*uploads: tuple[int, float], now_s: float = 2000.0, **policy: int) -> int:
        ages = Ages(State(seqno=9), Policies(Policy(**{"orphan_grace_s": 500, **policy})), now_s, marks)
        return ages.find_upload_floor(uploads)

    assert floor((5, 500), (2, 600)) == 6
    assert floor((5, 500), (2, 499)) == 2
    assert floor((5, 500), (6, 0)) == 6
    assert floor((8, 500)) == 8, "record 8 may be young"
    assert floor((8, 500), now_s=2499.0) == 9
    assert floor((8, 3600), orphan_grace_s=3600, grace_s=400) == 8
    assert floor((8, 3600), orphan_grace_s=3600, grace_s=1500) == 0
    assert floor((8, 3600), orphan_grace_s=3600, grace_s=1000) == 4
    assert floor((10, 0), orphan_grace_s=0) == 11
    assert floor() == floor((5, 499)) == 0


def test_an_upload_of_yesterday_says_nothing_about_one_of_today_with_its_seqno() -> None:
    """In a quiet log; a Spark job may plan an upload long before it stores the first part."""

    def floor(hours: float, *uploads: tuple[int, float], policies: Policies) -> int:
        marks = [Mark(100, 1e6), Mark(99, 1e6 - 48 * HOUR)]
        ages = Ages(State(seqno=100), policies, 1e6 + hours * HOUR, marks)
        return ages.find_upload_floor([(seqno, (hours + before) * HOUR) for seqno, before in uploads])

    default = Policies(Policy())
    assert [floor(hours, (100, 25), policies=default) for hours in (0, 2, 23, 24)] == [100, 100, 100, 101]
    shortened = default.with_policy(Policy(orphan_grace_s=3600), 100, at_once=False)
    assert [floor(hours, (101, -0.5), policies=shortened) for hours in (2, 23, 24, 25)] == [100, 100, 101, 101]
