"""Lists of hashes: how they are made, compared and sent.

**Hash.** XXH3 with 128 bits, which takes a fraction of the time of a copy. It is no cryptographic hash: who
knows its seed may find two blocks that it takes for one another. So each follower has a seed of its own, made
of its incarnation, a random number that is new with every process and session: nobody whose records are
stored today can know it.

**Lists.** The complete list is all hashes, in order. Against a list that the other side has, only what
differs is sent: an index (u32) and a hash for each. Either way the result must match the image's digest.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

import xxhash

from stretto.catchup.machines.blocks.sizes import HASH_BYTES
from stretto.errors import PeerError
from stretto.vocabulary.types import Incarnation
from stretto.wire.catchup import Run

_CHUNK = 4096 * HASH_BYTES
_CHANGE = struct.Struct(f"<I{HASH_BYTES}s")


def seed_of(incarnation: Incarnation) -> int:
    """Seed of a transfer's hashes, made from the follower's incarnation."""
    return xxhash.xxh3_64_intdigest(incarnation.encode())


def hash_of(block: bytes | memoryview, seed: int = 0) -> bytes:
    return xxhash.xxh3_128_digest(block, seed)


def digest_of(hashes: bytes) -> bytes:
    """Digest of a whole list of hashes."""
    return hashlib.sha256(hashes).digest()


def differing(old: bytes, new: bytes) -> Iterator[int]:
    """Indices of ``new`` whose hash ``old`` does not have in that place."""
    for at in range(0, len(new), _CHUNK):
        if old[at : at + _CHUNK] == new[at : at + _CHUNK]:
            continue
        for place in range(at, min(at + _CHUNK, len(new)), HASH_BYTES):
            if old[place : place + HASH_BYTES] != new[place : place + HASH_BYTES]:
                yield place // HASH_BYTES


def missing_runs(old: bytes, new: bytes) -> list[Run]:
    """Runs of the blocks of ``new`` that ``old`` does not have."""
    runs: list[Run] = []
    start = end = -1
    for index in differing(old, new):
        if index != end:
            if end > start:
                runs.append((start, end - start))
            start = index
        end = index + 1
    if end > start:
        runs.append((start, end - start))
    return runs


def encode_changes(old: bytes, new: bytes) -> bytes:
    """Encode a list of hashes as its changes against an older one."""
    return b"".join(
        _CHANGE.pack(index, new[index * HASH_BYTES : (index + 1) * HASH_BYTES])
        for index in differing(old, new)
    )


def apply_changes(old: bytes, changes: bytes, blocks: int) -> bytes:
    """Decode the list that ``changes`` were made for. Raises PeerError if they cannot have been."""
    if len(changes) % _CHANGE.size:
        raise PeerError("a list of changed blocks has a broken length")
    hashes = bytearray(old[: blocks * HASH_BYTES].ljust(blocks * HASH_BYTES, b"\0"))
    for index, hashed in _CHANGE.iter_unpack(changes):
        if index >= blocks:
            raise PeerError(f"a list of changed blocks names block {index} of {blocks}")
        hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES] = hashed
    return bytes(hashes)
