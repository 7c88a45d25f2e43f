"""Types of Postgres: what they become in Arrow, and their values from texts.

Composites become structs, and arrays become lists. Types without a counterpart stay text. A session with `SESSION`
writes the texts: moments in UTC, dates as ISO writes them, bytes as hex, and floats with all digits.

The log has a composite value as text, such as `(7,"Long Lane",)`, without the names of its attributes, and it does not
report `ALTER TYPE`. So the catalog is read after the values, and may be newer than them. The catalog numbers attributes
in the order of their creation, and keeps the numbers of dropped ones. A *layout* is the numbers of the attributes that
a value has. The count of fields in a value selects its layout among the possible ones; if two have this count, the
value is refused.

After a change of an attribute that is older than the slot's `catalog_xmin`, no value to come has the earlier layout.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.nested import COLUMN, Node
from persist.codecs.order.arrays import make_boolean_array
from persist.connect.ingest.source import StoredProperty
from persist.core.errors import InvalidUsage

SESSION = (
    "SET timezone = 'UTC'; SET datestyle = 'ISO'; SET bytea_output = 'hex'; SET extra_float_digits = 1; "
    "SET intervalstyle = 'iso_8601'"
)
NUMERIC, TIMESTAMPTZ, BYTEA, BOOL = 1700, 1184, 17, 16
_TYPES = {
    BOOL: pa.bool_(), BYTEA: pa.binary(), 20: pa.int64(), 21: pa.int16(), 23: pa.int32(), 26: pa.int64(),
    700: pa.float32(), 701: pa.float64(), 1082: pa.date32(), 1083: pa.time64("us"), 1114: pa.timestamp("us"),
    TIMESTAMPTZ: pa.timestamp("us", "UTC"),
}  # fmt: skip
_TEXTS = {18, 19, 25, 114, 1042, 1043, 2950, 3802}  # char, name, text, json, bpchar, varchar, uuid, jsonb
_DIGITS_MAX = 38
DROPPED_MAX = 8  # Of a composite: each dropped attribute doubles the possible layouts.
Layouts = Mapping[int, Sequence[tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class PgType:
    """The type of a column, domains resolved: a base type, an array, or a composite.

    Attributes:
        kind: its Arrow type.
        element: the type of the elements of an array; otherwise None.
        attributes: (name, number, type) of each attribute of a composite.
        dropped: the numbers of dropped attributes, which values that are still in the log may have.
        added: values that are still in the log are later than the creation of attributes up to this number.
        has_counterpart: whether Arrow has such a type; otherwise values are kept as text.
    """

    oid: int
    kind: pa.DataType
    element: "PgType | None" = None
    attributes: "tuple[tuple[str, int, PgType], ...]" = ()
    dropped: tuple[int, ...] = ()
    added: int = 0
    has_counterpart: bool = True

    @property
    def is_nested(self) -> bool:
        return self.element is not None or bool(self.attributes)

    def walk(self, path: str = "") -> Iterator[tuple[str, "PgType"]]:
        """Yield this type and all types inside, with their paths."""
        yield path, self
        if self.element is not None:
            yield from self.element.walk(f"{path}.element")
        for name, _, type_ in self.attributes:
            yield from type_.walk(f"{path}.{name}")


TEXT = PgType(25, pa.string(), has_counterpart=False)
_QUERY = """
WITH RECURSIVE reached(oid) AS (
  SELECT unnest(%s::int8[]::oid[])
  UNION SELECT more.oid FROM reached r JOIN pg_type t ON t.oid = r.oid CROSS JOIN LATERAL (
    SELECT t.typbasetype WHERE t.typtype = 'd'
    UNION ALL SELECT t.typelem WHERE t.typinput = 'array_in'::regproc
    UNION ALL SELECT atttypid FROM pg_attribute WHERE attrelid = t.typrelid AND t.typtype = 'c' AND attnum > 0
      AND NOT attisdropped) more(oid))
SELECT t.oid::int8, t.typbasetype::int8, t.typtypmod,
  CASE WHEN t.typinput = 'array_in'::regproc AND t.typdelim = ',' THEN t.typelem::int8 ELSE 0 END,
  (SELECT json_agg(json_build_array(attname, attnum, atttypid::int8, atttypmod, attisdropped, age(xmin) >
      (SELECT age(catalog_xmin) FROM pg_replication_slots WHERE slot_name = %s)) ORDER BY attnum)
    FROM pg_attribute WHERE attrelid = t.typrelid AND t.typtype = 'c' AND attnum > 0),
  t.oid::regtype::text
FROM reached JOIN pg_type t USING (oid)
"""


class TypeCatalog:
    """Types of the server's catalog, as of the last load.

    Attributes:
        names: the SQL names of types, by number.
        slot: the replication slot from which values will be read.
    """

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, int, int, list[tuple[str, int, int, int, bool, bool]]]] = {}
        self.names: dict[int, str] = {}
        self.slot = ""

    def load(self, cursor: Any, oids: Iterable[int]) -> None:
        """Load types from the catalog, and the types inside of them. Cost: a query."""
        cursor.execute(_QUERY, (sorted({*oids}), self.slot))
        for oid, base, modifier, element, attributes, self.names[oid] in cursor.fetchall():
            self._rows[oid] = base, modifier, element, attributes or []

    def make_type(self, oid: int, modifier: int) -> PgType:
        """Return a loaded type by its number and modifier, such as a precision."""
        base, domain_modifier, element, rows = self._rows.get(oid, (0, -1, 0, []))
        if base:
            return self.make_type(base, domain_modifier if modifier == -1 else modifier)
        if element:
            inner = self.make_type(element, modifier)
            return PgType(oid, pa.list_(inner.kind), element=inner)
        attributes = tuple((row[0], row[1], self.make_type(row[2], row[3])) for row in rows if not row[4])
        if attributes:
            kind = pa.struct([(name, type_.kind) for name, _, type_ in attributes])
            dropped = tuple(row[1] for row in rows if row[4] and not row[5])
            return PgType(oid, kind, None, attributes, dropped, max((row[1] for row in rows if row[5]), default=0))
        kind = _to_arrow_type(oid, modifier)
        return PgType(oid, kind, has_counterpart=oid in _TEXTS or kind != pa.string())


def _to_arrow_type(type_: int, modifier: int) -> pa.DataType:
    """Return the Arrow type for the number and modifier of a base type; text if unknown."""
    if type_ == NUMERIC:
        bits = modifier - 4  # Without a modifier, which is -1 then, the precision is too large.
        precision, scale = bits >> 16 & 0xFFFF, bits & 0x7FF
        if scale <= precision <= _DIGITS_MAX:
            return pa.decimal128(precision, scale)
    return _TYPES.get(type_, pa.string())


class Attributes(StoredProperty, frozen=True):
    """The attribute numbers of composite types, as a collection has them.

    Attributes:
        numbers: {type number: {name of an attribute: its number}}.
        added: {type number: as in `PgType`}.
    """

    NAME = "ingest.attributes"

    numbers: dict[int, dict[str, int]] = msgspec.field(default_factory=dict)
    added: dict[int, int] = msgspec.field(default_factory=dict)

    def follow(self, types: Iterable[PgType], *, is_copy: bool = False) -> Self:
        """Return the present attributes; after a copy, values have all of these."""
        numbers, added = dict[int, dict[str, int]](), dict[int, int]()
        for type_ in _find_composites(types):
            numbers[type_.oid] = {name: number for name, number, _ in type_.attributes}
            latest = max([*type_.dropped, *numbers[type_.oid].values()]) if is_copy else type_.added
            added[type_.oid] = max(latest, self.added.get(type_.oid, 0))
        return type(self)(numbers, added)

    def list_layouts(self, types: Iterable[PgType]) -> Layouts:
        """Return by type number the attribute numbers that a value to come may have."""
        return {type_.oid: _list_layouts(type_, self.added[type_.oid]) for type_ in _find_composites(types)}


def _find_composites(types: Iterable[PgType]) -> list[PgType]:
    """Return all composite types in types, and inside of them."""
    return [type_ for column in types for _, type_ in column.walk() if type_.attributes]


def _list_layouts(type_: PgType, added: int) -> list[tuple[int, ...]]:
    """Return the possible sequences of attribute numbers in a value of a composite type."""
    if len(type_.dropped) > DROPPED_MAX:
        return []
    numbers = sorted([*type_.dropped, *(number for _, number, _ in type_.attributes)])
    layouts = []
    for last in [added, *(number for number in numbers if number > added)]:
        present = [number for number in numbers if number <= last]
        lost_numbers = [number for number in present if number in type_.dropped]
        for lost in chain.from_iterable(combinations(lost_numbers, count) for count in range(len(lost_numbers) + 1)):
            layouts.append(tuple(number for number in present if number not in lost))
    return layouts


def make_node_before(name: str, kind: pa.DataType, now: PgType | None, known: Attributes, number: int = COLUMN) -> Node:
    """Return a collection's column as a tree of fields, identified by attribute numbers."""
    inner: list[Node] = []
    if now is not None and now.element is not None and pa.types.is_list(kind):
        inner = [make_node_before("element", kind.value_type, now.element, known, 0)]
    elif now is not None and now.attributes and pa.types.is_struct(kind):
        types = {at: type_ for _, at, type_ in now.attributes}
        numbers = known.numbers.get(now.oid) or {name: at for name, at, _ in now.attributes}  # It was another type.
        for at, field in enumerate(kind):
            place = numbers.get(field.name, -2 - at)
            inner.append(make_node_before(field.name, field.type, types.get(place), known, place))
    return Node(number, name, kind, tuple(inner))


def make_node_now(name: str, type_: PgType, number: int = COLUMN) -> Node:
    """Return a table's column as a tree of fields, identified by attribute numbers."""
    inner = [make_node_now(*attribute_of) for attribute_of in ((n, t, at) for n, at, t in type_.attributes)]
    if type_.element is not None:
        inner = [make_node_now("element", type_.element, 0)]
    return Node(number, name, type_.kind, tuple(inner))


def parse_texts(texts: pa.Array, type_: PgType, where: str, layouts: Layouts) -> pa.Array:
    """Parse Postgres's texts as an array of a type; `layouts` as of `Attributes.list_layouts`."""
    try:
        if type_.element is not None:
            return _parse_lists(texts, type_.element, where, layouts)
        if type_.attributes:
            return _parse_composites(texts, type_, where, layouts)
        return _parse_scalars(texts, type_.kind)
    except InvalidUsage:
        raise
    except (pa.ArrowException, ValueError) as error:
        raise InvalidUsage(
            f"a value of {where} is not of type {type_.kind}: {' '.join(str(error).split())}. Take the column as "
            f"text, by as_text = "
            f'["{where}"], or leave it out, by exclude = ["{where}"]; a collection that is there is renamed first, and '
            "keeps its history"
        ) from None


def _parse_scalars(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parse Postgres's texts as values of a flat type."""
    if pa.types.is_string(kind):
        return texts
    if pa.types.is_boolean(kind):
        return pc.equal(texts, "t")
    if pa.types.is_binary(kind):
        return pa.array([None if text is None else bytes.fromhex(text[2:]) for text in texts.to_pylist()], pa.binary())
    if pa.types.is_time(kind):
        day = pa.scalar("1970-01-01", pa.string())
        return pc.binary_join_element_wise(day, texts, " ").cast(pa.timestamp("us")).cast(kind)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        numbers, end = (pa.int32(), 2**31 - 1) if pa.types.is_date(kind) else (pa.int64(), 2**63 - 1)
        ends = [pc.equal(texts, text) for text in ("infinity", "-infinity")]
        finite = pc.if_else(pc.or_(*ends), None, texts).cast(kind)  # Postgres's infinities become DuckDB's.
        if finite.null_count == texts.null_count:
            return finite
        values = pc.case_when(
            pc.make_struct(*ends), *(pa.scalar(n, numbers) for n in (end, -end)), finite.view(numbers)
        )
        return values.view(kind)
    return texts.cast(kind)


def _parse_lists(texts: pa.Array, element: PgType, where: str, layouts: Layouts) -> pa.Array:
    """Parse the texts of arrays as lists; an array has one dimension, and begins at 1."""
    from psycopg2.extensions import UNICODEARRAY

    lists: list[list[Any] | None] = []
    for text in texts.to_pylist():
        lists.append(None if text is None else UNICODEARRAY(text, None))
        if text is not None and (text.startswith("[") or any(isinstance(item, list) for item in lists[-1] or ())):
            raise ValueError(f"{text[:40]} has several dimensions, or does not begin at 1")
    array = pa.array(lists, pa.list_(pa.string()))
    values = parse_texts(array.values, element, where, layouts)
    return pa.ListArray.from_arrays(array.offsets, values, mask=array.is_null())


def _parse_composites(texts: pa.Array, type_: PgType, where: str, layouts: Layouts) -> pa.Array:
    """Parse the texts of composites as structs; an attribute that a value lacks is NULL."""
    from psycopg2.extras import CompositeCaster

    if pc.any(pc.match_substring(texts, '"')).as_py():
        lists = [None if text is None else CompositeCaster.tokenize(text) for text in texts.to_pylist()]
        fields = pa.array(lists, pa.list_(pa.string()))
        flat = fields.values
    else:
        fields = pc.split_pattern(pc.utf8_slice_codeunits(texts, 1, -1), ",")
        flat = pc.if_else(pc.equal(fields.values, ""), None, fields.values)
    counts = pc.list_value_length(fields).fill_null(0).to_numpy()
    starts = fields.offsets.to_numpy()[:-1].astype(np.int64)
    places = {number: np.full(len(texts), -1, np.int64) for _, number, _ in type_.attributes}
    for count in {*counts.tolist()} - {0}:
        has_count = counts == count
        for at, number in enumerate(_find_layout(count, type_, where, layouts)):
            if number in places:
                places[number][has_count] = starts[has_count] + at
    children = []
    for _, number, inner in type_.attributes:
        at = pa.array(places[number], mask=places[number] < 0)
        children.append(parse_texts(flat.take(at), inner, where, layouts))
    return pa.StructArray.from_arrays(children, fields=[*type_.kind], mask=make_boolean_array(counts == 0))


def _find_layout(count: int, type_: PgType, where: str, layouts: Layouts) -> Sequence[int]:
    """Return the attribute numbers of a value with `count` fields; raise InvalidUsage if ambiguous."""
    possible = {layout for layout in layouts[type_.oid] if len(layout) == count}
    if len(possible) != 1:
        raise InvalidUsage(
            f"the type of {where} got other attributes more than once meanwhile, so it is not known which {count} a "
            "value has. To copy again, rename the collection, and give the same command again"
        )
    [layout] = possible
    return layout
