"""Order: how rows are compared, sorted, searched, consolidated and summed, for every supported type."""
