"""Typed values and Parquet batches to bytes and back: columns, never time or the log.

Promises: what is encoded decodes to equal values, and equal values to equal bytes of the descriptor. Bytes are verified
against a checksum before use, and take no more memory than their descriptor states.
"""
