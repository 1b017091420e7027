"""What a driver of the replication core relies on in a log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stretto.errors import UsageError
from stretto.replog.frame import Frame, decode
from stretto.replog.storage import Folder, Storage
from stretto.vocabulary.invariants import InvariantViolation
from stretto.vocabulary.types import Offset
from tests.contracts.conftest import OpenStorage
from tests.support.frames import contents, epoch_start, history_of, make_frame, make_frames, read_all

SEGMENT_BYTES = 400
"""Five of the frames used here."""


@pytest.fixture
def reopen(folder: Folder, open_storage: OpenStorage) -> Callable[[], Storage]:
    return lambda: open_storage(folder, segment_bytes=SEGMENT_BYTES)


@pytest.fixture
def log(reopen: Callable[[], Storage]) -> Storage:
    return reopen()


def fill(log: Storage, frames: list[Frame]) -> None:
    for frame in frames:
        log.append([frame])
        log.sync()


def offsets(log: Storage) -> list[int]:
    return [header.offset for header, _ in read_all(log)]


def test_a_new_log_is_empty_at_offset_0_without_history(log: Storage) -> None:
    assert (log.start_offset, log.end_offset, log.durable_end_offset, log.history) == (0, 0, 0, ())
    assert list(log.headers(Offset(0))) == []


def test_an_appended_entry_is_readable_at_once_and_durable_after_sync(log: Storage) -> None:
    log.append(make_frames(0, 3))
    assert (log.end_offset, log.durable_end_offset) == (3, 0)
    assert offsets(log) == [0, 1, 2]
    assert log.sync() == 3
    assert log.durable_end_offset == 3
    assert log.sync() == 3


def test_a_frame_covers_as_many_offsets_as_it_has_entries(log: Storage) -> None:
    log.append([make_frame(0, count=10), make_frame(10, count=5)])
    assert log.end_offset == 15
    assert [header.offset for header in log.headers(Offset(12))] == [10]
    assert [header.offset for header in log.headers(Offset(9))] == [0, 10]


def test_a_reopened_log_has_everything_synced(log: Storage, reopen: Callable[[], Storage]) -> None:
    fill(log, make_frames(0, 12) + make_frames(12, 3, epoch=4))
    expected = contents(log)
    log.close()
    again = reopen()
    assert contents(again) == expected
    assert again.durable_end_offset == 15


def test_an_append_that_is_not_contiguous_is_an_invariant_violation(log: Storage) -> None:
    log.append([make_frame(0)])
    with pytest.raises(InvariantViolation, match="not contiguous"):
        log.append([make_frame(2)])


def test_an_append_of_an_earlier_epoch_is_an_invariant_violation(log: Storage) -> None:
    log.append([make_frame(0, epoch=3)])
    with pytest.raises(InvariantViolation, match="epochs go back"):
        log.append([make_frame(1, epoch=2)])


def test_a_read_returns_whole_frames_that_fit_and_at_least_one(log: Storage) -> None:
    frames = make_frames(0, 23)
    fill(log, frames[:20])
    log.append(frames[20:])
    size = frames[0].size_bytes
    for start in (0, 3, 5, 18, 20, 22):
        for fitting in (1, 2, 7, 30):
            end = min(start + fitting, 23)
            chunk = log.read(Offset(start), Offset(23), fitting * size + size - 1)
            assert (chunk.start, chunk.end) == (start, end)
            assert decode(b"".join(chunk.buffers))[-1].end_offset == end
        assert log.read(Offset(start), Offset(23), 1).end == start + 1


def test_a_read_stops_at_its_end(log: Storage) -> None:
    fill(log, make_frames(0, 12))
    log.append(make_frames(12, 4))
    for end in (1, 5, 7, 12, 14):
        assert log.read(Offset(0), Offset(end), 1 << 20).end == end
    assert log.read(Offset(4), Offset(4), 1).buffers == ()


def test_a_read_outside_the_log_or_inside_a_frame_is_refused(log: Storage) -> None:
    log.append([make_frame(0, count=4), make_frame(4, count=4)])
    log.sync()
    for start, end in ((0, 9), (9, 9), (1, 8), (0, 3), (5, 4)):
        with pytest.raises(UsageError):
            log.read(Offset(start), Offset(end), 100)


def test_truncate_drops_the_end_durably(log: Storage, reopen: Callable[[], Storage]) -> None:
    for end in (22, 17, 10, 4, 0):
        fill(log, make_frames(log.end_offset, 23 - log.end_offset))
        log.truncate(Offset(end))
        assert (log.end_offset, log.durable_end_offset) == (end, end)
        assert offsets(log) == list(range(end))
        log.close()
        log = reopen()
        assert offsets(log) == list(range(end))


def test_truncate_drops_what_was_never_synced(log: Storage) -> None:
    fill(log, make_frames(0, 3))
    log.append(make_frames(3, 3))
    log.truncate(Offset(4))
    assert (log.end_offset, log.durable_end_offset) == (4, 3)
    log.append([make_frame(4, content=b"other")])
    log.sync()
    assert read_all(log)[-1][1] == b"other"


def test_truncate_forgets_the_epochs_it_drops(log: Storage) -> None:
    fill(log, make_frames(0, 4, epoch=1) + make_frames(4, 4, epoch=2) + make_frames(8, 4, epoch=5))
    assert history_of(log) == [(1, 0), (2, 4), (5, 8)]
    log.truncate(Offset(9))
    assert history_of(log) == [(1, 0), (2, 4), (5, 8)]
    log.truncate(Offset(8))
    assert history_of(log) == [(1, 0), (2, 4)]
    log.append([make_frame(8, epoch=3)])
    assert history_of(log) == [(1, 0), (2, 4), (3, 8)]
    log.truncate(Offset(0))
    assert history_of(log) == []


def test_truncate_inside_a_frame_or_outside_the_log_is_refused(log: Storage) -> None:
    fill(log, [make_frame(0, count=4), make_frame(4, count=4)])
    log.append([make_frame(8, count=4)])
    for end in (2, 6, 10, 13):
        with pytest.raises(UsageError):
            log.truncate(Offset(end))
    assert offsets(log) == [0, 4, 8]


def test_cut_drops_whole_segments_below_an_offset(log: Storage, reopen: Callable[[], Storage]) -> None:
    fill(log, make_frames(0, 23))
    assert log.cut(Offset(0)) == 0
    assert log.cut(Offset(4)) == 0
    assert log.cut(Offset(7)) == 5
    assert log.cut(Offset(19)) == 15
    assert log.cut(Offset(3)) == 15
    assert offsets(log) == list(range(15, 23))
    with pytest.raises(UsageError):
        log.read(Offset(14), Offset(23), 100)
    log.close()
    assert offsets(reopen()) == list(range(15, 23))


def test_cut_keeps_the_epoch_of_the_first_entry_with_its_true_start(
    log: Storage, reopen: Callable[[], Storage]
) -> None:
    fill(log, make_frames(0, 3, epoch=1) + make_frames(3, 9, epoch=2) + make_frames(12, 4, epoch=7))
    log.cut(Offset(10))
    expected = [(2, 3), (7, 12)]
    assert history_of(log) == expected
    log.close()
    again = reopen()
    assert history_of(again) == expected
    again.truncate(Offset(10))
    assert history_of(again) == [(2, 3)]
    again.close()
    assert history_of(reopen()) == [(2, 3)]


def test_cut_keeps_the_epoch_that_ended_just_below_the_new_start_and_forgets_the_rest(
    log: Storage, reopen: Callable[[], Storage]
) -> None:
    fill(log, make_frames(0, 2, epoch=1) + make_frames(2, 3, epoch=2) + make_frames(5, 5, epoch=3))
    log.cut(Offset(5))
    assert history_of(log) == [(2, 2), (3, 5)]
    log.close()
    assert history_of(reopen()) == [(2, 2), (3, 5)]


def test_reset_replaces_the_log_by_an_empty_one(log: Storage, reopen: Callable[[], Storage]) -> None:
    fill(log, make_frames(0, 12))
    log.append([make_frame(12)])
    log.reset(Offset(100), (epoch_start(3, 40), epoch_start(6, 80)))
    for state in (log, reopen()):
        assert (state.start_offset, state.end_offset, state.durable_end_offset) == (100, 100, 100)
        assert history_of(state) == [(6, 80)]


def test_a_reset_log_goes_on_from_its_history(log: Storage, reopen: Callable[[], Storage]) -> None:
    log.reset(Offset(100), (epoch_start(6, 80),))
    with pytest.raises(InvariantViolation):
        log.append([make_frame(100, epoch=5)])
    fill(log, [make_frame(100, epoch=6), make_frame(101, epoch=8)])
    assert history_of(log) == [(6, 80), (8, 101)]
    log.close()
    assert history_of(reopen()) == [(6, 80), (8, 101)]


def test_a_new_epoch_after_reset_joins_the_one_before(log: Storage, reopen: Callable[[], Storage]) -> None:
    log.reset(Offset(100), (epoch_start(6, 80),))
    fill(log, [make_frame(100, epoch=7)])
    assert history_of(log) == [(6, 80), (7, 100)]
    log.close()
    again = reopen()
    assert history_of(again) == [(6, 80), (7, 100)]
    again.truncate(Offset(100))
    assert history_of(again) == [(6, 80)]


def test_reset_refuses_a_history_from_beyond_its_start(log: Storage) -> None:
    with pytest.raises(UsageError, match="beyond"):
        log.reset(Offset(10), (epoch_start(6, 11),))
    assert log.start_offset == 0
