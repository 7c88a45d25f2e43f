"""A running program: it builds operators from a plan, steps them in order, resumes from its outputs, and reports.

Promise: after a step, every output is complete up to the frontier that the step reports.
"""
