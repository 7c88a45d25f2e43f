"""Batch writes by Spark: tasks upload parts, the driver commits one record."""
