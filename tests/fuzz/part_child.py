"""Decodes the cases of a range of seeds and says what happened: `python -m tests.fuzz.part_child FIRST COUNT`.

In a process of its own, so that a crash is seen. Before each case its seed is printed, after it a line of JSON.
"""

import json
import sys
import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs import PartIndex, consolidate, decode_groups, decode_part, footer_range, read_index, to_tuples
from persist.errors import PersistError
from tests.fuzz.part_cases import Case, believable_index, case

ALLOWANCE = 1 << 20  # What Arrow always takes, whatever it reads.
POOLS: list[pa.MemoryPool] = []  # A pool must outlive what was allocated from it.
RSS_ALLOWANCE = 24 << 20  # The same for the process, whose allocators give back late.


def main(first: int, count: int) -> None:
    for seed in (0, 10, 11):  # What is imported late counts as nobody's memory.
        run(case(seed))
    for seed in range(first, first + count):
        print(f"case {seed}", flush=True)
        made = case(seed)
        print(json.dumps({"seed": seed, "kind": made.kind, **measured(made)}), flush=True)


def measured(made: Case) -> dict[str, Any]:
    pool = pa.proxy_memory_pool(pa.system_memory_pool())
    POOLS.append(pool)
    pa.set_memory_pool(pool)
    before, started = reset_peak_rss(), time.perf_counter()
    outcome = run(made)
    rss = peak_rss() - before
    allowed = 4 * (len(made.data) + made.part.memory)
    return {
        "outcome": outcome,
        "must": made.must,
        "took_s": round(time.perf_counter() - started, 3),
        "pool_bytes": pool.max_memory(),
        "rss_bytes": rss,
        "allowed_bytes": allowed,
        "too_much": pool.max_memory() > allowed + ALLOWANCE or rss > allowed + RSS_ALLOWANCE,
    }


def run(made: Case) -> str:
    """Decode a part in every way there is; return "read", or the name of the error."""
    outcomes = [attempted(made, how) for how in (whole, columns, filtered, indexed, in_pieces)]
    # Sums of all rows are all that pieces cannot be checked for.
    assert outcomes[4] == "read" or outcomes[0] != "read", outcomes
    return outcomes[0]


def attempted(made: Case, how: Any) -> str:
    try:
        how(made)
    except PersistError as error:
        return type(error).__name__
    return "read"


def whole(made: Case) -> None:
    table = decode_part(made.data, made.part, made.schema)
    table.validate(full=True)
    assert table.num_rows == made.part.rows
    if len(table) <= 1000:
        summed = consolidate(table, [*made.schema.names, "_time"])
        for _ in to_tuples(summed, made.schema):
            pass


def columns(made: Case) -> None:
    decode_part(made.data, made.part, made.schema, columns=["_diff"], within=(0, 2))


def filtered(made: Case) -> None:
    decode_part(made.data, made.part, made.schema, filter=pc.field("_time") < 3)


def indexed(made: Case) -> None:
    """Read all by the index that is in the footer."""
    start, end = footer_range(made.part)
    read_all(made, read_index(made.data[start:end], made.part, made.schema))


def in_pieces(made: Case) -> None:
    """Read all by an index whose checksums are right, whatever the pieces are."""
    read_all(made, believable_index(made.data, made.part, made.schema))


def read_all(made: Case, index: PartIndex) -> None:
    rows = 0
    for number, group in enumerate(index.groups):
        piece = made.data[group.start : group.end]
        table = decode_groups([(number, piece)], index, made.part, made.schema)
        table.validate(full=True)
        rows += table.num_rows
        decode_groups([(number, piece)], index, made.part, made.schema, columns=["_diff"], filter=pc.field("_time") < 3)
    assert rows == made.part.rows


def reset_peak_rss() -> int:
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")
    return peak_rss()


def peak_rss() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
