"""Erasure beside all that `tests/test_clone_model.py` does, against the same model, which forgets what is erased.

A collection, its clones and what it was cloned from are a family, and all of them lose the records. In the end of each
run the whole store is searched for a value that was erased.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from tests.erase.searching import traces_of
from tests.test_clone_model import KEYS, Modelled, Run

STORED = [("_time", pa.int64()), ("_diff", pa.int64())]
EVENT = [("_seq", pa.int64()), ("_deleted", pa.bool_())]
BATCHES = tuple(
    pa.schema([("k", pa.int64()), *leading, *((f"c{n}", pa.string()) for n in range(columns)), *STORED])
    for columns in range(1, 8)
    for leading in ([], EVENT)
)


class ErasingRun(Run):
    def __init__(self, seed: int) -> None:
        self.family = {name: name for name in ("plain", "keyed", "late")}
        super().__init__(seed)

    def step(self) -> None:
        if self.models and self.chance.random() < 0.15:
            name = self.chance.choice(sorted(self.models))
            self._erase(self.chance.choice(self.clients), name, self.models[name])
        else:
            super().step()

    def _clone(self, client: persist.Client, name: str, model: Modelled) -> None:
        before = {*self.models}
        super()._clone(client, name, model)
        self.family |= dict.fromkeys(self.models.keys() - before, self.family[name])

    def _erase(self, client: persist.Client, name: str, model: Modelled) -> None:
        relatives = [each for other, each in self.models.items() if self.family[other] == self.family[name]]
        column = self.chance.choice(model.columns)[1]
        may_ask = not model.keyed and all(any(column == n for _, n in each.columns) for each in relatives)
        if may_ask and self.chance.random() < 0.5:
            where: Any = self.chance.choice([f"{column} = 'x'", pc.field(column) == "x"])
            client.load(name).erase(where=where, reason="a test")
            for each in relatives:
                (id_,) = (known for known, called in each.columns if called == column)
                each.updates = [u for u in each.updates if u[1] is None or u[1].get(id_) != "x"]
            return
        gone = {self.chance.randrange(KEYS + 2) for _ in range(self.chance.randint(1, 2))}
        client.load(name).erase([*gone], reason="a test")
        for each in relatives:
            each.updates = [u for u in each.updates if u[0] not in gone]

    def finish(self) -> None:
        """Erase the key 0 from all families, and look for it once the grace periods are over."""
        for name in sorted(self.models):
            self.clients[0].load(name).erase([0], reason="the end")
            self.models[name].updates = [u for u in self.models[name].updates if u[0] != 0]
        while self.snapshots:
            self.snapshots.pop(0)[0].close()
        for _ in range(4):
            self._reopen_all()
            self.blob.clock.sleep(700)
            self.clients[0].gc()
        assert traces_of(self.blob, lambda row: row.get("k") == 0, BATCHES) == []
        super().finish()


def run(seed: int, steps: int) -> None:
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


def test_what_is_not_erased_reads_the_same_and_what_is_erased_is_nowhere() -> None:
    run(seed=1, steps=50)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2, 22))
def test_much_else_happens_beside_erasures(seed: int) -> None:
    run(seed, steps=150)
