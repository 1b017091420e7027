"""Blocks that another process sends are, to who gets them, the worker's."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from stretto.catchup.hasher import hashes_in
from stretto.catchup.sender import Part, Sender, Unread
from stretto.network.endpoint import Connection, Endpoint
from stretto.network.keys import ClusterKey
from stretto.network.loop import Loop
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Incarnation, Offset, TaskId, WorkerId
from stretto.wire import catchup
from stretto.wire import messages as wire
from tests.unit.supervisor.offspring import children

DEADLINE_MS = 60_000
CONTENT = os.urandom(300_000)
BLOCK_BYTES, SEED = 8_192, 1


def body_of(pieces: Sequence[tuple[int, int]]) -> bytes:
    return b"".join(CONTENT[position : position + length] for position, length in pieces)


class World:
    """A follower that listens, and the leader's sender, on one loop."""

    def __init__(self, key: ClusterKey | None, folder: Path) -> None:
        self.loop = Loop()
        self.heard: list[tuple[WorkerId | None, wire.ToWorker, bytes]] = []
        self.unread: list[Unread] = []
        self.follower = Endpoint(
            self.loop, address="127.0.0.1:0", cluster="c", name="follower", key=key, on_message=self._hear
        )
        self.sender = Sender(self.loop, key, self.unread.append)
        (folder / "spool").write_bytes(CONTENT)
        self.spool = os.open(folder / "spool", os.O_RDONLY)

    def _hear(
        self, _: Connection, sender: WorkerId | None, message: wire.ToWorker, bodies: list[memoryview]
    ) -> None:
        self.heard.append((sender, message, b"".join(bytes(body) for body in bodies)))

    def until(self, condition: Callable[[], bool]) -> None:
        """It is looked at until it holds, once."""
        deadline = self.loop.now + DEADLINE_MS
        holds = condition()

        def look() -> None:
            nonlocal holds
            holds = condition()
            if holds or self.loop.now > deadline:
                self.loop.stop()
            else:
                self.loop.call_after(10, look)

        if not holds:
            self.loop.call_after(10, look)
            self.loop.run()
        assert holds

    def part(self, ask: int, *pieces: tuple[int, int]) -> Part:
        blocks = catchup.Blocks(
            Epoch(1), Incarnation("f"), 1, ask=ask, task=TaskId(0), round=1, applied=Offset(0)
        )
        return Part(
            to=WorkerId("follower"),
            address=self.follower.address,
            hello=wire.Hello(wire.PROTOCOL_VERSION, "c", WorkerId("leader"), Incarnation("l")),
            message=wire.Catchup(GroupKey("m", 1, 0), blocks),
            pieces=pieces,
            hashes=hashes_in(memoryview(body_of(pieces)), BLOCK_BYTES, SEED),
            block_bytes=BLOCK_BYTES,
            seed=SEED,
        )

    def send(self, part: Part, source: int | None = None) -> None:
        """As soon as it is ready."""
        self.until(lambda: self.sender.send(part, self.spool, source))

    def close(self) -> None:
        self.sender.close()
        self.follower.close()
        self.loop.close()
        os.close(self.spool)


@pytest.fixture(params=[False, True], ids=["open", "with a key"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = World(ClusterKey.generate() if request.param else None, tmp_path)
    yield world
    world.close()


def test_parts_arrive_as_messages_of_the_worker_and_what_cannot_be_read_is_told(world: World) -> None:
    assert not world.sender.send(world.part(0, (0, 1)), world.spool), "it is not ready before it is started"
    world.sender.start()
    parts = [world.part(1, (0, 200_000)), world.part(2, (8_192, 4_096), (100_000, 50_000))]
    for part in parts:
        world.send(part)
    missing = world.part(3, (299_000, 2_000))
    world.send(missing)
    world.until(lambda: len(world.heard) == 2 and len(world.unread) == 1)
    bodies = [CONTENT[:200_000], CONTENT[8_192:12_288] + CONTENT[100_000:150_000]]
    assert world.heard == [
        (WorkerId("leader"), part.message, body) for part, body in zip(parts, bodies, strict=True)
    ]
    assert world.unread[0].message == missing.message
    assert "shorter" in world.unread[0].why


def test_what_is_in_memory_is_sent_from_there_unless_it_has_changed(tmp_path: Path) -> None:
    """The spool file has not a single byte that is asked for: what arrives came from the other file."""
    world = World(None, tmp_path)
    source = os.open(tmp_path / "source", os.O_RDWR | os.O_CREAT)
    os.write(source, CONTENT)
    os.truncate(tmp_path / "spool", 0)
    world.sender.start()
    try:
        world.send(world.part(1, (0, 100_000), (160_000, 140_000)), source)
        world.until(lambda: len(world.heard) == 1)
        assert world.heard[0][2] == CONTENT[:100_000] + CONTENT[160_000:]

        os.pwrite(source, bytes(1), 50_000)
        (tmp_path / "spool").write_bytes(CONTENT)
        world.send(world.part(2, (0, 100_000)), source)
        world.until(lambda: len(world.heard) == 2)
        assert world.heard[1][2] == CONTENT[:100_000]
        assert not world.unread
    finally:
        os.close(source)
        world.close()


def test_a_sender_that_died_is_started_again_and_one_that_ended_is_gone(tmp_path: Path) -> None:
    world, others = World(None, tmp_path), children()
    try:
        for ask in (1, 2):
            world.sender.start()
            world.send(world.part(ask, (0, 100)))
            world.until(lambda ask=ask: len(world.heard) == ask)  # type: ignore[misc]
            [pid] = children() - others
            if ask == 1:
                os.kill(pid, signal.SIGKILL)
                # Whoever is not ready is not there.
                world.until(lambda: not world.sender.send(world.part(9, (0, 1)), world.spool))
        world.sender.end()
        world.until(lambda: children() <= others)
    finally:
        world.close()
