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
"""The number of a participant, as long as it remembers: no other one of its task ever has it, not even in the
same epoch."""


# To a participant.


class Begin(msgspec.Struct, frozen=True, array_like=True, tag="begin", gc=False):
    """Run these records, without those that are left out."""

    version: Version
    spans: tuple[Span, ...]
    left_out: tuple[LeftOut, ...]
    careful: bool


class Calls(msgspec.Struct, frozen=True, array_like=True, tag="calls", gc=False):
    """Calls that the sender's round made for this task to run in ``round``; they are the body."""

    version: Version
    round: int
    sender: TaskId
    speaker: Speaker
    """The participant of the sender's task."""
    count: int


class Expected(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many calls a participant has sent to this task."""

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
    """Replicate what the version changed on this task."""

    version: Version
    spans: tuple[Span, ...]
    left_out: tuple[LeftOut, ...]


class Roll(msgspec.Struct, frozen=True, array_like=True, tag="roll", gc=False):
    """Let what is staged for a committed version take effect."""

    version: Version
    spans: tuple[Span, ...] = ()
    """The part of the version's input that is on this task."""


class Poll(msgspec.Struct, frozen=True, array_like=True, tag="poll", gc=False):
    """Ask how far the depots reach; answered as soon as one reaches beyond this, or after a while in any
    case."""

    number: int
    beyond: dict[str, int]
    everywhere: int = 0
    """The latest id that took effect on all its tasks, as did all before it."""


class CallsHeld(msgspec.Struct, frozen=True, array_like=True, tag="calls_held", gc=False):
    """The answer to Calls: they are kept for their round. Goes to the task that sent them."""

    version: Version
    round: int
    task: TaskId


# To the coordinator.


class Ran(msgspec.Struct, frozen=True, array_like=True, tag="ran", gc=False):
    """The round was run, and the calls that it made are where they will be run."""

    version: Version
    round: int
    task: TaskId
    speaker: Speaker
    sent: tuple[tuple[TaskId, int], ...]
    """The tasks that calls were sent to, and how many each."""


class Failure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record for which the module's code failed."""

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
    """The participant was asked again, and is still working on it."""

    version: Version
    task: TaskId


class Staged(msgspec.Struct, frozen=True, array_like=True, tag="staged", gc=False):
    """What the version changed on this task is replicated and applied."""

    version: Version
    task: TaskId
    speaker: Speaker


class Rolled(msgspec.Struct, frozen=True, array_like=True, tag="rolled", gc=False):
    """Microbatches up to ``id`` have taken effect on this task."""

    task: TaskId
    id: int
    bounds: dict[str, tuple[int, int]]


class Input(msgspec.Struct, frozen=True, array_like=True, tag="input", gc=False):
    """The answer to a Poll: first and end offset of each depot. Once per Poll it may come unasked, when an
    appender begins to wait."""

    number: int
    task: TaskId
    rolled: int
    bounds: dict[str, tuple[int, int]]
    awaited: dict[str, int] = {}
    """The offsets below which appenders wait for all records, by depot."""


ToParticipant: TypeAlias = Begin | Calls | CallsHeld | Go | Stage | Roll | Poll
ToCoordinator: TypeAlias = Ran | Broken | Working | Staged | Rolled | Input
AnyMessage: TypeAlias = ToParticipant | ToCoordinator
