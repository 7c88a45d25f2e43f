"""Tables that are kept current: by whoever writes to the location, in the background, or by `Client.maintain`.

A table remembers how often it is to have a version: after each seal, with each keyframe, or at least so long after the
version before. When a client looks after a collection, it publishes what is due. Of several that do so at once, one
makes the version, and the others find it there. The age of a version is that of what shows it, as the store dates it.
"""

import re
import weakref

from persist.engine import Engine, handle_on
from persist.errors import InvalidUsage
from persist.publish.publication import format_of, publish
from persist.state import CollectionState, Publication, last_sealed

UNITS_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_SPAN = re.compile(rf"([1-9][0-9]{{0,8}}) ({'|'.join(UNITS_S)})s?")


def wanted_every(every: str | None) -> dict[str, str]:
    """Return the option that lets a table be kept current.

    Raises:
        InvalidUsage: every is nothing that a table can follow.
    """
    if every is None:
        return {}
    if every not in ("seal", "keyframe") and (not isinstance(every, str) or _SPAN.fullmatch(every) is None):
        raise InvalidUsage(f'every={every!r} is nothing to follow: give "seal", "keyframe", or a span as "10 minutes"')
    return {"every": every}


def keep_tables_current(engine: Engine) -> None:
    """Let a client that writes publish what is due, in the collections that it looks after."""
    # The thread that does so must not keep the client alive.
    held = weakref.ref(engine)

    def look_after(contents: CollectionState) -> None:
        alive = held() if contents.published else None
        if alive is not None:
            publish_due(alive, contents)

    engine.writer("publish").compaction.also = look_after


def publish_due(engine: Engine, contents: CollectionState) -> None:
    """Publish the tables of a collection that are to have a newer version by now."""
    for table, known in contents.published.items():
        time = _due(engine, contents, table, known)
        if time is not None:
            handle = handle_on(engine, contents, contents.schema)
            publish(handle, format_of(handle, table, known.options), time, options=known.options)


def _due(engine: Engine, contents: CollectionState, table: str, known: Publication) -> int | None:
    """Return as of which time a table is to be published now; None if it is current."""
    every = known.options.get("every", "")
    if every == "keyframe":
        newest = max((keyframe.as_of for keyframe in contents.keyframes), default=-1)
        return newest if newest > known.as_of else None
    time = last_sealed(contents)
    if time <= known.as_of:
        return None
    span = _SPAN.fullmatch(every)
    if span is None:
        return time if every == "seal" else None
    shown_at = format_of(handle_on(engine, contents, contents.schema), table, known.options).shown_at_s(known)
    is_old = shown_at is None or engine.clock.wall_ms() / 1000 - shown_at >= int(span[1]) * UNITS_S[span[2]]
    return time if is_old else None
