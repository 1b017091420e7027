"""How batches are cut at markers, and what becomes of what a thread finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.catchup.threads import CatchupThreads
from stretto.errors import StorageError
from stretto.network.loop import Loop
from stretto.replog.core import events
from stretto.replog.core.producers import NO_PRODUCER
from stretto.replog.frame import Frame, Header, Kind, encode
from stretto.state.environment import NoSpace, StateCorrupt
from stretto.vocabulary.invariants import InvariantViolation, check
from stretto.vocabulary.types import Epoch, Offset, TaskId
from stretto.worker.replica.applier import Applier, _up_to_markers


def frames(kinds: list[Kind]) -> list[Frame]:
    return [
        encode(
            Header(
                offset=Offset(offset),
                epoch=Epoch(1),
                kind=kind,
                count=1,
                task=TaskId(0),
                producer=NO_PRODUCER,
                sequence=0,
                timestamp_ms=0,
            ),
            b"",
        )
        for offset, kind in enumerate(kinds)
    ]


@given(st.lists(st.sampled_from([Kind.EPOCH, Kind.DEPOT, Kind.MARKER])))
def test_every_marker_ends_a_run_and_nothing_else_does(kinds: list[Kind]) -> None:
    batch = frames(kinds)
    runs = list(_up_to_markers(batch))
    assert [frame for run in runs for frame in run] == batch
    assert all(runs)
    for run in runs[:-1]:
        assert run[-1].header.kind is Kind.MARKER
    assert all(frame.header.kind is not Kind.MARKER for run in runs for frame in run[:-1])


def test_a_batch_without_markers_is_not_copied() -> None:
    batch = frames([Kind.DEPOT, Kind.DEPOT])
    [run] = _up_to_markers(batch)
    assert run is batch


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(params=["read", "catchup"])
def off_loop(loop: Loop, request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """Runs a function on another thread, and another one on the loop."""
    if request.param == "read":
        applier = Applier(loop, lambda *_: None)
        yield applier.read
        applier.close()
    else:
        threads = CatchupThreads(loop)
        yield threads.run
        threads.close()


def test_a_broken_invariant_on_a_thread_ends_the_worker(loop: Loop, off_loop: Callable[..., None]) -> None:
    told: list[object] = []
    off_loop(lambda: check(False, "close with a write in flight"), told.append)
    with pytest.raises(InvariantViolation, match="close with a write in flight"):
        loop.run()
    assert not told


def test_a_thread_goes_on_after_a_failure_that_its_caller_is_told(
    loop: Loop, off_loop: Callable[..., None]
) -> None:
    told: list[object] = []

    def then(result: object) -> None:
        told.append(result)
        if len(told) == 2:
            loop.stop()

    def fail() -> None:
        raise OSError("a bad sector")

    off_loop(fail, then)
    off_loop(lambda: "read", then)
    loop.run()
    assert sorted(map(str, told)) == ["a bad sector", "read"]


class FailingState:
    """It takes no entry, or cannot be synced; once asked again it would do both."""

    def __init__(self, fails_at: str, error: StorageError) -> None:
        self.done: list[str] = []
        self._fails_at: str | None = fails_at
        self._error = error

    def apply(self, run: list[Frame]) -> None:
        self._do(f"apply {run[0].header.offset}")

    def checkpoint(self) -> Offset:
        self._do("checkpoint")
        return Offset(1)

    def _do(self, what: str) -> None:
        if self._fails_at is not None and what.startswith(self._fails_at):
            self._fails_at = None
            raise self._error
        self.done.append(what)


@pytest.mark.parametrize(
    ("error", "suspect"),
    [
        (StorageError("a bad sector"), False),
        (NoSpace("the disk is full"), False),
        (StateCorrupt("a bad page"), True),
    ],
)
@pytest.mark.parametrize("fails_at", ["apply", "checkpoint"])
def test_nothing_is_applied_or_synced_after_a_failure(
    loop: Loop, fails_at: str, error: StorageError, suspect: bool
) -> None:
    """What comes later would be applied without what failed, and what is synced may be cut off the log."""
    applier = Applier(loop, lambda *_: None)
    first, second = ([frame] for frame in frames([Kind.DEPOT, Kind.DEPOT]))
    told: list[events.Event] = []
    applied: list[Offset] = []
    state = FailingState(fails_at, error)

    def step(event: events.Event) -> None:
        told.append(event)
        applier.apply(group, second, Offset(2))
        applier.checkpoint(group)
        applier.after_applied(loop.stop)

    group = MagicMock(state=state, apply_failed=False, closed=False, step=step, on_applied=applied.append)
    if fails_at == "apply":
        applier.apply(group, first, Offset(1))
    else:
        applier.checkpoint(group)
    loop.run()
    applier.close()
    assert told == [events.StorageFailed(why=str(error), suspect=suspect)]
    assert (state.done, applied) == ([], [])
