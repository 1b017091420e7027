"""A worker's pins: the process that keeps them, when it is started, and who hears what became of one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, call

import pytest

from stretto import control
from stretto.errors import RetriableError, StrettoError
from stretto.replog.core import effects
from stretto.replog.core.effects import Refusal
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Millis, Offset, TaskId, WorkerId
from stretto.wire.scans import PinnedGroup
from stretto.worker.scans import scans as desk_module
from stretto.worker.scans.process import Gone
from stretto.worker.scans.scans import Scans
from tests.support.turns import StillLoop

KEY = GroupKey("M", 1, 0)
TASKS = (TaskId(2), TaskId(3))
SERVED = effects.ReadServed(epoch=Epoch(4))


class Pool:
    """Works at once, on the thread of the test."""

    def __init__(self, *_: object) -> None:
        self.is_shut = False

    def submit(self, function: Callable[..., None], *args: Any) -> None:
        assert not self.is_shut
        function(*args)

    def shutdown(self) -> None:
        self.is_shut = True


class WatchingLoop(StillLoop):
    def __init__(self) -> None:
        super().__init__()
        self.register = MagicMock()
        self.unregister = MagicMock()

    def hand_back(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - as a worker's threads do
            result = error
        then(result)


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop = WatchingLoop()
        self.processes: list[MagicMock] = []
        monkeypatch.setattr(desk_module, "ThreadPoolExecutor", Pool)
        monkeypatch.setattr(desk_module, "ScanProcess", self._start)
        self.is_held = False
        self.result: effects.Result = SERVED
        self.group = SimpleNamespace(
            key=KEY,
            plan=SimpleNamespace(tasks=TASKS),
            state=SimpleNamespace(folder=lambda task: Path(f"/state/task-{task}"), held=self._held),
            leader=object(),
        )
        self.options = {"pin.idle.timeout.millis": 1_500, "pin.max.age.millis": 9_000}
        self.worker = MagicMock(
            loop=self.loop, worker=WorkerId("w"), groups={KEY: self.group}, address="10.0.0.1:77"
        )
        self.worker.option = self.options.__getitem__
        self.worker.config = SimpleNamespace(module="M", worker=WorkerId("w"), key=b"secret", advertise=None)
        self.worker.description.version = 6
        self.worker.clients.reads.elsewhere = self._elsewhere
        self.staleness: Millis | None = None
        self.desk = Scans(self.worker)

    def _start(self, *args: Any) -> MagicMock:
        process = MagicMock(address="10.0.0.1:5", pidfd=len(self.processes) + 30, started_with=args)
        process.open.side_effect = lambda *_: self._require_held()
        process.end.return_value = 0
        self.processes.append(process)
        return process

    def _require_held(self) -> None:
        assert self.is_held, "the state goes on while it is looked at"

    @contextmanager
    def _held(self, _: float) -> Any:
        self.is_held = True
        yield Offset(12)
        self.is_held = False

    def _elsewhere(self, group: Any, look: Any, replied: Any, *, max_staleness_ms: Millis | None) -> None:
        assert group is self.group
        self.staleness = max_staleness_ms
        looked: list[bool] = []
        if isinstance(self.result, effects.ReadServed):
            look(lambda: looked.append(True))
            assert looked == [True]
        replied(self.result)

    def asked_staleness(self) -> int | None:
        return self.staleness

    def pin(self, stale_ms: int | None = None, key: GroupKey = KEY) -> PinnedGroup | StrettoError:
        answers: list[PinnedGroup | StrettoError] = []
        call_ = control.PinGroup(group=key, holder="spark", max_staleness_ms=stale_ms)
        self.desk.pin(call_, answers.append)
        [answer] = answers
        return answer


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_pin_is_of_the_state_held_still_and_tells_where_to_read_it(world: World) -> None:
    pin = world.pin()
    assert isinstance(pin, PinnedGroup)
    [process] = world.processes
    assert process.started_with == ("w", "10.0.0.1", b"secret", 1_500)
    assert process.prepare.call_args.args[:3] == (str(KEY), "/state", TASKS)
    opened = process.open.call_args.args[0]
    assert (opened.pin, opened.group, opened.folder, opened.tasks) == (pin.pin, str(KEY), "/state", TASKS)
    assert (opened.offset, opened.holder, opened.idle_ms, opened.max_age_ms) == (12, "spark", 1_500, 9_000)
    assert (pin.module, pin.group, pin.worker, pin.address) == ("M", str(KEY), "w", "10.0.0.1:5")
    assert (pin.offset, pin.epoch, pin.version, pin.tasks) == (12, 4, 6, TASKS)
    assert (pin.by_leader, pin.idle_ms) == (True, 1_500)
    process.close.assert_not_called()
    assert world.asked_staleness() is None
    world.group.leader = None
    again = world.pin(stale_ms=300)
    assert isinstance(again, PinnedGroup)
    assert not again.by_leader
    assert again.pin != pin.pin
    assert world.asked_staleness() == 300
    assert len(world.processes) == 1


@pytest.mark.parametrize(("advertise", "host"), [("far:9", "far"), ("far", "far"), (None, "10.0.0.1")])
def test_the_address_of_a_pin_is_the_one_that_the_worker_is_known_by(
    world: World, advertise: str | None, host: str
) -> None:
    world.worker.config.advertise = advertise
    pin = world.pin()
    assert isinstance(pin, PinnedGroup)
    assert pin.address.rpartition(":")[0] == host


def test_what_the_core_refuses_is_not_handed_out_and_given_back(world: World) -> None:
    world.result = effects.Refused(reason=Refusal.NO_LEASE, leader=None, epoch=Epoch(4))
    pin = world.pin()
    assert isinstance(pin, RetriableError)
    assert Refusal.NO_LEASE.value in str(pin)
    [process] = world.processes
    [closed] = process.close.call_args_list
    assert closed.args[1] == "it was never handed out"
    world.result = effects.Unknown()
    assert "it cannot tell" in str(world.pin())


def test_what_cannot_be_opened_is_told_and_given_back(world: World) -> None:
    world.pin()
    [process] = world.processes
    process.open.side_effect = StrettoError("too many pins")
    told = world.pin()
    assert str(told) == "too many pins"
    assert process.close.call_count == 1
    process.open.side_effect = ZeroDivisionError("no number")
    told = world.pin()
    assert isinstance(told, StrettoError)
    assert str(told) == "pinning failed: no number"


def test_a_group_that_is_not_here_or_goes_meanwhile_is_not_pinned(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "holds no replica of group" in str(world.pin(key=GroupKey("M", 1, 9)))
    assert world.processes == []
    start = world._start

    def start_while_it_goes(*args: Any) -> MagicMock:
        world.worker.groups.clear()
        return start(*args)

    monkeypatch.setattr(desk_module, "ScanProcess", start_while_it_goes)
    assert "holds no replica of group" in str(world.pin())
    world.processes[0].open.assert_not_called()


def test_a_process_that_went_just_now_is_started_again(world: World) -> None:
    world.pin()
    world.processes[0].prepare.side_effect = Gone
    assert isinstance(world.pin(), PinnedGroup)
    first, second = world.processes
    assert (first.open.call_count, second.open.call_count) == (1, 1)
    assert world.desk._process is second


def test_pins_are_listed_and_without_a_process_there_are_none(world: World) -> None:
    views: list[Any] = []
    world.desk.views(views.append)
    assert views == [()]
    world.pin()
    kept = SimpleNamespace(pin="p", group="g", offset=12, holder="spark", age_ms=1, idle_ms=2, sent_bytes=3)
    world.processes[0].list.return_value = (kept,)
    world.desk.views(views.append)
    [view] = views[1]
    assert (view.pin, view.group, view.worker, view.offset) == ("p", "g", "w", 12)
    assert (view.holder, view.age_ms, view.idle_ms, view.sent_bytes) == ("spark", 1, 2, 3)


def test_pins_of_a_replica_that_is_another_one_from_now_on_end(world: World) -> None:
    world.desk.forget(KEY, "it moved")
    world.pin()
    world.desk.forget(KEY, "it moved")
    [told] = world.processes[0].forget.call_args_list
    assert told.args[:2] == (str(KEY), "it moved")


@pytest.mark.parametrize("status", [0, -9])
def test_the_end_of_the_process_is_noticed_and_its_readers_cleared_if_it_was_killed(
    world: World, status: int
) -> None:
    world.pin()
    [process] = world.processes
    world.loop.run()
    [watched] = world.loop.register.call_args_list
    assert watched.args[0] == process.pidfd
    process.end.return_value = status
    assert watched.args[1]() is False
    world.loop.unregister.assert_called_once_with(process.pidfd)
    process.end.assert_called_once_with()
    assert world.worker.clear_readers.call_count == (status != 0)
    assert world.desk._process is None
    assert isinstance(world.pin(), PinnedGroup)
    assert len(world.processes) == 2
    world.desk._reap(process)
    assert world.desk._process is world.processes[1], "the old one is reaped, not the new one"


def test_no_pin_outlives_the_worker(world: World) -> None:
    world.pin()
    world.loop.run()
    [process] = world.processes
    world.desk.close()
    assert [each for each in process.mock_calls if each in (call.kill(), call.end())] == [
        call.kill(),
        call.end(),
    ]
    world.loop.unregister.assert_called_once_with(process.pidfd)
    told: list[Any] = []
    world.desk.views(told.append)
    assert told == [], "nothing is begun any more"
    with pytest.raises(RetriableError, match="the worker is stopping"):
        world.desk._start()


def test_a_process_that_is_started_while_the_worker_closes_is_not_watched(world: World) -> None:
    world.pin()
    world.desk._is_closing = True
    world.loop.run()
    world.loop.register.assert_not_called()
    Scans(world.worker).close()
