"""The examination of a location: everything is read, replayed and compared, and nothing is believed.

Promises: an examination changes nothing; a repair touches only what the log implies.
"""
