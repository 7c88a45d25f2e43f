"""Rules that turn events by key into updates, as pure functions of columns.

Promises: the same events, arrivals and present rows result in the same updates, in any number of steps. Nothing here
does I/O or knows the log; `persist.engine.collection.keyed_events` reads, uploads and commits. The names that users
import are loaded at their first use.
"""
