"""Infers the types of a file's columns: the file's own types, or for text, types that represent all values exactly.

Text is read to its end, because any row may decide the type. A CSV column gets the first type that fits all its values:
int64, boolean, float64, date32, time32[s], timestamp, string. Timestamps are in s or else in ns, and in UTC if all have
an offset. Whole numbers that an int64 or a double would change make it a decimal. A number with a leading zero or
plus is a code, so it stays text, as 0x10 does. A column without a value has the type null, until a later file has one.
"""

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.blob.errors import InvalidUsage
from persist.codecs.types.arrow_types import iterate_leaf_arrays, list_inner_fields, replace_inner_types
from persist.codecs.types.texts import parse_column
from persist.codecs.types.values import shorten
from persist.connect.envelopes import (
    NumberGuess,
    Unreadable,
    describe_error,
    encode_mixed_members,
    infer_exact_fields,
    parse,
)
from persist.connect.ingest.row_casts import get_wire_type
from persist.connect.ingest.row_csv import find_record_line, read_header, read_text_batches
from persist.connect.ingest.row_files import check_unique_names, read_json_blocks
from persist.connect.ingest.row_formats import MEND, RowFile, read_stored_schema

_CANDIDATES: tuple[pa.DataType, ...] = (
    pa.int64(), pa.bool_(), pa.float64(), pa.date32(), pa.time32("s"), pa.timestamp("s"), pa.timestamp("ns"),
    pa.timestamp("us"), pa.timestamp("s", "UTC"), pa.timestamp("ns", "UTC"), pa.timestamp("us", "UTC"),
)  # fmt: skip
_CODE = r"^([+-]?0[0-9]|\+[0-9]+$)"
_OFFSET = r"(Z|z|[+-]\d\d:?(\d\d)?)$"


def infer_types(file: RowFile, known_types: Mapping[str, pa.DataType] | None = None) -> dict[str, pa.DataType]:
    """Return the type of each column of a file; the null type for a column without values."""
    known_types = known_types or {}
    if file.format == "csv":
        types = _infer_csv_types(file, known_types)
    else:
        schema = _infer_json_schema(file, known_types) if file.format == "json" else read_stored_schema(file)
        check_unique_names(schema, file.name)
        types = {field.name: field.type for field in schema}
    return types | {name: kind for name, kind in known_types.items() if name in types}


def contains_null(kind: pa.DataType) -> bool:
    """Return whether a type is null or contains the null type."""
    if pat.is_null(kind) or (pat.is_struct(kind) and not kind.num_fields):
        return True
    return pat.is_nested(kind) and any(contains_null(kind.field(at).type) for at in range(kind.num_fields))


def _infer_csv_types(file: RowFile, known_types: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Return the types of CSV columns that have no known type."""
    names = read_header(file)
    guesses = {name: _TypeGuess() for name in names if name not in known_types}
    for batch in read_text_batches(file, names, [*guesses], lambda row: "skip") if guesses else ():
        for name, guess in guesses.items():
            try:
                guess.add(batch.column(name).cast(pa.string()))
            except pa.ArrowInvalid:
                line = find_record_line(file, name, lambda text: any("\udc80" <= char <= "\udcff" for char in text))
                raise InvalidUsage(
                    f"{file.name} cannot be read as csv: line {line}: column {name!r} is not UTF-8. Convert the file, "
                    f"such as with iconv -t utf-8. {MEND}"
                ) from None
    return {name: guesses[name].infer_type(name, file) if name in guesses else known_types[name] for name in names}


class _TypeGuess:
    """Guesses the type of a column: the first candidate that fits all of its texts."""

    def __init__(self) -> None:
        self._candidates: list[pa.DataType] | None = None
        self._numbers = NumberGuess()

    def add(self, texts: pa.Array) -> None:
        """Exclude the candidates that do not fit some of the texts."""
        values = texts.drop_null().unique()
        if not len(values):
            return
        if self._candidates is None:
            self._candidates = [*_CANDIDATES]
        if pc.any(pc.match_substring_regex(values, _CODE)).as_py():
            self._candidates = [kind for kind in self._candidates if pat.is_temporal(kind)]
        self._candidates = [kind for kind in self._candidates if _do_all_parse(values, kind)]
        if pa.float64() in self._candidates:
            self._note_number_digits(values)

    def _note_number_digits(self, values: pa.Array) -> None:
        """Note how many digits the numbers have before and after the point."""
        try:
            parse_column(pa.chunked_array([values]), pa.float64())
        except pa.ArrowInvalid:
            for text in values.to_pylist():
                self._numbers.add(text)
            return
        digits = pc.utf8_ltrim(values, "+-")
        point, length = pc.find_substring(digits, "."), pc.utf8_length(digits)
        whole = pc.if_else(pc.less(point, 0), length, point)
        self._numbers.whole = max(self._numbers.whole, pc.max(whole).as_py())
        self._numbers.scale = max(self._numbers.scale, pc.max(pc.subtract(length, whole)).as_py() - 1)
        odd = digits.filter(pc.match_substring_regex(digits, "[^0-9.]"))
        self._numbers.odd = self._numbers.odd or (odd[0].as_py() if len(odd) else None)

    @property
    def kind(self) -> pa.DataType:
        """The first type that fits all texts; null without values."""
        return pa.null() if self._candidates is None else next(iter(self._candidates), pa.string())

    def infer_type(self, name: str, file: RowFile) -> pa.DataType:
        """Return `kind`, or an exact type for floats; raise InvalidUsage if no decimal fits them."""
        kind = self.kind
        if not pat.is_floating(kind):
            return kind
        try:
            return self._numbers.infer_type(name)
        except InvalidUsage as error:
            text = self._numbers.inexact or ""
            line = find_record_line(file, name, lambda field: field == text)
            raise InvalidUsage(f'{file.name}: line {line}: {error}, or say columns = {{ {name} = "string" }}') from None


def _do_all_parse(values: pa.Array, kind: pa.DataType) -> bool:
    """Return whether all texts parse as a type."""
    if pat.is_boolean(kind):
        return bool(pc.all(pc.is_in(pc.utf8_lower(values), pa.array(["true", "false"]))).as_py())
    if pat.is_timestamp(kind) and kind.tz and not pc.all(pc.match_substring_regex(values, _OFFSET)).as_py():
        return False
    if getattr(kind, "unit", None) == "s" and pc.any(pc.match_substring(values, ".")).as_py():
        return False  # Other files may have fractions that are not zero.
    try:
        values.cast(kind) if pat.is_floating(kind) else parse_column(pa.chunked_array([values]), kind)
    except pa.ArrowInvalid:
        return False
    return bool(pc.all(pc.equal(values, pc.utf8_trim_whitespace(values))).as_py())


def _infer_json_schema(file: RowFile, known_types: Mapping[str, pa.DataType]) -> pa.Schema:
    """Return the schema of JSON lines, inferred from all blocks."""
    schema = pa.schema([])
    wires = pa.schema([(name, get_wire_type(kind)) for name, kind in known_types.items()])
    for numbers, texts in _read_blocks(file, known_types):
        try:
            block_schema = parse(texts, wires, "infer").schema
        except (Unreadable, pa.ArrowException, UnicodeDecodeError) as error:
            line, error = _find_bad_line(texts, wires, error)
            reason = f"{describe_error(error)}, in {shorten(texts[line].as_py().decode(errors='replace'))}"
            raise InvalidUsage(f"{file.name} cannot be read as json: line {numbers[line]}: {reason}. {MEND}") from None
        try:
            schema = pa.schema(list(_merge_types(pa.struct(list(schema)), pa.struct(list(block_schema)), "")))
        except _TypesDiffer as error:
            raise InvalidUsage(
                f"{file.name}: by line {numbers[-1]}, {error}. Write all its values alike, or say its type, such as "
                f'columns = {{ {error.args[0]} = "string" }}. {MEND}'
            ) from None
    schema = pa.schema([field for field in schema if field.name not in known_types])
    try:
        schema = infer_exact_fields(schema, lambda: (texts for _, texts in _read_blocks(file, known_types)))
    except InvalidUsage as error:
        raise InvalidUsage(f"{file.name}: {error}") from None
    return pa.schema([*known_types.items(), *_guess_moments(schema, file)])


def _read_blocks(file: RowFile, known: Mapping[str, pa.DataType]) -> Iterator[tuple[Any, pa.Array]]:
    """Yield the lines of a file for inference, with JSON columns as text, and maps as lists."""
    return ((numbers, encode_mixed_members(texts, known)) for numbers, texts in read_json_blocks(file))


def _guess_moments(schema: pa.Schema, file: RowFile) -> pa.Schema:
    """Return a schema whose timestamps are guessed from text, because Arrow drops offsets."""
    wires = pa.schema([(field.name, get_wire_type(field.type)) for field in schema if not contains_null(field.type)])
    changed = [field for field in wires if field.type != schema.field(field.name).type]
    guesses: dict[tuple[str, int], _TypeGuess] = {}
    for _, texts in read_json_blocks(file) if changed else ():
        table = parse(texts, pa.schema(changed))
        for name in table.column_names:
            for chunk in table[name].chunks:
                for at, leaf in enumerate(iterate_leaf_arrays(chunk)):
                    if pat.is_string(leaf.type):
                        guesses.setdefault((name, at), _TypeGuess()).add(leaf)
    return pa.schema([(f.name, _replace_moments(f.type, f.name, guesses, count())) for f in schema])


def _replace_moments(
    kind: pa.DataType, name: str, guesses: "Mapping[tuple[str, int], _TypeGuess]", leaves: Iterator[int]
) -> pa.DataType:
    """Return a type whose timestamps are replaced by the guesses for them."""
    if pat.is_nested(kind):
        return replace_inner_types(
            kind, [_replace_moments(f.type, name, guesses, leaves) for f in list_inner_fields(kind)]
        )
    guess = guesses.get((name, next(leaves)))
    return guess.kind if pat.is_timestamp(kind) and guess is not None else kind


def _find_bad_line(texts: pa.Array, wires: pa.Schema, error: Exception) -> tuple[int, Exception]:
    """Return the first line that cannot be parsed with the lines before it, and its error."""
    low, high = 0, len(texts)
    while low < high:
        middle = (low + high) // 2
        try:
            parse(texts.slice(0, middle + 1), wires, "infer")
            low = middle + 1
        except (Unreadable, pa.ArrowException, UnicodeDecodeError) as found:
            high, error = middle, found
    return min(low, len(texts) - 1), error


class _TypesDiffer(ValueError):
    """Lines of a file have values of a column in types without a common one."""

    def __str__(self) -> str:
        return "column {!r} is {} and {}".format(*self.args)


def _merge_types(first_type: pa.DataType, second_type: pa.DataType, path: str) -> pa.DataType:
    """Return a type that holds the values of both types; raise `_TypesDiffer` without one."""
    if pat.is_null(first_type) or first_type == second_type:
        return second_type
    if pat.is_null(second_type):
        return first_type
    if pat.is_struct(first_type) and pat.is_struct(second_type):
        types = {field.name: field.type for field in first_type}
        for field in second_type:
            earlier = types.get(field.name, pa.null())
            types[field.name] = _merge_types(earlier, field.type, f"{path}.{field.name}".lstrip("."))
        return pa.struct(types.items())
    if pat.is_list(first_type) and pat.is_list(second_type):
        return pa.list_(_merge_types(first_type.value_type, second_type.value_type, path))
    kinds = {first_type, second_type}
    if kinds == {pa.int64(), pa.float64()}:
        return pa.float64()
    if kinds == {pa.timestamp("s"), pa.string()}:
        return pa.string()
    raise _TypesDiffer(path, first_type, second_type)
