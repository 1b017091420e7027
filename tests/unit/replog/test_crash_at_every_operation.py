"""A crash before any operation on the folder leaves the log as it was before the call, or as after it.

Each story prepares a log, then runs one call. It is run once per operation of that call, with a power
loss before the operation, and reopened from everything that such a loss may leave on disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from stretto.replog.log import Replog
from stretto.vocabulary.types import Offset
from tests.support.frames import Contents, contents, epoch_start, make_frame, make_frames
from tests.support.power import PowerFolder, PowerLoss

SEGMENT_BYTES = 400


def open_log(folder: PowerFolder) -> Replog:
    return Replog.open(folder, segment_bytes=SEGMENT_BYTES, index_interval_bytes=100, tail_bytes=200)


def fill(log: Replog, count: int) -> None:
    """Entries one by one, a new epoch every seven, each synced: several segments."""
    for offset in range(log.end_offset, log.end_offset + count):
        log.append([make_frame(offset, epoch=1 + offset // 7)])
        log.sync()


def sync_one(log: Replog) -> None:
    log.append([make_frame(log.end_offset, epoch=50, content=b"new")])
    log.sync()


@dataclass(frozen=True)
class Story:
    entries: int
    call: Callable[[Replog], object]


def rolled(log: Replog) -> None:
    segments = len(log._segments)
    sync_one(log)
    assert len(log._segments) == segments + 1


STORIES = {
    "first open": Story(0, lambda log: None),
    "sync": Story(6, sync_one),
    "sync that rolls": Story(10, rolled),
    "truncate the active segment": Story(8, lambda log: log.truncate(Offset(7))),
    "truncate to the active segment's base": Story(8, lambda log: log.truncate(Offset(5))),
    "truncate a sealed segment": Story(8, lambda log: log.truncate(Offset(4))),
    "truncate across segments": Story(23, lambda log: log.truncate(Offset(6))),
    "truncate everything": Story(23, lambda log: log.truncate(Offset(0))),
    "cut one segment": Story(23, lambda log: log.cut(Offset(6))),
    "cut several segments": Story(23, lambda log: log.cut(Offset(20))),
    "reset forward": Story(12, lambda log: log.reset(Offset(100), (epoch_start(1, 0), epoch_start(9, 90)))),
    "reset back to an existing base": Story(12, lambda log: log.reset(Offset(5), (epoch_start(2, 5),))),
    "reset of an empty log": Story(0, lambda log: log.reset(Offset(0), ())),
}


def prepared(story: Story) -> tuple[PowerFolder, Replog]:
    folder = PowerFolder()
    log = open_log(folder)
    fill(log, story.entries)
    return folder, log


def outcomes(story: Story) -> tuple[list[str], Contents, Contents]:
    """The operations of the call, and the log before and after it."""
    folder, log = prepared(story)
    before = contents(log)
    first = len(folder.operations)
    story.call(log)
    return folder.operations[first:], before, contents(log)


@pytest.mark.parametrize("name", STORIES)
def test_crash_leaves_the_log_before_or_after(name: str) -> None:
    story = STORIES[name]
    operations, before, after = outcomes(story)
    for number in range(len(operations) + 1):
        folder, log = prepared(story)
        folder.crash_before = len(folder.operations) + number
        try:
            story.call(log)
        except PowerLoss:
            allowed = [before, after]
        else:
            allowed = [after]
        assert_recovers(folder, allowed, f"{name}: crash before {[*operations, 'the end'][number]!r}")


def assert_recovers(folder: PowerFolder, allowed: list[Contents], where: str) -> None:
    for survivor in [*folder.survivors(), folder.process_exit()]:
        found = {name: len(inode.live) for name, inode in survivor.files.items()}
        log = open_log(survivor)
        recovered = contents(log)
        assert recovered in allowed, f"{where}, leaving {found}"
        assert log.durable_end_offset == log.end_offset
        # What recovery found it must also have made durable, and it must be able to go on.
        assert contents(open_log(survivor.power_off())) == recovered, f"{where}, then a power loss"
        sync_one(log)
        assert contents(open_log(survivor.power_off())) == contents(log), f"{where}, then an append"


def test_a_crash_during_first_open_leaves_an_empty_log() -> None:
    operations = len(outcome_of_first_open().operations)
    for number in range(operations + 1):
        folder = PowerFolder()
        folder.crash_before = number
        with contextlib.suppress(PowerLoss):
            open_log(folder)
        for survivor in folder.survivors():
            assert contents(open_log(survivor)) == Contents(0, 0, (), ())


def outcome_of_first_open() -> PowerFolder:
    folder = PowerFolder()
    open_log(folder)
    return folder


@pytest.mark.parametrize("name", ["truncate across segments", "cut several segments", "reset forward"])
def test_a_crash_while_resuming_an_interrupted_change_loses_nothing(name: str) -> None:
    story = STORIES[name]
    operations, before, after = outcomes(story)
    for number in range(len(operations) + 1):
        folder, log = prepared(story)
        folder.crash_before = len(folder.operations) + number
        with contextlib.suppress(PowerLoss):
            story.call(log)
        for second in range(12):
            survivor = folder.power_off()
            survivor.crash_before = second
            with contextlib.suppress(PowerLoss):
                open_log(survivor)
            assert contents(open_log(survivor.power_off())) in (before, after), f"{name}: {number}, {second}"


def test_a_crash_during_a_write_of_many_frames_keeps_a_prefix_of_them() -> None:
    folder = PowerFolder()
    log = open_log(folder)
    fill(log, 3)
    log.append(make_frames(3, 3, epoch=9))
    everything = contents(log).frames
    folder.crash_before = len(folder.operations) + 1
    with pytest.raises(PowerLoss):
        log.sync()
    ends = set()
    for survivor in folder.survivors():
        recovered = open_log(survivor)
        assert contents(recovered).frames == everything[: recovered.end_offset]
        ends.add(int(recovered.end_offset))
    assert {3, 6} <= ends
    assert min(ends) == 3
