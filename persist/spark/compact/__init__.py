"""Compaction by the tasks of a cluster, with the plan, the checks and the commit of one process."""
