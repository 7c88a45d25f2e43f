"""The history of a run as plain data: what clients called, what they were answered, and what storage saw.

It is all the judge knows, so it holds nothing of the library: errors are class names with plain attributes, a
frontier is an integer (`EMPTY` for the empty antichain), collections are ids, updates are `[k, v, time, diff]`.

Moments (`invoked`, `returned`, `at`) come from one counter, so that of two calls that do not overlap it is known which
came first, and whether a record landed before, during or after a call.

    event    one call of one client. Outcomes:
               ["ok", value]                     value depends on op
               ["error", class name, attributes] such as ["error", "UpdateNotBeyondUpper", {"time": 3, "upper": 5}]
               ["crashed"]                       the client died before it had an answer
    commit   one record of the log, as its bytes say, with the moment at which it came into being and whose it is.
             An append also lists the `parts` it brings, a list of updates each, and their `blobs` ("" for an inline
             one); so does a replace, which names parts by number as `persist.core.log.kinds` describes

Ops, their arguments (`c` is the id of a collection) and the value of "ok":

    open            mode, reentrance_id?, force?                      None
    close                                                             None, or the error "Unseen" {"classes": […]}
    create_or_load  name, schema                                      id
    clone           c, target, as_of (None: latest)                   id
    load            name                                              id
    collections                                                       names
    upper, since    c                                                 frontier
    write           c, updates, columns, marker?, token?, expected_upper?, seal?, bad?   seqno
    upsert          c, events, columns, token?, seal?                 seqno; of keyed collections, in place of write
    resolve         c                                                 whether there was anything to resolve
    evolve          c, how ("add" | "drop"), column, version          None
    seal            c, upper, expected_upper?                         seqno
    allow_compaction  c, since                                        seqno
    destroy         c                                                 seqno
    restore         c, as_of, assigned (the time that it told)        seqno
    multi           steps ([["write", c, updates] | ["upsert", c, events] | ["seal", c, upper]]), columns by c,
                    token?, raises                                    None
    snapshot        c, as_of (None: latest; or a tag)                 as_of
    snapshots       cs (ids)                                          [[c, as_of, count]], all of one state
    backup                                                            [seqno, {name: [c, upper, since, [[k, v, n]]]}],
                                                                      what the copy holds when it is restored
    read            snapshot (id of its event), how, columns, above   [[columns …, n]], or a number for how="count"
    changes         c, lower, upper                                   updates, in the order given
    listen, subscribe  c, as_of                                       as_of
    poll            feed (id of its event)                            None, or {"updates": …, "upper": …}
    close_feed, close_snapshot  feed or snapshot                      None
    hold            c, time, name?                                    time
    advance         hold (id of its event), time                      None
    release         hold, how ("close" | "release")                   None
    holds           c                                                 [[name, time]] of the named ones
    compact         c, full                                           None
    gc, maintain                                                      None
    crash                                                             None: the client is no more
    publish         c, as_of (None: latest)                           as_of; as a Delta or an Iceberg table
    unpublish       c                                                 whether there was one
    table           c                                                 what another program finds: None, or [version,
                                                                      as_of, [[k, v, n]]]
    tag             c, tag, time (None: latest), move                  time
    untag           c, tag                                            None
    tags            c                                                 [[name, time]]
    create_view     name                                              id; of the rows of two that are not markers
    refresh         c, name                                           upper
    drop_view       c                                                 None
    index, drop_index  c                                              None; by value
    find            c, v                                              [[k, v, n]]; the latest with that value
    erase           c, keys                                           [updates, seqno or None]
    upgrade                                                           [format before, after, seqno or None]
    fsck                                                              list of what it found wrong

A call has `no_room` if the store had none for a request of its client meanwhile.

A mutating call has `looked`: False says that nobody looked at its error before its client was closed.

`columns` are those that the handle of a writer knows of and the collection got later. They hold their default in all
records, and the updates here are without them. `version` is that of the schema that the handle of an evolve knows.

The first update of a write is its marker: a record `[marker, "m", time, 1]` that no other write holds, except a
repetition of this one with the same token. Likewise the first event of an upsert, `[marker, "m" or None, time]`.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

CRASHED = ["crashed"]

Outcome = list[Any]


@dataclass(slots=True, eq=False)
class Event:
    """One call. `returned` is None if there was no answer; faults counts what storage did to its client meanwhile."""

    id: int
    client: str
    op: str
    args: dict[str, Any]
    invoked: int
    returned: int | None = None
    outcome: Outcome = field(default_factory=lambda: list(CRASHED))
    faults: int = 0
    clock_s: float = 0.0  # The clock of the world when it was invoked.

    @property
    def ok(self) -> bool:
        return bool(self.outcome[0] == "ok")

    @property
    def error(self) -> str | None:
        """The class name of its error."""
        return self.outcome[1] if self.outcome[0] == "error" else None

    def __str__(self) -> str:
        args = ", ".join(f"{name}={_short(value)}" for name, value in self.args.items())
        answer = "no answer" if self.outcome == CRASHED else f"{self.outcome[0]} {_short(self.outcome[1:])}"
        doubt = f" ({self.faults} faults)" if self.faults else ""
        return f"#{self.id} {self.client}.{self.op}({args}) @{self.invoked}-{self.returned}{doubt} -> {answer}"


@dataclass(slots=True)
class Commit:
    """One record. Mutations have a `kind`, mostly a `collection`, and what that kind needs.

    commit is its id, and previous that of the record before it. It came into being at `at`; or from then on, up to
    `by`, where nobody has seen the moment.
    """

    seqno: int
    at: int
    client: str
    mutations: list[dict[str, Any]]
    clock_s: float = 0.0
    commit: str = ""
    previous: str | None = None
    by: int | None = None
    format: int = 0

    def __str__(self) -> str:
        return f"seqno {self.seqno} @{self.at} of {self.client}: {_short(self.mutations)}"


@dataclass(slots=True)
class Deletion:
    """A request to delete a part, when it was sent."""

    key: str
    at: int
    client: str
    clock_s: float


@dataclass(slots=True)
class History:
    """Everything that happened.

    `stored` counts the mutating requests each client sent to storage. `settings` are those of all clients, and
    `skew_max_s`: how far a client's clock is off that of the world at most. The clock of the world began at `began_ms`.
    """

    events: list[Event]
    commits: list[Commit]
    stored: dict[str, int] = field(default_factory=dict)
    settings: dict[str, float] = field(default_factory=dict)
    deletions: list[Deletion] = field(default_factory=list)

    def to_json(self) -> str:
        """Return it as text that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "History":
        found = json.loads(text)
        events = [Event(**each) for each in found["events"]]
        commits = [Commit(**each) for each in found["commits"]]
        deletions = [Deletion(**each) for each in found["deletions"]]
        return cls(events, commits, found["stored"], found["settings"], deletions)

    def lines(self) -> list[str]:
        """Return it for people, in the order in which things began."""
        both: list[tuple[int, str]] = [(e.invoked, str(e)) for e in self.events]
        both += [(c.at, f"    {c}") for c in self.commits]
        return [line for _, line in sorted(both)]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}…"
