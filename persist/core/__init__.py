"""The model of a location: vocabulary, the log's format, state and its rules, keyed rules, and expressions.

Promises: only `core.log` does I/O, on a store that its caller passes. All floors above use these words with these
meanings. Each module of this folder is a room of its own.
"""
