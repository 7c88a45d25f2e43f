"""What operators remember: spines of batches by key, updates that wait for their time, and ranked records.

Promise: each step does a bounded amount of work on its state, and state beyond the memory budget lies in mapped files.
"""
