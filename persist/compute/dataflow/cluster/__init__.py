"""A program computed by the tasks of a cluster: all that its sources hold and what is new, in one commit.

Promises: the outputs are what a running program writes, and no task holds more than its share of a stream.
"""
