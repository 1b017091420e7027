"""Lists of hashes: made, compared, sent as changes."""

from __future__ import annotations

from random import Random

import pytest

from stretto.catchup.machines import blocks
from stretto.errors import PeerError


def hashes(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(blocks.HASH_BYTES, "big") for number in numbers)


def test_runs_are_the_blocks_that_differ() -> None:
    old, new = hashes(1, 2, 3, 4, 5), hashes(1, 9, 9, 4, 9, 6)

    assert blocks.missing_runs(old, new) == [(1, 2), (4, 2)]
    assert blocks.missing_runs(b"", hashes(1, 2)) == [(0, 2)]
    assert blocks.missing_runs(old, old[:32]) == []


@pytest.mark.parametrize("seed", range(20))
def test_changes_bring_one_list_to_another(seed: int) -> None:
    random = Random(seed)
    old = [random.randrange(4) for _ in range(random.randrange(20_000))]
    new = [number if random.random() > 0.01 else 9 for number in old]
    new = new[: random.randrange(len(new) + 1)] if random.random() < 0.5 else new + [7] * 5

    changes = blocks.encode_changes(hashes(*old), hashes(*new))

    assert blocks.apply_changes(hashes(*old), changes, len(new)) == hashes(*new)


def test_changes_that_fit_no_list_are_refused() -> None:
    with pytest.raises(PeerError, match="length"):
        blocks.apply_changes(b"", b"x", 1)
    with pytest.raises(PeerError, match="block 2 of 2"):
        blocks.apply_changes(b"", blocks.encode_changes(b"", hashes(1, 2, 3, 4, 5, 6)), 2)


def test_runs_are_taken_in_order_and_no_more_than_wanted() -> None:
    runs = [(0, 5), (10, 1)][::-1]

    assert blocks.take_runs(runs, 3) == ((0, 3),)
    assert blocks.take_runs(runs, 3) == ((3, 2), (10, 1))
    assert runs == []


def test_lists_of_large_images_are_bounded() -> None:
    assert blocks.block_bytes_for(1 << 30) == blocks.BLOCK_BYTES
    huge = 10 << 40
    count = blocks.blocks_in(huge, blocks.block_bytes_for(huge))
    assert count * blocks.HASH_BYTES <= blocks.LIST_BYTES_MAX
