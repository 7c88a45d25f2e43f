"""Operators at work: each takes batches of updates, and gives the batches by which its result changes.

A join keeps nothing of its own: each of its inputs is an arrangement (`arrange`), whose batches lie in a spine
(`persist.compute.dataflow.state.spine`), and operators with the same key share it. A reduction keeps what it gave, too.
"""
