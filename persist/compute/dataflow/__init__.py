"""Dataflow: derived collections that keep themselves up to date; see `docs/dataflow.md`.

Promise to those above: what a program's output holds at a time is what its definition gives on its inputs at that time;
an output is complete, and sealed, as far as the inputs it depends on are; all outputs of a step are one commit.
"""
