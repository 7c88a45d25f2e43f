"""Compaction makes reads cheap and destroys deleted data: keyframes, merges, and their parts.

Promises: the contents at every readable time stay the same; if two compactors do the same work, the second one deletes
its output.
"""

from persist.engine.compact.compactor import CompactionReport, Compactor, release_unused_memory
from persist.engine.compact.eraser import ErasedRecords, PartEraser, drop_deletions, load_events_schema
from persist.engine.compact.planner import LEVEL_BYTES, choose_next_work, must_destroy
from persist.engine.compact.rewriter import LocalPartMaker, MadeRun, PartMaker, Rewrite, RunPiece
