"""Encodes typed columns as Parquet bytes, and decodes them; it does not depend on the log.

Promises: encoded values decode to equal values, and equal values have equal bytes in a descriptor. Bytes are verified
against a checksum before use, and take no more memory than their descriptor states.
"""
