"""One client of one location: it follows the log, writes, holds, reads, compacts and looks after what is stored.

`engine.location` and `engine.collection` are the seam on which everything above stands.
"""
