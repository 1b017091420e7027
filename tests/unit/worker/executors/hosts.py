"""Executors without a worker: a loop, a task's file and a module, and requests one after the other."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from stretto.network.loop import Loop
from stretto.pstate.changes import Changes, Packed, joined, parse
from stretto.replog.frame import Kind
from stretto.state.applied import AppliedState
from stretto.vocabulary.clock import boot_time_ms
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, TaskId, WorkerId
from stretto.worker.executors import protocol
from stretto.worker.executors.pool import Code, Executors
from stretto.worker.executors.replies import Reply
from tests.support.entries import Log

DEADLINE_SECONDS = 60.0
GROUP = GroupKey("module", 0, 0)
TASK = TaskId(0)


@dataclass
class _Hosting:
    plans: tuple[object, ...] = (object(),)


@dataclass
class Host:
    """What executors need of a worker."""

    folder: Path
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.loop = Loop()
        self.worker = WorkerId("w0")
        self.hosting = _Hosting()
        self.epoch = 0
        self.executors = Executors(self)
        self.cleared: list[int] = []
        self.log = Log()
        self.state = self._new_state()

    def option(self, name: str) -> Any:
        return self.options.get(name, {"executor.processes": 1, "executor.timeout.millis": 10_000}[name])

    def clear_readers(self) -> None:
        self.cleared.append(self.state._task(TASK).environment.clear_readers())

    # Making.

    def renew(self) -> None:
        """An empty state in another epoch; the executors stay."""
        self.state.close()
        self.log = Log()
        self.state = self._new_state()
        self.options.clear()
        self.cleared.clear()

    def _new_state(self) -> AppliedState:
        self.epoch += 1
        return AppliedState.open(self.folder / f"state-{self.epoch}", (TASK,), map_bytes=1 << 20)

    def start(self, source: str, *, tasks: int = 1) -> None:
        code = self.folder / "code"
        code.mkdir(exist_ok=True)
        (code / "example.py").write_text(textwrap.dedent(source))
        self.executors.start(Code(code, "example:Example", tasks, has_queries="@query" in source))

    def append(self, *records: object, depot: str = "events") -> None:
        self.state.apply([self.log.depot([msgspec.json.encode(each) for each in records], depot=depot)])

    def apply(self, ran: protocol.Ran, changes: bytes) -> None:
        payload = joined(Packed(ran.pstates, changes))
        self.state.apply([self.log.add(Kind.STATE, payload=payload)])

    def close(self) -> None:
        self.executors.close()
        self.state.close()
        self.loop.close()

    # Asking.

    def until(self, is_true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS

        def look() -> None:
            if is_true() or time.monotonic() > deadline:
                self.loop.stop()
            else:
                self.loop.call_after(5, look)

        self.loop.call_soon(look)
        self.loop.run()
        assert is_true(), "it never came true"

    def ask(self, *requests: protocol.Request, calls: bytes | None = b"") -> list[tuple[Reply, list[bytes]]]:
        answers: list[tuple[Reply, list[bytes]]] = []
        # The loop stood still.
        self.loop.now = boot_time_ms()
        for request in requests:
            self.executors.run(
                GROUP,
                request,
                lambda reply, bodies: answers.append((reply, bodies)),
                bodies=() if calls is None else (calls,),
            )
        self.until(lambda: len(answers) == len(requests))
        return answers

    def lane(self, *, attempt: int = 1) -> protocol.Lane:
        return protocol.Lane("take", TASK, Epoch(self.epoch), attempt)

    def run(self, batch: int = 1, offset: int | None = 0, **others: Any) -> protocol.Run:
        given: dict[str, Any] = {
            "lane": self.lane(),
            "applied": batch,
            "depot": "events",
            "records_max": 1_000,
            "bytes_max": 1 << 20,
        } | others
        return protocol.Run(number=0, file=str(self.state.folder(TASK)), batch=batch, offset=offset, **given)

    def ran(self, request: protocol.Request, calls: bytes = b"") -> tuple[protocol.Ran, list[bytes]]:
        ((reply, bodies),) = self.ask(request, calls=calls)
        assert isinstance(reply, protocol.Ran), reply
        return reply, bodies


def changes_of(ran: protocol.Ran, body: bytes) -> dict[str, Changes]:
    return parse(joined(Packed(ran.pstates, body)))
