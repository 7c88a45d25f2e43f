"""The pure rules: the effect of each record on the state of a location, and the records that are refused.

Promises: the state is a function of the log alone. This package does no I/O, and uses no clock or random numbers. Only
this package checks the rules of commits.
"""
