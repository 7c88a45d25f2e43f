"""Flowing in: folders of files, databases and topics become collections, each change exactly once.

Promises: what a source says and how far it was read are one commit, so that nothing is lost or taken twice, whoever is
killed when; a source hears that something is durable only after it is; memory is bounded by a batch, so a slow store
slows the source down. Where a source has positions of its own, a position is the time, and `upper` is where to go on.
No password is in a message, a log or a location.
"""
