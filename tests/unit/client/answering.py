"""A worker that leads all groups of a module, and answers each question by a function."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from stretto.network.endpoint import Connection, Endpoint
from stretto.network.loop import Loop
from stretto.network.routing import Network
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, TaskId, WorkerId
from stretto.wire import messages as wire

MODULE = "m"
TASKS = 4
GROUPS = tuple(GroupKey(MODULE, 1, number) for number in range(2))
LEADER, FOLLOWER = WorkerId("w0"), WorkerId("w1")
SECONDS = 20.0

Answer: TypeAlias = wire.ToClient | tuple[wire.ToClient, Sequence[bytes]] | None
Answering: TypeAlias = Callable[[wire.ToWorker, list[bytes]], Answer]


class AnsweringWorker:
    """Keeps what it was asked, in order; what is answered with None is not answered."""

    def __init__(self, name: WorkerId, answer: Answering) -> None:
        self.name = name
        self.answer = answer
        self.asked: list[wire.ToWorker] = []
        self.metadata = wire.Metadata(0, {}, ())
        self._loop = Loop()
        self._endpoint = Endpoint(
            self._loop, address="127.0.0.1:0", cluster="c", name="fake", key=None, on_message=self._received
        )
        self.address = self._endpoint.address
        self._thread = threading.Thread(target=self._loop.run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon(self._loop.stop)
        self._thread.join()
        self._endpoint.close()
        self._loop.close()

    def _received(
        self, sender: Connection, _: WorkerId | None, message: wire.ToWorker, bodies: list[memoryview]
    ) -> None:
        if isinstance(message, wire.GetMetadata):
            if message.awaited is None:
                told = wire.Metadata(message.request, self.metadata.addresses, self.metadata.groups)
                self._endpoint.reply(sender, told)
            return
        if isinstance(message, wire.Hello):
            return
        self.asked.append(message)
        answer = self.answer(message, [bytes(body) for body in bodies])
        if isinstance(answer, tuple):
            self._endpoint.reply(sender, *answer)
        elif answer is not None:
            self._endpoint.reply(sender, answer)


def views(*, leader: WorkerId = LEADER, epoch: int = 1) -> tuple[wire.GroupView, ...]:
    """Two groups of two tasks, each with a leader and a follower that is in sync."""
    members = (LEADER, FOLLOWER)
    return tuple(
        wire.GroupView(
            key,
            tuple(TaskId(task) for task in range(2 * key.group, 2 * key.group + 2)),
            members,
            Epoch(epoch),
            leader,
            members,
            TASKS,
        )
        for key in GROUPS
    )


@contextmanager
def answered_by(*workers: tuple[WorkerId, Answering]) -> Iterator[tuple[Network, list[AnsweringWorker]]]:
    """A client's network that knows of these workers."""
    started = [AnsweringWorker(name, answer) for name, answer in workers]
    metadata = wire.Metadata(0, {each.name: each.address for each in started}, views())
    for each in started:
        each.metadata = metadata
    network = Network([each.address for each in started], None)
    try:
        heard = threading.Event()
        network.call(network.refresh, heard.set)
        assert heard.wait(SECONDS)
        yield network, started
    finally:
        network.close()
        for each in started:
            each.close()
