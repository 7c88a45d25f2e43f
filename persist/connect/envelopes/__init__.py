"""Converts messages of change data capture, as raw JSON, to events: Debezium's, Maxwell's and Canal's.

Each good message becomes its events, in order; each bad one is reported with its reason; missing information is an
error. Pure functions of columns, vectorised through `pyarrow.json`.
"""

from persist.connect.envelopes.assembly import Events
from persist.connect.envelopes.binlog import canal, maxwell
from persist.connect.envelopes.debezium import debezium
from persist.connect.envelopes.json_maps import restore_maps
from persist.connect.envelopes.json_numbers import NumberGuess, infer_exact_fields
from persist.connect.envelopes.json_rows import (
    describe_error,
    encode_mixed_members,
    find_suspects,
    merge_in_order,
    parse,
    read_separately,
)
from persist.connect.envelopes.messages import Unreadable, decode_base64
from persist.connect.envelopes.plain import plain

__all__ = [
    "Events",
    "NumberGuess",
    "Unreadable",
    "canal",
    "debezium",
    "decode_base64",
    "describe_error",
    "encode_mixed_members",
    "find_suspects",
    "infer_exact_fields",
    "maxwell",
    "merge_in_order",
    "parse",
    "plain",
    "read_separately",
    "restore_maps",
]
