"""Rows inside messages: their columns, and readers for pieces of messages.

A row is an object at a place in a message, such as "after"; several places of a message may have rows of one table.

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
from persist.codecs.order.arrays import make_boolean_array
from persist.connect.envelopes.json_numbers import infer_exact_fields
from persist.connect.envelopes.json_rows import find_suspects, parse, split_pieces
from persist.connect.envelopes.kafka_connect import NAMES, Described, make_reader
from persist.connect.envelopes.messages import (
    Reader,
    Unreadable,
    choose_reader,
    decode_samples,
    list_values,
    make_list_reader,
    make_row_reader,
)

ReaderFactory = Callable[[str, pa.DataType, list[object]], Reader]


@dataclass(frozen=True)
class RowPlan:
    """How messages with the same schema part are read.

    Attributes:
        places: the members of a message with rows; () if the message is the row.
        types: the columns of a row, by name.
        how: returns the reader of a column for its name, its type and samples of its values.
        paths, path_types: by name, the path of a further value of a message, and its type.
        listed: whether each place has an array of rows.
    """

    places: tuple[str, ...]
    types: Mapping[str, pa.DataType]
    how: ReaderFactory
    paths: Mapping[str, str] = field(default_factory=dict)
    path_types: Mapping[str, pa.DataType] = field(default_factory=dict)
    listed: bool = False

    def read(self, texts: pa.Array) -> pa.RecordBatch:
        """Return a struct column for each place of rows (or "row"), and a column for each path."""
        how = self._choose_readers(texts)
        whole = parse(texts, how.fields).to_struct_array().combine_chunks()
        columns = {place: how.rows.convert(_get_at_path(whole, (place,))) for place in self.places}
        if not self.places:
            columns["row"] = how.row.convert(_pick_members(whole, how.row.wire))
        for name, extra_reader in how.extra.items():
            columns[name] = extra_reader.convert(_get_at_path(whole, tuple(self.paths[name].split("."))))
        return pa.RecordBatch.from_pydict(columns)

    def find_suspects(self, texts: pa.Array) -> npt.NDArray[np.bool_]:
        """Return bool[texts]: messages that look bad."""
        try:
            return find_suspects(texts, self._choose_readers(texts).fields)
        except Unreadable:  # A bad sample is not an example of good ones.
            return np.zeros(len(texts), np.bool_)

    def _choose_readers(self, texts: pa.Array) -> "_PieceReaders":
        """Choose how a batch of messages is read, by samples of its values."""
        samples = decode_samples(texts)
        row_samples = (
            [row for place in self.places for row in list_values(samples, place)] if self.places else list(samples)
        )
        if self.listed:
            row_samples = [row for rows in row_samples if isinstance(rows, list) for row in rows]
        row = make_row_reader(
            {name: self.how(name, t, list_values(row_samples, name)) for name, t in self.types.items()}
        )
        rows = make_list_reader(row) if self.listed else row
        extra = {
            n: choose_reader(self.path_types[n], list_values(samples, *p.split(".")), n) for n, p in self.paths.items()
        }
        wires: list[tuple[tuple[str, ...], pa.DataType]] = [((place,), rows.wire) for place in self.places]
        wires += [] if self.places else [((f.name,), f.type) for f in row.wire]
        wires += [(tuple(self.paths[name].split(".")), extra_reader.wire) for name, extra_reader in extra.items()]
        return _PieceReaders(row, rows, extra, pa.schema(_nest_fields(wires)))


@dataclass(frozen=True, slots=True)
class _PieceReaders:
    """The readers of one row, of the rows at a place, and of metadata; the fields to parse."""

    row: Reader
    rows: Reader
    extra: Mapping[str, Reader]
    fields: pa.Schema


def _pick_members(whole: pa.StructArray, wire: pa.StructType) -> pa.StructArray:
    """Return a struct with only the members that a type has."""
    if not len(wire.names):
        return pa.array([{}] * len(whole), pa.struct([]))
    return pa.StructArray.from_arrays([whole.field(name) for name in wire.names], fields=list(wire))


def _nest_fields(wires: list[tuple[tuple[str, ...], pa.DataType]]) -> list[pa.Field]:
    """Return the fields of a message type that has these types at these paths."""
    tops = dict.fromkeys(path[0] for path, _ in wires)
    fields = []
    for top in tops:
        inner_wires = [(path[1:], t) for path, t in wires if path[0] == top]
        whole = [t for path, t in inner_wires if not path]
        deeper = [(path, t) for path, t in inner_wires if path]
        if whole and deeper:
            raise InvalidUsage(f"options read {top!r} and fields inside of it: name only the fields that you need.")
        fields.append(pa.field(top, whole[0] if whole else pa.struct(_nest_fields(deeper))))
    return fields


def _get_at_path(whole: pa.Array, path: tuple[str, ...]) -> pa.Array:
    """Return the column at a path inside of a struct column."""
    return pc.struct_field(whole, list(path))


def infer_row_types(texts: pa.Array, places: tuple[str, ...], listed: bool = False) -> dict[str, pa.DataType]:
    """Return the types of the rows' columns, inferred from JSON. Bad messages are skipped."""
    wholes = [
        whole
        for start, stop in split_pieces(texts)
        for whole in _infer_message_types(texts.slice(start, stop - start), places)
    ]
    rows = [whole.field(p).type for whole in wholes for p in places if whole.get_field_index(p) >= 0]
    rows = [t.value_type if listed and pat.is_list(t) else t for t in (rows if places else wholes)]
    row_type = merge_types([replace_moments(t) for t in rows if pat.is_struct(t)])
    if not pat.is_struct(row_type):
        return {}
    if not places:
        row_type = pa.struct(list(infer_exact_fields(pa.schema(list(row_type)), lambda: [texts])))
    else:
        whole = infer_exact_fields(
            pa.schema([(p, pa.list_(row_type) if listed else row_type) for p in places]), lambda: [texts]
        )
        row_type = merge_types([field.type.value_type if listed else field.type for field in whole])
    return {f.name: f.type for f in row_type}


def _infer_message_types(texts: pa.Array, places: tuple[str, ...]) -> list[pa.StructType]:
    """Return the inferred types of messages: one for all, or of each if Arrow fails on all."""
    try:
        return [pa.struct(list(parse(texts, None).schema))]
    except (Unreadable, pa.ArrowException, UnicodeDecodeError):
        odd = find_suspects(texts, pa.schema([]))
        if odd.any():  # Invalid JSON has no types.
            return _infer_message_types(texts.filter(make_boolean_array(~odd)), places) if not odd.all() else []
        return [t for text in texts.to_pylist() if (t := _infer_message_type(text, places)) is not None]


def _infer_message_type(text: bytes, places: tuple[str, ...]) -> pa.StructType | None:
    """Return the inferred type of a JSON message, or None."""
    try:
        document = json.loads(text)
        part = {place: document[place] for place in places if place in document} if places else document
        inferred_type = pa.infer_type([part])
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        return None
    return inferred_type if pat.is_struct(inferred_type) else None


def get_described_types(described: Described, logical: Mapping[str, Described]) -> dict[str, pa.DataType]:
    """Return the type of each column of a row that Connect's schema describes."""
    return {n: make_reader(logical.get(n, f), None, [], n).target for n, f in described.fields.items()}


def make_reader_factory(described: Described | None, logical: Mapping[str, Described]) -> ReaderFactory:
    """Return a function that chooses a column's reader by its description or samples.

    `described`: the schema part, if there is one; `logical`: the user's types by column. With neither, an ambiguous
    value raises Unreadable.
    """

    def how(name: str, target: pa.DataType, samples: list[object]) -> Reader:
        """Choose the reader of a column."""
        description = logical.get(name) or (described.fields.get(name) if described is not None else None)
        if description is not None:
            return make_reader(description, target, samples, name)
        if described is None and (problem := explain_ambiguity(target, samples, name)):
            raise Unreadable(problem)
        return choose_reader(target, samples, name)

    return how


def explain_ambiguity(target: pa.DataType, samples: list[object], name: str) -> str | None:
    """Return why samples can be read as `target` in several ways; None if they cannot."""
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


def merge_types(types: list[pa.DataType], name: str = "") -> pa.DataType:
    """Return the common type for values of all types."""
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
        return pa.struct([(n, merge_types(inner, f"{name}.{n}".lstrip("."))) for n, inner in types_by_name.items()])
    if all(pat.is_list(kind) for kind in kinds):
        return pa.list_(merge_types([kind.value_type for kind in kinds], name))
    type_names = " and ".join(sorted({str(kind) for kind in kinds}))
    raise InvalidUsage(f"column {name!r} is {type_names} in different messages: give a schema that says which it is.")


def replace_moments(kind: pa.DataType) -> pa.DataType:
    """Return a type with text in place of the moments that Arrow inferred."""
    if pat.is_timestamp(kind):
        return pa.string()
    if pat.is_struct(kind):
        return pa.struct([(f.name, replace_moments(f.type)) for f in kind])
    return pa.list_(replace_moments(kind.value_type)) if pat.is_list(kind) else kind
