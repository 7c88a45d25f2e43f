"""Tools for people: reports, the page, and the command line.

Promises: they display stored values, and never interpret them.
"""
