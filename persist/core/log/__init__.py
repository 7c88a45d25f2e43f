"""The bytes of the log: frames, records, part lists, and the creation of a record at the next seqno.

Promises: what is read here is exactly what somebody committed, or it is an error that names the object; a record is
created once, at one seqno, whoever else tries, and a lost answer is resolved by looking at the slot. `kinds` is
a namespace: what a record may do is `kinds.Seal`, `kinds.Append` and so on.
"""
