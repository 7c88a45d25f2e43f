"""How often the simulator draws each kind of step, against all others; what differs by the kind of an episode."""

WEIGHTS = {
    "write": 22,
    "write_bad": 1,
    "seal": 10,
    "allow_compaction": 4,
    "multi": 6,
    "destroy": 1.2,
    "evolve": 4,
    "snapshot": 9,
    "snapshots": 2,
    "backup": 0.3,
    "read": 8,
    "close_snapshot": 3,
    "changes": 4,
    "listen": 2,
    "subscribe": 2,
    "poll": 10,
    "close_feed": 1,
    "upper": 2,
    "since": 2,
    "collections": 1,
    "load": 2,
    "create_or_load": 4,
    "settle": 4,
    "open": 3,
    "close": 0.8,
    "crash": 0.8,
    "deliver": 1,
    "down": 0.5,
    "up": 2,
    "pass": 4,
    "hold": 3,
    "advance": 3,
    "release": 2,
    "holds": 1,
    "gc": 1.5,
    "maintain": 3,
}
FEATURE_WEIGHTS = {"compact": {"compact": 6.0}}
# Since must move on for history to be forgotten, and reads are closed for since to move on.
FLAT_OUT_WEIGHTS = {
    "allow_compaction": 9,
    "seal": 14,
    "close_snapshot": 9,
    "close_feed": 3,
    "release": 4,
    "destroy": 0.4,
}
KEYED_WEIGHTS = {"resolve": 4}
# Many records, so that there are many checkpoints, and several who collect what the older ones name.
COLLECTORS_WEIGHTS = {
    "write": 40,
    "seal": 14,
    "gc": 9,
    "compact": 6,
    "evolve": 1,
    "open": 1.5,
    "poll": 2,
    "changes": 1,
    "snapshot": 4,
    "hold": 1,
    "advance": 1,
    "pass": 5,
}
# Blobs that several collections name, and all that makes one of them give them up.
CLONES_WEIGHTS = {
    "clone": 9,
    "load": 5,
    "destroy": 2.5,
    "compact": 9,
    "gc": 5,
    "allow_compaction": 7,
    "close_snapshot": 6,
    "seal": 14,
    "pass": 6,
}
# Tables that keep blobs, and all that makes their collections give these up.
PUBLISHES_WEIGHTS = {
    "publish": 14,
    "unpublish": 1,
    "table": 8,
    "compact": 9,
    "gc": 6,
    "maintain": 4,
    "allow_compaction": 7,
    "close_snapshot": 6,
    "seal": 14,
    "pass": 6,
    "destroy": 0.6,
}
