"""Work on whole locations: fsck, backup, erase, publish and serve."""
