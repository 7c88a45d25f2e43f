"""What a location holds after a crash, compared with what it must hold.

`recovered` is the judge. A new client looks at everything, and the location must be as the model is after some prefix
of the calls that were asked for, at least as long as what was acknowledged. Then the log must have no hole, and the
location must take more writes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

import persist
from persist.blob import Blob
from persist.log.commits import read_record
from persist.log.keys import record_key
from persist.log.records import BringsParts, Replace, Resolve
from tests.crash.story import KEY, KEYED, ROWS_MAX, Held, Model, Op, Teller

BARRIER = "barrier"
# Upper, since, whether nobody holds it back, and the columns that the collection got later.
Frontiers = dict[str, tuple[int | None, int | None, bool, frozenset[str]]]


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a crash left.

    Attributes:
        model: what the location holds now, also after what the check itself did.
        found: how many of the calls asked for have happened; the least it can be if some were retried.
        retried: how many of those that had not been acknowledged were made again, with their tokens.
    """

    model: Model
    found: int
    retried: int = 0


def recovered(
    client: persist.Client,
    blob: Blob,
    before: Model,
    asked: Sequence[Op],
    acknowledged: int,
    *,
    retry: bool = False,
    examine: bool = True,
) -> Recovery:
    """Judge a location that held `before` when a client, dead by now, was asked for some calls.

    Args:
        client: a new one.
        blob: the same location, to be looked at directly.
        before: what the location held.
        asked: the calls, in order.
        acknowledged: how many of them, at least, must have happened.
        retry: make the writes that were not acknowledged again, with the same tokens.
        examine: run fsck, too.

    Raises:
        Violation: it is not as it must be; the message says how.
    """
    _commit_a_barrier(client)
    candidates = _candidates(client, before, asked, acknowledged)
    again = _to_retry(asked[acknowledged:]) if retry else []
    teller = Teller(client)
    for op in again:
        future = teller.ask(op)
        if future is not None:
            future.result()
    top = max(before.after(list(asked)).latest(), *(op.time for op in asked), 0) + 2  # When all ghosts are gone.
    model, found = _by_contents(client, teller, candidates, again, top)
    check_log(blob)
    if examine:
        check_with_fsck(client)
    return Recovery(model, found, len(again))


def check_log(blob: Blob) -> None:
    """Raise Violation unless the log is one record after the other, and begins at 0 or before the newest checkpoint."""
    seqnos = [int(entry.key.removeprefix("log/")) for entry in blob.list("log/")]
    if not seqnos:
        raise Violation("the log is empty")
    if seqnos != list(range(seqnos[0], seqnos[0] + len(seqnos))):
        missing = sorted(set(range(seqnos[0], seqnos[-1])) - set(seqnos))
        raise Violation(f"the log lacks the records {missing} between {seqnos[0]} and {seqnos[-1]}")
    if seqnos[0] > 0:
        newest = next(iter(blob.list("checkpoint/")), None)
        if newest is None or int(newest.key[-25:-5]) < seqnos[0] - 1:
            raise Violation(f"the log begins at {seqnos[0]}, and no checkpoint stands for what came before")


def check_records(client: persist.Client, blob: Blob) -> int:
    """Raise Violation unless every record can be read and every part it names is there; return how many records.

    Parts of collections that do not exist any more may be gone, and those that compaction has replaced.
    """
    parts = {entry.key for entry in blob.list("part/")}
    present = {client.load(name).id for name in client.collections()}
    seqnos = [int(entry.key.removeprefix("log/")) for entry in blob.list("log/")]
    records = []
    for seqno in seqnos:
        record = read_record(blob, seqno)
        assert record is not None
        records.append(record)
    for before, record in pairwise(records):
        if record.previous != before.commit:
            raise Violation(f"{record_key(record.seqno)} follows {record.previous}, and {before.commit} is before it")
    replaced = {
        key for record in records for m in record.mutations if isinstance(m, Replace | Resolve) for key in m.unused
    }
    for seqno, record in zip(seqnos, records, strict=True):
        brings = [m for m in record.mutations if isinstance(m, BringsParts) and m.collection in present]
        named = {part.blob for each in brings for part in each.parts if part.blob} - replaced
        if not named <= parts:
            raise Violation(f"{record_key(seqno)} names parts that are not there: {sorted(named - parts)}")
    return len(seqnos)


def check_with_fsck(client: persist.Client) -> None:
    """Raise Violation unless fsck finds nothing worse than blobs that nothing names."""
    report = client.fsck()
    if not report.is_clean:
        raise Violation(f"fsck found damage: {report}")


def _commit_a_barrier(client: persist.Client) -> None:
    """Commit something, so that no request that a dead client sent can still become a record at the end of the log."""
    barrier = client.create_or_load(BARRIER, key=KEY)
    now = barrier.upper.time
    assert now is not None
    barrier.seal(now + 1).result()


def _candidates(
    client: persist.Client, before: Model, asked: Sequence[Op], acknowledged: int
) -> list[tuple[Model, int]]:
    """Return the models after a prefix of the calls, and the lengths, that agree with the frontiers there are.

    There may be several, because writes move none.
    """
    names = [name for name in client.collections() if name != BARRIER]
    collections = {name: client.load(name) for name in names}
    # What is sealed and not resolved holds since back, too.
    free = {
        name: not c.holds() and getattr(KEYED.get(name), "resolve", "") != "background"
        for name, c in collections.items()
    }
    frontiers = {
        name: (c.upper.time, c.since.time, free[name], frozenset(c.schema.value_names[1:]))
        for name, c in collections.items()
    }
    prefixes = [(before.after(list(asked[:n])), n) for n in range(acknowledged, len(asked) + 1)]
    fitting = [(model, n) for model, n in prefixes if _fits(frontiers, model)]
    if not fitting:
        raise Violation(
            f"the collections with their (upper, since, nobody holds it, columns), {frontiers}, agree with no prefix "
            f"of the calls. Those that were "
            f"acknowledged give {_shown(prefixes[0][0])}, and then came {list(asked[acknowledged:])}"
        )
    for model, _ in fitting:
        for name, (_, since, _, _) in frontiers.items():
            assert since is not None
            model.collections[name].since_seen = since
    return fitting


def _fits(frontiers: Frontiers, model: Model) -> bool:
    """Tell whether the model has these collections and frontiers."""
    if frontiers.keys() != model.collections.keys():
        return False
    for name, (upper, since, is_free, columns) in frontiers.items():
        held = model.collections[name]
        least = held.state.since if is_free else held.since_seen
        if columns != held.state.columns:
            return False
        if upper != held.state.upper or since is None or not least <= since <= held.state.since:
            return False
    return True


def _to_retry(asked: Sequence[Op]) -> list[Op]:
    """Return the writes among calls of unknown outcome; none if one of them may have replaced a collection."""
    if any(op.kind in ("create", "destroy") for op in asked):
        return []
    return [op for op in asked if op.kind in ("write", "multi")]


def _by_contents(
    client: persist.Client, teller: Teller, candidates: list[tuple[Model, int]], again: list[Op], top: int
) -> tuple[Model, int]:
    """Seal everything at top, and return the candidate that has the contents found then."""
    names = list(candidates[0][0].collections)
    for name in names:
        teller.collection(name).seal(top).result()
    contents = {name: _rows(teller.collection(name), top - 1) for name in names}
    for model, found in candidates:
        for op in again:
            model.apply(op)
        if contents == {name: held.as_of(top - 1) for name, held in model.collections.items()}:
            for name, held in model.collections.items():
                held.step("seal", top)
                _check_earlier_times(teller.collection(name), held)
            return model, found
    raise Violation(_difference(contents, [model for model, _ in candidates], top - 1))


def _check_earlier_times(collection: persist.Collection, held: Held) -> None:
    """Compare a collection with what it must hold at times that can be read: the first ones, and where it changed."""
    since = collection.since.time
    assert since is not None
    if since >= held.state.upper:
        return
    changed = [time for time in sorted({time for *_, time, diff in held.updates if diff > 0}) if time >= since]
    for time in sorted({since, *changed[:1], *changed[-2:]}):
        if (found := _rows(collection, time)) != held.as_of(time):
            raise Violation(f"{collection.name} holds {found} as of {time}, and should hold {held.as_of(time)}")


def _rows(collection: persist.Collection, as_of: int) -> dict[tuple[int, str], int]:
    """Return how many rows of each operation a collection holds, and its ghosts, as `Held.as_of` does.

    Checks that each row is there once and none is foreign, and that columns which came later have their defaults.
    """
    table = collection.snapshot(as_of=as_of, form="diff").to_arrow()
    for name in (each for each in table.column_names if each.startswith("x")):
        if wrong := {*table[name].to_pylist()} - {int(name[1:])}:
            raise Violation(f"{collection.name} has {wrong} in the column {name!r}, whose default is its number")
    keys, diffs = table["k"].to_numpy(), table["_diff"].to_numpy()
    if (diffs != 1).any():
        raise Violation(f"{collection.name} has rows more than once: keys {keys[diffs != 1][:10]}")
    found = {(number, "ghost"): 1 for number in (-1 - keys[keys < 0]).tolist()}
    keys = keys[keys >= 0]
    numbers, counts = np.unique(keys // ROWS_MAX, return_counts=True)
    last = np.array([(keys[keys // ROWS_MAX == n] % ROWS_MAX).max() for n in numbers])
    if (last + 1 != counts).any():
        raise Violation(f"{collection.name} has parts of the operations {numbers[last + 1 != counts]}")
    return found | {(n, "rows"): count for n, count in zip(numbers.tolist(), counts.tolist(), strict=True)}


def _difference(contents: dict[str, dict[Any, int]], models: Sequence[Model], as_of: int) -> str:
    lines = []
    for name, found in contents.items():
        least, most = (models[n].collections[name].as_of(as_of) for n in (0, -1))
        if lost := {n: r for n, r in least.items() if found.get(n) != r}:
            lines.append(f"{name}: of {lost} (operation: rows) there is { {n: found.get(n, 0) for n in lost} }")
        if foreign := {n: r for n, r in found.items() if n not in most}:
            lines.append(f"{name}: nobody asked for {foreign}")
    return "; ".join(lines) or f"{contents} agrees with no prefix of the calls: {[_shown(m) for m in models]}"


def _shown(model: Model) -> dict[str, tuple[int, int]]:
    return {name: (held.state.upper, held.state.since) for name, held in model.collections.items()}
