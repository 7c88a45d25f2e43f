"""The frame around every JSON object on storage: a kind, a format version and a checksum.

`docs/inside/format.md` ("JSON objects") has its form, which stays the same in every format version. The checksum comes
last so that it can be checked over raw bytes before anything is parsed, and the whole stays one line of JSON that any
tool can read. The checksum is verified before the version is read: damaged bytes are `CorruptBlob` and never mistaken
for a newer version.

A location's format number is that of its newest record (`persist.core.state_rules.state.State.format`). A writer uses
this number for all objects, not that of its own release, so that older clients can work beside newer ones. The
first record that needs a greater number raises it: an `Upgrade`, or a kind with a greater `Kind.came_with`. From there
on, older clients stop with `IncompatibleVersion`. Rejected: `FORMAT` in all objects, as in earlier releases: the first
write of a new release locked out all others.
"""

import re
import threading
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

import msgspec
import xxhash

from persist.blob.errors import CorruptBlob, IncompatibleVersion, MissingBlob
from persist.blob.layers.cache import get_checked
from persist.blob.protocol import Blob, is_remote

FORMAT = 14
FORMAT_MIN = 6  # The least number that is written: the next record raises a lower one to this.
MADE_AGAIN = (
    "`persist fsck --repair LOCATION` makes it again from the log, if that still holds all that is needed, and says so "
    "if not; then restore it from a copy"
)

_OPEN = b',"checksum":"'
_CLOSE = b'"}\n'
_DIGEST_CHARS = 32
# The messages of msgspec about an unknown member of a struct, and about an unknown kind.
_UNKNOWN = re.compile(r"^Object contains unknown field|^Invalid value '[^']*' - at `[^`]*\.kind`$")
_TAIL_BYTES = len(_OPEN) + _DIGEST_CHARS + len(_CLOSE)


class Framed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="persist"):
    """The base of stored JSON objects with a `tag` and a checksum."""

    format: int = FORMAT


F = TypeVar("F", bound=Framed)
T = TypeVar("T")

_decoders: dict[type, "msgspec.json.Decoder[Any]"] = {}
_making_decoder = threading.Lock()


class BlobRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pointer to a blob, with the size and checksum of its bytes."""

    blob: str
    bytes: int
    checksum: str


class _Head(msgspec.Struct):
    """The first fields of a framed object: its kind and format."""

    persist: str
    format: int


def encode_framed(value: Framed) -> bytes:
    """Encode a value as one line of JSON with a checksum."""
    body = msgspec.json.encode(value)[:-1]
    return b"".join((body, _OPEN, _compute_checksum(body), _CLOSE))


def decode_framed(data: bytes, kind: type[F], key: str) -> F:
    """Decode data that was read from the blob `key`.

    Raises:
        CorruptBlob: data is not a whole, undamaged object of that kind.
        IncompatibleVersion: data is undamaged, but of a newer format version, or has an unknown member or kind of
        mutation.
    """
    body = _verify_body(data, key) + b"}"
    try:
        head = get_decoder(_Head).decode(body)
        if head.format > FORMAT:
            raise IncompatibleVersion(key, head.format, FORMAT)
        if head.format < 1:
            raise CorruptBlob(key, f"it has the impossible format version {head.format}")
        return get_decoder(kind).decode(body)
    except msgspec.ValidationError as error:
        if _UNKNOWN.search(str(error)):  # The bytes are undamaged, so a copy would not help.
            raise IncompatibleVersion(key, head.format, FORMAT, f"{error}") from error
        raise CorruptBlob(key, f"it is not a valid {kind.__name__.lower()}: {error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptBlob(key, f"it is not a valid {kind.__name__.lower()}: {error}") from error


def read_intact_kind(data: bytes) -> str | None:
    """Return an undamaged object's kind, also of a later format; None otherwise."""
    try:
        return msgspec.json.decode(_verify_body(data, "") + b"}", type=_Head).persist
    except (CorruptBlob, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def store_framed(blob: Blob, prefix: str, value: Framed) -> BlobRef:
    """Store value under prefix and its checksum; return a pointer."""
    pointer, data = encode_object(prefix, value)
    blob.set(pointer.blob, data)
    return pointer


def encode_object(prefix: str, value: Framed) -> tuple[BlobRef, bytes]:
    """Return what `store_framed` would store: the pointer and the bytes."""
    data = encode_framed(value)
    checksum = xxhash.xxh3_128_hexdigest(data)
    return BlobRef(blob=f"{prefix}{checksum}.json", bytes=len(data), checksum=checksum), data


def make_pointer(key: str, data: bytes) -> BlobRef:
    """Return the pointer to a blob with these bytes."""
    return BlobRef(blob=key, bytes=len(data), checksum=xxhash.xxh3_128_hexdigest(data))


def get_framed(blob: Blob, ref: BlobRef, kind: type[F]) -> F:
    """Read and decode the object that a pointer names.

    Raises MissingBlob, CorruptBlob: the object is missing or damaged.
    """

    def check(data: bytes) -> F:
        checksum = xxhash.xxh3_128_hexdigest(data)
        if len(data) != ref.bytes or checksum != ref.checksum:
            raise CorruptBlob(
                ref.blob,
                f"it has {len(data)} bytes with checksum {checksum}, and {ref.bytes} bytes with checksum "
                f"{ref.checksum} belong there",
            )
        return decode_framed(data, kind, ref.blob)

    value = get_checked(blob, ref.blob, ref.bytes, check)
    if value is None:
        reason = f"it is missing, and {ref.bytes} bytes with checksum {ref.checksum} belong there"
        is_derived = kind.__struct_config__.tag in ("state", "directory")
        raise MissingBlob(ref.blob, reason, MADE_AGAIN) if is_derived else MissingBlob(ref.blob, reason)
    return value


def fetch_framed(blob: Blob, refs: Sequence[BlobRef], kind: type[F], pool: Executor | None) -> list[tuple[BlobRef, F]]:
    """Read several objects by their pointers; in parallel from a remote store."""
    if pool is None or len(refs) < 2 or not is_remote(blob):
        return [(ref, get_framed(blob, ref, kind)) for ref in refs]
    return [*zip(refs, pool.map(lambda ref: get_framed(blob, ref, kind), refs), strict=True)]


def get_decoder(kind: type[T]) -> "msgspec.json.Decoder[T]":
    """Return the JSON decoder of a type, created under a lock.

    msgspec 0.22 analyses a Struct on first use, and releases the GIL meanwhile. A second thread that uses the
    unfinished result crashes the process.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        with _making_decoder:
            decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder


def _verify_body(data: bytes, key: str) -> bytes:
    """Return data without its frame, after verifying the checksum."""
    tail = data[-_TAIL_BYTES:]
    if not (len(data) > _TAIL_BYTES and tail.startswith(_OPEN) and tail.endswith(_CLOSE)):
        raise CorruptBlob(key, f"its {len(data)} bytes do not end in a checksum, so it was cut short or overwritten")
    body = data[:-_TAIL_BYTES]
    stored, computed = tail[len(_OPEN) : -len(_CLOSE)], _compute_checksum(body)
    if stored != computed:
        raise CorruptBlob(
            key,
            f"checksum {computed.decode()} of its bytes differs from the stored {stored.decode(errors='replace')}",
        )
    return body


def _compute_checksum(body: bytes) -> bytes:
    """Return the checksum of a body, as the frame has it."""
    return xxhash.xxh3_128_hexdigest(body).encode()
