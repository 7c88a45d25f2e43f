"""Reads records of the log as `docs/inside/format.md` describes them, without the library.

It turns a record's bytes into the plain mutations of `tests.proofs.simulator.history`. Checksums are not looked at:
whether the library minds them is for other tests.
"""

import base64
import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.proofs.simulator.history import Commit
from tests.proofs.simulator.tables import vector_rows
from tests.support.model import EMPTY, ORDERED


class Added(dict[str, list[list[str]]]):
    """Of each version of the schema of a collection, the columns that it got later.

    Attributes:
        by_value: the collections whose key is the value of all others, because they are indexes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_value: set[str] = set()


PADDED = "~"  # Ends the part of a long value that history keeps.


def read_commit(value: bytes, at: int, client: str, clock_s: float, blobs: Mapping[str, bytes], added: Added) -> Commit:
    """Return a record as a commit, given all blobs that were ever stored, and what the records before it added."""
    record = json.loads(value)
    mutations = [_mutation(each, blobs, added) for each in record["mutations"]]
    return Commit(
        record["seqno"], at, client, mutations, clock_s, record["commit"], record["previous"], None, record["format"]
    )


def frontier(times: list[int]) -> int:
    return times[0] if times else EMPTY


def pad(value: str, length: int) -> str:
    """Return a long value of which `shorten` makes value again."""
    return value + PADDED + "." * length


def shorten(value: str) -> str:
    """Return the beginning of a padded value; any other value, and one that is padded wrongly, as it is."""
    head, mark, tail = value.partition(PADDED)
    return head if mark and tail.count(".") == len(tail) and len(tail) % 1000 == 0 else value


def _mutation(mutation: dict[str, Any], blobs: Mapping[str, bytes], added: Added) -> dict[str, Any]:
    plain = {name: value for name, value in mutation.items() if name in ("kind", "collection", "name")}
    kind = mutation["kind"]
    if kind == "create":
        plain["schema"] = mutation["schema"]["key"]["fields"][0][0]
        keyed = mutation.get("keyed")
        machine = keyed and (ORDERED if keyed.get("order_by") else keyed.get("ties") or keyed["machine"]["name"])
        plain["keyed"] = keyed and [machine, keyed.get("resolve", "seal")]
        added[mutation["collection"]] = [[]]
        definition = mutation.get("view")
        if definition is not None:
            plain["inputs"] = definition["inputs"]
            plain |= {"start": definition.get("start", 0), "is_index": "index" in definition}
        if definition is not None and "index" in definition:
            added.by_value.add(mutation["collection"])
            added[mutation["collection"]] = [[name for name, *_ in mutation["schema"]["value"]["fields"]][1:]]
    elif kind == "clone":
        added[mutation["collection"]] = [*added[mutation["source"]]]
        _read_parts(mutation, blobs, plain, added)
        plain |= {"source": mutation["source"], "as_of": mutation["as_of"], "runs": mutation.get("runs", [])}
        keyframe = mutation.get("keyframe")
        plain["keyframes"] = [[keyframe["as_of"], keyframe["parts"]]] if keyframe else []
    elif kind == "evolve":
        plain["columns"] = [name for name, *_ in mutation["schema"]["value"]["fields"]][1:]
        plain["version"] = mutation["schema"]["version"]
        added[mutation["collection"]].append(plain["columns"])
    elif kind == "append":
        _read_parts(mutation, blobs, plain, added)
        plain["updates"] = [update for part in plain["parts"] for update in part]
    elif kind == "pend":
        parts, versions = _parts(mutation, blobs), added[mutation["collection"]]
        plain["parts"] = [_events(part, blobs, versions[part.get("schema", 1) - 1]) for part in parts]
        plain["blobs"] = [part.get("blob", "") for part in parts]
    elif kind == "resolve":
        _read_parts(mutation, blobs, plain, added)
        plain["updates"] = [update for part in plain["parts"] for update in part]
        plain |= {"start": frontier(mutation["start"]), "end": frontier(mutation["end"])}
        plain |= {"pending": mutation.get("pending", []), "unused": mutation.get("unused", [])}
    elif kind == "erase":
        parts, versions = _parts(mutation, blobs), added[mutation["collection"]]
        at = len(parts) - mutation.get("events", 0)
        plain["parts"] = [_updates(part, blobs, versions[part.get("schema", 1) - 1]) for part in parts[:at]]
        plain["parts"] += [_events(part, blobs, versions[part.get("schema", 1) - 1]) for part in parts[at:]]
        plain["blobs"] = [part.get("blob", "") for part in parts]
        plain |= {"events": mutation.get("events", 0), "updates": mutation["updates"]}
        plain |= {name: mutation.get(name, []) for name in ("replaced", "unused")}
    elif kind == "replace":
        _read_parts(mutation, blobs, plain, added)
        for name in ("removed_runs", "runs", "removed_keyframes", "unused"):
            plain[name] = mutation.get(name, [])
        plain["keyframes"] = [[keyframe["as_of"], keyframe["parts"]] for keyframe in mutation.get("keyframes", [])]
        plain["history_from"] = mutation.get("history_from")
    elif kind == "publish":
        _read_parts(mutation, blobs, plain, added)
        plain |= {"files": [[n, *_left_out(deletes, blobs)] for n, deletes in mutation.get("files", [])]}
        plain |= {name: mutation[name] for name in ("table", "version", "as_of")}
        plain |= {name: mutation.get(name, []) for name in ("removed", "metadata", "unused")}
        plain["also"] = mutation.get("blobs", [])
    elif kind in ("seal", "allow_compaction"):
        field = "upper" if kind == "seal" else "since"
        plain[field] = frontier(mutation[field])
    elif kind == "tokens":
        plain["tokens"] = [token for token, *_ in mutation["tokens"]]
    else:  # A holder is called after its process, which is another one in each run.
        return {name: value for name, value in mutation.items() if name != "holder"}
    return plain


def _left_out(deletes: list[Any] | None, blobs: Mapping[str, bytes]) -> tuple[str, list[int]]:
    """Return the blob with the rows that a table leaves out of a file, and these rows."""
    if deletes is None:
        return "", []
    blob, start, _, count = deletes
    rows = vector_rows(blobs[blob], start)
    assert len(rows) == count
    return blob, rows


def _read_parts(mutation: dict[str, Any], blobs: Mapping[str, bytes], plain: dict[str, Any], added: Added) -> None:
    """Add the updates of each part that a mutation brings, and the key of its blob, if it has one."""
    parts, versions = _parts(mutation, blobs), added[mutation["collection"]]
    is_index = mutation["collection"] in added.by_value
    plain["parts"] = [_updates(part, blobs, versions[part.get("schema", 1) - 1], is_index) for part in parts]
    plain["blobs"] = [part.get("blob", "") for part in parts]


def _parts(mutation: dict[str, Any], blobs: Mapping[str, bytes]) -> list[dict[str, Any]]:
    if "parts_in" in mutation:
        return list(json.loads(blobs[mutation["parts_in"]["blob"]])["parts"])
    return list(mutation.get("parts", ()))


def _updates(
    part: dict[str, Any], blobs: Mapping[str, bytes], more: list[str], is_index: bool = False
) -> list[list[Any]]:
    """Return the updates of a part without the columns that the collection got later, which tell nothing apart.

    Those of an index begin with the value.
    """
    ks, vs, *_, times, diffs = _rows(part, blobs, {}, more, is_index).to_pydict().values()
    return [[_plain(k), _plain(v), t, d] for k, v, t, d in zip(ks, vs, times, diffs, strict=True)]


def _events(part: dict[str, Any], blobs: Mapping[str, bytes], more: list[str]) -> list[list[Any]]:
    """Return the events of a part in the order of arrival, likewise."""
    rows = _rows(part, blobs, {"_seq": pa.int64(), "_deleted": pa.bool_()}, more).to_pylist()
    found = sorted((list(row.values()) for row in rows), key=lambda row: row[1])
    # One that deletes has no value, unless that is what deletes.
    return [[k, None if v is None else shorten(v), row[-2]] for k, _, _, v, *row in found]


def _plain(value: Any) -> Any:
    return shorten(value) if isinstance(value, str) else value


def _rows(
    part: dict[str, Any],
    blobs: Mapping[str, bytes],
    own: dict[str, pa.DataType],
    more: list[str],
    is_index: bool = False,
) -> Any:
    data = base64.b64decode(part["inline"]) if "inline" in part else blobs[part["blob"]]
    if "footer" in part:
        return _timed(pq.read_table(BytesIO(data)), part)
    # A batch has no schema in it. This is that of every collection here, whatever its key is called.
    first: dict[str, pa.DataType] = {"k": pa.int64(), **own, "v": pa.string()}
    first = dict(reversed(first.items())) if is_index else first
    columns = pa.schema(first | dict.fromkeys(more, pa.string()) | {"_time": pa.int64(), "_diff": pa.int64()})
    return _timed(pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(data), columns)]), part)


def _timed(rows: pa.Table, part: dict[str, Any]) -> pa.Table:
    """Return the rows of a part with their time, if only the descriptor has it."""
    if not part.get("stamped"):
        return rows
    at = rows.schema.get_field_index("_time")
    return rows.set_column(at, "_time", pa.array([part["time_min"]] * len(rows), pa.int64()))
