"""What each call may be answered in a state of the location."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from tests.proofs.simulator.answering import ROWS_MAX, Answering
from tests.proofs.simulator.deriving import DERIVING, may_overflow
from tests.proofs.simulator.effects import DOUBTS, MUTATING, effects_of, is_done, latest_moment, tokens_seen
from tests.proofs.simulator.history import Event
from tests.proofs.simulator.judgement import Expected
from tests.proofs.simulator.versions import TAG, View
from tests.support.model import EMPTY, Refused

TIME_MAX = 2**63 - 2
BAD_WRITES = {
    "time below 0": ("InvalidUpdate",),
    "time too large": ("InvalidUpdate",),
    "diff too large": ("InvalidUpdate",),
    "no tuple": ("InvalidUpdate",),
    "wrong type": ("SchemaMismatch", "InvalidUpdate"),
    "wrong columns": ("SchemaMismatch", "InvalidUpdate"),
}
# Calls that read, and so need the lease of their client.
LEASED = (
    "read",
    "poll",
    "advance",
    "subscribe",
    "changes",
    "maintain",
    "publish",
    "snapshots",
    "find",
    "restore",
    *DERIVING,
)
KEYED_WRITE = "updates for a keyed collection"
REFUSED_WRITES = {**BAD_WRITES, KEYED_WRITE: ("KeyedCollection",)}
# Which rule demands a refusal of the model.
REFUSED_BY = {
    "CollectionNotFound": "destroy",
    "AsOfCompacted": "since",
    "AsOfNotSealed": "sealed",
    "FrontierRegression": "frontier",
    "SchemaMismatch": "schema",
    "SchemaMoved": "schema",
    "UpdateNotBeyondUpper": "late",
    "UpdatesBeyondUpper": "late",
    "UpperMismatch": "expected_upper",
}


class Expectations(Answering):
    """Knows for each kind of call which answers are right."""

    def _expected(self, event: Event, view: View) -> Expected:
        expected = Expected()
        if event.op in ("table", "backup"):  # Of another program, which no client minds.
            getattr(self, f"_expect_{event.op}")(event, expected)
            return expected
        self._expect_lifecycle(event, expected)
        if event.op in ("crash", "close_feed", "close_snapshot"):
            return expected
        if self._may_have_lost_its_lease(event):
            expected.may_fail("lease", "LeaseExpired")
        if event.op in MUTATING:
            self._expect_mutation(event, view, expected)
        else:
            expect = getattr(self, f"_expect_{event.op}", None)
            if expect is not None:
                expect(event, view, expected)
        return expected

    def _expect_lifecycle(self, event: Event, expected: Expected) -> None:
        close = self.closes.get(event.client)
        if close is not None and close.returned is not None and close.returned < event.invoked:
            if event.op in ("release", "advance"):  # Perhaps there is nothing to do.
                expected.may_fail("closed", "ClientClosed")
            elif event.op not in ("close", "close_feed", "close_snapshot"):
                expected.fail("closed", "ClientClosed")
        elif self.modes.get(event.client) == "read" and event.op in MUTATING:
            expected.fail("read-only", "ReadOnly")

    def _may_have_lost_its_lease(self, event: Event) -> bool:
        """Tell whether a reader may be told that what it relied on is gone (rule 11)."""
        if event.op not in LEASED or event.returned is None:
            return False
        if self.modes.get(event.client) != "read":
            return any(at < event.returned for at in self.evicted.get(event.client, []))
        if event.op in ("advance", "snapshots", *DERIVING):
            return False
        taken = event
        if event.op in ("read", "poll"):
            taken = self.by_id[event.args["snapshot" if event.op == "read" else "feed"]]
        lost_s = [self.gone_s[taken.args["c"]]] if taken.args["c"] in self.gone_s else []
        if event.op == "read":  # All else is read from the state of its own moment.
            lost_s += [at_s for at_s in self.replaced_s.get(taken.args["c"], []) if at_s >= taken.clock_s]
        return any(event.clock_s - at_s >= self.history.settings["grace_s"] for at_s in lost_s)

    def _expect_mutation(self, event: Event, view: View, expected: Expected) -> None:
        if "bad" in event.args:
            for error in REFUSED_WRITES[event.args["bad"]]:
                expected.fail("bad input", error)
            return
        if event.args.get("raises"):
            expected.fail("atomic", "Boom")
            return
        if not effects_of(event):
            return  # Nothing is written, so nobody minds.
        if event.faults and event.op in ("write", "upsert", "multi", "restore"):
            expected.may_fail("lost", "UploadExpired")  # Its client was stopped between upload and commit.
        only_looks = all(kind == "expect" for kind, _, _ in effects_of(event)) and not event.args.get("token")
        if not only_looks and (refused := view.refuses(event.client)) is not None:
            expected.fail("exclusive", refused.error)
        if any(tokens_seen(event, view)):
            if not is_done(event, view):
                expected.fail("once", "InvalidUsage")
            if any(self.evolved.get(id_) for _, id_, _ in effects_of(event)):
                # With another schema it is not the same that is written, which is said before anything else.
                expected.may_fail("once", "TokenReused")
            return
        held = view.holds(event.args["c"]) if event.op == "destroy" and view.alive(event.args["c"]) else ()
        if any(hold.startswith("view ") for hold in held):
            expected.fail("derived", "CollectionNeeded")
        others = (m for c in self.commits if event.op == "destroy" and self._is_during(c, event) for m in c.mutations)
        if any(m["kind"] == "destroy" and m["collection"] != event.args["c"] for m in others):
            expected.may_fail("destroy", "CollectionNotFound")  # Of its index, which was made anew meanwhile.
        if event.op == "restore":
            self._expect_restore(event, view, expected)
        draft = view.child()
        for kind, id_, value in effects_of(event):
            try:
                draft.step(kind, id_, value)
            except Refused as refused:
                attributes = {name: found for name, found in refused.fields.items() if name != "frontier"}
                expected.fail(REFUSED_BY[refused.error], refused.error, **attributes)
                # Of events all is looked at before it is said what is wrong, and of a block all that is in it.
                if event.op not in ("upsert", "multi"):
                    return

    def _expect_open(self, event: Event, view: View, expected: Expected) -> None:
        if event.args["mode"] != "exclusive":
            return
        writer = view.writer()
        is_held = writer is not None and writer[1] != event.args["reentrance_id"]
        if is_held and not event.args["force"]:
            expected.may_fail("exclusive", "Locked")
        expected.rule = "exclusive"
        is_writer = writer is not None and writer[0] == event.client
        expected.check = lambda _: None if is_writer else f"the writer is {writer}"

    def _expect_close(self, event: Event, view: View, expected: Expected) -> None:
        before = [e for e in self.of_client[event.client] if e.args.get("looked") is False and e.error]
        unseen = sorted({e.error for e in before if e.error is not None})
        if self.closes[event.client] is not event:
            return
        also = DOUBTS if event.faults and self.modes.get(event.client) == "exclusive" else ()  # It gives up its epoch.
        if unseen:
            classes = (unseen, *(sorted({*unseen, each}) for each in also))
            expected.fail("unseen error", "Unseen", classes=classes)
        elif also:
            expected.may_fail("unseen error", "Unseen", classes=tuple([each] for each in also))

    def _expect_create_or_load(self, event: Event, view: View, expected: Expected) -> None:
        id_ = view.names().get(event.args["name"])
        if id_ is None:
            if self.modes.get(event.client) == "read":
                expected.fail("read-only", "ReadOnly")
            elif (refused := view.refuses(event.client)) is not None:
                expected.fail("exclusive", refused.error)
            expected.check = lambda _: "there is no collection of that name"
        elif view.contents(id_).schema != event.args["schema"]:
            expected.fail("bad input", "SchemaMismatch")
        else:
            expected.check = lambda found: None if found == id_ else f"that name stands for {id_}"
        expected.rule = "destroy"

    def _expect_clone(self, event: Event, view: View, expected: Expected) -> None:
        source, target, as_of = event.args["c"], event.args["target"], event.args["as_of"]
        if self.modes.get(event.client) == "read":
            expected.fail("read-only", "ReadOnly")
        elif (refused := view.refuses(event.client)) is not None:
            expected.fail("exclusive", refused.error)
        if target in view.names():
            expected.fail("destroy", "CollectionExists")
        self._expect_readable(source, as_of, view, expected)
        expected.may_fail("clone", "Superseded")
        if event.faults:
            expected.may_fail("lost", "UploadExpired")
        wanted = as_of
        if as_of is None and view.alive(source) and view.upper(source) != EMPTY:
            wanted = view.upper(source) - 1

        def check(found: Any) -> str | None:
            if found not in self.cloned:
                return "no record makes such a clone"
            commit, made = self.cloned[found]
            if not event.invoked < latest_moment(commit) or (event.returned or 0) < commit.at:
                return f"it was made by another call: {commit}"
            is_right = made["source"] == source and made["name"] == target and wanted in (None, made["as_of"])
            return None if is_right else f"it should be of {source} as of {wanted}, and is {commit}"

        expected.rule, expected.check = "clone", check

    def _expect_load(self, event: Event, view: View, expected: Expected) -> None:
        id_ = view.names().get(event.args["name"])
        if id_ is None:
            expected.fail("destroy", "CollectionNotFound")
        expected.rule = "destroy"
        expected.check = lambda found: None if found == id_ else f"that name stands for {id_}"

    def _expect_collections(self, event: Event, view: View, expected: Expected) -> None:
        expected.rule = "destroy"
        wanted = sorted(view.names())
        expected.check = lambda found: None if found == wanted else f"the names are {wanted}"

    def _expect_upper(self, event: Event, view: View, expected: Expected) -> None:
        self._expect_frontier(event, view, expected, view.upper)

    def _expect_since(self, event: Event, view: View, expected: Expected) -> None:
        self._expect_frontier(event, view, expected, view.since)

    def _expect_frontier(self, event: Event, view: View, expected: Expected, read: Callable[[str], int]) -> None:
        if self._expect_alive(event.args["c"], view, expected):
            wanted = read(event.args["c"])
            expected.rule = "frontier"
            expected.check = lambda found: None if found == wanted else f"it is {wanted}"

    def _expect_alive(self, id_: str, view: View, expected: Expected) -> bool:
        if not view.alive(id_):
            expected.fail("destroy", "CollectionNotFound")
        return view.alive(id_)

    def _expect_readable(self, id_: str, as_of: int | None, view: View, expected: Expected) -> None:
        """Rule 3."""
        if not self._expect_alive(id_, view, expected):
            return
        upper, since = view.upper(id_), view.since(id_)
        time = min(upper - 1, TIME_MAX) if as_of is None else as_of
        if time >= upper or time < 0:
            expected.fail("sealed", "AsOfNotSealed", as_of=as_of, upper=upper)
        if 0 <= time < since:
            expected.fail("since", "AsOfCompacted", as_of=time, since=since)
        expected.rule = "sealed"
        expected.check = lambda found: None if found == time else f"the time to read is {time}"

    def _expect_snapshot(self, event: Event, view: View, expected: Expected) -> None:
        self._expect_readable(event.args["c"], self._tagged(event, view, expected), view, expected)

    def _expect_snapshots(self, event: Event, view: View, expected: Expected) -> None:
        wanted: list[list[Any]] = []
        for id_ in event.args["cs"]:
            self._expect_readable(id_, None, view, expected)
            if view.alive(id_):
                time = min(view.upper(id_) - 1, TIME_MAX)
                wanted.append([id_, time, sum(view.contents(id_).as_of(time).values())])
        expected.rule = "snapshot"
        expected.check = lambda found: None if found == wanted else f"in one state there is {wanted}"

    def _expect_backup(self, event: Event, expected: Expected) -> None:
        """A copy is the location after one record that was there during the call, whoever wrote and collected."""
        expected.may_fail("backup", "Conflict")  # Another one to the same place began meanwhile.
        if not self.commits or self.moments[0] > event.invoked:
            expected.may_fail("backup", "InvalidUsage")  # There is nothing yet.
        expected.rule = "backup"

        def check(found: Any) -> str | None:
            seqno, copied = found
            newest = bisect_left(self.moments, event.returned or EMPTY)
            if not bisect_left(self.latest, event.invoked) <= seqno + 1 <= newest:
                return f"it is of record {seqno}, and the newest one was {newest - 1}"
            view = View(self.location, seqno + 1)
            if (names := view.names()) != {name: id_ for name, (id_, *_) in copied.items()}:
                return f"it has {copied.keys()}, and there were {names}"
            for name, (id_, upper, since, rows) in copied.items():
                if (upper, since) != (view.upper(id_), view.since(id_)):
                    return f"{name} is from {since} to {upper}, and was from {view.since(id_)} to {view.upper(id_)}"
                wanted = view.contents(id_).as_of(upper - 1)
                if rows is not None and (wrong := contents_difference(rows, wanted)) is not None:
                    return f"{name}: {wrong}"
            return None

        expected.check = check

    def _expect_subscribe(self, event: Event, view: View, expected: Expected) -> None:
        self._expect_readable(event.args["c"], event.args["as_of"], view, expected)

    def _expect_listen(self, event: Event, view: View, expected: Expected) -> None:
        as_of = event.args["as_of"]
        if self._expect_alive(event.args["c"], view, expected) and as_of < view.since(event.args["c"]):
            expected.fail("since", "AsOfCompacted", as_of=as_of, since=view.since(event.args["c"]))
        expected.check = lambda found: None if found == as_of else f"it follows from {as_of}"

    def _expect_changes(self, event: Event, view: View, expected: Expected) -> None:
        id_, lower, upper = event.args["c"], event.args["lower"], event.args["upper"]
        if lower > upper:
            expected.fail("bad input", "InvalidUsage")
            return
        if not self._expect_alive(id_, view, expected):
            return
        since = view.since(id_)
        if lower - 1 < since and (lower, since) != (0, 0):
            expected.fail("since", "AsOfCompacted", as_of=(lower - 1, max(0, lower - 1)), since=since)
        if lower < upper and upper > view.upper(id_):
            expected.fail("sealed", "AsOfNotSealed", upper=view.upper(id_))
        expected.rule = "feed"
        wanted = view.contents(id_).summed(lower, upper)
        expect_overflow(wanted.values(), expected)
        expected.check = lambda found: updates_difference(found, wanted)

    def _expect_read(self, event: Event, view: View, expected: Expected) -> None:
        taken = self.by_id[event.args["snapshot"]]
        contents = view.contents(taken.args["c"]).as_of(taken.outcome[1])
        expected.rule = "snapshot"
        if taken.id in self.closed_snapshots:
            expected.fail("closed", "InvalidUsage")
        above, columns = event.args["above"], event.args["columns"]
        kept: Counter[tuple[Any, ...]] = Counter()
        for record, n in contents.items():
            if above is None or record[0] > above:
                kept[tuple(value for name, value in zip("kv", record, strict=True) if name in columns)] += n
        wanted = {record: n for record, n in kept.items() if n}
        if event.args["how"] == "count":
            total = sum(wanted.values())
            expected.check = lambda found: None if found == total else f"the count is {total}"
            return
        if event.args["how"] == "rows":
            # Each key must have no negative one, even if what is shown of other keys looks like it.
            wanted_by_key: Counter[tuple[Any, ...]] = Counter()
            for (k, v), n in contents.items():
                if above is None or k > above:
                    wanted_by_key[k, v if "v" in columns else None] += n
            expect_overflow(wanted_by_key.values(), expected)
            if any(n < 0 for n in wanted_by_key.values()):
                expected.fail("negative", "NegativeMultiplicity")
        else:
            expect_overflow(wanted.values(), expected)
        if event.args["how"] == "rows" and sum(wanted.values()) > ROWS_MAX:
            expected.fail("overflow", "InvalidUsage")
        expected.check = lambda found: contents_difference(found, wanted)
        if event.args["how"] == "diff":
            expected.check = lambda found: repeated_record(found) or contents_difference(found, wanted)

    def _expect_poll(self, event: Event, view: View, expected: Expected) -> None:
        feed = self.feeds[event.args["feed"]]
        expected.rule = "feed"
        expected.check = lambda found: None if found is None else "there is nothing to tell"
        if feed.is_closed:
            expected.fail("feed", "InvalidUsage")
            return
        contents = view.contents(feed.collection)
        if feed.first is not None:
            time = feed.first
            snapshot = {(k, v, time): n for (k, v), n in contents.as_of(time).items()}
            upper = EMPTY if time == TIME_MAX else time + 1
            expected.check = lambda found: progress_difference(found, snapshot, upper)
            return
        if feed.lower >= EMPTY or not self._expect_alive(feed.collection, view, expected):
            return
        if any(commit.at < (event.returned or commit.at) for commit in self.evolved.get(feed.collection, [])):
            expected.may_fail("schema", "SchemaMismatch")  # A column of the schema that it began with may be gone.
        upper, since = view.upper(feed.collection), view.since(feed.collection)
        if upper <= feed.lower:
            return
        if feed.lower > 0 and since > feed.lower - 1:
            expected.fail("since", "AsOfCompacted", as_of=feed.lower - 1, since=since)
            return
        changes = contents.summed(feed.lower, upper)
        expect_overflow(changes.values(), expected)
        expected.check = lambda found: progress_difference(found, changes, upper)

    def _expect_hold(self, event: Event, view: View, expected: Expected) -> None:
        id_, time, name = event.args["c"], event.args["time"], event.args["name"]
        if self.modes.get(event.client) == "read":
            expected.fail("read-only", "ReadOnly")
        if not self._expect_alive(id_, view, expected):
            return
        expected.rule = "hold"
        held = view.holds(id_).get(name) if name is not None else None
        if name is not None:
            wanted = None if held is None else held[0]
            expected.check = lambda found: None if found == wanted else f"the hold is at {wanted}"
        if held is None and time < view.since(id_):
            expected.fail("since", "AsOfCompacted", as_of=time, since=view.since(id_))

    def _expect_advance(self, event: Event, view: View, expected: Expected) -> None:
        hold, time = self.holds[event.args["hold"]], event.args["time"]
        expected.rule = "hold"
        if time < hold.time:
            expected.fail("frontier", "FrontierRegression", asked=time, current=hold.time)
        if hold.name is None:
            if hold.is_released:
                expected.fail("hold", "InvalidUsage")
            if not view.alive(hold.collection):  # It has nothing to hold any more, and may notice or not.
                expected.may_fail("destroy", "CollectionNotFound")
        elif time > hold.time and self._expect_alive(hold.collection, view, expected):
            held = view.holds(hold.collection).get(hold.name)
            actual = None if held is None else held[0]
            if event.ok:
                expected.check = lambda _: None if actual == time else f"the hold is at {actual}"
            elif actual != hold.time:
                expected.fail("hold", "HoldMoved", expected=hold.time, actual=actual)
                if time < view.since(hold.collection):
                    expected.fail("since", "AsOfCompacted", as_of=time, since=view.since(hold.collection))

    def _expect_release(self, event: Event, view: View, expected: Expected) -> None:
        hold = self.holds[event.args["hold"]]
        if hold.name is not None and event.args["how"] == "release":
            expected.rule = "hold"
            if self._expect_alive(hold.collection, view, expected):
                held = view.holds(hold.collection).get(hold.name)
                if event.ok:
                    expected.check = lambda _: None if held is None else f"it is still at {held[0]}"
                elif held is not None and held[0] != hold.time:
                    expected.fail("hold", "HoldMoved", expected=hold.time, actual=held[0])

    def _expect_holds(self, event: Event, view: View, expected: Expected) -> None:
        if self._expect_alive(event.args["c"], view, expected):
            held = view.holds(event.args["c"])
            wanted = sorted(
                [name, time] for name, (time, lease) in held.items() if lease is None and not name.startswith(TAG)
            )
            expected.rule = "hold"
            expected.check = lambda found: None if found == wanted else f"the named holds are {wanted}"

    def _expect_compact(self, event: Event, view: View, expected: Expected) -> None:
        self._expect_resolve(event, view, expected)
        if view.alive(event.args["c"]) and may_overflow(view.contents(event.args["c"]).updates):
            expected.may_fail("overflow", "DiffOverflow")

    def _expect_resolve(self, event: Event, view: View, expected: Expected) -> None:
        self._expect_gc(event, view, expected)
        if self._expect_alive(event.args["c"], view, expected) and (refused := view.refuses(event.client)) is not None:
            expected.may_fail("exclusive", refused.error)  # If there is anything to resolve.

    def _expect_gc(self, event: Event, view: View, expected: Expected) -> None:
        if self.modes.get(event.client) == "read":
            expected.fail("read-only", "ReadOnly")

    def _expect_maintain(self, event: Event, view: View, expected: Expected) -> None:
        self._expect_gc(event, view, expected)
        if (refused := view.refuses(event.client)) is not None:
            expected.may_fail("exclusive", refused.error)  # If there is anything to resolve.
        if any(may_overflow(contents.updates) for contents in map(view.contents, self.location.collections)):
            expected.may_fail("overflow", "DiffOverflow")
        self._expect_owed(view, expected)

    def _expect_publish(self, event: Event, view: View, expected: Expected) -> None:
        id_, as_of = event.args["c"], event.args["as_of"]
        if self.modes.get(event.client) == "read":
            expected.fail("read-only", "ReadOnly")
        elif (refused := view.refuses(event.client)) is not None:
            expected.may_fail("exclusive", refused.error)
        expected.may_fail("published", "Superseded")
        if event.faults:
            expected.may_fail("lost", "UploadExpired")
        self._expect_readable(id_, as_of, view, expected)
        if not view.alive(id_) or expected.must_fail:
            return
        time = min(view.upper(id_) - 1, TIME_MAX) if as_of is None else as_of
        self._expect_rows(id_, time, view, expected)
        expected.rule = "published"
        expected.check = lambda found: None if found == time or as_of is None else f"the time to publish is {time}"

    def _expect_unpublish(self, event: Event, view: View, expected: Expected) -> None:
        if self.modes.get(event.client) == "read":
            expected.fail("read-only", "ReadOnly")
        elif (refused := view.refuses(event.client)) is not None:
            expected.may_fail("exclusive", refused.error)
        expected.may_fail("published", "Superseded")
        self._expect_alive(event.args["c"], view, expected)

    def _expect_table(self, event: Event, expected: Expected) -> None:
        """A program that knows nothing of the log reads a whole time, if the log has a table."""
        said = self.tables.get(event.args["c"], [])
        first = [table for _, latest, table in said if latest < event.invoked][-1:]
        during = [table for at, latest, table in said if at < (event.returned or EMPTY) and latest >= event.invoked]
        live = [table for table in (*first, *during) if table is not None]
        expected.rule = "published"
        if len(live) < len(first) + len(during) or not live:
            expected.may_fail("published", "TableBroken")  # It was given up, and its log may be there still.
            return
        versions = range(live[0].version - 1, live[-1].version + 1)

        def check(found: Any) -> str | None:
            if found is None:
                return None if live[0].version == 0 else "no table is found"
            version, as_of, rows = found
            if version not in versions:
                return f"version {version} is shown, and the log has {live}"
            known = self.location.collections[event.args["c"]]
            seen = {id(era): era for era in map(known.at, range(len(self.location.states)))}.values()
            wrong = [contents_difference(rows, dict(era.as_of(as_of))) for era in seen]
            return None if None in wrong else wrong[-1]

        expected.check = check

    def _expect_fsck(self, event: Event, view: View, expected: Expected) -> None:
        expected.rule = "fsck"
        expected.check = lambda found: None if not found else f"it found {found}"


def expect_overflow(sums: Iterable[int], expected: Expected) -> None:
    if any(not -(2**63) <= n < 2**63 for n in sums):
        expected.fail("overflow", "DiffOverflow")


def updates_difference(found: list[Any], wanted: dict[tuple[Any, Any, int], int]) -> str | None:
    times = [time for _, _, time, _ in found]
    if times != sorted(times):
        return "its updates are not in time order"
    return repeated_record(found) or contents_difference(found, wanted)


def repeated_record(found: list[Any]) -> str | None:
    records = Counter(tuple(record) for *record, _ in found)
    return next((f"{record} is there {n} times" for record, n in records.items() if n > 1), None)


def contents_difference(found: list[Any], wanted: dict[Any, int]) -> str | None:
    sums: Counter[tuple[Any, ...]] = Counter()
    for *record, n in found:
        sums[tuple(record)] += n
    if dict(sums) == wanted:
        return None
    missing = {record: n for record, n in wanted.items() if sums[record] != n}
    extra = {record: n for record, n in sums.items() if wanted.get(record) != n}
    return f"it should hold {missing} and instead holds {extra}"


def progress_difference(found: Any, wanted: dict[Any, int], upper: int) -> str | None:
    if found is None:
        return f"there are changes up to {upper}"
    if found["upper"] != upper:
        return f"its upper is {found['upper']}, and should be {upper}"
    return updates_difference(found["updates"], wanted)
