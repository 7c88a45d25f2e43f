"""What one request to S3 costs the client: our store against boto3, in turn, in processor time of this process.

The server is moto, in a process of its own. Each figure is the median of rounds of requests one after the other.
"""

import statistics
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Any

from persist.blob.stores.s3 import S3Blob
from tests.support.servers.fixtures import make_bucket, options_of, running_moto

ROUNDS = 15
SIZES = {"1 kB": (1_000, 40), "1 MB": (1_000_000, 8)}  # Bytes of a value, and requests of a round.


def cpu_ms(request: Callable[[int], object], count: int) -> float:
    """Return the processor time of one of count requests."""
    began_s = time.process_time()
    for number in range(count):
        request(number)
    return (time.process_time() - began_s) / count * 1e3


def objects() -> None:
    """Print a table of milliseconds of CPU for GET and conditional PUT."""
    import boto3

    print("| request | boto3, ms | persist, ms | ratio |\n| --- | --- | --- | --- |")
    with running_moto() as url:
        options = options_of(url)
        bucket = make_bucket(options)
        keys = {"aws_access_key_id": "id", "aws_secret_access_key": "secret"}
        theirs: Any = boto3.client("s3", endpoint_url=url, region_name="us-east-1", **keys)
        with closing(theirs), closing(S3Blob(bucket, "", options)) as ours:
            for size, (length, count) in SIZES.items():
                value = bytes(length)
                ours.set("read", value)
                for name, by_boto3, by_us in (
                    (
                        "GET",
                        lambda _: theirs.get_object(Bucket=bucket, Key="read")["Body"].read(),
                        lambda _: ours.get("read"),
                    ),
                    (
                        "create",
                        lambda _: theirs.put_object(Bucket=bucket, Key=uuid.uuid4().hex, Body=value, IfNoneMatch="*"),  # noqa: B023
                        lambda _: ours.create(uuid.uuid4().hex, value),  # noqa: B023
                    ),
                ):
                    cpu_ms(by_boto3, 3), cpu_ms(by_us, 3)
                    rounds = [(cpu_ms(by_boto3, count), cpu_ms(by_us, count)) for _ in range(ROUNDS)]
                    ratio = statistics.median(boto3_ms / our_ms for boto3_ms, our_ms in rounds)
                    boto3_ms, our_ms = (statistics.median(column) for column in zip(*rounds, strict=True))
                    print(f"| {name} of {size} | {boto3_ms:.2f} | {our_ms:.2f} | {ratio:.1f} |", flush=True)


if __name__ == "__main__":
    objects()
