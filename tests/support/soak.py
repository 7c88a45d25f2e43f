"""Long runs of the tests that look for what short ones do not find: `python -m tests.support.soak <kind> …`.

Each kind is a module with `add_arguments(parser)` and `run(args)`, which returns 0 if all went well. `all` runs every
kind with its defaults, one after the other.
"""

import argparse
import importlib
import sys
from typing import Any

KINDS = {
    "simulator": "tests.proofs.simulator.soak",
    "processes": "tests.proofs.simulator.soak_processes",
    "power-cuts": "tests.blob.power_cuts.soak",
    "corruption": "tests.rules.corruption.soak",
    "fuzz": "tests.rules.fuzz.soak",
    "sql": "tests.compute.sql.soak",
    "year": "tests.proofs.year.soak",
    "cluster": "tests.connect.spark.soak",
}


def main(arguments: list[str]) -> int:
    """Run what arguments ask for; return 1 if a promise was broken."""
    chosen = arguments[0] if arguments else "--help"
    parser = argparse.ArgumentParser(prog="scripts/soak", description="Run a kind of test for long.")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="|".join([*KINDS, "all"]))
    # Only what is run is imported, because a kind may need what the others do not.
    for kind in KINDS:
        chosen_parser = kinds.add_parser(kind)
        if kind == chosen:
            _module(kind).add_arguments(chosen_parser)
    kinds.add_parser("all")
    args = parser.parse_args(arguments)
    return _run_all() if args.kind == "all" else int(_module(args.kind).run(args))


def _run_all() -> int:
    results = {}
    for kind in KINDS:
        print(f"== {kind}", flush=True)
        results[kind] = main([kind])
    for kind, result in results.items():
        print(f"{kind}: {'clean' if result == 0 else 'FAILED'}")
    return int(any(results.values()))


def _module(kind: str) -> Any:
    return importlib.import_module(KINDS[kind])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
