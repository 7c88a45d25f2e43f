"""What commits the work of many tasks exactly once: uploads by tasks, and one record by whoever plans them.

Promises: nothing is visible before the record; a batch or a write that is run again, after whatever failed, adds
nothing; tasks that fail, are killed or run twice leave at most blobs that no record names; what is rejected for good
is deleted, and what may have landed is left. The room knows nothing of the engine that runs the tasks.
"""
