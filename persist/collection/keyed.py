"""What only keyed collections can do, as users call it: upserts, transitions, and what is late."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from persist.antichain import Antichain
from persist.codecs import scalar_from_json
from persist.collection.base import CollectionBase
from persist.engine import AskedEvents, CollectionHandle, Late, check_upserts, deleting_events, keyed_form, taken_events
from persist.engine import resolve as resolve_keyed
from persist.engine import submit as submit_keyed
from persist.errors import InvalidUsage
from persist.log import AdvanceLateBound
from persist.timeline import Moment
from persist.upsert import is_counted, late_column, watermark_to_int
from persist.write import CommitFuture, Step, check_token, note_steps


class KeyedCalls(CollectionBase):
    """The part of `Collection` that is about events by key; on any other collection it raises `NotKeyed`."""

    def __init__(self, handle: CollectionHandle) -> None:
        super().__init__(handle)
        self._late_counts: Counter[str] = Counter()

    def upsert(
        self,
        events: Any,
        *,
        time: int | Moment | None = None,
        seal: int | Moment | Antichain | None = None,
        token: str | None = None,
        late: Late = "raise",
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> CommitFuture:
        """Give keys of a keyed collection new values, or delete them, from a time on; and perhaps seal.

        Events may come in any order until their times are sealed. Then each becomes what it changes: the value that
        its key had is retracted, its own inserted. What that is does not depend on who seals, nor when.

        Args:
            events: `(key, value, time)` tuples, where None as the value deletes the key; dicts, or anything Arrow with
                the key and value columns, `_time`, and perhaps `_deleted`, which is true where the key is deleted.
            time: that of all events, or the name of the column with the time of each; as for `write`.
            seal: the upper to seal to. With nothing pending before it, that is one commit.
            token, message, metadata: as for `write`.
            late: what to do with events at sealed times and below the late bound: "raise" refuses all, "collect" leaves
                them out and gives them back, with `_reason`, as `late` of the future.

        Returns:
            a future that resolves when all is durable, or to what `write` and `seal` raise, or `LateEvents`.

        Raises:
            NotKeyed: the collection is none; or its machine has other events: use `transition`.
            SchemaMismatch, InvalidUpdate, CodecMismatch: the events do not fit, or a key is NULL; nothing was written.
            ReadOnly, ClientClosed: this client cannot write.
        """
        check_upserts(self.handle)
        return self._take("upsert", events, time, seal, token, late, note_steps(message, metadata, [self.id]))

    def transition(
        self,
        events: Any,
        *,
        time: int | Moment | None = None,
        seal: int | Moment | Antichain | None = None,
        token: str | None = None,
        late: Late = "raise",
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> CommitFuture:
        """Give events to the machine of a keyed collection, which says what they change; otherwise as `upsert`.

        Args:
            events: as for `upsert`, with what the machine calls an event (`Machine.event_fields`) in place of values.
        """
        return self._take("transition", events, time, seal, token, late, note_steps(message, metadata, [self.id]))

    @property
    def late_counts(self) -> dict[str, int]:
        """How many events this handle has collected as late, by reason: "sealed", and "late" for the late bound."""
        return dict(self._late_counts)

    @property
    def late_bound(self) -> Any:
        """The watermark below which events of a keyed collection are late, None if none are. Cost: one GET.

        It is None, too, if it is below all that the type of watermarks, or Python, can tell.
        """
        form, bound = keyed_form(self.handle), self.handle.contents().late_bound
        if bound is None:
            return None
        try:
            return scalar_from_json(bound, late_column(form, self.schema)).as_py()
        except (ValueError, OverflowError):
            return None  # It is a distance behind a watermark, which may be among the least.

    def advance_late_bound(self, bound: Any) -> CommitFuture:
        """Let events with a watermark below bound be late from now on; where it is farther already, it stays there.

        Raises:
            NotKeyed: the collection is none.
            InvalidUsage: its events have no watermark that is an integer or a time, or bound is none.
        """
        form = keyed_form(self.handle)
        if not form.order_by or not is_counted(late_column(form, self.schema)):
            raise InvalidUsage(
                f"late bound {bound!r}: the events of {self.name!r} have no watermark that is an integer or a time. It "
                "is the first column of order_by."
            )
        step = AdvanceLateBound(self.id, watermark_to_int(bound, late_column(form, self.schema)))
        return self.handle.submit("advance_late_bound", [step])

    def resolve(self) -> bool:
        """Turn all sealed events into updates, where resolve="background"; return whether there were any.

        Maintenance does it without being asked, and reads give the same before and after.
        """
        keyed_form(self.handle)
        self.handle.engine.writer("resolve")
        return resolve_keyed(self.handle)

    def _take(
        self,
        action: str,
        events: Any,
        time: int | Moment | None,
        seal: int | Moment | Antichain | None,
        token: str | None,
        late: Late,
        notes: Sequence[Step],
    ) -> CommitFuture:
        self.handle.engine.writer(action)
        if late not in get_args(Late):
            raise InvalidUsage(f'late={late!r} is no way to treat late events: use "raise" or "collect"')
        keyed_form(self.handle)
        check_token(token)
        end = None if seal is None else self.handle.frontier("upper", seal)
        taken = taken_events(self.handle, events, self.handle.stamp(time, None))
        counts = self._late_counts if late == "collect" else None
        return submit_keyed(self.handle, action, AskedEvents(taken, end, token, tuple(notes), late=counts))

    def _delete_keyed(self, what: Any, time: int | Moment, token: str | None, notes: Sequence[Step]) -> CommitFuture:
        check_token(token)
        asked = AskedEvents(deleting_events(self.handle, what, time), None, token, tuple(notes))
        return submit_keyed(self.handle, "delete", asked)
