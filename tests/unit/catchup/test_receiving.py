"""The driver of a transfer to a follower whose threads work, and whose time passes, when the test says so."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock, call

import pytest

from stretto.catchup.install import Install
from stretto.catchup.machines import blocks
from stretto.catchup.receiving import StateReceiving
from stretto.catchup.staging import Abandoned, Staging
from stretto.replog.core import effects, events
from stretto.replog.core.replica import RoleName
from stretto.replog.core.settings import Settings
from stretto.replog.storage import EpochStart
from stretto.specs.assignments import GroupPlan
from stretto.state.environment import NoSpace
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Incarnation, Millis, Offset, StorageId, TaskId, WorkerId
from stretto.wire import catchup
from stretto.wire import messages as wire
from stretto.worker.replica.meter import Meter

KEY = GroupKey("counts", 1, 0)
LEADER, ME = WorkerId("w0"), Incarnation("w1.1")
TIMEOUT_MS = Millis(8_000)
FETCH = effects.FetchState(leader=LEADER, epoch=Epoch(1), attempt=1)


class Receiver:
    """Worker, threads, transport, loop and group at once."""

    def __init__(self, folder: Path) -> None:
        self.now = 10_000
        self.sent: list[catchup.AnyMessage] = []
        self.stepped: list[events.Event] = []
        self.works: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self._timers: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = itertools.count()
        self.loop = self.replicas = self.transport = self
        self.key, self.plan = KEY, GroupPlan(KEY, (TaskId(0),), (LEADER, WorkerId("w1")))
        self.meter, self.closed = Meter(), False
        self._folder = folder
        self.replica = SimpleNamespace(
            settings=Settings(state_timeout_ms=TIMEOUT_MS), registered_as=ME, awaited_state=(Epoch(1), 1)
        )
        self.receiving = StateReceiving(cast(Any, self), cast(Any, self))

    def begin(self) -> None:
        self.receiving.fetch_state(cast(Any, self), FETCH)

    def work(self) -> None:
        """The thread that was told first finishes."""
        work, then = self.works.pop(0)
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - as a worker's threads do
            result = error
        then(result)

    def pass_time(self, millis: int) -> None:
        end = self.now + millis
        while self._timers and self._timers[0][0] <= end:
            self.now, _, function, args = heapq.heappop(self._timers)
            function(*args)
        self.now = end

    def look(self, role: RoleName) -> None:
        self.replica.role_name = role
        self.receiving.on_replica_changed(cast(Any, self))

    def hear(self, message: catchup.Answer, body: bytes = b"") -> None:
        self.receiving.on_answer(cast(Any, self), LEADER, message, memoryview(body))

    @property
    def progressed(self) -> int:
        return sum(isinstance(event, events.TransferProgressed) for event in self.stepped)

    # What the driver calls.

    def option(self, name: str) -> int:
        return 2 if "rounds" in name else 0

    def path(self, _: GroupPlan) -> Path:
        return self._folder

    def step(self, event: events.Event) -> None:
        self.stepped.append(event)

    def send(self, _to: WorkerId, wrapped: wire.Catchup) -> None:
        self.sent.append(wrapped.message)

    def run(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self.works.append((work, then))

    def call_at(self, at: int, function: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._timers, (at, next(self._count), function, args))

    def call_after(self, delay_ms: int, function: Callable[..., None], *args: Any) -> None:
        self.call_at(self.now + delay_ms, function, *args)


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    receiver = Receiver(tmp_path)
    receiver.begin()
    yield receiver
    receiver.receiving.close()


def test_core_and_leader_hear_of_work_that_takes_longer_than_they_wait(receiver: Receiver) -> None:
    assert len(receiver.works) == 1, "what an earlier transfer left is hashed"
    for seconds in range(1, 60):
        receiver.pass_time(1_000)
        assert receiver.progressed >= seconds - 1
    working = [each for each in receiver.sent if isinstance(each, catchup.Working)]
    assert len(working) >= 50
    receiver.work()
    assert isinstance(receiver.sent[-1], catchup.AskImage)


def test_nobody_hears_of_a_transfer_that_only_waits_for_its_leader(receiver: Receiver) -> None:
    receiver.work()
    receiver.pass_time(60_000)
    assert receiver.progressed == 0
    assert not any(isinstance(each, catchup.Working) for each in receiver.sent)


def test_a_transfer_that_is_over_is_not_kept_alive(receiver: Receiver) -> None:
    receiver.replica.awaited_state = None
    receiver.pass_time(60_000)
    assert (receiver.progressed, receiver.sent) == (0, [])


def failed_work(receiver: Receiver, error: Exception) -> None:
    """The thread that was told first fails."""
    _, then = receiver.works.pop(0)
    then(error)


def test_a_disk_that_fails_ends_the_transfer_after_a_pause(receiver: Receiver) -> None:
    failed_work(receiver, OSError("a bad sector"))
    assert receiver.stepped == []
    receiver.pass_time(60_000)
    assert [type(event) for event in receiver.stepped] == [events.TransferFailed]


def test_work_that_was_given_up_fails_nothing(receiver: Receiver) -> None:
    failed_work(receiver, Abandoned("the transfer was given up"))
    receiver.pass_time(60_000)
    assert receiver.stepped == []


def test_a_transfer_that_fails_again_and_again_begins_after_longer_and_longer(receiver: Receiver) -> None:
    for pause_ms in (1_000, 2_000, 4_000):
        failed_work(receiver, OSError("a bad sector"))
        receiver.pass_time(pause_ms - 1)
        assert receiver.stepped == []
        receiver.pass_time(1)
        assert receiver.stepped == [events.TransferFailed()]
        receiver.stepped.clear()
        receiver.begin()


def test_a_disk_that_is_full_again_and_again_is_looked_at_less_often(receiver: Receiver) -> None:
    for pause_ms in (1_000, 2_000):
        failed_work(receiver, NoSpace("full"))
        receiver.pass_time(pause_ms - 1)
        assert receiver.works == []
        receiver.pass_time(1)
        _, looked = receiver.works.pop(0)
        looked(None)
        assert receiver.stepped[-1] == events.TransferFailed(), "there is room, so it begins anew"
        receiver.begin()


def test_what_nobody_expects_of_a_disk_ends_the_worker(receiver: Receiver) -> None:
    with pytest.raises(ZeroDivisionError):
        failed_work(receiver, ZeroDivisionError())


def bring_everything(receiver: Receiver) -> None:
    """Two rounds of a state that is an empty file."""
    named = (Epoch(1), ME, 1)
    digest = blocks.digest_of(b"")
    receiver.work()
    for number in (1, 2):
        receiver.hear(
            catchup.Image(
                *named,
                task=TaskId(0),
                round=number,
                offset=Offset(7),
                size_bytes=0,
                block_bytes=blocks.BLOCK_BYTES,
                digest=digest,
                base=0,
                list_bytes=0,
                applied=Offset(7),
            )
        )
        receiver.work()
    history = (EpochStart(Epoch(1), Offset(0)),)
    receiver.hear(catchup.Entries(*named, start=Offset(7), next=Offset(7), history=history))
    assert isinstance(receiver.sent[-1], catchup.Finished)


def test_a_disk_that_is_full_when_everything_is_here_is_waited_for(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Staging, "assemble", Mock(side_effect=[NoSpace("full"), NoSpace("full"), None]))
    bring_everything(receiver)
    receiver.work()
    view = receiver.receiving.view(KEY)
    assert view is not None
    assert view.waits == "full"
    assert receiver.progressed > 0
    receiver.pass_time(1_000)
    receiver.work()
    assert receiver.works == [], "it waits longer each time"
    receiver.pass_time(2_000)
    receiver.work()
    assert receiver.stepped[-1] == events.StateArrived(epoch=Epoch(1), attempt=1, end=Offset(7))
    view = receiver.receiving.view(KEY)
    assert view is not None
    assert view.waits == ""


def test_what_is_staged_goes_when_the_replica_is_in_sync_again(receiver: Receiver, tmp_path: Path) -> None:
    receiver.work()
    receiver.look(RoleName.NEAR)
    assert (tmp_path / "incoming").exists()
    assert receiver.works == []

    receiver.replica.awaited_state = None
    receiver.look(RoleName.FOLLOWER)
    receiver.work()

    assert not (tmp_path / "incoming").exists()
    assert receiver.receiving._stagings == {}
    receiver.look(RoleName.LEADER)
    assert receiver.works == []


def test_what_an_earlier_process_staged_goes_too(tmp_path: Path) -> None:
    (tmp_path / "incoming" / "state").mkdir(parents=True)
    receiver = Receiver(tmp_path)
    receiver.look(RoleName.FOLLOWER)
    receiver.work()
    assert not (tmp_path / "incoming").exists()


def test_a_transfer_that_begins_while_files_go_waits_for_that(receiver: Receiver, tmp_path: Path) -> None:
    receiver.work()
    receiver.look(RoleName.FOLLOWER)
    receiver.begin()
    receiver.work()
    assert not (tmp_path / "incoming").exists()
    receiver.work()
    assert (tmp_path / "incoming").exists()
    assert list(receiver.receiving._stagings) == [KEY]
    receiver.look(RoleName.FOLLOWER)
    receiver.work()
    assert not (tmp_path / "incoming").exists()


def test_a_group_that_is_closed_lets_go_of_what_is_staged(receiver: Receiver, tmp_path: Path) -> None:
    receiver.work()
    receiver.receiving.on_group_closed(KEY)
    receiver.work()
    assert receiver.receiving._stagings == {}
    assert (tmp_path / "incoming").exists(), "the replica may go on with it"


def test_files_that_cannot_be_removed_do_no_harm_and_what_nobody_expects_does(receiver: Receiver) -> None:
    receiver.work()
    receiver.receiving.on_group_closed(KEY)
    failed_work(receiver, OSError("read-only"))
    assert receiver.receiving._stagings == {}
    receiver.begin()
    receiver.receiving.on_group_closed(KEY)
    receiver.works.pop(0)
    with pytest.raises(ZeroDivisionError):
        failed_work(receiver, ZeroDivisionError())


def install(receiver: Receiver) -> Mock:
    """Everything is here and is being installed; returns who hears how that ended."""
    heard = Mock()
    subject = cast(Any, receiver)
    subject.replica.storage = "disk"
    subject.installation, subject.install_failed = heard.installation, heard.install_failed
    subject.applier = SimpleNamespace(after_applied=lambda then: then())
    receiver.receiving.install(subject, Offset(7))
    return heard


def test_a_state_that_is_installed_takes_the_place_of_the_replicas_own(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Staging, "assemble", Mock())
    receiver.receiving._failures[KEY] = 3
    bring_everything(receiver)
    receiver.work()
    heard = install(receiver)
    receiver.work()
    heard.installation.assert_called_once_with(KEY)
    last = EpochStart(Epoch(1), Offset(0))
    done = Install(storage_id=StorageId("disk"), end=Offset(7), before=last)
    assert heard.installation.return_value.mock_calls == [call.carry_out(done), call.finish((last,))]
    assert (receiver.receiving._failures, receiver.receiving._stagings) == ({}, {})
    assert receiver.receiving.view(KEY) is None


def test_an_installation_that_fails_stops_the_replica_and_one_of_nothing_is_refused(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Staging, "assemble", Mock())
    heard = install(receiver)
    heard.install_failed.assert_called_once_with()
    bring_everything(receiver)
    receiver.work()
    heard = install(receiver)
    heard.install_failed.assert_not_called()
    _, then = receiver.works.pop(0)
    then(OSError("a bad sector"))
    assert heard.installation.return_value.mock_calls == [call.fail("OSError: a bad sector")]
    with pytest.raises(ZeroDivisionError):
        then(ZeroDivisionError())


def test_the_rate_of_a_transfer_that_is_stalled_falls(receiver: Receiver) -> None:
    receiver.work()
    rates = []
    for seconds, body in ((1, 1_000_000), (1, 500_000), (1, 0), (1, 0), (9, 0)):
        receiver.pass_time(seconds * 1_000)
        if body:
            blocks_came = catchup.Blocks(Epoch(1), ME, 1, ask=9, task=TaskId(0), round=1, applied=Offset(0))
            receiver.hear(blocks_came, bytes(body))
        view = receiver.receiving.view(KEY)
        assert view is not None
        rates.append(view.bytes_per_second)
    assert rates == [1_000_000, 500_000, 500_000, 0, 0]
