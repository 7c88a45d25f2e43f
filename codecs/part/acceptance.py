"""What a writer makes sure of before anybody may name a part: that the checks of every reader accept it.

A limit that only readers know of would be found out when the data can no longer be read. So each part that was encoded
goes through the code that readers use, before it leaves `PartStream`: its descriptor is written and read back, its
footer is parsed and held against the descriptor, row groups against the index, and the header of every page is looked
at. Nothing is decompressed or decoded, but for a batch (`part.batch`): that is read as readers do.

Cost, in CPU time, against encoding the part:

    rows        columns    encoding    this check
    1           5           0.8 ms      0.15 ms     of the 3.2 ms that a small durable write takes in memory: 5%
    1,000       11          3.8 ms      0.3 ms
    100,000     11           52 ms      0.5 ms      1%
    1,000,000   11          484 ms      4.5 ms      1%
"""

import msgspec

from persist.blob.errors import Corruption
from persist.codecs.errors import InvalidUpdate
from persist.codecs.part.decoding import decode_part
from persist.codecs.part.index import check_index
from persist.codecs.part.part import Part
from persist.codecs.types.schema import CollectionSchema

_descriptor = msgspec.json.Decoder(Part)


def check_accepted(data: bytes, part: Part, schema: CollectionSchema) -> None:
    """Check that readers accept a part that was just encoded.

    Raises:
        InvalidUpdate: they would not, and say why.
    """
    try:
        if _descriptor.decode(msgspec.json.encode(part)) != part:
            raise ValueError("its descriptor is another one when it is read back")
        _ = part.keys, part.stats
        if part.footer is None:
            decode_part(data, part, schema)
        else:
            check_index(data, part, schema)
    except (Corruption, ValueError, msgspec.MsgspecError) as error:
        reason = getattr(error, "reason", error)
        raise InvalidUpdate(
            f"{part.rows} updates were encoded as a part of {part.bytes} bytes that no reader would accept: {reason}. "
            "Nothing of it was written. This is a fault of persist: please report it with the schema. Until it is "
            "mended, fewer updates in one write, or fewer columns, may pass."
        ) from error
