"""One client that upserts, deletes, seals, resolves and reads at random from a seed, and writes down every answer."""

import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa

import persist
from persist.settings import Tuning
from tests.upsert.faults.history import Attempt, Call, Line, Read, Row, Wrong

KEY, VALUE = {"k": pa.int64()}, {"mark": pa.int64(), "v": pa.string(), "gone": pa.bool_()}
BEHIND = 6
KEYS = 8
LARGE = 600  # Events enough for a part in a blob of its own.
TRIES = 6  # Of a call whose outcome is not known.
# What may be answered although the store did nothing wrong, besides what is checked by the judge.
READS_REFUSED = ("AsOfNotSealed", "AsOfCompacted", "Unavailable", "LeaseExpired")
# (kind, weight): what a client does next.
DEEDS = {
    "upsert": 30,
    "delete": 5,
    "seal": 8,
    "resolve": 4,
    "read": 14,
    "allow_compaction": 3,
    "compact": 4,
    "maintain": 3,
    "gc": 2,
}


def forms() -> dict[str, persist.Keyed]:
    """Return the collections by name: with and without watermarks, and both policies."""
    ordered: dict[str, Any] = {"order_by": ["mark"], "tombstone": "gone", "late_bound": persist.Behind(BEHIND)}
    found = {}
    for policy in ("seal", "background"):
        found[f"plain-{policy}"] = persist.Keyed(resolve=policy)
        found[f"ordered-{policy}"] = persist.Keyed(resolve=policy, **ordered)
    return found


def small_policy() -> Tuning:
    """Return a policy under which few events are enough for all that compaction does."""
    return Tuning(
        keyframe_rows_min=4,
        keyframe_fraction=0.3,
        merge_runs=2,
        inline_runs=3,
        inline_bytes=20_000,
        part_bytes=8 << 10,
        runs_max=100_000,
    )


class RandomClient:
    """See the module's docstring.

    Args:
        name: its own, over all processes.
        tell: takes what is to be written down.
        dead: whether the client has been cut off, so that no answer of its means anything.
        pass_time: lets time pass, if it is not the real one.
    """

    def __init__(
        self,
        name: str,
        client: persist.Client,
        chance: random.Random,
        tell: Callable[[Line], None],
        *,
        dead: Callable[[], bool] = lambda: False,
        pass_time: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.name = name
        self.client = client
        self.chance = chance
        self._tell = tell
        self._dead = dead
        self._pass_time = pass_time
        self._collections = {each: client.load(each) for each in forms()}
        self._calls = 0

    def step(self) -> None:
        """Do one thing."""
        name = self.chance.choice([*self._collections])
        deed = self.chance.choices([*DEEDS], [*DEEDS.values()])[0]
        try:
            getattr(self, f"_{deed}")(self._collections[name])
        except persist.PersistError as error:
            if type(error).__name__ not in ("Unavailable", "Indeterminate", "NotDeleted") and not self._dead():
                self._tell(Wrong(self.name, f"{deed} of {name}", f"{type(error).__name__}: {error}"))
        self._pass_time(self.chance.choice([0.1, 1.0, 10.0, 40.0]))

    def finish(self) -> None:
        """Seal and resolve everything, and read all of it."""
        for collection in self._collections.values():
            collection.seal((collection.upper.time or 0) + 10).result()
            collection.resolve()
            since, upper = collection.since.time or 0, collection.upper.time or 0
            for at in range(since, upper):
                self._read_contents(collection, "contents", at, upper)
            self._read_changes(collection, since, upper)

    def _upsert(self, collection: persist.Collection) -> None:
        upper = collection.upper.time or 0
        rows = self._rows(collection, upper)
        seal = upper + self.chance.choice([0, 1, 2, 3]) if self.chance.random() < 0.5 else None
        collects = self.chance.random() < 0.3
        given: Any = _table(rows, collection) if self.chance.random() < 0.5 or len(rows) > 20 else _tuples(rows)
        self._call(
            collection,
            rows,
            seal,
            collects,
            lambda token: collection.upsert(given, seal=seal, token=token, late="collect" if collects else "raise"),
        )

    def _delete(self, collection: persist.Collection) -> None:
        at = (collection.upper.time or 0) + self.chance.choice([0, 0, 1, 2])
        keys = self.chance.sample(range(KEYS), k=2)
        mark = self._mark_about(collection) if _is_ordered(collection) else None
        rows: list[Row] = [(key, None, at, mark) for key in sorted(keys)]
        given: Any = [{"k": key, "mark": mark} for key in keys] if mark is not None else keys
        self._call(collection, rows, None, False, lambda token: collection.delete(given, time=at, token=token))

    def _seal(self, collection: persist.Collection) -> None:
        upper = collection.upper.time or 0
        if self.chance.random() < 0.5:
            collection.seal_to(upper + 1).result()
            return
        seal = upper + self.chance.choice([0, 1, 2, 4])
        self._call(collection, [], seal, False, lambda token: collection.upsert([], seal=seal, token=token))

    def _resolve(self, collection: persist.Collection) -> None:
        collection.resolve()

    def _allow_compaction(self, collection: persist.Collection) -> None:
        upper = collection.upper.time or 0
        since = max(upper - self.chance.choice([0, 1, 2, 5]), collection.since.time or 0)
        with suppress(persist.FrontierRegression):  # Somebody else has allowed more.
            collection.allow_compaction(since).result()

    def _compact(self, collection: persist.Collection) -> None:
        collection.compact(only_due=self.chance.random() < 0.5)

    def _maintain(self, collection: persist.Collection) -> None:
        self.client.maintain()

    def _gc(self, collection: persist.Collection) -> None:
        self.client.gc()

    def _read(self, collection: persist.Collection) -> None:
        upper, since = collection.upper.time or 0, collection.since.time or 0
        if since >= upper:
            return
        what = self.chance.choice(["contents", "contents", "get", "changes"])
        at = self.chance.randrange(since, upper)
        try:
            if what == "changes":
                self._read_changes(collection, at, upper)
            else:
                self._read_contents(collection, what, at, upper)
        except persist.PersistError as error:
            if type(error).__name__ not in READS_REFUSED:
                raise

    def _read_changes(self, collection: persist.Collection, since: int, upper: int) -> None:
        table = collection.changes(since + 1, upper, timeout_s=0).to_arrow()
        found = [(r["k"], r["mark"], r["v"], r["_time"], r["_diff"]) for r in table.to_pylist()]
        self._tell(Read(self.name, collection.name, "changes", since + 1, upper, sorted(found, key=repr)))

    def _read_contents(self, collection: persist.Collection, what: str, at: int, upper: int) -> None:
        with collection.snapshot(at, timeout_s=0) as snapshot:
            table = snapshot.to_arrow() if what == "contents" else snapshot.get([*range(KEYS)])
            count = snapshot.count()
        rows = [(r["k"], r["mark"], r["v"]) for r in table.to_pylist()]
        self._tell(Read(self.name, collection.name, what, at, upper, sorted(rows, key=repr)))
        self._tell(Read(self.name, collection.name, "count", at, upper, [(count,)]))

    def _call(
        self,
        collection: persist.Collection,
        rows: list[Row],
        seal: int | None,
        collects: bool,
        ask: Callable[[str], persist.CommitFuture],
    ) -> None:
        """Make a call until its outcome is known, or for a few times, and write down all answers."""
        self._calls += 1
        call = Call(f"{self.name}.{self._calls}", self.name, collection.name, rows, seal, collects)
        began = time.monotonic_ns()
        # A process that is killed now has asked for it.
        self._tell(_with(call, Attempt("doubt", began, 2**62)))
        for _ in range(TRIES):
            began = time.monotonic_ns()
            call.attempts.append(self._answer(ask, call.token, began))
            if call.attempts[-1].outcome != "doubt" or self._dead() or self.chance.random() < 0.2:
                break
        self._tell(call)

    def _answer(self, ask: Callable[[str], persist.CommitFuture], token: str, began: int) -> Attempt:
        try:
            future = ask(token)
            future.result()
        except persist.PersistError as error:
            name = type(error).__name__
            known = isinstance(error, persist.InvalidUsage | persist.Conflict | persist.Unavailable)
            outcome = "refused" if known and not self._dead() else "doubt"
            return Attempt(outcome, began, time.monotonic_ns(), name, _told(error))
        late = None if future.late is None else [_row(each) for each in future.late.to_pylist()]
        return Attempt("ok", began, time.monotonic_ns(), late=late)

    def _rows(self, collection: persist.Collection, upper: int) -> list[Row]:
        chance = self.chance
        large = chance.random() < 0.05
        about = self._mark_about(collection)
        rows: list[Row] = []
        first = max(0, upper + chance.choice([-2, -1, 0, 0, 0, 0, 0, 0, 1, 1]))
        for n in range(LARGE if large else chance.choice([1, 1, 2, 3, 6])):
            key = 1000 + n if large and n >= KEYS else chance.randrange(KEYS)
            value = chance.choice([None, "same", f"{self.name}.{self._calls + 1}.{n}"])
            if large and value is not None:
                value = f"{value} {chance.getrandbits(200):x}"
            mark = about + chance.choice([0, 0, 0, 1]) - chance.choice([0, 0, 0, 1, 2, 4, 9])
            if not _is_ordered(collection) and (value is None or chance.random() < 0.2):
                rows.append((key, value, first + chance.choice([0, 0, 1, 3]), None))
            else:
                rows.append((key, value, first + chance.choice([0, 0, 1, 3]), mark))
        return rows

    def _mark_about(self, collection: persist.Collection) -> int:
        """Return a watermark around the greatest there is, so that the late bound moves on, and few events are late."""
        return BEHIND + ((collection.late_bound or 0) if _is_ordered(collection) else 0)


def _is_ordered(collection: persist.Collection) -> bool:
    return collection.name.startswith("ordered")


def _table(rows: list[Row], collection: persist.Collection) -> pa.Table:
    columns: dict[str, Any] = {
        "k": pa.array([row[0] for row in rows], pa.int64()),
        "mark": pa.array([row[3] for row in rows], pa.int64()),
        "v": pa.array([row[1] for row in rows], pa.string()),
        "gone": pa.array([None if row[1] is not None else _is_ordered(collection) or None for row in rows], pa.bool_()),
        "_time": pa.array([row[2] for row in rows], pa.int64()),
    }
    if not _is_ordered(collection):
        columns["_deleted"] = pa.array([row[1] is None for row in rows], pa.bool_())
    return pa.table(columns)


def _tuples(rows: list[Row]) -> list[Any]:
    """Return rows as tuples; a deletion with a watermark is a tombstone."""
    found: list[Any] = []
    for key, value, at, mark in rows:
        if value is None:
            found.append((key, None if mark is None else (mark, None, True), at))
        else:
            found.append((key, (mark, value, None), at))
    return found


def _row(late: dict[str, Any]) -> Row:
    return late["k"], late["v"], late["_time"], late["mark"]


def _told(error: persist.PersistError) -> dict[str, int]:
    told = {}
    for name in ("time", "upper", "asked", "current", "least", "bound"):
        value = getattr(error, name, None)
        value = value.time if isinstance(value, persist.Antichain) else value
        if isinstance(value, int):
            told[name] = value
    return told


def _with(call: Call, attempt: Attempt) -> Call:
    return Call(call.token, call.client, call.collection, call.rows, call.seal, call.collects, [attempt])
