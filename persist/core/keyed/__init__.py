"""Keyed streams in, differential updates out: what becomes of events, as pure functions of columns.

Promises: the same events, arrivals and present rows give the same updates, whoever asks, when, and in however many
steps. Nothing here does I/O or knows the log; `persist.engine.collection.keyed_events` reads, uploads and commits.

The names that users import are loaded when one of them is used: a client that upserts needs none of them.
"""
