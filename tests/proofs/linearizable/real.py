"""Clients of the library on one location, in threads or in processes, and what each was answered, with the moments."""

import math
import multiprocessing
import random
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

import persist
from persist.blob.layers.unreliable import UnreliableBlob
from persist.blob.stores.file import FileBlob
from persist.errors import AsOfNotSealed, FrontierRegression, Indeterminate, UpdateNotBeyondUpper
from tests.proofs.linearizable.drawn import KEYED, PLAIN, drawn_calls
from tests.proofs.linearizable.search import Done
from tests.proofs.linearizable.specification import OK, Answer, Call

CLIENTS = 3
CALLS = 6
WAIT_S = 300.0  # For the other clients, before the next history: the machine may have much else to do.


class Caller:
    """One client, which makes calls and notes what it is answered."""

    def __init__(self, number: int, location: Any, commit_through: persist.Notify | None = None) -> None:
        self._number = number
        self.client = persist.open(location, commit_through=commit_through)

    def create(self, history: int) -> None:
        """Create the collections of a history."""
        for name in PLAIN:
            self.client.create_or_load(f"{name}{history}", key={"k": int}, value=None)
        for name in KEYED:
            self.client.create_or_load(f"{name}{history}", key={"k": int}, value={"v": int}, keyed=persist.Keyed())

    def make(self, history: int, calls: list[Call]) -> list[Done]:
        """Make calls, one after the other."""
        held = {name: self.client.load(f"{name}{history}") for name in (*PLAIN, *KEYED)}
        made = []
        for call in calls:
            began = time.monotonic_ns()
            answer = self._answer(held, call)
            made.append(Done(self._number, call, began, time.monotonic_ns() if answer else math.inf, answer))
        return made

    def _answer(self, held: dict[str, persist.Collection], call: Call) -> Answer | None:
        try:
            return self._asked(held, call)
        except (AsOfNotSealed, UpdateNotBeyondUpper) as error:
            return ("refused", error.upper.time)
        except FrontierRegression as error:
            return ("refused", error.current.time)
        except Indeterminate:
            return None

    def _asked(self, held: dict[str, persist.Collection], call: Call) -> Answer:
        match call:
            case ("write", str(name), int(marker), token):
                held[name].write(_row(marker), token=None if token is None else str(token)).result()
            case ("both", int(marker)):
                with self.client.multi_write() as multi:
                    for name in PLAIN:
                        multi.write(held[name], _row(marker))
            case ("late", str(name), int(marker), int(at)):
                held[name].write(_row(marker), time=at, seal=at + 1).result()
            case ("seal", str(name), int(upper)):
                held[name].seal(upper).result()
            case ("upper", str(name)):
                return ("upper", held[name].upper.time)
            case ("rows", str(name)):
                return ("rows", *sorted(held[name].snapshot().to_arrow()["k"].to_pylist()))
            case ("count", str(name), int(at)):
                return ("count", held[name].snapshot(at).count())
            case ("upsert", str(name), int(key), value):
                held[name].upsert([(key, value)]).result()
            case ("get", str(name), int(key)):
                return ("value", *(value for _, value in held[name].get([key])))
        return OK


def _row(marker: int) -> pa.Table:
    return pa.table({"k": pa.array([marker], pa.int64())})


def unreliable(folder: Path, seed: int) -> UnreliableBlob:
    """Return a folder of which some answers are lost."""
    chance = random.Random(seed)
    doubtful = {"happened_but_failed": 0.05, "not_happened_doubtful": 0.03}
    return UnreliableBlob(FileBlob(folder), chance, operations=("create",), **doubtful)  # type: ignore[arg-type]


def histories_of_threads(folder: Path, seeds: range) -> list[list[Done]]:
    """Return what clients in threads were answered: a history for each seed."""
    with ExitStack() as stack:
        callers = [Caller(n, unreliable(folder, n)) for n in range(CLIENTS)]
        for caller in callers:
            stack.enter_context(caller.client)
        barrier = threading.Barrier(CLIENTS, timeout=WAIT_S)
        made: list[list[list[Done]]] = [[] for _ in callers]

        def live(n: int) -> None:
            made[n] = _lived(callers[n], n, seeds, barrier)

        threads = [threading.Thread(target=live, args=(n,)) for n in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [[done for client in made for done in client[n]] for n in range(len(seeds))]


def histories_of_processes(folder: Path, seeds: range, *, through: bool = False) -> list[list[Done]]:
    """Return what clients in processes of their own were answered; through: all but one commit through that one."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(CLIENTS, timeout=WAIT_S)
    pipes = [context.Pipe() for _ in range(CLIENTS)]
    url = context.Queue()
    processes = [
        context.Process(target=_live, args=(n, str(folder), seeds, barrier, pipes[n][1], url, through))
        for n in range(CLIENTS)
    ]
    for process in processes:
        process.start()
    for _, end in pipes:
        end.close()  # So that one that fails is noticed.
    made = [pipes[n][0].recv() for n in range(CLIENTS)]
    for process in processes:
        process.join()
    return [[done for client in made for done in client[n]] for n in range(len(seeds))]


def _live(n: int, folder: str, seeds: range, barrier: Any, pipe: Any, url: Any, through: bool) -> None:
    notify = persist.Notify(url.get(), "secret") if through and n else None
    caller = Caller(n, unreliable(Path(folder), n), notify)
    with caller.client as client, ExitStack() as stack:
        if through and n == 0:
            server = stack.enter_context(client.serve("grpc://127.0.0.1:0", commits=True, token="secret"))
            for _ in range(CLIENTS - 1):
                url.put(server.url)
        pipe.send(_lived(caller, n, seeds, barrier))
        barrier.wait()


def _lived(caller: Caller, n: int, seeds: range, barrier: threading.Barrier) -> list[list[Done]]:
    """Make the calls of one client in each history, all clients at once; if one fails, nobody waits for it."""
    made = []
    try:
        for seed in seeds:
            if n == 0:
                caller.create(seed)
            barrier.wait()
            made.append(caller.make(seed, drawn_calls(seed, CLIENTS, CALLS)[n]))
    except BaseException:
        barrier.abort()
        raise
    return made
