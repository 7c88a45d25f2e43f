"""One process of a race: opens clients, calls them at random from a seed, and records every call and answer."""

import itertools
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import persist
from persist.blob import MeteredBlob, UnreliableBlob, open_blob

KEY, VALUE = {"id": pa.string()}, None
KEYED_VALUE = {"v": pa.string()}
KEYS = 6  # Of keyed collections: few, so that all processes are at the same ones.
FIELDS = ("time", "upper", "frontier", "asked", "current", "expected", "actual", "as_of", "since")
ROWS_RECORDED_MAX = 100_000  # After so many, a process takes no more snapshots: the history must fit into memory.
SLOW_DOWN_S = 0.002
ANSWER_TIMEOUT_S = 120
TOKENS = 20
CALLS_MIN = 30  # On a machine that is busy with other things, a race of seconds may be none.
PATIENCE = 4


@dataclass
class Plan:
    """What one process does; goes to it as JSON.

    Attributes:
        url, options: the location.
        folder: where its history goes.
        number: of the process.
        mode: "shared", "exclusive" (opens, writes, closes, and opens again) or "read".
        seconds: how long it goes on; up to `PATIENCE` times as long until it has made `CALLS_MIN` calls.
        reentrance_ids: those that an exclusive process chooses from.
        holds: writers take snapshots, too.
        keyed: those among collections that take events; one whose name ends with "first" by transitions.
        lost_answers: the chance that a `create` loses its answer, half of them after it happened.
    """

    url: str
    options: dict[str, Any]
    folder: str
    number: int
    seed: int
    mode: str
    collections: list[str]
    seconds: float
    reentrance_ids: list[str] = field(default_factory=list)
    lost_answers: float = 0.0
    holds: bool = False
    keyed: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class RacingBlob(MeteredBlob):
    """Counts the creates of log records, and those that came second."""

    tried = lost = 0

    def create(self, key: str, value: bytes) -> bool:
        created = super().create(key, value)
        if key.startswith("log/"):
            self.tried += 1
            self.lost += not created
        return created


class Recorder:
    """Writes the file that `tests.races.history` reads."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def begin(self, client: str, number: int, op: str, args: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
        """Record that a call begins; return what records its answer."""
        key = {"client": client, "number": number}
        self._write({**key, "op": op, "args": args, "invoked_ns": time.monotonic_ns()})

        def end(answer: dict[str, Any]) -> None:
            self._write({**key, "returned_ns": time.monotonic_ns(), "answer": answer})

        return end

    def close(self) -> None:
        os.close(self._file)

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


class RecordedClient:
    """A client whose calls are recorded. For one thread."""

    def __init__(self, recorder: Recorder, name: str, blob: persist.Blob, mode: str, **options: Any) -> None:
        """Open it; raises what `persist.open` raises, after that was recorded."""
        self.name = name
        self._recorder = recorder
        self._numbers = itertools.count()
        self._handles: dict[str, persist.Collection] = {}
        self.counts: Counter[str] = Counter()
        self.uppers: dict[str, int] = {}  # As far as this client has heard.
        args = {"mode": mode, "id": options.get("reentrance_id"), "force": options.get("force", False)}
        args["process"] = os.getpid()
        end = recorder.begin(name, next(self._numbers), "open", args)
        try:
            self._client = persist.open(blob, mode=mode, **options)  # type: ignore[arg-type]
        except persist.PersistError as error:
            end(answer_of(error))
            raise
        end({})

    def close(self) -> None:
        end = self._recorder.begin(self.name, next(self._numbers), "close", {})
        self._client.close()
        end({})

    def handle(self, collection: str) -> persist.Collection:
        if collection not in self._handles:
            self._handles[collection] = self._client.load(collection)
        return self._handles[collection]

    def commit(self, steps: list[list[Any]]) -> Callable[[], str | None]:
        """Ask for a commit of all steps; return what waits for it and returns the class of its error."""
        targets = {collection: self.handle(collection) for _, collection, _ in steps}
        end = self._recorder.begin(self.name, next(self._numbers), "commit", {"steps": steps})
        if len(targets) > 1:
            error = self._commit_all(targets, steps, end)
            return lambda: error
        [handle] = targets.values()
        future = self._ask(handle, {kind: argument for kind, _, argument in steps})
        ended = threading.Event()  # The future wakes those who wait before it tells those who asked to be told.

        def answered(_: object) -> None:
            error = future.exception()
            end({"seqno": future.result()} if error is None else answer_of(error))
            ended.set()

        future.add_done_callback(answered)

        def wait() -> str | None:
            error = future.exception(timeout=ANSWER_TIMEOUT_S)
            ended.wait(ANSWER_TIMEOUT_S)
            return self._counted(steps, error)

        return wait

    def _ask(self, handle: persist.Collection, steps: dict[str, Any]) -> persist.CommitFuture:
        if "upsert" in steps:
            take = handle.transition if handle.name.endswith("first") else handle.upsert
            events = [(id_, value, time_) for id_, value, time_ in steps["upsert"]]
            return take(events, token=steps.get("token"), seal=steps.get("seal"))
        if "write" in steps:
            options = {"expected_upper": steps.get("expect"), "token": steps.get("token"), "seal": steps.get("seal")}
            return handle.write(_updates(steps["write"]), **options)
        if "allow_compaction" in steps:
            return handle.allow_compaction(steps["allow_compaction"])
        return handle.seal(steps["seal"], expected_upper=steps.get("expect"))

    def _commit_all(
        self, targets: dict[str, persist.Collection], steps: list[list[Any]], end: Callable[[dict[str, Any]], None]
    ) -> str | None:
        try:
            with self._client.multi_write() as multi:
                for kind, name, argument in steps:
                    if kind == "write":
                        multi.write(targets[name], _updates(argument))
                    else:
                        multi.seal(targets[name], argument)
        except persist.PersistError as error:
            end(answer_of(error))
            return self._counted(steps, error)
        end({"seqno": multi.seqno})
        return self._counted(steps, None)

    def read(self, op: str, collection: str, **args: int) -> Any:
        """Make a call that reads, and return its answer; None if it was refused."""
        handle = self.handle(collection)
        end = self._recorder.begin(self.name, next(self._numbers), op, {"collection": collection, **args})
        self.counts["reads"] += 1
        try:
            found = self._read(handle, op, args)
        except persist.PersistError as error:
            end(answer_of(error))
            return None
        end({"value" if op in ("upper", "since") else "rows": found})
        if op == "upper":
            self.uppers[collection] = max(found, self.uppers.get(collection, 0))
        return found

    def _read(self, handle: persist.Collection, op: str, args: dict[str, int]) -> Any:
        if op in ("upper", "since"):
            return getattr(handle, op).time
        if op == "snapshot":
            table = handle.snapshot(args["as_of"], form="diff", timeout_s=0).to_arrow()
            return [[_id_of(row), row["_diff"]] for row in table.to_pylist()]
        table = handle.changes(args["lower"], args["upper"], timeout_s=0).to_arrow()
        return [[_id_of(row), row["_time"], row["_diff"]] for row in table.to_pylist()]

    def _counted(self, steps: list[list[Any]], error: BaseException | None) -> str | None:
        """Learn from the answer to a commit; return the class of its error."""
        if error is None:
            self.counts["acknowledged"] += 1
            for kind, collection, argument in steps:
                if kind == "seal":
                    self.uppers[collection] = max(argument, self.uppers.get(collection, 0))
            return None
        self.counts[type(error).__name__] += 1
        if isinstance(error, persist.UpdateNotBeyondUpper) and len({name for _, name, _ in steps}) == 1:
            self.uppers[steps[0][1]] = error.upper.time or 0
        if isinstance(error, persist.UpperMismatch):
            self.uppers[steps[0][1]] = error.actual.time or 0
        if isinstance(error, persist.FrontierRegression) and error.frontier == "upper" and len(steps) == 1:
            self.uppers[steps[0][1]] = error.current.time or 0
        return type(error).__name__


def _id_of(row: dict[str, Any]) -> str:
    return f"{row['id']}={row['v']}" if "v" in row else str(row["id"])


def _updates(updates: list[list[Any]]) -> list[Any]:
    return [((id_, None), time_, diff) for id_, time_, diff in updates]


def answer_of(error: BaseException) -> dict[str, Any]:
    """Return an error as `tests.races.history` has it."""
    answer: dict[str, Any] = {"error": type(error).__name__}
    for name in FIELDS:
        value = getattr(error, name, None)
        if value is not None:
            answer[name] = value.time if isinstance(value, persist.Antichain) else value
    if not isinstance(error, persist.PersistError):
        answer["text"] = str(error)
    return answer


class Racer:
    """What one process does, from its plan. Making it warms up, so that the race itself need not."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.chance = random.Random(f"{plan.seed} {plan.number}")
        folder = Path(plan.folder)
        self.recorder = Recorder(folder / f"history-{plan.number}.jsonl")
        self.blob = RacingBlob(open_blob(plan.url, plan.options))
        half = plan.lost_answers / 2
        self.store: persist.Blob = self.blob
        if half:
            self.store = UnreliableBlob(
                self.blob,
                random.Random(self.chance.random()),
                not_happened_doubtful=half,
                happened_but_failed=half,
                operations={"create"},
            )
        self.store.get("warm-up")
        self.ends_ns = 0
        self.made = 0
        self.opened = 0
        self.written = 0
        self.rows = 0
        self.counts: Counter[str] = Counter()

    def run(self, starts_ns: int) -> None:
        """Race from a time of the monotonic clock on until the time is up, then write down what it came to."""
        self.ends_ns = starts_ns + int(self.plan.seconds * 1e9)
        time.sleep(max(0, starts_ns - time.monotonic_ns()) / 1e9)
        while self.goes_on():
            try:
                client = self.open()
            except persist.Conflict:
                time.sleep(self.chance.uniform(0, 20 * SLOW_DOWN_S))
                continue
            self.use(client)
            client.close()
            self.counts += client.counts
        self.counts["tried"], self.counts["lost"] = self.blob.tried, self.blob.lost
        Path(self.plan.folder, f"counts-{self.plan.number}.json").write_text(json.dumps(self.counts))
        self.store.close()
        self.recorder.close()

    def goes_on(self) -> bool:
        over_ns = time.monotonic_ns() - self.ends_ns
        return over_ns < 0 or (self.made < CALLS_MIN and over_ns < (PATIENCE - 1) * self.plan.seconds * 1e9)

    def open(self) -> RecordedClient:
        self.opened += 1
        self.made += 1
        options: dict[str, Any] = {}
        if self.plan.mode == "exclusive":
            options = {
                "reentrance_id": self.chance.choice(self.plan.reentrance_ids),
                "force": self.chance.random() < 0.2,
            }
        return RecordedClient(self.recorder, f"{self.plan.number}.{self.opened}", self.store, self.plan.mode, **options)

    def use(self, client: RecordedClient) -> None:
        # A reader and an exclusive writer come and go; a shared writer comes and goes less often.
        left = self.chance.randrange(5, 40) * (10 if self.plan.mode == "shared" else 1)
        while left > 0 and self.goes_on():
            left -= 1
            self.made += 1
            if self.plan.mode == "read" or self.chance.random() < 0.1:
                self.look(client)
                continue
            # The seal of a keyed collection does not hold up what is asked of others after it.
            burst = 1 if self.plan.keyed else self.chance.choice([1, 1, 1, 1, 2, 4, 8])
            errors = [wait() for wait in [client.commit(self.steps(client)) for _ in range(burst)]]
            if "WriterFenced" in errors:
                left = min(left, 3)  # It goes on for a little, to see whether it is fenced still.
            if "Locked" in errors:
                time.sleep(self.chance.uniform(0, 5 * SLOW_DOWN_S))

    def steps(self, client: RecordedClient) -> list[list[Any]]:
        chance = self.chance
        collection = chance.choice(self.plan.collections)
        if collection in self.plan.keyed:
            return self.keyed_steps(client, collection)
        kind = chance.random()
        if kind < 0.45:
            return [self.write(client, collection)]
        if kind < 0.75:
            return [["seal", collection, self.near_upper(client, collection, chance.randint(-1, 2))]]
        if kind < 0.8:
            return [["allow_compaction", collection, self.near_upper(client, collection, chance.randint(-12, -3))]]
        if kind < 0.86:
            # Compare and append, by which several writers agree on who writes a time.
            upper = self.near_upper(client, collection, 0)
            return [["expect", collection, upper], self.write(client, collection), ["seal", collection, upper + 1]]
        if kind < 0.92:
            # The same write by whoever comes first.
            time_ = self.near_upper(client, collection, chance.randint(0, 2))
            token = f"t{chance.randrange(TOKENS)}at{time_}"  # With other data, it is refused.
            return [["token", collection, token], ["write", collection, [[token, time_, 1]]]]
        both = chance.sample([name for name in self.plan.collections if name not in self.plan.keyed], 2)
        steps = [self.write(client, name) for name in both]
        return steps + [["seal", name, self.near_upper(client, name, chance.randint(0, 2))] for name in both]

    def keyed_steps(self, client: RecordedClient, collection: str) -> list[list[Any]]:
        chance, kind = self.chance, self.chance.random()
        if kind < 0.4:
            return [["upsert", collection, self.events(self.near_upper(client, collection, chance.randint(-1, 2)))]]
        if kind < 0.65:
            # Events and their seal are one record, if nothing else waits.
            upper = self.near_upper(client, collection, 0)
            return [["upsert", collection, self.events(upper)], ["seal", collection, upper + 1]]
        if kind < 0.85:
            return [["seal", collection, self.near_upper(client, collection, chance.randint(-1, 2))]]
        if kind < 0.9:
            return [["allow_compaction", collection, self.near_upper(client, collection, chance.randint(-12, -3))]]
        time_ = self.near_upper(client, collection, chance.randint(0, 2))
        token = f"t{chance.randrange(TOKENS)}at{time_}"
        return [["token", collection, token], ["upsert", collection, [[token, "once", time_]]]]

    def events(self, time_: int) -> list[list[Any]]:
        found: list[list[Any]] = []
        for _ in range(self.chance.randint(1, 3)):
            self.written += 1
            value = None if self.chance.random() < 0.25 else f"{self.plan.number}.{self.written}"
            # The first one is the earliest, so that of a seal and an event that are both too late the event is named.
            found.append(
                [f"key{self.chance.randrange(KEYS)}", value, time_ + (self.chance.choice([0, 0, 1]) if found else 0)]
            )
        return found

    def write(self, client: RecordedClient, collection: str) -> list[Any]:
        updates = []
        for _ in range(self.chance.randint(1, 3)):
            self.written += 1
            # Some ids come twice. A third of them are retracted only, so that no write cancels out.
            number = self.written - self.chance.choice([0, 0, 0, 1])
            diff = -1 if number % 3 == 0 else self.chance.choice([1, 2])
            time_ = self.near_upper(client, collection, self.chance.choice([-1, 0, 0, 0, 1, 2]))
            updates.append([f"{self.plan.number}.{number}", time_, diff])
        return ["write", collection, updates]

    def near_upper(self, client: RecordedClient, collection: str, offset: int) -> int:
        return max(0, client.uppers.get(collection, 0) + offset)

    def look(self, client: RecordedClient) -> None:
        collection = self.chance.choice(self.plan.collections)
        upper = client.read("upper", collection)
        kind = self.chance.random()
        if self.plan.mode == "read":
            time.sleep(self.chance.uniform(0, 4 * SLOW_DOWN_S))  # Or its reads, which cost nothing, fill the history.
        if kind < 0.2:
            client.read("since", collection)
        elif not self.plan.holds and self.plan.mode != "read":
            pass  # Its snapshots would hold since back.
        elif kind < 0.5 and self.rows < ROWS_RECORDED_MAX:
            as_of = max(0, upper - self.chance.choice([0, 1, 1, 1, 2, 10]))
            self.rows += len(client.read("snapshot", collection, as_of=as_of) or ())
        elif kind < 0.8:
            lower = max(0, upper - self.chance.randint(0, 6))
            client.read("changes", collection, lower=lower, upper=upper)
