"""A group's record and the requests to resign, with a ZooKeeper that answers when the test says so."""

from __future__ import annotations

import pytest
from kazoo.exceptions import ConnectionLoss, NoAuthError

from stretto.replog.core.events import RecordRead, Resign
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, WorkerId
from stretto.zk.watches.group import WatchedGroup
from stretto.zk.znodes.records import ResignRequest, encode
from tests.support.core_group import W0, W1, W2, record
from tests.unit.zk.watches.fake_znodes import Asker

GROUP = GroupKey("counts", 1, 0)


class Followed:
    """W0 follows the group, and its znodes are there for the test to change."""

    def __init__(self) -> None:
        self.asker = Asker(W0)
        self.group = WatchedGroup(self.asker, GROUP)
        self.group.restart(new_session=True)
        self.asker.settle()

    @property
    def resign_path(self) -> str:
        return self.asker.paths.resign(GROUP)

    def lead(self, leader: WorkerId, epoch: int) -> None:
        self.asker.znodes.put(self.asker.paths.group(GROUP), encode(record(epoch, leader)))
        self.asker.settle()

    def request(self, epoch: int, target: WorkerId = W1) -> None:
        self.asker.znodes.put(self.resign_path, encode(ResignRequest(epoch=Epoch(epoch), target=target)))

    def reconnect(self, *, new_session: bool = False) -> None:
        self.asker.znodes.forget_watches()
        self.group.restart(new_session=new_session)
        self.asker.settle()

    @property
    def is_requested(self) -> bool:
        return self.asker.znodes.has(self.resign_path)

    @property
    def resigns(self) -> list[Resign]:
        return [event for _, event in self.asker.told if isinstance(event, Resign)]

    @property
    def versions(self) -> list[int]:
        return [event.version for _, event in self.asker.told if isinstance(event, RecordRead)]


@pytest.fixture
def followed() -> Followed:
    return Followed()


def test_a_newer_request_to_resign_is_not_deleted_by_the_forgetting_of_an_older_one(
    followed: Followed,
) -> None:
    followed.request(epoch=8)
    followed.group.forget_resign(Epoch(7))
    followed.asker.settle()
    assert followed.is_requested
    # Nor later: that epoch is done with.
    followed.reconnect()
    assert followed.is_requested
    followed.group.forget_resign(Epoch(8))
    followed.asker.settle()
    assert not followed.is_requested


def test_a_request_that_takes_the_place_of_one_being_forgotten_stays(followed: Followed) -> None:
    followed.request(epoch=7)
    followed.group.forget_resign(Epoch(7))
    followed.asker.answer()
    followed.request(epoch=8)
    followed.asker.settle()
    assert followed.is_requested
    followed.reconnect()
    assert followed.is_requested


def test_a_request_is_forgotten_over_a_lost_connection_and_a_refusal(followed: Followed) -> None:
    followed.request(epoch=7)
    followed.group.forget_resign(Epoch(7))
    followed.asker.answer(ConnectionLoss())
    assert not followed.asker.later, "a new connection begins again"
    followed.group.restart(new_session=False)
    followed.asker.settle()
    assert not followed.is_requested

    followed.request(epoch=8)
    followed.group.forget_resign(Epoch(8))
    followed.asker.answer()
    followed.asker.answer(NoAuthError())
    [again] = followed.asker.later
    again()
    followed.asker.settle()
    assert not followed.is_requested
    followed.request(epoch=8)
    followed.reconnect()
    assert followed.is_requested, "what is forgotten is not forgotten twice"


def test_a_request_that_cannot_be_looked_at_is_forgotten_later(followed: Followed) -> None:
    followed.request(epoch=7)
    followed.group.forget_resign(Epoch(7))
    followed.asker.answer(NoAuthError())
    [again] = followed.asker.later
    again()
    followed.asker.settle()
    assert not followed.is_requested


def test_a_request_that_is_gone_already_is_forgotten(followed: Followed) -> None:
    followed.group.forget_resign(Epoch(7))
    followed.asker.settle()
    followed.request(epoch=7)
    followed.reconnect()
    assert followed.is_requested
    assert followed.asker.later == []


def test_only_a_leader_is_told_to_resign_and_of_each_request_once(followed: Followed) -> None:
    followed.lead(W1, 1)
    followed.request(epoch=2, target=W1)
    followed.asker.settle()
    assert followed.resigns == []
    followed.lead(W0, 2)
    assert followed.resigns == [Resign(epoch=Epoch(2), target=W1)]
    followed.reconnect()
    assert len(followed.resigns) == 1
    followed.request(epoch=2, target=W2)
    followed.asker.settle()
    assert followed.resigns[1:] == [Resign(epoch=Epoch(2), target=W2)]
    followed.lead(W1, 3)
    followed.request(epoch=3)
    followed.asker.settle()
    assert len(followed.resigns) == 2


def test_a_request_that_comes_later_is_heard_through_one_watch(followed: Followed) -> None:
    followed.lead(W0, 1)
    followed.lead(W0, 1)
    assert followed.asker.znodes.watchers(followed.resign_path) == 1
    followed.request(epoch=1)
    followed.asker.settle()
    assert len(followed.resigns) == 1


def test_in_a_new_session_the_record_is_told_once_more_and_in_the_old_one_it_is_not(
    followed: Followed,
) -> None:
    followed.lead(W1, 1)
    followed.reconnect()
    assert followed.versions == [0]
    followed.reconnect(new_session=True)
    assert followed.versions == [0, 0]


def test_a_look_for_requests_that_is_refused_is_made_again_later(followed: Followed) -> None:
    followed.asker.znodes.put(followed.asker.paths.group(GROUP), encode(record(1, W0)))
    followed.request(epoch=1)
    followed.asker.answer()
    followed.asker.answer(NoAuthError())
    assert followed.resigns == []
    [again] = followed.asker.later
    again()
    followed.asker.settle()
    assert len(followed.resigns) == 1


def test_a_damaged_request_is_neither_passed_on_nor_deleted(followed: Followed) -> None:
    followed.lead(W0, 1)
    followed.asker.znodes.put(followed.resign_path, b"no request")
    followed.asker.settle()
    followed.group.forget_resign(Epoch(1))
    followed.asker.settle()
    assert followed.resigns == []
    assert followed.is_requested


def test_a_group_that_is_no_longer_followed_tells_nothing(followed: Followed) -> None:
    followed.lead(W0, 1)
    followed.request(epoch=1)
    followed.group.stop()
    followed.lead(W1, 2)
    assert followed.resigns == []
    assert followed.versions == [0]
