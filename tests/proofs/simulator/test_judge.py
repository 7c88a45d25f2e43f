"""The judge passes a good history, and each planted violation of a rule makes it fail, naming that rule."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.proofs.simulator.effects import MUTATING
from tests.proofs.simulator.history import Commit, Deletion, Event, History
from tests.proofs.simulator.judge import judge
from tests.support.model import EMPTY

SETTINGS = {"began_ms": 0, "lease_s": 60, "clock_skew_s": 30, "skew_max_s": 10, "grace_s": 100}
LEASED = "f" * 32
Mutations = list[dict[str, Any]]


def chain(history: History) -> None:
    """Let each record name the one before it."""
    for n, commit in enumerate(history.commits):
        commit.commit, commit.previous = f"c{n}", f"c{n - 1}" if n else None


class Story:
    """A history as it is told: calls one after the other, each with the record it makes."""

    def __init__(self) -> None:
        self.history = History([], [], {"A": 10, "B": 10, "R": 0, "X": 1, "Y": 1}, dict(SETTINGS))
        self.labels: dict[str, Event] = {}
        self.clock_s = 0.0
        self._moment = 0

    def moment(self) -> int:
        self._moment += 1
        return self._moment

    def begin(self, client: str, op: str, label: str | None = None, /, **args: Any) -> Event:
        event = Event(len(self.history.events), client, op, args, self.moment(), clock_s=self.clock_s)
        self.history.events.append(event)
        if label:
            self.labels[label] = event
        return event

    def commit(self, client: str, *mutations: dict[str, Any]) -> int:
        seqno = len(self.history.commits)
        self.history.commits.append(Commit(seqno, self.moment(), client, list(mutations), self.clock_s))
        chain(self.history)
        return seqno

    def end(self, event: Event, value: Any = None) -> Event:
        event.outcome, event.returned = ["ok", value], self.moment()
        return event

    def fail(self, event: Event, error: str, /, **attributes: Any) -> Event:
        event.outcome, event.returned = ["error", error, attributes], self.moment()
        return event

    def call(self, client: str, op: str, label: str | None = None, /, value: Any = None, **args: Any) -> Event:
        return self.end(self.begin(client, op, label, **args), value)

    def write(self, client: str, op: str, label: str | None, /, *mutations: dict[str, Any], **args: Any) -> Event:
        """Tell of a call and the record that it makes."""
        event = self.begin(client, op, label, **args)
        seqno = self.commit(client, *mutations)
        return self.end(event, None if op == "multi" else seqno)

    def refused(self, client: str, op: str, label: str | None, error: str, attributes: Any, /, **args: Any) -> Event:
        return self.fail(self.begin(client, op, label, **args), error, **attributes)


def append(c: str, *updates: list[Any]) -> dict[str, Any]:
    return {"kind": "append", "collection": c, "updates": [list(update) for update in updates]}


def seal(c: str, upper: int) -> dict[str, Any]:
    return {"kind": "seal", "collection": c, "upper": upper}


W1 = [[1001, "m", 0, 1], [1, "x", 0, 1]]
W2 = [[1002, "m", 1, 1], [1, "x", 2, -1]]
W3A = [[1003, "m", 3, 1], [2, "y", 4, 1]]
W3B = [[1004, "m", 0, 1], [2, "y", 0, 2]]
W4 = [[1005, "m", 5, 1], [3, "z", 5, 1]]
W5 = [[1006, "m", 6, 1]]
W6 = [[1007, "m", 6, 1]]
AS_OF_4 = [[2, "y", 1], [1001, "m", 1], [1002, "m", 1], [1003, "m", 1]]
AS_OF_1 = [[1, "x", 1], [1001, "m", 1], [1002, "m", 1]]


def good() -> Story:
    """Two collections, two writers, a reader, and then two exclusive writers; everything as it should be."""
    s = Story()
    s.call("A", "open", mode="shared")
    s.call("B", "open", mode="shared")
    s.call("R", "open", mode="read")
    for c in "ab":
        made = s.begin("A", "create_or_load", f"create {c}", name=c, schema="k")
        s.commit("A", {"kind": "create", "collection": c, "name": c, "schema": "k"})
        s.end(made, c)
    s.write("A", "write", "w1", append("a", *W1), c="a", updates=W1)
    stored = {**append("a", *W2), "parts": [W2], "blobs": ["part/w2"]}
    s.write("B", "write", "w2", stored, {"kind": "tokens", "collection": "a", "tokens": ["t"]},
            c="a", updates=W2, token="t")  # fmt: skip
    s.call("A", "write", "w2 again", c="a", updates=W2, token="t", value=3)
    s.write("A", "seal", "s3", seal("a", 3), c="a", upper=3, expected_upper=0)
    s.refused("B", "seal", "mismatch", "UpperMismatch", {"expected": 2, "actual": 3}, c="a", upper=4, expected_upper=2)
    s.call("B", "upper", "upper", c="a", value=3)
    s.refused("B", "write", "late", "UpdateNotBeyondUpper", {"time": 2, "upper": 3}, c="a", updates=[[1099, "m", 2, 1]])
    s.refused("B", "seal", "back", "FrontierRegression", {"asked": 2, "current": 3}, c="a", upper=2)
    s.refused("R", "seal", "by reader", "ReadOnly", {}, c="a", upper=4)
    s.call("R", "snapshot", "taken", c="a", as_of=1, value=1)
    s.refused("R", "snapshot", "unsealed", "AsOfNotSealed", {"as_of": 3, "upper": 3}, c="a", as_of=3)
    feed = s.call("B", "subscribe", "feed", c="a", as_of=1, value=1)
    hold = {"kind": "hold", "collection": "a", "hold": LEASED, "time": 1, "lease": "l"}
    s.commit("B", {"kind": "lease", "lease": "l", "expires_ms": 60_000}, hold)
    held = s.call("B", "hold", "hold", c="a", time=1, name=None, value=1)
    s.call("B", "poll", "first", feed=feed.id, value={"updates": [[k, v, 1, n] for k, v, n in AS_OF_1], "upper": 2})
    multi = [["write", "a", W3A], ["write", "b", W3B], ["seal", "a", 5], ["seal", "b", 1]]
    s.write("A", "multi", "multi", append("a", *W3A), append("b", *W3B), seal("a", 5), seal("b", 1),
            steps=multi, raises=False)  # fmt: skip
    s.refused("A", "multi", "raised", "Boom", {}, steps=[["write", "b", [[1098, "m", 1, 1]]]], raises=True)
    changes = [[1, "x", 2, -1], [1003, "m", 3, 1], [2, "y", 4, 1]]
    s.call("B", "poll", "poll", feed=feed.id, value={"updates": changes, "upper": 5})
    s.call("A", "changes", "changes", c="a", lower=2, upper=5, value=changes)
    s.write("A", "allow_compaction", "allow", {"kind": "allow_compaction", "collection": "a", "since": 3},
            c="a", since=3)  # fmt: skip
    s.call("A", "since", "since", c="a", value=1)
    s.call("R", "read", "read", snapshot=s.labels["taken"].id, how="rows", columns="kv", above=None, value=AS_OF_1)
    release = s.begin("B", "release", "release", hold=held.id, how="release")
    s.commit("B", {"kind": "release", "collection": "a", "hold": LEASED})
    s.end(release)
    s.call("B", "close_feed", feed=feed.id)
    s.call("A", "snapshots", "together", cs=["a", "b"], value=[["a", 4, 4], ["b", 0, 3]])
    copied = {"a": ["a", 5, 3, AS_OF_4], "b": ["b", 1, 0, [[2, "y", 2], [1004, "m", 1]]]}
    s.call("A", "backup", "backup", value=[len(s.history.commits) - 1, copied])
    s.refused("R", "snapshot", "compacted", "AsOfCompacted", {"as_of": 2, "since": 3}, c="a", as_of=2)
    compacted = s.begin("A", "compact", "compact", c="a", full=True)
    s.commit("A", {"kind": "replace", "collection": "a", "parts": [[*W1, *W2], [[k, v, 4, n] for k, v, n in AS_OF_4]],
                   "blobs": ["part/merged", "part/keyframe"], "removed_runs": [0, 1], "runs": [[-1]],
                   "removed_keyframes": [], "keyframes": [[4, [-2]]], "history_from": None,
                   "unused": ["part/w2"]})  # fmt: skip
    s.end(compacted)
    named = s.begin("A", "hold", "named", c="a", time=3, name="one")
    s.commit("A", {"kind": "hold", "collection": "a", "hold": "one", "time": 3})
    s.end(named, 3)
    s.refused("B", "write", "outage", "Unavailable", {}, c="a", updates=W5).faults = 1
    lost = s.begin("B", "write", "in doubt", c="a", updates=W4)
    s.commit("B", append("a", *W4))
    s.fail(lost, "Indeterminate").faults = 2
    unlooked = s.refused("B", "seal", "unlooked", "FrontierRegression", {"asked": 1, "current": 5}, c="a", upper=1)
    unlooked.args["looked"] = False
    s.refused("B", "close", "close", "Unseen", {"classes": ["FrontierRegression"]})
    s.refused("B", "upper", "after close", "ClientClosed", {}, c="a")
    s.write("A", "destroy", "destroy", {"kind": "destroy", "collection": "b"}, c="b")
    s.refused("A", "load", "gone", "CollectionNotFound", {}, name="b")
    s.call("R", "collections", "names", value=["a"])
    s.clock_s = 1000.0
    s.history.deletions.append(Deletion("part/w2", s.moment(), "A", s.clock_s))
    crashed = s.begin("A", "write", "crashed", c="a", updates=W6)
    s.call("A", "crash")
    assert crashed.returned is None
    opened = s.begin("X", "open", "x", mode="exclusive", reentrance_id="x", force=False)
    s.commit("X", {"kind": "open_writer", "reentrance_id": "x"})
    s.end(opened)
    s.refused("Z", "open", "locked", "Locked", {}, mode="exclusive", reentrance_id="y", force=False)
    forced = s.begin("Y", "open", "y", mode="exclusive", reentrance_id="y", force=True)
    s.commit("Y", {"kind": "open_writer", "reentrance_id": "y", "force": True})
    s.end(forced)
    s.refused("X", "seal", "fenced", "WriterFenced", {}, c="a", upper=6)
    s.write("Y", "seal", "last", seal("a", EMPTY), c="a", upper=EMPTY)
    s.call("Y", "fsck", "fsck", value=[])
    return copy.deepcopy(s)  # Plants change it.


def test_a_good_history_passes() -> None:
    assert judge(good().history) == []


def test_history_survives_being_written_down() -> None:
    text = good().history.to_json()
    assert History.from_json(text).to_json() == text
    assert judge(History.from_json(text)) == []


Plant = Callable[[Story], object]
PLANTS: dict[str, tuple[str, Plant]] = {}


def plant(rule: str) -> Callable[[Plant], Plant]:
    """Register a change that breaks rule."""

    def register(change: Plant) -> Plant:
        PLANTS[change.__name__] = rule, change
        return change

    return register


def accept(s: Story, label: str, value: Any = None) -> None:
    s.labels[label].outcome = ["ok", value]


def refuse(s: Story, label: str, error: str, **attributes: Any) -> None:
    s.labels[label].outcome = ["error", error, attributes]


def commit_of(s: Story, label: str) -> Commit:
    event = s.labels[label]
    assert event.returned is not None
    return next(c for c in s.history.commits if event.invoked < c.at < event.returned)


@plant("deletion")
def a_blob_is_deleted_under_a_reader(s: Story) -> None:
    hold = {"kind": "hold", "collection": "a", "hold": "e" * 32, "time": 3, "lease": "m"}
    insert(s, "since", {"kind": "lease", "lease": "m", "expires_ms": 10**9}, hold)


def drop(s: Story, label: str) -> None:
    """Empty the record that a call made; the seqnos stay as they are."""
    commit_of(s, label).mutations.clear()


def insert(s: Story, label: str, *mutations: dict[str, Any], client: str | None = None) -> int:
    """Put a record into the log while a call is made; the seqnos after it, and the answers that name them, move."""
    event = s.labels[label]
    assert event.returned is not None
    for other in s.history.events:
        other.invoked *= 2
        other.returned = None if other.returned is None else other.returned * 2
    for commit in s.history.commits:
        commit.at *= 2
    for deletion in s.history.deletions:
        deletion.at *= 2
    at = event.invoked + 1
    seqno = sum(commit.at < at for commit in s.history.commits)
    for other in s.history.events:
        if other.ok and other.op in MUTATING and other.op != "multi" and other.outcome[1] >= seqno:
            other.outcome[1] += 1
    s.history.commits.insert(seqno, Commit(seqno, at, client or event.client, list(mutations), s.clock_s - 950))
    for n, commit in enumerate(s.history.commits):
        commit.seqno = n
    chain(s.history)
    return seqno


@plant("once")
def a_write_is_there_twice(s: Story) -> None:
    event = s.labels["crashed"]
    s.history.events.remove(event)
    retry = s.begin("A", "write", "retry", c="a", updates=W4)
    s.commit("A", append("a", *W4))
    s.end(retry, len(s.history.commits) - 1)


@plant("once")
def a_token_does_not_keep_a_group_from_writing_twice(s: Story) -> None:
    for update in s.history.commits[3].mutations[0]["updates"]:
        update[3] *= 2


@plant("order")
def calls_are_committed_out_of_order(s: Story) -> None:
    s.labels["s3"].outcome[1], s.labels["w1"].outcome[1] = 2, 4


@plant("order")
def a_write_lands_after_its_acknowledgement(s: Story) -> None:
    w1 = s.labels["w1"]
    commit, w1.returned = commit_of(s, "w1"), commit_of(s, "w1").at
    commit.at += 1


@plant("feed")
def a_feed_tells_an_update_twice(s: Story) -> None:
    s.labels["poll"].outcome[1]["updates"][:0] = [[1, "x", 2, -1]]


@plant("hold")
def since_passes_a_hold(s: Story) -> None:
    commit = next(c for c in s.history.commits if any(m.get("hold") == LEASED for m in c.mutations))
    commit.mutations.pop()
    accept(s, "since", 3)


@plant("hold")
def a_named_hold_moves_without_comparing(s: Story) -> None:
    advance = s.begin("Y", "advance", hold=s.labels["named"].id, time=5)
    s.commit("Y", {"kind": "hold", "collection": "a", "hold": "one", "time": 5, "expected": 4})
    s.end(advance)


@plant("exclusive")
def a_fenced_writer_writes(s: Story) -> None:
    last = commit_of(s, "last")
    last.client = s.labels["last"].client = "X"


# Changes of one step: the rule that each breaks, and what it does.
SMALL: dict[str, tuple[str, Plant]] = {
    "a_merge_loses_an_update": ("compaction", lambda s: commit_of(s, "compact").mutations[0]["parts"][0].pop()),
    "a_merge_moves_an_update_in_time": (
        "compaction",
        lambda s: commit_of(s, "compact").mutations[0]["parts"][0][1].__setitem__(2, 1),
    ),
    "a_keyframe_holds_what_was_retracted": (
        "compaction",
        lambda s: commit_of(s, "compact").mutations[0]["parts"][1].insert(0, [1, "x", 4, 1]),
    ),
    "a_keyframe_of_a_time_that_is_not_sealed": (
        "compaction",
        lambda s: commit_of(s, "compact").mutations[0]["keyframes"][0].__setitem__(0, 5),
    ),
    "a_merge_leaves_its_sources_in_place": (
        "compaction",
        lambda s: commit_of(s, "compact").mutations[0].update(removed_runs=[0], unused=[]),
    ),
    "history_is_forgotten_that_may_be_read": (
        "compaction",
        lambda s: commit_of(s, "compact").mutations[0].update(removed_runs=[0, 1, 2], runs=[], history_from=5),
    ),
    "a_blob_in_use_is_said_to_be_unused": (
        "compaction",
        lambda s: commit_of(s, "compact").mutations[0]["unused"].append("part/merged"),
    ),
    "a_blob_in_use_is_deleted": ("deletion", lambda s: setattr(s.history.deletions[0], "key", "part/keyframe")),
    "a_blob_is_deleted_within_the_grace_period": (
        "deletion",
        lambda s: setattr(s.history.deletions[0], "clock_s", 50.0),
    ),
    "a_compaction_fails": ("refused", lambda s: refuse(s, "compact", "CorruptBlob: part/w2")),
    "an_acknowledged_write_is_not_there": ("lost", lambda s: drop(s, "w1")),
    "an_acknowledged_seal_is_not_there": ("lost", lambda s: drop(s, "last")),
    "what_was_allowed_to_be_compacted_is_forgotten": ("lost", lambda s: drop(s, "allow")),
    "a_destroyed_collection_is_still_there": (
        "destroy",
        lambda s: s.history.commits[commit_of(s, "destroy").seqno].mutations.pop(0),
    ),
    "a_record_holds_what_nobody_wrote": (
        "phantom",
        lambda s: s.history.commits[2].mutations[0]["updates"].append([7, "q", 0, 1]),
    ),
    "a_record_seals_what_nobody_sealed": ("phantom", lambda s: s.history.commits[2].mutations.append(seal("b", 1))),
    "a_crashed_call_does_what_it_was_not_asked_for": (
        "phantom",
        lambda s: s.commit("A", append("a", [1097, "m", 6, 1])),
    ),
    "a_multi_write_is_there_by_half": ("atomic", lambda s: commit_of(s, "multi").mutations.pop(1)),
    "a_write_is_there_by_half": ("atomic", lambda s: commit_of(s, "in doubt").mutations[0]["updates"].pop(1)),
    "a_block_that_raised_is_there": ("atomic", lambda s: accept(s, "raised")),
    "a_write_is_there_in_spite_of_its_error": ("refused", lambda s: refuse(s, "in doubt", "Unavailable")),
    "a_token_is_not_remembered": ("token", lambda s: s.history.commits[3].mutations.pop(1)),
    "a_late_write_is_accepted": (
        "late",
        lambda s: accept(s, "late", insert(s, "late", append("a", [1099, "m", 2, 1]))),
    ),
    "a_refusal_names_the_wrong_upper": ("late", lambda s: s.labels["late"].outcome[2].__setitem__("upper", 4)),
    "a_seal_goes_back": ("frontier", lambda s: s.commit("A", seal("a", 1))),
    "upper_is_told_wrong": ("frontier", lambda s: accept(s, "upper", 2)),
    "since_is_told_wrong": ("frontier", lambda s: accept(s, "since", 3)),
    "a_seal_that_goes_back_is_acknowledged": ("frontier", lambda s: accept(s, "back", 4)),
    "another_upper_than_the_expected_one_is_taken": (
        "expected_upper",
        lambda s: s.labels["s3"].args.__setitem__("expected_upper", 1),
    ),
    "the_actual_upper_is_told_wrong": (
        "expected_upper",
        lambda s: s.labels["mismatch"].outcome[2].__setitem__("actual", 5),
    ),
    "a_valid_call_is_refused": ("refused", lambda s: refuse(s, "upper", "CollectionNotFound")),
    "storage_is_blamed_without_a_fault": ("outage", lambda s: setattr(s.labels["outage"], "faults", 0)),
    "a_time_that_is_not_sealed_is_read": ("sealed", lambda s: accept(s, "unsealed", 3)),
    "a_time_that_is_compacted_is_read": ("since", lambda s: accept(s, "compacted", 2)),
    "snapshots_are_of_two_states": ("snapshot", lambda s: accept(s, "together", [["a", 2, 3], ["b", 0, 3]])),
    "a_backup_is_of_a_record_of_long_ago": ("backup", lambda s: accept(s, "backup", [1, {}])),
    "a_backup_lacks_a_record": ("backup", lambda s: s.labels["backup"].outcome[1][1]["b"][3].pop()),
    "a_snapshot_lacks_a_record": ("snapshot", lambda s: accept(s, "read", AS_OF_1[:-1])),
    "a_snapshot_holds_what_came_later": ("snapshot", lambda s: accept(s, "read", AS_OF_1[1:])),
    "a_feed_misses_an_update": ("feed", lambda s: s.labels["poll"].outcome[1]["updates"].pop(1)),
    "a_feed_begins_with_another_snapshot": (
        "feed",
        lambda s: s.labels["first"].outcome[1]["updates"].append([2, "y", 1, 1]),
    ),
    "a_feed_claims_more_than_is_sealed": ("feed", lambda s: s.labels["poll"].outcome[1].__setitem__("upper", 6)),
    "a_feed_does_not_tell_what_there_is": ("feed", lambda s: accept(s, "poll", None)),
    "changes_are_out_of_order": ("feed", lambda s: s.labels["changes"].outcome[1].reverse()),
    "a_named_hold_moves_by_itself": (
        "hold",
        lambda s: s.commit("Y", {"kind": "hold", "collection": "a", "hold": "one", "time": 4}),
    ),
    "a_named_hold_is_made_elsewhere": ("hold", lambda s: accept(s, "named", 4)),
    "a_lease_is_ended_before_it_runs_out": (
        "lease",
        lambda s: insert(s, "poll", {"kind": "end_lease", "lease": "l", "expires_ms": 60_000}, client="A"),
    ),
    "a_lease_is_said_to_have_run_out": ("refused", lambda s: refuse(s, "poll", "LeaseExpired")),
    "a_closed_client_answers": ("closed", lambda s: accept(s, "after close", EMPTY)),
    "an_error_that_nobody_saw_is_swallowed": ("unseen error", lambda s: accept(s, "close")),
    "a_reader_is_let_write": ("read-only", lambda s: refuse(s, "by reader", "FrontierRegression")),
    "a_reader_stores_something": ("read-only", lambda s: s.history.stored.__setitem__("R", 1)),
    "a_second_exclusive_client_is_let_in": ("exclusive", lambda s: s.labels["y"].args.__setitem__("force", False)),
    "a_fenced_writer_is_told_something_else": (
        "exclusive",
        lambda s: refuse(s, "fenced", "FrontierRegression", asked=6, current=5),
    ),
    "a_destroyed_collection_is_found": ("destroy", lambda s: accept(s, "gone", "b")),
    "names_are_told_wrong": ("destroy", lambda s: accept(s, "names", ["a", "b"])),
    "a_seqno_is_used_twice": ("log", lambda s: setattr(s.history.commits[4], "seqno", 3)),
    "a_record_was_made_after_another_than_the_last": (
        "chain",
        lambda s: setattr(s.history.commits[4], "previous", s.history.commits[2].commit),
    ),
    "the_location_is_damaged": ("fsck", lambda s: accept(s, "fsck", ["blob part/… is corrupt"])),
}
PLANTS.update(SMALL)


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_violation_is_found_and_named(name: str) -> None:
    rule, change = PLANTS[name]
    story = good()
    change(story)
    found = [str(violation) for violation in judge(story.history)]
    assert any(text.startswith(f"[{rule}]") for text in found), found


def test_a_doubtful_write_may_be_absent() -> None:
    story = good()
    drop(story, "in doubt")
    assert judge(story.history) == []


def test_a_crashed_write_may_be_there() -> None:
    story = good()
    story.labels["crashed"].returned = story.labels["crashed"].invoked + 1
    insert(story, "crashed", append("a", *W6))
    story.labels["crashed"].returned = None
    assert judge(story.history) == []


def test_a_record_below_the_floor_is_not_part_of_the_log() -> None:
    story = good()
    story.commit("Y", {"kind": "truncate", "floor": 5})
    stale = story.commit("A", append("a", [5, "q", 9, 1]))
    story.history.commits[-1].seqno = 2
    assert judge(story.history) == []
    story.history.commits[-1].seqno = stale - 5
    assert [violation.rule for violation in judge(story.history)][:1] == ["log"]
