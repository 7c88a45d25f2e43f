"""Ingest and egress take each row once, whichever call of the location's store fails or is the last one of a client."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

import persist
from persist.blob.errors import Indeterminate, Unavailable
from persist.blob.layers.unreliable import READS, UnreliableBlob
from persist.blob.protocol import Blob, MemoryBlob
from persist.core.settings import Tuning
from persist.errors import AsOfCompacted
from tests.connect.egress.test_kafka import messages
from tests.connect.ingest.brokers import Cluster
from tests.core.keyed.test_crash import Died

pytest.importorskip("confluent_kafka")
deltalake = pytest.importorskip("deltalake")
T = TypeVar("T")
Rows = list[dict[str, Any]]
SETTINGS = persist.Settings(background=False, tuning=Tuning(attempts_max=1))
STRIDE = 6  # Of the calls, each case takes every sixth one.
_names = (f"each-call-{number}" for number in count())


class Fault(Enum):
    """What happens at one call."""

    DIES_BEFORE = "the client is gone, and the call does not happen"
    DIES_AFTER = "the client is gone, and the call happens"
    REFUSED = "the call does not happen, and the client goes on"
    DOUBTFUL = "the call happens without an answer, and the client goes on"


class Faulty(UnreliableBlob):
    """A store with a fault at one call."""

    def __init__(self, inner: Blob, at: int, fault: Fault) -> None:
        super().__init__(inner)
        self._numbers, self._at, self._fault = count(), at, fault
        self._is_gone = threading.Event()
        self.has_failed = False

    def _call_with_fault(self, operation: str, call: Callable[[], T]) -> T:
        number = next(self._numbers)
        if self._is_gone.is_set():
            raise Died
        if number != self._at:
            return call()
        self.has_failed = True
        if self._fault in (Fault.DIES_BEFORE, Fault.DIES_AFTER):
            self._is_gone.set()
            if self._fault is Fault.DIES_AFTER:
                call()
            raise Died
        if self._fault is Fault.REFUSED:
            raise Unavailable("injected: the call did not happen")
        call()
        if operation in READS:
            raise Unavailable("injected: no answer")
        raise Indeterminate("injected: no answer")


def run_with_faults(fault: Fault, start: int, round_: Callable[[Callable[[Blob], Blob]], None]) -> None:
    """Run rounds with a fault at ever later calls, until one has no fault."""
    for rounds, at in enumerate(range(start, 10_000, STRIDE)):
        stores: list[Faulty] = []

        def make_faulty(inner: Blob, at: int = at, stores: list[Faulty] = stores) -> Blob:
            stores.append(Faulty(inner, at, fault))
            return stores[-1]

        round_(make_faulty)
        if not stores[-1].has_failed:
            assert rounds > 2, "most rounds have a fault"
            return


def try_for_long(blob: Blob, call: Callable[[persist.Client], object]) -> None:
    """Make a call three times, unless its client is gone."""
    client = None
    for _ in range(3):
        with suppress(Died, persist.PersistError):
            client = client or persist.open(blob, settings=SETTINGS)
            call(client)


CASES = [(fault, start) for start in range(STRIDE) for fault in Fault]


@dataclass
class Origin:
    """Rows outside of a location: `add` adds those of a number, and `expected` are those of all numbers below one."""

    place: Path
    options: dict[str, Any] = field(default_factory=dict)

    def add(self, number: int) -> None:
        raise NotImplementedError

    def expected(self, numbers: int) -> Rows:
        """Three rows for each number; the later ones have a further column."""
        return [row for number in range(numbers) for row in made_rows(number)]


def made_rows(number: int) -> Rows:
    return [{"id": 3 * number + at, "n": number, "more": "x" if number else None} for at in range(3)]


class FilesOrigin(Origin):
    """Files of JSON lines, whose second one has another column."""

    def add(self, number: int) -> None:
        (self.place / "in").mkdir(parents=True, exist_ok=True)
        lines = [{name: value for name, value in row.items() if value is not None} for row in made_rows(number)]
        (self.place / "in" / f"{number}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.options = {"source": str(self.place / "in"), "settle_s": 0.0, "key": ["id"], "drift": "add"}


class EventsOrigin(FilesOrigin):
    """Files with rows that replace each other."""

    def add(self, number: int) -> None:
        super().add(number)
        (self.place / "in" / f"{number}.json").write_text(
            "".join(json.dumps({"id": at, "n": number}) + "\n" for at in range(number, number + 3))
        )
        self.options |= {"keyed": True}

    def expected(self, numbers: int) -> Rows:
        rows = {at: {"id": at, "n": number} for number in range(numbers) for at in range(number, number + 3)}
        return [*rows.values()]


class DeltaOrigin(Origin):
    """Versions of a table."""

    def add(self, number: int) -> None:
        rows = pa.Table.from_pylist(made_rows(number), pa.schema([("id", "int64"), ("n", "int64"), ("more", "string")]))
        deltalake.write_deltalake(str(self.place / "table"), rows, mode="append")
        self.options = {"source": f"delta:{self.place / 'table'}", "key": ["id"]}


class KafkaOrigin(Origin):
    """Messages of one partition, with one that does not fit among them."""

    cluster: Cluster

    def add(self, number: int) -> None:
        topic = self.place.name
        lines = [{name: value for name, value in row.items() if value is not None} for row in made_rows(number)]
        self.cluster.send(topic, *lines[:2], {"id": "bad"}, lines[2])
        columns = {"id": "int64", "n": "int64"}
        self.options = {
            "source": f"kafka://{self.cluster.address}/{topic}", "key": ["id"], "columns": columns, "drift": "add",
            "batch_rows": 4,
        }  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    KafkaOrigin.cluster = Cluster()
    return KafkaOrigin.cluster


def contents(client: persist.Client, name: str = "rows") -> Rows:
    if name not in client:
        return []
    collection = client.load(name)
    return [] if collection.upper.time == 0 else collection.snapshot().to_arrow().to_pylist()


def in_order(rows: Rows) -> list[str]:
    """Return rows without NULLs, because a column may come later."""
    return sorted(str({name: value for name, value in row.items() if value is not None}) for row in rows)


@pytest.mark.thorough(except_every=len(CASES) + 1)
@pytest.mark.parametrize(("fault", "start"), CASES)
@pytest.mark.parametrize("kind", [FilesOrigin, EventsOrigin, DeltaOrigin, KafkaOrigin])
def test_whichever_call_fails_each_row_of_a_source_comes_in_once(
    tmp_path: Path, cluster: Cluster, kind: type[Origin], fault: Fault, start: int
) -> None:
    def round_(make_faulty: Callable[[Blob], Blob]) -> None:
        origin, blob = kind(tmp_path / next(_names)), MemoryBlob()
        wanted = [origin.expected(numbers) for numbers in range(4)]
        if kind is KafkaOrigin:  # A poll may end at any message.
            wanted = [wanted[3][:rows] for rows in range(len(wanted[3]) + 1)]
        prefixes = [in_order(rows) for rows in wanted]
        for number in range(2):
            origin.add(number)
        options = {"collection": "rows", **origin.options}
        try_for_long(make_faulty(blob), lambda client: persist.ingest(client, options, once=True))
        with persist.open(blob, settings=SETTINGS) as client:
            assert in_order(contents(client)) in prefixes
            origin.add(2)
            persist.ingest(client, options, once=True)
            assert in_order(contents(client)) == prefixes[-1]
            if kind is KafkaOrigin:
                assert [row["offset"] for row in contents(client, "rows.rejected")] == [2, 6, 10]
            assert persist.ingest(client, options, once=True).rows == 0
            assert not client.fsck().problems

    run_with_faults(fault, start, round_)


class FilesTarget:
    """Files of JSON lines."""

    def __init__(self, place: Path, cluster: Cluster) -> None:
        self.options: dict[str, Any] = {"sink": str(place), "format": "json"}
        self._place = place

    def read_orders(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for change in self._read("orders"):
            assert (change["_change"] == "insert") == (change["id"] not in found), "no change comes twice"
            if change["_change"] == "delete":
                del found[change["id"]]
            else:
                found[change["id"]] = change["status"]
        return found

    def read_lines(self) -> Counter[str]:
        found = Counter[str]()
        for change in self._read("lines"):
            found[change["line"]] += change["_diff"]
        return found

    def _read(self, name: str) -> Rows:
        paths = sorted((self._place / name).glob("*"), key=lambda path: (path.name[0] != "c", path.name))
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


class KafkaTarget:
    """Topics. The mock cluster also shows what was sent before a transaction was given up: so only the last counts."""

    def __init__(self, place: Path, cluster: Cluster) -> None:
        self._cluster, self._prefix = cluster, f"{place.name}."
        address = f"kafka://{cluster.address}"
        self.options: dict[str, Any] = {
            "sink": address, "prefix": self._prefix, "positions": f"{self._prefix}positions"
        }  # fmt: skip

    def read_orders(self) -> dict[int, str]:
        last = {key["id"]: value for key, value, _ in messages(self._cluster, f"{self._prefix}orders")}
        return {id_: value["status"] for id_, value in last.items() if value is not None}

    def read_lines(self) -> None:
        """Messages without keys cannot be told from those of transactions that were given up."""


@pytest.mark.thorough(except_every=2 * len(CASES))
@pytest.mark.parametrize(("fault", "start"), CASES)
@pytest.mark.parametrize(
    "kind", [FilesTarget, pytest.param(KafkaTarget, marks=pytest.mark.costly("each round waits for a broker"))]
)
def test_whichever_call_fails_each_change_goes_out_once(
    tmp_path: Path, cluster: Cluster, kind: type[FilesTarget | KafkaTarget], fault: Fault, start: int
) -> None:
    def round_(make_faulty: Callable[[Blob], Blob]) -> None:
        target, blob = kind(tmp_path / next(_names), cluster), MemoryBlob()
        options = {"collections": ["orders", "lines"], "name": "out", **target.options}
        orders: dict[int, str] = {}
        lines = Counter[str]()

        def change(time: int) -> None:
            """Replace, add and delete an order, add a line and retract another one."""
            events = {time: "new", time - 1: "old", time - 3: None}
            updates = {f"line {time}": 1, "again": 1, **({f"line {time - 2}": -1} if time >= 2 else {})}
            with persist.open(blob, settings=SETTINGS) as client, client.multi_write() as multi:
                multi.upsert(client["orders"], [(id_, text) for id_, text in events.items() if id_ >= 0], time=time)
                multi.write(client["lines"], [((None, line), time, diff) for line, diff in updates.items()])
                multi.seal(client["orders"], time + 1)
                multi.seal(client["lines"], time + 1)
            for id_, status in events.items():
                orders.pop(id_, None)
                if status is not None and id_ >= 0:
                    orders[id_] = status
            lines.update(updates)

        with persist.open(blob, settings=SETTINGS) as client:
            client.create_or_load("orders", key={"id": int}, value={"status": str}, keyed=persist.Keyed())
            client.create_or_load("lines", key=None, value={"line": str})
        for time in range(2):
            change(time)
        if start % 2:
            with persist.open(blob, settings=SETTINGS) as client:
                persist.egress(client, options, once=True)
        for time in range(2, 5):
            change(time)
        try_for_long(make_faulty(blob), lambda client: persist.egress(client, options, once=True))
        change(5)
        with persist.open(blob, settings=SETTINGS) as client:
            for name in ("orders", "lines"):
                client[name].allow_compaction(5).result()
                client[name].compact()
            advice = None
            try:
                persist.egress(client, options, once=True)
            except AsOfCompacted as error:  # It was gone between the first position and the hold of history.
                advice = error.__notes__
            if advice:
                assert "give the sink up by --drop" in advice[0]
                assert target.read_orders() == {}
                return
            assert target.read_orders() == orders
            if (found := target.read_lines()) is not None:
                assert found == lines
            assert persist.egress(client, options, once=True).rows == 0
            assert not client.fsck().problems

    run_with_faults(fault, start, round_)
