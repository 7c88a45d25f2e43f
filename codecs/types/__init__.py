"""Types: which Arrow types a field may have, schemas and codecs, and Python values to columns and back.

Promises: a type that is accepted survives every way in and out; a schema is equal to what it was written as.
"""
