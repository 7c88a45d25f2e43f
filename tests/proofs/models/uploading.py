"""Uploads that no record names: a collector deletes them, and a writer who slept must not name one afterwards.

A part is stored before the record that names it. Its name begins with the seqno of the record that its writer knew to
be next. A collector cannot tell a part that will be named from one that was forgotten, so it first declares in the log
that uploads which began before some seqno are void: `apply` refuses every later record that names one
(`persist.core.state_rules.location.check_uploaded`). Then it looks once more what is named, and deletes the rest of
them.

    writer      read the log to its end; upload; create a record that names the upload, which is refused if the upload
                is void by then. What was refused is uploaded anew
    collector   list what no record names; declare it void; list what no record names now; delete of that what is void

Invariant: what a record names exists.
"""

from collections.abc import Iterator
from typing import NamedTuple

Upload = tuple[int, int]  # The seqno at which it began, and its writer.


class Writer(NamedTuple):
    """What a writer knows and is about to do."""

    step: str
    known: int = 0  # The records that it has read.
    upload: Upload | None = None
    tries: int = 0


class Collector(NamedTuple):
    """What a collector knows and is about to do."""

    step: str
    listed: frozenset[Upload] = frozenset()


class State(NamedTuple):
    """What is stored, and who is about to do what."""

    records: tuple[Upload | int, ...]  # Each names an upload, or declares a floor.
    stored: frozenset[Upload]
    writers: tuple[Writer, ...]
    collectors: tuple[Collector, ...]

    @property
    def floor(self) -> int:
        """Return below which seqno uploads are void."""
        return max((record for record in self.records if isinstance(record, int)), default=0)

    @property
    def unnamed(self) -> frozenset[Upload]:
        """Return what is stored and no record names."""
        return self.stored.difference(self.records)


class Uploading:
    """See the module's docstring.

    Args:
        fault: "never refuse": a record may name what is void. "list once": what is deleted was listed before the
            declaration.
    """

    def __init__(self, writers: int, collectors: int, fault: str = "") -> None:
        self._writers = writers
        self._collectors = collectors
        self._fault = fault

    def start(self) -> State:
        return State((), frozenset(), (Writer("read"),) * self._writers, (Collector("list"),) * self._collectors)

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        for n, writer in enumerate(state.writers):
            for words, changed, after in self._written(n, writer, state):
                writers = (*state.writers[:n], after, *state.writers[n + 1 :])
                yield f"writer {n} {words}", changed._replace(writers=writers)
        for n, collector in enumerate(state.collectors):
            for words, changed, left in self._collected(collector, state):
                collectors = (*state.collectors[:n], left, *state.collectors[n + 1 :])
                yield f"collector {n} {words}", changed._replace(collectors=collectors)

    def _written(self, n: int, writer: Writer, state: State) -> Iterator[tuple[str, State, Writer]]:
        known = len(state.records)
        if writer.step != "end":
            yield "dies", state, Writer("end")
        if writer.step == "read":
            yield "reads the log", state, writer._replace(step="create" if writer.upload else "upload", known=known)
        elif writer.step == "upload":
            upload = (writer.known, n)
            stored = state._replace(stored=state.stored | {upload})
            yield f"uploads {upload}", stored, writer._replace(step="create", upload=upload, tries=writer.tries + 1)
        elif writer.step == "create" and writer.known < known:
            yield "has lost the race", state, writer._replace(step="read")
        elif writer.step == "create" and writer.upload is not None:
            if writer.upload[0] < state.floor and self._fault != "never refuse":
                again = Writer("read", tries=writer.tries) if writer.tries < 2 else Writer("end")
                yield "is refused", state, again
            else:
                yield "names its upload", state._replace(records=(*state.records, writer.upload)), Writer("end")

    def _collected(self, collector: Collector, state: State) -> Iterator[tuple[str, State, Collector]]:
        if collector.step == "list":
            yield "lists", state, Collector("declare", state.unnamed)
        elif collector.step == "declare":
            # The record follows all that there are, so it may declare void what began up to itself.
            records = (*state.records, len(state.records) + 1)
            step = "delete" if self._fault == "list once" else "look"
            yield "declares them void", state._replace(records=records), collector._replace(step=step)
        elif collector.step == "look":
            void = frozenset(upload for upload in state.unnamed if upload[0] < state.floor)
            yield "lists again", state, Collector("delete", void)
        elif collector.step == "delete" and collector.listed:
            for upload in collector.listed:
                stored = state._replace(stored=state.stored - {upload})
                yield f"deletes {upload}", stored, collector._replace(listed=collector.listed - {upload})
        elif collector.step == "delete":
            yield "is done", state, Collector("end")

    def wrong(self, state: State) -> Iterator[str]:
        named = {record for record in state.records if not isinstance(record, int)}
        if missing := named - state.stored:
            yield f"{missing} are named and gone"

    def is_over(self, state: State) -> bool:
        steps = [*(writer.step for writer in state.writers), *(collector.step for collector in state.collectors)]
        return all(step == "end" for step in steps)
