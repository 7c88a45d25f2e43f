"""Steps without state: they read only the past of touched keys, in this process or in tasks elsewhere.

Promises: a step writes what a running program writes, all outputs in one record. If a plan has no step, a running
program computes it, and the reason is reported.
"""
