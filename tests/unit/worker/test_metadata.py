"""Who leads what, told to clients: at once, by one reading for all who ask, or when there is news."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stretto.replog.core.record import GroupRecord
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, TaskId, WorkerId
from stretto.wire import messages as wire
from stretto.worker import metadata
from stretto.worker.metadata import Metadata
from stretto.zk.watches.survey import GroupSeen
from stretto.zk.znodes.paths import Paths
from tests.support.core_group import W0, W1, W2, record
from tests.support.turns import StillLoop

OWN = GroupKey("counts", 1, 0)
OTHERS = GroupKey("counts", 1, 1)
FOREIGN = GroupKey("bank", 1, 0)
REPLICAS = (W0, W1)


class Worker:
    """With one group of its own, and a metastore that answers when the test says so."""

    def __init__(self) -> None:
        self.loop = StillLoop()
        self.transport = SimpleNamespace(reply=lambda to, reply: self.replies.append((to, reply)))
        self.replies: list[tuple[bytes, wire.Metadata]] = []
        self.description = SimpleNamespace(tasks=4)
        self.metastore = self
        self.paths = Paths("/stretto")
        self.groups: dict[GroupKey, Any] = {OWN: own(record(3, W0))}
        self.surveys: list[tuple[str | None, set[GroupKey], Callable[[list[GroupSeen], bool], None]]] = []
        self.desk = Metadata(cast(Any, self))
        self.desk.addresses = {W0: "here:1"}

    def survey(
        self,
        module: str | None,
        known: Collection[GroupKey],
        surveyed: Callable[[list[GroupSeen], bool], None],
    ) -> None:
        self.surveys.append((module, set(known), surveyed))

    def ask(self, request: int, module: str | None = "counts") -> None:
        self.desk.asked(b"client", wire.GetMetadata(request, module))

    def wait_for(self, request: int, above: int, wait_ms: int, key: GroupKey = OWN) -> None:
        self.desk.asked(b"client", wire.GetMetadata(request, "counts", key, Epoch(above), wait_ms))

    def survey_found(self, *groups: GroupSeen, is_whole: bool = True) -> None:
        *_, surveyed = self.surveys.pop(0)
        surveyed(list(groups), is_whole)
        self.loop.run()

    @property
    def answered(self) -> list[int]:
        return [reply.request for _, reply in self.replies]


def own(seen: GroupRecord | None, key: GroupKey = OWN) -> Any:
    plan = SimpleNamespace(tasks=(TaskId(0), TaskId(1)), replicas=REPLICAS)
    return SimpleNamespace(key=key, plan=plan, replica=SimpleNamespace(record=seen))


def others(epoch: int, leader: WorkerId, key: GroupKey = OTHERS) -> GroupSeen:
    return GroupSeen(key, (TaskId(2),), REPLICAS, record(epoch, leader, (leader,)), 4)


def view(epoch: int, leader: WorkerId, isr: tuple[WorkerId, ...]) -> wire.GroupView:
    return wire.GroupView(OWN, (TaskId(0), TaskId(1)), REPLICAS, Epoch(epoch), leader, isr, 4)


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_own_groups_and_those_of_others_are_told_with_addresses(worker: Worker) -> None:
    worker.ask(1)
    assert worker.replies == []
    assert worker.surveys[0][:2] == ("counts", {OWN})
    worker.survey_found(others(5, W1))
    [(to, reply)] = worker.replies
    assert to == b"client"
    assert reply == wire.Metadata(
        1,
        {W0: "here:1"},
        (
            view(3, W0, (W0, W1, W2)),
            wire.GroupView(OTHERS, (TaskId(2),), REPLICAS, Epoch(5), W1, (W1,), 4),
        ),
    )


def test_all_who_ask_at_once_wait_for_one_reading_which_is_kept_for_a_moment(worker: Worker) -> None:
    for request in (1, 2):
        worker.ask(request)
    assert len(worker.surveys) == 1
    worker.survey_found()
    assert worker.answered == [1, 2]
    worker.loop.pass_ms(metadata.FRESH_MS - 1)
    worker.ask(3)
    assert worker.answered == [1, 2, 3]
    assert worker.surveys == []
    worker.loop.pass_ms(1)
    worker.ask(4)
    assert len(worker.surveys) == 1
    assert worker.answered == [1, 2, 3]


def test_a_metastore_that_is_silent_keeps_nobody_waiting_for_long(worker: Worker) -> None:
    worker.ask(1)
    worker.loop.pass_ms(metadata.READ_MS - 1)
    assert worker.answered == []
    worker.loop.pass_ms(1)
    assert worker.answered == [1]
    assert [each.key for each in worker.replies[0][1].groups] == [OWN]


def test_who_knows_of_nothing_yet_does_not_say_that_there_is_nothing(worker: Worker) -> None:
    worker.groups.clear()
    worker.ask(1)
    worker.loop.pass_ms(10 * metadata.READ_MS)
    assert worker.answered == []
    worker.survey_found(is_whole=False)
    assert worker.answered == []
    worker.loop.pass_ms(metadata.AGAIN_MS)
    worker.survey_found(others(5, W1))
    assert [each.key for each in worker.replies[0][1].groups] == [OTHERS]


def test_a_reading_that_is_not_whole_does_not_take_the_place_of_one_that_is(worker: Worker) -> None:
    worker.ask(1)
    worker.survey_found(others(5, W1))
    worker.loop.pass_ms(metadata.FRESH_MS)
    worker.ask(2)
    worker.survey_found(is_whole=False)
    assert [each.key for each in worker.replies[1][1].groups] == [OWN, OTHERS]
    worker.ask(3)
    assert len(worker.surveys) == 1, "it is not taken for fresh"


def test_a_group_that_has_come_here_is_told_as_this_worker_knows_it(worker: Worker) -> None:
    worker.ask(1)
    worker.groups[OTHERS] = own(record(6, W0), OTHERS)
    worker.survey_found(others(5, W1))
    assert [(each.key, each.epoch) for each in worker.replies[0][1].groups] == [(OWN, 3), (OTHERS, 6)]


def test_of_a_module_only_its_groups_are_told_and_of_none_all(worker: Worker) -> None:
    worker.groups[FOREIGN] = own(None, FOREIGN)
    worker.ask(1)
    worker.survey_found()
    worker.ask(2, None)
    worker.survey_found()
    first, second = (reply.groups for _, reply in worker.replies)
    assert [each.key for each in first] == [OWN]
    assert [each.key for each in second] == [OWN, FOREIGN]
    unread = second[1]
    assert (unread.epoch, unread.leader, unread.isr) == (0, None, ())


def test_only_so_many_wait_and_so_many_modules_are_remembered(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "WAITING_MAX", 2)
    monkeypatch.setattr(metadata, "READINGS_MAX", 2)
    for request in (1, 2, 3):
        worker.ask(request)
    worker.survey_found()
    assert worker.answered == [2, 3], "the oldest asks again by itself"
    for request, module in enumerate("abcd", 4):
        worker.ask(request, module)
        assert len(worker.desk._readings) <= 2


def test_news_of_a_group_are_waited_for(worker: Worker) -> None:
    worker.wait_for(1, above=2, wait_ms=1_000)
    assert worker.answered == [1], "it is newer than that already"
    worker.wait_for(2, above=3, wait_ms=1_000)
    worker.wait_for(3, above=4, wait_ms=1_000)
    worker.wait_for(4, above=3, wait_ms=0)
    assert worker.answered == [1, 4]
    worker.desk.record_changed(worker.groups[OWN])
    assert worker.answered == [1, 4]
    worker.groups[OWN] = own(record(4, W1))
    worker.desk.record_changed(worker.groups[OWN])
    assert worker.answered == [1, 4, 2]
    assert worker.replies[-1][1].groups == (view(4, W1, (W0, W1, W2)),)
    worker.groups[OWN] = own(record(5, W0))
    worker.desk.record_changed(worker.groups[OWN])
    assert worker.answered == [1, 4, 2, 3]
    worker.loop.pass_ms(2_000)
    assert worker.answered == [1, 4, 2, 3]
    assert worker.loop.timers == 0


def test_who_waits_for_news_is_answered_when_its_time_is_over(worker: Worker) -> None:
    worker.wait_for(1, above=3, wait_ms=250)
    worker.wait_for(2, above=3, wait_ms=1 << 30)
    worker.loop.pass_ms(200)
    assert worker.answered == []
    worker.loop.pass_ms(100)
    assert worker.answered == [1]
    worker.loop.pass_ms(metadata.WAIT_MS_MAX)
    assert worker.answered == [1, 2]


def test_who_waits_for_a_group_that_is_here_no_more_asks_others(worker: Worker) -> None:
    worker.wait_for(1, above=3, wait_ms=1_000)
    group = worker.groups.pop(OWN)
    worker.desk.group_closed(OWN)
    worker.wait_for(2, above=3, wait_ms=1_000)
    assert [(reply.request, reply.groups) for _, reply in worker.replies] == [(1, ()), (2, ())]
    worker.desk.record_changed(group)
    assert worker.answered == [1, 2]


def test_there_is_room_for_so_many_who_wait(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "PARKED_MAX", 2)
    for request in (1, 2, 3):
        worker.wait_for(request, above=3, wait_ms=1_000)
    assert worker.answered == [3]
    assert worker.loop.timers == 1
    worker.loop.pass_ms(1_000)
    worker.wait_for(4, above=3, wait_ms=1_000)
    assert worker.answered == [3, 1, 2]
