"""SIGKILL at random moments, over and over on the same location, each time with a thorough look at what is left."""

import os
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

CALLS_MAX = 10
CALL_S = 0.02
# After each crash a folder is made two hours older, so that garbage is collected and the log is truncated.
AGE_S = 2 * 3600
SETTINGS = {"orphan_grace_s": 3600, "log_retention_s": 3600, "log_retention_records": 16}
SETTINGS_WITHOUT_AGE = {"grace_s": 0, "orphan_grace_s": 0}
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
        self.retried += recovery.retried
        if not recovery.retried:  # Otherwise nobody can tell what had happened before.
            self.only_found += recovery.found - life.acknowledged
            self.lost += len(life.asked) - recovery.found

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.acknowledged.items()))
        return (
            f"{self.kills} kills; acknowledged: {kinds}; not acknowledged: {self.only_found} found, "
            f"{self.lost} absent, {self.retried} made again; {self.records} records"
        )


def kill_often(
    nursery: Nursery,
    location: str,
    options: dict[str, Any],
    *,
    crashes: int,
    seed: int,
    calls_max: int = CALLS_MAX,
    ages: bool = False,
    tally: Tally | None = None,
) -> Tally:
    """Let children work on a new location until each is killed; return what happened.

    Args:
        calls_max: a child is killed a moment after fewer than so many of its calls were acknowledged.
        ages: the location is a folder, and time passes there between a crash and the next life.
        tally: what is to be added to.

    Raises:
        Violation: a promise was broken; the message has the seed.
    """
    tally = tally or Tally()
    chance = random.Random(seed)
    model, number = Model(), 0
    with closing(open_blob(location, options)) as blob:
        for crash in range(crashes):
            settings = SETTINGS if ages else SETTINGS_WITHOUT_AGE
            job = Job(location, options, settings, chance.randrange(2**32), model.collections, number)
            # Some die while they are still opening the location.
            is_early = chance.random() < 0.15
            life = nursery.live(
                job,
                killed_after_s=chance.uniform(0, BIRTH_S) if is_early else chance.expovariate(1 / CALL_S),
                calls=None if is_early else chance.randrange(calls_max),
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
            if ages:
                _age(location)
        with persist.open(blob) as client:
            tally.records += check_records(client, blob)
    return tally


def _age(folder: str) -> None:
    """Make all files of a folder older than they are."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            then_s = os.stat(path).st_mtime - AGE_S
            os.utime(path, (then_s, then_s))
