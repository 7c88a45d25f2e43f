"""Turns callers' operations into records of the log: groups, uploads, and futures.

Promises: the operations of a client are applied in call order. A resolved future is durable. A rejected operation fails
alone. The log resolves every uncertain outcome before a future resolves; `persist.core.state_rules.annotations`
describes what a retry may assume.
"""
