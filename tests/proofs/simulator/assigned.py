"""Times that commits assigned: the log says which, and what futures told is held against it.

A write without a time names no time in its arguments. Its marker finds the record that holds it. From then on it is
judged like a write at that time with a seal just after it, so that the time must be beyond upper (rule 21). The writes
of one record that share a time are sealed by the last of them. One that no record holds is judged like a write at the
last time there is, which is refused only if the collection is complete for ever.
"""

from collections.abc import Sequence

from tests.proofs.simulator.history import Commit, Event

NEVER = 2**63 - 2


def with_assigned_times(events: Sequence[Event], commits: Sequence[Commit]) -> list[str]:
    """Fill the times in; return where a future told another one."""
    wrong: list[str] = []
    events = [event for event in events if event.op == "write" and "assigned" in event.args]
    asked: dict[tuple[str, int], list[Event]] = {}  # A repetition with the same token has the same marker.
    for event in sorted(events, key=lambda event: event.invoked):
        asked.setdefault((event.args["c"], event.args["updates"][0][0]), []).append(event)
    times: dict[tuple[str, int], int] = {}
    last: dict[tuple[str, int], tuple[int, tuple[str, int]]] = {}  # Of each record, by collection.
    floor, known = 0, set[int]()
    for commit in commits:
        if commit.seqno < floor and commit.seqno in known:
            continue  # Where the log was truncated before: its client finds that out, and commits again.
        known.add(commit.seqno)
        floor = max([floor, *(m["floor"] for m in commit.mutations if m["kind"] == "truncate")])
        for mutation in commit.mutations:
            for k, v, time, _ in mutation["updates"] if mutation["kind"] == "append" else []:
                call = (mutation["collection"], k)
                if v == "m" and call in asked and call not in times:  # A restoration may bring it a second time.
                    times[call] = time
                    key = mutation["collection"], commit.seqno
                    came = next((e.invoked for e in asked[call] if e.client == commit.client), 0)
                    last[key] = max(last.get(key, (-1, call)), (came, call))
    sealing = {call for _, call in last.values()}
    for event in events:
        call = event.args["c"], event.args["updates"][0][0]
        time, told = times.get(call), event.args.pop("assigned")
        if told not in (None, time):
            wrong.append(f"the log has the time {time}, and the future told {told}: {event}")
        at = NEVER if time is None else time
        event.args["updates"] = [[k, v, at, diff] for k, v, _, diff in event.args["updates"]]
        if call in sealing:
            event.args["seal"] = at + 1
    return wrong
