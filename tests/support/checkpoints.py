"""Waits for what a client does on its own after a commit."""

import persist


def wait_for_checkpoint(client: persist.Client) -> None:
    """Return when no checkpoint is under way: a commit has begun one, if it was due, before it was acknowledged."""
    client.engine.writer("wait").committer.groups.checkpointing.wait()
