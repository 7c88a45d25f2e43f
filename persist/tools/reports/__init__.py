"""What a location says of itself, for people: the commands and the page ask for the same and show it differently.

Promises: no data is read; nothing is printed, and nothing written.
"""
