"""Compaction by the tasks of a cluster, with the plan, the checks and the commit of one process.

Promises: what tasks make is what one process would make, and readers notice nothing.
"""
