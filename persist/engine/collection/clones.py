"""Clones: another collection with the same contents as of one sealed time, which shares the blobs of its source.

    parts of the source at as_of            in the clone
    all rows are at requested times         shared unchanged: no blob is read or written
    no row is at a requested time           left out
    some rows are (the part *straddles*)    rewritten: these rows become new parts, in the clone's own folder

The requested rows are a keyframe and the rows after it up to `as_of`, or all rows up to `as_of`. `_choose_cheapest`
prefers the choice with the fewest bytes to rewrite. Mostly nothing is rewritten: a commit writes one time, and a merge
crosses no keyframe. An old time between keyframes may lie in the middle of a large merged part, though.

The clone is one record, whatever its size, and a part list if it is long. That record holds only if the source still
names all that is shared (`persist.core.state_rules.state`). If a compaction came first, the clone is planned again.
After the record, the two are independent: each has its own schema, frontiers, events, compaction and end. Blobs are
deleted when no collection names them any more (`persist.engine.upkeep.garbage`).

A clone does not copy what belongs to one collection alone: holds, tags, tokens, published tables, events that are not
resolved, the definition of a view. It keeps descriptions, the retention and, if it is keyed, the declaration and the
present late bound: with an earlier one, late events could restore deleted rows.

Rejected: an upper bound in the descriptor of a shared part. Every reader, sum, statistic and published table would have
to apply it. Rejected: a keyframe after `as_of` minus the history between, by which a clone would need times that it has
not sealed.
"""

import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from persist.blob.errors import Indeterminate, MissingBlob
from persist.codecs.part.part import Part
from persist.core.antichain import END
from persist.core.errors import CollectionExists, PersistError, Superseded, UploadExpired
from persist.core.log import kinds
from persist.core.log.fields import Keyframe, Numbers, Words
from persist.core.names import DERIVED_FROM, check_free_name
from persist.core.state_rules.collection_rules import ExpectErasures
from persist.core.state_rules.contents import CollectionState, check_readable, get_first_time
from persist.core.state_rules.erasures import count_erasures
from persist.core.state_rules.schemas import load_newest_schema
from persist.core.timeline import Moment
from persist.engine.collection.failures import is_failure_property
from persist.engine.compact import Rewrite
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.collection_times import LATEST
from persist.engine.location.opening import open_handle
from persist.engine.read.planning.scan import Scan
from persist.engine.write.operations import Step
from persist.engine.write.retrying import commit_with_retry


def commit_clone(source: CollectionHandle, name: str, as_of: int | Moment | None = None) -> CollectionHandle:
    """Commit a clone of a collection as of a sealed time, and return it; see `Client.clone`."""
    engine = source.engine
    writer = engine.writer("clone")
    check_free_name(name)
    contents, time = source.wait_sealed(as_of, 0.0)
    if as_of in (None, LATEST) and contents.upper == END:
        # So that the clone can be written, although its source is complete for ever.
        if contents.keyed is not None:
            writer.resolver.resolve(source.id, source.name, source.machine)
        time = _find_last_change(source.get_known_state())

    def plan() -> CollectionHandle:
        """Plan the steps of the clone from the newest state, and rewrite parts if needed."""
        if engine.find_newest_id(name) is not None:
            raise CollectionExists(name)
        if time >= source.get_known_state().resolved:
            writer.resolver.resolve(source.id, source.name, source.machine)
        contents = source.get_known_state()
        check_readable(contents, time)
        id_, shares = uuid.uuid4().hex, _choose_cheapest(contents, time)
        new_parts: Sequence[Part] = ()
        try:
            new_parts = _rewrite_straddling_parts(source, contents, id_, shares)
            steps = _make_steps(contents, id_, name, shares, new_parts)
            engine.submit("clone", steps, {id_: name, source.id: source.name}).result()
        except BaseException as error:
            if not isinstance(error, Indeterminate):  # Or else the record may be there.
                writer.part_writer().discard(new_parts)
            raise
        clone_contents = engine.follower.require(id_, name)
        return open_handle(engine, clone_contents, load_newest_schema(source.schema, clone_contents), source.machine)

    def raise_if_needed(error: PersistError) -> None:
        if isinstance(error, MissingBlob) and source.needs(error.key):
            raise error
        source.contents()  # Raises if the source was dropped.

    conflicts = (Superseded, UploadExpired, MissingBlob)
    return commit_with_retry(plan, action="clone", clock=engine.clock, conflicts=conflicts, prepare=raise_if_needed)


def _find_last_change(contents: CollectionState) -> int:
    """Return the last time at which a collection has an update or a keyframe."""
    times = [part.time_max for part in contents.numbered.values()]
    return max([*times, get_first_time(contents), *(keyframe.as_of for keyframe in contents.keyframes)])


@dataclass(frozen=True, slots=True)
class _Shares:
    """The parts of the source collection that a clone as of `as_of` shares or rewrites.

    Attributes:
        runs: the shared runs of the history, by the numbers of parts in the source, without straddling parts.
        straddling: parts that also have rows outside of `lower <= time <= as_of`.
    """

    as_of: int
    keyframe: Keyframe | None
    runs: tuple[Numbers, ...]
    straddling: tuple[Part, ...]

    @property
    def lower(self) -> int:
        """The first time of the shared history, just after the keyframe."""
        return 0 if self.keyframe is None else self.keyframe.as_of + 1


def _choose_cheapest(contents: CollectionState, as_of: int) -> _Shares:
    """Return the shares with the fewest bytes to rewrite; among equals, those with the latest keyframe."""
    # As of 0, nothing was compacted, and a keyframe would keep the history from being read from 0 on.
    keyframes = [keyframe for keyframe in contents.keyframes if keyframe.as_of <= as_of] if as_of else []
    ways = [_plan_shares(contents, as_of, keyframe) for keyframe in reversed(keyframes)]
    if contents.history_from == 0:
        ways.append(_plan_shares(contents, as_of, None))
    return min(ways, key=lambda way: sum(part.bytes for part in way.straddling))


def _plan_shares(contents: CollectionState, as_of: int, keyframe: Keyframe | None) -> _Shares:
    """Return the parts to share and to rewrite for a clone."""
    lower = 0 if keyframe is None else keyframe.as_of + 1

    def is_within(part: Part) -> bool:
        return lower <= part.time_min and part.time_max <= as_of

    runs = (tuple(n for n in run if is_within(contents.numbered[n])) for run in contents.history)
    straddling = (
        part
        for part in contents.history_parts
        if part.time_min <= as_of and part.time_max >= lower and not is_within(part)
    )
    return _Shares(as_of, keyframe, tuple(run for run in runs if run), tuple(straddling))


def _rewrite_straddling_parts(
    source: CollectionHandle, contents: CollectionState, id_: str, shares: _Shares
) -> tuple[Part, ...]:
    """Store the cloned rows of parts that also have rows at other times. Return the new parts, in key order."""
    if not shares.straddling:
        return ()
    maker = source.engine.writer("clone").make_local_part_maker(threading.Event())
    schema = contents.schema
    scan = Scan(schema, shares.straddling, shares.lower, shares.as_of + 1, schema.names)
    claim = source.engine.claim(source.id, source.name, shares.as_of)
    try:
        (run,) = maker.make(id_, [[Rewrite(scan)]], shares.straddling)
    finally:
        claim.release()
    if sum(part.diff_sum for part in run.new) != run.added:
        maker.discard(run.new)
        raise AssertionError("the diffs of what was rewritten for a clone do not sum to those that were read")
    return run.new


def _make_steps(contents: CollectionState, id_: str, name: str, shares: _Shares, made: Sequence[Part]) -> list[Step]:
    """Return the steps that create a clone of some parts."""
    base = () if shares.keyframe is None else shares.keyframe.parts
    numbers = {number: at for at, number in enumerate(sorted({*base, *(n for run in shares.runs for n in run)}))}
    runs = [tuple(numbers[n] for n in run) for run in shares.runs]
    new = tuple(range(len(numbers), len(numbers) + len(made)))
    keyframe = None if shares.keyframe is None else Keyframe(shares.keyframe.as_of, tuple(numbers[n] for n in base))
    steps: list[Step] = [
        ExpectErasures(contents.id, count_erasures(contents)),
        kinds.Clone(
            id_,
            name,
            contents.id,
            shares.as_of,
            contents.schema_json,
            contents.earlier,
            contents.keyed,
            contents.late_bound,
            (*contents.list_parts(numbers), *made),
            runs=(*runs, *([new] if new else [])),
            keyframe=keyframe,
        ),
    ]
    about = contents.about
    properties = {name: text for name, text in about.properties.items() if not is_failure_property(name)}
    if contents.view is not None:
        properties[DERIVED_FROM] = " ".join([contents.id, *contents.view.get("inputs", ())])
    if about.comment or properties or about.columns:
        columns = {
            column: Words(column_words.comment, {**column_words.properties})
            for column, column_words in about.columns.items()
        }
        steps.append(kinds.Describe(id_, Words(about.comment, {**properties}), columns))
    return steps if contents.retention is None else [*steps, kinds.SetRetention(id_, contents.retention)]
