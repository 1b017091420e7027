from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stretto.errors import StorageError
from stretto.replog.commit import GroupCommit
from stretto.replog.folder import OsFolder
from stretto.replog.log import Pending, Replog
from stretto.vocabulary.types import Offset
from tests.support.frames import contents, make_frame, make_frames, read_all
from tests.support.power import PowerFolder

DEADLINE_SECONDS = 20


class Owner:
    """A thread of control with an inbox, like an event loop."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.reports: list[tuple[Replog, Offset | StorageError]] = []
        self.woken = 0
        self.commit = GroupCommit(self.on_durable, deliver=self.inbox.put, wake=self.wake)

    def wake(self) -> None:
        self.woken += 1

    def on_durable(self, log: Replog, result: Offset | StorageError) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.reports.append((log, result))

    def settled_wakes(self) -> int:
        """How often it was woken; the thread wakes it after it has delivered, so it is let finish."""
        self.commit.close()
        woken = self.woken
        self.commit = GroupCommit(self.on_durable, deliver=self.inbox.put, wake=self.wake)
        return woken

    def run_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            self.inbox.get(timeout=deadline - time.monotonic())()


@pytest.fixture
def owner() -> Iterator[Owner]:
    owner = Owner()
    yield owner
    owner.commit.close()


class Gate(PowerFolder):
    """A folder whose writes wait until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False
        self.arrived = threading.Event()
        self.open_gate = threading.Event()

    def operate(self, what: str) -> None:
        if self.closed and what == "writev":
            self.arrived.set()
            assert self.open_gate.wait(DEADLINE_SECONDS)
        super().operate(what)


def test_everything_appended_during_a_write_goes_into_one_next_write(owner: Owner) -> None:
    folder = Gate()
    log = Replog.open(folder)
    folder.closed = True
    done = len(folder.operations)
    for offset in range(20):
        log.append([make_frame(offset)])
        owner.commit.submit(log)
        assert folder.arrived.wait(DEADLINE_SECONDS)
    assert log.durable_end_offset == 0
    assert len(read_all(log)) == 20
    folder.open_gate.set()
    owner.run_until(lambda: log.durable_end_offset == 20)
    assert folder.operations[done:] == ["writev", "fdatasync"] * 2
    assert [result for _, result in owner.reports] == [1, 20]


def test_an_owner_is_woken_for_what_it_waits_for_and_finds_the_rest(owner: Owner) -> None:
    folder = Gate()
    log = Replog.open(folder)
    folder.closed = True
    for offset, awaited in enumerate([True, False, True]):
        folder.arrived.clear()
        folder.open_gate.clear()
        woken = owner.woken
        log.append([make_frame(offset)])
        owner.commit.submit(log)
        assert folder.arrived.wait(DEADLINE_SECONDS)
        owner.commit.expect(log, awaited=awaited)
        folder.open_gate.set()
        owner.run_until(lambda: log.durable_end_offset == log.end_offset)
        assert owner.settled_wakes() - woken == awaited


def test_who_waits_for_quiet_is_woken_whatever_it_expected(owner: Owner) -> None:
    folder = Gate()
    log = Replog.open(folder)
    folder.closed = True
    log.append([make_frame(0)])
    owner.commit.submit(log)
    owner.commit.expect(log, awaited=False)
    assert folder.arrived.wait(DEADLINE_SECONDS)
    quiet: list[bool] = []
    owner.commit.when_quiet(log, lambda: quiet.append(True))
    folder.open_gate.set()
    owner.run_until(lambda: bool(quiet))
    assert owner.settled_wakes() == 1


def test_an_entry_appended_just_after_the_others_were_taken_is_not_forgotten(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Replog.open(PowerFolder())
    take_pending = log.take_pending

    def take_then_be_overtaken(*, durable: bool = True) -> Pending | None:
        pending = take_pending(durable=durable)
        if log.end_offset == 1:
            log.append([make_frame(1)])
            owner.commit.submit(log)
        return pending

    monkeypatch.setattr(log, "take_pending", take_then_be_overtaken)
    log.append([make_frame(0)])
    owner.commit.submit(log)
    owner.run_until(lambda: log.durable_end_offset == 2)


def test_one_thread_serves_many_logs_while_they_are_appended_to(owner: Owner, tmp_path: Path) -> None:
    logs = []
    for number in range(4):
        (tmp_path / str(number)).mkdir()
        logs.append(Replog.open(OsFolder(tmp_path / str(number)), segment_bytes=5000, tail_bytes=500))
    for offset in range(300):
        for log in logs:
            log.append([make_frame(offset, epoch=1 + offset // 50)])
            owner.commit.submit(log)
        while not owner.inbox.empty():
            owner.inbox.get()()
        assert logs[offset % 4].read(Offset(offset // 2), Offset(offset + 1), 1000).end > offset // 2
    owner.run_until(lambda: all(log.durable_end_offset == 300 for log in logs))
    for number, log in enumerate(logs):
        ends = [result for reported, result in owner.reports if reported is log]
        assert ends == sorted(ends, key=lambda end: int(str(end)))
        expected = contents(log)
        log.close()
        again = Replog.open(OsFolder(tmp_path / str(number)))
        assert contents(again) == expected
        again.close()


def test_a_failed_write_is_reported_and_the_log_refuses_more(owner: Owner) -> None:
    folder = PowerFolder()
    log = Replog.open(folder)
    folder.fail_before = len(folder.operations) + 1
    log.append(make_frames(0, 3))
    owner.commit.submit(log)
    owner.run_until(lambda: bool(owner.reports))
    assert isinstance(owner.reports[0][1], StorageError)
    with pytest.raises(StorageError):
        log.append(make_frames(3, 1))
    owner.commit.submit(log)
    owner.run_until(lambda: len(owner.reports) == 2)
    assert owner.reports[1] == owner.reports[0]
    log.close()


def test_a_truncation_waits_for_the_write_in_flight(owner: Owner) -> None:
    folder = Gate()
    log = Replog.open(folder)
    folder.closed = True
    log.append(make_frames(0, 3))
    owner.commit.submit(log)
    owner.commit.when_quiet(log, lambda: log.truncate(Offset(1)))
    assert log.end_offset == 3
    folder.open_gate.set()
    owner.run_until(lambda: log.end_offset == 1)
    assert owner.reports == [(log, 1)]
    owner.commit.when_quiet(log, lambda: log.truncate(Offset(0)))
    assert log.end_offset == 0


def test_close_waits_for_everything_submitted_and_reports_it(owner: Owner) -> None:
    folder = Gate()
    log = Replog.open(folder)
    folder.closed = True
    log.append(make_frames(0, 3))
    owner.commit.submit(log)
    assert folder.arrived.wait(DEADLINE_SECONDS)
    log.append(make_frames(3, 3))
    owner.commit.submit(log)
    threading.Timer(0.05, folder.open_gate.set).start()
    owner.commit.close()
    assert owner.reports == [(log, 3), (log, 6)]
    log.close()


def test_the_thread_goes_from_one_write_to_the_next_without_its_owner(owner: Owner) -> None:
    folder = Gate()
    log = Replog.open(folder)
    folder.closed = True
    log.append(make_frames(0, 1))
    owner.commit.submit(log)
    assert folder.arrived.wait(DEADLINE_SECONDS)
    log.append(make_frames(1, 1))
    owner.commit.submit(log)
    folder.open_gate.set()
    finished = [owner.inbox.get(timeout=DEADLINE_SECONDS) for _ in range(2)]
    assert log.durable_end_offset == 0
    for finish in finished:
        finish()
    assert log.durable_end_offset == 2


def test_a_submission_after_a_waiting_truncation_comes_after_it(owner: Owner) -> None:
    folder = Gate()
    log = Replog.open(folder)
    folder.closed = True
    log.append(make_frames(0, 3))
    owner.commit.submit(log)
    assert folder.arrived.wait(DEADLINE_SECONDS)

    def replace_end() -> None:
        log.truncate(Offset(2))
        log.append([make_frame(2, epoch=2)])

    owner.commit.when_quiet(log, replace_end)
    owner.commit.submit(log)
    folder.open_gate.set()
    owner.run_until(lambda: log.durable_end_offset == 3 and log.history[-1].epoch == 2)
    assert contents(Replog.open(folder.power_off())) == contents(log)


def test_a_write_that_is_not_to_be_durable_skips_the_sync(owner: Owner) -> None:
    folder = PowerFolder()
    log = Replog.open(folder)
    done = len(folder.operations)
    log.append(make_frames(0, 3))
    owner.commit.submit(log, durable=False)
    owner.run_until(lambda: log.written_end_offset == 3)
    assert folder.operations[done:] == ["writev"]
    owner.commit.submit(log)
    owner.run_until(lambda: log.durable_end_offset == 3)
    assert folder.operations[done:] == ["writev", "fdatasync"]


def test_nothing_is_written_to_a_log_that_is_held(owner: Owner) -> None:
    log = Replog.open(PowerFolder())
    log.append(make_frames(0, 3))
    owner.commit.submit(log)
    holds: list[Callable[[], None]] = []
    done: list[str] = []
    owner.commit.when_quiet(log, lambda: holds.append(owner.commit.hold(log, writes=False)))
    owner.commit.when_quiet(log, lambda: done.append("closed"))
    owner.run_until(lambda: bool(holds))
    assert not done, "who waits for quiet waits for who holds the log"
    log.append(make_frames(3, 3))
    owner.commit.submit(log)
    log.shorten(Offset(1))
    assert log.end_offset == 6
    log.shortened(Offset(1))
    assert not log._queue, "and nothing was taken from it"
    log.append([make_frame(1, epoch=2)])
    holds.pop()()
    assert done == ["closed"]
    owner.run_until(lambda: log.durable_end_offset == 2)
    assert [result for _, result in owner.reports] == [3, 2]


def test_a_log_is_written_but_not_quiet_while_its_old_segments_are_removed(owner: Owner) -> None:
    log = Replog.open(PowerFolder())
    release = owner.commit.hold(log, writes=True)
    log.append(make_frames(0, 3))
    owner.commit.submit(log)
    done: list[str] = []
    owner.run_until(lambda: log.durable_end_offset == 3)
    owner.commit.when_quiet(log, lambda: done.append("closed"))
    assert not done
    release()
    assert done == ["closed"]


def test_who_waits_for_quiet_does_not_meet_the_write_of_who_waited_before(owner: Owner) -> None:
    folder = Gate()
    log = Replog.open(folder)
    release = owner.commit.hold(log, writes=True)

    def write() -> None:
        log.append(make_frames(0, 3))
        owner.commit.submit(log)

    owner.commit.when_quiet(log, write)
    owner.commit.when_quiet(log, lambda: log.truncate(Offset(1)))
    folder.closed = True
    release()
    assert folder.arrived.wait(DEADLINE_SECONDS)
    assert log.end_offset == 3
    folder.open_gate.set()
    owner.run_until(lambda: log.end_offset == 1)


def test_of_several_submissions_that_wait_the_one_that_lasts_counts(owner: Owner) -> None:
    for order in ((True, False), (False, True)):
        log = Replog.open(PowerFolder())
        release = owner.commit.hold(log, writes=False)
        log.append(make_frames(0, 3))
        for durable in order:
            owner.commit.submit(log, durable=durable)
        release()
        owner.run_until(lambda log=log: log.written_end_offset == 3)  # type: ignore[misc]
        assert log.durable_end_offset == 3


def test_a_submission_that_waits_behind_one_that_holds_the_log_still_lasts(owner: Owner) -> None:
    log = Replog.open(PowerFolder())
    first = owner.commit.hold(log, writes=True)
    holds: list[Callable[[], None]] = []

    def hold_and_write() -> None:
        holds.append(owner.commit.hold(log, writes=False))
        owner.commit.submit(log, durable=False)

    log.append(make_frames(0, 3))
    owner.commit.when_quiet(log, hold_and_write)
    owner.commit.submit(log, durable=True)
    first()
    assert log.written_end_offset == 0
    holds.pop()()
    owner.run_until(lambda: log.written_end_offset == 3)
    assert log.durable_end_offset == 3
