"""Parts: sorted, consolidated updates as one Parquet file each, and their descriptors.

`docs/inside/format.md` defines the bytes of parts and batches, and their descriptors ("Parts").

Before it returns a row, a reader compares the length and the xxh3_128 of the whole file with the descriptor, or those
of the footer with the descriptor and of a row group with the footer. Then the columns and the number of rows must be as
expected, and the unpacked size must match the descriptor. `decode_part` and `decode_groups` do this. Page checksums are
written for readers that open the file alone; this package does not verify them, because it has verified all bytes.

`keys` and `stats` are hints for planning, which a reader may ignore, and each may be absent.

Even a tiny Parquet file takes 1.5 ms to write and check and 0.8 ms to read; a batch takes 0.05 ms and 0.03. But for
more than some hundred rows a batch becomes larger than a Parquet file, so only a few kilobytes are stored as a batch.
Reading a batch unpacks and copies nothing: the columns are views of the bytes, so they cannot take more memory than
these. The body is as long as the descriptor's `memory`, and Arrow's full validation checks every offset, count and text
against the buffers. Rejected: an IPC stream with its schema (twice as long, twice as slow, and its schema may
contradict that of the collection), and Arrow's compression (it saves nothing on so few bytes).

Rejected: Arrow IPC for all parts (larger, no statistics, read by fewer tools), page checksums instead of row-group
checksums (they omit the headers of pages), truncated string bounds (another rule for every reader, and such long keys
are rare).
"""

import struct
from typing import Annotated, TypeVar

import msgspec
import pyarrow as pa
import xxhash

from persist.blob.errors import CorruptBlob
from persist.codecs.evolution import Lift, make_lift
from persist.codecs.types.schema import DIFF, TIME_MAX, CollectionSchema

KEY_SAMPLES = (33, 17, 9, 5, 3, 2)
KEYS_BYTES_MAX = 1024
STATS_BYTES_MAX = 2048
GROUPS_MAX, GROUP_ROWS_MIN = 64, 1024
NO_KEYS = msgspec.Raw(b"null")
NO_STATS = msgspec.Raw(b"{}")
SINGLE = (0, 1, 0)  # The statistics of `_diff` of a part that is single.
_MESSAGE_PREFIX = struct.Struct("<Ii")  # The mark of an Arrow IPC message, and the length of its header.

T = TypeVar("T")
Content = bytes  # An alias, because a field called `bytes` hides the type: Python 3.14 resolves annotations late.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Time = Annotated[int, msgspec.Meta(ge=0, le=TIME_MAX)]
Scalar = None | bool | int | str  # A flat value as `scalars` writes it.
_Keys: "msgspec.json.Decoder[list[list[Scalar]] | None]" = msgspec.json.Decoder(list[list[Scalar]] | None)
_Stats: "msgspec.json.Decoder[dict[str, tuple[Scalar, Scalar, int]]]" = msgspec.json.Decoder(
    dict[str, tuple[Scalar, Scalar, int]]
)


class Footer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The end of a part, from its Parquet footer to the last byte: its length and xxh3_128."""

    bytes: Count
    checksum: str


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The descriptor of a part: what the log stores about it.

    A *stamped* part has one time for all rows, which only the descriptor has: in the file, the time is 0. `keys` and
    `stats` are most of a descriptor and few readers need them, so they are parsed at their use.
    """

    blob: str = ""
    inline: Content = b""
    bytes: Count
    rows: Count
    memory: Count
    checksum: str
    footer: Footer | None = None
    time_min: Time
    time_max: Time
    stamped: bool = False
    negatives: Count
    diff_sum: int
    schema: Annotated[int, msgspec.Meta(ge=1, le=2**31)] = 1
    keys_json: msgspec.Raw = msgspec.field(name="keys", default=NO_KEYS)
    stats_json: msgspec.Raw = msgspec.field(name="stats", default=NO_STATS)

    def __post_init__(self) -> None:
        if not (self.time_min <= self.time_max and self.rows > 0 and self.negatives <= self.rows):
            raise ValueError("a part has rows, ordered times, and no more negative diffs than rows")
        if self.stamped and self.time_min != self.time_max:
            raise ValueError("all rows of a stamped part have one time")
        if abs(self.diff_sum) > self.rows << 63:
            raise ValueError("the diffs of a part are int64")
        if bool(self.blob) == bool(self.inline) and self.blob:
            raise ValueError("a part is a blob or inline, not both")
        if self.blob and self.footer is None:
            raise ValueError("a part that is a blob is a Parquet file, and its footer is known")
        for name, size_max in (("keys_json", KEYS_BYTES_MAX), ("stats_json", STATS_BYTES_MAX)):
            raw: msgspec.Raw = getattr(self, name)
            if memoryview(raw).nbytes > size_max:
                raise ValueError(f"{name} of a part have at most {size_max} bytes")
            # The parsed value is a view that would keep the whole message in memory.
            msgspec.structs.force_setattr(self, name, raw.copy())

    @property
    def has_keys(self) -> bool:
        """Whether `keys` has entries, without parsing it."""
        return bytes(self.keys_json) != bytes(NO_KEYS)

    @property
    def keys(self) -> list[list[Scalar]] | None:
        """Some whole keys in order, including the first and the last; None without any.

        Raises CorruptBlob: the keys' JSON form is invalid.
        """
        keys = self._parse_json(self.keys_json, _Keys)
        if keys is not None and len(keys) not in {min(samples, self.rows) for samples in KEY_SAMPLES}:
            raise CorruptBlob(self.name, f"its descriptor samples {len(keys)} keys of {self.rows} rows, unlike writers")
        return keys

    @property
    def stats(self) -> dict[str, tuple[Scalar, Scalar, int]]:
        """Minimum, maximum and number of NULLs of some columns. Raises as `keys` does."""
        return self._parse_json(self.stats_json, _Stats) or {}

    def count_nulls(self, column: str, schema: CollectionSchema) -> int | None:
        """Return the number of NULLs in a column; None if unknown. Raises as `keys` does."""
        if self.schema != schema.version or schema.is_widened or (stats := self.stats.get(column)) is None:
            return None
        return stats[2]

    def _parse_json(self, raw: msgspec.Raw, decoder: "msgspec.json.Decoder[T]") -> T:
        """Decode an entry of the descriptor; raise CorruptBlob if it is malformed."""
        try:
            return decoder.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CorruptBlob(self.name, f"its descriptor is malformed: {error}") from error

    def make_lift(self, schema: CollectionSchema) -> Lift | None:
        """Return the conversion of the rows to a schema; None if unneeded.

        Raises CorruptBlob: the part's schema version does not exist.
        """
        if self.schema == schema.version and not schema.is_widened:
            return None
        try:
            return make_lift(schema, self.schema)
        except ValueError as error:
            raise CorruptBlob(self.name, str(error)) from error

    @property
    def footer_range(self) -> tuple[int, int]:
        """The bytes `[start, end)` of the footer in the blob.

        Raises CorruptBlob: the part has no footer, or the footer is longer than the blob.
        """
        if self.footer is None:
            raise CorruptBlob(self.name, "its descriptor has no footer, so it can only be read as a whole")
        size = self.footer.bytes
        if size > self.bytes:
            raise CorruptBlob(self.name, f"its descriptor says that {size} of its {self.bytes} bytes are the footer")
        return self.bytes - size, self.bytes

    def set_time(self, time: int) -> "Part":
        """Return a descriptor of the same blob, with all rows at `time`."""
        return msgspec.structs.replace(self, time_min=time, time_max=time, stamped=True)

    @property
    def as_stored(self) -> "Part":
        """The descriptor of the stored file: at time 0 if stamped."""
        return msgspec.structs.replace(self, time_min=0, time_max=0, stamped=False) if self.stamped else self

    @property
    def rows_id(self) -> str:
        """A cache key of the rows: checksum, and time if stamped."""
        return f"{self.checksum}@{self.time_min}" if self.stamped else self.checksum

    @property
    def is_plain(self) -> bool:
        """Whether every diff is 1."""
        return self.negatives == 0 and self.diff_sum == self.rows

    @property
    def is_single(self) -> bool:
        """Whether each key verifiably has at most one row after each update."""
        return self.stats.get(DIFF) == SINGLE

    def mark_single(self) -> "Part":
        """Mark the descriptor as single; if it becomes too large, statistics of the last columns are dropped."""
        stats: dict[str, tuple[Scalar, Scalar, int]] = {DIFF: SINGLE, **self.stats}
        while len(msgspec.json.encode(stats)) > STATS_BYTES_MAX:
            stats.popitem()
        return msgspec.structs.replace(self, stats_json=msgspec.Raw(msgspec.json.encode(stats)))

    @property
    def name(self) -> str:
        """The part's name in error messages."""
        return self.blob or "inline part"


def compute_checksum(data: bytes | memoryview) -> str:
    """Return the checksum of a part's bytes in the form of its descriptor."""
    return xxhash.xxh3_128_hexdigest(data)


def choose_sample_rows(rows: int, samples: int) -> list[int]:
    """Return evenly spaced sample positions in so many rows, including the first and the last."""
    return [choose_sample_row(rows, samples, i) for i in range(samples)]


def choose_sample_row(rows: int, samples: int, i: int) -> int:
    """Return the position of the i-th sampled row."""
    return i * (rows - 1) // (samples - 1) if samples > 1 else 0


def compute_max_groups(rows: int) -> int:
    """Return how many row groups a part with these rows may have."""
    return min(rows, GROUPS_MAX + rows // GROUP_ROWS_MIN)


def encode_batch(rows: pa.Table) -> bytes:
    """Encode one or more rows as an Arrow message."""
    (batch,) = rows.combine_chunks().to_batches()
    return batch.serialize().to_pybytes()  # type: ignore[no-any-return]


def decode_batch(data: bytes | memoryview, part: Part, schema: pa.Schema) -> pa.Table:
    """Decode an Arrow message; refuse it unless it matches the part's descriptor.

    Raises ValueError, pa.ArrowException, OSError: the message does not match the part, or contradicts itself.
    """
    message = pa.ipc.read_message(data)
    if message.type != "record batch":
        raise ValueError(f"it is an Arrow message of the kind {message.type!r}, and a record batch belongs there")
    if message.body.size != part.memory:
        raise ValueError(f"its body has {message.body.size} bytes, and its descriptor says memory {part.memory}")
    batch = pa.ipc.read_record_batch(message, schema)
    if batch.num_rows != part.rows:
        raise ValueError(f"it holds {batch.num_rows} rows, and its descriptor says {part.rows}")
    batch.validate(full=True)
    return pa.Table.from_batches([batch])


def measure_body(data: bytes | memoryview) -> int:
    """Return the length of a message's body: the memory of its columns in Arrow."""
    _, header = _MESSAGE_PREFIX.unpack_from(data)
    return len(data) - _MESSAGE_PREFIX.size - int(header)
