from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.errors import PeerError, UsageError
from stretto.replog.frame import (
    HEADER_BYTES,
    OVERHEAD_BYTES,
    PAYLOAD_BYTES_MAX,
    Header,
    Kind,
    decode,
    encode,
    payload,
)
from stretto.vocabulary.types import Epoch, Offset, ProducerId, TaskId
from tests.support.frames import make_frame, whole

headers = st.builds(
    Header,
    offset=st.integers(0, 2**63).map(Offset),
    epoch=st.integers(0, 2**32 - 1).map(Epoch),
    kind=st.sampled_from(Kind),
    count=st.integers(1, 2**32 - 1),
    task=st.integers(0, 2**32 - 1).map(TaskId),
    producer=st.integers(0, 2**64 - 1).map(ProducerId),
    sequence=st.integers(0, 2**64 - 1),
    timestamp_ms=st.integers(0, 2**64 - 1),
)


@given(st.lists(st.tuples(headers, st.binary(max_size=200)), max_size=4))
def test_decoding_what_was_encoded_gives_the_same_frames(batches: list[tuple[Header, bytes]]) -> None:
    blob = b"".join(whole(encode(header, content)) for header, content in batches)
    assert [(frame.header, bytes(payload(frame))) for frame in decode(blob)] == batches


def test_a_payload_is_neither_copied_by_encode_nor_by_decode() -> None:
    content = bytes(1000)
    frame = make_frame(0, content=content)
    assert payload(frame) is content
    blob = whole(frame)
    (received,) = decode(blob)
    view = payload(received)
    assert isinstance(view, memoryview)
    assert view.obj is blob


def test_a_frame_has_a_header_of_64_bytes_and_ends_with_bytes_that_are_not_zero() -> None:
    frame = make_frame(0, content=bytes(10))
    data = whole(frame)
    assert len(data) == frame.size_bytes == 10 + OVERHEAD_BYTES
    assert all(data[HEADER_BYTES - 4 : HEADER_BYTES])
    assert all(data[-4:])


@pytest.mark.parametrize("content", [b"", b"payload", bytes(9)])
def test_every_single_flipped_bit_of_a_received_frame_is_refused(content: bytes) -> None:
    data = whole(make_frame(5, content=content))
    for position in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            with pytest.raises(PeerError, match="damaged frame at byte 0"):
                decode(bytes(changed))


def test_a_received_frame_that_is_cut_short_is_refused() -> None:
    data = whole(make_frame(5))
    for length in range(1, len(data)):
        with pytest.raises(PeerError, match=f"at byte {len(data)} of"):
            decode(data + data[:length])


def test_nothing_received_is_no_frames() -> None:
    assert decode(b"") == ()


def test_a_frame_beyond_the_limit_is_refused() -> None:
    with pytest.raises(UsageError, match="split the batch"):
        make_frame(0, content=bytes(PAYLOAD_BYTES_MAX + 1))


def test_a_frame_without_entries_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one entry"):
        make_frame(0, count=0)


def test_a_field_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="does not fit"):
        make_frame(0, epoch=2**32)
