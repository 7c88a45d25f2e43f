"""What happens in the year: see `tests/proofs/year/__init__.py`."""

import random
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import persist
from persist import backup, copy
from persist.blob.errors import StoreFull
from persist.tools.cli.upkeep_commands import maintain_once
from persist.tools.reports.surveys import load_facts
from tests.proofs.year.books import Books, Rows
from tests.proofs.year.bounds import BrokenBound, Gauges
from tests.proofs.year.census import Found, counted
from tests.proofs.year.store import DatedFiles, Lifeline
from tests.rules.golden.make import HERE
from tests.support.clocks import ImpatientClock

OLD_RELEASE = HERE / "format-7" / "location"
BEGAN_S = 1_800_000_000.0  # After all that the old release has written.
DAY_S = 86_400.0
QUIET = persist.Settings(background=False)
WEEK = "7 days"

STOCKS = 20  # Keyed collections.
HOT = 20  # Plain ones that get nine of ten commits.
KEYS = 12  # Of each plain collection.
SKUS = 100  # Of each keyed one.
SHOPS = ("north", "south", "east", "west")
REGIONS = {"north": "upper", "south": "lower", "east": "upper"}  # "west" is in none.
CHECKED = 8  # Collections whose answers are looked at each evening.
DEATHS_DAYS = 10

COLLECTIONS_MIN = STOCKS + HOT + 5
DAYS_MIN = 10  # So that no two events of the calendar are on one day.

# When, as a share of the year, and what.
CALENDAR: tuple[tuple[float, str], ...] = (
    (0.15, "add_column"),
    (0.25, "erase"),
    (0.35, "upgrade"),
    (0.45, "erase"),
    (0.55, "fill_disk"),
    (0.65, "drop_column"),
    (0.75, "restore"),
    (0.85, "erase"),
)

VIEWS = {
    "shop_totals": "SELECT shop, sum(amount) AS total, count(*) AS number FROM stock_00 GROUP BY shop",
    "region_totals": "SELECT region, sum(amount) AS total, count(*) AS number FROM stock_01 JOIN regions USING (shop) "
    "GROUP BY region",
}


Change = list[tuple[int, tuple[Any, ...], int]]  # Keys, rows and diffs.


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long a year is, and how much happens in it.

    Attributes:
        days: virtual ones.
        commits: acknowledged calls that write, in all.
        collections: how many there are at any time, besides views.
        burst: so many commits are asked for at one moment. They are acknowledged one by one, and share records.
        maintain_hours: the time between two rounds of maintenance; a divisor or a multiple of 24.
        census_days: the days between two counts of what is stored.
        seed: of all that is random.
    """

    days: int = 365
    commits: int = 1_000_000
    collections: int = 1_000
    burst: int = 1
    maintain_hours: float = 6.0
    census_days: int = 1
    seed: int = 1


class Year:
    """One location, its clients, and the books of what it should hold.

    Attributes:
        gauges: what was measured.
        counts: how much was done of what.
    """

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.chance = random.Random(plan.seed)
        self.clock = ImpatientClock(BEGAN_S)
        self.books = Books()
        self.gauges = Gauges(plan.days)
        self.counts: dict[str, int] = {}
        self.consumed: Rows = {}  # What the consumer has made of the changes that it got.
        self._folder = folder
        self._last_ms = 0
        self._number = 0
        self._clients: list[persist.Client] = []
        self._counting = ProcessPoolExecutor(1, get_context("spawn"))
        self._erased: list[tuple[int, str, str]] = []  # On which day, from what, which text.
        self._handles: dict[str, persist.Collection] = {}
        self._plain: list[str] = []
        self._events: dict[int, list[Callable[[], None]]] = {}
        for share, name in CALENDAR:
            self._events.setdefault(max(2, round(share * plan.days)), []).append(getattr(self, f"_{name}"))

    # The frame.

    def begin(self) -> None:
        """Take over the location of an older release, and make the collections."""
        shutil.copytree(OLD_RELEASE, self._folder / "location")
        self._open()
        while names := self.writer.collections():
            for name in names:
                with suppress(persist.errors.CollectionNeeded):  # By a view, which goes in this round.
                    self.writer.drop(name).result()
        for number in range(STOCKS):
            self._create(f"stock_{number:02}", {"sku": int}, {"shop": str, "amount": int}, persist.Keyed())
        regions = self.writer.create_or_load("regions", key={"shop": str}, value={"region": str}, timeline="ms")
        regions.write([(row, self.now(), 1) for row in REGIONS.items()], seal=self.now()).result()
        self._regions = regions
        for number in range(self.plan.collections - STOCKS - 1):
            self._create_bag(f"meter_{number:04}")
        for name in self._stocks():
            self._upsert(name, [(sku, (self.chance.choice(SHOPS), sku)) for sku in range(SKUS)])
        for name, sql in VIEWS.items():
            self.writer.create_view(name, sql, start="now")

    def run_day(self, day: int) -> None:
        """Let a day pass, and judge it."""
        self.day = day
        self.books.begin_day()
        for event in self._events.get(day, ()):
            event()
            self._count(event.__name__.strip("_"))
        self._churn()
        rounds = max(1, round(24 / self.plan.maintain_hours))
        bursts = max(1, round(self.plan.commits / self.plan.days / rounds / self.plan.burst))
        is_maintained = False
        for _ in range(rounds):
            for _ in range(bursts):
                self._pause(DAY_S / rounds / bursts * self.chance.uniform(0.5, 1.5))
                self._commit()
            if day * 24 % self.plan.maintain_hours < 24:
                self._maintain()
                is_maintained = True
        self._evening(is_maintained)
        found: Found | None = None
        if day % self.plan.census_days == 0 or day == self.plan.days:
            updates = self._updates(), self.books.needed_updates
            place = self.store.url, self.counts.get("restore", 0)
            found = self._counting.submit(counted, place, self.clock.wall_ms() / 1000, *updates).result()
        self.gauges.end_day(day, found)

    def end(self) -> None:
        """Compare everything that the location holds with the books, and close."""
        names = [name for name in self.writer.collections() if name not in (*VIEWS, "regions")]
        self._expect("the collections", names, sorted(self.books.rows))
        for name in names:
            self._expect(name, self._contents(self.writer.load(name)), self.books.rows[name])
        report = self.writer.fsck()
        self._expect("problems that an examination finds", [*report.problems_left], [])

    def close(self) -> None:
        """Close what is open; idempotent."""
        self._close_clients()
        self._counting.shutdown()
        self.gauges.looking.close()

    def _close_clients(self) -> None:
        for client in self._clients:
            with suppress(persist.PersistError):  # What matters was looked at before.
                client.close()

    def now(self) -> int:
        """Return the present in ms, later than all moments before."""
        self._last_ms = max(self._last_ms + 1, self.clock.wall_ms())
        return self._last_ms

    def _pause(self, seconds: float) -> None:
        """Let virtual time pass, in which a checkpoint that was begun beside a commit comes to its end."""
        self.clock.sleep(seconds)
        self.writer.engine.writer("checkpoint").committer.groups.checkpointing.wait()

    def _open(self) -> None:
        self.store = DatedFiles(self._folder / "location", self.clock)
        self.writer = persist.open(self.store, settings=QUIET, clock=self.clock)
        self.maintainer = persist.open(self.store, settings=QUIET, clock=self.clock)
        self._clients = [self.maintainer, self.writer]
        self._handles.clear()

    # What is done all day.

    def _commit(self) -> None:
        draw = self.chance.random()
        self.gauges.measure_yardstick()
        if draw < 0.04:
            name = self.chance.choice(self._stocks())
            skus = self.chance.sample(range(SKUS), self.chance.randint(1, 4))
            events = [(sku, None if self.chance.random() < 0.1 else self._stock_row()) for sku in skus]
            with self.gauges.timed("upsert"):
                self._upsert(name, events)
        elif draw < 0.06:
            self._write_together(self.chance.sample(self._plain, 3))
        else:
            self._write(self._drawn(self.plan.burst))
        if draw > 0.96:
            name = self.chance.choice(self._stocks())
            with self.gauges.timed("get"):
                rows = self._handle(name).get([1, 2])
            wanted = [(sku, *self.books.rows[name][sku]) for sku in (1, 2) if sku in self.books.rows[name]]
            self._expect(f"{name}, two keys", sorted((k, *v) for k, v in rows), wanted)

    def _drawn(self, number: int) -> list[str]:
        """Draw plain collections, each as often as it is written to: nine of ten times a hot one."""
        hot, cold = self._plain[:HOT], self._plain[HOT:]
        return [self.chance.choice(hot if self.chance.random() < 0.9 else cold) for _ in range(number)]

    def _write(self, names: list[str], operation: str = "commit") -> None:
        """Write to plain collections, each time in a commit of its own."""
        changes, rows = [], {name: dict(self.books.rows[name]) for name in {*names}}
        for name in names:
            changes.append((name, self._change(name, rows[name])))
            _apply(changes[-1][1], rows[name])
        with self.gauges.timed(operation, len(names)):
            futures = []
            for name, change in changes:
                time = self.now()
                updates = [((key, row), time, diff) for key, row, diff in change]
                futures.append(self._handle(name).write(updates, seal=time + 1))
            for future in futures:
                future.result()
        for name, change in changes:
            self._book(name, change)

    def _write_together(self, names: list[str]) -> None:
        """Write to several collections in one commit."""
        changes = [(name, self._change(name, self.books.rows[name])) for name in names]
        time = self.now()
        with self.gauges.timed("commit to three"), self.writer.multi_write() as multi:
            for name, change in changes:
                multi.write(self._handle(name), [((key, row), time, diff) for key, row, diff in change])
                multi.seal(self._handle(name), time + 1)
        for name, change in changes:
            self._book(name, change)

    def _change(self, name: str, rows: Rows) -> Change:
        """Draw a change of a record or two: what is there is retracted, something else inserted."""
        change: Change = []
        for key in self.chance.sample(range(KEYS), self.chance.randint(1, 2)):
            if key in rows:
                change.append((key, rows[key], -1))
            if key not in rows or self.chance.random() < 0.9:
                row = self.chance.randrange(10**6), f"note {self.chance.randrange(10**9)}"
                change.append((key, row + tuple(self.day for _ in range(self._width(name))), 1))
        return change

    def _book(self, name: str, change: Change) -> None:
        _apply(change, self.books.rows[name])
        self.books.updates[-1] += len(change)
        self._count("commits")

    def _upsert(self, name: str, events: Sequence[tuple[int, tuple[object, ...] | None]]) -> None:
        time = self.now()
        self._handle(name).upsert(events, time=time, seal=time + 1).result()
        for key, row in events:
            was_there = self.books.rows[name].pop(key, None) is not None
            self.books.updates[-1] += was_there + (row is not None)
            if row is not None:
                self.books.rows[name][key] = row
        self._count("commits")

    def _stock_row(self) -> tuple[str, int]:
        return self.chance.choice(SHOPS), self.chance.randrange(1000)

    def _maintain(self) -> None:
        time = self.now()
        with self.writer.multi_write() as multi:  # All inputs of views are complete up to now.
            for name in ("stock_00", "stock_01"):
                multi.seal(self._handle(name), time)
            multi.seal(self._regions, time)
        with self.gauges.timed("maintain"):
            done = maintain_once(self.maintainer)
        for what, number in done.items():
            self._count(what, number)
        self._count("rounds of maintenance")
        assert self.writer.seqno > 0, "it looks at the log, as its own upkeep does every half a minute"

    # What is done every day.

    def _churn(self) -> None:
        """Drop a plain collection that is not hot, and make another."""
        name = self.chance.choice(self._plain[HOT:] or self._plain)
        self._handles.pop(name, None)
        self.writer.drop(name).result()
        self._plain.remove(name)
        self.books.forget(name)
        self._number += 1
        self._create_bag(f"later_{self._number:04}")

    def _evening(self, is_maintained: bool) -> None:
        """Read as a stranger does: what there is now, what there was, views if they were refreshed, and changes."""
        time = self._last_ms
        self.books.note_evening(time, self.chance.sample([*self.books.rows], CHECKED))
        with self.gauges.timed("open"):
            reader = persist.open(self.store, mode="read", settings=QUIET, clock=self.clock)
        with reader:
            for name in self.chance.sample([*self.books.rows], CHECKED):
                collection = reader.load(name)
                with self.gauges.timed("read"):
                    contents = self._contents(collection)
                self._expect(name, contents, self.books.rows[name])
            then, held = self.books.evenings[0]
            for name, rows in held.items():
                collection = reader.load(name)
                if collection.since.time is not None and collection.since.time <= then < (collection.upper.time or 0):
                    self._expect(f"{name} as of {then}", self._contents(collection, then), rows)
                    self._count("evenings compared")
            if is_maintained:
                self._expect("shop_totals", self._totals(reader.load("shop_totals")), self.books.totals("stock_00"))
                totals = self.books.totals("stock_01", REGIONS)
                self._expect("region_totals", self._totals(reader.load("region_totals")), totals)
        self._consume()
        if self.day % DEATHS_DAYS == 0:
            self._die()
        self._look_for_erased()

    def _consume(self) -> None:
        with self._handle("stock_02").follow("consumer") as following:
            while (progress := following.poll()) is not None:
                rows = progress.updates.to_pylist()
                for row in sorted(rows, key=lambda row: (row["_time"], row["_diff"])):
                    if row["_diff"] < 0:
                        del self.consumed[row["sku"]]
                    else:
                        self.consumed[row["sku"]] = row["shop"], row["amount"]
                following.ack()
        self._expect("what the consumer knows", self.consumed, self.books.rows["stock_02"])

    def _die(self) -> None:
        """Let a reader die with a snapshot open; nobody gives its lease back."""
        lifeline = Lifeline(self.store)
        dying = persist.open(lifeline, settings=QUIET, clock=ImpatientClock(self.clock.wall_ms() / 1000))
        snapshot = dying.load(self.chance.choice(self._stocks())).snapshot()
        lifeline.is_cut = True
        with suppress(persist.PersistError):
            snapshot.close()
        with suppress(persist.PersistError):
            dying.close()
        self._count("deaths")

    # What is done on stated days.

    def _add_column(self) -> None:
        for name in self._evolving():
            self._handle(name).evolve(add={"day": int}, defaults={"day": 7})
            self.books.add_column(name, 7)

    def _drop_column(self) -> None:
        for name in self._evolving():
            if self._width(name):
                self._handle(name).evolve(drop=["day"])
                self.books.drop_column(name)

    def _evolving(self) -> list[str]:
        return self._plain[: HOT // 2]

    def _width(self, name: str) -> int:
        """Return how many columns a plain collection got later."""
        return len(self._handle(name).schema.value.fields) - 2

    def _erase(self) -> None:
        """Take records out of all times; two days later, nothing on storage may hold their text."""
        name, text = self._plain[self.day % HOT], f"private of day {self.day}"
        keys = [1, 2, 3]
        change = [(key, self.books.rows[name][key], -1) for key in keys if key in self.books.rows[name]]
        more = tuple(self.day for _ in range(self._width(name)))
        change += [(key, (key, text, *more), 1) for key in keys]
        time = self.now()
        updates = [((key, row), time, diff) for key, row, diff in change]
        self._handle(name).write(updates, seal=time + 1).result()
        self._book(name, change)
        with self.gauges.timed("erase"):
            self._handle(name).erase(keys, reason="they asked")
        self.books.erase(name, keys)
        self._erased.append((self.day, name, text))

    def _look_for_erased(self) -> None:
        for erased in [*self._erased]:
            day, name, text = erased
            if self.day == day + 2:
                self._erased.remove(erased)
                for entry in self.store.list(""):
                    if text.encode() in (self.store.get(entry.key) or b""):
                        raise BrokenBound("answers", self.day, f"{entry.key} still holds {text!r}")
                # What is of dropped collections and from before is told, too, because they may have been clones.
                left = [trace for trace in self._handle(name).traces(texts=[text]).found if trace.rows]
                self._expect("traces of what was erased", left, [])

    def _upgrade(self) -> None:
        report = self.writer.upgrade()
        self._expect("the format before the upgrade", report.before, 7)
        self._expect("whether it was raised", report.after > 7, True)

    def _fill_disk(self) -> None:
        """Go on until there is no room, and then: reads go on, and what is refused is not there. Then there is room."""
        self.store.fill(left_bytes=200_000)
        refused = 0
        for _ in range(2_000):
            self._pause(1.0)
            try:
                self._write(self._drawn(1), "commit to a disk that is filling")
            except StoreFull:
                refused += 1
                if refused == 20:
                    break
        else:
            raise BrokenBound("answers", self.day, "the disk was full, and nothing was refused")
        for name in self._plain[:CHECKED]:
            self._expect(name, self._contents(self._handle(name)), self.books.rows[name])
        with suppress(StoreFull):
            self.maintainer.engine.writer("maintain").compaction.sweep(destroys=True)
        with suppress(StoreFull):
            self.maintainer.gc()
        self.store.room_bytes = None
        self._count("refused for lack of room", refused)

    def _restore(self) -> None:
        """Back the location up, go on for a while, lose it, and begin again with the backup."""
        kept = DatedFiles(self._folder / "backup", self.clock)
        backup(self.store, kept, settings=QUIET, clock=self.clock)
        self._write(self._drawn(1), "commit alone")
        backup(self.store, kept, settings=QUIET, clock=self.clock)
        as_of_then, consumed = self.books.copy(), dict(self.consumed)
        for _ in range(20):
            self._pause(30.0)
            self._write(self._drawn(1), "commit alone")
        self._close_clients()
        shutil.rmtree(self._folder / "location")
        self.clock.sleep(2 * 3600.0)
        copy(kept, DatedFiles(self._folder / "location", self.clock), settings=QUIET, clock=self.clock)
        shutil.rmtree(self._folder / "backup")
        self.books, self.consumed = as_of_then, consumed
        self._open()
        self._regions = self.writer.load("regions")

    # Collections, and what they hold.

    def _updates(self) -> int:
        """Return how many updates the parts of all collections of the books have, keyframes included."""
        facts = load_facts(self.maintainer, [*self.books.rows])
        return sum(part.rows for each in facts for part in each.contents.stored_parts)

    def _create_bag(self, name: str) -> None:
        """Create a plain collection with all its keys: one that is seldom written would grow for months."""
        self._create(name, {"id": int}, {"reading": int, "note": str}, None)
        self._plain.append(name)
        time = self.now()
        change: Change = [(key, (key, f"note {self.chance.randrange(10**9)}"), 1) for key in range(KEYS)]
        self._handles[name].write([((key, row), time, diff) for key, row, diff in change], seal=time + 1).result()
        self._book(name, change)

    def _create(self, name: str, key: dict[str, type], value: dict[str, type], keyed: persist.Keyed | None) -> None:
        made = self.writer.create_or_load(name, key=key, value=value, timeline="ms", retention=WEEK, keyed=keyed)
        self._handles[name] = made
        made.seal(self.now()).result()
        self.books.rows[name] = {}

    def _handle(self, name: str) -> persist.Collection:
        handle = self._handles.get(name)
        if handle is None:
            handle = self._handles[name] = self.writer.load(name)
        return handle

    def _stocks(self) -> list[str]:
        return [f"stock_{number:02}" for number in range(STOCKS)]

    def _contents(self, collection: persist.Collection, as_of: int | None = None) -> Rows:
        with collection.snapshot(as_of) as snapshot:
            table = snapshot.to_arrow()
        key, *values = (column.to_pylist() for column in table.columns)
        return dict(zip(key, zip(*values, strict=True), strict=True))

    def _totals(self, view: persist.Collection) -> dict[str, tuple[int, int]]:
        rows = view.snapshot().to_arrow().to_pylist()
        return {row.get("shop") or row["region"]: (int(row["total"]), row["number"]) for row in rows}

    def _expect(self, what: str, found: object, wanted: object) -> None:
        if found != wanted:
            raise BrokenBound("answers", self.day, f"{what}: {str(found)[:500]} is not {str(wanted)[:500]}")

    def _count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number


def _apply(change: Change, rows: Rows) -> None:
    for key, row, diff in change:
        if diff < 0:
            del rows[key]
        else:
            rows[key] = row
