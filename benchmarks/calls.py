"""How many Python functions a call of a client enters, in all threads: what a small call costs is mostly these.

python -m benchmarks.calls            the numbers
python -m benchmarks.calls upsert     which functions one of them enters how often
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import persist
from persist.blob.protocol import MemoryBlob
from persist.core.settings import Tuning
from tests.connect.ingest.brokers import Cluster

ROUNDS = 21
QUIET = persist.Settings(background=False, tuning=Tuning(hold_linger_s=1e9))


_counts: Counter[str] = Counter()


def _note(frame: FrameType, event: str, _: Any) -> None:
    if event == "call":
        _counts[f"{frame.f_code.co_filename.rpartition('persist/')[2]}:{frame.f_code.co_qualname}"] += 1


def entered(call: Callable[[], object]) -> Counter[str]:
    """Return how often a call enters each function."""
    _counts.clear()
    call()
    return _counts.copy()


def calls() -> dict[str, Callable[[], object]]:
    """Return what is counted, by its name, on locations that are open and warm."""
    threading.setprofile(_note)  # Before the client's threads begin.
    sys.setprofile(_note)
    blob = MemoryBlob()
    client = persist.open(blob, settings=QUIET)
    plain = client.create_or_load("plain", key={"k": int}, value={"v": int})
    plain.write([((1, 1), 0, 1)], seal=1).result()
    keyed = client.create_or_load("keyed", key={"k": int}, value={"v": int}, keyed=None)
    keyed.upsert([(1, 1), (2, 2)]).result()
    six = client.create_or_load("six", key={"k": int}, value={"v": int})
    for time in range(6):
        six.write([((time, time), time, 1)], seal=time + 1).result()
    times = iter(range(1, 10**9))

    def write() -> None:
        time = next(times)
        plain.write([((1, 1), time, 1)], seal=time + 1).result()

    def reopen() -> None:
        persist.open(MemoryBlob(), settings=QUIET).close()

    cluster = Cluster()

    def ingest() -> None:
        cluster.send("topic", {"id": next(times), "amount": 1.5})
        source = f"kafka://{cluster.address}/topic"
        persist.ingest(client, {"source": source, "collection": "rows", "key": ["id"]}, once=True)

    return {
        "one tuple written": write,
        "upsert of two rows": lambda: keyed.upsert([(1, 5), (2, 6)]).result(),
        "snapshot of six small parts": lambda: six.snapshot(5).to_arrow(),
        "open and close": reopen,
        "one Kafka message sent and ingested": ingest,
    }


def main(chosen: str | None = None) -> None:
    for name, call in calls().items():
        for _ in range(3):
            call()
        rounds = [entered(call) for _ in range(ROUNDS)]
        middle = sorted(rounds, key=lambda counts: counts.total())[ROUNDS // 2]
        print(f"{middle.total():7,}  {name}")
        if chosen and chosen in name:
            for function, count in middle.most_common():
                print(f"{count:12,}  {function}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
