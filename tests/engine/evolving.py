"""What collections whose schemas change at random have in common: all that does not look into the versions."""

from collections import Counter
from dataclasses import replace
from typing import Any, Generic, TypeVar

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import persist
from persist.core.settings import Tuning

POLICY = Tuning(keyframe_rows_min=3, keyframe_fraction=0.1, merge_runs=3, inline_runs=4)
SETTINGS = persist.Settings(background=False, tuning=replace(POLICY, hold_linger_s=0))
V = TypeVar("V")


class EvolvingMachine(RuleBasedStateMachine, Generic[V]):
    """A collection, with a model of each version of its schema.

    Attributes:
        updates: key, record, time, diff and version of each.
        handles: that know of a version, by its number.
    """

    collection: persist.Collection
    versions: list[V]
    handles: dict[int, persist.Collection]

    def __init__(self) -> None:
        super().__init__()
        self.blob = persist.MemoryBlob()
        self.client = persist.open(self.blob, settings=SETTINGS)
        self.updates: list[tuple[int, dict[int, Any], int, int, int]] = []
        self.upper = self.since = 0

    def teardown(self) -> None:
        assert not self.client.fsck().problems
        self.client.close()

    @property
    def newest(self) -> V:
        return self.versions[-1]

    def contents(self, version: V, as_of: int, since: int = -1) -> Counter[Any]:
        raise NotImplementedError

    def counted(self, table: pa.Table) -> Counter[Any]:
        raise NotImplementedError

    def evolve(self, version: V, **change: Any) -> None:
        self.versions.append(version)
        assert self.collection.evolve(**change) == len(self.versions)
        self.handles[len(self.versions)] = self.client.load("c")

    @rule(by=st.integers(0, 2))
    def seal(self, by: int) -> None:
        self.upper += by
        self.collection.seal(self.upper).result()

    @precondition(lambda self: self.upper > self.since)
    @rule(data=st.data())
    def allow_compaction(self, data: st.DataObject) -> None:
        self.since = data.draw(st.integers(self.since, self.upper - 1))
        self.collection.allow_compaction(self.since).result()

    @rule(only_due=st.booleans())
    def compact(self, only_due: bool) -> None:
        self.collection.compact(only_due=only_due)

    @rule()
    def reopen(self) -> None:
        self.client.close()
        self.client = persist.open(self.blob, settings=SETTINGS)
        self.collection = self.client.load("c")
        self.handles = {len(self.versions): self.client.load("c")}

    @precondition(lambda self: self.upper > self.since + 1)
    @rule(data=st.data())
    def read_changes(self, data: st.DataObject) -> None:
        lower = data.draw(st.integers(self.since + 1, self.upper - 1))
        table = self.collection.changes(lower, self.upper).to_arrow()
        assert self.counted(table.drop_columns(["_time"])) == self.contents(self.newest, self.upper - 1, lower - 1)

    @invariant()
    def the_digest_does_not_depend_on_how_it_is_stored(self) -> None:
        if self.upper > self.since:
            one, two = (self.collection.snapshot(form="diff") for _ in range(2))
            assert one.digest() == two.digest()
