"""Services for whole locations: fsck, backup, erase, publish and serve."""
