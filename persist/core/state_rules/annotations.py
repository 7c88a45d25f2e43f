"""Annotations beside the data: descriptions of a location, a collection or a column, and tokens of writes.

*Descriptions* are a comment and properties. They have no meaning to the library. A change may name the version
of the description that it is based on; it is refused if another change came first.

*Tokens* identify retries: a write that is repeated with the same token happens once (rule 7). The contents of each
collection in a commit include its token, with the least time written and a digest of the data, so every client sees the
tokens of all others.

- The same data under a known token counts as done, in any order, form and batches. Other data is refused
  (`TokenReused`). Seals and expected uppers are not compared. Data whose digest is unknown counts as the same.
- A commit to several collections is refused if only some have its token, because it is not a repetition.
- The contents hold the newest `TOKENS_KEPT` at most, and archives (`persist.core.log.token_archives`) the older ones. A
  client that validates a commit also looks there.
- A collection keeps `ARCHIVED_MAX` tokens. Beyond that, its oldest archives are forgotten. Tokens have no age, so from
  then on each unknown token may be a forgotten one, and is refused (`TokenForgotten`).

*Batches* of streaming queries: a query numbers its batches, and runs the last one again if its outcome is unknown. The
record that adds a batch therefore has its number, under the query's id, and:

    batch > last        it is new
    batch == last       it was done; a new run records that it continues here
    batch < last        another query has the same id, or its checkpoint is old
    run displaced       another run has taken over since, so two runs have one id

So a batch is a token with a number, of which a collection keeps the last one for each of `QUERIES_KEPT` queries.
Rejected: a text token for each batch. A query of one batch a second would make the collection forget tokens after 48
days (`ARCHIVED_MAX`), and it would then refuse every unknown token. A copied checkpoint would not be detected either:
its batches would count as repetitions.
"""

from collections.abc import Callable, Container, Mapping, Sequence

import msgspec

from persist.core.errors import DescriptionMoved, InvalidUsage, QueryMismatch, TokenForgotten, TokenReused
from persist.core.log import kinds
from persist.core.log.fields import Archiving, Digest, TokenArchive, TokenMark, Words
from persist.core.log.keys import is_upload

ABOUT_BYTES_MAX = 64 << 10  # As JSON, columns included: it is read with every opening, or with the contents.
NOTE_BYTES_MAX = 64 << 10
TOKENS_KEPT = 4096
ARCHIVE_MAX = 1 << 16  # Tokens of one archive, of 25 bytes each.
ARCHIVED_MAX = 1 << 22  # Tokens of all archives of a collection, which a client keeps in memory: 100 MB.
Used = tuple[str, str]  # A collection and a token.
QUERIES_KEPT = 1024
RUNS_KEPT = 4


class ColumnAbout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The comment and properties of a column."""

    comment: str = ""
    properties: dict[str, str] = {}


class About(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Comments and properties of a location or collection, and of its columns.

    `version`: how often it was changed.
    """

    comment: str = ""
    properties: dict[str, str] = {}
    columns: dict[str, ColumnAbout] = {}
    version: int = 0


def apply_description(about: About, words: Words, columns: Mapping[str, Words], version: int | None) -> About:
    """Return a description after a step that changes comments and properties.

    Raises:
        DescriptionMoved: the expected version is not the present one.
        InvalidUsage: the description would exceed `ABOUT_BYTES_MAX`, or a property has no name.
    """
    if version not in (None, about.version):
        raise DescriptionMoved(version, about.version)
    column_abouts = dict(about.columns)
    for id_, column_words in columns.items():
        about_before = column_abouts.pop(id_, ColumnAbout())
        after = ColumnAbout(*_merge_descriptions(about_before.comment, about_before.properties, column_words))
        if after != ColumnAbout():
            column_abouts[id_] = after
    comment, properties = _merge_descriptions(about.comment, about.properties, words)
    about_after = About(comment, properties, column_abouts, about.version + 1)
    size = len(msgspec.json.encode(about_after))
    if size > ABOUT_BYTES_MAX:
        raise InvalidUsage(
            f"comment and properties, those of columns included, would take {size} bytes as JSON, and at most "
            f"{ABOUT_BYTES_MAX} are kept: put what is large into a collection, and its name into a property"
        )
    return about_after


def drop_columns(about: About, ids: Container[str]) -> About:
    """Return a description without some columns; a change raises its version."""
    remaining = {id_: about_column for id_, about_column in about.columns.items() if id_ not in ids}
    if len(remaining) == len(about.columns):
        return about
    return msgspec.structs.replace(about, columns=remaining, version=about.version + 1)


def _merge_descriptions(comment: str, properties: Mapping[str, str], words: Words) -> tuple[str, dict[str, str]]:
    """Return comment and properties after a change; checks property names."""
    if "" in words.properties:
        raise InvalidUsage("the name of a property is empty: give it a name")
    changed = {**properties, **words.properties}
    remaining = {name: value for name, value in changed.items() if value is not None}
    return comment if words.comment is None else words.comment, dict(sorted(remaining.items()))


def check_note(note: kinds.Note) -> None:
    """Raise InvalidUsage if a note is too large for the log."""
    size = len(note.message.encode()) + sum(len(k.encode()) + len(v.encode()) for k, v in note.metadata.items())
    if size > NOTE_BYTES_MAX:
        raise InvalidUsage(
            f"message and metadata take {size} bytes, and at most {NOTE_BYTES_MAX} go into the log: write what is "
            "large as data, and say here where it is"
        )


class Remembered(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A write that had a token: least time, and digest if known."""

    time_min: int
    digest: Digest | None = None


class Archives(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A collection's token archives, newest last, and the number of forgotten tokens."""

    stored: tuple[TokenArchive, ...] = ()
    forgotten: int = 0


def add_tokens(
    before: Mapping[str, Remembered], step: kinds.Tokens, upper: int, archives: Archives | None
) -> dict[str, Remembered]:
    """Return the tokens of a collection after a commit.

    Args:
        upper: times before it are sealed.
        archives: the archives before the commit; None if there never was one.
    """
    tokens = {**before, **{mark.token: Remembered(mark.time_min, mark.digest) for mark in step.tokens}}
    if step.archiving is not None:
        if step.archiving.moved > len(tokens):
            raise ValueError(f"it archives {step.archiving.moved} tokens, and there are {len(tokens)}")
        return dict([*tokens.items()][step.archiving.moved :])
    if archives is None and len(tokens) > TOKENS_KEPT:  # A client of a format before 10 wrote this.
        sealed = [token for token, write in tokens.items() if write.time_min < upper]
        for token in sealed[: max(0, len(sealed) - TOKENS_KEPT)]:
            del tokens[token]
    return tokens


def update_archives(archives: Archives | None, step: kinds.Tokens) -> Archives | None:
    """Return the token archives of a collection after a commit."""
    archiving, stored = step.archiving, () if archives is None else archives.stored
    if archiving is None:
        if step.unused:
            raise ValueError("it drops archives without a new one")
        return archives
    if not is_upload(archiving.archive.stored.blob, step.collection):
        raise ValueError(f"{archiving.archive.stored.blob!r:.200} does not name an archive of {step.collection}")
    if archiving.merged + archiving.dropped > len(stored):
        raise ValueError(f"it replaces more archives than the {len(stored)} that there are")
    remaining_archives = stored[archiving.dropped : len(stored) - archiving.merged]
    dropped_blobs = {archive.stored.blob for archive in stored if archive not in remaining_archives}
    if dropped_blobs - {archiving.archive.stored.blob} != set(step.unused):
        raise ValueError("other archives become unused than it lists")
    forgotten = sum(archive.count for archive in stored[: archiving.dropped])
    return Archives(
        (*remaining_archives, archiving.archive), (0 if archives is None else archives.forgotten) + forgotten
    )


def check_archives(collection: str, archives: Archives | None) -> None:
    """Raise ValueError if a token archive lies outside the collection's folder."""
    for archive in () if archives is None else archives.stored:
        if not is_upload(archive.stored.blob, collection):
            raise ValueError(f"{archive.stored.blob!r:.200} does not name an archive of collection {collection}")


def plan_archiving(
    tokens: Mapping[str, Remembered], archives: Archives | None, step: kinds.Tokens
) -> tuple[list[TokenMark], int, int] | None:
    """Return the tokens to archive; how many archives to merge and drop.

    None if the contents have room for the new tokens.
    """
    after = {**tokens, **{mark.token: Remembered(mark.time_min, mark.digest) for mark in step.tokens}}
    if len(after) <= TOKENS_KEPT:
        return None
    stored: Sequence[TokenArchive] = () if archives is None else archives.stored
    oldest = [*after.items()][: len(after) - TOKENS_KEPT // 2]
    marks = [TokenMark(token, write.time_min, write.digest) for token, write in oldest]
    merged, size = 0, len(marks)
    # Each is at least as large as all newer ones: so they are few, and a token is written again a few times.
    while merged < len(stored) and stored[-1 - merged].count <= size <= ARCHIVE_MAX - stored[-1 - merged].count:
        merged, size = merged + 1, size + stored[-1 - merged].count
    dropped, total = 0, sum(archive.count for archive in stored) + len(marks)
    while dropped < len(stored) - merged and total > ARCHIVED_MAX:
        dropped, total = dropped + 1, total - stored[dropped].count
    return marks, merged, dropped


def build_archiving_step(
    step: kinds.Tokens, archives: Archives | None, archive: TokenArchive, moved: int, merged: int, dropped: int
) -> kinds.Tokens:
    """Return the `Tokens` step that moves tokens into a stored archive.

    `moved`, `merged` and `dropped` are those of `plan_archiving`.
    """
    stored = () if archives is None else archives.stored
    replaced_archives = (*stored[:dropped], *stored[len(stored) - merged :])
    unused = tuple(sorted({a.stored.blob for a in replaced_archives} - {archive.stored.blob}))
    return msgspec.structs.replace(step, archiving=Archiving(archive, moved, merged, dropped), unused=unused)


def are_tokens_used(
    tokens: Mapping[Used, str | None],
    draft_tokens: Mapping[Used, str | None],
    find_token: Callable[[Used], tuple[str, Remembered | None, int]],
) -> bool:
    """Return whether a commit was done before, by its tokens and digests.

    Args:
        draft_tokens: tokens of earlier operations that are not in the log yet.
        find_token: returns the name of a collection, its earlier use of a token, and how many tokens it has forgotten.

    Raises:
        TokenReused: a token names other data.
        TokenForgotten: a token is unknown, and the collection has forgotten tokens.
        InvalidUsage: only some of the collections have the token.
    """

    def is_token_used(used: Used, digest: str | None) -> bool:
        """Return whether a token was used before, with an equal digest."""
        name, write, forgotten = (used[0], None, 0) if used in draft_tokens else find_token(used)
        if write is None and used not in draft_tokens:
            if forgotten:
                raise TokenForgotten(used[1], name, forgotten)
            return False
        earlier_digest = draft_tokens[used] if write is None else write.digest
        if digest != earlier_digest and digest is not None and earlier_digest is not None:
            raise TokenReused(used[1], find_token(used)[0])
        return True

    used_tokens = [used[1] for used, digest in tokens.items() if is_token_used(used, digest)]
    if used_tokens and len(used_tokens) < len(tokens):
        raise InvalidUsage(
            f"the token {used_tokens[0]!r} was used before for some of these collections and not for the others, so "
            "this is not a repetition of that commit. Use a token of its own for each commit; nothing was applied."
        )
    return bool(used_tokens)


class LastBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last committed batch of a streaming query, and its runs, newest last."""

    batch: int
    runs: tuple[str, ...]


def is_batch_repeated(queries: Mapping[str, LastBatch], step: kinds.Batch) -> bool:
    """Return whether a batch of a streaming query was committed before.

    Raises QueryMismatch: its query may not commit this batch now.
    """
    last = queries.get(step.query)
    if last is None:
        if step.again:
            raise QueryMismatch(step.query, step.batch, None, None)
        return False
    if step.run in last.runs[:-1]:
        raise QueryMismatch(step.query, step.batch, last.batch, last.runs[-1])
    if step.batch < last.batch or (step.again and step.batch != last.batch):
        raise QueryMismatch(step.query, step.batch, last.batch, None)
    return step.batch == last.batch


def record_batch(queries: Mapping[str, LastBatch], step: kinds.Batch) -> dict[str, LastBatch]:
    """Return the last batch of each query after a step.

    Raises QueryMismatch: as `is_batch_repeated`; or the batch was committed and `again` is not set.
    """
    if is_batch_repeated(queries, step) != step.again:
        raise QueryMismatch(step.query, step.batch, step.batch, None)
    last = queries.get(step.query)
    runs = () if last is None else last.runs
    if step.run not in runs:
        runs = (*runs, step.run)[-RUNS_KEPT:]
    after = {query: last for query, last in queries.items() if query != step.query}
    after[step.query] = LastBatch(step.batch, runs)
    while len(after) > QUERIES_KEPT:
        del after[next(iter(after))]
    return after
