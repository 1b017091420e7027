from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from stretto.sim.replication.disk import SimFolder

SEEDS = range(200)


def outcomes(prepare: Callable[[SimFolder], None], look: Callable[[SimFolder], object]) -> set[object]:
    """What can be left after a power loss, over many of them."""
    seen = set()
    for seed in SEEDS:
        folder = SimFolder()
        prepare(folder)
        folder.lose_power(Random(seed))
        seen.add(look(folder))
    return seen


def content(folder: SimFolder, name: str = "a") -> bytes | None:
    return folder.open(name).read(0, 1 << 20) if name in folder.names() else None


def synced_file(folder: SimFolder, data: bytes = b"synced") -> None:
    file = folder.open("a", create=True)
    file.writev(0, [data])
    file.fdatasync()
    folder.sync()


def test_power_loss_keeps_what_was_synced() -> None:
    assert outcomes(synced_file, content) == {b"synced"}


def test_of_what_was_not_synced_a_prefix_is_left_perhaps_followed_by_zeros() -> None:
    def write_more(folder: SimFolder) -> None:
        synced_file(folder)
        folder.open("a").writev(6, [b"xyz"])

    prefixes = {b"synced" + b"xyz"[:kept] for kept in range(4)}
    zeros = {b"synced" + b"xyz"[:kept] + bytes(3 - kept) for kept in range(4)}
    assert outcomes(write_more, content) == prefixes | zeros


def test_a_synced_file_that_was_overwritten_or_cut_is_old_or_new() -> None:
    def overwrite(folder: SimFolder) -> None:
        synced_file(folder)
        folder.open("a").writev(0, [b"SYN"])

    def cut(folder: SimFolder) -> None:
        synced_file(folder)
        folder.open("a").truncate(2)

    assert outcomes(overwrite, content) == {b"synced", b"SYNced"}
    assert outcomes(cut, content) == {b"synced", b"sy"}


def test_a_new_name_that_was_not_synced_is_there_or_not() -> None:
    def create(folder: SimFolder) -> None:
        folder.open("a", create=True).fdatasync()

    assert outcomes(create, lambda folder: tuple(folder.names())) == {(), ("a",)}


def test_a_removal_that_was_not_synced_may_come_back_with_its_content() -> None:
    def remove(folder: SimFolder) -> None:
        synced_file(folder)
        folder.remove("a")

    assert outcomes(remove, content) == {None, b"synced"}


def test_a_rename_that_was_not_synced_is_made_or_not_but_never_half() -> None:
    def rename(folder: SimFolder) -> None:
        synced_file(folder)
        folder.rename("a", "b")

    assert outcomes(rename, lambda folder: tuple(folder.names())) == {("a",), ("b",)}


def test_a_synced_rename_survives() -> None:
    def rename(folder: SimFolder) -> None:
        synced_file(folder)
        folder.rename("a", "b")
        folder.sync()

    assert outcomes(rename, lambda folder: content(folder, "b")) == {b"synced"}


def test_what_survived_one_power_loss_survives_the_next() -> None:
    for seed in SEEDS:
        folder = SimFolder()
        synced_file(folder)
        folder.open("a").writev(6, [b"more"])
        folder.open("b", create=True)
        folder.lose_power(Random(seed))
        left = content(folder), folder.names()
        folder.lose_power(Random(seed + 1))
        assert (content(folder), folder.names()) == left


def test_a_flip_changes_one_bit_for_good_and_says_where() -> None:
    for seed in SEEDS:
        folder = SimFolder()
        synced_file(folder)
        assert folder.flip_a_bit(Random(seed)) == "a"
        damaged = content(folder)
        assert damaged is not None
        changed = [one ^ other for one, other in zip(b"synced", damaged, strict=True)]
        assert sum(bits.bit_count() for bits in changed) == 1
        folder.lose_power(Random(seed))
        assert content(folder) == damaged


def test_an_empty_folder_has_nothing_to_flip() -> None:
    folder = SimFolder()
    folder.open("a", create=True)
    assert folder.flip_a_bit(Random(0)) is None


def test_a_broken_disk_fails_every_write_and_sync_but_still_reads() -> None:
    folder = SimFolder()
    synced_file(folder)
    file = folder.open("a")
    folder.breaks = lambda: True
    actions: list[Callable[[], object]] = [
        lambda: file.writev(0, [b"x"]),
        file.fdatasync,
        lambda: file.truncate(0),
        lambda: folder.open("b", create=True),
        lambda: folder.rename("a", "b"),
        lambda: folder.remove("a"),
        folder.sync,
    ]
    for action in actions:
        with pytest.raises(OSError, match="Input/output error"):
            action()
    assert content(folder) == b"synced"
