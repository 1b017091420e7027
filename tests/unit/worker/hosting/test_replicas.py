"""The life of a replica: who hears that it begins, stops and goes, and what is done to its files when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock, call

import pytest

from stretto.catchup.install import Install
from stretto.errors import StorageError, StrettoError
from stretto.replog.core import events
from stretto.replog.storage import EpochStart
from stretto.vocabulary.types import Epoch, Incarnation, Offset, StorageId
from stretto.worker.hosting import replicas as replicas_module
from stretto.worker.hosting.replicas import REOPEN_MS, Replicas
from tests.support.core_group import settings
from tests.support.turns import StillLoop
from tests.unit.worker.replica.driving import KEY, Driven

NOW = Incarnation("now")
INSTALL = Install(storage_id=StorageId("disk"), end=Offset(7), before=None)


class World:
    """A worker with one replica that leads; its disk works when the test says so."""

    def __init__(self, driven: Driven) -> None:
        cast(Any, driven).catchup.receiving.view = lambda _: None
        self.group = driven.group
        self.loop = StillLoop()
        self.works: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.quiet: list[Callable[[], None]] = []
        self.worker = MagicMock(loop=self.loop, groups={KEY: self.group}, incarnation=NOW, is_stopping=False)
        self.worker.config.plans = ()
        self.worker.hosting.plans = {KEY: self.group.plan}
        self.worker.disk.run = lambda work, then: self.works.append((work, then))
        self.worker.commit.when_quiet = lambda _, action: self.quiet.append(action)
        self.worker.applier.after_applied = self.quiet.append
        self.replicas = Replicas(self.worker)
        self.storage = MagicMock()
        self.replicas._storages[KEY] = self.storage
        self.replicas._fsync[KEY] = MagicMock()
        self.replicas._by_log[self.group.log] = self.group
        self.folder = MagicMock()
        self.replicas.folder = lambda plan: self.folder  # type: ignore[method-assign]

    def calm(self) -> None:
        actions, self.quiet[:] = list(self.quiet), []
        for action in actions:
            action()

    def work(self) -> None:
        works, self.works[:] = list(self.works), []
        for work, then in works:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - as a worker's threads do
                result = error
            then(result)

    def is_closed(self) -> bool:
        """Whether its files are."""
        return self.group.log._failure is not None

    def told_to_all(self) -> None:
        """Whoever has something of the replica has heard that it is here no more."""
        worker = self.worker
        [closed] = worker.on_replica_closed.call_args_list
        assert closed.args[0] == KEY
        assert KEY not in worker.groups
        assert not self.replicas.has_storage(KEY)
        assert KEY not in self.replicas._fsync
        assert self.group.closed


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    driven = Driven(tmp_path, settings(min_isr=1))
    driven.lead()
    yield World(driven)
    if driven.group.log._failure is None:
        driven.close()


def begun_groups(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What each group is made of that begins from now on."""
    begun: list[tuple[Any, ...]] = []

    def begin(*args: Any, **_: Any) -> MagicMock:
        begun.append(args)
        return MagicMock()

    monkeypatch.setattr(replicas_module, "Group", begin)
    return begun


def test_a_replica_that_is_stopped_is_told_to_all_closed_when_quiet_and_opened_again(world: World) -> None:
    world.replicas.stop(world.group, "a bad disk", renew=False)
    world.told_to_all()
    world.worker.on_replica_closed.assert_called_once_with(KEY, "its replica was stopped (a bad disk)")
    world.worker.metadata.group_closed.assert_not_called()
    stopped = world.replicas.stopped[KEY]
    assert stopped.why == "a bad disk"
    assert world.replicas.is_busy(KEY)
    assert world.works == [], "something of it may be written still"
    assert world.group.log in world.replicas._by_log

    world.calm()
    assert world.group.log not in world.replicas._by_log
    assert not world.is_closed()
    world.work()
    assert world.is_closed()
    assert world.replicas.is_busy(KEY)
    world.worker.metastore.update_registration.assert_not_called()
    world.work()
    assert world.folder.mock_calls == [call.check_room(), call.open()]
    assert not world.replicas.is_busy(KEY)
    assert world.replicas._storages[KEY] is world.folder.open.return_value
    world.worker.metastore.update_registration.assert_called_once_with()


def test_a_replica_whose_folder_is_suspect_is_renewed_and_counts_as_lost(world: World) -> None:
    world.replicas.stop(world.group, "it diverged", renew=True)
    world.worker.regrouping.on_lost.assert_called_once_with(world.group)
    world.calm()
    world.work()
    world.work()
    assert world.folder.mock_calls == [call.check_room(), call.renew("it diverged")]


def test_a_replica_that_is_only_stopped_is_not_lost(world: World) -> None:
    world.replicas.stop(world.group, "no room", renew=False)
    world.worker.regrouping.on_lost.assert_not_called()


def test_a_stopped_replica_comes_back_in_another_incarnation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = begun_groups(monkeypatch)
    order = MagicMock()
    world.worker.lose_session = order.lose_session
    world.worker.metastore.reincarnate = order.reincarnate
    world.replicas.stop(world.group, "a bad disk", renew=False)
    assert order.mock_calls == [call.lose_session(), call.reincarnate()]
    world.calm()
    world.work()
    world.work()
    assert begun == []
    world.replicas.begin(world.group.plan, NOW)
    assert begun == [], "it has forgotten what it did in this one"
    world.replicas.begin(world.group.plan, Incarnation("next"))
    [(_, plan, identity, _)] = begun
    assert plan is world.group.plan
    assert identity.incarnation == "next"
    assert KEY not in world.replicas.stopped


def test_without_a_session_there_is_none_to_lose_and_nothing_begins(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = begun_groups(monkeypatch)
    world.worker.incarnation = None
    world.replicas.stop(world.group, "a bad disk", renew=False)
    world.worker.lose_session.assert_not_called()
    world.calm()
    world.work()
    world.work()
    assert world.replicas.has_storage(KEY)
    assert begun == []
    world.replicas.begin(world.group.plan, NOW)
    assert len(begun) == 1, "it did nothing in that incarnation"


def test_a_replica_that_cannot_be_opened_is_tried_again_and_says_why(world: World) -> None:
    world.replicas.stop(world.group, "a bad disk", renew=True)
    world.calm()
    world.work()
    world.folder.renew.side_effect = StrettoError("no room on the disk")
    world.work()
    assert world.replicas.stopped[KEY].why == "no room on the disk"
    assert not world.replicas.is_busy(KEY)
    assert not world.replicas.has_storage(KEY)
    world.loop.pass_ms(REOPEN_MS - 1)
    assert world.works == []
    world.loop.pass_ms(1)
    assert world.replicas.is_busy(KEY)
    world.folder.renew.side_effect = None
    world.work()
    assert world.replicas.has_storage(KEY)
    assert world.folder.renew.call_args_list == [call("a bad disk")] * 2


def test_what_nobody_expects_of_a_disk_ends_the_worker(world: World) -> None:
    world.replicas.stop(world.group, "a bad disk", renew=False)
    world.calm()
    world.work()
    world.folder.open.side_effect = ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        world.work()


@pytest.mark.parametrize("reason", ["the worker stops", "the replica went elsewhere"])
def test_a_replica_that_is_no_longer_wanted_is_not_opened_again(world: World, reason: str) -> None:
    world.replicas.stop(world.group, "a bad disk", renew=False)
    world.calm()
    if reason == "the worker stops":
        world.worker.is_stopping = True
    else:
        world.worker.hosting.plans.clear()
    world.work()
    assert world.works == []
    assert not world.replicas.is_busy(KEY)


def test_a_replica_that_is_given_up_is_told_to_all_and_closed_when_nothing_is_in_flight(world: World) -> None:
    done: list[bool] = []
    stepped: list[events.Event] = []
    cast(Any, world.group).step = stepped.append
    world.replicas.give_up(world.group, "it moved", lambda: done.append(True))
    world.told_to_all()
    assert stepped == [events.SessionExpired()]
    world.worker.on_replica_closed.assert_called_once_with(KEY, "it moved")
    world.worker.metadata.group_closed.assert_called_once_with(KEY)
    world.worker.metastore.unfollow.assert_called_once_with(KEY)
    world.worker.metastore.update_registration.assert_called_once_with()
    world.calm()
    assert world.group.log not in world.replicas._by_log
    assert world.works == [], "entries may be applied still"
    world.calm()
    assert not done
    world.work()
    assert done
    assert world.is_closed()


def test_a_stopped_replica_that_nobody_counts_on_is_forgotten(world: World) -> None:
    done: list[bool] = []
    world.replicas.stopped[KEY] = MagicMock()
    world.replicas.forget_stopped(KEY, lambda: done.append(True))
    assert KEY not in world.replicas.stopped
    assert not world.replicas.has_storage(KEY)
    world.worker.metastore.unfollow.assert_called_once_with(KEY)
    assert not done
    world.work()
    world.storage.close.assert_called_once_with()
    assert done == [True]
    world.replicas.forget_stopped(KEY, lambda: done.append(True))
    world.loop.run()
    assert done == [True, True], "there was nothing to close"


def test_a_replica_that_comes_is_registered_followed_and_begun(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = MagicMock()
    monkeypatch.setattr(replicas_module, "Group", lambda *_, **__: group)
    switch = MagicMock()
    monkeypatch.setattr(replicas_module, "FsyncSwitch", lambda *_: switch)
    world.replicas.stopped[KEY] = MagicMock()
    taken = MagicMock(unapplied=[1, 2])
    world.replicas.take_on(world.group.plan, taken)
    world.worker.metastore.update_registration.assert_called_once_with()
    world.worker.metastore.follow.assert_called_once_with(KEY)
    assert world.worker.groups == {KEY: group}
    assert taken.unapplied == [], "they are the group's"
    switch.want.assert_called_once_with(world.worker.option.return_value)
    world.worker.option.assert_called_with("replication.fsync")
    group.step.assert_called_once_with(events.Tick())
    world.worker.regrouping.on_begun.assert_called_once_with(group)
    assert world.replicas.stopped == {}
    world.replicas.on_committed(taken.log, Offset(7))
    group.on_committed.assert_called_once_with(Offset(7))
    switch.want.reset_mock()
    world.replicas.options_changed()
    switch.want.assert_called_once_with(world.worker.option.return_value)


def test_writes_of_a_replaced_log_concern_nobody(world: World) -> None:
    installed = world.folder.install.return_value
    heard: list[Any] = []
    cast(Any, world.group).on_committed = heard.append
    cast(Any, world.group).installed = MagicMock()
    old = world.group.log
    installation = world.replicas.installation(KEY)
    installation.carry_out(INSTALL)
    installation.finish(())
    world.replicas.on_committed(old, Offset(1))
    assert heard == []
    world.replicas.on_committed(installed.log, Offset(2))
    assert heard == [2]
    assert world.replicas._storages[KEY] is installed
    assert world.replicas.storage_ids() == {KEY: installed.storage_id}
    [forgotten] = world.worker.scans.forget.call_args_list
    assert forgotten.args[0] == KEY


def test_a_replica_goes_on_with_what_was_installed_when_its_own_files_are_closed(world: World) -> None:
    group, history = cast(Any, world.group), (EpochStart(Epoch(1), Offset(0)),)
    new = MagicMock()

    def put_in_place(*_: Any) -> MagicMock:
        assert world.is_closed()
        return new

    def go_on(*_: Any) -> None:
        assert world.replicas._storages[KEY] is new

    world.folder.install.side_effect = put_in_place
    group.installed = MagicMock(side_effect=go_on)
    installation = world.replicas.installation(KEY)
    installation.carry_out(INSTALL)
    world.folder.install.assert_called_once_with(INSTALL, world.storage.identity)
    assert world.replicas._storages[KEY] is world.storage, "only the loop replaces it"
    installation.finish(history)
    group.installed.assert_called_once_with(new, history)


def test_a_replica_whose_new_state_cannot_be_installed_stops(world: World) -> None:
    group = cast(Any, world.group)
    group.host.replicas = MagicMock()
    world.replicas.installation(KEY).fail("a bad sector")
    group.host.replicas.stop.assert_called_once_with(group, "a bad sector", renew=False)


@pytest.mark.parametrize("fails", [False, True])
def test_only_what_is_synced_is_marked_clean(world: World, fails: bool) -> None:
    order = MagicMock()
    group = cast(Any, SimpleNamespace(key=KEY, state=order.state, log=order.log, close=order.close))
    if fails:
        order.log.sync.side_effect = StorageError("a bad sector")
    world.replicas._close_cleanly(group, order.storage)
    expected = [call.state.checkpoint(), call.log.sync(), call.close()]
    assert order.mock_calls == [*expected, *([] if fails else [call.storage.identity.mark_clean()])]


def test_at_the_end_all_are_closed_but_for_one_that_is_being_replaced(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Any] = []
    monkeypatch.setattr(world.replicas, "_close_cleanly", lambda *both: closed.append(both))
    world.group.installing = True
    world.replicas.close()
    assert closed == []
    world.group.installing = False
    world.replicas.close()
    assert closed == [(world.group, world.storage)]
