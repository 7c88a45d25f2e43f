"""First builds: the contents of new views at their first times, computed by DuckDB from the stored parts.

Our operators arrange every input by key, which later refreshes need and a first answer does not. So DuckDB computes the
nodes of the plan that can be written as SQL with the same meaning (`persist.compute.sql.plan_text`). Our operators
compute the nodes above these, such as an order with a limit. One commit writes all outputs, hidden ones included, as
any other refresh does. Afterwards the program goes on from its sealed outputs with partial arrangements.

- **Parts** are fetched and verified, and their bytes lie in files of this process's memory, which DuckDB reads. It
  decodes only the columns and row groups that the query needs. Sources with retractions or other schemas are read as
  snapshots.
- **Times.** The first time is where the view begins. If the inputs were written at a few times after it, the contents
  at each of them are computed, and their differences are the updates.
- **Fallback.** Our operators compute everything if DuckDB raises, or is not installed. They also do if DuckDB would
  return most of the rows, or if much has changed at many times.
- **Memory.** The parts take at most the view's `memory_budget`, and DuckDB as much again. Otherwise our operators work.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from persist.codecs.part.decoding import Request, verify_checksum
from persist.codecs.part.part import Part
from persist.codecs.types.calculator import is_supported_version
from persist.compute.dataflow.plan.draft import Captured
from persist.compute.dataflow.plan.plan import Constant, Join, Node, Persist, Plan, Reduce, Source
from persist.compute.dataflow.ports.ports import Ports
from persist.compute.dataflow.ports.sources import SourceReader
from persist.compute.dataflow.program import Program
from persist.compute.dataflow.running.partial import explain_why_not_partial
from persist.compute.dataflow.running.running import Options
from persist.compute.dataflow.stream import Stream
from persist.compute.dataflow.updates.words import Domain
from persist.compute.query import quote_name
from persist.compute.sql.graph import ViewProgram
from persist.compute.sql.plan_text import (
    Relation,
    Untranslatable,
    check_columns,
    sum_weights,
    write_column,
    write_node,
)
from persist.core.errors import HoldMoved, NegativeMultiplicity, UpperMismatch, ViewRedefined
from persist.core.progress import check_limits, report_work
from persist.engine.collection.reads import snapshot
from persist.engine.location.engine import Engine
from persist.engine.read.parts.caches import fetch_checked
from persist.engine.read.planning.scan import Scan, narrow_scan

TIMES_MAX = 8  # The contents at so many times are computed; later changes are left to refreshes.
SMALL_ROWS = 1 << 14  # Fewer returned rows cost little.
_NOTHING = pa.table({})
FILES_MAX = 256  # Each part has a file open; many systems let a process have 1,024.
REMAINING_SHARE = 16  # If more than this share of the rows comes later, refreshes would look up too much.
RETURNED_SHARE = 4  # If DuckDB returns more than this share of the rows, our operators would do most of the work.


def build_first(program: ViewProgram, engine: Engine, options: Options) -> int | None:
    """Commit the first contents of new views; return the seqno, or None if operators must build them."""
    plan = program.optimise()
    if not _is_new(program, plan) or explain_why_not_partial(plan) is not None:
        return None
    states = [program.load_source(engine, name).get_known_state() for name in _list_sources(plan).values()]
    parts = [part for state in states for part in state.parts]
    if sum(part.rows for part in parts) < options.costs.first_build_rows:
        return None
    if sum(not part.inline for part in parts) > FILES_MAX or sum(part.bytes for part in parts) > options.memory_budget:
        return None
    with suppress(ImportError, Untranslatable, NegativeMultiplicity, UpperMismatch, HoldMoved, ViewRedefined):
        import duckdb  # Here: it takes long to load.

        if not is_supported_version(duckdb.__version__) or not hasattr(os, "memfd_create"):
            return None
        with suppress(duckdb.Error, pa.ArrowException), Ports.of_job(program, engine, plan) as ports:
            times = _choose_times(ports.sources, options)
            if times and all(output.upper == 0 for output in ports.outputs.every):
                with report_work("refresh", program.name, unit="updates") as tell:
                    with _Build(plan, ports.sources, duckdb, options.memory_budget) as build:
                        tables = build.compute_updates(times)
                    check_limits()
                    seqno = ports.outputs.commit_tables(times[-1] + 1, tables)
                    tell(sum(map(len, tables.values())))
                return seqno
    return None


def _is_new(program: ViewProgram, plan: Plan) -> bool:
    """Return whether, by the known state, none of the outputs was ever computed."""
    names = [node.operator.collection for node in plan.nodes.values() if isinstance(node.operator, Persist)]
    handles = [program.output(name) for name in names]
    return bool(names) and all(handle is not None and handle.get_known_state().upper == 0 for handle in handles)


def _choose_times(sources: Sequence[SourceReader], options: Options) -> list[int]:
    """Return the times whose contents are computed; none if a first build does not pay."""
    states = [reader.handle.get_known_state() for reader in sources]
    begin, upper = max((reader.as_of for reader in sources), default=0), min((s.upper for s in states), default=0)
    later = [part for state in states for part in state.history_parts if part.time_max > begin]
    limit = min([upper, *(part.time_min for part in later if part.time_min < part.time_max)])
    times = sorted({begin, *(part.time_min for part in later if begin < part.time_min < limit)})[:TIMES_MAX]
    parts = [part for state in states for part in state.parts if part.time_min < upper]
    covered = sum(part.rows for part in parts if part.time_max <= times[-1])
    remaining = sum(part.rows for part in parts) - covered
    is_worth = begin < upper and covered >= options.costs.first_build_rows and remaining <= covered // REMAINING_SHARE
    return times if is_worth else []


class _Build:
    """Computes the contents of a plan's outputs at some times; use it in a `with`.

    Attributes:
        relations: the SQL of each node that DuckDB can compute.
        kept: nodes that several others read, in the order in which their tables are made.
        cuts: the nodes whose contents DuckDB returns.
    """

    def __init__(self, plan: Plan, sources: Sequence[SourceReader], duckdb: Any, memory_limit: int) -> None:
        self._plan = plan
        self._readers = dict(zip(_list_sources(plan), sources, strict=True))
        self._readers_of = plan.find_readers()
        self.relations: dict[int, Relation] = {}
        self._without: set[int] = set()
        self.kept: dict[int, str] = {}
        self.sinks = {
            node.operator.collection: node for node in plan.nodes.values() if isinstance(node.operator, Persist)
        }
        self.cuts: dict[int, pa.Table] = {}
        for sink in self.sinks.values():
            self._find_cuts(sink.inputs[0])
        if not any(isinstance(plan.nodes[number].operator, Join | Reduce) for number in self._list_translated()):
            raise Untranslatable
        self._open = ExitStack()
        self._files: dict[str, str] = {}  # By the blobs of parts.
        self._memory_limit = memory_limit
        limits = {"memory_limit": f"{memory_limit}B", "temp_directory": "", "enable_external_file_cache": "false"}
        self._connection = duckdb.connect(config=limits)

    def __enter__(self) -> "_Build":
        self._open.callback(self._connection.close)
        self._connection.execute("SET TimeZone = 'UTC'")  # As `get_calculator`.
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def compute_updates(self, times: Sequence[int]) -> dict[str, pa.Table]:
        """Return the updates of each output at some times."""
        updates: dict[str, list[pa.Table]] = {name: [] for name in self.sinks}
        previous: dict[str, pa.Table] = {}
        for time in times:
            contents = self._compute_contents(time)
            for name, table in contents.items():
                changed = self._subtract(table, previous[name]) if previous and len(previous[name]) else table
                updates[name].append(changed.append_column("_time", pa.array(np.full(len(changed), time))))
            previous = contents
        return {name: pa.concat_tables(tables) for name, tables in updates.items()}

    def _list_translated(self) -> set[int]:
        """Return the nodes that DuckDB computes."""
        todo, numbers = [*self.cuts], set[int]()
        while todo:
            number = todo.pop()
            if number not in numbers:
                numbers.add(number)
                todo += self._plan.nodes[number].inputs
        return numbers

    def _find_cuts(self, number: int) -> None:
        """Add the topmost nodes that DuckDB can compute, at or below a node, to `cuts`."""
        if self._translate(number) is not None:
            self.cuts[number] = _NOTHING
            return
        node = self._plan.nodes[number]
        if isinstance(node.operator, Source):
            raise Untranslatable  # What is above cuts reads nothing else.
        for below in node.inputs:
            self._find_cuts(below)

    def _translate(self, number: int) -> Relation | None:
        """Return the SQL for the contents of a node; None if it has none."""
        if number in self.relations or number in self._without:
            return self.relations.get(number)
        node = self._plan.nodes[number]
        inputs = [relation for below in node.inputs if (relation := self._translate(below)) is not None]
        try:
            if len(inputs) < len(node.inputs):
                raise Untranslatable
            relation = self._write_node(node, inputs)
        except Untranslatable:
            self._without.add(number)
            return None
        if isinstance(node.operator, Join | Reduce) and len(self._readers_of[number]) > 1:
            self.kept[number] = relation.text
            relation = replace(relation, text=f"SELECT * FROM n{number}")
        self.relations[number] = relation
        return relation

    def _write_node(self, node: Node, inputs: Sequence[Relation]) -> Relation:
        """Return the SQL of a node. Raises Untranslatable: it has none."""
        if not isinstance(node.operator, Source | Constant):
            return write_node(self._plan, node, inputs, self.relations)
        check_columns(node.schema)
        columns = ", ".join(write_column(column.name, column.type) for column in node.schema) or "0 AS nothing"
        return Relation(f"SELECT {columns} FROM n{node.number}", node.schema)

    def _compute_contents(self, time: int) -> dict[str, pa.Table]:
        """Return the contents of each output at a time: its columns and `_diff`."""
        check_limits()
        translated = self._list_translated()
        read = 0
        for number in translated:
            node = self._plan.nodes[number]
            if isinstance(node.operator, Source):
                read += self._lend_source(node, self._readers[number], time)
            elif isinstance(node.operator, Constant):
                self._register(f"n{number}", node.operator.table.select(node.schema.names))
        for number, text in self.kept.items():
            if number in translated:
                self._connection.execute(f"CREATE OR REPLACE TEMP TABLE n{number} AS {text}")
        outputs = {sink.inputs[0] for sink in self.sinks.values()}
        for number in self.cuts:
            relation = sum_weights(self.relations[number])
            if not relation.names:
                raise Untranslatable
            columns = ", ".join(write_column(column.name, column.type) for column in relation.schema)
            answer = self._connection.sql(f"SELECT {columns} FROM ({relation.text})")
            table = answer.to_arrow_table().cast(self._plan.nodes[number].schema)
            for column in table.columns:
                if pat.is_int64(column.type) or pat.is_timestamp(column.type):
                    Domain().encode(column)  # It refuses -2**63, as later refreshes will.
            self.cuts[number] = table.append_column("_diff", pa.array(np.ones(len(table), np.int64)))
            if number not in outputs and len(table) > max(SMALL_ROWS, read // RETURNED_SHARE):
                raise Untranslatable
        return self._finish()

    def _finish(self) -> dict[str, pa.Table]:
        """Compute the outputs from the contents that DuckDB returned, by our operators."""
        contents = {name: self.cuts[sink.inputs[0]] for name, sink in self.sinks.items() if sink.inputs[0] in self.cuts}
        if len(contents) == len(self.sinks):
            return contents
        program, captured = Program("first build"), dict[str, Captured]()
        numbers: dict[int, int] = {}

        def add(number: int) -> int:
            """Add a node of the plan to the program; return its number there."""
            if number not in numbers:
                node = self._plan.nodes[number]
                if number in self.cuts:
                    kinds = {column.name: column.type for column in node.schema}
                    numbers[number] = program.input(str(number), key=None, value=kinds).number
                else:
                    inputs = tuple(map(add, node.inputs))
                    numbers[number] = program.plan.add(node.operator, inputs, node.schema, name=node.title).number
            return numbers[number]

        for name, sink in self.sinks.items():
            if name not in contents:
                captured[name] = Stream(program, add(sink.inputs[0])).capture()
        with program.open(None, optimise=False) as running:
            for number, table in self.cuts.items():
                if number in numbers:
                    running[str(number)].insert(table.append_column("_time", pa.array(np.zeros(len(table), np.int64))))
                    running[str(number)].close()
            running.run()
            return contents | {name: capture.updates().drop_columns(["_time"]) for name, capture in captured.items()}

    def _subtract(self, table: pa.Table, previous: pa.Table) -> pa.Table:
        """Return the updates that turn previous contents into new contents."""
        names = ", ".join(quote_name(name) for name in table.column_names[:-1])
        union = f"SELECT {names}, _diff FROM present UNION ALL SELECT {names}, -_diff FROM previous"
        self._register("present", table)
        self._register("previous", previous)
        summed = f"SELECT {names}, CAST(sum(_diff) AS BIGINT) AS _diff FROM ({union}) GROUP BY {names}"
        text = f"{summed} HAVING sum(_diff) <> 0"
        changes: pa.Table = self._connection.sql(text).to_arrow_table()
        return changes.cast(table.schema)

    def _lend_source(self, node: Node, reader: SourceReader, time: int) -> int:
        """Let DuckDB read a source's contents at a time; return the most rows they can have."""
        handle, view = reader.handle, f"n{node.number}"
        version, arrow = handle.schema.version, handle.schema.arrow
        schema = node.schema if len(node.schema) else pa.schema([arrow.field(handle.schema.names[0])])
        names = schema.names
        with snapshot(handle, time, columns=names, form="rows", schema=version) as contents:
            scan = contents.scan
            if not _is_plain(scan, schema):
                if scan.memory > self._memory_limit:
                    raise Untranslatable
                table = contents.to_arrow().select(names).cast(schema)
                self._register(view, table)
                return len(table)
            scan = scan if reader.filter is None else narrow_scan(scan, reader.filter) or scan
            files = [part for part in scan.all_parts if not part.inline]
            small = [part for part in scan.all_parts if part.inline]
            store = handle.engine.reader()
            for part in files:
                if part.blob not in self._files:
                    self._files[part.blob] = fetch_checked(store.blob, part, partial(self._write_file, part))
            tables = [store.table(part, Request(scan.schema, names)) for part in small]
        texts = [f"SELECT * FROM n{node.number}_inline"]
        self._register(f"n{node.number}_inline", pa.concat_tables([schema.empty_table(), *tables]))
        if files:
            paths = ", ".join(f"'{self._files[part.blob]}'" for part in files)
            columns = ", ".join(map(quote_name, names))
            texts.append(f"SELECT {columns} FROM read_parquet([{paths}])")
        self._connection.execute(f"CREATE OR REPLACE TEMP VIEW {view} AS {' UNION ALL '.join(texts)}")
        return sum(part.rows for part in scan.all_parts)

    def _register(self, name: str, table: pa.Table) -> None:
        """Let DuckDB read a table by a name, in place of an earlier table of that name."""
        self._connection.execute(f"DROP VIEW IF EXISTS {name}")
        self._connection.register(name, table)

    def _write_file(self, part: Part, data: bytes) -> str:
        """Verify a part; write its bytes to a file in memory, and return its path."""
        verify_checksum(data, part)
        try:
            descriptor = os.memfd_create("part")
            self._open.callback(os.close, descriptor)
            with open(descriptor, "wb", closefd=False) as file:
                file.write(data)
        except OSError as error:  # Such as too many open files.
            raise Untranslatable from error
        return f"/proc/self/fd/{descriptor}"


def _list_sources(plan: Plan) -> dict[int, str]:
    """Return the collections that a plan reads, by the number of the node."""
    return {n: node.operator.collection for n, node in plan.nodes.items() if isinstance(node.operator, Source)}


def _is_plain(scan: Scan, schema: pa.Schema) -> bool:
    """Return whether the rows of a scan are exactly the rows of its files."""
    return (
        scan.narrow is None
        and scan.filter is None
        and scan.sign > 0
        and all(scan.schema.arrow.field(column.name).type == column.type for column in schema)
        and len({name.casefold() for name in scan.schema.arrow.names}) == len(scan.schema.arrow)
        and all(scan.is_inside(part) for part in scan.parts)
        and all(
            not part.negatives and part.diff_sum == part.rows and part.make_lift(scan.schema) is None
            for part in scan.all_parts
        )
    )
