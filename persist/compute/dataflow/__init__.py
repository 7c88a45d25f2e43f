"""Dataflow: collections that a program derives and keeps up to date; see `docs/use/dataflow.md`.

Promises: an output holds at each time the program's result for its inputs at that time. An output is sealed as far as
its inputs are sealed. All outputs of a step are one commit.
"""
