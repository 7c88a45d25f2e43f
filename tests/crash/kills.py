"""SIGKILL at random moments, over and over on the same location, each time with a thorough look at what is left."""

import random
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import persist
from persist.blob import open_blob
from tests.crash.checker import Recovery, Violation, check_records, recovered
from tests.crash.child import Job
from tests.crash.nursery import Life, Nursery
from tests.crash.story import Model

LIFE_S = 0.12
BIRTH_S = 0.03


@dataclass
class Tally:
    """What happened, to be reported.

    Attributes:
        acknowledged: calls by kind.
        only_found: calls that had not been acknowledged and were there.
        lost: calls that had not been acknowledged and were not there.
    """

    kills: int = 0
    acknowledged: Counter[str] = field(default_factory=Counter)
    only_found: int = 0
    lost: int = 0
    retried: int = 0
    records: int = 0

    def add(self, life: Life, recovery: Recovery) -> None:
        """Count one life."""
        self.kills += 1
        self.acknowledged.update(op.kind for op in life.asked[: life.acknowledged])
        self.only_found += recovery.found - life.acknowledged
        self.lost += len(life.asked) - recovery.found
        self.retried += recovery.retried

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.acknowledged.items()))
        return (
            f"{self.kills} kills; acknowledged: {kinds}; not acknowledged: {self.only_found} found, {self.lost} absent, "
            f"{self.retried} made again; {self.records} records"
        )


def kill_often(
    nursery: Nursery,
    location: str,
    options: dict[str, Any],
    *,
    crashes: int,
    seed: int,
    life_s: float = LIFE_S,
    tally: Tally | None = None,
) -> Tally:
    """Let children work on a new location until each is killed; return what happened.

    Args:
        life_s: how long a child works, on average.
        tally: what is to be added to.

    Raises:
        Violation: a promise was broken; the message has the seed.
    """
    tally = tally or Tally()
    chance = random.Random(seed)
    model, number = Model(), 0
    with closing(open_blob(location, options)) as blob:
        for crash in range(crashes):
            job = Job(location, options, chance.randrange(2**32), model.collections, number)
            # Some die while they are still opening the location.
            is_early = chance.random() < 0.15
            life = nursery.live(
                job,
                killed_after_s=chance.uniform(0, BIRTH_S) if is_early else chance.expovariate(1 / life_s),
                from_first_call=not is_early,
            )
            number += len(life.asked)
            try:
                with persist.open(blob) as client:
                    retry = chance.random() < 0.5
                    recovery = recovered(client, blob, model, life.asked, life.acknowledged, retry=retry)
            except (Violation, persist.PersistError) as error:
                raise Violation(f"seed {seed}, kill {crash} at {location}: {error!r}") from error
            tally.add(life, recovery)
            model = recovery.model
        tally.records += 0 if hasattr(persist.Client, "gc") else check_records(blob)
    return tally
