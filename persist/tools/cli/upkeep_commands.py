"""Commands that look after a location: hold, release, retain, maintain, compact, gc, upgrade, fsck, bench."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer

import persist
from persist.tools.cli.command import OK, PROBLEMS, Name, Yes, catch_sigterm, command, confirm
from persist.tools.cli.place import Place, report_done
from persist.tools.cli.text import format_error, print_json, print_remark, print_table, print_text
from persist.tools.reports.times import make_time_format

HoldName = Annotated[str, typer.Argument(metavar="HOLD", help="The name of the hold, as `holds` shows it.")]


@command
def hold(
    at: Place,
    collection: Name,
    name: Annotated[
        str, typer.Argument(metavar="HOLD", help="The name of the hold, by which it is moved and released.")
    ],
    time: Annotated[str, typer.Argument(metavar="TIME", help="The time at or before which since stays.")],
) -> None:
    """Keep a time and all later ones readable until the hold is released; repeat to move it."""
    with at.open_writer() as client:
        loaded = client.load(collection)
        target_time = loaded.handle.as_time("time", time)
        named_hold = loaded.hold(target_time, name=name)
        if named_hold.time != target_time:
            named_hold.advance(target_time)
        report_done(
            at,
            {"collection": collection, "hold": name, "time": named_hold.time},
            f"{collection} is held at {make_time_format(loaded)(named_hold.time)} by {name}",
        )


@command
def release(at: Place, collection: Name, hold: HoldName, yes: Yes = False) -> None:
    """Release a named hold whose owner is gone for good, after a prompt."""
    with at.open_writer() as client:
        loaded = client.load(collection)
        named_hold = loaded.hold(name=hold)
        what = f"the hold {hold!r} at {make_time_format(loaded)(named_hold.time)} of {collection!r}"
        if not yes:
            confirm(f"Release {what}? History that only it keeps goes for good.", f"{what} was not released")
        named_hold.release()
        report_done(at, {"released": hold, "collection": collection}, f"released {what}")


@command
def retain(
    at: Place,
    collection: Name,
    retention: Annotated[
        str, typer.Argument(metavar="RETENTION", help='"7 days", a number of times, or "all": nothing goes.')
    ],
    yes: Yes = False,
) -> None:
    """Let each seal drop history that is older than RETENTION before upper, after a prompt."""
    new_retention = None if retention == "all" else int(retention) if retention.isdecimal() else retention
    with at.open_writer() as client:
        loaded = client.load(collection)
        question = f"Let {collection!r} forget what is older than {retention}, from now on? Nothing brings it back."
        if new_retention is not None and not yes:
            confirm(question, f"{collection!r} keeps what it kept")
        loaded.retain(new_retention).result()
        new_value = loaded.retention
        line = f"{collection} keeps {'all of its history' if new_value is None else new_value}"
        report_done(at, {"collection": collection, "retention": None if new_value is None else new_value.times}, line)


@command
def compact(
    at: Place,
    collections: Annotated[
        list[str] | None, typer.Argument(metavar="COLLECTION", help="Which ones; all by default.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Drop history before it, after a prompt; holds and tags keep theirs."),
    ] = None,
    memory_budget: Annotated[int | None, typer.Option(metavar="BYTES", help="At most about this much memory.")] = None,
    yes: Yes = False,
) -> None:
    """Merge the parts of collections, so that reads cost less; drop history before since."""
    from persist.core.progress import report_work

    if since is not None and not collections:
        raise persist.InvalidUsage("--since goes with the names of collections: say which ones may forget")
    reports: list[dict[str, Any]] = []
    with at.open_writer(memory_budget=memory_budget) as client:
        names = collections or client.collections()
        if since is not None:
            what = f"what {', '.join(map(repr, names))} held before {since}"
            if not yes:
                confirm(f"Forget {what} at {client.url} for good?", "nothing was forgotten")
            _forget(client, names, since)
        with report_work("compact", total=len(names), unit="collections") as done:
            for name in names:
                try:
                    loaded = client.load(name)
                    report = loaded.compact()
                except persist.errors.CollectionNotFound:
                    if collections:
                        raise
                    continue  # It was destroyed meanwhile.
                done(1)
                reports.append({"collection": name, **asdict(report)})
                if not at.as_json:
                    print_text(f"{name}: {report.sentence(make_time_format(loaded))}")
    if at.as_json:
        print_json(reports)


@command
def maintain(
    at: Place,
    every: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.1, help="Repeat with this pause, until interrupted."),
    ] = None,
) -> None:
    """Do due work: refresh views, compact, destroy deleted data, collect garbage."""
    with at.open_writer(background=every is not None) as client, catch_sigterm() as stop:
        while True:
            done: dict[str, int] = {}
            try:
                done = maintain_once(client, is_repeated=every is not None)
            except persist.PersistError as error:
                if every is None:
                    raise
                print_remark(f"persist: {' '.join(format_error(error).split())}")  # It is tried again.
            if done or every is None:
                report_done(at, done, ", ".join(f"{what} {n:,}" for what, n in done.items() if n) or "nothing is due")
            if every is None or stop.wait(every):
                return


def maintain_once(client: "persist.Client", *, is_repeated: bool = False) -> dict[str, int]:
    """Do all due work once; return counts by kind. Raises the first error at the end."""
    from persist.tools.cli.name_commands import refresh_together
    from persist.tools.reports.health import report_health

    due = {item.work for item in report_health(client).due}
    done = {"views refreshed": 0}
    failed: persist.PersistError | None = None
    if "refresh views" in due:
        try:
            done["views refreshed"] = sum(1 for _ in refresh_together(client, {}))
        except persist.PersistError as error:
            failed = error
    try:
        # One that is run again and again knows for how long what was retracted has waited; a single one does not.
        done["collections compacted"] = client.engine.writer("maintain").compaction.sweep(destroys=not is_repeated)
    except persist.PersistError as error:
        failed = failed or error
    done["blobs deleted"] = client.gc().blobs
    if failed is not None:
        raise failed
    return done if any(done.values()) else {}


def _forget(client: "persist.Client", names: Sequence[str], since: str) -> None:
    """Allow compaction to `since` in one commit; print which collections are held back."""
    times = {
        (collection := client.load(name)): collection.handle.as_time("since", since) for name in dict.fromkeys(names)
    }
    with client.multi_write() as multi:
        for collection, time in times.items():
            multi.allow_compaction(collection, time)
    for collection, time in times.items():
        effective = collection.since.time
        if effective is not None and effective < time:
            kept_from = make_time_format(collection)(effective)
            print_remark(
                f"persist: {collection.name} stays readable from {kept_from} on: persist holds lists what keeps it so"
            )


@command
def gc(
    at: Place,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing, show what would be deleted.")] = False,
) -> None:
    """Delete blobs that nothing refers to any more."""
    with at.open_writer() as client:
        report = client.gc(dry_run=dry_run)
        did = "would delete" if dry_run else "deleted"
        report_done(at, {"dry_run": dry_run, **asdict(report)}, report.sentence(did))


@command
def upgrade(
    at: Place,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing, show what would be done.")] = False,
) -> None:
    """Raise the location's format to the newest of this release; older releases then cannot open it."""
    with at.open_reader() if dry_run else at.open_writer() as client:
        report = client.upgrade(dry_run=dry_run)
        report_done(at, {"dry_run": dry_run, **asdict(report)}, str(report))


def _make_seconds_option(help: str) -> Any:
    return typer.Option(metavar="SECONDS", help=help)


def _make_count_option(help: str) -> Any:
    return typer.Option(metavar="NUMBER", help=help)


@command
def policy(
    at: Place,
    lease_s: Annotated[int | None, _make_seconds_option("How long a reader that died keeps since back.")] = None,
    clock_skew_s: Annotated[int | None, _make_seconds_option("How far the clocks of two clients may be apart.")] = None,
    grace_s: Annotated[
        int | None, _make_seconds_option("How long unused blobs stay for readers without a lease.")
    ] = None,
    orphan_grace_s: Annotated[int | None, _make_seconds_option("How long an upload may take up to its commit.")] = None,
    log_retention_s: Annotated[int | None, _make_seconds_option("How long log records stay.")] = None,
    log_retention_records: Annotated[int | None, _make_count_option("So many records stay, however old.")] = None,
    log_records_max: Annotated[
        int | None, _make_count_option("Above it, records go after grace_s and four minutes.")
    ] = None,
    log_bytes_max: Annotated[int | None, _make_count_option("The same for the bytes of all records.")] = None,
    at_once: Annotated[
        bool, typer.Option("--at-once", help="Let shorter times take effect now: no other client may be open. Asks.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Show the times and limits that all clients of the location share, or change some of them."""
    named = {
        "lease_s": lease_s,
        "clock_skew_s": clock_skew_s,
        "grace_s": grace_s,
        "orphan_grace_s": orphan_grace_s,
        "log_retention_s": log_retention_s,
        "log_retention_records": log_retention_records,
        "log_records_max": log_records_max,
        "log_bytes_max": log_bytes_max,
    }
    changes = {name: value for name, value in named.items() if value is not None}
    with at.open_writer() if changes or at_once else at.open_reader() as client:
        question = f"Let shorter times take effect at {client.url} now? Other clients may lose what they read or write."
        if at_once and not yes:
            confirm(question, "the policy stays as it is")
        shared = client.set_policy(at_once=at_once, **changes) if changes or at_once else client.policy
        values = {name: getattr(shared, name) for name in named}
        report_done(at, values, "\n".join(f"{name:21} {value}" for name, value in values.items()))


@command
def fsck(
    at: Place,
    repair: Annotated[
        bool, typer.Option("--repair", help="Make bad checkpoints again, and delete old blobs nothing refers to.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --repair: change nothing, show what would be done.")
    ] = False,
    set_aside: Annotated[
        bool,
        typer.Option(
            "--set-aside",
            help="With --repair: move records beyond the end of the log to lost/; stop all clients before.",
        ),
    ] = False,
    shallow: Annotated[bool, typer.Option("--shallow", help="Do not read parts, only look for them.")] = False,
) -> int:
    """Verify everything that a location holds, and repair what can be repaired; status 1 if problems are left."""
    report = persist.fsck(
        at.location,
        repair=repair,
        dry_run=dry_run,
        set_aside=set_aside,
        deep=not shallow,
        storage_options=at.options,
        settings=at.settings(),
    )
    if report.is_empty:
        raise at.make_empty_error(report.url)
    report_done(at, asdict(report), str(report))
    return PROBLEMS if report.problems_left else OK


@command
def bench(at: Place) -> None:
    """Measure reads and writes at this location, in a collection that is dropped afterwards."""
    with at.open_writer(may_be_new=True) as client:
        measures = measure(client)
    if at.as_json:
        print_json(measures)
    else:
        m = measures
        rows = [
            ("write and seal", f"{m['rows']:,} rows", f"{m['write_s']:.3f} s", f"{m['write_rows_per_s']:,.0f} rows/s"),
            ("read", f"{m['rows']:,} rows", f"{m['read_s']:.3f} s", f"{m['read_rows_per_s']:,.0f} rows/s"),
            (
                "commit of a row",
                f"{m['commits']} commits",
                f"{m['commit_median_s'] * 1000:.1f} ms",
                f"{m['commit_max_s'] * 1000:.1f} ms at most",
            ),
            ("look-up", f"{LOOKUPS} keys", f"{m['lookup_100_keys_s'] * 1000:.1f} ms", ""),
        ]
        print_table(("what", "how much", "took", "that is"), rows, right=(2, 3))


BENCH_ROWS, COMMITS, LOOKUPS = 100_000, 20, 100


def measure(client: "persist.Client") -> dict[str, Any]:
    """Return seconds and rates of test reads and writes; their data is dropped afterwards."""
    import numpy as np
    import pyarrow as pa

    rows, commits = BENCH_ROWS, COMMITS
    name = f"persist-bench-{uuid.uuid4().hex[:12]}"
    collection = client.create_or_load(name, key={"k": pa.int64()}, value={"v": pa.float64(), "s": pa.string()})
    try:
        keys = np.arange(rows)
        table = pa.table({"k": keys, "v": keys * 0.5, "s": np.char.mod("value %d", keys % 1000)})
        write_s = _measure_s(lambda: collection.write(table, time=0, seal=1).result())
        each_s = [_measure_s(partial(_commit_one_row, collection, n)) for n in range(commits)]
        read_s = _measure_s(lambda: sum(batch.num_rows for batch in collection.snapshot(0).to_batches()))
        key_rows = pa.table({"k": np.linspace(0, rows - 1, LOOKUPS).astype(np.int64)})
        with collection.snapshot(0) as snapshot:
            lookup_s = _measure_s(lambda: snapshot.get(key_rows))
        return {
            "location": client.url,
            "rows": rows,
            "write_s": write_s,
            "write_rows_per_s": rows / write_s,
            "read_s": read_s,
            "read_rows_per_s": rows / read_s,
            "commits": commits,
            "commit_median_s": float(np.median(each_s)),
            "commit_max_s": max(each_s),
            "lookup_100_keys_s": lookup_s,
        }
    finally:
        collection.drop().result()


def _commit_one_row(collection: "persist.Collection", n: int) -> None:
    """Write one row and seal its time, and wait until both are durable."""
    collection.write([((n, (0.0, "x")), n + 1, 1)], seal=n + 2).result()


def _measure_s(what: Callable[[], object]) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began
