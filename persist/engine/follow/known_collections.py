"""The collections of the newest known state: by id, by name, and with their contents."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import TypeVar

from persist.blob.errors import MissingBlob
from persist.blob.lru import Cache
from persist.blob.protocol import Blob, is_remote
from persist.blob.threads import Clock
from persist.core.errors import CollectionNotFound, PersistError
from persist.core.log.fields import Policy
from persist.core.state_rules.annotations import Remembered
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.state import CollectionEntry, State
from persist.engine.follow.archived_tokens import TokenMemory
from persist.engine.follow.checkpoint import load_contents
from persist.engine.follow.directory import KnownLevels
from persist.engine.follow.waiting import AwaitedLog

T = TypeVar("T")

OVER_ALL_MAX = 10


class KnownCollections(AwaitedLog):
    """The part of a view of the log that looks up collections; most contents are read at their first use."""

    def __init__(
        self, blob: Blob, clock: Clock, longest_pause_s: float, policy: Policy, pool: Executor, cache: Cache
    ) -> None:
        super().__init__(clock, longest_pause_s, policy)
        self._blob = blob
        self._levels = KnownLevels(pool, cache)
        self.tokens = TokenMemory(blob, cache)
        self._loaded: tuple[State | None, dict[str, CollectionState]] = None, {}  # The contents by id, of one state.

    @abstractmethod
    def _replay(self) -> None:
        """Continue from the newest checkpoint, or without one from the beginning of the log."""

    @abstractmethod
    def restart(self) -> State:
        """Continue from the newest checkpoint, because state objects of older ones may be deleted."""

    def load(self, id_: str) -> CollectionState | None:
        """Return the contents of a collection in the newest known state; None if it does not exist."""
        state, loaded = self._loaded
        if state is self._state and (contents := loaded.get(id_)) is not None:
            return contents
        with self._lock:
            try:
                contents = self._load_contents(id_)
            except MissingBlob:
                # A state object that newer checkpoints do not refer to is collected after a while.
                self._replay()
                contents = self._load_contents(id_)
            if contents is not None:
                if self._loaded[0] is not self._state:
                    self._loaded = self._state, {}
                self._loaded[1][id_] = contents
            return contents

    def find_id(self, name: str) -> str | None:
        """Return the id of the collection of a name in the newest known state; None if there is none."""
        return self.apply_to_state(lambda state: state.ids.get(name))

    def entry(self, id_: str) -> CollectionEntry | None:
        """Return the newest known entry of a collection; None if it was dropped. Waits for no other thread."""
        try:
            return self._state.entries.get(id_)
        except MissingBlob:
            return self.apply_to_state(lambda state: state.entries.get(id_))

    def apply_to_state(self, look: Callable[[State], T]) -> T:
        """Return the result of look on the newest known state; it may read all collections of that state.

        Cost: the reads of look, and the missing pages of the directory. If pages were deleted meanwhile, look is called
        again with a newer state.
        """
        state = self._state
        for _ in range(OVER_ALL_MAX):
            try:
                return look(state)
            except MissingBlob:
                state_before, state = state, self.restart()
                if state.entries.shares_base_with(state_before.entries):
                    raise
        return look(state)

    def _load_contents(self, id_: str) -> CollectionState | None:
        """Return the contents of a collection, loaded if they are unknown."""
        entry = self._state.entries.get(id_)
        if entry is None or self._state.location is None:
            return None
        if entry.contents is None:
            entry = load_contents(self._blob, self._state.location, entry, self._levels)
            self._state = self._state.replace_entry(entry)
        return entry.contents

    def refresh_and_load(self, ids: Iterable[str], threads: Executor) -> State:
        """Refresh; on a remote store, also load unknown contents of collections at the same time.

        `load` handles dropped or unreadable collections. Cost: a GET for each state object, in parallel.
        """
        entries = [entry for entry in map(self._state.entries.get, ids) if entry is not None and entry.contents is None]
        location = self._state.location
        if not entries or location is None or not is_remote(self._blob):
            return self.refresh()
        reads = [threads.submit(load_contents, self._blob, location, entry, self._levels) for entry in entries]
        self.refresh()  # Without the lock afterwards, because what the threads do may wait for it.
        for entry, read in zip(entries, reads, strict=True):
            with suppress(PersistError):
                loaded = read.result()
                with self._lock:
                    if self._state.entries.get(entry.id) is entry:
                        self._state = self._state.replace_entry(loaded)
        return self._state

    def refresh_and_require(self, id_: str, name: str) -> CollectionState:
        """Refresh, and return the contents of a collection. Raises CollectionNotFound: it does not exist (any more)."""
        self.refresh()
        return self.require(id_, name)

    def require(self, id_: str, name: str) -> CollectionState:
        """Like `refresh_and_require`, without a refresh."""
        contents = self.load(id_)
        if contents is None:
            raise CollectionNotFound(name, self._blob.url, self._state.list_names_in_memory())
        return contents

    def peek(self, id_: str, name: str) -> CollectionState:
        """Like `require`, but cache nothing, to read very many collections one by one."""
        entry = self.entry(id_)
        location = self._state.location
        if entry is None or location is None:
            raise CollectionNotFound(name, self._blob.url, self._state.list_names_in_memory())
        try:
            contents = load_contents(self._blob, location, entry, self._levels).contents
        except MissingBlob:
            return self.require(id_, name)
        assert contents is not None
        return contents

    def read_known_states(self, ids_and_names: Sequence[tuple[str, str]]) -> tuple[int, list[CollectionState]]:
        """Return the states of collections by (id, name) as `require` does, all from one state, with its seqno."""
        with self._lock:
            return self._state.seqno, [self.require(id_, name) for id_, name in ids_and_names]

    def find_token(self, contents: CollectionState, token: str | None) -> Remembered | None:
        """Return the earlier use of a token, or None; see `TokenMemory.find`."""
        return self.tokens.find(self._state.location, contents, token)
