"""A program as data: nodes, their columns and types, and what rewrites a plan without a change of its results.

Promise: a plan is checked when it is built, so that a program which opens has no column or type that is missing.
"""
