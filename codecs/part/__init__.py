"""Parts: sorted updates as Parquet files, their descriptors, and minimal reads of them.

Promises: every written part passes the reader's checks; no byte of a file is used before its checksum is verified.
"""
