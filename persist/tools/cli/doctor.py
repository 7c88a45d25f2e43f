"""The command doctor: checks the environment. Each check reports a finding and, if something is wrong, a remedy.

No data of a location is changed. The commit log needs a store that refuses to create a key that exists. To test that,
and to read the store's clock, doctor writes the blob `gc/clock`, as garbage collection does.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Annotated

import typer

import persist
from persist.core.rendering import format_count, format_duration
from persist.tools.cli.command import OK, PROBLEMS, command
from persist.tools.cli.place import FAR, Place
from persist.tools.cli.text import format_error, print_json, print_text

JAVA_MIN = 17
PROGRAM_TIMEOUT_S = 30.0  # How long another program may take to print its version.
FINE, WARNING, WRONG, LEFT_OUT = "ok", "warning", "wrong", "left out"


@dataclass(frozen=True)
class Finding:
    """The result of one check: "ok", "warning", "wrong" or "left out", in words, and a remedy."""

    check: str
    result: str
    found: str
    advice: str | None = None


@command
def doctor(
    at: Place,
    no_write: Annotated[
        bool, typer.Option("--no-write", help="Write nothing; leave out the checks that need a write.")
    ] = False,
) -> int:
    """Check Python, Java, Spark's workers, the store and its clock; suggest remedies.

    Status 1 means that something is wrong. Warnings leave it 0.
    """
    findings = [
        *(finding for check in (_check_python, _check_java, _check_workers) for finding in check(at)),
        *_check_location(at, may_write=not no_write),
    ]
    for finding in findings:
        if at.as_json:
            print_json(asdict(finding))
        else:
            print_text(f"{finding.result:<{len(LEFT_OUT)}}  {finding.check}: {finding.found}")
            if finding.advice:
                print_text(f"{' ' * len(LEFT_OUT)}  {finding.advice}")
    return PROBLEMS if any(finding.result == WRONG for finding in findings) else OK


def _check_python(at: Place) -> Iterator[Finding]:
    """Yield the version and path of Python."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("Python", FINE, f"{version} at {sys.executable}, persist {persist.__version__}")


def _has_spark() -> bool:
    try:
        return bool(metadata.version("pyspark"))
    except metadata.PackageNotFoundError:
        return False


def _check_java(at: Place) -> Iterator[Finding]:
    """Yield whether Java is new enough for Spark."""
    if not _has_spark():
        yield Finding("Java", LEFT_OUT, "PySpark is not installed, and nothing else needs Java")
        return
    advice = f"Install Java {JAVA_MIN} or newer, or let JAVA_HOME name one."
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    if java is None:
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on the PATH, and no JAVA_HOME"
        yield Finding("Java", WARNING, f"{where}, so Spark does not start", advice)
        return
    properties = _read_output([java, "-XshowSettings:properties", "-version"])
    version = re.search(r"java\.specification\.version = (\d+)", properties)
    number = int(version[1]) if version else 0
    java_version = f"version {number or 'unknown'} at {java}"
    yield Finding("Java", FINE, java_version) if number >= JAVA_MIN else Finding("Java", WARNING, java_version, advice)


def _read_output(program: list[str]) -> str:
    """Return the output of a program; "" if it does not run."""
    try:
        done = subprocess.run(program, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def _check_workers(at: Place) -> Iterator[Finding]:
    """Yield whether Spark's workers run a suitable Python."""
    if not _has_spark():
        return
    command_ = os.environ.get("PYSPARK_PYTHON")
    if command_ is None:
        python = f"with a local master, workers run this Python; elsewhere, the first {shutil.which('python3')} there"
        yield Finding("Spark's workers", FINE, python)
        return
    from persist.connect.spark.workers import check_python

    try:
        check_python(command_, sys.executable)
        yield Finding("Spark's workers", FINE, f"PYSPARK_PYTHON={command_} has this version of Python and of persist")
    except persist.InvalidUsage as error:
        yield Finding("Spark's workers", WRONG, str(error))


def _check_location(at: Place, *, may_write: bool) -> Iterator[Finding]:
    """Yield whether the location can be read, and what a test of its store finds."""
    if not any(mark in at.location for mark in FAR) and not os.path.exists(os.path.expanduser(at.location)):
        yield Finding("store", LEFT_OUT, f"there is no folder {at.location} yet; the first write makes it")
        return
    try:
        with persist.open(at.location, mode="read", storage_options=at.options, settings=at.settings()) as client:
            names, seqno = client.collections(), client.seqno
            if seqno < 0 and at.has_parts():
                yield Finding("store", WRONG, *_split_remedy(format_error(at.make_empty_error(client.url))))
                return
            holds = f"{format_count(len(names), 'collection')} at record {seqno:,}" if seqno >= 0 else "no location yet"
            yield Finding("store", FINE, f"{client.url} can be read: it has {holds}")
            if seqno < 0 and (foreign := at.find_foreign_file()) is not None:
                problem = f"the folder holds something else, such as {foreign!r}: nothing was written"
                yield Finding("writes", WRONG, problem, "Name a folder that is empty, or not there yet.")
            elif may_write:
                yield from check_store(client)
            else:
                yield Finding("writes", LEFT_OUT, "conditional writes and the clock of the store need a write")
    except persist.PersistError as error:
        yield Finding("store", WRONG, *_split_remedy(format_error(error)))


def _split_remedy(message: str) -> tuple[str, str | None]:
    """Split an error's message into its first sentence and its remedy."""
    first, _, remedy = " ".join(message.split()).partition(". ")
    return first, remedy or None


def check_store(client: "persist.Client") -> Iterator[Finding]:
    """Test the store and its clock by a write; delete the blob if the location is empty."""
    from persist.core.log.keys import CLOCK_KEY

    blob = client.engine.blob
    before_s = time.time()
    try:
        blob.set(CLOCK_KEY, b"now")
        after_s = time.time()
        is_refused = not blob.create(CLOCK_KEY, b"now")
        stored_s = next(entry.modified_s for entry in blob.list(CLOCK_KEY))
        if client.seqno < 0:
            blob.delete(CLOCK_KEY)
    except persist.PersistError as error:
        yield Finding("writes", WARNING, *_split_remedy(format_error(error)))
        return
    yield Finding("writes", FINE, f"a blob was written, in {format_duration(after_s - before_s)}")
    if is_refused:
        yield Finding("conditional writes", FINE, "the store refuses to create what exists")
    else:
        yield Finding(
            "conditional writes",
            WRONG,
            "the store overwrote what exists, so writers would lose each other's commits",
            "Use a server, and proxies before it, that refuse a PUT with If-None-Match: * of a key that exists.",
        )
    yield _check_clock(stored_s, before_s, after_s, client.engine.follower.policies.newest.clock_skew_s)


def _check_clock(stored_s: float, before_s: float, after_s: float, skew_s: float) -> Finding:
    """Return whether the store's clock agrees with this machine's."""
    ahead_s = max(before_s - stored_s - 1, stored_s - after_s, 0.0)  # Stores date by whole seconds.
    side = "ahead of" if before_s > stored_s else "behind"
    if ahead_s <= skew_s / 2:
        return Finding(
            "clock", FINE, "this machine's and the store's agree" + (f" to {format_duration(ahead_s)}" * (ahead_s > 0))
        )
    return Finding(
        "clock",
        WRONG if ahead_s > skew_s else WARNING,
        f"this machine's is {format_duration(ahead_s)} {side} the store's, and leases allow for "
        f"{format_duration(skew_s)}",
        "Set the clocks by NTP: a reader whose clock is wrong can lose its lease and has to begin again.",
    )
