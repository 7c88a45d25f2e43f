"""Positions in the partitions of topics, as properties that a commit changes with its rows.

ingest.next TOPIC     JSON: the next offset by partition, null for a partition that has none yet
ingest.newest_ms      the newest timestamp of all messages so far, in ms since 1970
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from persist.connect.ingest.kafka.topics import Place, Poll

NEXT = "ingest.next "
NEWEST = "ingest.newest_ms"


@dataclass(frozen=True, slots=True)
class Positions:
    """The next offset of each partition, and the newest timestamp before these, or -1."""

    next: Mapping[Place, int] = field(default_factory=dict)
    newest_ms: int = -1

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> "Positions":
        """Read the positions from the properties of a collection."""
        offsets_by_place: dict[Place, int] = {}
        for name, text in properties.items():
            if name.startswith(NEXT):
                topic, offsets = name.removeprefix(NEXT), msgspec.json.decode(text, type=list[int | None])
                offsets_by_place |= {(topic, at): offset for at, offset in enumerate(offsets) if offset is not None}
        return cls(offsets_by_place, int(properties.get(NEWEST, -1)))

    @classmethod
    def of_rows(cls, rows: list[dict[str, Any]]) -> "Positions":
        """Return the positions in the rows of a collection of offsets, which earlier versions kept."""
        newest = [int(row["newest"].timestamp() * 1000) for row in rows if row["newest"] is not None]
        return cls({(row["topic"], row["partition"]): row["next"] for row in rows}, max(newest, default=-1))

    def after(self, poll: Poll) -> "Positions":
        """Return the positions after what a poll brought."""
        return Positions({**self.next, **poll.next}, max([self.newest_ms, poll.newest_ms]))

    def properties(self, topics: Collection[str]) -> dict[str, str]:
        """Return the properties of some topics."""
        offsets: dict[str, list[int | None]] = {topic: [] for topic in topics}
        for topic, partition in sorted(place for place in self.next if place[0] in offsets):
            of_topic = offsets[topic]
            of_topic += [None] * (partition - len(of_topic))
            of_topic.append(self.next[topic, partition])
        properties = {NEXT + topic: msgspec.json.encode(next_).decode() for topic, next_ in offsets.items()}
        return properties | {NEWEST: str(self.newest_ms)}
