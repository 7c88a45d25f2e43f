"""The command line: `python -m persist fsck|gc|compact|collections|holds|release <location>`.

Exit status: 0 for all is well, 1 for problems found in the location, 2 for a mistake in the call or a store that does
not answer. Errors of the library are one line on standard error.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime

import persist
from persist.blob.clock import SystemClock
from persist.cli.storage_options import add_arguments, storage_options
from persist.fsck.report import table
from persist.replica.follower import Follower
from persist.state.unsealed import unsealed
from persist.storage import open_storage
from persist.timeline import shown_time, timeline_of

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
    fsck.add_argument(
        "--set-aside",
        action="store_true",
        help="with --repair: move records that lie beyond the end of the log to lost/; stop all clients before",
    )
    fsck.add_argument("--shallow", action="store_true", help="do not read parts, only look for them")
    fsck.set_defaults(run=_fsck)
    _command(commands, "gc", "delete what nobody needs any more").set_defaults(run=_gc)
    compact = _command(commands, "compact", "make reading cheap, and destroy what may not be read any more")
    compact.add_argument("collections", nargs="*", metavar="collection", help="which ones; all by default")
    compact.add_argument("--due", action="store_true", help="do only what is worth it by now")
    compact.add_argument("--memory-budget", type=int, metavar="BYTES", help="at most about this much memory")
    compact.set_defaults(run=_compact)
    _command(commands, "collections", "list the collections").set_defaults(run=_collections)
    holds = _command(commands, "holds", "list who keeps since back")
    holds.add_argument("collections", nargs="*", metavar="collection", help="of which ones; all by default")
    holds.set_defaults(run=_holds)
    release = _command(commands, "release", "end a named hold whose owner is gone for good")
    release.add_argument("collection", help="which collection has it")
    release.add_argument("hold", help="its name, as `holds` shows it")
    release.add_argument("--yes", action="store_true", help="do not ask")
    release.set_defaults(run=_release)
    return parser


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, does: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=does, description=f"{does[0].upper()}{does[1:]}.")
    parser.add_argument("location", help="a folder, s3://bucket/prefix, or any other URL that persist.open takes")
    add_arguments(parser)
    return parser


def _fsck(asked: argparse.Namespace) -> int:
    report = persist.fsck(
        asked.location,
        repair=asked.repair,
        dry_run=asked.dry_run,
        set_aside=asked.set_aside,
        deep=not asked.shallow,
        storage_options=storage_options(asked),
    )
    if report.is_empty:
        return _nothing_at(report.url)
    print(report)
    return OK if report.is_clean else PROBLEMS


def _gc(asked: argparse.Namespace) -> int:
    settings = persist.Settings(background=False)
    with persist.open(asked.location, storage_options=storage_options(asked), settings=settings) as client:
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
    with persist.open(asked.location, storage_options=storage_options(asked), settings=settings) as client:
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
        closing(open_storage(asked.location, storage_options(asked))) as storage,
        closing(Follower(storage.blob, SystemClock())) as follower,
    ):
        if follower.state.seqno < 0:
            return _nothing_at(storage.blob.url)
        for name, id_ in sorted(follower.state.ids.items()):
            contents = follower.load(id_)
            assert contents is not None, "this follower has read to the end, and does not go on"
            timeline = timeline_of(contents.schema)
            since, upper = (
                "-" if each.time is None else shown_time(each.time, timeline if each.time else None)
                for each in (contents.since, contents.upper)
            )
            size = sum(part.bytes for part in contents.stored_parts)
            hidden = unsealed(contents)
            updates = "-" if hidden is None else f"{hidden.updates:,}"
            shape = (f"{len(contents.stored_parts):,}", f"{size:,}", str(len(contents.holds)), updates)
            rows.append((name, since, upper, *shape))
    head = ("name", "since", "upper", "parts", "bytes", "holds", "unsealed")
    print("\n".join(table(head, rows, right=range(1, 7))))
    return OK


def _holds(asked: argparse.Namespace) -> int:
    rows = []
    with persist.open(asked.location, mode="read", storage_options=storage_options(asked)) as client:
        if client.seqno < 0:
            return _nothing_at(client.url)
        for name in asked.collections or client.collections():
            for hold in client.load(name).holds():
                until = "released" if hold.expires_ms is None else _moment(hold.expires_ms)
                rows.append((name, hold.name or "-", str(hold.time), hold.holder or "-", until))
    print("\n".join(table(("collection", "hold", "time", "holder", "until"), rows, right=range(2, 3))))
    return OK


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def _release(asked: argparse.Namespace) -> int:
    settings = persist.Settings(background=False)
    with persist.open(asked.location, storage_options=storage_options(asked), settings=settings) as client:
        hold = client.load(asked.collection).hold(name=asked.hold)
        what = f"the hold {asked.hold!r} at {hold.time} of {asked.collection!r}"
        if not asked.yes and not _agrees(f"Release {what}? History that only it keeps goes for good."):
            print(f"persist: {what} was not released", file=sys.stderr)
            return FAILED
        hold.release()
        print(f"{client.url}: released {what}")
    return OK


def _agrees(question: str) -> bool:
    if not sys.stdin.isatty():
        print(f"persist: {question} Nobody can be asked here: say --yes", file=sys.stderr)
        return False
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def _nothing_at(url: str) -> int:
    print(f"persist: nothing is stored at {url}", file=sys.stderr)
    return FAILED


def _failed(error: persist.PersistError, status: int) -> int:
    print(f"persist: {' '.join(str(error).split())}", file=sys.stderr)
    return status
