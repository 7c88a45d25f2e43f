"""What Postgres sends, without a server: messages of its log, types of its catalog, and values as text."""

import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.connect.ingest.postgres.pgoutput import (
    Column,
    Relation,
    format_lsn,
    parse_begin,
    parse_change,
    parse_lsn,
    parse_relation,
    parse_truncate,
)  # fmt: skip
from persist.connect.ingest.postgres.stream import _check_identity, _find_renames
from persist.connect.ingest.postgres.types import TEXT, Attributes, PgType, TypeCatalog, parse_texts
from persist.connect.ingest.source import UNSENT


def encode_row(*values: Any) -> bytes:
    """Return a row of a message; "?" is a value that is not sent."""
    parts = [
        b"n" if v is None else b"u" if v == "?" else b"t" + struct.pack(">i", len(v.encode())) + v.encode()
        for v in values
    ]
    return struct.pack(">h", len(values)) + b"".join(parts)


def test_messages_of_the_log_are_parsed() -> None:
    column = struct.Struct(">ii")
    text = b"\1id\0" + column.pack(23, -1) + b"\0v\0" + column.pack(-1, 655366) + b"\3x\0" + column.pack(25, 0)
    relation = b"R" + struct.pack(">i", 70_000) + b"public\0t\0d" + struct.pack(">h", 3) + text
    columns = (Column("id", 23, -1, True), Column("v", 0xFFFFFFFF, 655366, False), Column("x", 25, 0, True))
    assert parse_relation(relation) == Relation(70_000, "public", "t", "d", columns)
    assert parse_relation(b"R\0\0\0\7\0t\0f\0\0") == Relation(7, "pg_catalog", "t", "f", ())
    assert parse_begin(b"B" + struct.pack(">qqi", 1 << 40, 5, 7)) == (1 << 40, 946_684_800_000_005)
    assert parse_truncate(b"T" + struct.pack(">ibii", 2, 3, 7, 8)) == [7, 8]
    old, new = encode_row("1", None, ""), encode_row("2", "?", "é")
    for message, found in [
        (b"N" + new, (None, ["2", UNSENT, "é"], False)),
        (b"K" + old + b"N" + new, (["1", None, ""], ["2", UNSENT, "é"], True)),
        (b"O" + old + b"N" + new, (["1", None, ""], ["2", UNSENT, "é"], False)),
        (b"K" + old, (["1", None, ""], None, True)),
        (b"O" + old, (["1", None, ""], None, False)),
    ]:
        assert parse_change(b"U" + struct.pack(">i", 66_000) + message) == (66_000, *found)
    for position, text_ in (
        (0x16B3748, "0/16B3748"),
        ((1 << 32) - 1, "0/FFFFFFFF"),
        (5 << 32, "5/0"),
        (2**63, "80000000/0"),
    ):
        assert (format_lsn(position), parse_lsn(text_)) == (text_, position)


class Catalog:
    """A cursor whose answer is rows of pg_type."""

    def __init__(self, *rows: tuple[Any, ...]) -> None:
        self.rows = rows

    def execute(self, query: str, arguments: tuple[list[int], str]) -> None:
        self.arguments = arguments

    def fetchall(self) -> list[tuple[Any, ...]]:
        return [*self.rows]


def test_types_of_the_catalog_become_those_of_arrow() -> None:
    catalog = TypeCatalog()
    catalog.slot = "s"
    attributes = [["a", 1, 23, -1, False, False], ["b", 2, 25, -1, True, False], ["c", 3, 901, -1, False, True],
                  ["d", 4, 25, -1, True, True], ["e", 5, 25, -1, True, False]]  # fmt: skip
    cursor = Catalog(
        (900, 0, -1, 0, attributes, "pair"), (901, 1700, (5 << 16) + 2 + 4, 0, None, "money2"),
        (902, 0, -1, 900, None, "pair[]"),
        (903, 0, -1, 0, [["x", 1, 25, -1, True, False]], "empty"),
        (904, 0, -1, 0, [["x", 2, 25, -1, False, False]], "old"),
    )  # fmt: skip
    catalog.load(cursor, [902, 900, 902])
    assert (cursor.arguments, catalog.names[902]) == (([900, 902], "s"), "pair[]")
    scalar, text = PgType(23, pa.int32()), PgType(25, pa.string())
    assert (catalog.make_type(23, -1), catalog.make_type(25, 7)) == (scalar, text)
    assert catalog.make_type(600, -1) == PgType(600, pa.string(), has_counterpart=False)
    assert (catalog.make_type(1043, (5 << 16) + 4), catalog.make_type(904, -1).added) == (PgType(1043, pa.string()), 0)
    assert (TEXT.has_counterpart, catalog.make_type(903, -1).is_nested) == (False, False)
    amount = catalog.make_type(901, -1)
    assert (amount, catalog.make_type(901, (9 << 16) + 4)) == (
        PgType(1700, pa.decimal128(5, 2)), PgType(1700, pa.decimal128(9, 0)),
    )  # fmt: skip
    pair = catalog.make_type(900, -1)
    kind = pa.struct([("a", pa.int32()), ("c", pa.decimal128(5, 2))])
    assert pair == PgType(900, kind, None, (("a", 1, scalar), ("c", 3, amount)), (2, 5), 4)
    many = catalog.make_type(902, -1)
    assert (many, many.is_nested, amount.is_nested) == (PgType(902, pa.list_(kind), pair), True, False)
    assert [*many.walk("v")] == [
        ("v", many), ("v.element", pair), ("v.element.a", scalar), ("v.element.c", amount),
    ]  # fmt: skip
    for modifier, found in [
        ((38 << 16) + 38 + 4, pa.decimal128(38, 38)), ((39 << 16) + 4, pa.string()), ((2 << 16) + 3 + 4, pa.string()),
        (-1, pa.string()), (3, pa.string()), ((2 << 16) + 0x7FF + 4, pa.string()),
        ((1 << 16) + 1 + 4, pa.decimal128(1, 1)),
    ]:  # fmt: skip
        assert catalog.make_type(1700, modifier).kind == found, modifier
    followed = Attributes(added={900: 3}).follow([many])
    assert followed == Attributes({900: {"a": 1, "c": 3}}, {900: 4})
    assert Attributes(added={900: 9}).follow([pair]).added == Attributes().follow([many], is_copy=True).added | {900: 9}
    assert Attributes().follow([pair, catalog.make_type(904, -1)], is_copy=True).added == {900: 5, 904: 2}
    assert Attributes().follow([catalog.make_type(904, -1)]) == Attributes({904: {"x": 2}}, {904: 0})
    assert Attributes().follow([amount]) == Attributes()
    late = [(1, 2, 3), (1, 3), (1, 2, 3, 5), (1, 3, 5), (1, 2, 3), (1, 3)]
    assert followed.list_layouts([pair]) == {900: late}
    early = [(), (1,), (1, 2), (1,)]
    assert Attributes(followed.numbers, {900: 0}).list_layouts([many]) == {900: early + late}
    full = PgType(900, kind, None, pair.attributes, tuple(range(4, 12)))
    assert len(Attributes(followed.numbers, {900: 99}).list_layouts([full])[900]) == 256
    full = PgType(900, kind, None, pair.attributes, tuple(range(4, 13)))
    assert Attributes(followed.numbers, {900: 99}).list_layouts([full]) == {900: []}


def test_texts_of_values_are_parsed_by_their_types() -> None:
    number, text = PgType(23, pa.int32()), PgType(25, pa.string())
    pair = PgType(9, pa.struct([("a", pa.int32()), ("b", pa.string())]), None, (("a", 1, number), ("b", 3, text)))
    layouts = {9: [(1, 2, 3), (1,), (1,)]}

    def parse(type_: PgType | pa.DataType, *texts: str | None) -> list[Any]:
        type_ = PgType(0, type_) if isinstance(type_, pa.DataType) else type_
        found = parse_texts(pa.array(texts, pa.string()), type_, "t.c", layouts)
        assert found.type == type_.kind
        return found.to_pylist()  # type: ignore[no-any-return]

    noon = datetime(2026, 1, 2, 12, 0, 0, 5)
    assert parse(pa.string(), "x", None) == ["x", None]
    assert parse(pa.bool_(), "t", "f", None) == [True, False, None]
    assert parse(pa.binary(), "\\x00ff", "\\x", None) == [b"\0\xff", b"", None]
    assert parse(pa.time64("us"), "12:00:00.000005", None) == [time(12, 0, 0, 5), None]
    assert parse(pa.timestamp("us"), "2026-01-02 12:00:00.000005", None) == [noon, None]
    assert (
        parse(pa.timestamp("us", "UTC"), "2026-01-02 12:00:00.000005+00", "2026-01-02 12:00:00.000005+00:00")
        == [noon.replace(tzinfo=UTC)] * 2
    )
    assert parse(pa.date32(), "2026-01-02", None) == [date(2026, 1, 2), None]
    assert parse(pa.decimal128(5, 2), "1.5") == [Decimal("1.50")]
    for kind, ends in (
        (pa.date32(), pa.int32()),
        (pa.timestamp("us"), pa.int64()),
        (pa.timestamp("us", "UTC"), pa.int64()),
    ):
        array = parse_texts(
            pa.array(
                [
                    "-infinity",
                    None,
                    "infinity",
                    "1970-01-01 00:00:00+00"[: 10 if kind == pa.date32() else 22 if kind.tz else 19],
                ]
            ),
            PgType(0, kind),
            "t.c",
            {},
        )
        end = 2 ** (ends.bit_width - 1) - 1
        assert (array.type, array.view(ends).to_pylist()) == (kind, [-end, None, end, 0])
    numbers = PgType(1, pa.list_(pa.int32()), number)
    assert parse(numbers, "{1,NULL,3}", None, "{}") == [[1, None, 3], None, []]
    assert parse(pair, "(7,,x)", None, "(8)", "(,,)") == [
        {"a": 7, "b": "x"}, None, {"a": 8, "b": None}, {"a": None, "b": None},
    ]  # fmt: skip
    assert parse(pair, '(7,,"x,y""")', None, "(8)") == [{"a": 7, "b": 'x,y"'}, None, {"a": 8, "b": None}]
    assert parse(PgType(2, pa.list_(pair.kind), pair), '{"(1,,x)",NULL}', "{(2)}") == [
        [{"a": 1, "b": "x"}, None], [{"a": 2, "b": None}],
    ]  # fmt: skip
    for type_, bad, why in [
        (number, "x", "a value of t.c is not of type int32: .*'x'.*Take the column as text, by as_text = "),
        (numbers, "[0:1]={1,2}", r"\[0:1\]=\{1,2\} has several dimensions, or does not begin at 1"),
        (numbers, ("{1}", "{{1},{2}}"), r"\{\{1\},\{2\}\} has several dimensions, or does not begin at 1"),
        (pair, "(1,2)", "^the type of t.c got other attributes more than once meanwhile, .* which 2 a value has"),
    ]:
        with pytest.raises(persist.InvalidUsage, match=why):
            parse(type_, *([bad] if isinstance(bad, str) else bad))


def test_columns_with_other_names_are_found_by_their_numbers() -> None:
    kind, pg = pa.int32(), PgType(23, pa.int32())

    def find(have: str, types: str, now: dict[str, int], **numbers: int | None) -> Any:
        return _find_renames("c", "t", numbers, dict.fromkeys(have, kind), dict.fromkeys(types, pg), now)

    assert find("ab", "ab", {"a": 1, "b": 2}, a=1, b=2) == {}
    assert find("ab", "xb", {"x": 1, "b": 2}, a=1, b=2) == {"a": "x"}
    assert find("ab", "xb", {"y": 1, "b": 2}, a=1, b=2) == {"a": "x"}  # It had two names meanwhile.
    assert find("ab", "b", {"b": 2}, a=1, b=2) == {}  # It was dropped.
    assert find("ab", "abz", {"a": 1, "b": 2, "z": 3}, a=1, b=2) == {}
    assert find("ab", "b", {"b": 2}, a=None, b=2) == {}
    cases: list[Any] = [
        (("ab", "ba", {"a": 2, "b": 1}), {"a": 1, "b": 2}, "a"),
        (("abc", "xyc", {"v": 1, "w": 2, "c": 3}), {"a": 1, "b": 2, "c": 3}, "a"),
        (("ab", "b", {"z": 1, "b": 2}), {"a": 1, "b": 2}, "a"),
    ]
    for arguments, numbers, name in cases:
        with pytest.raises(persist.InvalidUsage, match=rf"^columns of the table t have .* which one '{name}' is\. "):
            find(*arguments, **numbers)


@pytest.mark.parametrize(
    ("identity", "sent", "key", "lacks"),
    [
        ("f", "", ["a"], None), ("f", "", None, None), ("n", "", ["a"], None), ("d", "ab", ["a"], None),
        ("d", "b", ["a", "b"], "a, b"), ("i", "b", ["b"], None), ("d", "a", None, "all columns"),
        ("n", "", None, "all columns"),
    ],
)  # fmt: skip
def test_old_rows_must_have_the_key(identity: str, sent: str, key: list[str] | None, lacks: str | None) -> None:
    relation = Relation(1, "public", "t", identity, tuple(Column(name, 23, -1, name in sent) for name in "ab"))
    if lacks is None:
        return _check_identity("c", "t", relation, key)
    with pytest.raises(persist.InvalidUsage, match=rf"^the table t has .*, so old rows come without {lacks}\. Set it"):
        _check_identity("c", "t", relation, key)
