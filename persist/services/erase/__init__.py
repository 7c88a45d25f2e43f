"""Erasing records from all times of a collection and of all that was made of it, and proof that they are gone.

Promises: one record of the log erases everywhere at once, so no reader sees half of it; what is not erased reads the
same as before; a process that dies leaves nothing half done, and calling again finishes, or the upkeep of any client;
`traces` never calls gone what an object of the store still holds. What lies outside the store is
not seen here, and said.
"""

from persist.services.erase.erasure import ErasureReport, erase, mentioned, mentions
from persist.services.erase.pending_erasures import settle_old
from persist.services.erase.traces import Trace, Traces, receipt_digest, traces

__all__ = ["ErasureReport", "Trace", "Traces", "receipt_digest"]
