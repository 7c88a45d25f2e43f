"""The command line: `python -m persist fsck|gc|compact|collections <location>`.

Exit status: 0 for all is well, 1 for problems found in the location, 2 for a mistake in the call or a store that does
not answer. Errors of the library are one line on standard error.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing

import persist
from persist.blob.clock import SystemClock
from persist.fsck.report import table
from persist.replica.follower import Follower
from persist.storage import open_storage

OK, PROBLEMS, FAILED = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, given its arguments without the program's name; return the exit status."""
    asked = _parser().parse_args(arguments)
    try:
        return int(asked.run(asked))
    except persist.Corruption as error:
        return _failed(error, PROBLEMS)
    except persist.PersistError as error:
        return _failed(error, FAILED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="persist", description="Look after a location of collections.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="command")
    fsck = _command(commands, "fsck", "verify everything that a location holds, and repair what can be repaired")
    fsck.add_argument(
        "--repair", action="store_true", help="make bad checkpoints again and delete old blobs that nothing refers to"
    )
    fsck.add_argument("--dry-run", action="store_true", help="with --repair: change nothing, show what would be done")
    fsck.add_argument("--shallow", action="store_true", help="do not read parts, only look for them")
    fsck.set_defaults(run=_fsck)
    _command(commands, "gc", "delete what nobody needs any more").set_defaults(run=_gc)
    compact = _command(commands, "compact", "make reading cheap, and destroy what may not be read any more")
    compact.add_argument("collections", nargs="*", metavar="collection", help="which ones; all by default")
    compact.add_argument("--due", action="store_true", help="do only what is worth it by now")
    compact.add_argument("--memory-budget", type=int, metavar="BYTES", help="at most about this much memory")
    compact.set_defaults(run=_compact)
    _command(commands, "collections", "list the collections").set_defaults(run=_collections)
    return parser


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, does: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=does, description=f"{does[0].upper()}{does[1:]}.")
    parser.add_argument("location", help="a folder, s3://bucket/prefix, or any other URL that persist.open takes")
    parser.add_argument(
        "--storage-option",
        action="append",
        default=[],
        type=_option,
        metavar="NAME=VALUE",
        dest="storage_options",
        help="for the store, such as endpoint_url or region; may be repeated",
    )
    return parser


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError("write NAME=VALUE")
    return name, value


def _fsck(asked: argparse.Namespace) -> int:
    report = persist.fsck(
        asked.location,
        repair=asked.repair,
        dry_run=asked.dry_run,
        deep=not asked.shallow,
        storage_options=dict(asked.storage_options),
    )
    if report.is_empty:
        print(f"persist: nothing is stored at {report.url}", file=sys.stderr)
        return FAILED
    print(report)
    return OK if report.is_clean else PROBLEMS


def _gc(asked: argparse.Namespace) -> int:
    settings = persist.Settings(background=False)
    with persist.open(asked.location, storage_options=dict(asked.storage_options), settings=settings) as client:
        report = client.gc()
        kinds = ("parts", "lists", "states", "directories", "checkpoints", "records")
        counts = ", ".join(f"{getattr(report, kind):,} {kind}" for kind in kinds)
        print(
            f"{client.url}: deleted {counts} ({report.bytes:,} bytes) of {report.collections:,} destroyed collections"
        )
    return OK


def _compact(asked: argparse.Namespace) -> int:
    settings = persist.Settings(background=False)
    if asked.memory_budget is not None:
        settings = persist.Settings(background=False, memory_budget=asked.memory_budget)
    with persist.open(asked.location, storage_options=dict(asked.storage_options), settings=settings) as client:
        for name in asked.collections or client.collections():
            try:
                report = client.load(name).compact(only_due=asked.due)
            except persist.CollectionNotFound:
                if asked.collections:
                    raise
                continue  # It was destroyed meanwhile.
            print(f"{name}: {report}")
    return OK


def _collections(asked: argparse.Namespace) -> int:
    rows = []
    with (
        closing(open_storage(asked.location, dict(asked.storage_options))) as storage,
        closing(Follower(storage.blob, SystemClock())) as follower,
    ):
        for name, id_ in sorted(follower.state.ids.items()):
            contents = follower.load(id_)
            assert contents is not None, "this follower has read to the end, and does not go on"
            since, upper = (str(each.time) if not each.is_empty else "-" for each in (contents.since, contents.upper))
            size = sum(part.bytes for part in contents.parts)
            rows.append((name, since, upper, f"{len(contents.parts):,}", f"{size:,}", str(len(contents.holds))))
    head = ("name", "since", "upper", "parts", "bytes", "holds")
    print("\n".join(table(head, rows, right=range(1, 6))))
    return OK


def _failed(error: persist.PersistError, status: int) -> int:
    print(f"persist: {' '.join(str(error).split())}", file=sys.stderr)
    return status
