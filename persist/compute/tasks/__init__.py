"""Tasks of any engine: they follow a collection exactly, and commit their work exactly once.

Promises: the updates between two offsets are the same whenever they are planned and whoever reads them. A permanent
hold keeps what a stopped query has not read yet. Nothing is visible before the record of a batch; a batch that is run
again adds nothing. The room knows nothing of the engine that runs the tasks.
"""
