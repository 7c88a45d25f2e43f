"""A line that is slow, and not silent: large values that take longer to send than an answer may take."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from persist.blob.stores.s3 import S3Blob

READ_TIMEOUT_S = 2.0
ANSWER = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n'


@contextmanager
def server_that_takes_its_time(bytes_each: int, pause_s: float) -> Iterator[str]:
    """Run a server that reads a request in pieces, and pauses after each; yields its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 256 << 10)
    ended = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            taken = connection.recv(1 << 16)
            length = int(taken.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            left = length - len(taken.partition(b"\r\n\r\n")[2])
            while left > 0 and not ended.wait(pause_s):
                piece = connection.recv(bytes_each)
                if not piece:
                    return
                left -= len(piece)
            if left <= 0:
                connection.sendall(ANSWER)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        ended.set()
        thread.join()
        listener.close()


def blob_at(url: str) -> S3Blob:
    options = {"endpoint_url": url, "region": "us-east-1", "access_key_id": "id", "secret_access_key": "secret"}
    return S3Blob("bucket", "prefix", options, read_timeout_s=READ_TIMEOUT_S)


def test_a_large_value_may_take_longer_to_send_than_an_answer_may_take() -> None:
    with server_that_takes_its_time(1 << 20, 0.3) as url:
        blob = blob_at(url)
        began_s = time.monotonic()
        assert blob.create("key", bytes(9 << 20))
        assert time.monotonic() - began_s > READ_TIMEOUT_S
        blob.close()
