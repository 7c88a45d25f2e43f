"""Raising the number of a location's format, so that what came with it can be stored there.

A location keeps its number while newer releases write to it (`persist.log.envelope`), so releases before and after work
on it side by side. Some things can only be stored with a greater number. The first use of one raises the number by
itself if nothing else would do, as an `Upgrade` does. What only saves requests or bytes waits until somebody asks.

An upgrade is one record: who dies before it has changed nothing, who dies after it is done. Two at once make two
records, of which the second one changes nothing. No object is written again: each says its own number, and this
release reads all of them.
"""

from dataclasses import dataclass

from persist.engine.engine import Engine
from persist.log import FORMAT, FORMAT_MIN, kinds
from persist.shown import Shown

# What a location of each number may hold besides what those before it may: for people who decide whether to upgrade.
CAME_WITH = {
    7: "checkpoints store what changed in a collection with many parts, and no longer all of it",
    8: "the record of an upgrade itself",
}


@dataclass(frozen=True, slots=True)
class UpgradeReport(Shown):
    """What raising the format of a location changes, or has changed; print it.

    Attributes:
        before, after: the number of the location's format; equal if there is nothing to do.
        seqno: of the record that raised it; None if there was nothing to do, or this was only a plan.
        brings: by number, what a location may hold from then on.
    """

    before: int
    after: int
    seqno: int | None
    brings: dict[int, str]

    def __str__(self) -> str:
        if self.before == self.after:
            return f"the format is {self.after}, the newest that this release writes: there is nothing to do"
        what = "was raised" if self.seqno is not None else "would be raised"
        lines = [f"the format {what} from {self.before} to {self.after}, by one record; no data is written again"]
        lines += [f"{number}: {text}" for number, text in self.brings.items()]
        lines.append(f"releases that do not know format {self.after} stop with IncompatibleVersion; they lose nothing")
        return "\n".join(lines)


def upgrade(engine: Engine, *, dry_run: bool) -> UpgradeReport:
    """Raise the number of a location to the newest that this release knows; see `Client.upgrade`."""
    writer = None if dry_run else engine.writer("upgrade")
    state = engine.follower.refresh()
    before = state.format if state.seqno >= 0 else FORMAT
    if before == FORMAT:
        return UpgradeReport(before, FORMAT, None, {})
    brings = {number: text for number, text in CAME_WITH.items() if number > max(before, FORMAT_MIN)}
    if writer is None:
        return UpgradeReport(before, FORMAT, None, brings)
    seqno = engine.submit("upgrade", [kinds.Upgrade(FORMAT)], {}).result()
    return UpgradeReport(before, FORMAT, seqno, brings)
