"""Transfers of state: each word about one reaches the side that it concerns."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from stretto.catchup import desk as catchup_module
from stretto.catchup.desk import CatchupDesk
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Offset
from stretto.wire import catchup
from stretto.wire import messages as wire
from tests.unit.core.group import W1
from tests.unit.worker.whatever import some

KEY = GroupKey("M", 1, 0)


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.serving, self.receiving = MagicMock(), MagicMock()
        monkeypatch.setattr(catchup_module, "StateServing", lambda *_: self.serving)
        monkeypatch.setattr(catchup_module, "StateReceiving", lambda *_: self.receiving)
        self.group = SimpleNamespace(key=KEY)
        self.worker = MagicMock(groups={KEY: self.group})
        self.desk = CatchupDesk(self.worker)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(monkeypatch)
    yield world
    world.desk.close()


def wrapped(message: Any, key: GroupKey = KEY) -> wire.Catchup:
    return wire.Catchup(key, message)


ASKED = (catchup.AskImage, catchup.AskHashes, catchup.AskBlocks, catchup.AskEntries)
TOLD_LEADER = (catchup.Working, catchup.NoRoom, catchup.Finished)


@pytest.mark.parametrize("kind", [*ASKED, *TOLD_LEADER])
def test_what_a_follower_says_is_for_who_serves(world: World, kind: type) -> None:
    message = some(kind)
    world.desk.received(W1, wrapped(message), [])
    world.serving.heard.assert_called_once_with(world.group, W1, message)
    world.receiving.heard.assert_not_called()


def test_what_a_leader_says_is_for_who_receives_with_its_body(world: World) -> None:
    message = some(catchup.Image)
    for bodies in ([memoryview(b"blocks")], []):
        world.desk.received(W1, wrapped(message), bodies)
        expected = b"".join(bodies)
        heard = world.receiving.heard.call_args.args
        assert (heard[0], heard[1], heard[2], bytes(heard[3])) == (world.group, W1, message, expected)
    world.serving.heard.assert_not_called()


def test_words_about_a_group_that_is_not_here_are_for_nobody(world: World) -> None:
    message = some(catchup.Image)
    world.desk.received(W1, wrapped(message, GroupKey("M", 1, 9)), [])
    world.receiving.heard.assert_not_called()


def test_both_sides_hear_of_a_group_that_is_closed(world: World) -> None:
    world.desk.group_closed(KEY)
    world.serving.group_closed.assert_called_once_with(KEY)
    world.receiving.group_closed.assert_called_once_with(KEY)


def test_each_side_is_asked_for_its_part(world: World) -> None:
    desk, group, effect = world.desk, cast(Any, world.group), cast(Any, object())
    desk.serve_state(group, effect)
    world.serving.serve_state.assert_called_once_with(group, effect)
    desk.stop_serving(group, W1)
    world.serving.stop_serving.assert_called_once_with(group, W1)
    desk.fetch_state(group, effect)
    world.receiving.fetch_state.assert_called_once_with(group, effect)
    desk.install(group, Offset(7))
    world.receiving.install.assert_called_once_with(group, Offset(7))
    desk.looked(group)
    world.receiving.looked.assert_called_once_with(group)
    desk.options_changed()
    world.serving.options_changed.assert_called_once_with()
    assert desk.view(KEY) is world.receiving.view.return_value
    world.receiving.view.assert_called_once_with(KEY)


def test_a_body_is_sent_only_if_there_is_one(world: World) -> None:
    message = some(catchup.Image)
    for body, bodies in ((b"", ()), (b"blocks", (b"blocks",))):
        world.desk.send(W1, KEY, message, body)
        world.worker.transport.send.assert_called_with(W1, wrapped(message), bodies)


def test_nothing_is_begun_on_a_thread_once_it_is_closed(world: World) -> None:
    begun: list[str] = []
    world.worker.loop.hand_back = lambda work, then: begun.append("work")
    world.desk.on_thread(lambda: None, lambda _: None)
    world.desk.close()
    assert begun == ["work"]
    world.desk.on_thread(lambda: None, lambda _: None)
    assert begun == ["work"]
    for side in (world.serving.end, world.serving.close, world.receiving.close):
        assert side.call_count == 1
