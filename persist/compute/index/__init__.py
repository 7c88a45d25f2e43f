"""Indexes: collections that keep a collection in a second order, for look-ups by columns that are not its key.

Promises: an index is a hint. A read through one has the same result as without; a missing or outdated index only makes
reads dearer. One record creates it, so it never exists in part.
"""

from persist.compute.index.indexes import IndexInfo, drop_index, is_indexable, list_indexed_columns, load_indexes
from persist.compute.index.lookups import PAYS, IndexPath, IndexScan, enable_index_reads, plan_paths
from persist.compute.index.maintenance import create_index, keep_indexes_current, refresh_indexes
