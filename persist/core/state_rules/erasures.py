"""Erasure: some records leave all times of a collection, and nothing else changes.

A sealed time reads the same for ever, and this is the one exception (rule 23). So it has its own kind of
record, and the collection remembers the time, the client, the number of updates and the reason, but not the records.

Whether a record is erased depends on its key and value alone. So each other record keeps all its updates, and its
multiplicity at every time. Parts with an erased record are rewritten without it (`persist.engine.compact.eraser`), and
one log record replaces them all, in history, keyframes and pending events. Invariants:

- runs and keyframes have the same times as before; empty ones are removed;
- results computed before the erasure are refused: compactions, resolutions and the like state how many erasures they
  have seen (`ExpectErasures`);
- pending events get new numbers, in their order, so that no earlier resolution is valid;
- published tables are removed, because erased records may be in them, in their metadata, and in parts that only they
  name.

Since, upper, holds and tags stay.
"""

from itertools import chain

import msgspec

from persist.core.errors import InvalidUsage, Superseded
from persist.core.log import kinds
from persist.core.log.fields import Keyframe, Numbers
from persist.core.state_rules.contents import CollectionState, Erasure, check_runs, resolve_numbers

ERASURES_KEPT = 1000
REASON_CHARS_MAX = 1000


def count_erasures(contents: CollectionState) -> int:
    """Return the number of erasures of a collection."""
    return contents.erasures[-1].number if contents.erasures else 0


def check_reason(reason: str) -> None:
    """Raise InvalidUsage unless a reason has 1 to `REASON_CHARS_MAX` characters."""
    if not (isinstance(reason, str) and len(reason.strip()) > 0 and len(reason) <= REASON_CHARS_MAX):
        raise InvalidUsage(
            f"reason={str(reason)[:80]!r} is not a text of 1 to {REASON_CHARS_MAX} characters: say why records are "
            'erased, and do not name the person: reason="request 17"'
        )


def apply_erasure(contents: CollectionState, step: kinds.Erase) -> CollectionState:
    """Apply an erasure, and check its list of unused blobs.

    Raises:
        Superseded: a part that it replaces does not exist any more, or it lists the wrong unused blobs.
        ValueError: no writer makes such a step.
    """
    after = replace_erased_parts(contents, step)
    if contents.named_blobs - after.named_blobs != set(step.unused):
        raise Superseded("other blobs become unused than this erasure expected: a compaction came first")
    return after


def list_blobs_unused_after_erasure(contents: CollectionState, step: kinds.Erase) -> tuple[str, ...]:
    """Return the blobs that an erasure leaves unused; raises as `apply_erasure`. It does not check `step.unused`."""
    return tuple(sorted(contents.named_blobs - replace_erased_parts(contents, step).named_blobs))


def replace_erased_parts(contents: CollectionState, step: kinds.Erase) -> CollectionState:
    """Return contents after an erasure, without a check of `step.unused`. Raises: as `apply_erasure`."""
    check_reason(step.reason)
    if step.updates < 0 or not 0 <= step.events <= len(step.parts):
        raise ValueError(f"it erases {step.updates} updates, and {step.events} of its parts hold events")
    first_event = contents.next_number + len(step.parts) - step.events
    new_parts = dict(enumerate(step.parts, contents.next_number))
    replaced = {number: resolve_numbers(names, contents.next_number) for number, names in step.replaced}
    if not {*contents.numbered, *contents.pending}.issuperset(replaced):
        raise Superseded("a part that this erasure replaces is not there any more: a compaction came first")
    used = sorted(chain.from_iterable(replaced.values()))
    if used != sorted(new_parts):
        raise ValueError("it brings parts that replace no part, or two")
    if any((number in contents.pending) != (n >= first_event) for number, names in replaced.items() for n in names):
        raise ValueError("it replaces updates by events, or events by updates")

    def remap_numbers(run: Numbers) -> Numbers:
        return tuple(chain.from_iterable(replaced.get(number, (number,)) for number in run))

    history = tuple(run for run in map(remap_numbers, contents.history) if run)
    keyframes = tuple(Keyframe(keyframe.as_of, remap_numbers(keyframe.parts)) for keyframe in contents.keyframes)
    in_use = {*chain.from_iterable(history), *chain.from_iterable(keyframe.parts for keyframe in keyframes)}
    all_parts = {**contents.numbered, **new_parts}
    numbered = {number: part for number, part in all_parts.items() if number in in_use}
    waiting = [{**contents.pending, **new_parts}[number] for number in remap_numbers(tuple(contents.pending))]
    if any(part.time_max < contents.resolved for part in waiting):
        raise Superseded("events that this erasure keeps pending have been resolved meanwhile")
    pending = dict(enumerate(waiting, contents.next_number + len(step.parts)))
    erasure = Erasure(count_erasures(contents) + 1, step.at_ms, step.by, step.updates, step.reason)
    result = msgspec.structs.replace(
        contents,
        numbered=numbered,
        history=history,
        keyframes=keyframes,
        pending=pending,
        next_number=contents.next_number + len(step.parts) + len(pending),
        inline_bytes=sum(len(part.inline) for parts in (numbered, pending) for part in parts.values()),
        published={},
        kept={},
        erasures=(*contents.erasures, erasure)[-ERASURES_KEPT:],
    )
    check_runs(result)
    return result
