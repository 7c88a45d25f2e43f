"""Rows inside messages: their columns, and readers for pieces of messages.

A row is an object at a place in a message, such as "after"; several places of one message hold rows of one table.

Without a schema, the types of columns are inferred from all messages of the batch. Text that looks like a moment stays
text, because the next batch may differ. For the same reason, give a stream a schema.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.blob.errors import InvalidUsage
from persist.codecs.order.arrays import boolean_array
from persist.connect.envelopes.json_numbers import exact_fields
from persist.connect.envelopes.json_rows import parse, pieces, suspects
from persist.connect.envelopes.kafka_connect import NAMES, Described, described_reader
from persist.connect.envelopes.messages import (
    Reader,
    Unreadable,
    decode_samples,
    list_reader,
    list_values,
    reader,
    row_reader,
)

How = Callable[[str, pa.DataType, list[object]], Reader]


@dataclass(frozen=True)
class RowPlan:
    """How messages of one description are read.

    Attributes:
        places: the members of a message that hold rows; () if the message is the row.
        types: the columns of a row, by name.
        how: makes the reader of a column from its name, its type and samples of what it holds.
        paths: further values of a message, by name: where they are.
        path_types: the types of these.
        listed: whether each place holds an array of rows.
    """

    places: tuple[str, ...]
    types: Mapping[str, pa.DataType]
    how: How
    paths: Mapping[str, str] = field(default_factory=dict)
    path_types: Mapping[str, pa.DataType] = field(default_factory=dict)
    listed: bool = False

    def read(self, texts: pa.Array) -> pa.RecordBatch:
        """Return a column of structs for each place (or "row"), and one for each path.

        Raises:
            Unreadable, InvalidUpdate, pa.ArrowException: some message is bad.
        """
        how = self._how_read(texts)
        whole = parse(texts, how.fields).to_struct_array().combine_chunks()
        columns = {place: how.rows.convert(_at(whole, (place,))) for place in self.places}
        if not self.places:
            columns["row"] = how.row.convert(_pick_members(whole, how.row.wire))
        for name, extra_reader in how.extra.items():
            columns[name] = extra_reader.convert(_at(whole, tuple(self.paths[name].split("."))))
        return pa.RecordBatch.from_pydict(columns)

    def suspects(self, texts: pa.Array) -> npt.NDArray[np.bool_]:
        """Return which of some messages look bad."""
        try:
            return suspects(texts, self._how_read(texts).fields)
        except Unreadable:  # A bad sample is not an example of good ones.
            return np.zeros(len(texts), np.bool_)

    def _how_read(self, texts: pa.Array) -> "_HowRead":
        samples = decode_samples(texts)
        row_samples = (
            [row for place in self.places for row in list_values(samples, place)] if self.places else list(samples)
        )
        if self.listed:
            row_samples = [row for rows in row_samples if isinstance(rows, list) for row in rows]
        row = row_reader({name: self.how(name, t, list_values(row_samples, name)) for name, t in self.types.items()})
        rows = list_reader(row) if self.listed else row
        extra = {n: reader(self.path_types[n], list_values(samples, *p.split(".")), n) for n, p in self.paths.items()}
        wires: list[tuple[tuple[str, ...], pa.DataType]] = [((place,), rows.wire) for place in self.places]
        wires += [((name,), f.wire) for name, f in zip(row.wire.names, _columns(row), strict=True) if not self.places]
        wires += [(tuple(self.paths[name].split(".")), extra_reader.wire) for name, extra_reader in extra.items()]
        return _HowRead(row, rows, extra, pa.schema(_nested(wires)))


@dataclass(frozen=True, slots=True)
class _HowRead:
    """How to read some messages: the row, its fields, metadata, and the fields of a message."""

    row: Reader
    rows: Reader
    extra: Mapping[str, Reader]
    fields: pa.Schema


def _columns(row: Reader) -> list[Reader]:
    return [Reader(f.type, lambda column: column, f.type) for f in row.wire]


def _pick_members(whole: pa.StructArray, wire: pa.StructType) -> pa.StructArray:
    if not len(wire.names):
        return pa.array([{}] * len(whole), pa.struct([]))
    return pa.StructArray.from_arrays([whole.field(name) for name in wire.names], fields=list(wire))


def _nested(wires: list[tuple[tuple[str, ...], pa.DataType]]) -> list[pa.Field]:
    """Return the fields of a message that has values of certain types at certain paths."""
    tops = dict.fromkeys(path[0] for path, _ in wires)
    fields = []
    for top in tops:
        inner_wires = [(path[1:], t) for path, t in wires if path[0] == top]
        whole = [t for path, t in inner_wires if not path]
        deeper = [(path, t) for path, t in inner_wires if path]
        if whole and deeper:
            raise InvalidUsage(f"{top!r} is read as a whole and in parts: give the parts of it that are wanted, only.")
        fields.append(pa.field(top, whole[0] if whole else pa.struct(_nested(deeper))))
    return fields


def _at(whole: pa.Array, path: tuple[str, ...]) -> pa.Array:
    return pc.struct_field(whole, list(path))


def inferred(texts: pa.Array, places: tuple[str, ...], listed: bool = False) -> dict[str, pa.DataType]:
    """Return the columns of the rows, as JSON has them; bad messages are skipped."""
    wholes = [whole for start, stop in pieces(texts) for whole in _wholes(texts.slice(start, stop - start), places)]
    rows = [whole.field(p).type for whole in wholes for p in places if whole.get_field_index(p) >= 0]
    rows = [t.value_type if listed and pat.is_list(t) else t for t in (rows if places else wholes)]
    row_type = merged([as_sent(t) for t in rows if pat.is_struct(t)])
    if not pat.is_struct(row_type):
        return {}
    if not places:
        row_type = pa.struct(list(exact_fields(pa.schema(list(row_type)), lambda: [texts])))
    else:
        whole = exact_fields(
            pa.schema([(p, pa.list_(row_type) if listed else row_type) for p in places]), lambda: [texts]
        )
        row_type = merged([field.type.value_type if listed else field.type for field in whole])
    return {f.name: f.type for f in row_type}


def _wholes(texts: pa.Array, places: tuple[str, ...]) -> list[pa.StructType]:
    """Return the types of some messages. Those that Arrow cannot infer together are taken one by one."""
    try:
        return [pa.struct(list(parse(texts, None).schema))]
    except (Unreadable, pa.ArrowException, UnicodeDecodeError):
        odd = suspects(texts, pa.schema([]))
        if odd.any():  # Invalid JSON has no types.
            return _wholes(texts.filter(boolean_array(~odd)), places) if not odd.all() else []
        return [t for text in texts.to_pylist() if (t := _whole(text, places)) is not None]


def _whole(text: bytes, places: tuple[str, ...]) -> pa.StructType | None:
    try:
        document = json.loads(text)
        part = {place: document[place] for place in places if place in document} if places else document
        inferred_type = pa.infer_type([part])
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        return None
    return inferred_type if pat.is_struct(inferred_type) else None


def described_types(what: Described, logical: Mapping[str, Described]) -> dict[str, pa.DataType]:
    """Return the columns that a described row has."""
    return {n: described_reader(logical.get(n, f), None, [], n).target for n, f in what.fields.items()}


def how_described(what: Described | None, logical: Mapping[str, Described]) -> How:
    """Return how columns are read that messages describe, or that the caller does.

    Without either, what could be several things is not guessed at.
    """

    def how(name: str, target: pa.DataType, samples: list[object]) -> Reader:
        """Choose the reader of a column."""
        description = logical.get(name) or (what.fields.get(name) if what is not None else None)
        if description is not None:
            return described_reader(description, target, samples, name)
        if what is None and (problem := doubt(target, samples, name)):
            raise Unreadable(problem)
        return reader(target, samples, name)

    return how


def doubt(target: pa.DataType, samples: list[object], name: str) -> str | None:
    """Return why samples of a column are ambiguous; None if they are not."""
    if not samples:
        return None
    sent = "text" if isinstance(samples[0], str) else "numbers" if type(samples[0]) in (int, float) else ""
    if pat.is_decimal(target) and sent == "text":
        could = 'base64 of a Decimal, or digits ("string")'
    elif sent == "numbers" and (pat.is_timestamp(target) or pat.is_time(target) or pat.is_duration(target)):
        could = "milliseconds, microseconds or nanoseconds"
    else:
        return None
    return (
        f"column {name!r} of type {target} is sent as {sent}, which may be {could}, and the messages have no schema "
        f"part that tells. Say it with types={{{name!r}: …}}, one of {', '.join(NAMES)}"
    )


def merged(types: list[pa.DataType], name: str = "") -> pa.DataType:
    """Return the common type that holds all of these.

    Raises:
        InvalidUsage: there is none, such as for numbers and texts.
    """
    kinds = [t for t in types if not pat.is_null(t)]
    if not kinds:
        return pa.null()
    if all(kind == kinds[0] for kind in kinds):
        return kinds[0]
    if all(pat.is_signed_integer(kind) for kind in kinds):
        return max(kinds, key=lambda kind: kind.bit_width)
    if all(pat.is_integer(kind) or pat.is_floating(kind) for kind in kinds):
        return pa.float64()
    if all(pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind) for kind in kinds):
        return max((kind for kind in kinds if pat.is_decimal(kind)), key=lambda kind: int(kind.scale))
    if all(pat.is_struct(kind) for kind in kinds):
        names = list(dict.fromkeys(f.name for kind in kinds for f in kind))
        types_by_name = {n: [kind.field(n).type for kind in kinds if kind.get_field_index(n) >= 0] for n in names}
        return pa.struct([(n, merged(inner, f"{name}.{n}".lstrip("."))) for n, inner in types_by_name.items()])
    if all(pat.is_list(kind) for kind in kinds):
        return pa.list_(merged([kind.value_type for kind in kinds], name))
    type_names = " and ".join(sorted({str(kind) for kind in kinds}))
    raise InvalidUsage(f"column {name!r} is {type_names} in different messages: give a schema that says which it is.")


def as_sent(t: pa.DataType) -> pa.DataType:
    """Return a type that `pyarrow.json` has inferred, with text wherever it took text for moments."""
    if pat.is_timestamp(t):
        return pa.string()
    if pat.is_struct(t):
        return pa.struct([(f.name, as_sent(f.type)) for f in t])
    return pa.list_(as_sent(t.value_type)) if pat.is_list(t) else t
