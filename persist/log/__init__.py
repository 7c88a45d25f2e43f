"""The bytes of the log: frames, records, part lists, and the creation of a record at the next seqno.

Promises: what is read here is exactly what somebody committed, or it is an error that names the object; a record is
created once, at one seqno, whoever else tries, and a lost answer is resolved by looking at the slot. `kinds` is
a namespace: what a record may do is `kinds.Seal`, `kinds.Append` and so on.
"""

from persist.log import kinds
from persist.log.commits import (
    COMMIT_DEADLINE_S,
    as_read,
    as_stored,
    begins_as,
    create_record,
    move_out,
    read_commit_id,
    read_record,
    record_bytes,
)
from persist.log.envelope import (
    FORMAT,
    MADE_AGAIN,
    BlobRef,
    Framed,
    decode_framed,
    decoder_of,
    encode_framed,
    encoded_object,
    get_framed,
    intact_kind,
    pointer_to,
    put_framed,
)
from persist.log.keys import (
    CHECKPOINTS,
    CLOCK_KEY,
    DIRECTORIES,
    LISTS,
    LOG,
    PARTS,
    STATES,
    check_keys,
    check_parts,
    checkpoint_key,
    checkpoint_seqno,
    collection_of,
    collection_part,
    directory_prefix,
    directory_seqno,
    is_immutable,
    is_upload,
    listed_checkpoints,
    listed_records,
    part_key,
    record_key,
    record_seqno,
    state_collection,
    state_prefix,
    state_seqno,
    uploaded_seqno,
)
from persist.log.kinds import (
    KINDS,
    AnyCollectionMutation,
    BringsParts,
    CollectionMutation,
    Digest,
    Frontier,
    KeyedForm,
    Keyframe,
    LocationMutation,
    MachineForm,
    Mutation,
    Numbers,
    Record,
    Seqno,
    Submitted,
    TimeText,
    TokenMark,
    Watermarks,
    Words,
)
