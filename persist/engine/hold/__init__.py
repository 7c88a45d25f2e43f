"""Keeps history readable: one lease per client, and durable holds on collections.

Promises: while a claim is open, `since` stays where its reader needs it and its blobs are not deleted; a reader whose
lease has ended gets an error before any result.
"""

from persist.engine.hold.holds import ConsumerLeases, Hold, HoldInfo, LeasedHold, NamedHold
from persist.engine.hold.leases import Claim, Leases, WantedClaim, make_empty_claim
