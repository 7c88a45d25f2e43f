"""The grammar of blob keys in a location.

`docs/inside/format.md` lists all keys. The name of an upload begins with the seqno that its writer thought was next:
by this number, garbage collection declares old uploads void (`persist.core.state_rules.location`).

Records with other names are refused, so no record makes a client read, write or delete a blob outside the folder of its
collection. A clone also has parts in the folders of other collections, which its entry in the directory lists
(`persist.core.state_rules.state.CollectionEntry.folders`).
"""

import re
import uuid
from collections.abc import Iterable, Iterator

import xxhash

from persist.blob.protocol import Blob, BlobEntry
from persist.codecs.part.part import Part
from persist.core.log.kinds import BringsParts, Clone, LeavesUnused, Publish

LOG, CHECKPOINTS, DIRECTORIES = "log/", "checkpoint/", "directory/"
STATES, PARTS, LISTS = "state/", "part/", "list/"
CLOCK_KEY = "gc/clock"

_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_UPLOAD = re.compile(
    r"(?:part|list)/(?P<collection>[0-9a-f]{32})/(?:metadata/)?(?P<seqno>[0-9]{20})"
    rf"(?:-[0-9a-f]{{32}}\.(?:parquet|json|avro)|/deletion_vector_{_UUID}\.bin)"
)
_SHOWN = re.compile(
    r"part/(?P<collection>[0-9a-f]{32})/(?:_delta_log/(?:[0-9]{20}\.(?:json|checkpoint\.parquet)|_last_checkpoint)"
    rf"|metadata/(?:v[0-9]+\.metadata\.json|version-hint\.text|[0-9]{{5,}}-{_UUID}\.metadata\.json))"
)

_STATE = re.compile(r"state/(?P<collection>[0-9a-f]{32})/(?P<seqno>[0-9]{20})-[0-9a-f]{32}\.json")
_DIRECTORY = re.compile(r"directory/(?P<seqno>[0-9]{20})-[0-9a-f]{32}\.json")
_PAGES = re.compile(r"directory/(?P<seqno>[0-9]{20})-(?P<checksum>[0-9a-f]{32})\.pages")
_SEQNO_LAST = 10**20 - 1


def check_keys(append: BringsParts) -> list[str]:
    """Check that a mutation's blobs are its collection's uploads; return their keys.

    The keys do not include parts that a clone shares with its source.
    """
    named = check_parts(append.collection, append.parts, get_shared_folders(append))
    keys = [key for key in named if get_second_part(key) == append.collection]
    if append.parts_in is not None:
        if not is_upload(append.parts_in.blob, append.collection):
            raise ValueError(_format_not_upload(append.parts_in.blob, append.collection))
        keys.append(append.parts_in.blob)
    if isinstance(append, Publish):
        keys += append.blobs
    for key in keys:
        if not is_upload(key, append.collection):
            raise ValueError(_format_not_upload(key, append.collection))
    return keys


def check_unused(mutation: LeavesUnused, folders: Iterable[str] = ()) -> None:
    """Raise ValueError unless the unused blobs are uploads to the collection's folders."""
    for key in mutation.unused:
        if not is_upload(key, mutation.collection, *folders):
            raise ValueError(_format_not_upload(key, mutation.collection))


def get_shared_folders(mutation: BringsParts) -> tuple[str, ...]:
    """Return the collections, sorted, whose uploads a new clone shares."""
    if not isinstance(mutation, Clone):
        return ()
    matches = (_UPLOAD.fullmatch(part.blob) for part in mutation.parts)
    return tuple(sorted({match["collection"] for match in matches if match is not None} - {mutation.collection}))


def check_parts(collection: str, parts: Iterable[Part], folders: Iterable[str] = ()) -> list[str]:
    """Check that parts are uploads of a collection; return keys of those not inline."""
    keys, uploaded_to = [], (collection, *folders)
    for part in parts:
        if bool(part.blob) == bool(part.inline):
            raise ValueError(f"a part of collection {collection} must have a blob or inline bytes, not both or neither")
        if part.blob:
            if not is_upload(part.blob, *uploaded_to):
                raise ValueError(_format_not_upload(part.blob, collection))
            keys.append(part.blob)
    return keys


def is_immutable(key: str) -> bool:
    """Return whether the blob at key never changes, and may be cached.

    This holds for parts, part lists and state objects, whose names are random or a checksum. Published tables have
    fixed names. The name of a checkpoint is reused if a location is emptied and created again at the same URL, or if a
    damaged checkpoint is rebuilt. A client reads a checkpoint only when it opens.
    """
    return key.startswith((PARTS, LISTS, STATES)) and _SHOWN.fullmatch(key) is None


def is_upload(key: str, *collections: str) -> bool:
    """Return whether key is an upload to one of these collections."""
    match = _UPLOAD.fullmatch(key)
    return match is not None and match["collection"] in collections


def is_table_key(key: str, collection: str) -> bool:
    """Return whether a key is a metadata file by which readers find a collection's table."""
    match = _SHOWN.fullmatch(key)
    return match is not None and match["collection"] == collection


def _format_not_upload(key: str, collection: str) -> str:
    """Return the message for a key that is not an upload's."""
    return f"{key[:200]!r} is not the name of an upload to collection {collection}"


def parse_upload_seqno(key: str) -> int | None:
    """Return the seqno in the key of an upload; None for other keys."""
    return _parse_seqno(_UPLOAD, key)


def _parse_seqno(pattern: re.Pattern[str], key: str) -> int | None:
    """Return the seqno in a key that matches the pattern, or None."""
    match = pattern.fullmatch(key)
    return None if match is None else int(match["seqno"])


def make_record_key(seqno: int) -> str:
    """Return the key of the record at seqno."""
    return f"{LOG}{seqno:020d}"


def parse_record_seqno(key: str) -> int | None:
    """Return the seqno in the key of a record; None for other keys."""
    digits = key.removeprefix(LOG)
    return int(digits) if digits.isdecimal() and make_record_key(int(digits)) == key else None


def list_records(blob: Blob, after: int = -1) -> Iterator[tuple[int, BlobEntry]]:
    """Yield the stored records after a seqno, oldest first."""
    listed = blob.list(LOG, make_record_key(after) if after >= 0 else None)
    # A seqno of more than 20 digits is listed in another place than it has among numbers.
    return (
        (seqno, entry) for entry in listed if (seqno := parse_record_seqno(entry.key)) is not None and seqno > after
    )


def make_checkpoint_key(seqno: int) -> str:
    """Return the key of the checkpoint after the record at seqno."""
    return f"{CHECKPOINTS}{_SEQNO_LAST - seqno:020d}-{seqno:020d}.json"


def parse_checkpoint_seqno(key: str) -> int | None:
    """Return the seqno in the key of a checkpoint; None for other keys."""
    digits = key.removeprefix(CHECKPOINTS)[21:41]
    return int(digits) if digits.isdecimal() and make_checkpoint_key(int(digits)) == key else None


def list_checkpoints(blob: Blob) -> Iterator[tuple[int, BlobEntry]]:
    """Yield the stored checkpoints with their seqnos, newest first.

    Other keys in the folder are skipped; they may belong to a location below this one.
    """
    return (
        (seqno, entry) for entry in blob.list(CHECKPOINTS) if (seqno := parse_checkpoint_seqno(entry.key)) is not None
    )


def make_part_key(collection: str, seqno: int) -> str:
    """Return a new key for a part whose upload begins at seqno."""
    return f"{PARTS}{collection}/{seqno:020d}-{uuid.uuid4().hex}.parquet"


def make_vectors_key(collection: str, seqno: int, size: int | None = None) -> tuple[str, uuid.UUID]:
    """Return a new key for deletion vectors, and the id in it.

    `size`: of the blob, below 2**32, for `parse_vectors_size`; None if it is not needed.
    """
    id_ = uuid.uuid4()
    if size is not None:
        id_ = uuid.UUID(int=id_.int >> 32 << 32 | size)
    return f"{PARTS}{collection}/{seqno:020d}/deletion_vector_{id_}.bin", id_


def parse_vectors_size(key: str) -> int | None:
    """Return the bytes of a vectors blob if its key has the size; otherwise None."""
    return int(key[-12:-4], 16) if key.endswith(".bin") else None


def make_manifest_key(collection: str, seqno: int) -> str:
    """Return a new key for a manifest of an Iceberg table."""
    return f"{PARTS}{collection}/metadata/{seqno:020d}-{uuid.uuid4().hex}.avro"


def get_table_root(collection: str) -> str:
    """Return the folder of a collection's parts, which is the root of its published tables."""
    return f"{PARTS}{collection}/"


def make_list_prefix(collection: str, seqno: int) -> str:
    """Return a part list's key, without the checksum at its end."""
    return f"{LISTS}{collection}/{seqno:020d}-"


def make_archive_prefix(collection: str, seqno: int) -> str:
    """Return a token archive's key, without the checksum at its end."""
    return f"{PARTS}{collection}/{seqno:020d}-"


def make_directory_prefix(seqno: int) -> str:
    """Return a directory object's key, without the checksum at its end."""
    return f"{DIRECTORIES}{seqno:020d}-"


def parse_directory_seqno(key: str) -> int | None:
    """Return the seqno of the checkpoint in the key of a directory object; None for other keys."""
    return _parse_seqno(_DIRECTORY, key)


def make_pages_key(seqno: int, data: bytes) -> str:
    """Return the key of directory pages with these bytes."""
    return f"{make_directory_prefix(seqno)}{xxhash.xxh3_128_hexdigest(data)}.pages"


def parse_pages_seqno(key: str) -> int | None:
    """Return the seqno of the checkpoint in the key of directory pages; None for other keys."""
    return _parse_seqno(_PAGES, key)


def make_state_prefix(collection: str, seqno: int) -> str:
    """Return a state object's key, without the checksum at its end."""
    return f"{STATES}{collection}/{seqno:020d}-"


def parse_state_collection(key: str) -> str | None:
    """Return the collection in the key of a state object; None for other keys."""
    match = _STATE.fullmatch(key)
    return None if match is None else match["collection"]


def parse_state_seqno(key: str) -> int | None:
    """Return the seqno of the checkpoint in the key of a state object; None for other keys."""
    return _parse_seqno(_STATE, key)


def get_second_part(key: str) -> str:
    """Return the second segment of a key, such as its collection's id."""
    return key.split("/")[1]
