"""Campaigns against keyed collections: clients over a store that fails, in turns or all at once, some of which die.

In turns, everything but the turns of the clients' own threads follows from the seed, and so much time passes that
garbage goes. At once, little time passes: while one client sleeps, another may be in the middle of an upload.
"""

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import persist
from persist.blob import Fault, MemoryBlob, UnreliableBlob
from tests.nemesis.clocks import ClientClock, World
from tests.nemesis.runner import SETTINGS
from tests.nemesis.stores import ClientStore, Moments, Tap
from tests.tuned import tuned
from tests.upsert.faults.client import BEHIND, KEY, VALUE, RandomClient, forms, small_policy
from tests.upsert.faults.history import Call, Line
from tests.upsert.faults.judge import Mutation, judge

CLIENTS = 3
HOWS = ("before", "after", "limbo")
Weather = dict[str, float]
CLEAR: Weather = {}
SHOWERS: Weather = {"unavailable": 0.04, "not_happened_doubtful": 0.04, "happened_but_failed": 0.04}


@dataclass
class Outcome:
    """What came of a campaign.

    Attributes:
        wrong: what no order of events explains.
        records: the mutations of each record of the log.
        names: of the collections, by id.
        counts: answers, by outcome; records, by kind of mutation; faults of the store, by name.
    """

    wrong: list[str]
    lines: list[Line]
    records: list[list[Mutation]]
    names: dict[str, str]
    counts: Counter[str] = field(default_factory=Counter)


class Campaign:
    """One location with the collections of `forms`, and the clients of it, each of which lives until it is killed.

    Args:
        seed: of everything.
        weather: what goes wrong with the store, how often.
        deaths: how often a client dies, for each of its steps.
        at_once: the clients do not wait for each other.
    """

    def __init__(self, seed: int, weather: Weather, deaths: float, *, at_once: bool) -> None:
        self._at_once = at_once
        self._chance = random.Random(seed)
        self._weather = weather
        self._deaths = deaths
        self._world = World()
        self._tap = Tap(MemoryBlob(), Moments(), self._world.now_s)
        self._faults: Counter[str] = Counter()
        self._lines: list[Line] = []
        with self._opened(self._tap_of("first"), ClientClock(self._world, 0)) as client:
            made = {
                name: client.create_or_load(name, key=KEY, value=VALUE, keyed=form) for name, form in forms().items()
            }
            self._names = {each.id: name for name, each in made.items()}

    def run(self, steps: int) -> Outcome:
        """Have each client take so many steps, then read everything, and judge what was said."""
        lives = [_Life(self, f"c{n}", random.Random(self._chance.random())) for n in range(CLIENTS)]
        if self._at_once:
            _all_at_once([lambda life=life: [life.step() for _ in range(steps)] for life in lives])  # type: ignore[misc]
        else:
            for _ in range(steps * CLIENTS):
                self._chance.choice(lives).step()
        for life in lives:
            life.end()
        wrong = self._read_everything()
        landed = sorted(self._tap.landed, key=lambda each: each.key)
        records: list[list[Mutation]] = [json.loads(each.value)["mutations"] for each in landed]
        wrong += judge(self._lines, records, self._names, BEHIND)
        counts = self._faults
        counts.update(a.error or a.outcome for line in self._lines if isinstance(line, Call) for a in line.attempts)
        counts.update(mutation["kind"] for record in records for mutation in record)
        return Outcome(wrong, self._lines, records, self._names, counts)

    def born(self, name: str, chance: random.Random) -> "tuple[RandomClient, ClientStore, UnreliableBlob, ClientClock]":
        """Return a new client, or raise what `persist.open` raises."""
        store, clock = self._tap_of(name), ClientClock(self._world, 0)
        unreliable = UnreliableBlob(store, random.Random(chance.random()), **self._weather)  # type: ignore[arg-type]
        opened = self._opened(unreliable, clock)
        client = RandomClient(
            name,
            opened,
            chance,
            self._lines.append,
            dead=lambda: store.is_cut,
            pass_time=self._world.advance if not self._at_once else lambda seconds: None,
        )
        return client, store, unreliable, clock

    def add_faults(self, unreliable: UnreliableBlob) -> None:
        harmless = (Fault.NONE, Fault.SLOW)
        self._faults.update({fault.name: n for fault, n in unreliable.faults.items() if fault not in harmless})

    @property
    def deaths(self) -> float:
        return self._deaths

    def _tap_of(self, name: str) -> ClientStore:
        return ClientStore(self._tap, name)

    def _opened(self, blob: persist.Blob, clock: ClientClock) -> persist.Client:
        settings = tuned(small_policy(), background=False, **({} if self._at_once else SETTINGS))
        return persist.open(blob, clock=clock, settings=settings)

    def _read_everything(self) -> list[str]:
        """Seal and resolve all there is, and return what `fsck` says of it."""
        with self._opened(self._tap_of("last"), ClientClock(self._world, 0)) as client:
            reader = RandomClient("last", client, random.Random(0), self._lines.append)
            reader.finish()
            report = client.fsck()
            return [] if report.is_clean else [str(report)]


class _Life:
    """A client and its successors: when one dies, or does not come up, the next step makes another."""

    def __init__(self, campaign: Campaign, name: str, chance: random.Random) -> None:
        self._campaign = campaign
        self._name = name
        self._chance = chance
        self._births = 0
        self._last: ClientStore | None = None
        self._alive: tuple[RandomClient, ClientStore, UnreliableBlob, ClientClock] | None = None

    def step(self) -> None:
        # What the one before had sent when it died arrives now: after steps of others, and before its time is up.
        if self._alive is None:
            self._deliver()
            self._births += 1
            try:
                self._alive = self._campaign.born(f"{self._name}.{self._births}", self._chance)
            except persist.PersistError:
                return
        client, store, _, _ = self._alive
        if self._chance.random() < self._campaign.deaths:
            store.cut_at(self._chance.randrange(4), self._chance.choice(HOWS))
        client.step()
        if store.is_cut:
            self.end()

    def end(self) -> None:
        self._deliver()
        if self._alive is None:
            return
        _, store, unreliable, clock = self._alive
        self._last = store
        store.cut()
        clock.die()
        self._campaign.add_faults(unreliable)
        self._alive = None

    def _deliver(self) -> None:
        if self._last is not None:
            self._last.deliver()
            self._last = None


def _all_at_once(works: Sequence[Callable[[], object]]) -> None:
    failed: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
