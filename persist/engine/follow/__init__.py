"""One client's copy of the state: opened from a checkpoint, and kept up to date from the log.

Promises: a copy is always the state at one seqno, and knows how old it may be. A checkpoint contains nothing that
the log before it does not determine.
"""
