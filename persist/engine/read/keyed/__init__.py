"""What keys hold: waiting events worked out, tombstones that nothing needs, and what keys held at which time.

Promises: resolving and reading give the same; memory is bounded by slices of the key space.
"""
