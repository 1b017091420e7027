"""What the leader's side of a transfer keeps of its log, and until when."""

from __future__ import annotations

import pytest

from stretto.catchup.machines import serve
from stretto.catchup.machines.serve import Serve
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Incarnation, Millis, Offset, TaskId, WorkerId
from stretto.wire import catchup

PATIENCE_MS = 5_000
KEY = (GroupKey("counts", 1, 0), WorkerId("w1"))
NAMED = (Epoch(2), Incarnation("w1.1"), 3)


def begun() -> Serve:
    """A transfer of one task is under way."""
    serving = Serve(serve.Limit(bytes_per_second=1 << 20, patience_ms=Millis(PATIENCE_MS)), Millis(0))
    epoch, incarnation, attempt = NAMED
    begin = serve.Begin(
        key=KEY,
        epoch=epoch,
        incarnation=incarnation,
        attempt=attempt,
        tasks=(TaskId(0),),
        pinned=Offset(40),
    )
    serving.step(begin, Millis(0))
    return serving


def pins(effects: list[serve.Effect]) -> list[Offset | None]:
    return [effect.start for effect in effects if isinstance(effect, serve.MovePin)]


def heard(message: catchup.Ask) -> serve.Heard:
    return serve.Heard(key=KEY, message=message, applied=Offset(50))


def test_the_log_stays_pinned_when_the_images_are_there() -> None:
    """The follower has them, and not yet the entries since: it catches up from the log, and only then does
    the core let go of it."""
    serving = begun()
    effects = serving.step(heard(catchup.Finished(*NAMED)), Millis(1))
    assert pins(effects) == []
    assert serve.Drop(key=KEY) in effects
    assert serving.transfers == {}
    assert pins(serving.step(serve.Tick(), Millis(2 * PATIENCE_MS))) == []


@pytest.mark.parametrize(
    "event",
    [
        heard(catchup.NoRoom(*NAMED)),
        serve.ImageFailed(key=KEY, attempt=NAMED[2], why="a bad sector"),
        serve.Tick(),
    ],
    ids=["no room", "failed", "silence"],
)
def test_a_transfer_that_leads_to_nothing_lets_go_of_the_log(event: serve.Event) -> None:
    serving = begun()
    effects = serving.step(event, Millis(PATIENCE_MS))
    assert pins(effects) == [None]
    assert serve.Drop(key=KEY) in effects
    assert serving.transfers == {}


def test_what_an_earlier_attempt_says_ends_nothing() -> None:
    serving = begun()
    epoch, incarnation, attempt = NAMED
    for message in (catchup.Finished, catchup.NoRoom):
        assert serving.step(heard(message(epoch, incarnation, attempt - 1)), Millis(1)) == []
    assert KEY in serving.transfers
