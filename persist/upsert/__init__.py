"""Keyed streams in, differential updates out: what becomes of events, as pure functions of columns.

Promises: the same events, arrivals and present rows give the same updates, whoever asks, when, and in however many
steps. Nothing here does I/O or knows the log; `persist.engine.upserting` reads, uploads and commits.
"""
