"""`scripts/soak year`: runs the year, prints how it goes, draws it, and says which bound broke."""

import argparse
import logging
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import persist
from tests.proofs.year.bounds import MEMORY_RISE_MAX, SPEED_MAX, STORAGE_MAX, BrokenBound, Gauges
from tests.proofs.year.census import COUNTED
from tests.proofs.year.plants import PLANTS
from tests.proofs.year.scenario import COLLECTIONS_MIN, DAYS_MIN, Plan, Year

MEMORY_FOLDER = Path("/dev/shm")  # A file system in memory, on Linux.
PROGRESS_DAYS = 36  # So often in a year a line is printed.
REHEARSAL = Plan(days=DAYS_MIN, commits=300, collections=COLLECTIONS_MIN, maintain_hours=24)
REHEARSED_DAYS = 100  # Of a year whose memory is judged: what is loaded at first use is loaded before.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what a run can be told."""
    plan = Plan()
    parser.description = "Let a location live through a year of virtual time, and look whether it stays as it was."
    parser.add_argument(
        "--days", type=int, default=plan.days, help=f"virtual days, at least {DAYS_MIN} (default: %(default)s)"
    )
    parser.add_argument("--commits", type=int, help=f"in all (default: {plan.commits:,} for {plan.days} days)")
    parser.add_argument(
        "--collections",
        type=int,
        default=plan.collections,
        help=f"at any time, at least {COLLECTIONS_MIN} (default: %(default)s)",
    )
    parser.add_argument(
        "--burst",
        type=int,
        default=plan.burst,
        help="commits that are asked for at one moment, which share records of the log (default: %(default)s)",
    )
    parser.add_argument(
        "--maintain-hours",
        type=float,
        default=plan.maintain_hours,
        help="between two rounds, a divisor or a multiple of 24 (default: %(default)s)",
    )
    parser.add_argument(
        "--census-days", type=int, default=plan.census_days, help="between two counts of storage (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=plan.seed, help="of all that is random (default: %(default)s)")
    parser.add_argument(
        "--folder", type=Path, help="where the location is made (default: in /dev/shm, which is memory)"
    )
    parser.add_argument(
        "--go-on",
        action="store_true",
        help="live to the end of the year whichever bound breaks, unless an answer is wrong",
    )
    parser.add_argument("--plot", type=Path, help="draw memory, storage and speed by day into this file")
    parser.add_argument("--plant", choices=[*PLANTS], help="put a fault into the library, which a bound must show")


def run(args: argparse.Namespace) -> int:
    """Run the year; return 1 if a bound was broken."""
    if args.days < DAYS_MIN or args.collections < COLLECTIONS_MIN:
        print(f"--days must be at least {DAYS_MIN}, and --collections at least {COLLECTIONS_MIN}")
        return 2
    logging.getLogger("persist").setLevel(logging.ERROR)
    commits = args.commits or round(Plan.commits * args.days / Plan.days)
    plan = Plan(
        days=args.days,
        commits=commits,
        collections=args.collections,
        burst=args.burst,
        maintain_hours=args.maintain_hours,
        census_days=args.census_days,
        seed=args.seed,
    )
    print(plan, flush=True)
    folder = args.folder or (MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None)
    with tempfile.TemporaryDirectory(prefix="persist-year-", dir=folder) as made:
        if plan.days >= REHEARSED_DAYS:
            (Path(made) / "rehearsal").mkdir()
            live(Year(REHEARSAL, Path(made) / "rehearsal"))
        year = Year(plan, Path(made))
        tell = partial(print, flush=True)
        broken = live(year, PLANTS.get(args.plant), tell, goes_on=args.go_on)
    print(table(year))
    if args.plot is not None:
        draw(year.gauges, args.plot)
    for each in broken:
        print(f"BROKEN {each}")
    is_whole = year.day == plan.days
    if not broken:
        print("all bounds held" if is_whole else f"all bounds held until day {year.day}, when this was interrupted")
    return int(bool(broken) or not is_whole)


def live(
    year: Year,
    plant: Callable[[Year], object] | None = None,
    tell: Callable[[str], object] = lambda line: None,
    *,
    goes_on: bool = False,
) -> list[BrokenBound]:
    """Let a year pass until a bound breaks, or on to its end if no answer is wrong; return the bounds that broke."""
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    try:
        year.day = 0
        year.begin()
        tell(f"begun: {time.process_time() - began_cpu_s:.0f} s of CPU")
        if plant is not None:
            plant(year)
        for day in range(1, year.plan.days + 1):
            year.run_day(day)
            if day % max(1, year.plan.days // PROGRESS_DAYS) == 0:
                tell(_progress(year, time.monotonic() - began_s, time.process_time() - began_cpu_s))
            if year.gauges.broken and not goes_on:
                return year.gauges.broken
        year.end()
    except BrokenBound as broken:
        return [*year.gauges.broken, broken]
    except persist.PersistError as error:
        return [*year.gauges.broken, BrokenBound("answers", year.day, f"{type(error).__name__}: {error}")]
    except KeyboardInterrupt:
        pass
    finally:
        year.close()
    return year.gauges.broken


def _progress(year: Year, seconds: float, cpu_s: float) -> str:
    gauges = year.gauges
    memory = gauges.resident[-1][1] / 2**20
    storage = ""
    if gauges.census:
        ratios = gauges.census[-1][1].ratios
        storage = "".join(f", {ratio:.2f} of {what}" for what, ratio in ratios.items())
    commits = year.counts.get("commits", 0)
    return f"day {year.day}: {commits:,} commits, {memory:.0f} MiB{storage}; {cpu_s:.0f} s of CPU in {seconds:.0f} s"


def table(year: Year) -> str:
    """Return what was done, and how near each bound came to being broken."""
    gauges = year.gauges
    lines = [", ".join(f"{number:,} {what.replace('_', ' ')}" for what, number in sorted(year.counts.items()))]
    lines.append(f"{'bound':<28}{'allowed':>12}{'worst':>12}   when")
    line = gauges.memory_line()
    if line is not None:
        seen = f"{line.first / 2**20:.0f} to {line.last / 2**20:.0f} MiB"
        lines.append(f"{'memory rises by':<28}{MEMORY_RISE_MAX:>12.0%}{line.rise:>12.1%}   {seen}")
    for what in COUNTED:
        if gauges.census:
            day, found = max(gauges.census, key=lambda each: each[1].ratios[what])
            stored, needed = getattr(found.stored, what), getattr(found.needed, what)
            told = f"day {day}: {stored:,} of {needed:,}"
            lines.append(f"{f'{what} on storage':<28}{STORAGE_MAX:>12}{found.ratios[what]:>12.2f}   {told}")
    looking = gauges.looking
    lines.append(f"Python looked for garbage in the whole heap {looking.times:,} times, for {looking.seconds:.1f} s")
    for operation in gauges.spans:
        first, worst = gauges.first_day[operation], gauges.worst(operation)
        allowed = gauges.allowed_ms(operation, worst.day)
        told = f"day {worst.day}; median {first.median:.2f} on the first day, {worst.median:.2f} then"
        lines.append(f"{f'{operation}, p99 in ms':<28}{allowed:>12.2f}{worst.p99:>12.2f}   {told}")
    return "\n".join(lines)


def draw(gauges: Gauges, path: Path) -> None:
    """Draw memory, storage and speed by day; say so where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        print("no plot: pip install matplotlib")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (memory, storage, speed) = pyplot.subplots(3, 1, sharex=True, figsize=(8, 9), layout="constrained")
    memory.plot(*zip(*((day, size / 2**20) for day, size in gauges.resident), strict=True))
    memory.set_ylabel("resident MiB")
    memory.set_ylim(bottom=0)
    for what in COUNTED:
        storage.plot(*zip(*((day, found.ratios[what]) for day, found in gauges.census), strict=True), label=what)
    storage.axhline(STORAGE_MAX, color="gray", linestyle=":")
    storage.set_ylabel("stored / needed")
    storage.set_ylim(bottom=0)
    storage.legend()
    for operation, spans in gauges.spans.items():
        median = gauges.first_day[operation].median
        speed.plot([span.day for span in spans], [span.p99 / median for span in spans], label=operation)
    speed.axhline(SPEED_MAX, color="gray", linestyle=":")
    speed.set_ylabel("p99 / median of the first day")
    speed.set_xlabel("day")
    if gauges.spans:
        speed.legend()
    figure.savefig(path)
    pyplot.close(figure)
