"""One refresh of a program by the tasks of a cluster: they read the contents and new updates of its sources; one
commit.

Promises: the outputs equal those of a running program, and no task holds more than its share of a stream.
"""
