"""What is remembered beside the data: what people say of a location, collection or column, and which writes were done.

*Descriptions* are a comment and properties. Nothing in them has a meaning to the package. A change may name the version
of the description that it was made from; it is then refused if anybody else came first.

*Tokens* say what a retry may assume: a write that is tried again with the same token happens once (rule 7). A token is
part of the contents of each collection that its commit wrote to, with the least time written and a digest of the data,
so every client sees the tokens of all others.

- The same data under a known token is done already, in whatever order, form and batches it comes. Other data is refused
  (`TokenReused`). Seals and expected uppers are not compared. Data whose digest is unknown counts as the same.
- A commit to several collections of which only some know the token is refused: it is no repetition.
- A token is remembered while the times that its write wrote are not sealed, and after that among the newest
  `TOKENS_KEPT` of the collection. A retry that comes later is refused because its times are sealed, so it cannot happen
  twice.

*Batches* of streaming queries: a query numbers its batches, and runs the last one again if it does not know whether it
was committed. The record that adds a batch therefore says so, under the query's id, and:

    batch > last        it is new
    batch == last       it was done; a run that is new says by a record of its own that it goes on here
    batch < last        a query never goes back: this is another one with the same id, or an old checkpoint
    run displaced       another run has taken over since, so two are running with one id

Unlike tokens, these are kept however much others write: `QUERIES_KEPT` queries for each collection, those that
committed last.
"""

from collections.abc import Callable, Container, Mapping

import msgspec

from persist.errors import DescriptionMoved, InvalidUsage, QueryMismatch, TokenReused
from persist.log import Digest, Words, kinds

ABOUT_BYTES_MAX = 64 << 10  # As JSON, columns included: it is read with every opening, or with the contents.
NOTE_BYTES_MAX = 64 << 10
TOKENS_KEPT = 4096  # Of writes whose times are sealed, so that doing them twice is refused anyway.
Used = tuple[str, str]  # A collection and a token.
QUERIES_KEPT = 1024
RUNS_KEPT = 4


class ColumnAbout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is said of a column."""

    comment: str = ""
    properties: dict[str, str] = {}


class About(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is said of a location or a collection; its columns are known by their ids.

    Attributes:
        version: how often it was changed.
    """

    comment: str = ""
    properties: dict[str, str] = {}
    columns: dict[str, ColumnAbout] = {}
    version: int = 0


def described(about: About, words: Words, columns: Mapping[str, Words], version: int | None) -> About:
    """Return about after something more was said.

    Raises:
        DescriptionMoved: a version was given, and it is another one by now.
        InvalidUsage: it would take more than `ABOUT_BYTES_MAX`, or a property has no name.
    """
    if version not in (None, about.version):
        raise DescriptionMoved(version, about.version)
    of_columns = dict(about.columns)
    for id_, column_words in columns.items():
        before = of_columns.pop(id_, ColumnAbout())
        after = ColumnAbout(*_after(before.comment, before.properties, column_words))
        if after != ColumnAbout():
            of_columns[id_] = after
    comment, properties = _after(about.comment, about.properties, words)
    described_about = About(comment, properties, of_columns, about.version + 1)
    size = len(msgspec.json.encode(described_about))
    if size > ABOUT_BYTES_MAX:
        raise InvalidUsage(
            f"comment and properties, those of columns included, would take {size} bytes as JSON, and at most "
            f"{ABOUT_BYTES_MAX} are kept: put what is large into a collection, and its name into a property"
        )
    return described_about


def without_columns(about: About, ids: Container[str]) -> About:
    """Return about when columns of these ids are gone: nothing is said of them, and that they were is a change."""
    kept = {id_: about_column for id_, about_column in about.columns.items() if id_ not in ids}
    if len(kept) == len(about.columns):
        return about
    return msgspec.structs.replace(about, columns=kept, version=about.version + 1)


def _after(comment: str, properties: Mapping[str, str], words: Words) -> tuple[str, dict[str, str]]:
    if "" in words.properties:
        raise InvalidUsage("a property has a name: '' is none")
    changed = {**properties, **words.properties}
    kept = {name: value for name, value in changed.items() if value is not None}
    return comment if words.comment is None else words.comment, dict(sorted(kept.items()))


def check_note(note: kinds.Note) -> None:
    """Raise InvalidUsage if a note is too large to be kept in the log."""
    size = len(note.message.encode()) + sum(len(k.encode()) + len(v.encode()) for k, v in note.metadata.items())
    if size > NOTE_BYTES_MAX:
        raise InvalidUsage(
            f"message and metadata take {size} bytes, and at most {NOTE_BYTES_MAX} go into the log: write what is "
            "large as data, and say here where it is"
        )


class Remembered(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A write that had a token: the least time of its updates, and the digest of what it was of, unless unknown."""

    time_min: int
    digest: Digest | None = None


def with_tokens(before: Mapping[str, Remembered], step: kinds.Tokens, upper: int | None) -> dict[str, Remembered]:
    """Return what a collection remembers of writes after those of a commit; its times before upper are sealed."""
    tokens = {**before, **{mark.token: Remembered(mark.time_min, mark.digest) for mark in step.tokens}}
    if len(tokens) > TOKENS_KEPT:
        sealed = [token for token, write in tokens.items() if upper is None or write.time_min < upper]
        for token in sealed[: max(0, len(sealed) - TOKENS_KEPT)]:
            del tokens[token]
    return tokens


def were_used(
    tokens: Mapping[Used, str | None],
    before: Mapping[Used, str | None],
    remembered: Callable[[str], tuple[str, Mapping[str, Remembered]]],
) -> bool:
    """Tell whether a commit was done, by the digests of its tokens.

    Args:
        before: tokens of commits that are not in the log yet.
        remembered: returns the name of a collection, and what it remembers.

    Raises:
        TokenReused: a token names other data.
        InvalidUsage: some of the collections know the token, and others do not.
    """

    def was_used(used: Used, digest: str | None) -> bool:
        collection, token = used
        name, kept = remembered(collection)
        if token not in kept and used not in before:
            return False
        known = kept[token].digest if token in kept else before[used]
        if digest != known and digest is not None and known is not None:
            raise TokenReused(token, name)
        return True

    known = [token for (collection, token), digest in tokens.items() if was_used((collection, token), digest)]
    if known and len(known) < len(tokens):
        raise InvalidUsage(
            f"the token {known[0]!r} was used before for some of these collections and not for the others, so "
            "this is not a repetition of that commit. Use a token of its own for each commit; nothing was applied."
        )
    return bool(known)


class LastBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last batch that was committed, and the runs that committed, the present one last."""

    batch: int
    runs: tuple[str, ...]


def is_repeated(queries: Mapping[str, LastBatch], step: kinds.Batch) -> bool:
    """Return whether a batch was committed before.

    Raises:
        QueryMismatch: it is none that its query may commit now.
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


def with_batch(queries: Mapping[str, LastBatch], step: kinds.Batch) -> dict[str, LastBatch]:
    """Return queries after a batch.

    Raises:
        QueryMismatch: as `is_repeated`; or it is not to be done again and was done.
    """
    if is_repeated(queries, step) != step.again:
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
