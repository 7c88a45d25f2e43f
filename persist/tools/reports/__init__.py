"""Reports on a location, which the commands and the page display.

Promises: a report reads no data, prints nothing and writes nothing.
"""
