"""Real processes that are stopped: those who go when they are asked, and those who do not."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stretto.network.loop import Loop
from stretto.supervisor import children as subject
from stretto.supervisor.children import Child, Children
from stretto.vocabulary.types import WorkerId
from tests.unit.supervisor.deaf import command

DEADLINE_MS = 30_000
WORKER = WorkerId("m-0")


class Node:
    """The processes of a supervisor that runs for as long as one of them lives."""

    def __init__(self, folder: Path) -> None:
        self.loop = Loop()
        self.ends: list[str] = []
        self._folder = folder
        self.children = Children(self.loop, folder / "run", self._exited)

    def _exited(self, _: Child, how: str) -> None:
        self.ends.append(how)
        self.loop.stop()

    def start(self, *, deaf: bool) -> Child:
        return self.children.start(WORKER, "m", "launch", command(deaf=deaf), self._log)

    @property
    def _log(self) -> Path:
        return self._folder / "worker.log"

    def when_ready(self, then: Callable[[], None]) -> None:
        if self._log.read_text():
            then()
        else:
            self.loop.call_after(10, self.when_ready, then)

    def run(self) -> None:
        """Until the process has ended, or there is no more patience with it."""
        self.loop.call_after(DEADLINE_MS, self.loop.stop)
        self.loop.run()

    def close(self) -> None:
        for child in self.children.alive.values():
            assert child.process is not None
            child.process.kill()
            child.process.wait()
        self.children.let_go()
        self.loop.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.close()


def test_a_worker_that_does_not_stop_is_killed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "PATIENCE_MS", 50)
    child = node.start(deaf=True)
    node.when_ready(lambda: node.children.stop(child))
    node.run()
    assert node.ends == ["signal SIGKILL"]
    assert node.children.alive == {}


def test_a_worker_that_stops_is_not_killed(node: Node) -> None:
    child = node.start(deaf=False)
    node.when_ready(lambda: node.children.stop(child))
    node.run()
    assert node.ends == ["signal SIGTERM"]


def test_patience_is_lost_with_the_process_that_was_asked_and_with_no_later_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, signal.Signals]] = []
    monkeypatch.setattr(Child, "signal", lambda child, number: asked.append((child.pid, number)))
    first = node.start(deaf=True)
    node.children._lose_patience(first)
    assert asked == [(first.pid, signal.SIGKILL)]
    os.kill(first.pid, signal.SIGKILL)
    node.run()
    second = node.start(deaf=True)
    node.children._lose_patience(first)
    assert asked == [(first.pid, signal.SIGKILL)]
    os.kill(second.pid, signal.SIGKILL)
    node.run()
    assert node.ends == ["signal SIGKILL"] * 2


@pytest.mark.parametrize("has_room", [True, False])
def test_a_log_that_has_grown_is_cut_whether_or_not_there_is_room_to_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_room: bool
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(subject, "LOG_BYTES_MAX", 4)
    if not has_room:
        monkeypatch.setattr(shutil, "copyfile", full)
    for name, content in (("large.log", b"12345"), ("small.log", b"1234")):
        (tmp_path / name).write_bytes(content)
    subject.bound_logs(tmp_path)
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    kept = {"large.log.1": b"12345"} if has_room else {}
    assert found == {"large.log": b"", "small.log": b"1234", **kept}


def test_what_was_kept_of_a_log_goes_if_there_is_no_room_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path, target: Path) -> None:
        target.write_bytes(b"12")
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(subject, "LOG_BYTES_MAX", 4)
    monkeypatch.setattr(shutil, "copyfile", full)
    (tmp_path / "large.log").write_bytes(b"12345")
    subject.bound_logs(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"large.log": b""}
