"""Published tables of a collection, in the formats of other programs.

`docs/inside/format.md` ("Published tables") defines them. A reader of a table has no lease, and may begin with one
version while the next one is being published. So the log keeps the blobs of two versions: the one in the newest record,
and the one before it, which readers see until the table shows the newest.

Invariants:
- the parts that a table names are files, and each of their rows counts once;
- each of them is in a run of the collection, or among its kept parts (`persist.core.state_rules.contents`);
- versions follow each other, and the id of the table stays.
"""

import msgspec

from persist.codecs.part.part import Part
from persist.core.antichain import to_antichain
from persist.core.errors import AsOfNotSealed, Superseded
from persist.core.log import kinds
from persist.core.names import is_id
from persist.core.state_rules.contents import CollectionState, Publication, PublishedFile, resolve_numbers


def add_table_version(contents: CollectionState, step: kinds.Publish) -> CollectionState:
    """Return contents with the next version of a published table, without a check of `step.unused`.

    Raises:
        Superseded: another client has published or compacted since the plan.
        AsOfNotSealed: the collection may still change at the version's time.
        ValueError: no writer makes such a step.
    """
    publication_before = contents.published.get(step.table)
    if step.version != (0 if publication_before is None else publication_before.version + 1):
        raise Superseded(f"the {step.table} table of {contents.name!r} has another version by now")
    if not is_id(step.id):
        raise ValueError(f"{step.id[:200]!r} is not the id of a table")
    if publication_before is not None and publication_before.id != step.id:
        raise Superseded(f"the {step.table} table of {contents.name!r} was removed and published anew meanwhile")
    if step.as_of >= contents.upper:
        raise AsOfNotSealed(step.as_of, to_antichain(contents.upper), 0.0)
    if not 1 <= step.schema <= len(contents.earlier) + 1:
        raise ValueError(
            f"it has the columns of version {step.schema} of a schema that has {len(contents.earlier) + 1}"
        )
    new_parts = dict(enumerate(step.parts, contents.next_number))
    available = {**contents.kept, **contents.numbered, **new_parts}
    old = {} if publication_before is None else publication_before.files
    if not old.keys() >= set(step.removed):
        raise ValueError("it removes parts that the previous version does not have")
    numbers = resolve_numbers(tuple(file.number for file in step.files), contents.next_number)
    if not available.keys() >= set(numbers):
        raise Superseded("a part that the table was to name is not there any more: a compaction came first")
    changed = {n: PublishedFile(step.version, file.deletes) for n, file in zip(numbers, step.files, strict=True)}
    files = {**{n: file for n, file in old.items() if n not in step.removed}, **changed}
    publication = Publication(
        step.id,
        step.version,
        step.as_of,
        step.schema,
        files,
        {n: file for n, file in old.items() if files.get(n) != file},
        step.metadata,
        () if publication_before is None else publication_before.metadata,
        step.options,
        step.digest,
        publication_before is None
        or (publication_before.schema, publication_before.options) != (step.schema, step.options),
    )
    known_blobs = set() if publication_before is None else {*publication_before.blobs}
    vectors = {file.deletes.blob for file in step.files if file.deletes is not None}
    if not known_blobs.union(step.blobs) >= vectors.union(step.metadata):
        raise ValueError("it names blobs that are neither of the previous version nor added by this one")
    if not set(new_parts) <= set(numbers):
        raise ValueError("it brings parts that the table does not name")
    return _replace_tables(contents, {**contents.published, step.table: publication}, new_parts)


def remove_table(contents: CollectionState, step: kinds.Unpublish) -> CollectionState:
    """Return contents without a published table, without a check of `step.unused`.

    Raises:
        Superseded: the table has another version now, or was removed.
        ValueError: no writer makes such a step.
    """
    present_publication = contents.published.get(step.table)
    if present_publication is None or present_publication.version != step.version:
        raise Superseded(f"the {step.table} table of {contents.name!r} has another version by now, or is gone")
    remaining = {table: publication for table, publication in contents.published.items() if table != step.table}
    return _replace_tables(contents, remaining, {})


def list_unused_blobs(contents: CollectionState, step: kinds.Publish | kinds.Unpublish) -> tuple[str, ...]:
    """Return the blobs that a step leaves unused; raise as the step."""
    return tuple(sorted(contents.named_blobs - _change_tables(contents, step).named_blobs))


def apply_publication(contents: CollectionState, step: kinds.Publish | kinds.Unpublish) -> CollectionState:
    """Apply a change of a published table, and check its list of unused blobs.

    Raises Superseded: the change leaves other blobs unused than it lists; or as `add_table_version` and `remove_table`.
    """
    after = _change_tables(contents, step)
    check_published(after)
    if contents.named_blobs - after.named_blobs != set(step.unused):
        raise Superseded("other blobs become unused than expected: another client published or compacted first")
    return after


def _change_tables(contents: CollectionState, step: kinds.Publish | kinds.Unpublish) -> CollectionState:
    """Apply a publication's step, without a check of its unused blobs."""
    return add_table_version(contents, step) if isinstance(step, kinds.Publish) else remove_table(contents, step)


def _replace_tables(
    contents: CollectionState, tables: dict[str, Publication], new_parts: dict[int, Part]
) -> CollectionState:
    """Return contents with other published tables, and the parts that they need."""
    parts = {**contents.kept, **contents.numbered, **new_parts}
    numbers = {number for publication in tables.values() for number in publication.numbers}
    return msgspec.structs.replace(
        contents,
        published=dict(sorted(tables.items())),
        kept={number: parts[number] for number in sorted(numbers) if number not in contents.numbered},
        next_number=contents.next_number + len(new_parts),
    )


def check_published(contents: CollectionState) -> None:
    """Raise ValueError if published tables contradict the other contents."""
    numbers = {number for publication in contents.published.values() for number in publication.numbers}
    if not contents.kept.keys() == numbers - contents.numbered.keys():
        raise ValueError("a published table names a part that is not there, or a part is kept that none names")
    if any(not 0 <= number < contents.next_number for number in contents.kept):
        raise ValueError(f"a kept part has a number that was not assigned yet; the next is {contents.next_number}")
    for number in numbers:
        part = contents.get_part(number)
        if not part.blob or not part.is_plain:
            raise ValueError(f"a published table names {part.name}, which is inline or has diffs other than 1")
        named = [publication.files.get(number) for publication in contents.published.values()]
        if any(file is not None and file.deletes is not None and file.deletes.rows > part.rows for file in named):
            raise ValueError(f"a published table leaves out more rows than {part.name} has")
