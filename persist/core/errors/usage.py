"""Mistakes of the caller that do not concern times: the call must be changed.

Errors of dataflows are here, too, and name the operator; persisted outputs stay at their last sealed time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from persist.blob.errors import Conflict, InvalidUsage
from persist.core.names import is_time_word


@dataclass(eq=False, repr=False)
class KeyedCollection(InvalidUsage):
    """The operation is not possible on a keyed collection, where only resolved events become updates."""

    name: str
    action: str

    def describe(self) -> str:
        if self.action == "late_bound":
            return (
                f"the events of the keyed collection {self.name!r} are not ordered, so none of them is late: it was "
                "created without order_by. A late bound needs that."
            )
        return (
            f"the collection {self.name!r} is keyed, so {self.action} is refused: what it adds would depend on events "
            "that are not resolved yet."
        )

    @property
    def remedy(self) -> str:  # type: ignore[override]
        if self.action == "late_bound":
            return ""
        return "Use {upsert:call}, {overwrite:call} or {delete:call}, and {seal:call}."


@dataclass(eq=False, repr=False)
class ViewWritten(InvalidUsage):
    """Something other than its refresh wrote or sealed a view (rule 19)."""

    name: str

    template = (
        "the collection {name!r} is a view: its query determines its contents, and nothing else writes or seals it."
    )
    remedy = "Write to the collections that it reads and refresh it, or give it another query with {redefine:call}."


@dataclass(eq=False, repr=False)
class NotOneValue(InvalidUsage):
    """A collection cannot become keyed: keys have several values at a time, or are NULL.

    `keys` are the first such keys, each with a time of the fault.
    """

    name: str
    keys: Sequence[tuple[tuple[Any, ...], int]]
    are_null: bool = False

    def describe(self) -> str:
        formatted = ", ".join(f"{_format_key(key)} at {time}" for key, time in self.keys)
        if self.are_null:
            return (
                f"the collection {self.name!r} cannot become keyed, because some keys are NULL, and no event can be "
                f"about these: {formatted}. Retract them first."
            )
        return (
            f"the collection {self.name!r} cannot become keyed, because some keys have more than one value, or less "
            f"than none: the first are {formatted}. Retract what is too much. If that is so at old times only, have "
            "them forgotten: let since pass them, and compact."
        )


@dataclass(eq=False, repr=False)
class DuplicateKeys(InvalidUsage):
    """Rows repeat keys, and nothing was written. `keys` are the first ten.

    `action` is the requested operation: "overwrite"; "keyed" for an overwrite of a keyed collection; or "upsert". It is
    "kept" if rows outside of an overwrite's condition have keys of new rows.
    """

    name: str
    keys: Sequence[tuple[Any, ...]]
    action: str

    def describe(self) -> str:
        formatted = ", ".join(map(_format_key, self.keys))
        if self.action == "kept":
            return (
                f"where= is not true for present rows of {self.name!r} that have keys of new rows, first of all "
                f"{formatted}: these keys would have two rows, and nothing was written."
            )
        advice = {
            "overwrite": "",
            "keyed": " A keyed collection holds one value for each key: leave out the rows that are too much.",
        }.get(self.action, " Give each key one value at one time.")
        return f"the rows for {self.name!r} repeat keys, first of all {formatted}, and nothing was written.{advice}"

    @property
    def remedy(self) -> str:  # type: ignore[override]
        if self.action == "kept":
            return (
                "Widen the condition, leave these rows out, use {upsert:call}, or give {multiset:option:True} if keys "
                "may have several rows."
            )
        if self.action != "overwrite":
            return ""
        return (
            "{overwrite:call} replaces everything, mostly by one row for each key. Leave out rows that are too much; "
            "give {multiset:option:True} if keys may have several rows; or use {upsert:call} to change only some keys."
        )


def _format_key(key: tuple[Any, ...]) -> str:
    text = repr(key[0] if len(key) == 1 else key)
    return text if len(text) <= 100 else text[:99] + "…"


@dataclass(eq=False, repr=False)
class NotKeyed(InvalidUsage):
    """Events were sent to a collection that is not keyed."""

    name: str

    template = "the collection {name!r} is not keyed, so it takes updates and no events."
    remedy = "Use {write:call}, or create a collection that is keyed, with {keyed:option}."


@dataclass(eq=False, repr=False)
class LateEvents(InvalidUsage):
    """Events are below the late bound by `order_by`. Events of the same call were refused, too.

    `watermark` is the least value in the first column of `order_by`, as an integer.
    """

    watermark: int
    bound: int

    def describe(self) -> str:
        least = "NULL" if self.watermark == -(2**63) else self.watermark
        return (
            f"an event has {least} in the first column of order_by, below the late bound {self.bound}: it is late, and "
            "nothing of this was applied."
        )

    remedy = "Leave late events out, or have them collected with {late:option:collect}."


@dataclass(eq=False, repr=False)
class BadMessage(InvalidUsage):
    """A message does not fit its envelope. No events were returned.

    Attributes:
        message: its index in the input, from 0.
        reason: what is wrong with it.
        count: the number of bad messages in the input.
    """

    message: int
    reason: str
    count: int

    def describe(self) -> str:
        more = "" if self.count == 1 else f", and {self.count - 1} more are bad"
        return (
            f"message {self.message} cannot be read: {self.reason}{more}. Nothing was returned. Correct the messages "
            'or the schema; with on_error="collect" the others become events, and `rejected` holds these with reasons.'
        )


@dataclass(eq=False, repr=False)
class BeforeDiffers(InvalidUsage):
    """An event's old row differs from the stored row. Nothing was resolved or sealed.

    Attributes:
        key: of the event.
        time: of the event.
        said: the old row in the event; None for no row.
        held: the stored row; None for no row.
    """

    key: Any
    time: int
    said: Any
    held: Any

    def describe(self) -> str:
        expected_row, present_row = ("no row" if row is None else f"{row!r:.200}" for row in (self.said, self.held))
        return (
            f"the event of key {self.key!r} at time {self.time} changes {expected_row}, and the key holds "
            f"{present_row}: events are missing, came twice, or in another order. Nothing of this was resolved. "
            "Write what is missing at or before that time; a collection whose machine was made with "
            'on_difference="skip" or "trust" goes on instead.'
        )


@dataclass(eq=False, repr=False)
class NegativeMultiplicity(InvalidUsage):
    """Rows were requested, but a record has a negative multiplicity, which rows cannot show (rule 13)."""

    example: str
    multiplicity: int
    as_of: int

    template = "the record {example} has multiplicity {multiplicity} as of {as_of}, and rows cannot show that."
    remedy = (
        "{snapshot:call} with {form:option:diff} shows multiplicities. Write the missing insertion if one is missing."
    )


@dataclass(eq=False, repr=False)
class CollectionNotFound(InvalidUsage):
    """The location has no such collection, or the collection of this handle was dropped.

    Attributes:
        known: the names of the existing collections.
        remedy: what to do about it.
    """

    name: str
    url: str
    known: tuple[str, ...]
    remedy: str = "Check the name, or make it with {create_or_load:call}."

    def describe(self) -> str:
        if self.name in self.known:
            self.remedy = ""
            return (
                f"the collection {self.name!r} at {self.url} that this handle stands for is gone. It was dropped, or "
                "it is a view that began anew because records were erased. Another one has its name now: load it again."
            )
        # The others belong to the library: indexes, for example.
        visible = [name for name in self.known if not name.startswith(".")]
        formatted = ", ".join(map(repr, visible[:8])) + (", …" if len(visible) > 8 else "")
        has = f"it has {formatted}." if visible else "it has no collections at all: is the URL right?"
        return f"no collection {self.name!r} at {self.url}: {has}"


@dataclass(eq=False, repr=False)
class CollectionNeeded(InvalidUsage):
    """A collection cannot be dropped, because views read it."""

    name: str
    views: list[str]

    template = "collection {name!r} cannot be dropped: the views {views:names} read it. Drop these first."


@dataclass(eq=False, repr=False)
class ColumnsNeeded(InvalidUsage):
    """A column cannot be dropped: views read it, or an index is in its order."""

    name: str
    readers: dict[str, list[str]]

    def describe(self) -> str:
        reasons = []
        for column, readers in self.readers.items():
            views = [reader for reader in readers if reader != self.name]
            if views:
                reasons.append(
                    f"{column!r} is read by the view{'s' if len(views) > 1 else ''} {', '.join(map(repr, views))}"
                )
            if len(views) < len(readers):
                reasons.append(f"{column!r} is what an index looks up by")
        return (
            f"these columns of collection {self.name!r} cannot be dropped: {', '.join(reasons)}. Drop these views, or "
            "give them a definition that does without, first; drop an index with drop_index()."
        )


@dataclass(eq=False, repr=False)
class ReadOnly(InvalidUsage):
    """A client opened with mode="read" cannot write (rule 12)."""

    action: str

    template = '{action} needs a writing client, and this one was opened with mode="read". Open with mode="shared".'


@dataclass(eq=False, repr=False)
class ClientClosed(InvalidUsage):
    """The client was closed before the call."""

    action: str

    template = "{action} came after close(), and nothing was done. Open a new client with persist.open."


@dataclass(eq=False, repr=False)
class TokenReused(InvalidUsage):
    """A write's token was used before for other data (rule 7)."""

    token: str
    collection: str

    template = (
        "the token {token!r} was used before, for a write of other data to the collection "
        "{collection!r}: this is not a repetition of it, and nothing was written. Give each write a token of "
        "its own, and the same one only when the same data is tried again, at the same times."
    )


@dataclass(eq=False, repr=False)
class ClockAhead(InvalidUsage):
    """The client's clock is more than a day ahead of the store's."""

    clock: str
    store: str

    template = (
        "the clock of this machine says {clock}, and the store says {store}: a write at the machine's time would "
        "seal all times up to it for ever, so nothing was written."
    )
    remedy = "Set the clock, or name the time, or give {allow_future:option:True} if it is meant."


@dataclass(eq=False, repr=False)
class TokenForgotten(InvalidUsage):
    """The token may belong to a write so old that the collection has forgotten it (rule 7)."""

    token: str
    collection: str
    forgotten: int

    template = (
        "the token {token!r} may have been used before: the collection {collection!r} has forgotten {forgotten} of its "
        "tokens, the oldest ones, and whether this was among them is unknown. Nothing was written. Look whether the "
        "write is there; if not, repeat it without a token, and with time= and seal=, which refuse a repetition."
    )


@dataclass(eq=False, repr=False)
class HoldNotFound(InvalidUsage):
    """The collection has no hold of that name."""

    name: str
    known: tuple[str, ...]

    def describe(self) -> str:
        return f"this collection has no named hold {self.name!r}: {_format_known_names(self.known)}."

    remedy = "{hold:call} makes one."


@dataclass(eq=False, repr=False)
class TagNotFound(InvalidUsage):
    """The collection has no tag of that name."""

    name: str
    known: tuple[str, ...]

    def describe(self) -> str:
        return f"{self.name!r} is not a time, moment or tag of this collection: {_format_known_names(self.known)}."

    @property
    def remedy(self) -> str:  # type: ignore[override]
        if is_time_word(self.name):  # Such a word is not a tag.
            return "Leave the time out for the latest sealed one; give others as numbers, days or moments."
        return "{tag:call} makes one."


def _format_known_names(names: Sequence[str]) -> str:
    return f"it has {', '.join(map(repr, names[:8]))}" if names else "it has none"


@dataclass(eq=False, repr=False)
class OperatorFailed(InvalidUsage):
    """A function or expression raised an error, or returned a value that is not allowed."""

    operator: str
    record: Any
    problem: str

    def describe(self) -> str:
        on = "" if self.record is None else f" on the record {self.record!r:.300}"
        return (
            f"operator {self.operator} failed{on}: {self.problem}. Nothing of this step was written. Correct the "
            "program or the source, and open it again: it goes on where its outputs are sealed."
        )


@dataclass(eq=False, repr=False)
class FunctionNotFound(InvalidUsage):
    """A view calls a Python function that this process lacks. Nothing was written.

    Attributes:
        name, version: of the function.
        versions: the versions that this process has.
        view: the calling view; empty if unknown.
    """

    name: str
    version: str
    versions: tuple[str, ...] = ()
    view: str = ""

    def describe(self) -> str:
        what = f"view {self.view!r}" if self.view else "a view"
        has = f"version {', '.join(self.versions)} of it" if self.versions else "none of that name"
        alternative = ", or give the view the other version" if self.versions else ""
        return (
            f"{what} calls {self.name}() of version {self.version}, a function of Python, and this process has {has}. "
            f"Views store no code: call client.create_function({self.name!r}, …, version={self.version!r}) "
            f"first{alternative}."
        )


@dataclass(eq=False, repr=False)
class WouldRecompute(InvalidUsage):
    """A refresh that must not recompute would have to read a whole input. Nothing was written."""

    name: str
    problem: str

    template = (
        'refresh(policy="incremental") of {name!r} would have to recompute: {problem}. Refresh it without that policy, '
        "or keep its state open from before the change on with open_state()."
    )


@dataclass(eq=False, repr=False)
class LimitReached(InvalidUsage):
    """Work reached its limit of time or memory. Its current step wrote nothing."""

    what: str
    limit: str

    template = (
        "the work had not ended when it came to its limit of {what}, which is {limit}. What was sealed before stays, "
        "and nothing else was written. Give a higher limit, or none."
    )


@dataclass(eq=False, repr=False)
class NotConsolidated(InvalidUsage):
    """A cycle has no operator that consolidates, so it would never end."""

    scope: str
    operators: list[str]

    def describe(self) -> str:
        return (
            f"the cycle {' -> '.join(self.operators)} in scope {self.scope!r} has no operator that consolidates, so "
            "updates that cancel out would go round for ever. Put distinct(), consolidate() or a reduction on it."
        )


@dataclass(eq=False, repr=False)
class NotConverging(InvalidUsage):
    """An iteration did not end within its limit."""

    scope: str
    limit: int
    changes: int

    template = (
        "scope {scope!r} still had {changes} changes after its limit of {limit} iterations. Its body must reach a "
        "fixed point: if it does, only later, give the scope a larger limit."
    )


@dataclass(eq=False, repr=False)
class InputClosed(InvalidUsage):
    """An update came for a time that its input had closed."""

    name: str
    time: Any
    frontier: Any

    template = (
        "input {name!r} got an update at time {time}, and it has been advanced to {frontier}: times not beyond that "
        "are complete. Give the update a later time."
    )


@dataclass(eq=False, repr=False)
class SourceLost(InvalidUsage):
    """A source cannot be read from the position that a program needs."""

    source: str
    problem: str
    remedy: str

    template = "source {source!r}: {problem}. {remedy}"


@dataclass(eq=False, repr=False)
class OutputConflict(Conflict):
    """Another client wrote to a program's output collection."""

    output: str
    problem: str

    template = (
        "output {output!r}: {problem}. Only one program may write a collection that it keeps up to date. Nothing of "
        "this step was written. Stop the other writer, or let the program write another collection."
    )
