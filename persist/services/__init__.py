"""What looks after whole locations: fsck, backup, erase, publish and serve."""
