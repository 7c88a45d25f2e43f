"""Batch writes by Spark: tasks upload parts, the driver commits one record.

Promises: all of a write is in one record, or nothing is; tasks that are tried again count once.
"""
