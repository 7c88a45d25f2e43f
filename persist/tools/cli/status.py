"""The command status: the health of a location on one screen."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

from persist.core.rendering import format_count, format_duration
from persist.tools.cli.command import command
from persist.tools.cli.listing import Watch, check_watch, watch_screen
from persist.tools.cli.place import Place
from persist.tools.cli.text import print_json, print_table, print_text

if TYPE_CHECKING:
    from persist.tools.reports.health import Health

T = TypeVar("T")
SHOWN_MAX = 8  # Rows of each kind: a screen is short.


@command
def status(at: Place, watch: Watch = False) -> None:
    """Show the health of a location: lags, holders of history, waiting deletions, and due work."""
    from persist.tools.reports.health import report_health
    from persist.tools.reports.surveys import FactsCache

    check_watch(at, watch=watch)
    with at.open_reader() as client:
        if watch:
            facts = FactsCache(client)
            watch_screen(client, lambda: report_health(client, known=facts), print_health)
            return
        health = report_health(client)
    if at.as_json:
        print_json(asdict(health))
    else:
        print_health(health)


def print_health(health: "Health") -> None:
    """Print the health of a location in sections."""
    origin = "which is gone" if health.written_at is None else f"of {health.written_at} in format {health.format}"
    print_text(
        f"{health.location} at record {health.seqno:,} {origin}; the log has {format_count(health.records, 'record')}"
    )
    waiting = "more than was counted" if health.waiting_bytes is None else f"{health.waiting_bytes:,}"
    live, history = f"{health.live_bytes:,}", f"{health.history_bytes:,}"
    print_text(f"bytes: {live} live, {history} of earlier times, {waiting} waiting to be deleted")
    if health.keeps_all:
        print_text(f"{format_count(health.keeps_all, 'collection')} with unbounded history: persist retain bounds it")
    _print_section(
        "collections",
        health.collections,
        ("upper", "behind", "unsealed"),
        lambda lag: (
            lag.collection,
            _format_time(lag.upper, lag.upper_moment),
            _format_age(lag.behind_s),
            lag.unsealed or "-",
        ),
        right=(1, 2, 3),
    )
    _print_section(
        "views",
        health.views,
        ("upper", "behind", "its input"),
        lambda v: (
            v.view, _format_time(v.upper, v.upper_moment),
            "-" if not v.is_due else format_duration(v.behind_s) if v.behind_s is not None else "yes", v.input or "-",
        ),
        right=(1, 2),
    )  # fmt: skip
    _print_section(
        "sources",
        health.sources,
        ("collections", "behind", "bytes"),
        lambda s: (s.source, len(s.collections), _format_age(s.behind_s), _format_bytes(s.behind_bytes)),
        right=(1, 2, 3),
    )
    _print_section(
        "sinks",
        health.sinks,
        ("collections", "behind", "bytes"),
        lambda s: (
            s.sink, len(s.collections), "-" if s.behind_s is None else format_duration(s.behind_s),
            _format_bytes(s.behind_bytes),
        ),
        right=(1, 2, 3),
    )  # fmt: skip
    failed = [(v.view, v.failed) for v in health.views if v.failed]
    failed += [(s.source, s.failed) for s in health.sources if s.failed]
    failed += [(s.sink, s.failed) for s in health.sinks if s.failed]
    _print_section("failed", failed, ("last", "error"), lambda f: (f[0], f[1].at, f[1].error))
    _print_section(
        "history kept back of",
        health.kept_back,
        ("by", "since", "else"),
        lambda k: (
            k.collection, k.hold if k.holder is None else f"{k.hold} of {k.holder}",
            _format_time(k.since, k.since_moment), _format_time(k.allowed, k.allowed_moment),
        ),
        right=(2, 3),
    )  # fmt: skip
    _print_section(
        "waits to be deleted",
        health.waiting,
        ("bytes", "until", "for"),
        lambda w: (w.collection, "?" if w.bytes is None else f"{w.bytes:,}", w.until, w.waits_for),
        right=(1,),
    )
    _print_section(
        "due",
        health.due,
        ("command", "of", "such as"),
        lambda d: (d.work, d.command, d.count, ", ".join(d.examples)),
        right=(2,),
    )
    _print_section(
        "clients",
        health.clients,
        ("release", "wrote last", "does"),
        lambda c: (c.client, c.release or "?", c.at or "-", c.does),
    )


def _print_section(
    title: str,
    facts: Sequence[T],
    head: tuple[str, ...],
    cells: Callable[[T], Sequence[object]],
    *,
    right: tuple[int, ...] = (),
) -> None:
    """Print the first facts as a table, and how many more there are."""
    if not facts:
        return
    print_text("")
    rows = map(cells, facts[:SHOWN_MAX])
    print_table((title, *head), rows, right=right, texts=[len(head)])
    if len(facts) > SHOWN_MAX:
        print_text(f"… and {len(facts) - SHOWN_MAX:,} more: --json has them")


def _format_time(time: int | None, moment: str | None) -> str:
    """Return a time as its moment, or as a number; None as "for ever"."""
    return "for ever" if time is None else (moment if time else None) or f"{time:,}"


def _format_bytes(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def _format_age(seconds: float | None) -> str:
    """Return a duration in words; None as a dash."""
    return "-" if seconds is None else format_duration(seconds) if seconds > 0 else "ahead"
