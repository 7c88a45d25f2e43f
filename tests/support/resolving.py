"""Resolving events without all else that compaction does."""

import persist


def resolve_events(collection: persist.Collection) -> bool:
    """Turn the events of a keyed collection up to its upper into updates; return whether there were any."""
    handle = collection.handle
    return handle.engine.writer("resolve").resolver.resolve(handle.id, handle.name, handle.machine)
