"""Two clients on one location against the model, over a store that sometimes fails or loses its answers."""

import copy
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

import persist
import pyarrow as pa
from persist.blob import MemoryBlob, UnreliableBlob
from tests.clocks import ImpatientClock
from tests.model import ModelCollection, ModelError, Update

NAMES = st.sampled_from(["orders", "items"])
TIMES = st.integers(0, 12)
CLIENTS = st.integers(0, 1)
UPDATES = st.lists(
    st.tuples(
        st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", None])), TIMES, st.integers(-2, 3)
    ),
    max_size=5,
)


class TwoClients(RuleBasedStateMachine):
    """Every operation by either client must do what the model does, at once, and as seen by both."""

    listens = Bundle("listens")

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.blob = UnreliableBlob(
            MemoryBlob(), random.Random(seed), not_happened=0.05, happened=0.05, not_happened_doubtful=0.05
        )
        self.blob.reliable_reads = True
        self.clients = [persist.open(self.blob, clock=ImpatientClock()) for _ in range(2)]
        self.model: dict[str, ModelCollection] = {}

    def teardown(self) -> None:
        for client in self.clients:
            client.close()

    def handle(self, client: int, name: str) -> persist.Collection:
        return self.clients[client].create_or_load(name, key={"k": pa.int64()}, value={"v": pa.string()})

    def collection(self, client: int, name: str) -> tuple[persist.Collection, ModelCollection]:
        return self.handle(client, name), self.model.setdefault(name, ModelCollection())

    def both(self, ours: Callable[[], Any], theirs: Callable[[], Any]) -> None:
        """Run a call on the library and on the model; they must agree on the result or on the error's class."""
        try:
            expected = theirs()
        except ModelError as refusal:
            with pytest.raises(getattr(persist, str(refusal))):
                ours()
        else:
            assert ours() == expected
