"""The stores: a folder, S3, and all file systems that fsspec knows.

Promises: each is a `Blob` that passes the shared conformance suite; its errors distinguish "did not happen" from
"unknown".
"""
