"""What is true: the vocabulary, the format of the log, the state and its rules, keyed rules, and expressions.

Promises: nothing here does I/O but `core.log`, whose callers pass the store. Everything above agrees on these words.
Each module that lies here is a room of its own.
"""
