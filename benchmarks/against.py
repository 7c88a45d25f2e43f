"""The library against an earlier commit: CPU time of bulk writes, reads, tiny writes, point reads and appends.

    python -m benchmarks.against COMMIT [--rounds 60] [--measures tiny points]

Two processes stay open, one with each version. They are asked in turn, and who goes first changes, so that a machine
that gets faster or slower does so for both. A figure is the median over rounds of (CPU time of now / CPU time of then)
in the same round, with an interval that holds the median of all such rounds with 95%; threads of the library count,
waiting does not. Where two versions with no difference are 1% apart is seen by giving HEAD as the commit.
"""

import argparse
import io
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
ROWS = 200_000
TINY_WRITES = 3_000
READS = 1_000
APPENDS, APPENDED_ROWS = 50, 100


def main(command_line: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.against", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--measures", nargs="+", choices=sorted(_MEASURES), default=list(_MEASURES))
    asked = parser.parse_args(command_line)
    with tempfile.TemporaryDirectory(prefix="persist-against-") as name:
        then = _unpacked(asked.commit, Path(name, "then"))
        print("| measure | then, CPU | now, CPU | now / then, median (95%) |\n|---|---|---|---|")
        for measure in asked.measures:
            print(_line(measure, _alternated(measure, [then, ROOT], asked.rounds, Path(name))), flush=True)
    return 0


def _unpacked(commit: str, folder: Path) -> Path:
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="fully_trusted")  # Our own commit, whose links are wanted as they are.
    return folder


def _alternated(measure: str, roots: list[Path], rounds: int, folder: Path) -> list[list[float]]:
    """Return the CPU seconds of each version in each round."""
    taken: list[list[float]] = [[] for _ in roots]
    command = [sys.executable, __file__, "--child", measure]
    children = [
        subprocess.Popen(
            [*command, str(root), tempfile.mkdtemp(dir=folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for root in roots
    ]
    try:
        for round_ in range(rounds + 2):  # The first two warm up.
            for i in range(len(children)):
                at = (i + round_) % len(children)
                seconds = _asked(children[at])
                if round_ >= 2:
                    taken[at].append(seconds)
    finally:
        for child in children:
            child.communicate()
    return taken


def _asked(child: "subprocess.Popen[str]") -> float:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("again\n")
    child.stdin.flush()
    return float(json.loads(child.stdout.readline()))


def _line(measure: str, taken: list[list[float]]) -> str:
    then, now = taken
    ratios = sorted(b / a for a, b in zip(then, now, strict=True))
    # Ranks of an interval for the median, by the binomial distribution's normal approximation.
    half = int(0.98 * len(ratios) ** 0.5) + 1
    middle = len(ratios) // 2
    low, high = ratios[max(0, middle - half)], ratios[min(len(ratios) - 1, middle + half)]
    a, b = (f"{1000 * statistics.median(each):.1f} ms" for each in (then, now))
    return f"| {measure} | {a} | {b} | {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f}) |"


def _child(measure: str, root: str, folder: str) -> None:
    """Do a measure, with the library in root, each time a line comes; say how much CPU time it took."""
    sys.path.insert(0, root)
    import persist

    assert str(persist.__file__).startswith(root), f"{persist.__file__} is another version"
    call = _MEASURES[measure](persist, Path(folder))
    for _ in sys.stdin:
        print(json.dumps(call()), flush=True)


def _timed(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def _table() -> Any:
    import numpy as np
    import pyarrow as pa

    chance = np.random.default_rng(1)
    ids = chance.permutation(ROWS)
    return pa.table(
        {
            "id": ids,
            "name": pa.array([f"name-{i % 5000:05}" for i in ids.tolist()]),
            "amount": chance.random(ROWS),
            "_time": np.zeros(ROWS, np.int64),
            "_diff": np.ones(ROWS, np.int64),
        }
    )


def _rows(persist: Any, location: str) -> Any:
    import pyarrow as pa

    client = persist.open(location, settings=persist.Settings(background=False))
    value = {"name": pa.string(), "amount": pa.float64()}
    return client, client.create_or_load("rows", key={"id": pa.int64()}, value=value)


def _write(persist: Any, folder: Path) -> Callable[[], float]:
    table, turn = _table(), iter(range(1 << 30))

    def call() -> float:
        client, rows = _rows(persist, f"memory://write-{next(turn)}")

        def write() -> None:
            rows.write(table).result()
            rows.seal(1).result()

        with client:
            seconds = _timed(write)
            rows.drop().result()
            client.gc()
        return seconds

    return call


def _read(persist: Any, folder: Path) -> Callable[[], float]:
    _, rows = _rows(persist, str(folder / "read"))
    rows.write(_table()).result()
    rows.seal(1).result()
    return lambda: _timed(lambda: [rows.snapshot(as_of=0).to_arrow() for _ in range(5)])


def _tiny(persist: Any, folder: Path) -> Callable[[], float]:
    turn = iter(range(1 << 30))

    def call() -> float:
        client, rows = _rows(persist, str(folder / f"tiny-{next(turn)}"))

        def write() -> None:
            for future in [rows.write([((i, (f"name-{i:015}", i / 7)), 0, 1)]) for i in range(TINY_WRITES)]:
                future.result()

        with client:
            return _timed(write)

    return call


def _points(persist: Any, folder: Path) -> Callable[[], float]:
    import numpy as np

    _, rows = _rows(persist, str(folder / "points"))
    rows.write(_table()).result()
    rows.seal(1).result()
    import pyarrow as pa

    # In Arrow, and so are the answers: lists were once answered by tables, and are answered by lists now.
    [name] = rows.schema.key_names
    keys = [pa.table({name: [key]}) for key in np.random.default_rng(2).integers(0, ROWS, READS).tolist()]
    snapshot = rows.snapshot(as_of=0)
    return lambda: _timed(lambda: [snapshot.get(key) for key in keys])


def _append(persist: Any, folder: Path) -> Callable[[], float]:
    table, turn = _table().slice(0, APPENDED_ROWS), iter(range(1 << 30))

    def call() -> float:
        client, rows = _rows(persist, str(folder / f"append-{next(turn)}"))

        def append() -> None:
            for at in range(APPENDS):
                rows.write(table.set_column(3, "_time", [[at] * APPENDED_ROWS]))
                rows.seal(at + 1).result()

        with client:
            return _timed(append)

    return call


_MEASURES = {"write": _write, "read": _read, "tiny": _tiny, "points": _points, "append": _append}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _child(*sys.argv[2:])
    else:
        sys.exit(main())
