"""What the coordinator of a topology and its participants tell each other.

All may be lost, doubled, late and out of order: who waits asks again, and an answer names what it answers. A
message goes to the leader of a task; answers go to the leader of task 0. A participant says which one it is,
because another leader of the same task is another participant.
"""

from __future__ import annotations

from typing import NewType, TypeAlias

import msgspec

from stretto.state.microbatch_entries import LeftOut, Source, Span, Version
from stretto.vocabulary.types import TaskId

Speaker = NewType("Speaker", int)
"""A participant of a task, as long as it remembers: no other ever has that number, not in the same epoch."""


# To a participant.


class Begin(msgspec.Struct, frozen=True, array_like=True, tag="begin", gc=False):
    """Run these records, without those that are left out."""

    version: Version
    spans: tuple[Span, ...]
    left_out: tuple[LeftOut, ...]
    careful: bool


class Calls(msgspec.Struct, frozen=True, array_like=True, tag="calls", gc=False):
    """What the sender's round made for this task to run in ``round``; the body has them."""

    version: Version
    round: int
    sender: TaskId
    speaker: Speaker
    """For the sender."""
    count: int


class Expected(msgspec.Struct, frozen=True, array_like=True, gc=False):
    sender: TaskId
    speaker: Speaker
    count: int


class Go(msgspec.Struct, frozen=True, array_like=True, tag="go", gc=False):
    """Run the calls of a round."""

    version: Version
    round: int
    expected: tuple[Expected, ...]
    careful: bool


class Stage(msgspec.Struct, frozen=True, array_like=True, tag="stage", gc=False):
    version: Version
    spans: tuple[Span, ...]
    left_out: tuple[LeftOut, ...]


class Roll(msgspec.Struct, frozen=True, array_like=True, tag="roll", gc=False):
    version: Version
    spans: tuple[Span, ...] = ()
    """What of its input is the task's."""


class Poll(msgspec.Struct, frozen=True, array_like=True, tag="poll", gc=False):
    """Say how far the depots reach, as soon as one reaches beyond this, or after a while in any case."""

    number: int
    beyond: dict[str, int]
    everywhere: int = 0
    """The latest id that took effect on all its tasks, and so did all before it."""


class CallsHeld(msgspec.Struct, frozen=True, array_like=True, tag="calls_held", gc=False):
    """Answers Calls, to their sender."""

    version: Version
    round: int
    task: TaskId


# To the coordinator.


class Ran(msgspec.Struct, frozen=True, array_like=True, tag="ran", gc=False):
    """The calls that the round made are where they will be run."""

    version: Version
    round: int
    task: TaskId
    speaker: Speaker
    sent: tuple[tuple[TaskId, int], ...]
    """To whom, and how many."""


class Failure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of the module's code."""

    source: Source
    error: str
    traceback: str


class Broken(msgspec.Struct, frozen=True, array_like=True, tag="broken", gc=False):
    """This version comes to nothing. With failures: the round was run, and these records failed. ``hung``:
    the module's code ended the executor, or its time, and nobody knows with which record."""

    version: Version
    round: int
    task: TaskId
    why: str
    failures: tuple[Failure, ...] = ()
    too_large: bool = False
    hung: bool = False


class Working(msgspec.Struct, frozen=True, array_like=True, tag="working", gc=False):
    """It was asked again, and is still at it."""

    version: Version
    task: TaskId


class Staged(msgspec.Struct, frozen=True, array_like=True, tag="staged", gc=False):
    version: Version
    task: TaskId
    speaker: Speaker


class Rolled(msgspec.Struct, frozen=True, array_like=True, tag="rolled", gc=False):
    """``id`` is the latest that took effect there."""

    task: TaskId
    id: int
    bounds: dict[str, tuple[int, int]]


class Input(msgspec.Struct, frozen=True, array_like=True, tag="input", gc=False):
    """First and end offset of each depot, answering a Poll; once per Poll it may come unasked, when an
    appender begins to wait."""

    number: int
    task: TaskId
    rolled: int
    bounds: dict[str, tuple[int, int]]
    awaited: dict[str, int] = {}
    """By depot: an appender waits for the records below this offset."""


ToParticipant: TypeAlias = Begin | Calls | CallsHeld | Go | Stage | Roll | Poll
ToCoordinator: TypeAlias = Ran | Broken | Working | Staged | Rolled | Input
AnyMessage: TypeAlias = ToParticipant | ToCoordinator
