"""The driver of transfers from a leader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stretto.catchup.serving import StateServing
from stretto.errors import StorageError
from stretto.replog.core import effects
from stretto.replog.frame import Kind
from stretto.specs.assignments import GroupPlan
from stretto.state.applied import AppliedState
from stretto.telemetry.windows import REFUSED_TRANSFERS
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Incarnation, Offset, TaskId, WorkerId
from stretto.wire import catchup
from stretto.wire import messages as wire
from stretto.worker.replica.meter import Meter
from tests.support.entries import Log
from tests.support.whatever import some

KEY = GroupKey("counts", 1, 0)
W1, W2 = WorkerId("w1"), WorkerId("w2")


class Server:
    """Worker, threads, transport, loop and group at once."""

    def __init__(self) -> None:
        self.now = 10_000
        self.sent: list[tuple[WorkerId, catchup.AnyMessage]] = []
        self.bodies: list[tuple[bytes, ...]] = []
        self.loop = self.transport = self
        self.worker, self.groups = WorkerId("w0"), {KEY: self}
        self.key, self.plan = KEY, GroupPlan(KEY, (TaskId(0),), (W1, W2))
        self.replica = SimpleNamespace(applied=Offset(0), leading=SimpleNamespace(epoch=Epoch(2)))
        self.meter = Meter()
        self.works: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.state: AppliedState | None = None
        self.folder = Path()
        self.replicas = SimpleNamespace(path=lambda _: self.folder)
        self.serving = StateServing(cast(Any, self), cast(Any, self), node_dir=None, key=None)

    def begin(self, to: WorkerId, epoch: Epoch, attempt: int = 1) -> None:
        effect = effects.ServeState(
            to=to, epoch=epoch, incarnation=Incarnation(f"{to}.1"), attempt=attempt, pinned=Offset(0)
        )
        self.serving.serve_state(cast(Any, self), effect)

    def ask(
        self, follower: WorkerId, epoch: Epoch, attempt: int = 1, **changes: Any
    ) -> catchup.AnyMessage | None:
        """What is answered at once, if anything is."""
        ask = catchup.AskImage(
            epoch, Incarnation(f"{follower}.1"), attempt, task=TaskId(0), round=1, base=0, **changes
        )
        before = len(self.sent)
        self.serving.on_ask(cast(Any, self), follower, ask)
        return self.sent[-1][1] if len(self.sent) > before else None

    # What the driver calls.

    def option(self, name: str) -> int:
        return 60_000 if "timeout" in name else 0

    def send(self, to: WorkerId, wrapped: wire.Catchup, bodies: tuple[bytes, ...]) -> None:
        assert wrapped.group == KEY
        self.sent.append((to, wrapped.message))
        self.bodies.append(bodies)

    def call_at(self, *_: Any) -> None: ...

    def run(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self.works.append((work, then))

    def step(self, _event: Any) -> None: ...


def test_a_question_of_an_earlier_epoch_ends_nobodys_transfer_of_this_one() -> None:
    server = Server()
    server.begin(W1, Epoch(2))
    assert server.ask(W1, Epoch(2)) is None, "the image is being made"

    refused = server.ask(W2, Epoch(1))

    assert isinstance(refused, catchup.Refused)
    assert isinstance(server.ask(W1, Epoch(2)), catchup.Waiting)


def test_a_body_is_sent_only_if_there_is_one() -> None:
    server, message = Server(), some(catchup.Hashes)
    for body in (b"", b"hashes"):
        server.serving._send(W1, KEY, message, body)
    assert server.sent == [(W1, message)] * 2
    assert server.bodies == [(), (b"hashes",)]


def test_a_follower_of_another_release_is_refused_and_counted() -> None:
    server = Server()
    server.begin(W1, Epoch(2))

    refused = server.ask(W1, Epoch(2), format=catchup.FORMAT + 1)

    assert isinstance(refused, catchup.Refused)
    assert refused.reason is catchup.Reason.FORMAT
    assert server.meter._events == {REFUSED_TRANSFERS + "format": 1}


def test_an_image_that_nobody_waits_for_any_more_is_not_made_to_its_end(tmp_path: Path) -> None:
    server = Server()
    log = Log()
    log.add(Kind.EPOCH)
    for number in range(100):
        log.depot([Random(number).randbytes(100_000)], task=0)
    server.folder, server.state = tmp_path, AppliedState.open(tmp_path / "state", [TaskId(0)])
    server.state.apply(log.frames)
    server.begin(W1, Epoch(2))
    server.ask(W1, Epoch(2))
    [(make, made)] = server.works

    server.serving.on_group_closed(KEY)

    with pytest.raises(StorageError, match="given up") as given_up:
        make()
    before = list(server.sent)
    made(given_up.value)
    assert server.sent == before
    assert not list((tmp_path / "spool").iterdir())
    server.state.close()


def test_images_that_were_given_up_keep_none_of_the_next_from_being_made() -> None:
    server = Server()
    for attempt in range(1, 6):
        server.begin(W1, Epoch(2), attempt)
        server.ask(W1, Epoch(2), attempt)
        assert len(server.works) == attempt, "an image is being made"
        server.serving.on_group_closed(KEY)
        _, made = server.works[-1]
        made(StorageError("the transfer was given up"))
