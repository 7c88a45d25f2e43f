"""Operators of a running program: each turns batches of updates into the batches that change its result.

A join keeps no state. Each of its inputs is an arrangement (`arrange`) with batches in a spine
(`persist.compute.dataflow.state.spine`), which all operators with the same key share. A reduction keeps its output.
"""
