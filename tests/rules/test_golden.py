"""Files of every released format stay readable, and read as they did. If not: docs/inside/golden.md."""

import json
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

import persist
from persist.blob.stores.file import FileBlob
from persist.codecs.part.part import Part
from persist.codecs.types import arrow_types
from persist.codecs.types.codec import BUILT_IN
from persist.core.log import records as commits
from persist.core.log.fields import Archiving, KeyedForm, Keyframe, MachineForm
from persist.core.log.framing import FORMAT, BlobRef, Framed
from persist.core.log.kinds import KINDS
from persist.core.log.records import Record
from persist.core.log.token_archives import ArchiveObject
from persist.core.state_rules.annotations import Archives, LastBatch
from persist.core.state_rules.contents import CollectionState, Held, Publication
from persist.core.state_rules.location import Dropped, Lease, LocationState, TakenOver
from persist.engine.follow import checkpoint, directory
from persist.engine.follow import directory_pages as pages
from persist.engine.follow.state_objects import StateObject
from tests.rules.golden.make import HERE, digest, stored_members

FORMATS = sorted(path.name for path in HERE.glob("format-*"))
PRESENT = HERE / f"format-{FORMAT}" / "location"
ARCHIVE = re.compile("part/[0-9a-f]{32}/[0-9]{20}-[0-9a-f]{32}[.]json")
REMEMBERED = "remembered"  # The collection that was written with many tokens.
PROCEDURE = "see docs/inside/golden.md"


def test_there_are_golden_files_of_the_present_format() -> None:
    assert f"format-{FORMAT}" in FORMATS, PROCEDURE


def test_whatever_is_stored_has_the_members_that_its_format_number_stands_for() -> None:
    """An older client says `IncompatibleVersion` for another number, and `CorruptBlob` for another member."""
    expected = json.loads((PRESENT.parent / "members.json").read_text())
    assert stored_members() == expected, f"what is stored has changed, so raise FORMAT: {PROCEDURE}"


@pytest.mark.thorough(except_every=8)
@pytest.mark.parametrize("name", FORMATS)
def test_golden_files_read_as_they_did(name: str) -> None:
    folder = HERE / name
    with persist.open(folder / "location", mode="read") as client:
        for collection, expected in json.loads((folder / "expected.json").read_text()).items():
            assert digest(client, collection) == expected, f"{collection}: {PROCEDURE}"


@pytest.mark.parametrize(
    "name", [name for name in FORMATS if REMEMBERED in (HERE / name / "expected.json").read_text()]
)
def test_a_token_of_an_older_release_stands_for_the_same_data(name: str, tmp_path: Path) -> None:
    """The digest that a token remembers depends on no release of this library, of Arrow or of DuckDB."""
    shutil.copytree(HERE / name / "location", tmp_path / "location")
    with persist.open(tmp_path / "location", settings=persist.Settings(background=False)) as client:
        written = client[REMEMBERED]
        before, last = written.snapshot().to_arrow(), (written.upper.time or 0) - 1
        for n in (last - 4, last):  # The first is in an archive.
            written.write([((n, None), n, 1)], seal=n + 1, token=f"t{n}").result()
            with pytest.raises(persist.errors.TokenReused):
                written.write([((n + 100, None), n, 1)], token=f"t{n}").result()
        assert written.snapshot().to_arrow() == before


@cache
def objects(location: Path) -> list[dict[str, Any]]:
    """Return every JSON object within every stored object of a location, and these themselves."""
    blob = FileBlob(location)
    found: list[dict[str, Any]] = []
    for entry in blob.list(""):
        if not entry.key.startswith(("part/", "gc/")) or ARCHIVE.fullmatch(entry.key):
            for line in (blob.get(entry.key) or b"").splitlines():  # Only pages of a directory have several.
                found += _within(json.loads(line))
    return found


def _within(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        yield from _within(each)


def members(kind: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind)}


def test_golden_files_hold_every_kind_of_object() -> None:
    kinds = {each["persist"] for each in objects(PRESENT) if "persist" in each}
    of_the_log = (Record, commits.PartList, ArchiveObject)
    known = (*of_the_log, checkpoint.Checkpoint, StateObject, directory.DirectoryObject)
    assert kinds == {kind.__struct_config__.tag for kind in known}, PROCEDURE
    assert kinds == {kind.__struct_config__.tag for kind in Framed.__subclasses__()}, PROCEDURE
    assert {entry.key.split("/")[0] for entry in FileBlob(PRESENT).list("")} >= {"part", "list", "state", "directory"}


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: str(kind.__struct_config__.tag))
def test_golden_files_hold_every_kind_of_mutation_with_each_of_its_members(kind: type[msgspec.Struct]) -> None:
    found = [each for each in objects(PRESENT) if each.get("kind") == kind.__struct_config__.tag]
    assert found, f"there is no record of this kind: {PROCEDURE}"
    assert members(kind) <= {name for each in found for name in each}, PROCEDURE


def read_default(field: msgspec.structs.FieldInfo) -> Any:
    """Return what stands for a member's default in JSON; for one without, what no member is."""
    if isinstance(field.default, msgspec.Raw):
        return msgspec.json.decode(field.default)
    if field.default is msgspec.UNSET:
        return None
    if field.default is not msgspec.NODEFAULT:
        return msgspec.to_builtins(field.default)
    return None if field.default_factory is msgspec.NODEFAULT else msgspec.to_builtins(field.default_factory())


STORED = (
    Part,
    BlobRef,
    CollectionState,
    Archives,
    Archiving,
    Publication,
    Keyframe,
    Held,
    KeyedForm,
    MachineForm,
    LastBatch,
    LocationState,
    Lease,
    Dropped,
    TakenOver,
    directory.DirectoryEntry,
    pages.Pages,
)


@pytest.mark.parametrize("kind", STORED)
def test_golden_files_hold_every_member_of_what_is_stored(kind: type[msgspec.Struct]) -> None:
    fields = msgspec.structs.fields(kind)
    required = {field.encode_name for field in fields if field.required}
    found = [each for each in objects(PRESENT) if required <= each.keys() <= members(kind)]
    assert members(kind) <= {name for each in found for name in each}, PROCEDURE
    for field in fields:
        values = [each[field.encode_name] for each in found if field.encode_name in each]
        assert any(value != read_default(field) for value in values), (
            f"{field.encode_name} is always the same: {PROCEDURE}"
        )


def test_golden_files_hold_a_record_that_was_committed_for_others() -> None:
    assert members(Record) == {
        name for each in objects(PRESENT) if each.get("persist") == "record" for name in each
    } - {"persist", "checksum"}, PROCEDURE


def test_golden_files_hold_parts_of_both_forms_in_the_log() -> None:
    inline = [each for each in objects(PRESENT) if "inline" in each]
    assert {"footer" in each for each in inline} == {True, False}, PROCEDURE


def test_golden_files_hold_parts_that_are_single_and_others() -> None:
    found = [each for each in objects(HERE / "format-11-single" / "location") if "diff_sum" in each]
    assert {json.dumps(each.get("stats", {}).get("_diff")) for each in found} == {"[0, 1, 0]", "null"}, PROCEDURE


@pytest.mark.parametrize(("name", "has_doubles"), [("format-14-texts", False), ("format-14-values", True)])
def test_values_that_are_stored_beside_documents_select_the_rows_of_the_documents(name: str, has_doubles: bool) -> None:
    with persist.open(HERE / name / "location", mode="read") as client:
        documents = client["documents"]
        [part] = documents.handle.contents().parts
        assert any(value.endswith("::DOUBLE") for value in part.stats) is has_doubles
        rows = [(row["id"], json.loads(row["payload"])) for row in documents.to_pylist()]
        for condition, selects in (
            ("payload ->> 'name' = 'n3'", lambda document: document["name"] == "n3"),
            ("(payload ->> 'amount')::DOUBLE >= 200", lambda document: float(document["amount"]) >= 200),
            ("(payload -> 'user' ->> 'id')::INT = 77000", lambda document: document["user"]["id"] == 77000),
        ):
            expected = {id_ for id_, document in rows if selects(document)}
            found = client.sql(f"SELECT id FROM documents WHERE {condition}").to_arrow()["id"].to_pylist()
            assert set(found) == expected != set(), condition


@pytest.mark.parametrize("kind", ["checkpoint", "directory"])
def test_golden_files_hold_changes_of_a_directory_and_what_is_gone_from_it(kind: str) -> None:
    found = [each for each in objects(PRESENT) if each.get("persist") == kind]
    for member in ("collections", "gone", "freed", *(["directory"] if kind == "checkpoint" else ["entries", "names"])):
        assert any(each.get(member) for each in found), f"{member} is always empty: {PROCEDURE}"


def test_golden_files_hold_state_objects_that_say_what_changed() -> None:
    gone = [each["gone"] for each in objects(PRESENT) if each.get("persist") == "state" and "gone" in each]
    assert {name for each in gone for name in each} >= {"parts", "history", "keyframes"}, PROCEDURE


def written_types(written: Any) -> Iterator[str]:
    """Yield the name of each type in the written form of a schema."""
    if isinstance(written, str):
        yield written
    elif isinstance(written, dict):
        yield from written
        for inner in written.values():
            yield from written_types(inner)
    elif isinstance(written, list):
        for inner in written:
            yield from written_types(inner)


def test_golden_files_hold_every_type_and_codec() -> None:
    schemas = [each["schema"] for each in json.loads((PRESENT.parent / "expected.json").read_text()).values()]
    found = set(written_types(schemas))
    families = {"fixed_size_binary[", "decimal128(", "decimal256(", "timestamp[us, tz="}
    assert not arrow_types._NAMES.keys() - found, PROCEDURE
    assert all(any(each.startswith(family) for each in found) for family in families), PROCEDURE
    assert not {"list", "large_list", "fixed_size_list", "struct", "map"} - found, PROCEDURE
    assert not BUILT_IN.keys() - found, PROCEDURE
    assert "not null" in found, PROCEDURE
    assert any(["document", "json"] in ((each["value"] or {}).get("fields") or []) for each in schemas), PROCEDURE


def test_reading_golden_files_changes_nothing() -> None:
    blob = FileBlob(PRESENT)
    before = {entry.key: blob.get(entry.key) for entry in blob.list("")}
    with persist.open(PRESENT, mode="read") as client:
        digest(client, "large")
    assert {entry.key: blob.get(entry.key) for entry in blob.list("")} == before
