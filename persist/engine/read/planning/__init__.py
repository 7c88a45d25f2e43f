"""Plans of reads: the keyframe and the parts from which a snapshot is read, and the slices of a scan.

Promises: a plan names immutable parts, so a later read of it returns the same rows.
"""
