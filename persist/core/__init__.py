"""The model of a location: vocabulary, the log's format, state and its rules, keyed rules, and expressions.

Promises: only `core.log` does I/O, on a store that its caller passes. All layers above use its terms in the same
meanings. Each module of this folder stands alone.
"""
