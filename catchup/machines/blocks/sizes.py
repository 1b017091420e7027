"""How large blocks are, and how many of them a run, an image and a message have.

LMDB changes pages of 4 KiB, here and there. Blocks of 8 KiB send at most twice the pages that changed, which
is within what a later round may cost, and the hashes are 0.2% of the first round. A list is bounded: larger
images have larger blocks. ``docs/ARCHITECTURE.md`` has the figures.
"""

from __future__ import annotations

from stretto.wire.catchup import Run

HASH_BYTES = 16
BLOCK_BYTES = 8 * 1024
LIST_BYTES_MAX = 64 * 1024 * 1024
PART_BYTES = 1024 * 1024
"""Most bytes of blocks in one message: so many that a message costs little beside them."""


def block_bytes_for(size_bytes: int) -> int:
    """The block size of an image of that size: so large that its list stays within LIST_BYTES_MAX."""
    block_bytes = BLOCK_BYTES
    while blocks_in(size_bytes, block_bytes) * HASH_BYTES > LIST_BYTES_MAX:
        block_bytes *= 2
    return block_bytes


def blocks_in(size_bytes: int, block_bytes: int) -> int:
    """Number of blocks of an image of that size; the last one may be short."""
    return -(-size_bytes // block_bytes)


def length_of(run: Run, size_bytes: int, block_bytes: int) -> int:
    """Number of bytes in a run; the last block of an image may be short."""
    first, count = run
    return min((first + count) * block_bytes, size_bytes) - first * block_bytes


def take_runs(runs: list[Run], blocks: int) -> tuple[Run, ...]:
    """Remove up to so many blocks from the end of ``runs`` and return them, ascending."""
    taken: list[Run] = []
    while runs and blocks > 0:
        first, count = runs.pop()
        if count > blocks:
            # From the front, so that files are read and written forward.
            runs.append((first + blocks, count - blocks))
            count = blocks
        taken.append((first, count))
        blocks -= count
    return tuple(taken)
