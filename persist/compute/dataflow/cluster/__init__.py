"""One refresh of a program by the tasks of a cluster, which read its sources. Its outputs are one commit.

Promises: the outputs equal those of a running program, and no task holds more than its share of a stream.
"""
