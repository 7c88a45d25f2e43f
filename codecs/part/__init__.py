"""Parts: sorted updates as Parquet files, their descriptors, and reading as little of them as is needed.

Promises: what is written passes the reader's checks; nothing of a file is believed before its checksum agrees.
"""
