"""One client of one location: it follows the log, writes, holds, reads, compacts and collects garbage.

`engine.location` and `engine.collection` are the seam between this floor and all floors above.
"""
