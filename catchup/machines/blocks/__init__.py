"""Images as lists of hashed blocks: what both sides of a transfer know of them.

``hash_lists`` makes, compares and sends the lists, ``sizes`` says how large blocks and messages are. Open
``hash_lists`` first. Pure, and imports neither of the two machines.
"""

from stretto.catchup.machines.blocks.hash_lists import (
    apply_changes,
    differing,
    digest_of,
    encode_changes,
    hash_of,
    missing_runs,
    seed_of,
)
from stretto.catchup.machines.blocks.sizes import (
    BLOCK_BYTES,
    HASH_BYTES,
    LIST_BYTES_MAX,
    PART_BYTES,
    block_bytes_for,
    blocks_in,
    length_of,
    take_runs,
)

__all__ = [
    "BLOCK_BYTES",
    "HASH_BYTES",
    "LIST_BYTES_MAX",
    "PART_BYTES",
    "apply_changes",
    "block_bytes_for",
    "blocks_in",
    "differing",
    "digest_of",
    "encode_changes",
    "hash_of",
    "length_of",
    "missing_runs",
    "seed_of",
    "take_runs",
]
