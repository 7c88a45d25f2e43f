"""What must stand after every call of the store, kept up to date with each, so that looking costs next to nothing.

After every call that changes the store:
- all that the newest checkpoint names exists, and so does what the records after it name;
- these records are there without a gap, and each record follows the one before it (`chain.py`);
- a new checkpoint names, for each collection, the blobs that the log says it is made of;
- all that an open claim may still read exists: what its collection was made of in every state that it can be from;
- each record in which somebody was told that his call is exists, or a checkpoint stands for it.

Calls that read change none of this. `tests.support.invariants.check_named` reads all of it anew from the store: it is
the slow way to the same, for other tests, and at the end of a run here.

A set of keys stands for each collection at each seqno; only those that a record changes are copied. Objects are parsed
once. It reads JSON as `docs/inside/format.md` describes it, and shares no code with the library.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.proofs.simulator.chain import Chain
from tests.support.invariants import CHECKPOINT, Dangling, keys_in

LOG, CHECKPOINTS = "log/", "checkpoint/"
Made = Mapping[str, frozenset[str]]  # Of what each collection is made, by its id.


class Standing:
    """What a store must hold, given the changes to it as they come.

    Attributes:
        seqno: of the last record.
    """

    def __init__(self) -> None:
        self.seqno = -1
        self._there: dict[str, bytes] = {}
        self._chain = Chain()
        self._made: dict[int, Made] = {-1: {}}  # After each record, as the log says.
        self._named: dict[int, set[str]] = {}  # By each record itself: its part list.
        self._newest: str | None = None
        self._needed: set[str] = set()  # By the newest checkpoint and its objects.
        self._parsed: dict[str, Any] = {}
        self._claims: dict[int, tuple[str, frozenset[str]]] = {}
        self._leases: dict[str, str] = {}

    def stored(self, client: str, key: str, value: bytes) -> None:
        """Take in what a client has just stored; raise Broken or Dangling."""
        self._there[key] = value
        if key.startswith(LOG):
            self._add_record(client, value)
        elif key.startswith(CHECKPOINTS) and CHECKPOINT.fullmatch(key) and (self._newest or key) >= key:
            self._take(key)

    def deleted(self, key: str) -> None:
        """Take in that a key was deleted; raise Dangling if something needs it."""
        self._there.pop(key, None)
        if key == self._newest:
            self._take(min((k for k in self._there if CHECKPOINT.fullmatch(k)), default=None))
            return
        if key.startswith(LOG) and int(key[4:]) > self._checkpointed:
            raise Dangling(f"{key} is missing, and the newest checkpoint is {self._newest}")
        if key in self._needed or any(key in blobs for blobs in self._made[self.seqno].values()):
            raise Dangling(f"{key} is missing, and {self._newest} or a record after it names it")
        later = range(self._checkpointed + 1, self.seqno + 1)
        if any(key in self._named[seqno] for seqno in later):
            raise Dangling(f"{key} is missing, and a record after {self._newest} names it")
        for event, (client, blobs) in self._claims.items():
            if key in blobs:
                raise Dangling(f"{key} is missing, and what {client} got in call #{event} is made of it")

    def acknowledge(self, client: str, seqno: int) -> None:
        """Take in that a client was told that its call is in a record; raise Dangling."""
        key = f"{LOG}{seqno:020d}"
        if seqno not in self._made or (key not in self._there and seqno > self._checkpointed):
            raise Dangling(f"{client} was told that its call is in {key}, which is not there")

    def claim(self, event: int, client: str, collection: str, since: int) -> None:
        """Take in what a call answered: its collection as of a state after the record `since`, or of a later one."""
        seen = [self._made[seqno].get(collection, frozenset()) for seqno in range(since, self.seqno + 1)]
        self._claims[event] = client, frozenset.intersection(*seen)

    def release(self, of: Callable[[int, str], bool]) -> None:
        """Forget the claims, by event and client, that are no more."""
        self._claims = {event: claim for event, claim in self._claims.items() if not of(event, claim[0])}

    @property
    def _checkpointed(self) -> int:
        return -1 if self._newest is None else int(self._newest[-25:-5])

    def _add_record(self, client: str, value: bytes) -> None:
        record = json.loads(value)
        if not self._chain.add(record):
            return
        seqno, made = record["seqno"], dict(self._made[record["seqno"] - 1])
        self._named[seqno] = set()
        for mutation in record["mutations"]:
            id_, kind = mutation.get("collection", ""), mutation["kind"]
            if kind == "lease":
                self._leases[mutation["lease"]] = client
            elif kind == "end_lease":
                gone = self._leases.pop(mutation["lease"], None)
                self.release(lambda _, client, gone=gone: client == gone)  # type: ignore[misc]
            elif kind == "destroy":
                made.pop(id_, None)
            elif id_:
                made[id_] = self._with(made.get(id_, frozenset()), mutation, self._named[seqno])
        self.seqno, self._made[seqno] = seqno, made
        named = self._named[seqno].union(*made.values())
        self._check_there(named - self._needed, f"the record at {seqno}")

    def _with(self, blobs: frozenset[str], mutation: Any, named: set[str]) -> frozenset[str]:
        """Return what a collection is made of after a mutation."""
        brings = {*keys_in([mutation.get("parts", ()), mutation.get("blobs", ())])}
        if "parts_in" in mutation:
            named.add(mutation["parts_in"]["blob"])
            brings.update(keys_in(self._read(mutation["parts_in"]["blob"], "a record")["parts"]))
        unused = mutation.get("unused", ())
        return blobs if not brings and not unused else (blobs | brings).difference(unused)

    def _take(self, key: str | None) -> None:
        """Let a checkpoint be the newest one."""
        self._newest, self._needed = key, set()
        if key is None:
            return
        entries: dict[str, Any] = {}
        checkpoint = self._read(key, "the store lists it")
        for pointer in checkpoint["directory"]:
            self._needed.add(pointer["blob"])
            changes = self._read(pointer["blob"], key)
            _apply(entries, changes)
            self._needed.update(pages["blob"] for pages in changes.get("names", ()))
            for pages in changes.get("entries", ()):
                self._needed.add(pages["blob"])
                for page in self._read(pages["blob"], key):
                    entries.update(page)
        _apply(entries, checkpoint)
        made = {id_: self._made_of(entry, key) for id_, entry in entries.items() if entry is not None}
        self._check_there(self._needed, key)
        wanted = self._made[self._checkpointed]
        for id_ in {*made, *wanted}:
            if (made.get(id_) or frozenset()) != (wanted.get(id_) or frozenset()):
                raise Dangling(f"{key} makes {id_} of {made.get(id_)}, and the log makes it of {wanted.get(id_)}")

    def _made_of(self, entry: Any, by: str) -> frozenset[str]:
        base, blobs = entry.get("base"), frozenset[str]()
        if base is not None:
            self._needed.add(base["blob"])
            blobs = frozenset(keys_in(self._read(base["blob"], by)["collection"]))
        for mutation in entry.get("pending", ()):
            blobs = self._with(blobs, mutation, self._needed)
        return blobs

    def _check_there(self, keys: set[str], by: str) -> None:
        if missing := sorted(key for key in keys if key not in self._there):
            raise Dangling(f"{missing[0]} is missing, and {by} names it")

    def _read(self, key: str, by: str) -> Any:
        if key not in self._there:
            raise Dangling(f"{key} is missing, and {by} names it")
        if key not in self._parsed:
            lines = [json.loads(line) for line in self._there[key].splitlines()]
            self._parsed[key] = lines if key.endswith(".pages") else lines[0]
        return self._parsed[key]


def _apply(entries: dict[str, Any], changes: Any) -> None:
    entries.update({entry["id"]: entry for entry in changes["collections"]})
    for id_ in changes.get("gone", ()):
        entries.pop(id_, None)
