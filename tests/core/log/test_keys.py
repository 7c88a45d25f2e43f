"""The grammar of blob keys: what it makes it also reads, and nothing else spells one."""

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from persist.blob.protocol import BlobEntry, MemoryBlob
from persist.codecs.part.stream import encode_parts
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.updates import to_updates
from persist.core.log import keys, kinds
from persist.core.log.framing import BlobRef
from tests.support.paths import ROOT

ID = "0123456789abcdef" * 2
INTS = CollectionSchema.of({"k": pa.int64()}, None)
SEQNOS = [0, 1, 15, 10**6, 2**63 - 1, 10**20 - 1]


@pytest.mark.parametrize("seqno", SEQNOS)
def test_a_name_says_the_seqno_that_it_was_made_of(seqno: int) -> None:
    assert keys.parse_record_seqno(keys.make_record_key(seqno)) == seqno
    assert keys.parse_checkpoint_seqno(keys.make_checkpoint_key(seqno)) == seqno
    assert keys.parse_upload_seqno(keys.make_part_key(ID, seqno)) == seqno
    assert keys.parse_upload_seqno(keys.make_list_prefix(ID, seqno) + f"{ID}.json") == seqno
    assert keys.parse_directory_seqno(keys.make_directory_prefix(seqno) + f"{ID}.json") == seqno
    assert keys.parse_state_seqno(keys.make_state_prefix(ID, seqno) + f"{ID}.json") == seqno


def test_a_name_says_whose_it_is() -> None:
    assert keys.is_upload(keys.make_part_key(ID, 7), ID)
    assert not keys.is_upload(keys.make_part_key(ID, 7), "f" * 32)
    assert keys.parse_state_collection(keys.make_state_prefix(ID, 7) + f"{ID}.json") == ID
    assert keys.get_second_part(keys.make_part_key(ID, 7)) == ID
    shown = f"{keys.get_table_root(ID)}metadata/v1.metadata.json"
    assert [keys.is_table_key(name, ID) for name in (shown, keys.make_part_key(ID, 7), "x")] == [True, False, False]
    assert not keys.is_table_key(shown, "f" * 32)


def test_newer_checkpoints_and_older_records_are_listed_first() -> None:
    assert sorted(map(keys.make_checkpoint_key, SEQNOS)) == [
        keys.make_checkpoint_key(seqno) for seqno in reversed(SEQNOS)
    ]
    assert sorted(map(keys.make_record_key, SEQNOS)) == list(map(keys.make_record_key, SEQNOS))


@pytest.mark.parametrize(
    "name", ["", "log/", "log/7", "log/" + "0" * 21, "checkpoint/7.json", "part/x", "notes.txt", f"part/{ID}/7.parquet"]
)
def test_other_names_say_nothing(name: str) -> None:
    told = (
        keys.parse_record_seqno,
        keys.parse_checkpoint_seqno,
        keys.parse_upload_seqno,
        keys.parse_directory_seqno,
        keys.parse_state_seqno,
    )
    assert [tell(name) for tell in told] == [None] * 5
    assert keys.parse_state_collection(name) is None
    assert not keys.is_upload(name, ID)


def test_what_is_made_once_is_immutable_and_what_comes_again_is_not() -> None:
    made_once = [keys.make_part_key(ID, 1), keys.make_list_prefix(ID, 1), keys.make_state_prefix(ID, 1)]
    assert all(map(keys.is_immutable, made_once))
    assert not any(map(keys.is_immutable, [keys.make_record_key(1), keys.make_checkpoint_key(1), keys.CLOCK_KEY]))


def test_records_after_a_seqno_are_listed_in_order_and_other_names_are_passed_over() -> None:
    blob = Asked()
    for key in (
        keys.make_record_key(2),
        keys.make_record_key(0),
        keys.make_record_key(1),
        "log/notes.txt",
        "log/0" + "1" * 20,
    ):
        blob.set(key, b"")
    assert [seqno for seqno, _ in keys.list_records(blob)] == [0, 1, 2]
    assert [seqno for seqno, _ in keys.list_records(blob, 0)] == [1, 2]
    assert [seqno for seqno, _ in keys.list_records(blob, 1)] == [2]
    assert blob.starts == [None, keys.make_record_key(0), keys.make_record_key(1)]


class Asked(MemoryBlob):
    """Remembers where each listing was asked to start."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[str | None] = []

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        self.starts.append(start_after)
        return super().list(prefix, start_after)


def test_what_brings_parts_may_name_uploads_of_its_own_collection_only() -> None:
    mine, other = keys.make_part_key(ID, 7), keys.make_part_key("f" * 32, 7)
    listed = BlobRef(blob=keys.make_list_prefix(ID, 7) + f"{ID}.json", bytes=1, checksum="")
    assert keys.check_keys(kinds.Replace(ID, parts_in=listed, unused=(mine,))) == [listed.blob]
    with pytest.raises(ValueError, match="is not the name of an upload to collection 0123"):
        keys.check_keys(kinds.Append(ID, parts_in=msgspec.structs.replace(listed, blob=other)))
    keys.check_unused(kinds.Replace(ID, unused=(mine, other)), ("f" * 32,))
    for wrong in (kinds.Replace(ID, unused=(mine, other)), kinds.Resolve(ID, (0,), (1,), unused=(other,))):
        with pytest.raises(ValueError, match="is not the name of an upload to collection 0123"):
            keys.check_unused(wrong, ("e" * 32,))


def test_a_published_version_brings_its_blobs_too() -> None:
    mine, other = keys.make_part_key(ID, 7), keys.make_part_key("f" * 32, 7)
    publish = kinds.Publish(ID, "iceberg", "1" * 32, 0, 0, blobs=(mine,))
    assert keys.check_keys(publish) == [mine]
    with pytest.raises(ValueError, match="is not the name of an upload to collection 0123"):
        keys.check_keys(msgspec.structs.replace(publish, blobs=(mine, other)))


def test_a_clone_names_parts_of_others_and_brings_its_own() -> None:
    [(_, encoded)] = encode_parts(to_updates([((1, None), 0, 1)], INTS), INTS)
    mine, other = (msgspec.structs.replace(encoded, blob=keys.make_part_key(id_, 7)) for id_ in (ID, "f" * 32))
    clone = kinds.Clone(ID, "c", "f" * 32, 0, {}, parts=(other, mine))
    assert keys.check_keys(clone) == [mine.blob]
    assert keys.get_shared_folders(clone) == ("f" * 32,)
    for wrong in ("part/../secret", "part", other.blob + "x"):
        broken = msgspec.structs.replace(clone, parts=(msgspec.structs.replace(other, blob=wrong),))
        with pytest.raises(ValueError, match="is not the name of an upload"):
            keys.check_keys(broken)


def test_a_part_has_its_bytes_in_one_place_which_is_its_collections() -> None:
    [(_, encoded)] = encode_parts(to_updates([((1, None), 0, 1)], INTS), INTS)
    inline = msgspec.structs.replace(encoded, inline=b"1")
    uploaded = msgspec.structs.replace(inline, inline=b"", blob=keys.make_part_key(ID, 7))
    assert keys.check_parts(ID, [inline, uploaded]) == [uploaded.blob]
    for wrong in (encoded, msgspec.structs.replace(uploaded, blob=keys.make_part_key("f" * 32, 7))):
        with pytest.raises(ValueError, match=r"not both or neither|is not the name of an upload"):
            keys.check_parts(ID, [inline, wrong])


def spelled(path: Path) -> Iterator[str]:
    """Yield the texts of a module, other than docstrings, that begin like a blob key."""
    text = path.read_text(encoding="utf-8")
    begins = (keys.LOG, keys.CHECKPOINTS, keys.DIRECTORIES, keys.STATES, keys.PARTS, keys.LISTS, keys.CLOCK_KEY)
    if not any(f"{quote}{begin}" in text for quote in "\"'" for begin in begins):
        return
    tree = ast.parse(text)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if text.startswith(begins) and id(node) not in prose:
                yield f"{path.relative_to(ROOT)}:{node.lineno} spells {text!r}"


def test_no_other_module_spells_a_key() -> None:
    modules = {path for top in ("persist", "blob", "codecs") for path in (ROOT / top).rglob("*.py")}
    # A store must know one key that every reader may ask for.
    modules -= {ROOT / "persist/core/log/keys.py", ROOT / "blob/stores/objects.py"}
    assert [found for path in sorted(modules) for found in spelled(path)] == []
