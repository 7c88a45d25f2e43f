"""Copies of whole locations: incremental backups, restores and moves, and the verification of a copy.

Promises: a copy is the location as it was after one record of its log, even while others write and collect garbage;
everything that a copy names exists before the copy can be opened; an interrupted copy resumes when it is called again.
"""

from persist.services.backup.copying import Copied, backup, copy
from persist.services.backup.proof import Verified, verify

__all__ = ["Copied", "Verified", "backup", "copy", "verify"]
