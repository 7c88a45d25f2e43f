"""From what callers ask to records of the log: operations, groups of them, uploads, and the futures that answer.

Promises: operations of a client are applied in call order; what a future says has happened is durable; a rejected
operation fails alone, and whatever is uncertain is resolved from the log before anybody is told. What a retry may
assume is in `persist.core.state.annotations`.
"""
