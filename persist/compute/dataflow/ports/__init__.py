"""Inputs and outputs of a program: inputs in memory, stored sources, and stored outputs.

Promises: a source returns each update of its collection once. All outputs of a step are one commit. An output raises an
error if its collection differs from what the program wrote.
"""
