"""A collection's schema: the Arrow fields of its key and value, with their codecs.

Invariants:
- every field has a plain supported type (see `arrow_types`) and no metadata; it is nullable unless it was declared not
  null, and its inner fields are always nullable;
- a value column may be declared as JSON: everywhere else it is a column of strings;
- names are unique over key and value, and none of them is `_time` or `_diff`;
- a codec side is one field, named "key" or "value", of the codec's Arrow type; a unit side has no field;
- two schemas are equal exactly when their written forms are: codec objects are not compared, names and
versions are;
- the first version of a schema has the ids 0, 1, 2 … and no defaults, and omits both in its written form;
  `persist.codecs.evolution` defines later versions.

`docs/inside/format.md` has the written form ("Schemas").
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import msgspec
import pyarrow as pa

from persist.codecs.errors import CodecMismatch, SchemaMismatch, did_you_mean
from persist.codecs.types.arrow_types import (
    JSON,
    Json,
    check_type,
    decode_type,
    encode_type,
    format_type,
    is_flat,
    list_inner_fields,
    list_leaf_types,
)
from persist.codecs.types.codec import BUILT_IN, Codec, Unit, check_codec
from persist.codecs.types.python_types import parse_fields

NAME_CHARS_MAX = 128
# Each leaf column costs 0.2 KB in the footer of each part and 0.2 ms for each part that is written or read: one update
# of so many columns takes 6 MB and seconds. Checked for new schemas, not for stored ones.
LEAVES_MAX = 20_000
TIME = "_time"
DIFF = "_diff"
TIME_MAX = 2**63 - 2  # The greatest time: one more is the first that no update may have.
NOT_NULL = "not null"
SHARED_BYTES_MAX = 4096  # Longer written forms belong to wide schemas, which take memory and are few.
TIME_UNITS = ("s", "ms", "us", "ns")

T = TypeVar("T")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

# Besides, whatever `persist.codecs.types.python_types` makes fields of: frames and their schemas, dataclasses.
Shape: TypeAlias = tuple[pa.DataType, tuple[int, ...]]
SideSpec: TypeAlias = Mapping[str, Any] | pa.Schema | Codec[Any] | type[Any] | Any | None


@dataclass(frozen=True, slots=True)
class Side:
    """The key or the value of a schema: fields, and any codec.

    Attributes:
        fields: one per column; `()` for unit.
        codec: the codec object, if this process has it.
        codec_name: set whenever the side has a codec, even if this process lacks it.
        codec_version: set together with `codec_name`.
    """

    fields: tuple[pa.Field, ...]
    codec: Codec[Any] | None = field(default=None, compare=False)
    codec_name: str | None = None
    codec_version: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The column names, in order."""
        return tuple(f.name for f in self.fields)

    @classmethod
    def of(cls, spec: SideSpec, side: str) -> "Side":
        """Build one side from an argument of `create_or_load`; `side` is "key" or "value"."""
        if spec is None or isinstance(spec, Unit) or spec is Unit:
            return cls(())
        if isinstance(spec, Codec) or (isinstance(spec, type) and issubclass(spec, Codec)):
            codec = check_codec(spec)
            return cls((_make_field(side, codec.arrow_type),), codec, codec.name, codec.version)
        pairs = parse_fields(spec, side)
        for name, arrow_type, _ in pairs:
            _check_name(name, side)
            check_type(arrow_type, f"{side} field {name!r}")
        return cls(tuple(_make_field(*pair) for pair in pairs))

    def to_json(self) -> Json:
        """Return the JSON form, as the log stores it."""
        if not self.fields:
            return None
        if self.codec_name is None:
            return {"fields": [[f.name, encode_type(f.type), *([] if f.nullable else [NOT_NULL])] for f in self.fields]}
        return {
            "codec": self.codec_name,
            "version": self.codec_version,
            "type": encode_type(self.fields[0].type),
        }

    @classmethod
    def from_json(cls, j: Json, side: str) -> "Side":
        """Read the JSON form; raise ValueError for anything else. Built-in codecs are resolved by name."""
        match j:
            case None:
                return cls(())
            case {"fields": [_, *_] as pairs, **rest} if not rest:
                return cls(tuple(_decode_field(pair) for pair in pairs))
            case {"codec": str(name), "version": int(version), "type": written, **rest} if not rest:
                built_in = BUILT_IN.get(name)
                codec = built_in() if built_in is not None and built_in.version == version else None
                stored = decode_type(written)
                if codec is not None and codec.arrow_type != stored:
                    raise ValueError(f"codec {name!r} stores {codec.arrow_type}, and not {stored}")
                return cls((pa.field(side, stored),), codec, name, version)
        raise ValueError(f"{j!r:.80} is not the written form of a {side}")


class _Derived(dict[Callable[["CollectionSchema"], Any], Any]):
    """A schema's cache for `compute_once`; it is not pickled."""

    def __reduce__(self) -> tuple[type["_Derived"], tuple[()]]:
        return _Derived, ()


@dataclass(frozen=True, slots=True, weakref_slot=True)
class CollectionSchema:
    """The fields of key and value of one collection, with derived values that are computed once.

    Attributes:
        timeline: the unit of `TIME_UNITS` in which times count since 1970-01-01T00:00Z; None without a timeline.
        version: 1, and one more with each change.
        ids: of the columns, key and value; a reused name has a new id. By default they are 0, 1, 2 ….
        defaults: by id, the value of a column in records that are older than it, as JSON.
        inner: numbers of the fields inside of columns (`persist.codecs.nested`), by the column's id; without an entry
            these are 0, 1, 2 ….
        known: all versions of the collection's schema, including this one; empty if there is only one.
        is_widened: whether columns have their newest types instead of those of this version; only for reading, made by
            `persist.codecs.evolution.find_newest_types`.
        order: the names of the columns in the order of tables, if this is not the key and then the value: a view's
            query may compute a column before its group columns.
        key_names, value_names: column names per side, in order; `names` is both.
        columns: the names in `order`, for displays of the collection as a table.
        required: the names of the columns that were declared not null: writes of NULL are refused there.
        json: the names of the columns that hold documents of JSON: writes of other texts are refused there.
        declared: the fields of key and value, as the user declared them.
        arrow: the key's fields, the value's, then `_time` and `_diff` (int64, not nullable). Required columns are
        nullable there, as in parts.
        types: the types of the columns of `arrow`.
        shapes: of each column of key and value, its type and the numbers of the fields inside, () for 0, 1, 2 …. A
        column means the same in two versions exactly if ids and shapes are equal.
    """

    key: Side
    value: Side
    timeline: str | None = None
    version: int = 1
    ids: tuple[int, ...] = ()
    defaults: tuple[tuple[int, str], ...] = ()
    known: tuple["CollectionSchema", ...] = field(default=(), repr=False, compare=False)
    is_widened: bool = False
    order: tuple[str, ...] = ()
    inner: tuple[tuple[int, tuple[int, ...]], ...] = ()
    _derived: _Derived = field(init=False, repr=False, compare=False)
    key_names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    value_names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    columns: tuple[str, ...] = field(init=False, repr=False, compare=False)
    required: tuple[str, ...] = field(init=False, repr=False, compare=False)
    json: tuple[str, ...] = field(init=False, repr=False, compare=False)
    declared: pa.Schema = field(init=False, repr=False, compare=False)
    arrow: pa.Schema = field(init=False, repr=False, compare=False)
    types: tuple[pa.DataType, ...] = field(init=False, repr=False, compare=False)
    shapes: tuple[Shape, ...] = field(init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        """Return a line for each column: its name, its type, and whether it is of the key or required."""
        width = max(map(len, self.columns), default=0)
        lines = [f"CollectionSchema, version {self.version}, times in {self.timeline or 'numbers'}"]
        for name in self.columns:
            marks = [*(["key"] if name in self.key_names else []), *(["required"] if name in self.required else [])]
            kind = format_type(self.declared.field(name).type)
            lines.append(f"  {name:{width}}  {kind}{' ' * bool(marks)} {' '.join(marks)}".rstrip())
        return "\n".join(lines)

    def __post_init__(self) -> None:
        names = self.key.names + self.value.names
        name, count = next(iter(Counter(names).most_common(1)), ("", 1))
        if count > 1:
            raise SchemaMismatch(
                f"field {name!r} occurs {count} times in key {list(self.key.names)} and value "
                f"{list(self.value.names)}: names must be unique over both. Rename one of them."
            )
        if self.order and sorted(self.order) != sorted(names):
            raise SchemaMismatch(f"order={list(self.order)} is not an order of the columns {list(names)}")
        declared = (*self.key.fields, *self.value.fields)
        if of_key := [f.name for f in self.key.fields if f.type == JSON]:
            raise SchemaMismatch(
                f"key field {of_key[0]!r} is of type json, and one document can be written in several ways: declare "
                "it as string, if its text is the key"
            )
        ends = [pa.field(TIME, pa.int64(), nullable=False), pa.field(DIFF, pa.int64(), nullable=False)]
        stored = (f.with_type(pa.string()) if f.type == JSON else f for f in declared)
        arrow = pa.schema([*(f.with_nullable(True) for f in stored), *ends])
        ids, inner = self.ids or tuple(range(len(names))), dict(self.inner)
        numbers = [inner.get(id_, ()) for id_ in ids]
        worked_out = {
            "_derived": _Derived(),
            "ids": ids,
            "key_names": self.key.names,
            "value_names": self.value.names,
            "names": names,
            "columns": self.order or names,
            "required": tuple(f.name for f in declared if not f.nullable),
            "json": tuple(f.name for f in declared if f.type == JSON),
            "declared": pa.schema(declared),
            "arrow": arrow,
            "types": tuple(arrow.types),
            "shapes": tuple(
                (f.type, () if of_field == tuple(range(len(of_field))) else of_field)
                for f, of_field in zip(declared, numbers, strict=True)
            ),
        }
        for name, value in worked_out.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, key: SideSpec, value: SideSpec, timeline: str | None = None) -> "CollectionSchema":
        """Build a schema from arguments of `create_or_load`.

        Args:
            key: names with types (dict or pa.Schema), a codec (class or instance), or None for unit.
            value: the same, for values.
            timeline: a unit of time, or None.
        """
        if timeline is not None and timeline not in TIME_UNITS:
            raise SchemaMismatch(
                f"timeline={timeline!r} is not a unit of time: give one of {', '.join(map(repr, TIME_UNITS))}, or None "
                "for times that are plain numbers"
            )
        sides = (Side.of(key, "key"), Side.of(value, "value"))
        check_width([*sides[0].fields, *sides[1].fields])
        return cls(*sides, timeline)

    def compute_once(self, make: Callable[["CollectionSchema"], T]) -> T:
        """Return a function's result for this schema, computed once; faster than a cache with the schema as key."""
        if make not in self._derived:
            self._derived[make] = make(self)
        derived: T = self._derived[make]
        return derived

    @property
    def key_types(self) -> tuple[pa.DataType, ...]:
        """The types of the key columns."""
        return self.types[: len(self.key_names)]

    @property
    def reading(self) -> str:
        """A cache key for decoded bytes: how this schema reads them.

        The bytes are not enough: a batch does not name its columns, and a name may be another column in another
        version.
        """
        return self.compute_once(_describe_reading)

    def check_distinct(self, what: str, names: Sequence[str]) -> tuple[str, ...]:
        """Return column names as a tuple; raise SchemaMismatch if unknown or repeated."""
        if isinstance(names, str):
            raise SchemaMismatch(f"{what}={names!r} is one string; give a list of names, such as [{names!r}]")
        try:
            listed = tuple(names)
        except TypeError as error:
            raise SchemaMismatch(f"{what}={names!r} is not a list of names") from error
        unknown = [name for name in listed if name not in self.names]
        if unknown:
            hint = did_you_mean(unknown[0], self.names)
            problem = f"{unknown[0]!r} is not a column of this collection{hint or ','}"
            raise SchemaMismatch(f"{what} {list(listed)} cannot be had: {problem} it has {list(self.names)}")
        if twice := [name for name, count in Counter(listed).items() if count > 1]:
            raise SchemaMismatch(f"{what} {list(listed)} cannot be had: {twice[0]!r} is there twice. Name it once.")
        return listed

    def to_json(self) -> dict[str, Json]:
        """Return the JSON form, as the log stores it."""
        sides: dict[str, Json] = {"key": self.key.to_json(), "value": self.value.to_json()}
        if self.timeline is not None:
            sides["timeline"] = self.timeline
        if self.columns != self.names:
            sides["order"] = list(self.order)
        if self.inner:
            sides["inner"] = {str(id_): list(numbers) for id_, numbers in self.inner}
        if self.version > 1:
            sides |= {"version": self.version, "ids": list(self.ids)}
        if self.defaults:
            sides["defaults"] = {str(id_): msgspec.json.decode(written) for id_, written in self.defaults}
        return sides

    @classmethod
    def from_json(cls, j: Json) -> "CollectionSchema":
        """Read the JSON form; codecs that this process lacks are None. Raises ValueError for an invalid form.

        Equal written forms return one object, because many collections share an immutable schema.
        """
        try:
            written = msgspec.json.encode(j)
        except RecursionError:
            raise ValueError("the schema is nested too deep") from None
        return _intern_schema(written) if len(written) <= SHARED_BYTES_MAX else _decode_schema(j)

    def reconcile(self, stored: "CollectionSchema", collection: str) -> "CollectionSchema":
        """Return the stored schema with the caller's codec objects, if both agree.

        A field stored as not null matches a nullable declaration, because a bare type does not state nullability.

        Args:
            stored: what the collection was created with.
            collection: its name, for messages.

        Raises:
            CodecMismatch: a codec's name or version differs.
            SchemaMismatch: anything else differs; the message lists every difference.
        """
        for side, ours, stored_side in (("key", self.key, stored.key), ("value", self.value, stored.value)):
            if ours.codec_name is None or stored_side.codec_name is None:
                continue
            if (ours.codec_name, ours.codec_version) != (stored_side.codec_name, stored_side.codec_version):
                raise CodecMismatch(
                    f"the {side} of collection {collection!r} is stored with codec {stored_side.codec_name!r} version "
                    f"{stored_side.codec_version}, and codec {ours.codec_name!r} version {ours.codec_version} was "
                    "given. Give the stored codec, or use another collection name."
                )
        differences = _list_differences("key", self.key, stored.key) + _list_differences(
            "value", self.value, stored.value
        )
        if self.timeline != stored.timeline:
            differences.append(f"the timeline is stored as {stored.timeline!r}, given as {self.timeline!r}")
        if differences:
            raise SchemaMismatch(
                f"collection {collection!r} has another schema than the one given: {'; '.join(differences)}. "
                "Give the stored schema, or use another collection name; evolve() changes the stored one."
            )
        sides = (_adopt_codec(stored.key, self.key), _adopt_codec(stored.value, self.value))
        return replace(stored, key=sides[0], value=sides[1])


def _describe_reading(schema: CollectionSchema) -> str:
    """Compute `CollectionSchema.reading`."""
    if not schema.known:
        return f"{schema.key_names} {schema.value_names} {schema.types}"
    return msgspec.json.encode(
        [schema.version, schema.is_widened, *(version.to_json() for version in schema.known)]
    ).decode()


@lru_cache(maxsize=256)
def _intern_schema(written: bytes) -> CollectionSchema:
    """Return the schema of a JSON text, one object for equal texts."""
    return _decode_schema(msgspec.json.decode(written))


def _decode_schema(j: Json) -> CollectionSchema:
    """Build a schema from its JSON form; raises ValueError if it is invalid."""
    match j:
        case {"key": key, "value": value, **rest}:
            sides = Side.from_json(key, "key"), Side.from_json(value, "value")
            unit = rest.pop("timeline", None)
            order = _decode_order(rest.pop("order", ()), sides)
            count, written = sum(len(side.fields) for side in sides), rest.pop("inner", {})
            later = _parse_later_fields(rest, count) if rest else ()
            if unit is None or unit in TIME_UNITS:
                schema = CollectionSchema(*sides, unit, *later)
                return replace(schema, order=order, inner=_decode_inner(written, schema))
    raise ValueError(f"{j!r:.80} is not the written form of a schema")


def _decode_order(written: Any, sides: Sequence[Side]) -> tuple[str, ...]:
    """Return the column names in their declared order."""
    names = [name for side in sides for name in side.names]
    if written and not (isinstance(written, list) and all(isinstance(name, str) for name in written)):
        raise ValueError(f"{written!r:.80} is not a list of names")
    if written and sorted(written) != sorted(names):
        raise ValueError(f"{written!r:.80} is not an order of the columns {names}")
    return tuple(written)


def _decode_inner(written: Any, schema: CollectionSchema) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Decode the numbers of columns' inner fields, by column id."""
    counts = {str(id_): count_inner_fields(kind) for id_, kind in zip(schema.ids, schema.types, strict=False)}
    if not isinstance(written, dict) or not written.keys() <= counts.keys():
        raise ValueError(f"{written!r:.80} are not the numbers of fields inside of columns with ids {sorted(counts)}")
    for id_, numbers in written.items():
        is_listed = isinstance(numbers, list) and all(type(n) is int and 0 <= n < 2**31 for n in numbers)
        if not is_listed or not len(numbers) == len({*numbers}) == counts[id_] > 0:
            raise ValueError(f"{numbers!r:.80} are not the numbers of the fields inside of the column with id {id_}")
    return tuple(sorted((int(id_), tuple(numbers)) for id_, numbers in written.items()))


def count_inner_fields(kind: pa.DataType) -> int:
    """Return the number of inner fields of a type, at all depths."""
    return sum(1 + count_inner_fields(f.type) for f in list_inner_fields(kind)) if not is_flat(kind) else 0


def _parse_later_fields(rest: Any, columns: int) -> tuple[int, tuple[int, ...], tuple[tuple[int, str], ...]]:
    """Parse version, ids and defaults, which first versions do not store."""
    match rest:
        case {"version": int(version), "ids": [*ids], **more} if version > 1 and more.keys() <= {"defaults"}:
            if len(ids) == columns == len({*ids}) and all(type(id_) is int and 0 <= id_ < 2**31 for id_ in ids):
                return version, tuple(ids), _decode_defaults(more.get("defaults", {}), ids)
    raise ValueError(f"{rest!r:.80} is not what the written form of a schema may say besides")


def _decode_defaults(j: Any, ids: Sequence[int]) -> tuple[tuple[int, str], ...]:
    """Return the defaults of columns in JSON form, with the columns' ids."""
    texts = {str(id_) for id_ in ids}
    if not isinstance(j, dict) or not j.keys() <= texts:
        raise ValueError(f"{j!r:.80} are not the defaults of columns with the ids {sorted(texts)}")
    return tuple(sorted((int(id_), msgspec.json.encode(value).decode()) for id_, value in j.items()))


def check_field(name: object, kind: Any, side: str) -> None:
    """Raise SchemaMismatch if a field cannot have that name or type; side is "key" or "value"."""
    _check_name(name, side)
    check_type(kind, f"{side} field {name!r}")


def check_width(fields: Sequence[pa.Field]) -> None:
    """Raise SchemaMismatch if the fields of key and value together have more than `LEAVES_MAX` leaf columns."""
    leaves = sum(len(list_leaf_types(field.type)) for field in fields)
    if leaves > LEAVES_MAX:
        raise SchemaMismatch(
            f"key and value have {leaves} leaf columns, and a collection can have {LEAVES_MAX}: each flat field "
            "counts, and each flat field inside a struct, list or map. Split it into several collections with the "
            "same key, or keep what is alike in a map or a list."
        )


def _make_field(name: str, arrow_type: pa.DataType, nullable: bool = True) -> pa.Field:
    """Return a field whose type is plain, as if read from storage."""
    return pa.field(name, decode_type(encode_type(arrow_type)), nullable)


def _check_name(name: object, side: str) -> None:
    """Raise SchemaMismatch if a column may not have this name."""
    if not isinstance(name, str) or not name:
        problem = "a field's name is text that is not empty"
    elif len(name) > NAME_CHARS_MAX:
        problem = f"a field's name has at most {NAME_CHARS_MAX} characters, and this one has {len(name)}"
    elif _CONTROL.search(name) or (not name.isascii() and any("\ud800" <= c <= "\udfff" for c in name)):
        problem = "a field's name has no control characters or lone surrogates"
    elif name in (TIME, DIFF):
        problem = f"{TIME} and {DIFF} are the time and the diff of every update"
    else:
        return
    raise SchemaMismatch(f"{side} field {name!r:.80} is not allowed: {problem}. Choose another name.")


def _decode_field(pair: Any) -> pa.Field:
    """Return the field of a JSON list: name, type, perhaps "not null"."""
    match pair:
        case [str(name), kind]:
            return pa.field(name, decode_type(kind))
        case [str(name), kind, "not null"]:
            return pa.field(name, decode_type(kind), nullable=False)
    raise ValueError(f"{pair!r:.80} is not the written form of a field")


def _list_differences(side: str, requested: Side, stored: Side) -> list[str]:
    """Describe the differences between two sides, field by field."""
    if requested == stored:
        return []
    if requested.codec_name != stored.codec_name or not (requested.fields and stored.fields):
        return [f"the {side} is stored as {_describe_side(stored)}, given as {_describe_side(requested)}"]
    ours = {f.name: format_type(f.type) for f in requested.fields}
    stored_types = {f.name: format_type(f.type) for f in stored.fields}
    differences = [f"{side} field {n!r} ({stored_types[n]}) is missing" for n in stored_types if n not in ours]
    differences += [f"{side} field {n!r} ({ours[n]}) is unexpected" for n in ours if n not in stored_types]
    differences += [
        f"{side} field {n!r} is stored as {stored_types[n]}, given as {ours[n]}"
        for n in stored_types
        if n in ours and ours[n] != stored_types[n]
    ]
    loose = {f.name for f in stored.fields if f.nullable}
    differences += [
        f"{side} field {f.name!r} is stored as nullable, given as not null, and it may hold NULL by now"
        for f in requested.fields
        if not f.nullable and f.name in loose
    ]
    if differences or list(ours) == list(stored_types):
        return differences
    return [f"the {side} fields are stored in the order {list(stored_types)}, given in the order {list(ours)}"]


def _describe_side(side: Side) -> str:
    """Return a side's fields or codec for an error message."""
    if not side.fields:
        return "unit (no column)"
    if side.codec_name is not None:
        return f"codec {side.codec_name!r} version {side.codec_version}"
    fields = [f"{f.name}: {format_type(f.type)}" + ("" if f.nullable else f" {NOT_NULL}") for f in side.fields]
    return "fields {" + ", ".join(fields) + "}"


def _adopt_codec(stored: Side, requested: Side) -> Side:
    """Return a stored side with the codec object that the caller passes."""
    return Side(stored.fields, requested.codec or stored.codec, stored.codec_name, stored.codec_version)
