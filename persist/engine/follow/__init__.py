"""One client's copy of the state: opened from a checkpoint, kept up to date by reading the log.

Promises: a copy is always the state at some seqno, never a mixture; it knows how old it may be; a checkpoint holds
nothing that cannot be derived from the log before it.
"""
