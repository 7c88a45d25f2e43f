"""Make change histories to measure with, and write them somewhere.

    scripts/datagen SET TARGET FOLDER [options]

    scripts/datagen cdc-5m collection /tmp/cdc               a collection `rows`, sealed as it goes
    scripts/datagen history-50m delta /tmp/h --change-feed   a version for each seal
    scripts/datagen flights parquet /tmp/f                   the updates as they come, a file for each batch
    scripts/datagen custom parquet /tmp/c --keys 1000 --rows 50000 --batches 20 --skew zipf --deletes 0.1 --late 0.05

Every option but --scale overrides that of the set; `custom` is a set of 100,000 updates over 10,000 keys. An update
is one ((key, value), time, diff): a change of a key is two of them, -1 of the old value and +1 of the new one.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.datasets import NAMES, DataSet, data_set
from benchmarks.histories import FIXED_BYTES, History

CUSTOM = History(name="custom", keys=10_000, rows=100_000, batch_count=20, inserts=0.1, deletes=0.05)
TARGETS = ("collection", "parquet", "delta", "iceberg")


def chosen(arguments: argparse.Namespace) -> DataSet:
    """Return the data set that the arguments ask for."""
    data = CUSTOM if arguments.set == "custom" else data_set(arguments.set, arguments.scale)
    given = {name: getattr(arguments, name) for name in OPTIONS if getattr(arguments, name) is not None}
    if not given:
        return data
    if not isinstance(data, History):
        raise ValueError(f"the {data.name} are real: {', '.join(given)} cannot be chosen")
    return replace(data, **given)


def write(data: DataSet, target: str, folder: Path, change_feed: bool = False) -> None:
    """Write data to a new folder."""
    from benchmarks import ours, targets  # The peers take a second to import, and plain Parquet does not need them.

    if target == "collection":
        ours.write_collection(data, str(folder))
    elif target == "parquet":
        targets.write_parquet(data, folder)
    elif target == "delta":
        targets.write_delta(data, folder, change_feed=change_feed)
    else:
        targets.write_iceberg(data, folder)


OPTIONS: dict[str, dict[str, Any]] = {
    "keys": {"type": int, "help": "how many keys there may ever be"},
    "rows": {"type": int, "help": "how many updates in all"},
    "batch_count": {"type": int, "flag": "--batches", "help": "how many batches they come in"},
    "uneven": {"action": argparse.BooleanOptionalAction, "help": "batches of different sizes"},
    "skew": {"choices": ["uniform", "zipf", "newest"], "help": "which keys change"},
    "inserts": {"type": float, "help": "share of changes that bring a new key, while there is one"},
    "deletes": {"type": float, "help": "share of changes that delete; those left over update"},
    "loaded": {"type": int, "help": "keys inserted before anything else happens"},
    "record_bytes": {"type": int, "help": f"size of a value: {FIXED_BYTES} and a string"},
    "texts": {"type": int, "help": "how many different strings; 0 for as many as values"},
    "late": {"type": float, "help": "share of updates that arrive later than their neighbours in time"},
    "late_batches": {"type": int, "help": "by up to so many batches"},
    "seal_every": {"type": int, "help": "batches between seals"},
    "ticks": {"type": int, "help": "times that a batch spans"},
    "seed": {"type": int, "help": "equal seeds make equal histories"},
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="scripts/datagen", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("set", choices=[*NAMES, "custom"])
    made.add_argument("target", choices=TARGETS)
    made.add_argument("folder", type=Path, help="must not exist yet")
    made.add_argument("--scale", type=float, default=1.0, help="so many times the size of the set")
    made.add_argument("--change-feed", action="store_true", help="for delta: keep a change data feed")
    for name, details in OPTIONS.items():
        rest = dict(details)
        made.add_argument(rest.pop("flag", f"--{name.replace('_', '-')}"), dest=name, default=None, **rest)
    return made


def main(command_line: list[str] | None = None) -> int:
    arguments = parser().parse_args(command_line)
    if arguments.folder.exists():
        print(f"{arguments.folder} exists already; name a new folder.", file=sys.stderr)
        return 2
    try:
        data = chosen(arguments)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    began = time.perf_counter()
    write(data, arguments.target, arguments.folder, arguments.change_feed)
    print(f"{data.name} as {arguments.target} in {arguments.folder}: {time.perf_counter() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
