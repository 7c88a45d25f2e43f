"""Messages of change data capture, as raw JSON, become events: Debezium's, Maxwell's and Canal's.

Promises: each good message becomes what it says, in order; each bad one is named with its reason; nothing is guessed
that a message or the caller could say. Pure functions of columns, vectorised through `pyarrow.json`.
"""

from persist.upsert.envelopes.assembly import Events
from persist.upsert.envelopes.binlog import canal, maxwell
from persist.upsert.envelopes.debezium import debezium
from persist.upsert.envelopes.plain import plain

__all__ = ["Events", "canal", "debezium", "maxwell", "plain"]
