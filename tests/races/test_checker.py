"""The checker finds planted violations, one of each kind, and accepts what is right."""

from typing import Any

import pytest

from tests.races.checker import check
from tests.races.history import NEVER_NS, Call, with_log


class History:
    """Calls written down by hand: times are in any unit, and each client numbers its calls."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def call(self, client: str, op: str, when: tuple[int, int], args: dict[str, Any], answer: dict[str, Any]) -> None:
        number = sum(call.client == client for call in self.calls)
        self.calls.append(Call(client, number, op, args, when[0], when[1], answer))

    def open(self, client: str, when: tuple[int, int], answer: Any, *, id_: str = "red", force: bool = False) -> None:
        self.call(client, "open", when, {"mode": "exclusive", "id": id_, "force": force}, _answer(answer))

    def close(self, client: str, when: tuple[int, int], seqno: int) -> None:
        self.call(client, "close", when, {}, {"seqno": seqno})

    def write(self, client: str, when: tuple[int, int], updates: list[Any], answer: Any) -> None:
        self.call(client, "commit", when, {"steps": [["write", "k", updates]]}, _answer(answer))

    def seal(self, client: str, when: tuple[int, int], upper: int, answer: Any) -> None:
        self.call(client, "commit", when, {"steps": [["seal", "k", upper]]}, _answer(answer))

    def steps(self, client: str, when: tuple[int, int], steps: list[Any], answer: Any) -> None:
        self.call(client, "commit", when, {"steps": steps}, _answer(answer))

    def upper(self, client: str, when: tuple[int, int], value: int) -> None:
        self.call(client, "upper", when, {"collection": "k"}, {"value": value})

    def since(self, client: str, when: tuple[int, int], value: int) -> None:
        self.call(client, "since", when, {"collection": "k"}, {"value": value})

    def snapshot(self, client: str, when: tuple[int, int], as_of: int, rows: list[Any]) -> None:
        self.call(client, "snapshot", when, {"collection": "k", "as_of": as_of}, {"rows": rows})

    def changes(self, client: str, when: tuple[int, int], lower: int, upper: int, rows: list[Any]) -> None:
        self.call(client, "changes", when, {"collection": "k", "lower": lower, "upper": upper}, {"rows": rows})

    def violations(self, **options: Any) -> list[str]:
        return check(sorted(self.calls, key=lambda call: call.invoked_ns), **options).violations

    def accepted(self) -> None:
        assert self.violations() == []

    def refused(self, *words: str) -> None:
        found = self.violations()
        assert found, "the planted violation was not found"
        assert any(all(word in violation for word in words) for violation in found), found


def _answer(answer: Any) -> dict[str, Any]:
    return {"seqno": answer} if isinstance(answer, int) else dict(answer)


def not_beyond(time: int, upper: int) -> dict[str, Any]:
    return {"error": "UpdateNotBeyondUpper", "time": time, "upper": upper}


def regression(asked: int, current: int, frontier: str = "upper") -> dict[str, Any]:
    return {"error": "FrontierRegression", "frontier": frontier, "asked": asked, "current": current}


LOCKED = {"error": "Locked"}
FENCED = {"error": "WriterFenced"}


@pytest.fixture
def h() -> History:
    return History()


def test_what_is_right_is_accepted(h: History) -> None:
    h.write("a", (0, 5), [["x", 1, 2]], 0)
    h.seal("b", (1, 6), 2, 1)
    h.write("a", (7, 9), [["y", 1, 1]], not_beyond(1, 2))
    h.seal("a", (10, 12), 1, regression(1, 2))
    h.upper("c", (2, 11), 2)
    h.snapshot("c", (12, 13), 1, [["x", 2]])
    h.changes("c", (14, 15), 1, 2, [["x", 1, 2]])
    h.accepted()


def test_a_group_shares_its_seqno(h: History) -> None:
    h.write("a", (0, 10), [["x", 1, 1]], 0)
    h.seal("a", (1, 10), 2, 0)
    h.write("a", (2, 10), [["y", 1, 1]], not_beyond(1, 2))
    h.seal("a", (3, 10), 3, 0)
    h.accepted()


def test_two_clients_with_one_seqno(h: History) -> None:
    h.write("a", (0, 5), [["x", 1, 1]], 0)
    h.write("b", (0, 5), [["y", 1, 1]], 0)
    h.refused("seqno 0", "2 clients")


def test_a_commit_that_changes_nothing_has_the_seqno_of_another(h: History) -> None:
    h.seal("a", (0, 5), 2, 0)
    h.seal("b", (0, 5), 2, 0)
    h.seal("c", (6, 7), 2, 0)
    h.accepted()


def test_a_commit_that_changes_nothing_but_not_where_it_says(h: History) -> None:
    h.seal("a", (0, 5), 2, 0)
    h.seal("b", (6, 7), 3, 1)
    h.seal("c", (8, 9), 2, 0)  # Upper is 3 by now, so this should have been refused.
    h.refused("c#0", "no state")


def test_seqnos_against_real_time(h: History) -> None:
    h.write("a", (0, 5), [["x", 1, 1]], 1)
    h.write("b", (6, 7), [["y", 1, 1]], 0)
    h.refused("b#0", "answered before it began")


def test_seqnos_against_the_call_order_of_a_client(h: History) -> None:
    h.write("a", (0, 10), [["x", 1, 1]], 1)
    h.write("a", (1, 10), [["y", 1, 1]], 0)
    h.refused("a#1", "earlier call of its client")


def test_an_acknowledged_write_at_a_sealed_time(h: History) -> None:
    h.seal("a", (0, 5), 2, 0)
    h.write("b", (0, 5), [["x", 1, 1]], 1)
    h.refused("seqno 1", "UpdateNotBeyondUpper")


def test_an_acknowledged_seal_that_goes_back(h: History) -> None:
    h.seal("a", (0, 5), 2, 0)
    h.seal("b", (0, 5), 1, 1)
    h.refused("seqno 1", "FrontierRegression")


def test_since_that_goes_back(h: History) -> None:
    h.steps("a", (0, 5), [["allow_compaction", "k", 4]], 0)
    h.steps("b", (0, 5), [["allow_compaction", "k", 3]], 1)
    h.refused("seqno 1", "since")


def test_half_of_a_multi_write(h: History) -> None:
    h.seal("a", (0, 5), 2, 0)
    h.steps("b", (0, 5), [["seal", "other", 1], ["write", "k", [["x", 1, 1]]]], 1)
    h.refused("seqno 1", "UpdateNotBeyondUpper")


def test_a_refusal_without_a_reason(h: History) -> None:
    h.write("a", (0, 5), [["x", 1, 1]], not_beyond(1, 2))
    h.refused("a#0", "no state")


def test_a_refusal_for_a_seal_that_began_later(h: History) -> None:
    h.write("a", (0, 5), [["x", 1, 1]], not_beyond(1, 2))
    h.seal("b", (6, 7), 2, 0)
    h.refused("a#0", "no state")


def test_a_refusal_with_an_upper_of_long_ago(h: History) -> None:
    h.seal("a", (0, 1), 2, 0)
    h.seal("a", (2, 3), 4, 1)
    h.write("b", (4, 5), [["x", 1, 1]], not_beyond(1, 2))
    h.refused("b#0", "no state")


def test_a_refusal_for_the_seal_of_another_client_s_group_under_way(h: History) -> None:
    h.seal("a", (0, 10), 2, 0)
    h.seal("a", (0, 10), 4, 0)
    h.write("b", (1, 9), [["x", 1, 1]], not_beyond(1, 2))  # Nobody else ever sees upper 2.
    h.refused("b#0", "no state")


def test_a_refusal_that_shows_a_seal_which_a_later_read_does_not(h: History) -> None:
    h.seal("a", (0, 10), 2, 0)
    h.write("a", (1, 3), [["x", 1, 1]], not_beyond(1, 2))
    h.upper("b", (4, 5), 0)
    h.refused("b#0", "no state")


def test_a_refusal_for_a_later_call_of_its_own(h: History) -> None:
    h.write("a", (0, 10), [["x", 1, 1]], not_beyond(1, 2))
    h.seal("a", (1, 9), 2, 0)
    h.refused("a#0", "no state")


def test_a_refusal_of_a_kind_that_does_not_exist(h: History) -> None:
    h.write("a", (0, 5), [["x", 1, 1]], {"error": "AssertionError"})
    h.refused("a#0", "AssertionError")


def test_a_healthy_store_that_is_unavailable(h: History) -> None:
    h.write("a", (0, 5), [["x", 1, 1]], {"error": "Unavailable"})
    h.refused("a#0", "healthy")
    assert h.violations(healthy=False) == []


def test_a_stale_upper(h: History) -> None:
    h.seal("a", (0, 5), 2, 0)
    h.upper("b", (6, 7), 0)
    h.refused("b#0", "no state")


def test_an_upper_from_the_future(h: History) -> None:
    h.upper("b", (0, 1), 2)
    h.seal("a", (2, 5), 2, 0)
    h.refused("b#0", "no state")


def test_two_reads_that_disagree_on_what_came_first(h: History) -> None:
    h.seal("a", (0, 100), 2, 0)
    h.upper("b", (1, 2), 2)
    h.upper("c", (3, 4), 0)
    h.refused("c#0", "no state")


def test_a_since_nobody_asked_for(h: History) -> None:
    h.steps("a", (0, 5), [["allow_compaction", "k", 4]], 0)
    h.since("b", (6, 7), 5)
    h.refused("b#0", "no state")


def test_an_acknowledged_write_that_is_lost(h: History) -> None:
    h.write("a", (0, 5), [["x", 1, 1]], 0)
    h.seal("a", (6, 7), 2, 1)
    h.snapshot("b", (8, 9), 1, [])
    h.refused("b#0", "lacks", "x")


def test_a_write_that_happened_twice(h: History) -> None:
    h.write("a", (0, 5), [["x", 1, 1]], 0)
    h.seal("a", (6, 7), 2, 1)
    h.changes("b", (8, 9), 1, 2, [["x", 1, 2]])
    h.refused("b#0", "besides", "x")


def test_a_refused_write_that_is_there(h: History) -> None:
    h.seal("a", (0, 1), 2, 0)
    h.write("a", (2, 3), [["x", 1, 1]], not_beyond(1, 2))
    h.snapshot("b", (8, 9), 1, [["x", 1]])
    h.refused("b#0", "besides", "x")


def test_a_snapshot_that_is_not_sealed(h: History) -> None:
    h.snapshot("b", (0, 1), 1, [])
    h.refused("b#0", "no state")


def test_a_snapshot_before_since(h: History) -> None:
    h.steps("a", (0, 1), [["seal", "k", 9], ["allow_compaction", "k", 4]], 0)
    h.snapshot("b", (2, 3), 3, [])
    h.refused("b#0", "no state")


def test_an_expected_upper_that_was_another(h: History) -> None:
    h.seal("a", (0, 5), 2, 0)
    h.steps("b", (0, 5), [["expect", "k", 0], ["seal", "k", 4]], 1)
    h.refused("seqno 1", "UpperMismatch")


def test_a_mismatch_with_an_upper_there_never_was(h: History) -> None:
    h.seal("a", (0, 5), 2, 0)
    h.steps("b", (0, 5), [["expect", "k", 0]], {"error": "UpperMismatch", "expected": 0, "actual": 1})
    h.refused("b#0", "no state")


def test_a_call_without_an_answer_may_have_happened_or_not(h: History) -> None:
    h.write("a", (0, NEVER_NS), [["x", 1, 1]], {})
    h.seal("b", (6, 7), 2, 1)
    h.snapshot("b", (8, 9), 1, [["x", 1]])
    h.accepted()
    h.calls[-1].answer = {"rows": []}
    h.accepted()
    h.calls[-1].answer = {"rows": [["x", 2]]}
    h.refused("b#1", "besides")


def test_a_call_without_an_answer_has_no_place_before_it_began(h: History) -> None:
    h.seal("b", (0, 1), 2, 0)
    h.seal("a", (2, NEVER_NS), 5, {})
    h.upper("c", (3, 4), 5)
    h.accepted()
    h.upper("c", (5, 6), 2)
    h.refused("c#1", "no state")


def test_an_unknown_outcome_in_the_words_of_the_library(h: History) -> None:
    h.seal("a", (0, 5), 2, {"error": "Indeterminate"})
    h.upper("b", (6, 7), 2)
    assert h.violations(healthy=False) == []
    h.refused("a#0", "healthy")


# Exclusive writers.


def test_exclusive_writers_take_over_and_are_fenced(h: History) -> None:
    h.open("e", (0, 1), 0)
    h.seal("s", (2, 3), 1, LOCKED)
    h.seal("e", (4, 5), 2, 1)
    h.open("f", (6, 7), 2)
    h.seal("e", (8, 9), 3, FENCED)
    h.seal("f", (10, 11), 3, 3)
    h.open("g", (12, 13), LOCKED, id_="blue")
    h.open("g2", (14, 15), 4, id_="blue", force=True)
    h.close("g2", (16, 17), 5)
    h.seal("s", (18, 19), 4, 6)
    h.seal("e", (20, 21), 5, FENCED)
    h.accepted()


def test_a_fenced_writer_that_commits(h: History) -> None:
    h.open("e", (0, 1), 0)
    h.open("f", (2, 3), 1)
    h.seal("e", (2, 9), 2, 2)
    h.refused("seqno 2", "WriterFenced")


def test_a_writer_that_is_fenced_only_once(h: History) -> None:
    h.open("e", (0, 1), 0)
    h.open("f", (2, 3), 1)
    h.seal("e", (4, 5), 2, FENCED)
    h.seal("e", (6, 7), 2, 2)
    h.refused("seqno 2", "WriterFenced")


def test_a_shared_writer_beside_an_exclusive_one(h: History) -> None:
    h.open("e", (0, 1), 0)
    h.seal("s", (2, 3), 2, 1)
    h.refused("seqno 1", "Locked")


def test_a_second_holder(h: History) -> None:
    h.open("e", (0, 1), 0)
    h.open("f", (2, 3), 1, id_="blue")
    h.refused("seqno 1", "Locked")


def test_a_lock_that_nobody_holds(h: History) -> None:
    h.open("e", (0, 1), 0)
    h.close("e", (2, 3), 1)
    h.seal("s", (4, 5), 1, LOCKED)
    h.refused("s#0", "no state")


def test_a_writer_fenced_by_nobody(h: History) -> None:
    h.open("e", (0, 1), 0)
    h.seal("e", (2, 3), 1, FENCED)
    h.refused("e#1", "no state")


def test_the_holder_that_is_locked_out_of_its_own(h: History) -> None:
    h.open("e", (0, 1), 0)
    h.open("f", (2, 3), LOCKED)
    h.refused("f#0", "no state")


def test_an_epoch_whose_seqno_is_not_known_has_one(h: History) -> None:
    h.open("e", (0, 1), {})
    h.seal("e", (2, 3), 1, 1)
    h.open("f", (4, 5), {})
    h.seal("f", (6, 7), 2, 3)
    h.accepted()
    h.seal("e", (8, 9), 3, 4)
    h.refused("seqno 4")


def test_of_two_that_could_have_made_a_record_either_may_have(h: History) -> None:
    h.write("a", (0, 10), [["x", 1, 1]], not_beyond(1, 2))
    h.seal("a", (1, 10), 2, 0)  # Answered first, and yet it was b's seal that refused the write of a before.
    h.seal("b", (1, 11), 2, 0)
    h.accepted()


def test_a_repeated_token_does_nothing(h: History) -> None:
    h.steps("a", (0, 5), [["token", "k", "t"], ["write", "k", [["x", 1, 1]]]], 0)
    h.steps("b", (1, 6), [["token", "k", "t"], ["write", "k", [["x", 1, 1]]]], 0)
    h.seal("a", (7, 8), 2, 1)
    h.steps("b", (9, 10), [["token", "k", "t"], ["write", "k", [["x", 1, 1]]]], 0)
    h.snapshot("c", (11, 12), 1, [["x", 1]])
    h.accepted()
    h.calls[-1].answer = {"rows": [["x", 2]]}
    h.refused("c#0", "besides")


def test_since_is_at_most_what_was_asked_for_while_there_are_holds(h: History) -> None:
    h.steps("a", (0, 5), [["seal", "k", 9], ["allow_compaction", "k", 4]], 0)
    h.since("b", (6, 7), 3)
    assert h.violations(holds=True) == []
    assert h.violations()
    h.since("b", (8, 9), 5)
    assert h.violations(holds=True)


# The log's own account of epochs.


def test_the_log_tells_what_clients_are_not_told() -> None:
    def exclusive(client: str, number: int, op: str, at: int, answer: dict[str, Any]) -> Call:
        return Call(
            client, number, op, {"mode": "exclusive", "id": "red", "force": False, "process": 7}, at, at + 1, answer
        )

    calls = [
        exclusive("e1", 0, "open", 0, {}),
        exclusive("e2", 0, "open", 2, {"error": "Locked"}),
        exclusive("e1", 1, "close", 4, {}),
        exclusive("e3", 0, "open", 6, {}),
        exclusive("e3", 1, "close", 8, {}),
        Call("e3", 2, "commit", {"steps": []}, 9, 10, {"error": "Indeterminate"}),
        exclusive("e4", 0, "open", 10, {"error": "Indeterminate"}),
    ]
    records = [
        {"seqno": 3, "writer": "h:7:a", "mutations": [{"kind": "open_writer"}]},
        {"seqno": 5, "writer": "h:7:a", "mutations": [{"kind": "seal"}, {"kind": "close_writer"}]},
        {"seqno": 7, "writer": "h:7:a", "mutations": [{"kind": "seal"}]},
        {"seqno": 8, "writer": "h:8:z", "mutations": [{"kind": "seal"}]},
        {"seqno": 9, "writer": "h:7:b", "mutations": [{"kind": "open_writer"}]},
    ]
    unknown = {"error": "Indeterminate"}
    answers = [call.answer for call in with_log(calls, records)]
    assert answers == [
        {"seqno": 3},
        {"error": "Locked"},
        {"seqno": 5},
        {"seqno": 9},
        {"error": "WriterFenced"},
        {**unknown, "places": [7]},
    ]


SENT = [["a", "one", 0], ["b", "one", 1], ["a", None, 1]]
KEYED = {"machines": {"k": "upsert"}}


def events(h: History, rows: list[Any]) -> list[str]:
    """Two clients whose events of one key and time arrive in the order of their records, and a read of all that."""
    h.steps("A", (0, 1), [["upsert", "k", SENT]], 0)
    h.steps("B", (2, 3), [["upsert", "k", [["a", "two", 0]]], ["seal", "k", 2]], 1)
    h.steps("A", (4, 5), [["upsert", "k", [["a", "late", 1]]]], not_beyond(1, 2))
    h.changes("B", (6, 7), 0, 2, rows)
    return h.violations(**KEYED)


def test_what_events_amount_to_is_accepted(h: History) -> None:
    assert events(h, [["a=two", 0, 1], ["b=one", 1, 1], ["a=two", 1, -1]]) == []


def test_events_in_another_order_are_found(h: History) -> None:
    assert events(h, [["a=one", 0, 1], ["b=one", 1, 1], ["a=one", 1, -1]])


def test_an_event_that_retracts_nothing_is_found(h: History) -> None:
    assert events(h, [["a=two", 0, 1], ["b=one", 1, 1]])
