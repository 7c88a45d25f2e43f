"""Erasure beside all that `tests/engine/test_clone_model.py` does, against the same model, which forgets what is
erased.

A collection, its clones and what it was cloned from are a family, and all of them lose the records. In the end of each
run the whole store is searched for a value that was erased.

Another client writes, seals, compacts and clones while the record is made. As soon as it is there, all sealed times of
the family are read, as diffs: nothing of what was erased may be there, retractions included.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from persist.errors import NegativeMultiplicity
from tests.engine.test_clone_model import KEYS, Modelled, Run
from tests.services.erase.searching import traces_of
from tests.support.clocks import DatedBlob, ImpatientClock

STORED = [("_time", pa.int64()), ("_diff", pa.int64())]
EVENT = [("_seq", pa.int64()), ("_deleted", pa.bool_())]
BATCHES = tuple(
    pa.schema([("k", pa.int64()), *leading, *((f"c{n}", pa.string()) for n in range(columns)), *STORED])
    for columns in range(1, 8)
    for leading in ([], EVENT)
)


class WatchedBlob(DatedBlob):
    """Lets things happen just before the record of an erasure is created, and just after."""

    before: Callable[[], object] = staticmethod(lambda: None)
    after: Callable[[], object] = staticmethod(lambda: None)

    def create(self, key: str, value: bytes) -> bool:
        is_erasing = key.startswith("log/") and b'"kind":"erase"' in value
        if is_erasing:
            in_a_thread(self.before)
        created = super().create(key, value)
        if is_erasing and created:
            in_a_thread(self.after)
        return created


def in_a_thread(act: Callable[[], object]) -> None:
    """Act in a thread that belongs to no client."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(act).result()


class ErasingRun(Run):
    blob: WatchedBlob

    def __init__(self, seed: int) -> None:
        self.family = {name: name for name in ("plain", "keyed", "late")}
        self.beside = 0
        super().__init__(seed)

    def new_blob(self) -> WatchedBlob:
        return WatchedBlob(ImpatientClock())

    def step(self) -> None:
        if self.models and self.chance.random() < 0.15:
            name = self.chance.choice(sorted(self.models))
            self._erase(self.chance.choice(self.clients), name, self.models[name])
        else:
            super().step()

    def _maintain(self, client: persist.Client, name: str, model: Modelled) -> None:
        with suppress(NegativeMultiplicity):  # As below.
            super()._maintain(client, name, model)

    def _clone(self, client: persist.Client, name: str, model: Modelled) -> None:
        before = {*self.models}
        super()._clone(client, name, model)
        self.family |= dict.fromkeys(self.models.keys() - before, self.family[name])

    def _relatives(self, name: str) -> list[str]:
        return [other for other in sorted(self.models) if self.family[other] == self.family[name]]

    def _erase(self, client: persist.Client, name: str, model: Modelled) -> None:
        """Erase while another client goes on; nothing of it may be read once the record is there."""
        (other,) = (each for each in self.clients if each is not client)
        column = self.chance.choice(model.columns)[1]
        relatives = [self.models[each] for each in self._relatives(name)]
        may_ask = not model.keyed and all(any(column == n for _, n in each.columns) for each in relatives)
        wanted: dict[str, Any] = {"keys": [self.chance.randrange(KEYS + 2) for _ in range(self.chance.randint(1, 2))]}
        if may_ask and self.chance.random() < 0.5:
            wanted = {"where": self.chance.choice([f"{column} = 'x'", pc.field(column) == "x"])}

        def before() -> None:
            if self.chance.random() < 0.6:
                self.beside += 1
                acts = [self._write, self._write, self._write, self._seal, self._compact, self._clone]
                for act in self.chance.sample(acts, 2):
                    relative = self.chance.choice(self._relatives(name))
                    act(other, relative, self.models[relative])

        def after() -> None:
            for relative in self._relatives(name):
                each = self.models[relative]
                id_ = next((known for known, called in each.columns if called == column), -1)
                is_kept = [k not in wanted.get("keys", ()) and ("keys" in wanted or (row or {}).get(id_) != "x")
                           for k, row, _, _ in each.updates]  # fmt: skip
                each.updates = [update for update, stays in zip(each.updates, is_kept, strict=True) if stays]
            self.check(self._relatives(name), other)

        self.blob.before, self.blob.after = before, after
        self._erased(client, name, **wanted)
        self.blob.before = self.blob.after = lambda: None

    def _erased(self, client: persist.Client, name: str, **wanted: Any) -> None:
        with suppress(NegativeMultiplicity):  # Of a table that is published anew, which random retractions keep back.
            client.load(name).erase(**wanted, reason="a test")

    def finish(self) -> None:
        """Erase the key 0 from all families, and look for it once the grace periods are over."""
        for name in sorted(self.models):
            self._erased(self.clients[0], name, keys=[0])
            self.models[name].updates = [u for u in self.models[name].updates if u[0] != 0]
        while self.snapshots:
            self.snapshots.pop(0)[0].close()
        for _ in range(4):
            self._reopen_all()
            self.blob.clock.sleep(700)
            self.clients[0].gc()
        assert traces_of(self.blob, lambda row: row.get("k") == 0, BATCHES) == []
        super().finish()


def run(seed: int, steps: int) -> ErasingRun:
    state = ErasingRun(seed)
    for number in range(steps):
        state.step()
        if state.models:
            state.check([state.chance.choice(sorted(state.models))])
        if number % 20 == 19:
            state.check(sorted(state.models))
        if number % 60 == 59:
            state.examine()
    state.finish()
    return state


def test_what_is_not_erased_reads_the_same_and_what_is_erased_is_nowhere() -> None:
    assert run(seed=1, steps=50).beside


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2, 22))
def test_much_else_happens_beside_erasures(seed: int) -> None:
    run(seed, steps=150)
