"""The stores themselves: a folder, S3, the memory of this process, and whatever fsspec knows.

Promises: each is a `Blob` that passes the shared conformance suite; its errors distinguish "did not happen" from
"unknown".
"""
