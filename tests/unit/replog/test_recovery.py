"""Recovery tells torn from corrupt: every cut and every flip of the last frames, one by one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stretto.errors import StorageCorrupt, StorageError, StrettoError
from stretto.replog.frame import HEADER_BYTES, TRAILER_BYTES, Frame
from stretto.replog.intent import INTENT_NAME, Change, Intent, _encode
from stretto.replog.log import Replog
from stretto.replog.segment import SEGMENT_HEADER_BYTES, encode_header, index_name, segment_name
from stretto.vocabulary.types import Offset
from tests.support.frames import contents, epoch_start, make_frame, make_frames, whole
from tests.support.power import PowerFolder

PAYLOADS = {
    "text": b"some payload",
    "empty": b"",
    "all zeros": bytes(12),
    "ending in zeros": b"some" + bytes(8),
    "looking like a trailer": b"\xb5END\xb5END",
}

FIRST = segment_name(Offset(0))


def log_of(frames: list[Frame]) -> bytes:
    """The bytes of a segment with these frames."""
    return encode_header(Offset(0), None) + b"".join(map(whole, frames))


def reopen(content: bytes) -> Replog:
    return Replog.open(PowerFolder({FIRST: content}))


def frames_with(content: bytes) -> list[Frame]:
    return [make_frame(offset, count=2, content=content) for offset in (0, 2, 4)]


def cuts(frames: list[Frame]) -> Iterator[tuple[int, int]]:
    """Each byte position from the end of the first frame on, with how many frames are whole below it."""
    ends = [SEGMENT_HEADER_BYTES]
    for frame in frames:
        ends.append(ends[-1] + frame.size_bytes)
    for position in range(ends[1], ends[-1] + 1):
        yield position, sum(end <= position for end in ends[1:])


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_log_cut_at_any_byte_keeps_the_whole_frames_below(name: str) -> None:
    frames = frames_with(PAYLOADS[name])
    full = log_of(frames)
    for position, whole_frames in cuts(frames):
        folder = PowerFolder({FIRST: full[:position]})
        log = Replog.open(folder)
        assert log.end_offset == log.durable_end_offset == 2 * whole_frames, position
        assert folder.power_off().files[FIRST].durable == log_of(frames[:whole_frames]), position


@pytest.mark.parametrize("zeros", [1, 5, 100, 5000])
@pytest.mark.parametrize("name", PAYLOADS)
def test_a_log_that_runs_into_zeros_at_any_byte_keeps_the_whole_frames_below(name: str, zeros: int) -> None:
    frames = frames_with(PAYLOADS[name])
    full = log_of(frames)
    for position, whole_frames in cuts(frames):
        content = full[:position] + bytes(zeros)
        if full[:position] and full[: position + 1] == content[: position + 1]:
            continue  # the first zero is the byte that was there: the same as a later cut
        if any(position + 1 == end for end, _ in _ends(frames)):
            # All but the last byte, then zeros: the same bytes as a changed last byte.
            with pytest.raises(StorageCorrupt):
                reopen(content)
            continue
        log = reopen(content)
        assert log.end_offset == 2 * whole_frames, position
        log.append([make_frame(log.end_offset, content=b"next")])
        log.sync()


def _ends(frames: list[Frame]) -> list[tuple[int, int]]:
    ends = []
    position = SEGMENT_HEADER_BYTES
    for number, frame in enumerate(frames):
        position += frame.size_bytes
        ends.append((position, number))
    return ends


@pytest.mark.parametrize("zeros", [0, 1, 3, 100])
@pytest.mark.parametrize("name", PAYLOADS)
def test_a_flip_of_any_byte_of_the_last_frame_is_corruption_at_its_position(name: str, zeros: int) -> None:
    frames = frames_with(PAYLOADS[name])
    full = log_of(frames)
    start = len(full) - frames[-1].size_bytes
    for position in range(start, len(full)):
        for changed_byte in {0, full[position] ^ 1, full[position] ^ 0x80, full[position] ^ 0xFF}:
            if changed_byte == full[position]:
                continue
            changed = bytearray(full + bytes(zeros))
            changed[position] = changed_byte
            with pytest.raises(StorageCorrupt) as caught:
                reopen(bytes(changed))
            assert (caught.value.segment, caught.value.offset, caught.value.position) == (FIRST, 4, start)


def test_a_flip_of_any_byte_of_an_earlier_frame_is_corruption_at_its_position() -> None:
    frames = frames_with(b"abc")
    full = log_of(frames)
    start = SEGMENT_HEADER_BYTES + frames[0].size_bytes
    for position in range(start, start + frames[1].size_bytes):
        changed = bytearray(full)
        changed[position] ^= 0x55
        with pytest.raises(StorageCorrupt) as caught:
            reopen(bytes(changed))
        assert (caught.value.offset, caught.value.position) == (2, start)


def test_a_whole_header_with_a_changed_byte_is_corruption_even_if_nothing_follows_it() -> None:
    frames = frames_with(b"abc")
    full = bytearray(log_of(frames))
    start = len(full) - frames[-1].size_bytes
    full[start + HEADER_BYTES :] = bytes(len(full) - start - HEADER_BYTES)
    for position in range(start, start + HEADER_BYTES):
        changed = bytearray(full)
        changed[position] ^= 0x22
        with pytest.raises(StorageCorrupt):
            reopen(bytes(changed))


def test_corruption_is_never_healed_by_cutting() -> None:
    frames = frames_with(b"abc")
    changed = bytearray(log_of(frames))
    changed[-10] ^= 1
    folder = PowerFolder({FIRST: bytes(changed)})
    for _ in range(2):
        with pytest.raises(StorageCorrupt):
            Replog.open(folder)
    assert folder.files[FIRST].live == changed


def test_a_flip_of_any_byte_of_the_segment_header_is_corruption() -> None:
    full = log_of(frames_with(b"abc"))
    for position in range(SEGMENT_HEADER_BYTES):
        changed = bytearray(full)
        changed[position] ^= 0x10
        with pytest.raises(StorageCorrupt, match="at byte 0 "):
            reopen(bytes(changed))


def test_a_segment_shorter_than_its_header_is_corruption() -> None:
    with pytest.raises(StorageCorrupt, match="64 bytes of header"):
        reopen(b"")


def test_another_format_version_is_named() -> None:
    header = bytearray(encode_header(Offset(0), None))
    header[8] = 9
    from crc32c import crc32c

    header[-4:] = crc32c(bytes(header[:-4])).to_bytes(4, "little")
    with pytest.raises(StrettoError, match="format version 9") as caught:
        reopen(bytes(header))
    assert not isinstance(caught.value, StorageCorrupt)


def test_offsets_that_skip_are_corruption() -> None:
    with pytest.raises(StorageCorrupt, match="begins at offset 3"):
        reopen(log_of([make_frame(0), make_frame(1), make_frame(3)]))


def test_epochs_that_go_back_are_corruption() -> None:
    with pytest.raises(StorageCorrupt, match="epoch 1 follows epoch 2"):
        reopen(log_of([make_frame(0, epoch=1), make_frame(1, epoch=2), make_frame(2, epoch=1)]))


def test_a_preallocated_file_of_zeros_after_the_header_is_an_empty_log() -> None:
    log = reopen(log_of([]) + bytes(1 << 16))
    assert log.end_offset == 0


def test_a_frame_larger_than_one_read_of_the_scan_is_recovered() -> None:
    frames = [make_frame(0), make_frame(1, content=bytes(3_000_000)), make_frame(2)]
    full = log_of(frames)
    assert reopen(full).end_offset == 3
    assert reopen(full[:-1]).end_offset == 2
    assert reopen(full[: -frames[2].size_bytes - 1]).end_offset == 1


# Several segments


def segmented() -> PowerFolder:
    """Three segments of five entries, the last one with two."""
    folder = PowerFolder()
    log = Replog.open(folder, segment_bytes=400)
    for frame in make_frames(0, 12):
        log.append([frame])
        log.sync()
    assert [segment.base for segment in log._segments] == [0, 5, 10]
    return folder


def test_a_sealed_segment_is_not_scanned_at_open() -> None:
    folder = segmented()
    inode = folder.files[segment_name(Offset(5))]
    inode.live[100] ^= 1
    log = Replog.open(folder)
    assert log.end_offset == 12
    with pytest.raises(StorageCorrupt) as caught:
        log.read(Offset(5), Offset(6), 1000)
    assert (caught.value.segment, caught.value.offset) == (segment_name(Offset(5)), 5)
    assert caught.value.position == SEGMENT_HEADER_BYTES


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "flipped", "of another segment"])
def test_a_sealed_segment_without_a_good_index_file_is_scanned(damage: str) -> None:
    folder = segmented()
    expected = contents(Replog.open(folder))
    index = folder.files[index_name(Offset(0))].live
    if damage == "missing":
        folder.remove(index_name(Offset(0)))
    elif damage == "empty":
        del index[:]
    elif damage == "cut":
        del index[-1]
    elif damage == "flipped":
        index[len(index) // 2] ^= 1
    else:
        index[:] = folder.files[index_name(Offset(5))].live
    log = Replog.open(folder)
    assert contents(log) == expected
    assert folder.files[index_name(Offset(0))].live, "the index is written again"


def test_an_index_file_of_the_active_segment_is_stale_and_durably_removed() -> None:
    folder = segmented()
    folder.open(index_name(Offset(10)), create=True)
    folder.sync()
    Replog.open(folder)
    assert index_name(Offset(10)) not in folder.power_off().files


def test_truncating_a_sealed_segment_durably_removes_its_index_file() -> None:
    folder = segmented()
    folder.sync()
    log = Replog.open(folder)
    log.truncate(Offset(7))
    assert set(folder.power_off().files) == {
        segment_name(Offset(0)),
        index_name(Offset(0)),
        segment_name(Offset(5)),
    }


@pytest.mark.parametrize("cut_bytes", [1, TRAILER_BYTES, HEADER_BYTES, 75])
def test_a_sealed_segment_that_is_cut_short_is_corruption(cut_bytes: int) -> None:
    folder = segmented()
    del folder.files[segment_name(Offset(5))].live[-cut_bytes:]
    with pytest.raises(StorageCorrupt) as caught:
        Replog.open(folder)
    assert caught.value.segment == segment_name(Offset(5))
    assert caught.value.offset == 9


def test_a_missing_segment_in_the_middle_is_corruption() -> None:
    folder = segmented()
    folder.remove(segment_name(Offset(5)))
    with pytest.raises(StorageCorrupt, match="next segment begins at offset 10"):
        Replog.open(folder)


def test_a_log_that_must_exist_and_does_not_is_corruption() -> None:
    folder = segmented()
    for name in folder.names():
        folder.remove(name)
    with pytest.raises(StorageCorrupt, match="are gone"):
        Replog.open(folder, create=False)


def test_a_damaged_intent_is_corruption() -> None:
    folder = segmented()
    folder.open("intent", create=True).writev(0, (bytes(52),))
    with pytest.raises(StorageCorrupt, match="intent"):
        Replog.open(folder)


def test_a_flip_of_any_byte_of_an_intent_is_corruption() -> None:
    content = _encode(Intent(change=Change.TRUNCATE, offset=Offset(2), before=epoch_start(1, 0)))
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1
        folder = segmented()
        folder.open(INTENT_NAME, create=True).writev(0, (bytes(changed),))
        before = {name: bytes(inode.live) for name, inode in folder.files.items()}
        with pytest.raises(StorageCorrupt, match="intent"):
            Replog.open(folder)
        assert {name: bytes(inode.live) for name, inode in folder.files.items()} == before


def test_files_that_are_not_the_logs_are_left_alone() -> None:
    folder = segmented()
    for name in ("identity", "identity.tmp", "aside.0.identity", "notes.replog"):
        folder.open(name, create=True)
    Replog.open(folder)
    assert {"identity", "identity.tmp", "aside.0.identity", "notes.replog"} <= set(folder.files)


def test_a_folder_that_cannot_be_read_is_a_storage_error() -> None:
    folder = segmented()
    folder.fail_before = len(folder.operations)
    with pytest.raises(StorageError, match="cannot be opened"):
        Replog.open(folder)
