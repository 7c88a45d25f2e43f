"""What Arrow's threads may still hold is waited for at the end of the process, which would abort otherwise."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from persist.codecs.part.decoding import decode_part
from persist.codecs.part.lending import make_lent_buffer, wait_for_returns
from persist.codecs.part.stream import encode_parts
from persist.codecs.types.schema import CollectionSchema
from tests.support.stepped import WAIT_S

SCHEMA = CollectionSchema.of({"k": pa.int64()}, {"v": pa.float64(), "s": pa.string()})

# Each child reads once and ends at once, as a script does. It shares its imports with the others, to be quick.
CHILDREN = """
import collections, os, sys
import numpy as np, pyarrow as pa, pyarrow.parquet
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.part.decoding import decode_part
from persist.codecs.part.stream import encode_parts
from tests.codecs.part.test_lending import SCHEMA, rows
[(data, part)] = encode_parts(rows(50_000), SCHEMA)
ends = collections.Counter()
for _ in range(15):
    child = os.fork()
    if not child:
        break
    ends[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])] += 1
else:
    print(dict(ends), flush=True)
    os._exit(0)
table = decode_part(bytes(data), part, SCHEMA)
"""


def rows(count: int) -> pa.Table:
    numbers = np.arange(count)
    columns = [numbers, numbers / 3, pa.array(numbers).cast(pa.string()), numbers * 0, numbers * 0 + 1]
    return pa.Table.from_arrays([pa.array(column) for column in columns], schema=SCHEMA.arrow)


def test_what_is_lent_is_waited_for_until_it_comes_back() -> None:
    assert wait_for_returns(30)
    data = b"some bytes"
    buffer = make_lent_buffer(data)
    assert buffer.address == pa.py_buffer(data).address
    assert not wait_for_returns(0)
    part = buffer.slice(2, 3)
    del buffer
    assert not wait_for_returns(0)  # Whatever refers to a piece of it has all of it.
    assert part.to_pybytes() == b"me "
    del part
    assert wait_for_returns(0)
    assert make_lent_buffer(b"").size == 0


def test_a_read_gives_all_back() -> None:
    [(data, part)] = encode_parts(rows(20_000), SCHEMA)
    table = decode_part(data, part, SCHEMA)
    assert len(table) == 20_000
    assert wait_for_returns(30)


@pytest.mark.thorough
@pytest.mark.costly("it starts several processes, and each imports Arrow")
def test_processes_that_end_right_after_a_read_end_well() -> None:
    done = subprocess.run([sys.executable, "-c", CHILDREN], capture_output=True, text=True)
    assert done.stdout.strip() == "{0: 15}", done.stderr[-2000:]


# A thread that reads for ever, as a page that is served does; the process ends in the middle of it.
READS_FOR_EVER = """
import threading, persist
client = persist.open("memory://x")
c = client.create_or_load("c", key={"k": int})
c.write([(key, None) for key in range(5_000)], time=0, seal=1).result()
snapshot, has_read = c.snapshot(), threading.Event()
def read():
    while True:
        assert snapshot.dataset().to_table().num_rows == 5_000
        has_read.set()
threading.Thread(target=read, daemon=True).start()
has_read.wait()
"""


@pytest.mark.thorough  # A new process loads everything.
def test_a_daemon_thread_that_reads_at_the_end_is_refused_and_aborts_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", READS_FOR_EVER], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr[-1000:]
    assert "the process is ending, and daemon threads read nothing any more" in done.stderr
