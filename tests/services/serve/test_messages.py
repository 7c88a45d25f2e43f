"""Messages, addresses and tokens: what is read is what was written, and what is none is refused."""

import socket
from typing import Any

import msgspec
import pytest

from persist.blob.errors import InvalidUsage, Unavailable
from persist.services.serve import messages
from persist.services.serve.commits import Room
from persist.services.serve.messages import (
    MESSAGE_BYTES_MAX,
    Address,
    Leave,
    Notify,
    Wait,
    check_token,
    decode_message,
    encode_fields,
    group_fields,
    is_loopback,
    open_listening_socket,
    parse_address,
    parse_host,
    read_fields,
    read_numbers,
)

NUMBERS = [0, 1, 127, 128, 300, 16_383, 16_384, 2**31, 2**63 - 1, 2**64 - 1]


def test_fields_come_out_as_they_went_in() -> None:
    fields: list[tuple[int, bytes | int]] = [(n + 1, number) for n, number in enumerate(NUMBERS)]
    fields += [(1, b""), (15, b"x"), (16, b"y" * 127), (2000, b"z" * 128), (1, b"again")]
    message = encode_fields(*fields)
    assert [*read_fields(message)] == fields
    assert group_fields(message) == {1: b"again", 15: b"x", 16: b"y" * 127, 2000: b"z" * 128}
    assert [*read_fields(b"")] == []
    assert encode_fields((1, 150)) == b"\x08\x96\x01"  # The example of the protocol's own pages.
    assert encode_fields((2, b"testing")) == b"\x12\x07testing"


def test_repeated_numbers_are_read_packed_or_not() -> None:
    packed = b"".join(encode_fields((1, number))[1:] for number in NUMBERS)
    loose = encode_fields(*((4, number) for number in NUMBERS))
    assert read_numbers(loose, 4) == NUMBERS
    assert read_numbers(encode_fields((4, packed)), 4) == NUMBERS
    assert read_numbers(encode_fields((3, 9), (4, packed), (4, 5), (5, 9)), 4) == [*NUMBERS, 5]
    assert read_numbers(loose, 3) == []


@pytest.mark.parametrize(
    "wrong", [b"\x08", b"\x80", b"\x12\x05abcd", b"\x0d\x01\x00\x00\x00", b"\x09" + b"\x00" * 8, b"\x08" + b"\xff" * 11]
)
def test_what_is_no_message_is_an_error_of_value(wrong: bytes) -> None:
    with pytest.raises(ValueError, match="the message is not one of Flight"):
        [*read_fields(wrong)]


def test_a_number_may_have_ten_bytes_and_no_more() -> None:
    longest = b"\x08" + b"\x80" * 9 + b"\x01"
    assert [*read_fields(longest)] == [(1, 1 << 63)]
    with pytest.raises(ValueError, match="not one of Flight"):
        [*read_fields(b"\x08" + b"\x80" * 10 + b"\x01")]


def test_a_message_larger_than_any_is_not_read() -> None:
    whole = msgspec.json.encode(Leave("x")).ljust(MESSAGE_BYTES_MAX)
    assert decode_message(whole, Leave) == Leave("x")
    with pytest.raises(ValueError, match="at most 65536 are read"):
        decode_message(whole + b" ", Leave)
    for wrong in ({"after": -2}, {"timeout_s": 30.5}, {"timeout_s": -1}, {"waiter": ""}, {"waiter": "x" * 201}):
        fields: dict[str, Any] = {"after": -1, "waiter": "x" * 200, "timeout_s": 30}
        assert decode_message(msgspec.json.encode(fields), Wait) == Wait(-1, "x" * 200, 30)
        with pytest.raises(ValueError, match="it is not understood"):
            decode_message(msgspec.json.encode(fields | wrong), Wait)
    for malformed in (b'{"waiter":"x","more":1}', b"{}", b"\xff", b"[" * 60_000, b""):
        with pytest.raises(ValueError, match="it is not understood"):
            decode_message(malformed, Leave)


@pytest.mark.parametrize(
    ("url", "address", "is_public"),
    [
        ("grpc://localhost:7", Address("localhost", 7, False), False),
        ("grpc+tls://example.org:65535", Address("example.org", 65_535, True), True),
        ("grpc://127.3.2.1:0", Address("127.3.2.1", 0, False), False),
        ("grpc://[::1]:80", Address("::1", 80, False), False),
        ("grpc://[2001:db8::1]:80", Address("2001:db8::1", 80, False), True),
        ("grpc://10.0.0.1:80", Address("10.0.0.1", 80, False), True),
    ],
)
def test_an_address_is_read_and_written(url: str, address: Address, is_public: bool) -> None:
    assert parse_address(url) == address
    assert (address.url, messages.is_loopback(address.host)) == (url, not is_public)


@pytest.mark.parametrize(
    "url",
    ["", "http://a:1", "grpc://a", "grpc://:1", "grpc://a:x", "grpc://a:99999", 7, "grpc://u@a:1", "grpc://a:1/p",
     "grpc://a:1?q", "grpc://a:1#f", "grpc://[::1", None],
)  # fmt: skip
def test_what_is_no_address_is_refused(url: Any) -> None:
    with pytest.raises(InvalidUsage, match="address of a server"):
        parse_address(url)


def test_who_is_told_has_a_port_and_a_certificate_only_with_tls() -> None:
    assert repr(Notify("grpc://a:1", token="secret")) == "Notify('grpc://a:1')"
    Notify("grpc+tls://a:1", certificate=b"pem")
    for url, more, reason in [
        ("grpc://a:0", {}, "has no port"),
        ("grpc://a:1", {"certificate": b"pem"}, r"goes with grpc\+tls"),
        ("grpc://a:1", {"token": "a b"}, "visible ASCII"),
    ]:
        with pytest.raises(InvalidUsage, match=reason):
            Notify(url, **more)  # type: ignore[arg-type]


def test_a_token_is_visible_ascii() -> None:
    for good in (None, "!", "~" * messages.TOKEN_CHARS_MAX):
        check_token(good)
    for bad in ("", " ", "a b", "é", "x" * (messages.TOKEN_CHARS_MAX + 1), "a\n", 7, b"x"):
        with pytest.raises(InvalidUsage, match="is not a text of 1 to 4096") as caught:
            check_token(bad)  # type: ignore[arg-type]
        assert "é" not in str(caught.value)


def test_hosts_are_those_of_this_machine_or_others() -> None:
    assert [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "10.1.1.1", "a.b")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
    assert [parse_host(header) for header in ("a.b:7", "A.B.", "[::1]:8", "", "[x", "localhost")] == [
        "a.b", "a.b", "::1", "", "", "localhost",
    ]  # fmt: skip


def test_a_socket_listens_where_it_is_told_to() -> None:
    with open_listening_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), 10):
            pass
        with pytest.raises(InvalidUsage, match=f"nothing can listen at 127.0.0.1, port {port}"):
            open_listening_socket("127.0.0.1", port)
    with open_listening_socket("::1", 0) as sixth:
        assert sixth.family == socket.AF_INET6
    for port in (-1, 65_536):
        with pytest.raises(InvalidUsage, match=f"port {port} is not allowed"):
            open_listening_socket("127.0.0.1", port)
    with pytest.raises(InvalidUsage, match=r"nothing can listen at 192\.0\.2\.1"):
        open_listening_socket("192.0.2.1", 65_535)


def test_room_is_given_back_and_more_than_there_is_is_refused() -> None:
    room = Room(10)
    with room.reserve(4), room.reserve(6):
        assert room.left == 0
        with pytest.raises(Unavailable, match="requests of 10 bytes are under way"), room.reserve(1):
            pass
    assert room.left == 10
    with pytest.raises(KeyError), room.reserve(10):
        raise KeyError
    assert room.left == 10
