"""The loop looks rows up itself for as long as none of them had to come from the disk."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stretto.worker.reads.page_residency import ENOUGH_KEYS, LONG_SECONDS, Residence

SIZE = 1 << 20


def test_rows_are_taken_to_be_in_memory_once_many_were_found_there() -> None:
    residence = Residence()
    residence.looked_up(ENOUGH_KEYS - 1, waits=0)
    assert not residence.is_likely
    residence.looked_up(1, waits=0)
    assert residence.is_likely


def test_one_that_had_to_wait_makes_all_prove_themselves_anew() -> None:
    residence = Residence()
    residence.looked_up(5 * ENOUGH_KEYS, waits=0)
    residence.looked_up(1, waits=1)
    assert not residence.is_likely
    residence.looked_up(ENOUGH_KEYS - 1, waits=0)
    assert not residence.is_likely


def test_the_loop_asks_for_waits_only_after_a_look_up_that_took_long(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = [5, 5, 6]
    monkeypatch.setattr("stretto.worker.reads.page_residency._waits", lambda: waits.pop(0))
    residence = Residence()
    residence.looked_up(ENOUGH_KEYS, waits=0)
    residence.glanced(1, LONG_SECONDS / 2)
    assert waits == [5, 5, 6]
    residence.glanced(1, LONG_SECONDS * 2)
    assert residence.is_likely, "whatever the loop waited for before is not known"
    residence.glanced(1, LONG_SECONDS * 2)
    assert residence.is_likely, "it took long, and waited for no page"
    residence.glanced(1, LONG_SECONDS * 2)
    assert not residence.is_likely


@pytest.mark.parametrize("in_memory", [True, False])
def test_the_kernel_tells_which_look_up_had_to_wait_for_the_disk(tmp_path: Path, in_memory: bool) -> None:
    residence = Residence()
    residence.looked_up(ENOUGH_KEYS, waits=0)
    with written(tmp_path / "file") as file, written(tmp_path / "other") as other:
        if not in_memory:
            for each in (file, other):
                os.posix_fadvise(each, 0, 0, os.POSIX_FADV_DONTNEED)
            # Not of the file itself: to ask for a page brings it in.
            if is_in_memory(other):
                pytest.skip("the files of this folder never leave memory")
        with mmap.mmap(file, 0, prot=mmap.PROT_READ) as mapped, residence.looking_up(1):
            assert mapped[SIZE // 2] == 0
    assert residence.is_likely == in_memory


@contextmanager
def written(path: Path) -> Iterator[int]:
    path.write_bytes(bytes(SIZE))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def is_in_memory(descriptor: int) -> bool:
    try:
        os.preadv(descriptor, [bytearray(1)], SIZE // 2, os.RWF_NOWAIT)
    except OSError:
        return False
    return True
