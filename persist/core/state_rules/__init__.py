"""The pure rules: the effect of each record on the state of a location, and the records that are refused.

Promises: the state is a function of the log alone. Nothing here does I/O, reads a clock or draws a random number. The
rules of commits are checked here and nowhere else.
"""
