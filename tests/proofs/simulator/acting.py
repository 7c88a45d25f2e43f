"""Makes the calls that name times, raise the format, erase, and derive collections from others.

`players.py` makes all other calls.
"""

from collections import Counter
from typing import Any

import persist
from persist.core.log import kinds
from persist.core.log.keys import make_record_key
from persist.core.log.records import Record, encode_record
from tests.proofs.simulator.calls import Caller, Slot
from tests.proofs.simulator.deriving import MARK
from tests.proofs.simulator.language import Step
from tests.proofs.simulator.log_reader import frontier
from tests.proofs.simulator.spelling import real_name
from tests.proofs.simulator.world import BEGAN_MS, Tap


class Acting(Caller):
    """Does steps; see `players.Run`."""

    tap: Tap

    def _begin(self, step: Step) -> None:
        """Have the location made by a release that knew an older format."""
        if not self.tap.landed:
            made = {"location": "1" * 32, "commit": "2" * 32, "previous": None, "writer": "old", "epoch": None}
            mutations = (kinds.VoidUploads(0),)
            record = Record(format=step["format"], seqno=0, written_ms=BEGAN_MS, mutations=mutations, **made)  # type: ignore[arg-type]
            self.tap.create("old", make_record_key(0), encode_record(record))

    def _fill(self, step: Step) -> None:
        self.tap.room_bytes = step["bytes"]

    def _empty(self, step: Step) -> None:
        self.tap.room_bytes = None

    def _restore(self, slot: Slot, step: Step) -> None:
        self._submit(slot, step, {"as_of": step["as_of"], "assigned": None}, lambda c: c.restore(step["as_of"]))

    def _publish(self, slot: Slot, step: Step) -> None:
        """Publish a Delta table, or on files an Iceberg table of format 3, whose vectors are like those of Delta."""

        def call(c: persist.Collection) -> int:
            if step.get("table") == "iceberg":
                return c.publish("iceberg", step["as_of"], deletes=step["deletes"], format_version=3).as_of
            return c.publish("delta", step["as_of"], deletes=step["deletes"], feed=step["feed"]).as_of

        self._on_handle(slot, step, {"as_of": step["as_of"]}, call)

    def _unpublish(self, slot: Slot, step: Step) -> None:
        self._on_handle(slot, step, {}, lambda c: c.unpublish(step.get("table", "delta")))

    def _upgrade(self, slot: Slot, step: Step) -> None:
        def call() -> list[int | None]:
            report = slot.client.upgrade()
            return [report.before, report.after, report.seqno]

        self._call(slot, "upgrade", {}, call)

    def _create_view(self, slot: Slot, step: Step) -> None:
        def call() -> str:
            scans = [f"SELECT k, v FROM \"{name}\" WHERE v <> '{MARK}'" for name in step["inputs"]]
            slot.handles[step["name"]] = made = slot.client.create_view(step["name"], " UNION ALL ".join(scans))
            return made.id

        self._call(slot, "create_view", {"name": step["name"]}, call)

    def _refresh(self, slot: Slot, step: Step) -> None:
        def call(c: persist.Collection) -> int:
            assert isinstance(c, persist.View)
            return frontier(list(c.refresh().elements))

        self._on_handle(slot, step, {"name": step["name"]}, call)

    def _drop_view(self, slot: Slot, step: Step) -> None:
        self._on_handle(slot, step, {}, lambda c: c.drop().result() and None)

    def _index(self, slot: Slot, step: Step) -> None:
        self._on_handle(slot, step, {}, lambda c: c.index(real_name(c, "v")) and None)

    def _drop_index(self, slot: Slot, step: Step) -> None:
        self._on_handle(slot, step, {}, lambda c: c.drop_index(real_name(c, "v")).result() and None)

    def _find(self, slot: Slot, step: Step) -> None:
        """Look records up by their value, by an index if there is one."""

        def call(c: persist.Collection) -> list[list[Any]]:
            table = c.get(where=f"v = '{step['v']}'", columns=[real_name(c, "k"), "v"])
            rows = Counter(zip(*table.to_pydict().values(), strict=True))
            return [[k, v, n] for (k, v), n in rows.items()]

        self._on_handle(slot, step, {"v": step["v"]}, call)

    def _erase(self, slot: Slot, step: Step) -> None:
        def call(c: persist.Collection) -> list[int | None]:
            report = c.erase(step["keys"], reason="request 17")
            return [report.updates, report.seqno]

        self._on_handle(slot, step, {"keys": step["keys"]}, call)

    def _tag(self, slot: Slot, step: Step) -> None:
        args = {"tag": step["tag"], "time": step["time"], "move": step["move"]}
        self._on_handle(slot, step, args, lambda c: c.tag(step["tag"], step["time"], move=step["move"]))

    def _untag(self, slot: Slot, step: Step) -> None:
        self._on_handle(slot, step, {"tag": step["tag"]}, lambda c: c.untag(step["tag"]).result() and None)

    def _tags(self, slot: Slot, step: Step) -> None:
        def call(c: persist.Collection) -> list[Any]:
            return [[name, time] for name, time in sorted(c.tags().items())]

        self._on_handle(slot, step, {}, call)
