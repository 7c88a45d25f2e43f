"""Publishing: what a collection holds as of a sealed time, as a table in the format of other programs, without copying.

Promises: a version of a table is exactly a snapshot, and says which; what a version names stays until two later ones
are there and the grace period is over, whatever is compacted; nothing is shown that the log does not keep.
"""

from persist.services.publish.catalog import IcebergCatalog
from persist.services.publish.planning import REPLACES
from persist.services.publish.publication import (
    Published,
    delete_abandoned,
    format_of,
    keep_tables_current,
    publish,
    publish_together,
    published_tables,
    unpublish,
    wanted_every,
)
