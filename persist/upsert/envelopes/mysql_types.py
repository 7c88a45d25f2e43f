"""MySQL's column types, as Canal names them beside the rows, and the Arrow types that hold their values exactly."""

import re

import pyarrow as pa

_FORM = re.compile(r"\s*([a-z]+)\s*(?:\(([^)]*)\))?(.*)", re.IGNORECASE | re.DOTALL)
_INTEGERS = {
    "tinyint": (pa.int8(), pa.uint8()),
    "smallint": (pa.int16(), pa.uint16()),
    "mediumint": (pa.int32(), pa.uint32()),
    "int": (pa.int32(), pa.uint32()),
    "integer": (pa.int32(), pa.uint32()),
    "bigint": (pa.int64(), pa.uint64()),
}
_OTHERS = {
    "float": pa.float32(),
    "double": pa.float64(),
    "real": pa.float64(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us"),
    "timestamp": pa.timestamp("us"),
    "year": pa.int16(),
    "binary": pa.binary(),
    "varbinary": pa.binary(),
    "tinyblob": pa.binary(),
    "blob": pa.binary(),
    "mediumblob": pa.binary(),
    "longblob": pa.binary(),
}


def arrow_type(mysql_type: str) -> pa.DataType:
    """Return the Arrow type of a column, such as "decimal(10,2) unsigned"; string for whatever else there is.

    A TIME is text, because it may be negative or longer than a day, and so are sets, bits and JSON.
    """
    form = _FORM.match(mysql_type)
    name, arguments, rest = (form[1].lower(), form[2], form[3].lower()) if form else ("", None, "")
    if name in _INTEGERS:
        signed, unsigned = _INTEGERS[name]
        return unsigned if "unsigned" in rest else signed
    if name in ("decimal", "numeric"):
        if not arguments:  # As producers name the type alone, it says nothing of digits, and all must be kept.
            return pa.decimal128(38, 18)
        digits = [int(part) for part in arguments.split(",")]
        make = pa.decimal128 if digits[0] <= 38 else pa.decimal256
        return make(digits[0], digits[1] if len(digits) > 1 else 0)
    return _OTHERS.get(name, pa.string())
