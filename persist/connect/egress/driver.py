"""The loop that sends collections to a target, step by step, and then moves their holds.

The target stores its position, so the loop reads that first, and again after each outage. A step sends changes of all
collections of the sink, up to one point of the log. A backlog is sent in several steps: if all collections have the
same upper and were sent up to the same time, a step may end earlier. The changes of one time are never split.

Each move of a hold is a commit in the location, so holds move at most every `KEEP_S`.

A URL with options, a TOML file, or a mapping with the contents of such a file describes a sink.
"""

import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from persist.api.client import Client, open
from persist.connect.egress.feed import Feed
from persist.connect.egress.sink import Piece, Sink
from persist.connect.ingest.driver import check_no_options, parse_config, parse_description
from persist.connect.ingest.source import Outage
from persist.core.antichain import to_time
from persist.core.errors import InvalidUsage, TargetUnavailable
from persist.core.progress import report_work
from persist.core.settings import Location
from persist.core.state_rules.contents import CollectionState
from persist.engine.collection.failures import clear_failure, record_failures, store_failure
from persist.engine.location.collection_handle import CollectionHandle

logger = logging.getLogger(__name__)
KEEP_S = 5.0
WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Egressed:
    """The result of a run: rows, transactions with rows, and the target's upper of each collection.

    `dropped`: the collections whose holds were released by `drop`.
    """

    sink: str
    rows: int
    commits: int
    uppers: Mapping[str, int | None]
    dropped: tuple[str, ...] = ()


def egress(
    location: Location | Client,
    sink: "str | os.PathLike[str] | Mapping[str, Any] | Sink",
    *,
    once: bool = False,
    drop: bool = False,
    stop: threading.Event | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Egressed:
    """Send collections to a target exactly once, and continue with changes; see `docs/use/egress.md`.

    Args:
        location: a folder or URL, as for `persist.open`, or a client.
        sink: the URL of a target, the path of a TOML file that describes one, or a mapping with its contents.
        once: return when everything sealed by now was sent; otherwise continue until stopped.
        drop: send nothing; release the holds, so that history may be compacted, and delete the target's positions. Its
            rows stay.
        stop: when set, ends the loop after the current transaction.
        storage_options: options for the store of the location.
        options: options of the sink, such as `collections=["orders"]`; they override the file.

    Raises:
        InvalidUsage: the sink or an option is unknown, or the target refuses the data.
        CollectionNotFound: a collection does not exist, or was dropped meanwhile.
        HoldNotFound, HoldMoved, AsOfCompacted: the collection does not keep unsent history for this sink any more.
        SinkMoved: another process feeds the same target.
        TargetUnavailable: the target does not answer.
    """
    with ExitStack() as stack:
        writing = load_sink(sink, options)
        stack.callback(writing.close)
        client = location if isinstance(location, Client) else open(location, storage_options=storage_options)
        if client is not location:
            stack.enter_context(client)
        if not writing.collections or len({*writing.collections}) < len(writing.collections):
            raise InvalidUsage(f'collections={[*writing.collections]} must name what to send: collections = ["orders"]')
        feeds = [Feed(client.load(name), writing.hold, writing.name) for name in writing.collections]
        for feed in feeds:
            stack.callback(feed.close)
        if drop:
            names = tuple(feed.leaving.name for feed in feeds if feed.release())
            clear_failure([_first_collection(feeds)], writing.hold)
            writing.forget(_get_location_id(client), [feed.leaving for feed in feeds])
            return Egressed(writing.name, 0, 0, {}, names)
        with record_failures([_first_collection(feeds)], writing.hold):
            return _Egress(client, writing, feeds, once, stop or threading.Event()).run()


def _first_collection(feeds: Sequence[Feed]) -> CollectionHandle:
    """Return the collection on which problems of the sink are stored."""
    return min(feeds, key=lambda feed: feed.leaving.name).handle


def _get_location_id(client: Client) -> str:
    """Return the id of a client's location."""
    location = client.engine.follower.state.location
    assert location is not None, "its collections are there"
    return location


@dataclass
class _Egress:
    """Sends the changes of collections to one sink, step by step, until stopped."""

    client: Client
    sink: Sink
    feeds: Sequence[Feed]
    once: bool
    stop: threading.Event
    rows: int = 0
    commits: int = 0
    _kept_s: float = field(init=False)
    _outage: Outage = field(init=False)

    def __post_init__(self) -> None:
        self._outage = Outage(self.client.engine.clock, self._store_problem, once=self.once)

    def run(self) -> Egressed:
        """Send all changes until the sink has everything or is stopped."""
        engine = self.client.engine
        engine.count_also("egress", lambda: {"rows": self.rows, "commits": self.commits})
        self._kept_s = engine.clock.monotonic_s()
        with report_work("egress", self.sink.name, streams=True) as done:
            while True:
                try:
                    leaving = [feed.leaving for feed in self.feeds]
                    standing = self.sink.begin(_get_location_id(self.client), leaving)
                    for feed in self.feeds:
                        feed.resume(standing.get(feed.leaving.id))
                    for step in self._make_steps():
                        self._take_step(step)
                        done(sum(piece.count for piece in step))
                        if self.stop.is_set():
                            break
                    break
                except TargetUnavailable as problem:
                    self._outage.wait(problem)
                    if self.stop.is_set():
                        raise
        for feed in self.feeds:
            feed.keep()
        uppers = {feed.leaving.name: feed.reached.upper for feed in self.feeds if feed.reached is not None}
        return Egressed(self.sink.name, self.rows, self.commits, uppers)

    def _take_step(self, step: Sequence[Piece]) -> None:
        """Pass the pieces of a step to the sink, and note what was sent."""
        applied = self.sink.take(step)
        self._outage.end()
        for feed in self.feeds:
            for piece in step:
                if piece.leaving.id == feed.leaving.id:
                    feed.mark_sent(piece.after, is_taken=piece in applied)
        rows = sum(piece.count for piece in step)
        self.rows, self.commits = self.rows + rows, self.commits + bool(rows)
        now_s = self.client.engine.clock.monotonic_s()
        if now_s - self._kept_s >= KEEP_S:
            self._kept_s = now_s
            for feed in self.feeds:
                feed.keep()

    def _store_problem(self, problem: Exception | None) -> None:
        """Store a problem in the first collection; None clears it."""
        handles = [_first_collection(self.feeds)]
        clear_failure(handles, self.sink.hold) if problem is None else store_failure(handles, problem, self.sink.hold)

    def _make_steps(self) -> Iterator[list[Piece]]:
        """Yield lists of pieces, each to be sent as one step before the next."""
        promised = [piece for feed in self.feeds if (piece := feed.make_promised_piece()) is not None]
        if promised:
            yield promised
        while not all(feed.reached is not None for feed in self.feeds):
            begun = [
                piece
                for feed, contents in self._load_states()
                if feed.reached is None and (piece := feed.make_first_piece(contents))
            ]
            if begun:
                yield begun
            if not begun and (self.once or not self._wait_for_change(lambda feed, contents: feed.reached is None)):
                return
        for feed in self.feeds:
            if feed.reached is not None and feed.reached.stage == "copying":
                for piece in feed.read_contents():
                    yield [piece]
        visible = {
            feed: feed.make_visible()
            for feed in self.feeds
            if feed.reached is not None and feed.reached.stage == "copied"
        }
        if visible and len(self.feeds) > 1:  # They may be of different moments: one point of the log is seen at first.
            states = [
                (feed, contents, visible[feed].after if feed in visible else feed.reached)
                for feed, contents in self._load_states()
            ]
            later = [
                feed.read_changes(to_time(contents.upper), at)
                for feed, contents, at in states
                if feed.has_more(contents, at)
            ]
            yield [*visible.values(), *later]
        elif visible:
            yield [*visible.values()]
        yield from self._make_change_steps()

    def _make_change_steps(self) -> Iterator[list[Piece]]:
        """Yield steps with the changes of collections, until all are sent or a stop."""
        last = {feed.leaving.id: contents.upper for feed, contents in self._load_states()} if self.once else {}
        while not self.stop.is_set():
            changed = [(feed, contents) for feed, contents in self._load_states() if feed.has_more(contents)]
            if self.once:
                changed = [pair for pair in changed if last[pair[0].leaving.id] > pair[0].seen]
            if changed:
                yield self._make_step(changed)
            elif self.once or all(feed.is_finished for feed in self.feeds):
                return
            else:
                self._wait_for_change(Feed.has_more)

    def _make_step(self, states: Sequence[tuple[Feed, CollectionState]]) -> list[Piece]:
        """Return the changes up to one log point, or, in a backlog, to a common earlier time."""
        begins = {feed.reached_upper for feed in self.feeds}
        ends = {contents.upper for _, contents in states}
        if len(begins) == len(ends) == 1 and len(states) == len(self.feeds):
            cuts = [feed.end(contents, self.sink.batch_rows) for feed, contents in states]
            times = [cut for cut in cuts if cut is not None]
            end = min(times) if times else None
            return [feed.read_changes(end) for feed, _ in states]
        return [feed.read_changes(to_time(contents.upper)) for feed, contents in states]

    def _load_states(self) -> list[tuple[Feed, CollectionState]]:
        """Return each feed with its collection in the newest state of the log. Cost: a GET."""
        follower = self.client.engine.follower
        follower.refresh()
        return self._read_states()

    def _read_states(self) -> list[tuple[Feed, CollectionState]]:
        """Return each feed with its collection in the last state that was read from the log."""
        ids = [(feed.handle.id, feed.leaving.name) for feed in self.feeds]
        _, states = self.client.engine.follower.read_known_states(ids)
        return [*zip(self.feeds, states, strict=True)]

    def _wait_for_change(self, condition: Any) -> bool:
        """Wait until a feed fulfils a condition, or a second; return False after a stop."""
        self._outage.end()  # The target answered, and has all.
        if not self.stop.is_set():
            self.client.engine.follower.wait_for(
                lambda: any(condition(*pair) for pair in self._read_states()) or None, WAIT_S
            )
        return not self.stop.is_set()


def load_sink(sink: "str | os.PathLike[str] | Mapping[str, Any] | Sink", options: Mapping[str, Any]) -> "Sink":
    """Return the sink that a URL, a file or options describe."""
    if not isinstance(sink, (str, os.PathLike, Mapping)):
        check_no_options("Sink", options)
        return sink
    url, config, where = parse_description("sink", sink, options, "postgres://writer@db.example/shop")
    if url.startswith(("postgres://", "postgresql://")):
        from persist.connect.egress.postgres import PostgresConfig, PostgresSink

        return PostgresSink(parse_config(PostgresConfig, config, where, "sink"))
    if url.startswith("kafka://"):
        from persist.connect.egress.kafka import KafkaSink, KafkaSinkConfig

        return KafkaSink(parse_config(KafkaSinkConfig, config, where, "sink"))
    from persist.connect.egress.files import FilesConfig, FilesSink

    return FilesSink(parse_config(FilesConfig, config, where, "sink"))
