from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stretto.errors import StorageCorrupt, StorageError
from stretto.replog.folder import OsFolder
from stretto.replog.frame import HEADER_BYTES, TRAILER_BYTES
from stretto.replog.log import Replog
from stretto.replog.segment import SEGMENT_HEADER_BYTES
from stretto.vocabulary.invariants import InvariantViolation
from stretto.vocabulary.types import Offset
from tests.support.frames import contents, make_frame, make_frames, read_all
from tests.support.power import PowerFile, PowerFolder


class CountingFolder(PowerFolder):
    """Also counts reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def open(self, name: str, *, create: bool = False) -> PowerFile:
        file = super().open(name, create=create)
        original = file.read

        def read(position: int, length: int) -> bytes:
            self.reads += 1
            return original(position, length)

        file.read = read  # type: ignore[method-assign]
        return file


def test_a_sync_is_one_write_and_one_fdatasync_however_much_is_waiting() -> None:
    folder = PowerFolder()
    log = Replog.open(folder)
    log.append(make_frames(0, 100))
    log.append(make_frames(100, 100))
    done = len(folder.operations)
    log.sync()
    assert folder.operations[done:] == ["writev", "fdatasync"]
    log.sync()
    assert folder.operations[done:] == ["writev", "fdatasync"]


def test_the_newest_entries_are_read_from_memory_before_and_after_sync() -> None:
    folder = CountingFolder()
    log = Replog.open(folder, tail_bytes=10_000)
    for offset in range(1000):
        log.append([make_frame(offset)])
        reads = folder.reads
        assert log.read(Offset(max(0, offset - 50)), log.end_offset, 1 << 20).end == offset + 1
        assert folder.reads == reads
        log.sync()
        assert log.read(Offset(max(0, offset - 50)), log.end_offset, 1 << 20).end == offset + 1
        assert folder.reads == reads
    assert len(log._tail._frames) < 500, "what is written is forgotten beyond the bound"
    assert len(read_all(log)) == 1000
    assert folder.reads > 0


def test_unwritten_entries_stay_in_memory_beyond_the_bound() -> None:
    log = Replog.open(PowerFolder(), tail_bytes=100)
    log.append(make_frames(0, 50))
    assert len(read_all(log)) == 50
    log.sync()
    assert len(read_all(log, max_bytes=1)) == 50


def test_appends_and_reads_go_on_while_a_write_is_in_flight() -> None:
    log = Replog.open(PowerFolder(), segment_bytes=400, tail_bytes=100)
    log.append(make_frames(0, 8))
    pending = log.take_pending()
    assert pending is not None
    log.append(make_frames(8, 4))
    assert len(read_all(log)) == 12
    log.write(pending)
    assert (log.end_offset, log.durable_end_offset) == (12, 0)
    assert len(read_all(log)) == 12
    log.written(pending)
    assert log.durable_end_offset == 8
    assert log.sync() == 12
    assert [segment.base for segment in log._segments] == [0, 8]


def test_a_write_that_is_not_to_be_durable_survives_the_process_only() -> None:
    folder = PowerFolder()
    log = Replog.open(folder)
    log.append(make_frames(0, 3))
    pending = log.take_pending(durable=False)
    assert pending is not None
    log.write(pending)
    log.written(pending)
    assert (log.written_end_offset, log.durable_end_offset) == (3, 0)
    assert log.take_pending(durable=False) is None
    assert Replog.open(folder.power_off()).end_offset == 0
    log.sync()
    assert log.durable_end_offset == 3
    assert Replog.open(folder.power_off()).end_offset == 3


def test_a_full_segment_is_durable_before_the_next_one_exists() -> None:
    folder = PowerFolder()
    log = Replog.open(folder, segment_bytes=400)
    log.append(make_frames(0, 5))
    pending = log.take_pending(durable=False)
    assert pending is not None
    log.write(pending)
    log.written(pending)
    log.append(make_frames(5, 1))
    log.sync()
    assert Replog.open(folder.power_off()).end_offset == 6


def test_the_files_are_not_changed_under_a_write_in_flight() -> None:
    log = Replog.open(PowerFolder())
    log.append([make_frame(0)])
    log.take_pending()
    with pytest.raises(InvariantViolation):
        log.truncate(Offset(0))
    with pytest.raises(InvariantViolation):
        log.reset(Offset(0), ())
    with pytest.raises(InvariantViolation):
        log.close()


def test_a_writer_may_be_ahead_of_what_its_owner_has_noted() -> None:
    folder = PowerFolder()
    log = Replog.open(folder, segment_bytes=400, tail_bytes=100)
    finished = []
    for frame in make_frames(0, 13):
        log.append([frame])
        pending = log.take_pending()
        assert pending is not None
        log.write(pending)
        finished.append(pending)
        assert len(read_all(log)) == frame.end_offset
    assert (log.durable_end_offset, len(log._segments)) == (0, 1)
    for pending in finished:
        log.written(pending)
        assert len(read_all(log)) == 13
    assert (log.durable_end_offset, len(log._segments)) == (13, 3)
    assert contents(Replog.open(folder.power_off())) == contents(log)


def test_retention_may_run_while_a_write_is_in_flight() -> None:
    folder = PowerFolder()
    log = Replog.open(folder, segment_bytes=400, tail_bytes=100)
    for frame in make_frames(0, 20):
        log.append([frame])
        log.sync()
    log.append([make_frame(20)])
    pending = log.take_pending()
    assert pending is not None
    assert log.cut(Offset(12)) == 10
    log.write(pending)
    assert pending.rolled is not None
    assert log.cut(Offset(16)) == 15
    log.written(pending)
    assert contents(Replog.open(folder.power_off())) == contents(log)


CALLS: dict[str, Callable[[Replog], object]] = {
    "append": lambda log: log.append([make_frame(log.end_offset)]),
    "sync": lambda log: log.sync(),
    "read": lambda log: log.read(Offset(0), Offset(1), 100),
    "headers": lambda log: list(log.headers(Offset(0))),
    "truncate": lambda log: log.truncate(Offset(1)),
    "cut": lambda log: log.cut(Offset(1)),
    "reset": lambda log: log.reset(Offset(1), ()),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("failing", [0, 1])
def test_after_a_failed_write_or_fdatasync_every_call_but_close_is_refused(failing: int, call: str) -> None:
    folder = PowerFolder()
    log = Replog.open(folder)
    log.append(make_frames(0, 2))
    folder.fail_before = len(folder.operations) + failing
    with pytest.raises(StorageError, match="failed"):
        log.sync()
    folder.fail_before = None
    assert log.durable_end_offset == 0
    done = len(folder.operations)
    with pytest.raises(StorageError, match="failed"):
        CALLS[call](log)
    assert len(folder.operations) == done, "nothing is tried again"
    log.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.truncate(Offset(10)),
        lambda log: log.truncate(Offset(2)),
        lambda log: log.cut(Offset(5)),
        lambda log: log.cut(Offset(10)),
        lambda log: log.reset(Offset(50), ()),
    ],
    ids=["truncate", "truncate across", "cut one", "cut several", "reset"],
)
def test_after_a_failed_change_every_call_is_refused_and_the_log_can_be_reopened(
    change: Callable[[Replog], object],
) -> None:
    for number in range(100):
        folder = PowerFolder()
        log = Replog.open(folder, segment_bytes=400)
        for frame in make_frames(0, 12):
            log.append([frame])
            log.sync()
        folder.fail_before = len(folder.operations) + number
        try:
            change(log)
        except StorageError:
            with pytest.raises(StorageError):
                log.append([make_frame(log.end_offset)])
            log.close()
        else:
            assert number > 1
            break
        folder.fail_before = None
        Replog.open(folder).close()


def test_a_closed_log_refuses_everything() -> None:
    log = Replog.open(PowerFolder())
    log.close()
    with pytest.raises(StorageError, match="closed"):
        log.append([make_frame(0)])


@pytest.mark.parametrize("frame", [0, 2])
@pytest.mark.parametrize("at", [HEADER_BYTES, -TRAILER_BYTES - 1, -1], ids=["first", "last", "trailer"])
def test_a_byte_of_a_payload_that_was_changed_on_disk_is_noticed_when_it_is_read(
    tmp_path: Path, frame: int, at: int
) -> None:
    log = Replog.open(OsFolder(tmp_path), tail_bytes=0)
    frames = make_frames(0, 4, content=b"x" * 50)
    log.append(frames)
    log.sync()
    [path] = tmp_path.glob("*.replog")
    content = bytearray(path.read_bytes())
    position = SEGMENT_HEADER_BYTES + sum(each.size_bytes for each in frames[:frame])
    content[position + at % frames[frame].size_bytes] ^= 1
    path.write_bytes(content)
    for start in range(frame + 1):
        with pytest.raises(StorageCorrupt) as raised:
            log.read(Offset(start), Offset(4), 1 << 20)
        assert (raised.value.offset, raised.value.position) == (frame, position)
    assert log.read(Offset(frame + 1), Offset(4), 1 << 20).end == 4, "the others are whole"
    log.close()


def several_segments(folder: PowerFolder) -> Replog:
    log = Replog.open(folder, segment_bytes=300, tail_bytes=0)
    for offset in range(30):
        log.append([make_frame(offset)])
        log.sync()
    assert len(log._segments) > 4
    return log


def test_what_is_being_cut_can_be_read_until_the_owner_takes_note() -> None:
    folder = PowerFolder()
    log = several_segments(folder)
    before = contents(log)
    first = log.cut_point(Offset(20))
    assert first is not None
    log.remove_below(first)
    assert contents(log) == before
    assert log.start_offset == 0
    log.append([make_frame(30)])
    log.sync()
    log.removed_below(first)
    assert log.start_offset == first
    assert log.cut_point(Offset(20)) is None
    assert contents(Replog.open(folder.power_off())) == contents(log)


@pytest.mark.parametrize("end", [3, 29])
def test_what_stays_can_be_read_while_a_log_is_truncated(end: int) -> None:
    """In the active segment, and across several."""
    folder = PowerFolder()
    log = several_segments(folder)
    log.shorten(Offset(end))
    assert log.read(Offset(0), Offset(end), 1 << 20).end == end
    assert log.end_offset == 30
    with pytest.raises(StorageError, match="being truncated"):
        log.sync()
    log.shortened(Offset(end))
    assert log.end_offset == log.durable_end_offset == end
    log.append([make_frame(end, epoch=2)])
    log.sync()
    assert contents(Replog.open(folder.power_off())) == contents(log)
