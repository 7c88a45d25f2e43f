"""The bytes of the log: frames, records, part lists, and the creation of a record at the next seqno.

Promises: a read returns exactly the committed bytes, or an error that names the object. A record is created once, at
one seqno. If the answer to its creation is lost, a read of the slot shows what happened. `kinds` is a namespace of
mutations: `kinds.Seal`, `kinds.Append` and so on.
"""
