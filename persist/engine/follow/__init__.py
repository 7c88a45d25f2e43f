"""One client's copy of the state: opened from a checkpoint, and kept up to date from the log.

Promises: a copy is always the state at one seqno, and knows how old it may be. The log before a checkpoint determines
its contents.
"""
