"""Transfers of state: each message about one reaches the side that it concerns."""

from __future__ import annotations

from collections.abc import Iterator
from queue import Queue
from types import SimpleNamespace
from typing import Any, cast, get_args
from unittest.mock import MagicMock

import pytest

from stretto.catchup import transfers as transfers_module
from stretto.catchup.transfers import Transfers
from stretto.vocabulary.groups import GroupKey
from stretto.wire import catchup
from stretto.wire import messages as wire
from tests.support.core_group import W1
from tests.support.whatever import some

KEY = GroupKey("M", 1, 0)


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.serving, self.receiving = MagicMock(), MagicMock()
        monkeypatch.setattr(transfers_module, "StateServing", lambda *_, **__: self.serving)
        monkeypatch.setattr(transfers_module, "StateReceiving", lambda *_: self.receiving)
        self.group = SimpleNamespace(key=KEY)
        self.worker = MagicMock(groups={KEY: self.group})
        self.transfers = Transfers(self.worker, node_dir=None, key=None)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(monkeypatch)
    yield world
    world.transfers.close()


def wrapped(message: Any, key: GroupKey = KEY) -> wire.Catchup:
    return wire.Catchup(key, message)


@pytest.mark.parametrize("kind", get_args(catchup.Ask))
def test_what_a_follower_says_is_for_who_serves(world: World, kind: type) -> None:
    message = some(kind)
    world.transfers.on_message(W1, wrapped(message), [])
    world.serving.on_ask.assert_called_once_with(world.group, W1, message)
    world.receiving.on_answer.assert_not_called()


@pytest.mark.parametrize("kind", get_args(catchup.Answer))
def test_what_a_leader_says_is_for_who_receives_with_its_body(world: World, kind: type) -> None:
    message = some(kind)
    for bodies in ([memoryview(b"blocks")], []):
        world.transfers.on_message(W1, wrapped(message), bodies)
        expected = b"".join(bodies)
        told = world.receiving.on_answer.call_args.args
        assert (told[0], told[1], told[2], bytes(told[3])) == (world.group, W1, message, expected)
    world.serving.on_ask.assert_not_called()


def test_words_about_a_group_that_is_not_here_are_for_nobody(world: World) -> None:
    for message in (some(catchup.Image), some(catchup.AskImage)):
        world.transfers.on_message(W1, wrapped(message, GroupKey("M", 1, 9)), [])
    world.receiving.on_answer.assert_not_called()
    world.serving.on_ask.assert_not_called()


def test_both_sides_hear_of_a_group_that_is_closed(world: World) -> None:
    world.transfers.on_group_closed(KEY)
    world.serving.on_group_closed.assert_called_once_with(KEY)
    world.receiving.on_group_closed.assert_called_once_with(KEY)


def test_nothing_is_begun_on_a_thread_once_it_is_closed(world: World) -> None:
    begun: Queue[object] = Queue()
    world.worker.loop.hand_back = lambda work, then: begun.put(work)
    threads, first = world.transfers.threads, object()
    threads.run(cast(Any, first), lambda _: None)
    assert begun.get(timeout=10) is first
    # What is given up last finds no thread that would begin it.
    world.serving.end.side_effect = lambda: threads.run(lambda: None, lambda _: None)
    world.transfers.close()
    threads.run(lambda: None, lambda _: None)
    assert begun.empty()
    for side in (world.serving.end, world.serving.close, world.receiving.close):
        assert side.call_count == 1
