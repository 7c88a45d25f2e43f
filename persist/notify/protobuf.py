"""Messages of protobuf as far as Arrow Flight and Flight SQL have them: whole numbers, and bytes."""

from collections.abc import Iterator


def message_of(*fields: tuple[int, bytes | memoryview | int]) -> bytes:
    """Return a message of fields by number."""
    pieces: list[bytes | memoryview] = []
    for number, value in fields:
        if isinstance(value, int):
            pieces += _varint(number << 3), _varint(value)
        else:
            pieces += _varint(number << 3 | 2), _varint(len(value)), value
    return b"".join(pieces)


def every_field(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield the fields of a message by number. Raises ValueError if it is none of whole numbers and bytes."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        value, at = _read_varint(message, at)
        if tag & 7 == 0:
            yield tag >> 3, value
            continue
        if tag & 7 != 2 or value > len(message) - at:
            raise ValueError("the message is not one of Flight")
        yield tag >> 3, message[at : at + value]
        at += value


def fields_of(message: bytes) -> dict[int, bytes]:
    """Return the last of each field of a message that is bytes. Raises ValueError as `every_field` does."""
    return {number: value for number, value in every_field(message) if isinstance(value, bytes)}


def numbers_of(message: bytes, number: int) -> list[int]:
    """Return the whole numbers of a repeated field, packed or not. Raises ValueError as `every_field` does."""
    numbers: list[int] = []
    for field, value in every_field(message):
        if field != number:
            continue
        if isinstance(value, int):
            numbers.append(value)
            continue
        at = 0
        while at < len(value):
            found, at = _read_varint(value, at)
            numbers.append(found)
    return numbers


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        number |= (message[at] & 127) << shift
        at += 1
        if message[at - 1] < 128:
            return number, at
    raise ValueError("the message is not one of Flight")
