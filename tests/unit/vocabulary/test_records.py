from __future__ import annotations

import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.errors import PeerError, UsageError
from stretto.vocabulary import records
from stretto.vocabulary.records import RecordBatch, head, pack, pack_joined

some_records = st.one_of(
    st.lists(st.binary(max_size=20), min_size=1, max_size=30),
    st.integers(0, 9).flatmap(
        lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=30)
    ),
)
names = st.text(min_size=1, max_size=60).filter(str.isprintable)


@given(names, some_records)
def test_what_was_packed_is_read_back(depot: str, content: list[bytes]) -> None:
    packed = pack(depot, content)
    batch = RecordBatch.parse(memoryview(packed))
    assert (batch.depot, batch.count) == head(packed) == (depot, len(content))
    assert batch.records() == content
    assert list(batch.lengths) == [len(record) for record in content]


@given(some_records)
def test_joined_records_make_the_same_batch(content: list[bytes]) -> None:
    lengths = array("I", map(len, content))
    assert pack_joined("d", lengths, b"".join(content)) == pack("d", content)
    assert pack_joined("d", lengths, bytearray(b"".join(content))) == pack("d", content)


@given(some_records, st.data())
def test_a_slice_is_the_batch_of_its_records(content: list[bytes], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(content) - 1))
    stop = data.draw(st.integers(start + 1, len(content)))
    part = RecordBatch.parse(pack("d", content)).slice(start, stop)
    assert part.records() == content[start:stop]
    assert part.pack() == pack("d", content[start:stop])


def test_parsing_copies_nothing() -> None:
    buffer = bytearray(pack("d", [b"aaaa", b"bbbb"]))
    batch = RecordBatch.parse(memoryview(buffer))
    buffer[-4:] = b"cccc"
    assert batch.records() == [b"aaaa", b"cccc"]


def test_a_long_batch_of_equal_records_is_read_back() -> None:
    content = [b"%08d" % number for number in range(10_000)]
    assert RecordBatch.parse(pack("d", content)).records() == content


@given(some_records, st.data())
def test_whatever_is_changed_or_cut_is_refused_or_read_within_bounds(
    content: list[bytes], data: st.DataObject
) -> None:
    packed = bytearray(pack("depot", content))
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] = data.draw(st.integers(0, 255))
    del packed[data.draw(st.integers(0, len(packed))) :]
    try:
        batch = RecordBatch.parse(memoryview(packed))
    except PeerError:
        return
    assert sum(map(len, batch.records())) == len(batch.data)
    assert len(batch.records()) == batch.count > 0


@pytest.mark.parametrize(
    ("buffer", "why"),
    [
        (b"", "cut short"),
        (b"\1\1\0\0", "cut short"),
        (b"\2\1\0\0\1\0\0\0d\0\0\0\0", "version 2"),
        (b"\1\1\1\0\1\0\0\0d\0\0\0\0", "flags 1"),
        (b"\1\1\0\0\0\0\0\0d", "no record"),
        (b"\1\0\0\0\1\0\0\0\0\0\0\0", "names no depot"),
        (b"\1\1\0\0\1\0\0\0\n\0\0\0\0", "names no depot"),
        (b"\1\1\0\0\1\0\0\0\xff\0\0\0\0", "names no depot"),
        (b"\1\xff\0\0\1\0\0\0d\0\0\0\0", "cut short"),
        (b"\1\1\0\0\1\0\0\0d\1\0\0\0", "add up to 1 bytes, but there are 0"),
        (b"\1\1\0\0\1\0\0\0d\0\0\0\0x", "add up to 0 bytes, but there are 1"),
        (b"\1\1\0\0\xff\xff\xff\xffd\0\0\0\0x", "cut short"),
    ],
)
def test_nonsense_of_a_peer_is_refused_with_a_sentence(buffer: bytes, why: str) -> None:
    with pytest.raises(PeerError, match=why):
        RecordBatch.parse(buffer)


def test_lengths_that_overflow_32_bits_do_not_pass_for_their_remainder() -> None:
    lengths = struct.pack("<3I", 2**32 - 1, 1, 4)
    with pytest.raises(PeerError, match="add up to 4294967300 bytes, but there are 4"):
        RecordBatch.parse(b"\1\1\0\0\3\0\0\0d" + lengths + b"data")


def test_limits_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "RECORD_BYTES_MAX", 10)
    monkeypatch.setattr(records, "BATCH_BYTES_MAX", 100)
    assert pack("d", [b"x" * 10] * 2)
    with pytest.raises(UsageError, match="a record of 11 bytes is beyond the limit of 10"):
        pack("d", [b"x", b"x" * 11])
    with pytest.raises(UsageError, match=r"a batch of 107 bytes is beyond the limit of 100; split it"):
        pack("d", [b"x" * 10] * 7)
    with pytest.raises(UsageError, match="a batch holds at least one record"):
        pack("d", [])
    monkeypatch.undo()
    too_long, too_large = pack("d", [b"x" * 11]), pack("d", [b"x" * 10] * 7)
    monkeypatch.setattr(records, "RECORD_BYTES_MAX", 10)
    monkeypatch.setattr(records, "BATCH_BYTES_MAX", 100)
    with pytest.raises(PeerError, match="a record of 11 bytes is beyond the limit of 10"):
        RecordBatch.parse(too_long)
    with pytest.raises(PeerError, match="a record batch of 107 bytes is beyond the limit of 100"):
        RecordBatch.parse(too_large)


@pytest.mark.parametrize("depot", ["", "é" * 128, "a\0b", "a\nb"])
def test_a_depot_name_is_printable_and_of_bounded_length(depot: str) -> None:
    with pytest.raises(UsageError, match="a depot name has"):
        pack(depot, [b"x"])


def test_joined_data_must_be_what_the_lengths_say() -> None:
    with pytest.raises(UsageError, match="add up to 3 bytes, but there are 2"):
        pack_joined("d", array("I", [1, 2]), b"xx")
    with pytest.raises(UsageError, match="type 'I', not 'Q'"):
        pack_joined("d", array("Q", [1]), b"x")


def test_a_slice_beyond_the_batch_is_refused() -> None:
    batch = RecordBatch.parse(pack("d", [b"x", b"y"]))
    for start, stop in [(0, 3), (1, 1), (-1, 1), (2, 3)]:
        with pytest.raises(UsageError, match="is not within the 2 records"):
            batch.slice(start, stop)
