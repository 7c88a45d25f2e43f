"""The command line of `persist`.

Promises: it stands on the public API only; a user's mistake gives a message and an exit status, never a traceback.
"""
