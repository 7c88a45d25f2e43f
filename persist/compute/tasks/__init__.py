"""Tasks for any engine: they follow a collection exactly, and commit their work exactly once.

Promises: every plan and every reader gets the same updates between two offsets. A permanent hold keeps the updates
that a stopped query has not read. A batch is visible only after its record, and a repeated batch adds nothing.
This package does not depend on the engine that runs the tasks.
"""
