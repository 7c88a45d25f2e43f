"""Saying that there is something new, and serving reads over Arrow Flight: always a hint, never a truth (rule 20).

Promises: without a server, behind it, or when it lies, answers are the same and only later; a writer never waits for
one; a client that does not read what it asked for keeps neither history nor others from anything.
"""
