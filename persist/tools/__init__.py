"""Tools for people: reports, the page, and the command line.

Promises: stored values are displayed, and never interpreted as markup or escapes.
"""
