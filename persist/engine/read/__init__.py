"""From a state and a time to rows: plans, scans, snapshots, changes, point reads and aggregates.

Promises: a plan names immutable parts, so reading it later gives the same rows; every blob is verified before one of
its rows is believed; memory is bounded by slices, not by the collection.
"""
