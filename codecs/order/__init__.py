"""Order: how rows are compared, sorted, searched, consolidated and summed, for every supported type.

Promises: one total order for all of it, NULL and NaN last; sums are exact, or an error.
"""
