"""Whatever is wanted when, and whatever fails: no promise is made that the identity does not tell of."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from stretto.replog.identity import Fsync, Identity
from stretto.vocabulary.groups import GroupKey
from stretto.worker.replica.fsync import FsyncSwitch, Host, Replica


class World:
    """Loop, committer, applier, log and identity, where everything takes its time until :meth:`go_on`."""

    def __init__(self) -> None:
        self.todo: deque[Callable[[], None]] = deque()
        self.key = GroupKey("counts", 1, 0)
        self.closed = False
        self.fsync_always = True
        self.written_end_offset = 0
        self.durable_end_offset = 0
        #: End of what was confirmed.
        self.promised = 0
        self.on_disk: Fsync = "always"
        #: What the identity knows of that.
        self.fsync: Fsync | None = "always"
        #: The next write of the identity is reported as failed, and may have been done.
        self.fails_next: str | None = None
        self.round_fails = False
        self._rounds = 0
        self._actions: list[Callable[[], None]] = []
        self.loop = self.commit = self.applier = self.log = self
        self.switch = FsyncSwitch(cast(Host, self), cast(Replica, self), cast(Identity, self))

    # The replica.

    def write(self) -> None:
        self.written_end_offset += 1
        if not self.fsync_always:
            self.promised = self.written_end_offset

    # The committer.

    def submit(self, _: object) -> None:
        self._rounds += 1
        self.todo.append(self._round)

    def _round(self) -> None:
        if not self.round_fails:
            self.durable_end_offset = self.written_end_offset
            self.promised = max(self.promised, self.durable_end_offset)
        self._rounds -= 1
        if not self._rounds:
            actions, self._actions = self._actions, []
            for action in actions:
                action()
        # The replica hears of it after those who waited.
        self.closed = self.closed or self.round_fails

    def when_quiet(self, _: object, action: Callable[[], None]) -> None:
        if self._rounds:
            self._actions.append(action)
        else:
            action()

    # The loop and the applier.

    def call_soon(self, function: Callable[..., None], *args: Any) -> None:
        self.todo.append(lambda: function(*args))

    def call_after(self, _: int, function: Callable[..., None]) -> None:
        self.todo.append(function)

    def read(self, function: Callable[[], None], then: Callable[[Any], None]) -> None:
        def run() -> None:
            try:
                function()
            except OSError as error:
                self.call_soon(then, error)
            else:
                self.call_soon(then, None)

        self.todo.append(run)

    def mark_fsync(self, fsync: Fsync) -> None:
        failure, self.fails_next = self.fails_next, None
        self.fsync = None
        if failure != "lost":
            self.on_disk = fsync
        if failure is not None:
            raise OSError("disk full")
        self.fsync = fsync

    def go_on(self) -> None:
        if self.todo:
            self.todo.popleft()()

    def check(self) -> None:
        if self.on_disk == "always":
            assert self.promised <= self.durable_end_offset, "a crash of the machine would break a promise"

    def do(self, step: str) -> None:
        match step:
            case "write":
                self.write()
            case "sync":
                self.submit(self)
            case "go_on":
                self.go_on()
            case "lost" | "done":
                self.fails_next = step
            case "always" | "interval" as wanted:
                self.switch.want(wanted)
            case _:
                raise AssertionError(step)
        self.check()


STEPS = st.sampled_from(
    ["always", "interval", "write", "write", "sync", "go_on", "go_on", "go_on", "lost", "done"]
)


@given(st.lists(STEPS, max_size=60), st.sampled_from(["always", "interval"]))
def test_no_promise_is_made_that_the_identity_does_not_tell_of(steps: list[str], last: str) -> None:
    world = World()
    for step in steps:
        world.do(step)
    world.do(last)
    while world.todo:
        world.do("go_on")
    assert world.on_disk == last
    assert world.fsync_always == (last == "always")


def test_confirming_unsynced_begins_after_the_identity_is_written() -> None:
    world = World()
    world.do("interval")
    assert world.fsync_always
    world.do("go_on")
    assert world.fsync == "interval"
    world.do("go_on")
    assert not world.fsync_always


def test_always_holds_at_once_and_the_identity_follows_the_sync() -> None:
    world = World()
    for step in ["interval", "go_on", "go_on", "write", "always"]:
        world.do(step)
    assert world.fsync_always
    assert (world.fsync, world.durable_end_offset) == ("interval", 0)
    world.do("go_on")
    assert (world.fsync, world.durable_end_offset) == ("interval", 1)
    world.do("go_on")
    assert world.fsync == "always"


def test_a_change_of_mind_waits_for_the_change_under_way() -> None:
    world = World()
    for step in ["interval", "go_on", "go_on", "write", "always", "go_on"]:
        world.do(step)
    world.do("interval")
    assert world.fsync_always, "the identity is being written for always"
    world.do("write")
    while world.todo:
        world.do("go_on")
    assert (world.fsync, world.fsync_always) == ("interval", False)


def test_a_write_of_the_identity_that_failed_may_have_been_done() -> None:
    world = World()
    for step in ["interval", "go_on", "go_on", "write", "always", "go_on", "done", "go_on"]:
        world.do(step)
    assert world.on_disk == "always"
    for step in ["interval", "write", "go_on"]:
        world.do(step)
        assert world.fsync_always
    while world.todo:
        world.do("go_on")
    assert (world.on_disk, world.fsync_always) == ("interval", False)


def test_after_a_sync_that_failed_the_identity_still_tells_of_the_promise() -> None:
    world = World()
    for step in ["interval", "go_on", "go_on", "write", "always"]:
        world.do(step)
    world.round_fails = True
    while world.todo:
        world.do("go_on")
    assert (world.fsync, world.closed) == ("interval", True)


def test_a_replica_that_was_closed_is_left_alone() -> None:
    world = World()
    world.closed = True
    world.do("interval")
    assert not world.todo
