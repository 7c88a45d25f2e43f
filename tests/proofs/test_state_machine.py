"""Two clients on one location against the model, over a store that loses answers and refuses calls."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import persist
from persist.blob.layers.unreliable import UnreliableBlob
from persist.blob.protocol import MemoryBlob
from persist.core.settings import Tuning
from tests.support.clocks import ImpatientClock
from tests.support.model import EMPTY, Collection, Refused, changes, contents
from tests.support.stepped import WAIT_S
from tests.support.tiers import examples
from tests.support.tuned import tuned

NAMES = st.sampled_from(["orders", "items"])
TIMES = st.integers(0, 12)
CLIENTS = st.integers(0, 1)
RECORDS = st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", None]))
UPDATES = st.lists(st.tuples(RECORDS, TIMES, st.integers(-2, 3)), max_size=5)
KEY, VALUE = {"k": pa.int64()}, {"v": pa.string()}


Update = tuple[tuple[Any, Any], int, int]


class Modelled:
    """A collection of the model, with its updates."""

    def __init__(self) -> None:
        self.state = Collection()
        self.updates: list[Update] = []

    def write(self, updates: list[Update]) -> None:
        self.state.check_write(updates)
        self.updates += updates

    def seal(self, upper: int | None) -> None:
        self.state = self.state.after("seal", EMPTY if upper is None else upper)

    def allow_compaction(self, since: int) -> None:
        self.state = self.state.after("allow_compaction", since)

    def hold(self, reader: object, time: int) -> None:
        self.state = self.state.holding(reader, time)

    def contents(self, as_of: int) -> dict[Any, int]:
        self.state.check_snapshot(as_of)
        return contents(self.updates, as_of)

    def changes(self, lower: int, upper: int) -> dict[Any, int]:
        self.state.check_changes(lower, upper)
        return changes(self.updates, lower, upper)


class TwoClients(RuleBasedStateMachine):
    """Every operation by either client does what the model does, and both clients see it at once."""

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.blob = UnreliableBlob(
            MemoryBlob(),
            random.Random(seed),
            unavailable=0.1,
            not_happened_doubtful=0.1,
            happened_but_failed=0.1,
            operations={"create"},
        )
        self.clients = [self.opened() for _ in range(2)]
        self.model: dict[str, Modelled] = {}
        self.handles: dict[tuple[int, str], persist.Collection] = {}
        self.snapshots: list[tuple[persist.Snapshot, dict[Any, int]]] = []
        self.listens: list[tuple[persist.Listen, Modelled, int, Counter[Any]]] = []

    @staticmethod
    def settings() -> persist.Settings:
        # Garbage goes as soon as nobody claims it, although two clients use the location: both have leases.
        return tuned(background=False, grace_s=0, orphan_grace_s=0, tuning=replace(small_policy(), hold_linger_s=0))

    def opened(self) -> persist.Client:
        return persist.open(self.blob, clock=ImpatientClock(), settings=self.settings())

    def teardown(self) -> None:
        for client in self.clients:
            client.close()

    def pick(self, client: int, name: str) -> tuple[persist.Collection, Modelled]:
        if (client, name) not in self.handles:
            handle = self.clients[client].create_or_load(name, key=KEY, value=VALUE)
            self.handles[client, name] = handle
        return self.handles[client, name], self.model.setdefault(name, Modelled())

    def agree(self, ours: Callable[[], Any], theirs: Callable[[], Any]) -> None:
        """Make a call on the library and on the model; they agree on the result, or on the error's class."""
        try:
            expected = theirs()
        except Refused as refused:
            with pytest.raises(getattr(persist.errors, refused.error)):
                ours()
        else:
            assert ours() == expected

    @rule(client=CLIENTS, name=NAMES, updates=UPDATES)
    def write(self, client: int, name: str, updates: list[Update]) -> None:
        handle, model = self.pick(client, name)
        self.agree(lambda: settle(handle.write(updates)), lambda: model.write(updates))

    @rule(client=CLIENTS, name=NAMES, upper=st.one_of(TIMES, TIMES, TIMES, st.none()))
    def seal(self, client: int, name: str, upper: int | None) -> None:
        handle, model = self.pick(client, name)
        frontier = persist.Antichain() if upper is None else persist.Antichain(upper)
        self.agree(lambda: settle(handle.seal(frontier)), lambda: model.seal(upper))

    @rule(client=CLIENTS, name=NAMES, since=TIMES)
    def allow_compaction(self, client: int, name: str, since: int) -> None:
        handle, model = self.pick(client, name)
        self.agree(lambda: settle(handle.allow_compaction(since)), lambda: model.allow_compaction(since))

    @rule(client=CLIENTS, name=NAMES, calls=st.lists(st.one_of(UPDATES, TIMES), max_size=6))
    def issue_without_waiting(self, client: int, name: str, calls: list[Any]) -> None:
        """Writes and seals are applied in call order; each fails or succeeds on its own."""
        handle, model = self.pick(client, name)
        futures = [handle.seal(c) if isinstance(c, int) else handle.write(c) for c in calls]
        for call, future in zip(calls, futures, strict=True):
            expected = model.seal if isinstance(call, int) else model.write
            self.agree(partial(settle, future), partial(expected, call))

    @rule(client=CLIENTS, orders=UPDATES, items=UPDATES, upper=TIMES)
    def multi_write(self, client: int, orders: list[Update], items: list[Update], upper: int) -> None:
        (a, model_a), (b, model_b) = self.pick(client, "orders"), self.pick(client, "items")

        def ours() -> None:
            with self.clients[client].multi_write() as multi:
                multi.write(a, orders)
                multi.write(b, items)
                multi.seal(a, upper)

        def theirs() -> None:
            model_a.state.check_write(orders)
            model_b.state.check_write(items)
            model_a.seal(upper)
            model_a.updates += orders
            model_b.updates += items

        self.agree(ours, theirs)

    @rule(client=CLIENTS, name=NAMES)
    def destroy(self, client: int, name: str) -> None:
        handle, _ = self.pick(client, name)
        handle.drop().result()
        with pytest.raises(persist.errors.CollectionNotFound):
            _ = handle.upper
        del self.model[name]
        self.handles = {key: h for key, h in self.handles.items() if key[1] != name}
        self.listens = [each for each in self.listens if each[0].id != handle.id]

    @rule(client=CLIENTS, name=NAMES, only_due=st.booleans())
    def compact(self, client: int, name: str, only_due: bool) -> None:
        """Nobody notices: the invariants look at snapshots that were taken before."""
        handle, _ = self.pick(client, name)
        patiently(lambda: handle.compact(only_due=only_due))

    @rule(client=CLIENTS)
    def gc(self, client: int) -> None:
        patiently(self.clients[client].gc)

    @rule(client=CLIENTS)
    def reopen(self, client: int) -> None:
        """A client that closes, or is gone, takes nothing with it."""
        self.clients[client].close()
        self.clients[client] = self.opened()
        self.handles = {key: h for key, h in self.handles.items() if key[0] != client}
        for snapshot, _ in self.snapshots:
            snapshot.close()
        for listen, *_ in self.listens:
            listen.close()
        for model in self.model.values():
            model.state = model.state.holding_only({})
        self.snapshots, self.listens = [], []

    @rule(client=CLIENTS, name=NAMES, as_of=TIMES)
    def snapshot(self, client: int, name: str, as_of: int) -> None:
        handle, model = self.pick(client, name)

        def ours() -> dict[Any, int]:
            snapshot = handle.snapshot(as_of, form="diff", timeout_s=0)
            found = dict(snapshot.rows())
            assert snapshot.count() == sum(found.values())
            self.snapshots.append((snapshot, found))
            model.hold(snapshot, as_of)
            return found

        self.agree(ours, lambda: model.contents(as_of))

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data(), keys=st.lists(st.one_of(st.none(), st.integers(-1, 4)), max_size=5))
    def lookup(self, data: st.DataObject, keys: list[int | None]) -> None:
        """A look-up, now or long after the snapshot was taken, gives what it holds under these keys, each once."""
        snapshot, found = data.draw(st.sampled_from(self.snapshots))
        rows = snapshot.get(pa.array(keys, pa.int64())).to_pylist()
        looked_up = [((row["k"], row["v"]), row["_diff"]) for row in rows]
        assert sorted(looked_up, key=repr) == sorted((each for each in found.items() if each[0][0] in keys), key=repr)

    @rule(client=CLIENTS, name=NAMES, lower=TIMES, length=st.integers(0, 6))
    def changes(self, client: int, name: str, lower: int, length: int) -> None:
        handle, model = self.pick(client, name)

        def ours() -> dict[Any, int]:
            updates = list(handle.changes(lower, lower + length, timeout_s=0).updates())
            assert [t for _, t, _ in updates] == sorted(t for _, t, _ in updates)
            return {(record, time): diff for record, time, diff in updates}

        self.agree(ours, lambda: model.changes(lower, lower + length))

    @rule(client=CLIENTS, name=NAMES, as_of=TIMES)
    def subscribe(self, client: int, name: str, as_of: int) -> None:
        handle, model = self.pick(client, name)

        def ours() -> bool:
            listen = handle.subscribe(as_of, timeout_s=0)
            self.listens.append((listen, model, as_of, Counter()))
            model.hold(listen, as_of)
            return True

        self.agree(ours, lambda: model.contents(as_of) is not None)

    @precondition(lambda self: self.listens)
    @rule(data=st.data())
    def poll(self, data: st.DataObject) -> None:
        """What a subscriber has added up is the contents as of the last time before its upper."""
        listen, model, _, sums = data.draw(st.sampled_from(self.listens))
        while (progress := listen.poll()) is not None:
            for row in progress.updates.to_pylist():
                sums[row["k"], row["v"]] += row["_diff"]
            last = 100 if progress.upper.is_empty else (progress.upper.time or 0) - 1
            assert {record: n for record, n in sums.items() if n} == model.contents(last)
            if progress.upper.is_empty:
                model.state = model.state.released(listen)
            else:
                model.hold(listen, max(last, model.state.holds[listen][0]))

    @invariant()
    def snapshots_taken_earlier_read_the_same(self) -> None:
        for snapshot, found in getattr(self, "snapshots", [])[-2:]:
            assert dict(snapshot.rows()) == found

    @invariant()
    def both_clients_see_the_same_frontiers(self) -> None:
        for client in getattr(self, "clients", []):
            patiently(client.maintain)
        for (_, name), handle in getattr(self, "handles", {}).items():
            upper, since = self.model[name].state.upper, self.model[name].state.since
            assert handle.upper == (persist.Antichain() if upper == EMPTY else persist.Antichain(upper))
            assert handle.since == persist.Antichain(since)


def small_policy() -> Tuning:
    """Return a policy under which there is always something to do."""
    return Tuning(
        keyframe_rows_min=3,
        keyframe_fraction=0.1,
        merge_runs=2,
        inline_runs=3,
        inline_bytes=2000,
        part_bytes=1,  # So that runs have parts.
    )


def patiently(call: Callable[[], object]) -> None:
    """Make a call, however often the store refuses."""
    while True:
        try:
            call()
            return
        except (persist.Unavailable, persist.Indeterminate):
            continue


def settle(future: persist.CommitFuture) -> None:
    """Wait for a commit and forget its seqno."""
    future.result(timeout=WAIT_S)


TestTwoClients = TwoClients.TestCase
TestTwoClients.settings = settings(
    max_examples=examples(60, quick=4), stateful_step_count=30, suppress_health_check=list(HealthCheck)
)
