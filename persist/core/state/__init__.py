"""The pure rules: what a record does to the state of a location, and which records are refused.

Promises: the state is a function of the log alone. Nothing here writes, reads a clock or draws a random number;
every rule about what may be committed is checked here and nowhere else.
"""
