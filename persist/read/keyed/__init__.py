"""What keys hold: waiting events worked out, tombstones that nothing needs, and what keys held at which time.

Promises: whoever resolves and whoever reads come to the same; memory is bounded by slices of the key space.
"""
