"""What calls may be answered that name times, raise the format, erase, and derive collections from others.

`expectations.py` has all other calls.
"""

from bisect import bisect_left
from typing import Any

from tests.proofs.simulator.deriving import Deriving, may_overflow
from tests.proofs.simulator.effects import latest_moment
from tests.proofs.simulator.history import Commit, Event
from tests.proofs.simulator.judgement import Expected
from tests.proofs.simulator.versions import View
from tests.support.model import EMPTY

ROWS_MAX = 2**31 - 1  # More are not given out one by one.


class Answering(Deriving):
    """Knows for these kinds of calls which answers are right."""

    def _expect_alive(self, id_: str, view: View, expected: Expected) -> bool:
        raise NotImplementedError

    def _expect_readable(self, id_: str, as_of: int | None, view: View, expected: Expected) -> None:
        raise NotImplementedError

    def _expect_writer(self, event: Event, view: View, expected: Expected) -> None:
        """Refuse who only reads; who is kept from the location by an exclusive writer may be."""
        if self.modes.get(event.client) == "read":
            expected.fail("read-only", "ReadOnly")
        elif (refused := view.refuses(event.client)) is not None:
            expected.may_fail("exclusive", refused.error)

    def _expect_upgrade(self, event: Event, view: View, expected: Expected) -> None:
        self._expect_writer(event, view, expected)
        now = self.commits[view.version - 1].format if view.version else self.newest_format

        def check(found: Any) -> str | None:
            before, after, seqno = found
            if after != self.newest_format or before > after:
                return f"the newest format is {self.newest_format}"
            if seqno is None:
                return None if now == before == after else f"the format is {now}"
            commit = self.commits[seqno]
            raised = {"kind": "upgrade", "format": after} in commit.mutations and commit.client == event.client
            return None if raised and seqno < view.version and before < after else f"its record is {commit}"

        expected.rule, expected.check = "upgrade", check

    def _expect_tag(self, event: Event, view: View, expected: Expected) -> None:
        id_, time = event.args["c"], event.args["time"]
        if self.modes.get(event.client) == "read":
            expected.fail("read-only", "ReadOnly")
        self._expect_readable(id_, time, view, expected)
        if not view.alive(id_):
            return
        actual = view.tags(id_).get(event.args["tag"])
        if actual is not None:  # It may be moved between two looks, too.
            expected.may_fail("tag", "TagMoved")
        expected.rule = "tag"
        expected.check = lambda found: (
            None if found == actual and time in (None, found) else f"the tag is at {actual}, and {time} was asked for"
        )

    def _expect_untag(self, event: Event, view: View, expected: Expected) -> None:
        if self.modes.get(event.client) == "read":
            expected.fail("read-only", "ReadOnly")
        if not self._expect_alive(event.args["c"], view, expected):
            return
        actual = view.tags(event.args["c"]).get(event.args["tag"])
        expected.may_fail("tag", "TagMoved")
        expected.rule = "tag"
        expected.check = lambda _: None if actual is None else f"the tag is at {actual}"
        if event.error and actual is None:
            expected.fail("tag", "TagNotFound")

    def _expect_tags(self, event: Event, view: View, expected: Expected) -> None:
        if self._expect_alive(event.args["c"], view, expected):
            wanted = [[name, time] for name, time in sorted(view.tags(event.args["c"]).items())]
            expected.rule = "tag"
            expected.check = lambda found: None if found == wanted else f"the tags are {wanted}"

    def _expect_create_view(self, event: Event, view: View, expected: Expected) -> None:
        self._expect_derivation(event, view, expected)
        for error in ("InvalidUsage", "CollectionNotFound", "CollectionExists", "AsOfCompacted"):
            expected.may_fail("derived", error)
        id_ = view.names().get(event.args["name"])
        expected.check = lambda found: None if found == id_ and id_ in self.derived else f"that name stands for {id_}"

    def _expect_refresh(self, event: Event, view: View, expected: Expected) -> None:
        """Rule 19: a view comes up to what its inputs had sealed when it was asked to."""
        self._expect_derivation(event, view, expected)
        for error in ("CollectionNotFound", "SourceLost", "OutputConflict"):
            expected.may_fail("derived", error)
        id_ = view.names().get(event.args["name"])
        if id_ is None or id_ not in self.derived:
            expected.fail("derived", "CollectionNotFound")
            return
        was = View(self.location, bisect_left(self.latest, event.invoked))
        inputs = self.derived[id_]["inputs"]
        least = min(was.upper(each) if was.alive(each) else 0 for each in inputs)
        if least <= self.derived[id_]["start"]:  # It has nothing to say yet.
            least = 0
        now = view.upper(id_)
        expected.check = lambda found: (
            None if least <= found == now else f"its upper is {now}, and its inputs' was {least}"
        )

    def _expect_drop_view(self, event: Event, view: View, expected: Expected) -> None:
        self._expect_derivation(event, view, expected)
        expected.may_fail("derived", "CollectionNotFound")
        expected.check = lambda _: "it is still there" if view.alive(event.args["c"]) else None

    def _expect_index(self, event: Event, view: View, expected: Expected) -> None:
        id_ = event.args["c"]
        self._expect_derivation(event, view, expected)
        if self._expect_alive(id_, view, expected) and 0 < view.upper(id_) <= view.since(id_):
            expected.may_fail("derived", "AsOfCompacted")  # No sealed time can be read.

    def _expect_drop_index(self, event: Event, view: View, expected: Expected) -> None:
        self._expect_derivation(event, view, expected)
        expected.may_fail("derived", "InvalidUsage")  # There may be none.
        self._expect_alive(event.args["c"], view, expected)

    def _expect_derivation(self, event: Event, view: View, expected: Expected) -> None:
        self._expect_writer(event, view, expected)
        expected.rule = "derived"
        expected.may_fail("derived", "Superseded")
        if event.faults:
            expected.may_fail("lost", "UploadExpired")
        if any(may_overflow(view.contents(id_).updates) for id_ in self.location.collections):
            for error in ("DiffOverflow", "OperatorFailed"):
                expected.may_fail("overflow", error)

    def _expect_find(self, event: Event, view: View, expected: Expected) -> None:
        """Rule 20: what is found by an index is what is there."""
        id_ = event.args["c"]
        self._expect_readable(id_, None, view, expected)
        if not view.alive(id_) or not view.upper(id_):
            return
        held = view.contents(id_).as_of(min(view.upper(id_) - 1, 2**63 - 2))
        wanted = {record: n for record, n in held.items() if record[1] == event.args["v"]}
        if any(n < 0 for n in held.values()):
            expected.may_fail("negative", "NegativeMultiplicity")
        if any(n < 0 for n in wanted.values()):
            expected.fail("negative", "NegativeMultiplicity")
        if sum(map(abs, wanted.values())) >= 2**31:
            expected.may_fail("overflow", "InvalidUsage")
        if may_overflow(view.contents(id_).updates):
            expected.may_fail("overflow", "DiffOverflow")
        expected.rule = "derived"
        expected.check = lambda found: (
            None if {(k, v): n for k, v, n in found} == wanted else f"it should find {wanted}"
        )

    def _expect_erase(self, event: Event, view: View, expected: Expected) -> None:
        id_, keys = event.args["c"], {*event.args["keys"]}
        self._expect_writer(event, view, expected)
        if not self._expect_alive(id_, view, expected):
            return
        expected.may_fail("erase", "Superseded")
        related = self.related(id_)
        views = [each for each, made in self.derived.items() if related.intersection(made.get("inputs", ()))]
        if any(view.alive(each) and self._is_tied(view.holds(each)) for each in views):
            expected.may_fail(
                "erase", "InvalidUsage"
            )  # A view would begin anew, and somebody relies on its old history.
        if event.faults:
            expected.may_fail("lost", "UploadExpired")
        if any(may_overflow(view.contents(each).updates) for each in related):
            expected.may_fail("overflow", "DiffOverflow")
        self._expect_owed(view, expected)

        def check(found: Any) -> str | None:
            updates, seqno = found
            if seqno is None:
                rest = view.of_keys(id_, keys, view.version)
                return f"there is something to erase: {rest}" if rest else None
            made = [c for c in self.commits if c.client == event.client and self._is_during(c, event)]
            erased = [m["updates"] for c in made for m in c.mutations if m["kind"] == "erase"]
            if not any(c.seqno == seqno for c in made) or view.version <= seqno:
                return f"no record of its client at {seqno} erases"
            return None if sum(erased) == updates else f"its records erase {erased} updates"

        expected.rule, expected.check = "erase", check

    def _expect_restore(self, event: Event, view: View, expected: Expected) -> None:
        """Accept refusals for what came between; `View.step` knows which ones the contents demand."""
        id_ = event.args["c"]
        expected.may_fail("restore", "Superseded")
        if self.evolved.get(id_):
            expected.may_fail("schema", "SchemaMismatch")
        if not view.alive(id_):
            return
        updates = view.contents(id_).updates
        if may_overflow(updates):
            expected.may_fail("overflow", "DiffOverflow")
        if any(time >= view.upper(id_) for _, _, time, _ in updates):  # They may cancel each other out.
            expected.may_fail("late", "UpdatesBeyondUpper")

    def _expect_owed(self, view: View, expected: Expected) -> None:
        """Allow for tables that erasures gave up, and that cannot be published anew as long as rows are negative."""
        for id_ in {m["collection"] for c in self.commits for m in c.mutations if m["kind"] == "erase"}:
            if (self.tables.get(id_) or self.iceberg_tables.get(id_)) and view.alive(id_) and view.upper(id_):
                self._expect_rows(id_, min(view.upper(id_), EMPTY - 1) - 1, view, expected)

    def _expect_rows(self, id_: str, time: int, view: View, expected: Expected) -> None:
        """Refuse what cannot be shown as rows as of a time."""
        counts = [*view.contents(id_).as_of(time).values()]
        if any(n < 0 for n in counts):
            expected.may_fail("negative", "NegativeMultiplicity")
        if sum(map(abs, counts)) > ROWS_MAX:
            expected.may_fail("overflow", "InvalidUsage")
        if may_overflow(view.contents(id_).updates):
            expected.may_fail("overflow", "DiffOverflow")

    def _is_tied(self, holds: dict[str, Any]) -> bool:
        named = [name for name, (_, lease) in holds.items() if lease is None]
        return any(not name.startswith(("view ", "index ", "published ")) for name in named)

    def _is_during(self, commit: Commit, event: Event) -> bool:
        return latest_moment(commit) > event.invoked and (event.returned is None or commit.at < event.returned)

    def _tagged(self, event: Event, view: View, expected: Expected) -> int | None:
        """Return the time that a call reads as of, by a tag or not."""
        as_of = event.args["as_of"]
        if not isinstance(as_of, str):
            return as_of  # type: ignore[no-any-return]
        known = view.tags(event.args["c"]) if view.alive(event.args["c"]) else {}
        if as_of not in known:
            expected.fail("tag", "TagNotFound")
        return known.get(as_of, EMPTY)
