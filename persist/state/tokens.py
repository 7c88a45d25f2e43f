"""What a retry may assume: a write that is tried again with the same token happens once (rule 7).

A token is part of the contents of each collection that its commit wrote to, with the least time written and a digest of
the data, so every client sees the tokens of all others.

- The same data under a known token is done already, in whatever order, form and batches it comes. Other data is refused
  (`TokenReused`). Seals and expected uppers are not compared. Data whose digest is unknown counts as the same.
- A commit to several collections of which only some know the token is refused: it is no repetition.
- A token is remembered while the times that its write wrote are not sealed, and after that among the newest
  `TOKENS_KEPT` of the collection. A retry that comes later is refused because its times are sealed, so it cannot happen
  twice.
"""

from collections.abc import Callable, Mapping

from persist.errors import InvalidUsage, TokenReused
from persist.log import Tokens
from persist.state.contents import CollectionState, Remembered

TOKENS_KEPT = 4096  # Of writes whose times are sealed, so that doing them twice is refused anyway.

Used = tuple[str, str]  # A collection and a token.


def with_tokens(contents: CollectionState, step: Tokens) -> dict[str, Remembered]:
    """Return what contents remember once the tokens of a commit are among it."""
    tokens = {**contents.tokens, **{mark.token: Remembered(mark.time_min, mark.digest) for mark in step.tokens}}
    if len(tokens) > TOKENS_KEPT:
        upper = contents.upper.time  # Once: this is done at every commit while many tokens are kept.
        sealed = [token for token, each in tokens.items() if upper is None or each.time_min < upper]
        for token in sealed[: max(0, len(sealed) - TOKENS_KEPT)]:
            del tokens[token]
    return tokens


def were_used(
    tokens: Mapping[Used, str | None],
    before: Mapping[Used, str | None],
    remembered: Callable[[Used], CollectionState | None],
) -> bool:
    """Tell whether a commit was done, by the digests of its tokens.

    Args:
        before: tokens of commits that are not in the log yet.
        remembered: returns the contents of the collection of a token.

    Raises:
        TokenReused: a token names other data.
        InvalidUsage: some of the collections know the token, and others do not.
    """
    seen = [_was_used(used, digest, before, remembered(used)) for used, digest in tokens.items()]
    if any(seen) and not all(seen):
        known = [token for (_, token), was in zip(tokens, seen, strict=True) if was]
        raise InvalidUsage(
            f"the token {known[0]!r} was used before for some of these collections and not for the others, so "
            "this is not a repetition of that commit. Use a token of its own for each commit; nothing was applied."
        )
    return any(seen)


def _was_used(
    used: Used, digest: str | None, before: Mapping[Used, str | None], contents: CollectionState | None
) -> bool:
    collection, token = used
    kept = None if contents is None else contents.tokens.get(token)
    if kept is None and used not in before:
        return False
    known = kept.digest if kept is not None else before[used]
    if digest != known and digest is not None and known is not None:
        raise TokenReused(token, collection if contents is None else contents.name)
    return True
