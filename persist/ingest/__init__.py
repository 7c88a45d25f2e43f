"""Flowing in: folders of files, databases and topics become collections, each change exactly once.

Promises: what a source says and how far it was read are one commit, so that nothing is lost or taken twice, whoever is
killed when; a source hears that something is durable only after it is; memory is bounded by a batch, so a slow store
slows the source down. Where a source has positions of its own, a position is the time, and `upper` is where to go on.
No password is in a message, a log or a location.
"""

from typing import TYPE_CHECKING

from persist.late_names import late_names

if TYPE_CHECKING:
    from persist.ingest.driver import Ingested, check_no_options, checked, described, ingest
    from persist.ingest.kafka_config import Brokers, brokers_at
    from persist.ingest.pg_database import PgAddress, one_line
    from persist.ingest.row_casts import CastTable, Misfits, cast_each, cast_rows, cast_texts, fitting
    from persist.ingest.row_files import check_columns, misfit_error, names_in, pieces_of
    from persist.ingest.row_formats import BY_SUFFIX, READ, RowFile
    from persist.ingest.row_types import types_of
    from persist.ingest.source import BEHIND, SOURCE, Batch, Change, Run, Source, SourceMoved, Target

_SOURCE = ("BEHIND", "SOURCE", "Batch", "Change", "Run", "Source", "SourceMoved", "Target")
_DRIVER = ("Ingested", "check_no_options", "checked", "described", "ingest")
_PG_DATABASE = ("PgAddress", "one_line")
_CASTS = ("CastTable", "Misfits", "cast_each", "cast_rows", "cast_texts", "fitting")
_FILES = ("misfit_error", "check_columns", "names_in", "pieces_of")
_FORMATS = ("BY_SUFFIX", "READ", "RowFile")
__all__ = ["Brokers", "brokers_at", "types_of", *_CASTS, *_DRIVER, *_FILES, *_FORMATS, *_PG_DATABASE, *_SOURCE]
__getattr__ = late_names(
    __name__,
    {
        "driver": _DRIVER,
        "kafka_config": ("Brokers", "brokers_at"),
        "pg_database": _PG_DATABASE,
        "row_casts": _CASTS,
        "row_files": _FILES,
        "row_formats": _FORMATS,
        "row_types": ("types_of",),
        "source": _SOURCE,
    },
)
