"""Erases records from all times of a collection and everything derived from it, and proves that they are gone.

Promises: one record of the log erases everywhere at once, so readers never see half of it; all other data reads as
before; if a process dies, another call or the upkeep of any client finishes the erasure; `traces` never misses an
object of the store that still contains erased data. Traces outside the store cannot be found, and the receipt says so.
"""

from persist.services.erase.erasure import ErasureReport, erase, find_mentions, format_mentions, select_records
from persist.services.erase.pending_erasures import complete_old
from persist.services.erase.traces import Trace, Traces, find_traces, receipt_digest

__all__ = ["ErasureReport", "Trace", "Traces", "receipt_digest"]
