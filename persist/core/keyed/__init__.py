"""Rules that turn events by key into updates, as pure functions of columns.

Promises: the same events, arrivals and present rows result in the same updates, in any number of steps. This package
does no I/O and does not use the log; `persist.engine.collection.keyed_events` reads, uploads and commits. The names
that users import are loaded at their first use.
"""
