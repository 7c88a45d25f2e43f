"""Order: how rows are compared, sorted, searched, consolidated and summed, for every supported type.

Promises: there is one total order, NULL and NaN last; sums are exact, or an error.
"""
