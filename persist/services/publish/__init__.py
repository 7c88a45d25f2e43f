"""Publishes collections: contents as of a sealed time become a table in the format of other programs, without copying.

Promises: a version of a table is exactly a snapshot, and names its time; files of a version stay until two later
versions exist and the grace period is over, despite compaction; every visible version is recorded in the log.
"""

from persist.services.publish.catalog import CatalogReader, IcebergCatalog, NotListed
from persist.services.publish.planning import REPLACES
from persist.services.publish.publication import (
    Published,
    delete_abandoned,
    list_published,
    make_format,
    parse_schedule,
    publish,
    publish_together,
    register_publishing,
    unpublish,
)
