"""What the log relies on in a folder, whatever it is made of."""

from __future__ import annotations

import pytest

from stretto.replog.storage import Folder
from stretto.vocabulary.types import Buffer


def test_a_file_holds_what_was_written_across_handles(folder: Folder) -> None:
    file = folder.open("a", create=True)
    file.writev(0, [b"hello ", memoryview(b"world")])
    file.writev(3, [b"LO"])
    file.fdatasync()
    file.close()
    again = folder.open("a")
    assert again.size() == 11
    assert again.read(0, 100) == b"helLO world"
    assert again.read(6, 3) == b"wor"
    assert again.read(11, 5) == b""
    again.close()


def test_two_handles_of_one_file_see_each_others_writes(folder: Folder) -> None:
    one = folder.open("a", create=True)
    other = folder.open("a")
    one.writev(0, [b"abc"])
    assert other.read(0, 3) == b"abc"
    other.truncate(1)
    assert one.size() == 1
    one.close()
    other.close()


def test_a_write_of_more_buffers_than_one_system_call_takes_is_whole(folder: Folder) -> None:
    buffers: list[Buffer] = [bytes([number % 251]) * 3 for number in range(5000)]
    file = folder.open("a", create=True)
    file.writev(2, buffers)
    assert file.size() == 2 + 15000
    assert file.read(0, 20000) == bytes(2) + b"".join(buffers)
    file.close()


def test_truncate_shortens_and_a_write_beyond_the_end_fills_with_zeros(folder: Folder) -> None:
    file = folder.open("a", create=True)
    file.writev(0, [b"abcdef"])
    file.truncate(2)
    file.writev(4, [b"x"])
    assert file.read(0, 10) == b"ab\0\0x"
    file.close()


def test_opening_a_missing_file_needs_create(folder: Folder) -> None:
    with pytest.raises(FileNotFoundError):
        folder.open("a")
    folder.open("a", create=True).close()
    folder.open("a", create=True).close()
    assert folder.names() == ["a"]


def test_rename_takes_the_place_of_what_was_there(folder: Folder) -> None:
    for name in ("a", "b"):
        file = folder.open(name, create=True)
        file.writev(0, [name.encode()])
        file.close()
    folder.rename("a", "b")
    folder.sync()
    assert folder.names() == ["b"]
    file = folder.open("b")
    assert file.read(0, 10) == b"a"
    file.close()


def test_a_file_open_under_its_old_name_goes_on_after_a_rename(folder: Folder) -> None:
    file = folder.open("a", create=True)
    folder.rename("a", "b")
    file.writev(0, [b"x"])
    other = folder.open("b")
    assert other.read(0, 1) == b"x"
    file.close()
    other.close()


def test_a_removed_file_is_gone_and_removing_it_again_fails(folder: Folder) -> None:
    folder.open("a", create=True).close()
    folder.remove("a")
    folder.sync()
    assert folder.names() == []
    with pytest.raises(FileNotFoundError):
        folder.remove("a")


def test_a_removed_file_can_still_be_read_by_who_has_it_open(folder: Folder) -> None:
    file = folder.open("a", create=True)
    file.writev(0, [b"x"])
    folder.remove("a")
    assert file.read(0, 1) == b"x"
    file.close()
