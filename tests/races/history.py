"""What processes that race asked for and were told: calls with their answers and the times of both.

A call is a JSON object on a line of the file of its process when it begins and another when it has been answered,
written at once, so that what a killed process was waiting for is known. Times are of the machine's monotonic clock,
which all its processes share.

    {"client", "number", "op", "args", "invoked_ns"}
    {"client", "number", "returned_ns", "answer"}

A frontier is a time. `args` and `answer`, by `op`:

    commit    {"steps": [step, ...]}                         {"seqno"}
              step = ["write", collection, [[id, time, diff], ...]] | ["seal", collection, upper]
                   | ["allow_compaction", collection, since] | ["expect", collection, upper]
                   | ["token", collection, token] | ["upsert", collection, [[id, value or None, time], ...]]
    open      {"mode", "id", "force", "process"}             {}; an exclusive one's seqno comes from the log
    close     {}                                             {}; likewise
    upper     {"collection"}                                 {"value"}
    since     {"collection"}                                 {"value"}
    snapshot  {"collection", "as_of"}                        {"rows": [[id, diff], ...]}
    changes   {"collection", "lower", "upper"}               {"rows": [[id, time, diff], ...]}

Of a keyed collection, what has an id in rows is `id=value`.

Instead of all that, an answer may be {"error": class name, ... fields}. A call that has no answer at all, or
`Indeterminate`, may or may not have happened.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

NEVER_NS = 2**63


@dataclass(slots=True)
class Call:
    """One call; see the module's docstring. returned_ns is NEVER_NS if it was not answered."""

    client: str
    number: int
    op: str
    args: dict[str, Any]
    invoked_ns: int
    returned_ns: int = NEVER_NS
    answer: dict[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> str | None:
        """The class of the error, or None."""
        return self.answer.get("error")

    @property
    def is_unknown(self) -> bool:
        """Whether this may or may not have happened."""
        return self.returned_ns == NEVER_NS or self.error == "Indeterminate"

    def __str__(self) -> str:
        took_ms = (self.returned_ns - self.invoked_ns) / 1e6
        took = "no answer" if self.returned_ns == NEVER_NS else f"{took_ms:.1f} ms"
        return f"{self.client}#{self.number} {self.op} {_short(self.args)} -> {_short(self.answer)} ({took})"


def read_calls(paths: Iterable[Path]) -> list[Call]:
    """Return the calls in the files of all processes, in the order in which they began."""
    calls: dict[tuple[str, int], Call] = {}
    for path in paths:
        for line in path.read_bytes().split(b"\n"):
            if not line.endswith(b"}"):
                continue  # The end of the file, or what a killed process was writing.
            found = json.loads(line)
            key = found["client"], found["number"]
            if "op" in found:
                calls[key] = Call(**found)
            else:
                calls[key].returned_ns = found["returned_ns"]
                calls[key].answer = found["answer"]
    return sorted(calls.values(), key=lambda call: call.invoked_ns)


def with_log(calls: Iterable[Call], records: Iterable[dict[str, Any]]) -> list[Call]:
    """Return calls with what clients are not told but the log has.

    These are the seqnos of exclusive openings and closings; and for a commit without an answer, {"places"}: the seqnos
    of records that its process made and nobody was told of.

    Args:
        records: the JSON of the whole log, in order.
    """
    calls = list(calls)
    openings: dict[int, list[tuple[int, str]]] = defaultdict(list)
    closings: dict[str, int] = {}
    made: dict[int, list[int]] = defaultdict(list)
    for record in records:
        kinds = [mutation["kind"] for mutation in record["mutations"]]
        process = int(record["writer"].split(":")[-2])
        if "open_writer" in kinds:
            openings[process].append((record["seqno"], record["writer"]))
        elif "close_writer" in kinds:
            closings[record["writer"]] = record["seqno"]
        else:
            made[process].append(record["seqno"])
    told = {call.answer["seqno"] for call in calls if "seqno" in call.answer}
    processes = {call.client: call.args["process"] for call in calls if call.op == "open"}
    writers: dict[str, str] = {}
    found = []
    for call in calls:
        if call.op == "open" and call.args["mode"] == "exclusive" and (call.error is None or call.is_unknown):
            of_process = openings[call.args["process"]]
            if not of_process and call.is_unknown:
                continue  # The log says that it did not happen.
            seqno, writers[call.client] = of_process.pop(0)
            call = replace(call, answer={"seqno": seqno})
        elif call.op == "close" and call.client in writers:
            if writers[call.client] in closings:
                call = replace(call, answer={"seqno": closings[writers[call.client]]})
            elif call.is_unknown:
                continue
            else:
                call = replace(call, answer={"error": "WriterFenced"})  # There was nothing to give back.
        elif call.op == "commit" and call.is_unknown:
            places = [seqno for seqno in made[processes[call.client]] if seqno not in told]
            call = replace(call, answer={**call.answer, "places": places})
        found.append(call)
    return found


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
