"""A client of one location: a fat client that talks to the object store itself, without a server."""

import inspect
import os
import re
import weakref
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from persist.api.collection import Collection, DescriptionProperties, register_erasure_upkeep
from persist.api.creation import Collections, CreatingCalls
from persist.api.definitions import run_statement
from persist.api.joint_reads import ReadingTogether
from persist.api.lineage import has_target, start_lineage
from persist.api.multi_write import MultiWrite
from persist.api.serving import ServeOptions, Servers, serve
from persist.api.upkeep import UpkeepCalls
from persist.api.view import View
from persist.blob.threads import Clock, SystemClock
from persist.compute.index import keep_indexes_current
from persist.compute.query import AsOf, Outcome, QueryLimits, QueryResult, classify_statement
from persist.core.antichain import END
from persist.core.closing import close_after
from persist.core.errors import InvalidUsage
from persist.core.log import kinds
from persist.core.metrics import Metrics
from persist.core.rendering import Completed, render_html_rows, render_html_table
from persist.core.settings import Location, Settings
from persist.core.timeline import Moment, Timeline, show_time
from persist.engine.collection.clones import commit_clone
from persist.engine.collection.commit import Commit
from persist.engine.collection.descriptions import About, check_words, get_location_description, read_version
from persist.engine.location.engine import Engine
from persist.engine.location.opening import Origin, describe_origin, open_engine
from persist.engine.location.writer import Mode, OpenOptions
from persist.engine.write.commit_future import CommitFuture
from persist.engine.write.write_options import WriteOptions
from persist.services.publish import Published, publish_together, register_publishing
from persist.services.serve.messages import Notify

NAMES_SHOWN = 20
_QUERY = re.compile(r"\s*(?:SELECT|FROM|WITH)\s", re.IGNORECASE)


def open(
    location: Location,
    *,
    mode: Mode = "shared",
    storage_options: Mapping[str, Any] | None = None,
    reentrance_id: str | None = None,
    force: bool = False,
    seqno: int | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
    notify: str | Notify | None = None,
    commit_through: str | Notify | None = None,
) -> "Client":
    """Open a location and return a client for it. Close it, or use it in a `with`.

    Args:
        location: a folder, `s3://bucket/prefix`, `memory://name`, any other URL that fsspec knows, or a `Blob`.
        mode: "shared" (any number of clients write), "exclusive" (this one and no other writes, until it is closed) or
            "read" (this client writes nothing at all).
        storage_options: for the store, such as `endpoint_url`, `region`, `profile`, `server_side_encryption`.
        reentrance_id: in mode "exclusive", names the one writer across its restarts: a client with the same id takes
            over at once. None means that only force takes over.
        force: in mode "exclusive", take over from the client that has the location. That client is fenced off.
        seqno: in mode "read", see the location as it was after this record of the log, and nothing later, so that reads
            of several collections belong together. The log must still keep that record.
        settings: times and sizes; see `Settings`.
        clock: replaces the machine's clocks, for tests; see `docs/use/python.md`, "Moments".
        notify: a server (`Client.serve`) that announces new records, as its URL or a `Notify`, so that followers need
            not poll. It is only a hint: without it, reads return the same, only later.
        commit_through: in mode "shared", a server (`Client.serve(commits=True)`) that commits for this client together
            with others, so that hundreds of writers of one location do not race for it. Results are the same as without
            it. If the server does not answer, this client finds the outcome in the log, and commits by itself.

    Cost: one page of LIST and a few GETs; nothing is created before the first write, except in mode "exclusive".

    Raises:
        InvalidUsage: the URL, an option or the mode is not known; the bucket or credentials are missing; or the server
            of commit_through has another location, or refuses to commit for this client.
        Locked: another client has the location exclusively.
        Corruption: the newest checkpoint or a record after it is damaged.
    """
    settings, clock = Settings() if settings is None else settings, clock or SystemClock()
    options = OpenOptions(mode, reentrance_id, force, seqno, settings, clock)
    told_by, committed_by = _parse_server("notify", notify), _parse_server("commit_through", commit_through)
    if committed_by is not None and mode != "shared":
        raise InvalidUsage(f'commit_through is for mode="shared", and this is mode={mode!r}')
    client = Client(open_engine(location, storage_options, options), told_by)
    if committed_by is not None:
        from persist.services.serve.remote_location import (
            commit_through as let_commit,  # Here: gRPC takes a while to load, and few need it.
        )

        try:
            let_commit(client.engine, committed_by)
        except BaseException:
            client.close()
            raise
    return client


def _check_text(option: str, text: object) -> None:
    """Raise InvalidUsage if a query is not text."""
    if not isinstance(text, str):
        raise InvalidUsage(
            f"{option}= is a {type(text).__name__}: give SQL as text, such as 'SELECT * FROM orders'. A frame is "
            "a table in it, with files=True"
        )


def _parse_server(option: str, notify: str | Notify | None) -> Notify | None:
    """Return an option that names a server, parsed; None without one."""
    server = Notify(notify) if isinstance(notify, str) else notify
    if server is not None and not isinstance(server, Notify):
        raise InvalidUsage(f"{option}={notify!r} is not a server: give its URL, or persist.Notify(url, token=…)")
    return server


class Client(CreatingCalls, ReadingTogether, UpkeepCalls, DescriptionProperties, Completed):
    """Reads and writes the collections of one location; make it with `persist.open`. Safe to use from many threads.

    A client that only reads raises `ReadOnly` at each call that writes; after `close`, calls raise `ClientClosed`.

    `engine`: the operations on the location, for the rest of the package.
    """

    _INTERNAL = frozenset({"engine"})

    def __init__(self, engine: Engine, notify: Notify | None = None) -> None:
        self.engine = engine
        if engine.mode != "read":
            register_publishing(engine)
            keep_indexes_current(engine)
            register_erasure_upkeep(engine)
        self._pid = os.getpid()
        self._ends: list[Callable[[], object]] = []  # Close these with the client.
        if notify is not None:
            from persist.services.serve.remote_location import Listener  # Here: gRPC loads slowly, and few need it.

            listener = Listener(engine.follower, notify)
            weakref.finalize(self, listener.request_stop).atexit = False
            self._ends.append(listener.close)
            engine.count_also("notify", listener.counts)
        self._lineage = start_lineage(engine) if engine.mode != "read" and has_target() else None

    @property
    def url(self) -> str:
        """The URL of the location."""
        return self.engine.url

    @property
    def mode(self) -> Mode:
        """ "shared", "exclusive" or "read"."""
        return self.engine.mode

    @property
    def seqno(self) -> int:
        """The seqno of the newest record. Cost: one GET."""
        return self.engine.seqno

    def collections(self, prefix: str = "") -> Collections:
        """Return all collection names that begin with a prefix, sorted. Cost: one GET.

        Names that begin with a dot are internal, such as the state of a dataflow. They are listed only if the prefix
        begins with a dot.

        Dots in names make namespaces: `collections("sales.")` lists one. The list's `to_arrow()` has rows, bytes, since
        and upper of each collection.
        """
        self.engine.check_open("collections")
        if not isinstance(prefix, str):
            raise InvalidUsage(f"prefix={prefix!r} is not text: give what the names begin with, such as 'sales.'")
        return Collections(self.engine.names(prefix), self.engine)

    def drop(self, name: str) -> CommitFuture:
        """Remove the collection of that name; see `Collection.drop`. Raises CollectionNotFound: there is none."""
        self.engine.writer("drop")
        return self.load(name).drop()

    def rename(self, name: str, new: str) -> CommitFuture:
        """Rename a collection; see `Collection.rename`. Raises CollectionNotFound: there is none."""
        self.engine.writer("rename")
        return self.load(name).rename(new)

    def clone(self, source: str, target: str, *, as_of: int | Moment | None = None) -> Collection:
        """Create a collection with another one's contents, without copying data; return it.

        From then on, source and clone are changed, evolved, compacted and dropped independently. Shared blobs are
        deleted when neither needs them any more. The clone can be read from `as_of` on, and written after it. It has
        the schema, descriptions and retention of its source, but not the holds, tags, published tables and unsealed
        updates. The clone of a view is a plain collection.

        Cost: one commit, whatever the size. Only parts that have both requested and other times are read, and their
        requested rows are stored anew. Memory: a slice of these parts.

        Args:
            source, target: names of collections; the target must not exist.
            as_of: a sealed time, a moment or a tag; None for the latest.

        Raises:
            CollectionNotFound, CollectionExists: the source is missing, or the target exists.
            AsOfCompacted, AsOfNotSealed: the time cannot be read.
            Conflict: the source was compacted again and again meanwhile; nothing was made.
        """
        self.engine.writer("clone")
        return Collection(commit_clone(self.load(source).handle, target, as_of))

    @property
    def about(self) -> About:
        """The comment and properties of the location. Cost: one GET."""
        self.engine.check_open("about")
        return get_location_description(self.engine.follower.refresh().control.about)

    def describe(
        self,
        comment: str | None = None,
        *,
        properties: Mapping[str, str | None] | None = None,
        expected: About | None = None,
    ) -> CommitFuture:
        """Set the comment and properties of the location; others stay. See `Collection.describe`."""
        self.engine.writer("describe")
        step = kinds.DescribeLocation(check_words(comment, properties), read_version(expected))
        return self.engine.submit("describe", [step], {})

    def create_view(
        self,
        name: str,
        sql: str,
        *,
        key: Sequence[str] | None = None,
        start: int | Moment | None = None,
        indexes: Literal["auto"] | None = None,
        memory_budget: int | None = None,
        spill_folder: str | os.PathLike[str] | None = None,
    ) -> View:
        """Create or load a collection that a query keeps up to date.

        A new view stores the query's plan as its definition. It is empty and unsealed until its first `refresh()`,
        which computes the answer at each time of the inputs since the view begins. Idempotent. The query is DuckDB's
        SQL over the collections of this location, views included; the package duckdb (extra `sql`) parses it.
        `docs/use/views-sql.md` lists the supported SQL.

        Args:
            sql: a SELECT.
            key: columns of the answer that become the collection's key; None for the grouping columns of the query, if
                these are among its columns, or else all of them.
            start: the time or moment at which the view begins; None for the earliest time at which all of its inputs
                can be read, before which it cannot begin. "now" costs least: the last time that all inputs have sealed.
            indexes: "auto" creates the indexes of the inputs by which refreshes look records up, such as the facts of a
                changed dimension. The indexes stay when the view is dropped; see `Collection.index`. A new view then
                also stores the counts and totals of its groups, from which refreshes continue.
            memory_budget, spill_folder: options of this handle, not of the view; see `view`.

        Warns:
            persist.sql.UnboundedState: it joins two growing inputs without a key; the text has the number of pairs.
            persist.sql.InputBehind: updates of an input stay invisible until another input is sealed further.

        Raises:
            InvalidUsage: the text is not a supported query; a table is missing; an input cannot be read at its start;
                or the name belongs to another view or collection.
        """
        self.engine.writer("create_view")
        from persist.compute.sql import collect_options, load_or_create_view  # Here: the dataflow takes long to load.

        _check_text("sql", sql)
        if isinstance(name, str) and _QUERY.match(name):
            raise InvalidUsage(f"the name comes first: create_view({sql!r:.60}, {name!r:.60})")
        if indexes not in (None, "auto"):
            raise InvalidUsage(f'indexes={indexes!r} is not allowed: give "auto", or make them with Collection.index()')
        options = collect_options(memory_budget, spill_folder)
        with self.engine.follower.looks.share_look():
            live = load_or_create_view(self.engine, name, sql, key, start, options, keeps_groups=indexes is not None)
            if indexes is not None:
                live.make_indexes()
            return View(live)

    def sql(
        self, query: str, *, as_of: AsOf = None, files: bool = False, time: int | Moment | None = None
    ) -> QueryResult | Outcome:
        """Run a query by DuckDB over collections at one point of the log.

        Read it with `to_arrow()`, `to_pandas()`, `to_polars()` or `to_batches()`. Needs the package duckdb (extra
        `sql`). Filters of the query skip parts before they are fetched, and only columns that it names are decoded;
        `explain()` shows the reads and their indexes. The time zone is UTC.

        A statement that changes a collection is one commit: UPDATE, DELETE FROM, INSERT INTO, MERGE INTO or TRUNCATE.
        It is done when this returns. The result is one row: the `collection`, the number of touched `rows`, the `seqno`
        of the commit, and the `time` of the changes. The time is NULL if you set it, or if nothing changed. CREATE,
        DROP, ALTER and COMMENT define collections; COPY … TO writes a file. `docs/use/sql.md` lists them.

        Args:
            query: SQL that begins with SELECT, FROM or WITH, or a statement; collections are its tables.
            as_of: a time for all collections, or a dict of times by name, where "" means all others. None means the
                latest sealed time of each.
            files: let the query read files, URLs and frames, and COPY write files, with your rights: a table that is
                not a collection is a variable of the caller. Without it, it reads collections alone, and DuckDB loads
                no extension.
            time: the time of a statement's changes; None means the time of its commit.

        Raises:
            InvalidUsage: DuckDB is not installed, or refuses the query; or as_of is set for a statement, or time for a
                query.
            AsOfCompacted, AsOfNotSealed: a collection cannot be read as of its time.
            DuplicateKeys: a statement would write several rows for a key of a keyed collection.
        """
        self.engine.check_open("sql")
        _check_text("query", query)
        frame = inspect.currentframe() if files else None
        caller = None if frame is None else frame.f_back
        variables = None if caller is None else ChainMap(caller.f_locals, caller.f_globals)
        if classify_statement(query) is not None:
            if as_of is not None:
                raise InvalidUsage(
                    "a statement takes no as_of=, because it changes what is there now: write orders VERSION AS OF … "
                    "where it reads another time"
                )
            return Outcome(run_statement(self, query, time, variables=variables))
        if time is not None:
            raise InvalidUsage("time= is the time of changes, and a query has none: give as_of= to read as of a time")
        return QueryResult(self.engine, query, as_of, variables=variables)

    def view(
        self, name: str, *, memory_budget: int | None = None, spill_folder: str | os.PathLike[str] | None = None
    ) -> View:
        """Return the view of that name, a `persist.View`; it needs no DuckDB.

        Args:
            memory_budget: bytes of state that stay in memory between refreshes; the rest goes to mapped files. DuckDB
                computes the first refresh if the parts have at most so many bytes. None for 4 GiB.
            spill_folder: where these files are made; None for the system's folder for temporary files.

        Raises:
            CollectionNotFound: a collection of that name is missing.
            InvalidUsage: it is not a view, or a value is not allowed.
        """
        self.engine.check_open("view")
        from persist.compute.sql import collect_options, load_view_by_name  # As above.

        with self.engine.follower.looks.share_look():
            return View(load_view_by_name(self.engine, name, collect_options(memory_budget, spill_folder)))

    def publish(
        self,
        tables: Mapping[str, str],
        *,
        catalog: Any,
        as_of: int | Moment | None = None,
        digest: bool = False,
    ) -> list[Published]:
        """Publish collections as Iceberg tables as of one time; return versions.

        A REST catalog that has `transactions/commit` takes all of them at once, so readers never see tables of
        different times. Other catalogs take table after table, in order: meanwhile, readers may see tables of two
        times. Each table has its time in its property `persist.as_of`. New tables are registered one by one.

        Args:
            tables: the identifier in the catalog for each collection, by its name: `{"orders": "shop.orders"}`.
            catalog: a catalog of pyiceberg, or its name in the configuration of pyiceberg.
            as_of: None means the latest time that all of them have sealed.

        Raises:
            Unavailable: the catalog did not take the versions, which are published: publish again.
            Other errors: as `Collection.publish`. Collections before the failed one are published.
        """
        handles = {identifier: self[name].handle for name, identifier in tables.items()}
        if not handles or len(handles) < len(tables):
            raise InvalidUsage(f"tables={dict(tables)!r} has to name at least one collection, and each table once")
        self.engine.settle()
        return publish_together(handles, catalog, as_of, options={"deletes": "vectors"}, digest=digest)

    def multi_write(
        self,
        *,
        token: str | None = None,
        allow_future: bool = False,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> MultiWrite:
        """Return a `with` block whose writes and seals are one commit.

        Args:
            token: names the commit, as in `Collection.write`; every collection it touches remembers it.
        """
        options = WriteOptions(token=token, allow_future=allow_future, message=message, metadata=metadata)
        return MultiWrite(Commit(self.engine, options))

    def metrics(self) -> Metrics:
        """Return counts and latencies of this client's requests, commits and leases.

        Printed, it is a table. If the package opentelemetry-api is installed, it is also exported.
        """
        return self.engine.metrics()

    def close(self) -> None:
        """Finish all writes, free threads and sockets; raise unread errors. Idempotent.

        In a forked process it does nothing, because the parent owns all of these.
        """
        if os.getpid() == self._pid:
            while self._ends:
                self._ends.pop()()
            if self._lineage is not None:
                self.engine.settle()  # Events of all commits are sent before it closes.
                self._lineage.close()
        self.engine.close()

    def serve(
        self,
        flight: str | None = None,
        *,
        postgres: str | None = None,
        iceberg: str | None = None,
        token: str | None = None,
        write_token: str | None = None,
        certificate: tuple[str | bytes, str | bytes] | None = None,
        insecure: bool = False,
        write: bool = False,
        commits: bool = False,
        store: bool = False,
        sql: bool | QueryLimits = False,
        iceberg_properties: Mapping[str, str] | None = None,
        format_version: int = 2,
        slow_s: float = 60.0,
    ) -> Servers:
        """Serve the location to Arrow, Postgres and Iceberg clients until closed.

        Clients that were opened with `notify=` learn of a record from the Flight server within milliseconds; see
        `docs/run/servers.md`. Nothing depends on a server: it may end at any time.

        Args:
            flight: `grpc://host:port`, or `grpc+tls://host:port`. Port 0, here and below, takes a free one.
            postgres: `host:port`. psql, drivers and reporting tools query the location there; see `docs/use/sql.md`.
            iceberg: `host:port` of an Iceberg REST catalog; see `docs/use/publish.md`. This client must write.
            token: clients send it; without one, everybody who reaches a port may read everything.
            write_token: lets its holders write; holders of the token only read then.
            certificate: the chain and the key as PEM, for `grpc+tls://` and for Postgres.
            insecure: allow an address that other machines reach without a token.
            write: let Postgres clients change collections. This client must write.
            commits: commit for clients that were opened with `commit_through=`, in mode "shared". Holders of the write
                token, or of the token if it is the only one, may then write and drop collections.
            store: let clients that have no rights on the store open the location as `grpc://host:port`, to read it.
            sql: serve Flight SQL, for tools with a driver for it (`docs/use/sql.md`). `persist.sql.QueryLimits` bounds
                the memory, the seconds and the rows of one query, also for Postgres clients. Eight run at a time.
            iceberg_properties: sent to readers of Iceberg with each table, such as credentials of S3.
            format_version: the version of Iceberg's format: 2, or 3 with deletion vectors, nanoseconds and row lineage.
            slow_s: a client that does not read its answer for so many seconds is disconnected.

        Raises:
            InvalidUsage: an address, token or certificate does not fit, or a port is taken; or commits is True in mode
                "exclusive", in which no other client commits.
        """
        options = ServeOptions(
            flight,
            postgres,
            iceberg,
            token,
            write_token,
            certificate,
            insecure,
            write,
            commits,
            store,
            sql,
            iceberg_properties,
            format_version,
            slow_s,
        )
        servers = serve(self, options)
        self._ends.append(servers.close)
        return servers

    def __getitem__(self, name: str) -> Collection:
        """Do what `load` does."""
        return self.load(name)

    def __contains__(self, name: object) -> bool:
        """Return whether a collection has that name. Cost: one GET."""
        self.engine.check_open("in")
        return isinstance(name, str) and self.engine.find_newest_id(name) is not None

    def __iter__(self) -> Iterator[str]:
        """Yield the names of all collections."""
        return iter(self.collections())

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        close_after(error, self.close)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        import asyncio  # Here: it takes 8 ms to load.

        await asyncio.to_thread(self.__exit__, kind, error, traceback)

    def _repr_html_(self) -> str:
        """Return the known collections as a table. Cost: no request."""
        control = self.engine.follower.state.control
        names = self.engine.follower.state.list_names()
        shown_rows = [("mode", self.mode), ("seqno", f"{self.engine.follower.state.seqno:,}")]
        shown_rows += [("comment", control.about.comment)] if control.about.comment else []
        shown_rows += [*control.about.properties.items()]
        more = " …" if names[NAMES_SHOWN:] else ""
        shown_rows.append((f"{len(names):,} collections", ", ".join(names[:NAMES_SHOWN]) + more))
        caption = f"Client of {self.url}{', closed' if self.engine.is_closed else ''}"
        return render_html_table(caption, shown_rows) + render_html_rows(
            ("collection", "since", "upper"), self._list_frontiers(names)
        )

    def _list_frontiers(self, names: Sequence[str]) -> list[tuple[str, str, str]]:
        """Return names and frontiers of the first known collections."""
        state = self.engine.follower.state
        rows = []
        for name in names[:NAMES_SHOWN]:
            contents = state.entries[state.ids[name]].contents
            if contents is None:
                rows.append((name, "", ""))
                continue
            timeline = None if contents.timeline is None else Timeline(contents.timeline)
            since, upper = (
                "for ever" if end == END else show_time(end, timeline) for end in (contents.since, contents.upper)
            )
            rows.append((name, since, upper))
        return rows

    def __reduce__(self) -> Any:
        return _unpickle_client, (describe_origin(self.engine, self),)

    def __repr__(self) -> str:
        return f"<Client of {self.url}, mode {self.mode!r}{', closed' if self.engine.is_closed else ''}>"


def _unpickle_client(origin: Origin) -> Client:
    return Client(origin.open())
