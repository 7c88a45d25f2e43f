"""Flowing out: collections and views into databases, topics and files, each change exactly once.

Promises: what a sink got and how far it has come are one transaction of the target, so that nothing is lost or sent
twice, whoever is killed when; whoever reads the target sees whole times only, of all collections of the sink; a
permanent hold keeps history that was not sent yet; memory is bounded by a slice. No password is in a message or a log.
"""
