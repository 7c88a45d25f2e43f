"""Reading change events against `pyarrow.json` reading the same bytes: `python -m benchmarks.envelopes`.

Both take CPU time, so this is per core. `pyarrow.json` infers the types of all columns and keeps them; ours gives
checked events. What is to be reached is 0.4 of its speed.

    plain     Debezium without the schema part, schema given
    shown     the same, types inferred
    schema    Debezium with the schema part, which is most of each message
    keyed     the same as plain, with the messages' keys
    bad       plain, and one message in a thousand is not JSON
    maxwell   Maxwell
    canal     Canal, with one row in each message
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.json as pj

from persist.events import canal, debezium, maxwell

MESSAGES, ROUNDS = 100_000, 5
SCHEMA = {
    "id": pa.int64(),
    "first_name": pa.string(),
    "last_name": pa.string(),
    "email": pa.string(),
    "price": pa.float64(),
    "stock": pa.int32(),
}
CONNECT = ("int64", "string", "string", "string", "double", "int32")


def row(number: int) -> dict[str, Any]:
    name = f"Anne{number % 1000}"
    values = (number, name, "Kretchmar", f"{name}@noanswer.org", number * 1.5, number % 7)
    return dict(zip(SCHEMA, values, strict=True))


def change(number: int) -> dict[str, Any]:
    source = {
        "version": "2.7.0.Final",
        "connector": "mysql",
        "name": "mysql-server-1",
        "ts_ms": 1465491411815 + number,
        "snapshot": "false",
        "db": "inventory",
        "table": "customers",
        "server_id": 0,
        "gtid": None,
        "file": "mysql-bin.000003",
        "pos": 154 + number,
        "row": 0,
        "thread": 7,
        "query": None,
    }
    before = row(number) if number % 2 else None
    after = {**row(number), "price": 1.0}
    return {"before": before, "after": after, "source": source, "op": "u" if before else "c", "ts_ms": number}


def with_schema(message: dict[str, Any]) -> dict[str, Any]:
    fields = [{"type": t, "optional": True, "field": n} for n, t in zip(SCHEMA, CONNECT, strict=True)]
    rows = [{"type": "struct", "fields": fields, "optional": True, "field": p} for p in ("before", "after")]
    source = [{"type": "string", "optional": True, "field": name} for name in message["source"]]
    ends = [{"type": "struct", "fields": source, "field": "source"}, {"type": "string", "field": "op"}]
    return {"schema": {"type": "struct", "fields": [*rows, *ends], "name": "Envelope"}, "payload": message}


def of_maxwell(number: int) -> dict[str, Any]:
    head = {"database": "inventory", "table": "customers", "type": "update", "ts": number, "xid": number}
    return {**head, "commit": True, "data": row(number), "old": {"price": 1.0}}


def of_canal(number: int) -> dict[str, Any]:
    data = {name: str(value) for name, value in row(number).items()}
    head = {"database": "inventory", "table": "customers", "type": "UPDATE", "es": number, "isDdl": False}
    kinds = dict.fromkeys(data, "varchar(255)")
    return {**head, "pkNames": ["id"], "mysqlType": kinds, "data": [data], "old": [{"price": "1.0"}]}


def texts(make: Callable[[int], dict[str, Any]]) -> pa.Array:
    return pa.array([json.dumps(make(number)).encode() for number in range(MESSAGES)], pa.binary())


def arrows(messages: pa.Array) -> Callable[[], object]:
    stream = pa.py_buffer(b"\n".join(messages.to_pylist()))
    options = pj.ReadOptions(use_threads=False)
    return lambda: pj.read_json(pa.BufferReader(stream), read_options=options)


def cpu_s(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def main() -> int:
    plain, wrapped = texts(change), texts(lambda number: with_schema(change(number)))
    some_bad = pa.array([b"{" if i % 1000 == 7 else text for i, text in enumerate(plain.to_pylist())])
    keys = pa.array([f'{{"id":{number}}}' for number in range(MESSAGES)])
    keyed = pa.table({"key": keys, "value": plain})
    cases: dict[str, tuple[pa.Array, Callable[[], object]]] = {
        "plain": (plain, lambda: debezium(plain, key="id", schema=SCHEMA)),
        "shown": (plain, lambda: debezium(plain, key="id")),
        "schema": (wrapped, lambda: debezium(wrapped, key="id")),
        "keyed": (plain, lambda: debezium(keyed, schema=SCHEMA)),
        "bad": (plain, lambda: debezium(some_bad, key="id", schema=SCHEMA, on_error="collect")),
        "maxwell": (mine := texts(of_maxwell), lambda: maxwell(mine, key="id", schema=SCHEMA)),
        "canal": (theirs := texts(of_canal), lambda: canal(theirs, schema=SCHEMA)),
    }
    print("case      MB   ours, s CPU  pyarrow.json  ratio")
    for name, (messages, ours) in cases.items():
        peer = arrows(messages)
        pairs = [(cpu_s(ours), cpu_s(peer)) for _ in range(ROUNDS)]
        ratio = statistics.median(theirs / mine for mine, theirs in pairs)
        ours_s, peer_s = (statistics.median(side) for side in zip(*pairs, strict=True))
        print(f"{name:<8} {messages.nbytes / 1e6:>4.0f}  {ours_s:>11.2f}  {peer_s:>12.2f}  {ratio:>5.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
