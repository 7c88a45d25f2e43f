"""Whether a keyed collection has at most one value per key, at every time that can be told apart.

No checksum tells: it would be wrong if a resolution was made of something else than its record says. Cost: see
`persist.read.keyed.over_time`.
"""

from persist.blob import Blob, CorruptBlob
from persist.codecs import DiffOverflow
from persist.fsck.findings import Findings
from persist.log import PARTS
from persist.read import PartReader, keys_with_several
from persist.state import CollectionState
from persist.upsert import machine_of


def examine_values(blob: Blob, contents: CollectionState, findings: Findings) -> None:
    """Add a problem if a key has more than one value, or less than none, at some time."""
    if contents.keyed is None:
        return
    machine = machine_of(contents.keyed, None, contents.name)
    if machine is None or not machine.has_one_value:
        return  # What is not known here may have any number of them.
    count, first = 0, None
    try:
        for key, _ in keys_with_several(contents, PartReader(blob)):
            count, first = count + 1, key if first is None else first
    except (CorruptBlob, DiffOverflow):
        return  # What cannot be read is for others to tell.
    if first is not None:
        what = f"{count} keys have more than one value, or less than none, at some time; one is {first}"
        findings.add("rule", f"{PARTS}{contents.id}/", what, collection=contents.name)
