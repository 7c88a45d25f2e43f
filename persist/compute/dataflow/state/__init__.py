"""State of operators: spines of batches by key, updates that wait for their time, and ranked records.

Promises: each step does a bounded amount of work on its state. State beyond the memory budget lies in mapped files.
"""
